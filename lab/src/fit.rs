//! Least squares: the cost of each of several things, from sums in which they occur together.

use crate::statistics::student;

/// The result of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The cost of one of each thing.
    pub costs: Vec<f64>,
    /// Half the width of the 95 % confidence interval of each cost; not a number with as many rows
    /// as things.
    pub margins: Vec<f64>,
    /// The part of the variation that the fit explains, 1 at best (R², about the mean).
    pub explained: f64,
}

/// Finds the costs that come nearest to `sums[i] = Σ counts[i][k] · cost[k]` for all rows `i`, by
/// the sum of squared differences. Returns `None` where the rows do not tell the things apart:
/// fewer rows than things, or counts that depend on each other.
#[must_use]
pub fn least_squares(counts: &[Vec<f64>], sums: &[f64]) -> Option<Fit> {
    let things = counts.first()?.len();
    if things == 0 || counts.len() < things || counts.len() != sums.len() {
        return None;
    }
    if counts.iter().any(|row| row.len() != things || row.iter().any(|value| !value.is_finite()))
        || sums.iter().any(|value| !value.is_finite())
    {
        return None;
    }
    // Scales the columns to one size: else the smallest would drown in rounding.
    let sizes: Vec<f64> = (0..things)
        .map(|thing| counts.iter().map(|row| row[thing] * row[thing]).sum::<f64>().sqrt())
        .collect();
    if sizes.iter().any(|size| *size <= 0.0) {
        return None;
    }
    // The normal equations: (AᵀA) x = Aᵀb.
    let mut equations = vec![vec![0.0; things + 1]; things];
    for (row, sum) in counts.iter().zip(sums) {
        for one in 0..things {
            for other in 0..things {
                equations[one][other] += row[one] / sizes[one] * row[other] / sizes[other];
            }
            equations[one][things] += row[one] / sizes[one] * sum;
        }
    }
    let matrix: Vec<Vec<f64>> = equations.iter().map(|row| row[..things].to_vec()).collect();
    let scaled = solve(equations)?;
    let costs: Vec<f64> = scaled.iter().zip(&sizes).map(|(cost, size)| cost / size).collect();
    let mean = sums.iter().sum::<f64>() / sums.len() as f64;
    let total: f64 = sums.iter().map(|sum| (sum - mean).powi(2)).sum();
    let left: f64 = counts
        .iter()
        .zip(sums)
        .map(|(row, sum)| {
            let fitted: f64 = row.iter().zip(&costs).map(|(count, cost)| count * cost).sum();
            (sum - fitted).powi(2)
        })
        .sum();
    let explained = if total > 0.0 { 1.0 - left / total } else { f64::NAN };
    let free = counts.len() - things;
    let variance = left / free as f64;
    let margin = |thing: usize| {
        // The variance of a cost is that of the differences, times an element of (AᵀA)⁻¹.
        let unit = |row: usize| f64::from(u8::from(row == thing));
        let column = |(row, left): (usize, &Vec<f64>)| [&left[..], &[unit(row)]].concat();
        let inverse = solve(matrix.iter().enumerate().map(column).collect())?;
        Some(student(free) * (variance * inverse[thing].max(0.0)).sqrt() / sizes[thing])
    };
    let margins = (0..things).map(margin).collect::<Option<_>>()?;
    Some(Fit { costs, margins, explained })
}

/// Eliminates with the largest pivot. Returns `None` if there is no single solution.
fn solve(mut equations: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let count = equations.len();
    for column in 0..count {
        let pivot = (column..count)
            .max_by(|a, b| equations[*a][column].abs().total_cmp(&equations[*b][column].abs()))?;
        // The columns have size one, so a rest this small is rounding.
        if equations[pivot][column].abs() < 1e-9 {
            return None;
        }
        equations.swap(column, pivot);
        let top = equations[column].clone();
        for row in &mut equations[column + 1..] {
            let factor = row[column] / top[column];
            for (value, above) in row[column..].iter_mut().zip(&top[column..]) {
                *value -= factor * above;
            }
        }
    }
    let mut solution = vec![0.0; count];
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|at| equations[row][at] * solution[at]).sum();
        solution[row] = (equations[row][count] - known) / equations[row][row];
    }
    Some(solution)
}

/// Finds the straight line `y = offset + slope · x` nearest to some points. Returns offset, slope,
/// and the part of the variation that the line explains.
#[must_use]
pub fn line(points: &[[f64; 2]]) -> Option<(f64, f64, f64)> {
    let counts: Vec<Vec<f64>> = points.iter().map(|point| vec![1.0, point[0]]).collect();
    let sums: Vec<f64> = points.iter().map(|point| point[1]).collect();
    let fit = least_squares(&counts, &sums)?;
    Some((fit.costs[0], fit.costs[1], fit.explained))
}

/// Returns how far two columns vary together (Pearson's): 1 or -1 if one is a linear function of
/// the other, 0 if they are unrelated. Not a number if one of them does not vary.
#[must_use]
pub fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_one, mean_other) = (mean(one), mean(other));
    let (mut both, mut square_one, mut square_other) = (0.0, 0.0, 0.0);
    for (a, b) in one.iter().zip(other) {
        both += (a - mean_one) * (b - mean_other);
        square_one += (a - mean_one).powi(2);
        square_other += (b - mean_other).powi(2);
    }
    both / (square_one * square_other).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-9)
    }

    #[test]
    fn the_papers_own_costs() {
        // Hennrich's four set-ups: packets, IPCs and IRQs in 5 s, and the busy time.
        let counts = [
            vec![57_100.0, 3_550.0, 24_250.0],
            vec![43_420.0, 12_950.0, 37_490.0],
            vec![57_880.0, 24_510.0, 25_540.0],
            vec![42_600.0, 42_300.0, 32_960.0],
        ];
        let fit = least_squares(&counts, &[1.98, 2.75, 2.83, 3.5]).unwrap();
        let us: Vec<_> = fit.costs.iter().map(|cost| (cost * 1e6) as u32).collect();
        assert_eq!(us, [14, 34, 44], "microseconds of a packet, an IPC and an IRQ");
        assert!(fit.explained > 0.97, "{}", fit.explained);
        // Four rows for three costs leave one degree of freedom: the paper's costs are uncertain.
        let us: Vec<_> = fit.margins.iter().map(|margin| (margin * 1e6).round() as u32).collect();
        assert_eq!(us, [22, 25, 42], "microseconds around each");
    }

    #[test]
    fn margins_are_those_of_the_textbook() {
        // A line through five points: the sum of squares of x about its mean is 10, and three
        // degrees of freedom are left.
        let y = [2.0, 4.1, 5.9, 8.2, 9.8];
        let counts: Vec<Vec<f64>> = (1..=5).map(|x| vec![1.0, f64::from(x)]).collect();
        let fit = least_squares(&counts, &y).unwrap();
        let left: f64 = (1..=5)
            .zip(y)
            .map(|(x, y)| (y - fit.costs[0] - fit.costs[1] * f64::from(x)).powi(2))
            .sum();
        assert!(near(fit.margins[1], 3.182 * (left / 3.0 / 10.0).sqrt()), "{fit:?}");
        assert!(near(fit.margins[0], 3.182 * (left / 3.0 * (0.2 + 9.0 / 10.0)).sqrt()));
        let exact = least_squares(&counts[..2], &y[..2]).unwrap();
        assert!(exact.margins.iter().all(|margin| margin.is_nan()), "{exact:?}");
    }

    #[test]
    fn exact_sums_give_exact_costs() {
        let costs = [14e-6, 34e-6, 0.5];
        let counts: Vec<Vec<f64>> = (1..8)
            .map(|n| vec![f64::from(n * n) * 1000.0, f64::from(n % 3) * 10.0, f64::from(n)])
            .collect();
        let sums: Vec<f64> =
            counts.iter().map(|row| row.iter().zip(&costs).map(|(a, b)| a * b).sum()).collect();
        let fit = least_squares(&counts, &sums).unwrap();
        assert!(fit.costs.iter().zip(&costs).all(|(a, b)| near(*a, *b)), "{fit:?}");
        assert!(near(fit.explained, 1.0));
    }

    #[test]
    fn underdetermined_fits_give_no_result() {
        let twins = [vec![1.0, 2.0], vec![2.0, 4.0], vec![3.0, 6.0]];
        assert_eq!(least_squares(&twins, &[1.0, 2.0, 3.0]), None);
        assert_eq!(least_squares(&[vec![1.0, 2.0]], &[1.0]), None, "fewer rows than things");
        assert_eq!(least_squares(&[], &[]), None);
        assert_eq!(least_squares(&[vec![0.0], vec![0.0]], &[1.0, 2.0]), None, "never seen");
        assert_eq!(least_squares(&[vec![1.0], vec![1.0, 2.0]], &[1.0, 2.0]), None);
        assert_eq!(least_squares(&[vec![1.0], vec![f64::NAN]], &[1.0, 2.0]), None);
    }

    #[test]
    fn correlation_of_known_series() {
        assert!(near(correlation(&[1.0, 2.0, 3.0], &[5.0, 7.0, 9.0]), 1.0));
        assert!(near(correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0));
        assert!(correlation(&[1.0, 2.0, 3.0, 4.0], &[1.0, -1.0, -1.0, 1.0]).abs() < 1e-9);
        assert!(correlation(&[1.0, 1.0], &[1.0, 2.0]).is_nan());
    }

    #[test]
    fn a_line_is_fitted() {
        let (offset, slope, explained) = line(&[[0.0, 100.0], [10.0, 80.0], [20.0, 60.0]]).unwrap();
        assert!(near(offset, 100.0) && near(slope, -2.0) && near(explained, 1.0));
        assert_eq!(line(&[[1.0, 1.0]]), None);
    }
}

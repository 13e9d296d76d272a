//! The answers of the programs in `lab/peers`.

use anyhow::{Context, ensure};

/// Quantiles of round trips, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trips {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Returns the numbers behind a word.
fn numbers<const N: usize>(line: &str, word: &str) -> anyhow::Result<[u64; N]> {
    let strange = || format!("the program said {line:?}");
    let rest = line.strip_prefix(word).with_context(strange)?;
    let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
    numbers.ok().and_then(|numbers| numbers.try_into().ok()).with_context(strange)
}

/// Parses `trips COUNT P50_NS P99_NS P999_NS`.
pub(super) fn trips(line: &str) -> anyhow::Result<Trips> {
    let [count, p50, p99, _] = numbers(line, "trips ")?;
    ensure!(count > 0, "the program made no round trip");
    Ok(Trips { count, p50_us: p50 as f64 / 1e3, p99_us: p99 as f64 / 1e3 })
}

/// Parses `messages COUNT NANOSECONDS`; returns millions of messages per second.
pub(super) fn messages(line: &str) -> anyhow::Result<f64> {
    let [count, nanoseconds] = numbers(line, "messages ")?;
    ensure!(count > 0 && nanoseconds > 0, "the program carried no message");
    Ok(count as f64 / nanoseconds as f64 * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_programs() {
        let expected = Trips { count: 10_026, p50_us: 2.804, p99_us: 8.371 };
        assert_eq!(trips("trips 10026 2804 8371 11810000").unwrap(), expected);
        let rate = messages("messages 1220358 300482775").unwrap();
        assert!((rate - 4.0613).abs() < 0.001, "{rate}");
    }

    #[test]
    fn other_answers_are_errors_that_quote_them() {
        for line in ["", "trips 1 2 3", "trips 1 2 3 x", "messages 1 2", "trips 1 2 3 4 5"] {
            let error = trips(line).unwrap_err().to_string();
            assert_eq!(error, format!("the program said {line:?}"));
        }
        assert_eq!(
            trips("trips 0 0 0 0").unwrap_err().to_string(),
            "the program made no round trip"
        );
        assert!(messages("messages 0 5").is_err());
    }
}

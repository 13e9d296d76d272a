//! Pictures of [`Figure`]s, as SVG 1.1.
//!
//! Written by hand: two axes, a grid, lines, marks and a legend are all that is needed, and what a
//! browser, a viewer and a word processor draw alike.

use std::fmt::Write;

use crate::figure::{Axis, Figure, Series};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
/// Where the axes' field lies: left, top, right, bottom.
const FIELD: [f64; 4] = [76.0, 44.0, 596.0, 400.0];
/// Distance between the legend's lines.
const LEGEND_LINE: f64 = 19.0;
/// Letters of a legend's line.
const LEGEND_LETTERS: usize = 52;

/// Colours that people with any kind of colour blindness tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"];
/// Beyond the colours, the kinds of lines change.
const DASHES: [&str; 3] = ["", "6 3", "2 2"];

/// The picture.
#[must_use]
pub fn draw(figure: &Figure) -> String {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let x = Scale::of(&figure.x, points().map(|point| point[0]), FIELD[0], FIELD[2]);
    let y = Scale::of(&figure.y, points().map(|point| point[1]), FIELD[3], FIELD[1]);
    let legend = FIELD[1] + figure.series.len() as f64 * LEGEND_LINE + 20.0;
    let height = HEIGHT.max(legend);
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"Helvetica, Arial, sans-serif\" \
         font-size=\"12\">\n<title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        escaped(&figure.title)
    );
    text(&mut svg, (FIELD[0], 24.0), "start", "font-size=\"15\"", &figure.title);
    axes(&mut svg, figure, &x, &y);
    for (number, series) in figure.series.iter().enumerate() {
        draw_series(&mut svg, number, series, &x, &y);
    }
    svg += "</svg>\n";
    svg
}

/// Where values lie on an axis.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let drawn = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (mut low, mut high) = drawn
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        if axis.log {
            // Whole decades, but no more than half a decade of nothing.
            let whole = |value: f64| 10_f64.powf(value);
            low = whole((low.log10() * 2.0 + 1e-9).floor() / 2.0);
            high = whole((high.log10() * 2.0 - 1e-9).ceil() / 2.0);
            if low >= high {
                high = low * 10.0;
            }
        } else {
            // From zero, unless the differences would vanish.
            if low > 0.0 && low < high * 0.6 || low == high {
                low = low.min(0.0);
            }
            if low == high {
                high = low + 1.0;
            }
            let step = step(high - low);
            low = (low / step + 1e-9).floor() * step;
            high = (high / step - 1e-9).ceil() * step;
        }
        Scale { log: axis.log, low, high, from, to }
    }

    /// `None` for what an axis cannot show.
    fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || self.log && value <= 0.0 {
            return None;
        }
        let part = if self.log {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        Some(self.from + part * (self.to - self.from))
    }

    /// Values with a line of the grid, and whether they are named.
    fn ticks(&self) -> Vec<(f64, bool)> {
        if !self.log {
            let step = step(self.high - self.low);
            let count = ((self.high - self.low) / step).round() as usize;
            return (0..=count).map(|place| (self.low + place as f64 * step, true)).collect();
        }
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let short = last - first <= 3;
        let mut ticks = Vec::new();
        for decade in first..=last {
            for digit in 1..10 {
                let value = f64::from(digit) * 10_f64.powi(decade);
                if value >= self.low * 0.999 && value <= self.high * 1.001 {
                    ticks.push((value, digit == 1 || short && (digit == 2 || digit == 5)));
                }
            }
        }
        ticks
    }
}

/// A round distance between lines of the grid: about six of them.
fn step(range: f64) -> f64 {
    let rough = range / 6.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.into_iter().map(|factor| factor * decade).find(|step| *step >= rough).unwrap_or(range)
}

/// A number at an axis: short, with the prefixes that engineers use.
fn label(value: f64) -> String {
    let size = value.abs();
    let (by, prefix) = match size {
        _ if size >= 1e9 => (1e9, "G"),
        _ if size >= 1e6 => (1e6, "M"),
        _ if size >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let scaled = value / by;
    let text = format!("{scaled:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { format!("{text}{prefix}") }
}

fn axes(svg: &mut String, figure: &Figure, x: &Scale, y: &Scale) {
    let [left, top, right, bottom] = FIELD;
    for (value, named) in x.ticks() {
        let Some(at) = x.place(value) else { continue };
        line(svg, (at, top), (at, bottom), if named { "#d8d8d8" } else { "#eeeeee" });
        if named {
            text(svg, (at, bottom + 16.0), "middle", "", &label(value));
        }
    }
    for (value, named) in y.ticks() {
        let Some(at) = y.place(value) else { continue };
        line(svg, (left, at), (right, at), if named { "#d8d8d8" } else { "#eeeeee" });
        if named {
            text(svg, (left - 6.0, at + 4.0), "end", "", &label(value));
        }
    }
    let (width, height) = (right - left, bottom - top);
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
         stroke=\"#404040\"/>"
    );
    let middle = f64::midpoint(left, right);
    text(svg, (middle, bottom + 38.0), "middle", "", &figure.x.text());
    let middle = f64::midpoint(top, bottom);
    let turn = format!("transform=\"rotate(-90 18 {middle})\"");
    text(svg, (18.0, middle), "middle", &turn, &figure.y.text());
}

fn draw_series(svg: &mut String, number: usize, series: &Series, x: &Scale, y: &Scale) {
    let colour = COLOURS[number % COLOURS.len()];
    let dash = DASHES[number / COLOURS.len() % DASHES.len()];
    let dashed =
        if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    let places: Vec<(f64, f64)> = series
        .points
        .iter()
        .filter_map(|[at_x, at_y]| Some((x.place(*at_x)?, y.place(*at_y)?)))
        .collect();
    if series.joined && places.len() > 1 {
        let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"1.8\"{dashed}/>",
            path.join(" ")
        );
    }
    // Marks on a dense curve would only thicken it.
    if !series.joined || places.len() <= 32 {
        for (x, y) in &places {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    let (left, at) = (FIELD[2] + 14.0, FIELD[1] + 8.0 + number as f64 * LEGEND_LINE);
    if series.joined {
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" \
             stroke-width=\"1.8\"{dashed}/>",
            left + 22.0
        );
    } else {
        let middle = left + 11.0;
        let _ = writeln!(svg, "<circle cx=\"{middle}\" cy=\"{at}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let mut name: String = series.name.chars().take(LEGEND_LETTERS).collect();
    if name.len() < series.name.len() {
        name.push('…');
    }
    text(svg, (left + 28.0, at + 4.0), "start", "font-size=\"11\"", &name);
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, more: &str, words: &str) {
    let space = if more.is_empty() { "" } else { " " };
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\"{space}{more}>{}</text>",
        at.0,
        at.1,
        escaped(words)
    );
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            // XML 1.0 has no place for other control characters.
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Whether a text is well-formed as far as these pictures need it: elements that nest and are
    /// closed, quoted attributes, and no stray markup. Answers how many elements there are.
    pub(crate) fn well_formed(xml: &str) -> Result<usize, String> {
        let mut rest =
            xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").ok_or("head")?;
        let (mut open, mut count) = (Vec::new(), 0);
        while let Some(at) = rest.find('<') {
            let between = &rest[..at];
            if between.contains('>') || open.is_empty() && !between.trim().is_empty() {
                return Err(format!("stray text {between:?}"));
            }
            for entity in between.split('&').skip(1) {
                if !["amp;", "lt;", "gt;", "quot;"].iter().any(|name| entity.starts_with(name)) {
                    return Err(format!("a stray & before {entity:?}"));
                }
            }
            let end = rest[at..].find('>').ok_or("no end of a tag")? + at;
            let tag = &rest[at + 1..end];
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name.to_owned()) {
                    return Err(format!("{name} closed and not open"));
                }
                continue;
            }
            count += 1;
            let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let name = tag.split_whitespace().next().ok_or("a tag without a name")?;
            if tag.contains('<') || !tag.matches('"').count().is_multiple_of(2) {
                return Err(format!("a bad tag {tag:?}"));
            }
            if !closed {
                open.push(name.to_owned());
            }
        }
        if open.is_empty() && rest.trim().is_empty() {
            Ok(count)
        } else {
            Err(format!("{open:?} open, {rest:?} left"))
        }
    }

    fn figure() -> Figure {
        let points = |by: f64| (1..20).map(|n| [f64::from(n) * 100.0, by * f64::from(n)]).collect();
        (0..10).fold(
            Figure::new(
                "f",
                "Bandwidth & <size>",
                Axis::log("message size", "bytes"),
                Axis::linear("bandwidth", "Gbit/s"),
            ),
            |figure, n| figure.with(Series::line(&format!("series {n} \"q\""), points(n as f64))),
        )
    }

    #[test]
    fn a_picture_is_well_formed() {
        let svg = draw(&figure());
        let count = well_formed(&svg).unwrap_or_else(|why| panic!("{why} in\n{svg}"));
        assert!(count > 100, "{count}");
        for part in ["Bandwidth &amp; &lt;size&gt;", "message size [bytes]", "series 9"] {
            assert!(svg.contains(part), "{part} in\n{svg}");
        }
        assert_eq!(svg.matches("<polyline").count(), 10);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn points_that_cannot_be_drawn_are_left_out() {
        let odd = vec![[0.0, 1.0], [f64::NAN, 1.0], [10.0, f64::INFINITY], [10.0, 2.0]];
        let figure = Figure::new("f", "t", Axis::log("x", ""), Axis::log("y", ""));
        for figure in [
            figure.clone(),
            figure.clone().with(Series::dots("odd", odd)),
            figure.with(Series::dots("one", vec![[3.0, 3.0]])),
        ] {
            let svg = draw(&figure);
            well_formed(&svg).unwrap_or_else(|why| panic!("{why} in\n{svg}"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn scales_hold_their_values() {
        for (axis, values) in [
            (Axis::linear("", ""), vec![2.0, 2.1, 2.2]),
            (Axis::linear("", ""), vec![-3.0, 700.0]),
            (Axis::linear("", ""), vec![0.0, 0.0]),
            (Axis::log("", ""), vec![16.0, 65536.0]),
            (Axis::log("", ""), vec![0.002]),
        ] {
            let scale = Scale::of(&axis, values.iter().copied(), 0.0, 100.0);
            for value in values {
                let at = scale.place(value).unwrap();
                assert!((-0.01..=100.01).contains(&at), "{value} at {at}");
            }
            assert!(scale.ticks().iter().filter(|(_, named)| *named).count() >= 2);
        }
        assert_eq!(
            [label(0.0), label(0.25), label(15_000.0), label(2e6)],
            ["0", "0.25", "15k", "2M"]
        );
    }
}

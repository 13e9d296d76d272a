//! Pictures of [`Figure`]s, as SVG 1.1, drawn by the crate `kuva`.
//!
//! Only the figure and the version of `kuva` in `Cargo.lock` decide the text: the crate contains
//! the widths of letters, and [`draw`] removes the number that the crate counts up.

use std::fmt::Write;
use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::legend::{LegendEntry, LegendShape};
use kuva::plot::line::LineStyle;
use kuva::prelude::{Layout, LinePlot, Plot, ScatterPlot, Theme, TickFormat, render_multiple};
use kuva::render::layout::ComputedLayout;
use kuva::render::render::{PathData, Primitive, Scene};
use kuva::render::render_utils::wrap_text;

use crate::figure::{Axis, Figure, Series};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
/// Letters of a line in the legend and at an axis, and of a title's line; more take several lines.
const LETTERS: usize = 52;
const TITLE_LETTERS: usize = 78;
/// Distance between the legend's lines, and the height above and below it.
const LEGEND_LINE: f64 = 16.5;
const AROUND_LEGEND: f64 = 90.0;

/// Colours that people with any kind of colour blindness tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"];
/// Beyond the colours, the kinds of lines change.
const DASHES: [Option<&str>; 4] = [None, Some("6 3"), Some("2 2"), Some("9 2 2 2")];
/// The grid at the numbers of an axis, and between them where the axis is logarithmic.
const GRID: &str = "#d8d8d8";
const FINE_GRID: &str = "#eeeeee";

/// Draws the picture.
#[must_use]
pub fn draw(figure: &Figure) -> String {
    let mut plots = Vec::new();
    let mut legend = Vec::new();
    for (number, series) in figure.series.iter().enumerate() {
        let (points, bars) = (points(figure, series), bars(figure, series));
        legend.push(add_series(&mut plots, number, series, points, bars));
    }
    let layout = layout(figure, legend);
    let fine_grid = fine_grid(figure, &ComputedLayout::from_layout(&layout));
    let mut scene = render_multiple(plots, layout);
    // The clip path's name has a number that grows with each picture of a process. No point lies
    // outside the field, so the picture needs no clip path.
    scene.defs.clear();
    scene.elements.retain(|it| !matches!(it, Primitive::ClipStart { .. } | Primitive::ClipEnd));
    scene.elements.insert(0, Primitive::Path(Box::new(fine_grid)));
    document(&scene, &figure.title)
}

/// Returns whether the axes can show a point.
fn shows(figure: &Figure, (x, y): (f64, f64)) -> bool {
    let shows = |axis: &Axis, value: f64| value.is_finite() && (!axis.log || value > 0.0);
    shows(&figure.x, x) && shows(&figure.y, y)
}

/// Returns the points that the axes can show.
fn points(figure: &Figure, series: &Series) -> Vec<(f64, f64)> {
    let all = series.points.iter().map(|[x, y]| (*x, *y));
    all.filter(|point| shows(figure, *point)).collect()
}

/// Returns the ends of the intervals that the axes can show.
fn bars(figure: &Figure, series: &Series) -> Vec<[(f64, f64); 2]> {
    let of_points = series.points.iter().zip(&series.intervals);
    let ends = of_points.map(|([x, _], [low, high])| [(*x, *low), (*x, *high)]);
    ends.filter(|ends| ends.iter().all(|end| shows(figure, *end))).collect()
}

/// Adds a series' line and marks, and returns its entry in the legend.
fn add_series(
    plots: &mut Vec<Plot>,
    number: usize,
    series: &Series,
    points: Vec<(f64, f64)>,
    bars: Vec<[(f64, f64); 2]>,
) -> LegendEntry {
    let colour = COLOURS[number % COLOURS.len()];
    let dash = DASHES[number / COLOURS.len() % DASHES.len()].map(str::to_owned);
    // Marks on a dense curve would only thicken it.
    let marked = !series.joined || points.len() <= 32;
    if series.joined {
        let style = dash.clone().map_or(LineStyle::Solid, LineStyle::Custom);
        let line = LinePlot::new().with_data(points.clone()).with_line_style(style);
        plots.push(line.with_color(colour).with_stroke_width(1.8).into());
    }
    if marked {
        plots.push(ScatterPlot::new().with_data(points).with_color(colour).with_size(3.0).into());
    }
    for [end, other] in bars {
        let bar = LinePlot::new().with_data(vec![end, other]);
        plots.push(bar.with_color(colour).with_stroke_width(1.2).into());
    }
    LegendEntry {
        label: words(&series.name),
        color: colour.to_owned(),
        shape: if series.joined { LegendShape::Line } else { LegendShape::CircleSize(3.0) },
        dasharray: dash,
    }
}

fn layout(figure: &Figure, legend: Vec<LegendEntry>) -> Layout {
    let all = figure.series.iter().flat_map(|series| {
        points(figure, series).into_iter().chain(bars(figure, series).into_iter().flatten())
    });
    let points: Vec<_> = all.collect();
    let x = range(&figure.x, points.iter().map(|(x, _)| *x));
    let y = range(&figure.y, points.iter().map(|(_, y)| *y));
    let lines: usize = legend.iter().map(|entry| wrap_text(&entry.label, LETTERS).len()).sum();
    let mut layout = Layout::new(x, y)
        .with_width(WIDTH)
        .with_height(HEIGHT.max(lines as f64 * LEGEND_LINE + AROUND_LEGEND))
        .with_theme(Theme { grid_color: GRID.to_owned(), ..Theme::light() })
        .with_box_axes()
        .with_font_family("Helvetica, Arial, sans-serif")
        .with_title_size(15)
        .with_label_size(12)
        .with_body_size(11)
        .with_title(words(&figure.title))
        .with_x_label(words(&figure.x.text()))
        .with_y_label(words(&figure.y.text()))
        .with_tick_format(TickFormat::Custom(Arc::new(label)))
        .with_legend_entries(legend)
        .with_wrap(LETTERS)
        .with_title_wrap(TITLE_LETTERS)
        .with_legend_box(false);
    if figure.x.log {
        layout = layout.with_log_x().with_x_axis_min(x.0).with_x_axis_max(x.1);
    }
    if figure.y.log {
        layout = layout.with_log_y().with_y_axis_min(y.0).with_y_axis_max(y.1);
    }
    layout
}

/// Returns the range that an axis shows.
fn range(axis: &Axis, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut low, mut high) = values.fold(ends, |(low, high), it| (low.min(it), high.max(it)));
    if low > high {
        (low, high) = (1.0, 10.0);
    }
    if axis.log {
        // Whole half decades: at most half a decade stays empty at each end.
        low = 10_f64.powf((low.log10() * 2.0 + 1e-9).floor() / 2.0);
        high = 10_f64.powf((high.log10() * 2.0 - 1e-9).ceil() / 2.0);
        return (low, if low < high { high } else { low * 10.0 });
    }
    // From zero, unless the differences would vanish.
    if low > 0.0 && low < high * 0.6 || low == high {
        low = low.min(0.0);
    }
    (low, if low < high { high } else { low + 1.0 })
}

/// Draws lines between the powers of ten, which `kuva` has for linear axes only.
fn fine_grid(figure: &Figure, field: &ComputedLayout) -> PathData {
    let (left, right) = (field.margin_left, field.width - field.margin_right);
    let (top, bottom) = (field.margin_top, field.height - field.margin_bottom);
    let mut path = String::new();
    for value in between(&figure.x, field.x_range) {
        let _ = write!(path, "M{:.1} {top:.1}V{bottom:.1}", field.map_x(value));
    }
    for value in between(&figure.y, field.y_range) {
        let _ = write!(path, "M{left:.1} {:.1}H{right:.1}", field.map_y(value));
    }
    PathData {
        d: path,
        fill: Some("none".into()),
        stroke: FINE_GRID.into(),
        stroke_width: 1.0,
        opacity: None,
        stroke_dasharray: None,
    }
}

/// Returns two to nine times the powers of ten within a logarithmic axis.
fn between(axis: &Axis, (low, high): (f64, f64)) -> impl Iterator<Item = f64> {
    let decades = axis.log.then(|| low.log10().floor() as i32..high.log10().ceil() as i32);
    decades
        .into_iter()
        .flatten()
        .flat_map(|decade| (2..10).map(move |digit| f64::from(digit) * 10_f64.powi(decade)))
        .filter(move |value| (low..=high).contains(value))
}

/// Formats a number at an axis: short, with the prefixes that engineers use.
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

/// Writes the scene as a document of its own, with a title that screen readers read.
fn document(scene: &Scene, title: &str) -> String {
    let svg = SvgBackend::new().with_pretty(true).render_scene(scene);
    // The title takes the place of a comment that names the crate's version.
    let (svg, rest) = svg.split_once(">\n").expect("an element");
    let (_, rest) = rest.split_once("-->\n").expect("a comment");
    let title = escaped(title);
    let (width, height) = (scene.width, scene.height);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{svg} viewBox=\"0 0 {width} {height}\">\n\
         <title>{title}</title>\n{rest}"
    )
}

/// Returns a text as the content of an XML element.
pub(crate) fn escaped(text: &str) -> String {
    words(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Replaces control characters, which XML 1.0 does not allow.
fn words(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that a text is well-formed as far as these pictures need it: elements that nest and
    /// are closed, quoted attributes, and no stray markup. Returns the number of elements.
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
                if !["amp;", "lt;", "gt;", "quot;", "apos;"]
                    .iter()
                    .any(|name| entity.starts_with(name))
                {
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
        assert_eq!(svg.matches("stroke-width=\"1.8\"").count(), 10);
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
            // Each series has one point, and one mark in the legend.
            assert_eq!(svg.matches("<circle").count(), 2 * figure.series.len(), "{svg}");
        }
    }

    #[test]
    fn intervals_are_bars_within_the_field() {
        let bars = [[0.5, 3.0], [0.9, 1.2], [f64::NAN, 1.0]];
        let figure = bars.iter().enumerate().fold(
            Figure::new("f", "t", Axis::linear("x", ""), Axis::linear("y", "")),
            |figure, (n, bar)| figure.with(Series::interval("one", [n as f64 + 1.0, 1.0], *bar)),
        );
        let svg = draw(&figure);
        well_formed(&svg).unwrap_or_else(|why| panic!("{why} in\n{svg}"));
        assert_eq!(svg.matches("stroke-width=\"1.2\"").count(), 2, "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
        // The axis reaches as far as the bars, although the points are all at one height.
        assert!(svg.contains(">3</text>") || svg.contains(">3\n"), "{svg}");
    }

    #[test]
    fn a_picture_is_the_same_each_time() {
        assert_eq!(draw(&figure()), draw(&figure()));
    }

    #[test]
    fn the_legend_names_all_series_beside_the_field() {
        let name = |n| format!("series {n} {}", "of a long name ".repeat(5));
        let figure = (0..40).fold(
            Figure::new("f", "t", Axis::linear("x", ""), Axis::linear("y", "")),
            |figure, n| figure.with(Series::dots(&name(n), vec![[f64::from(n), 1.0]])),
        );
        let svg = draw(&figure);
        for n in 0..40 {
            assert!(svg.contains(&format!(">series {n} of")), "{n} in\n{svg}");
        }
        let (_, right) = ends(&svg, "x2");
        let height = numbers(&svg, "height")[0];
        let legend: Vec<_> = svg.lines().filter(|line| line.contains("of a long name")).collect();
        assert!(legend.len() > 40, "{legend:?}");
        for line in legend {
            assert!(numbers(line, "x")[0] > right && numbers(line, "y")[0] < height, "{line}");
        }
    }

    /// Returns the values of an attribute, in their order.
    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let start = format!(" {attribute}=\"");
        let parts = svg.split(&start).skip(1);
        parts.filter_map(|part| part[..part.find('"')?].parse().ok()).collect()
    }

    fn ends(svg: &str, attribute: &str) -> (f64, f64) {
        let all = numbers(svg, attribute);
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        all.iter().fold(ends, |(low, high), it| (low.min(*it), high.max(*it)))
    }

    #[test]
    fn axes_hold_their_values() {
        for (axis, values) in [
            (Axis::linear("", ""), vec![2.0, 2.1, 2.2]),
            (Axis::linear("", ""), vec![-3.0, 700.0]),
            (Axis::linear("", ""), vec![0.0, 0.0]),
            (Axis::log("", ""), vec![16.0, 65536.0]),
            (Axis::log("", ""), vec![0.002]),
        ] {
            let points: Vec<_> = values.iter().map(|value| [*value, *value]).collect();
            let figure = Figure::new("f", "", axis.clone(), axis).with(Series::dots("", points));
            let svg = draw(&figure);
            // The grid's lines and those of the border end at the field's sides; the last circle is
            // the legend's.
            for (mark, end) in [("cx", "x2"), ("cy", "y1")] {
                let (from, to) = ends(&svg, end);
                let marks = numbers(&svg, mark);
                assert_eq!(marks.len(), values.len() + 1);
                for at in &marks[..values.len()] {
                    assert!((from - 0.01..=to + 0.01).contains(at), "{at} of {from}..{to}\n{svg}");
                }
            }
            for anchor in ["middle", "end"] {
                let named = svg.lines().filter(|line| {
                    line.contains(&format!("text-anchor=\"{anchor}\""))
                        && !line.contains("></text>")
                });
                assert!(named.count() >= 2, "{svg}");
            }
        }
        assert_eq!(
            [label(0.0), label(0.25), label(15_000.0), label(2e6)],
            ["0", "0.25", "15k", "2M"]
        );
    }
}

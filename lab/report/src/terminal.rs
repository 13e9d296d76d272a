//! Draws a cast as SVG. Lines appear at their times by keyframes of CSS. Without animations, and after
//! the last repetition, the picture shows all lines.

use std::fmt::Write;

use crate::cast::{Cast, rows};
use crate::machine::date;
use crate::svg::escaped;

/// The width of a letter, the distance of two lines, and the size of the letters.
const LETTER: f64 = 7.2;
const LINE: f64 = 17.0;
const SIZE: f64 = 12.0;
const MARGIN: f64 = 14.0;
/// The height of the title.
const HEAD: f64 = 30.0;
/// The seconds for which the last line stays, and the number of repetitions.
const HOLD: f64 = 6.0;
const REPETITIONS: u32 = 3;
/// The starts of typed commands, and of the recorder's own lines.
const COMMAND: &str = "$ ";
const REMARK: &str = "# ";

const STYLE: &str = "\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;\
fill:#1f2328}.c{font-weight:bold}.r{fill:#0a5ea8}.h{fill:#57606a}.back{fill:#f6f8fa;stroke:#d0d7de}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.r{fill:#79c0ff}.h{fill:#9da7b3}\
.back{fill:#161b22;stroke:#30363d}}\
@media(prefers-reduced-motion:reduce){g{animation:none!important}}";

/// Draws the cast.
pub fn draw(cast: &Cast) -> String {
    let header = &cast.header;
    let (width, height) = (
        header.width as f64 * LETTER + 2.0 * MARGIN,
        header.height as f64 * LINE + HEAD + 2.0 * MARGIN,
    );
    let recorded = std::time::UNIX_EPOCH + std::time::Duration::from_secs(header.timestamp);
    let head = format!("{} - recorded {}", header.title, date(recorded));
    let text: Vec<_> = cast.lines.iter().map(|line| escaped(&line.text)).collect();
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{}</title>\n<desc>{}</desc>\n<style>{STYLE}{}</style>\n\
         <rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
         <text class=\"h\" x=\"{MARGIN}\" y=\"22\">{}</text>\n",
        escaped(&head),
        text.join("\n"),
        keyframes(cast),
        width - 1.0,
        height - 1.0,
        escaped(&head)
    );
    let mut y = HEAD + MARGIN + SIZE;
    for (number, line) in cast.lines.iter().enumerate() {
        let class = match &line.text {
            text if text.starts_with(COMMAND) => " class=\"c\"",
            text if text.starts_with(REMARK) => " class=\"r\"",
            _ => "",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<g style=\"animation-name:l{number}\">");
        for row in rows(&line.text, header.width) {
            // The length holds whatever font the reader has.
            let length = row.chars().count() as f64 * LETTER;
            if !row.is_empty() {
                let _ = writeln!(
                    svg,
                    "<text xml:space=\"preserve\"{class} x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length:.1}\" \
                     lengthAdjust=\"spacingAndGlyphs\">{}</text>",
                    escaped(&row)
                );
            }
            y += LINE;
        }
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// Returns the animation of each line: hidden until its time.
fn keyframes(cast: &Cast) -> String {
    let end = cast.lines.last().map_or(0.0, |line| line.at) + HOLD;
    let mut css = format!(
        "g{{animation-duration:{end:.2}s;animation-iteration-count:{REPETITIONS};\
         animation-timing-function:step-end}}"
    );
    for (number, line) in cast.lines.iter().enumerate() {
        let part = line.at / end * 100.0;
        let _ = write!(css, "@keyframes l{number}{{0%{{opacity:0}}{part:.2}%,100%{{opacity:1}}}}");
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::Line;

    fn cast() -> Cast {
        let line = |at, text: &str| Line { at, text: text.to_owned() };
        let lines = vec![
            line(0.0, "$ towpath ls"),
            line(1.0, "a <b> & a line that is wrapped"),
            line(4.0, "# 5 answers"),
        ];
        Cast::new("A title", 20, 1_000_000_000, lines)
    }

    #[test]
    fn a_picture_is_well_formed_and_has_every_line_twice() {
        let svg = draw(&cast());
        crate::svg::tests::well_formed(&svg).unwrap_or_else(|why| panic!("{why} in\n{svg}"));
        for text in ["$ towpath ls", "# 5 answers"] {
            assert_eq!(svg.matches(text).count(), 2, "shown, and in the description: {svg}");
        }
        assert!(svg.contains("A title - recorded 2001-09-09T01:46:40Z"), "{svg}");
        assert!(svg.contains(">a &lt;b&gt; &amp; a line that <"), "wrapped: {svg}");
    }

    #[test]
    fn lines_are_visible_without_animations() {
        let svg = draw(&cast());
        // Only keyframes hide a line, so a reader without them sees all.
        assert_eq!(svg.matches("opacity:0").count(), svg.matches("@keyframes").count());
        assert!(svg.contains("@keyframes l1{0%{opacity:0}10.00%,100%{opacity:1}}"), "{svg}");
        assert!(svg.contains("prefers-reduced-motion:reduce"), "{svg}");
    }
}

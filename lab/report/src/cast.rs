//! A recorded terminal as a file: asciicast v2, a line of JSON for the terminal and one for each
//! output (<https://docs.asciinema.org/manual/asciicast/v2/>).

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// The end of a line on a terminal.
const NEWLINE: &str = "\r\n";

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    version: u32,
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of the terminal.
    pub height: usize,
    /// The time of the recording, in seconds since 1970.
    pub timestamp: u64,
    /// The title, in words.
    pub title: String,
}

/// Whole lines that appeared at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Seconds since the start.
    pub at: f64,
    /// The line, without its end.
    pub text: String,
}

/// A recorded terminal, all of whose lines fit on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// The terminal.
    pub header: Header,
    /// The output, in order of time.
    pub lines: Vec<Line>,
}

impl Cast {
    /// Makes a cast of a terminal with as many rows as the lines need.
    pub fn new(title: &str, width: usize, timestamp: u64, lines: Vec<Line>) -> Cast {
        let height = lines.iter().map(|line| rows(&line.text, width).len()).sum();
        let header = Header { version: 2, width, height, timestamp, title: title.to_owned() };
        Cast { header, lines }
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> anyhow::Result<String> {
        let mut text = serde_json::to_string(&self.header)? + "\n";
        for line in &self.lines {
            let output = format!("{}{NEWLINE}", line.text);
            // Microseconds, as asciinema writes.
            let at = (line.at * 1e6).round() / 1e6;
            text += &serde_json::to_string(&(at, "o", output))?;
            text.push('\n');
        }
        Ok(text)
    }

    /// Reads the text of a file.
    pub fn read(text: &str) -> anyhow::Result<Cast> {
        let (first, rest) = text.split_once('\n').context("a cast of one line")?;
        let header: Header = serde_json::from_str(first).context("the cast's first line")?;
        ensure!(header.version == 2, "a cast of version {}, not 2", header.version);
        let mut lines = Vec::new();
        for (number, event) in rest.lines().enumerate() {
            let place = || format!("the cast's line {}", number + 2);
            let (at, kind, output): (f64, String, String) =
                serde_json::from_str(event).with_context(place)?;
            let text = output.strip_suffix(NEWLINE).filter(|text| !text.contains(char::is_control));
            let text = text.filter(|_| kind == "o").with_context(place)?;
            lines.push(Line { at, text: text.to_owned() });
        }
        Ok(Cast { header, lines })
    }
}

/// Returns the rows of a line on a terminal of this width, which wraps it.
pub fn rows(text: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(width).map(|row| row.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast() -> Cast {
        let line = |at, text: &str| Line { at, text: text.to_owned() };
        let lines = vec![line(0.0, "$ ls"), line(0.1234567, "a \"quoted\" line"), line(2.5, "")];
        Cast::new("t", 10, 7, lines)
    }

    #[test]
    fn a_cast_is_read_as_it_was_written() {
        let text = cast().to_text().unwrap();
        assert_eq!(text.lines().nth(1), Some(r#"[0.0,"o","$ ls\r\n"]"#));
        let read = Cast::read(&text).unwrap();
        assert_eq!(read.header, cast().header);
        assert_eq!(read.lines[1].at, 0.123457);
        assert_eq!(read.to_text().unwrap(), text);
    }

    #[test]
    fn long_lines_take_several_rows() {
        assert_eq!(cast().header.height, 4);
        assert_eq!(rows("abcde", 2), ["ab", "cd", "e"]);
        assert_eq!(rows("", 2), [""]);
    }

    #[test]
    fn other_casts_are_refused() {
        let text = cast().to_text().unwrap();
        for (from, to) in [
            ("\"version\":2", "\"version\":1"),
            ("\"o\"", "\"i\""),
            ("$ ls", "\\u001b[1m"),
            ("$ ls\\r\\n", "$ ls"),
        ] {
            assert!(Cast::read(&text.replacen(from, to, 1)).is_err(), "{from} {to}");
        }
        assert!(Cast::read("").is_err());
    }
}

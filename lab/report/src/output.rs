//! A report as files: `NAME.json` with everything, and `NAME-PICTURE.svg` for each picture.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::figure::Figure;
use crate::report::Report;
use crate::svg;

/// The pictures, in the repository.
pub const PICTURES: &str = "docs/pictures";

/// Writes a report into one directory and its pictures into another. Makes a directory that does
/// not exist. Returns the files written. Each appears whole or not at all.
///
/// # Errors
/// With the file that could not be written.
pub fn write(report: &Report, directory: &Path, pictures: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let json = (directory.join(format!("{}.json", report.experiment)), json(report)?);
    let drawn = drawn(report).into_iter().map(|(name, text)| (pictures.join(name), text));
    let mut written = Vec::new();
    for (path, text) in std::iter::once(json).chain(drawn) {
        replace(&path, &text)?;
        written.push(path);
    }
    Ok(written)
}

/// Draws a report's pictures: the name of each file, and the picture.
pub(crate) fn drawn(report: &Report) -> Vec<(String, String)> {
    let one = |figure| (picture(report, figure), svg::draw(figure));
    report.figures.iter().map(one).collect()
}

/// Returns the name of a picture's file.
pub(crate) fn picture(report: &Report, figure: &Figure) -> String {
    format!("{}-{}.svg", report.experiment, figure.name)
}

/// Writes a file, whole or not at all, and makes its directory if that does not exist.
///
/// # Errors
/// With the file's name.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let in_its_place = || -> io::Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written
    };
    in_its_place().with_context(|| path.display().to_string())
}

/// Returns a report as JSON with a line for each row, so that a directory of reports stays small
/// and two runs can be compared line by line.
fn json(report: &Report) -> anyhow::Result<String> {
    let mut text = Vec::new();
    report.serialize(&mut Serializer::with_formatter(&mut text, RowLines::default()))?;
    text.push(b'\n');
    Ok(String::from_utf8(text)?)
}

/// Pretty down to the elements of the outermost fields, compact below.
#[derive(Default)]
struct RowLines {
    depth: usize,
    outer: PrettyFormatter<'static>,
}

/// How many levels have their elements on lines of their own.
const LEVELS: usize = 2;

impl RowLines {
    fn open(&mut self) -> bool {
        self.depth += 1;
        self.depth <= LEVELS
    }

    fn close(&mut self) -> bool {
        self.depth -= 1;
        self.depth < LEVELS
    }

    fn has_lines(&self) -> bool {
        self.depth <= LEVELS
    }
}

macro_rules! by_level {
    ($($name:ident($($first:ident)?) if $level:ident;)*) => {$(
        fn $name<W: ?Sized + io::Write>(&mut self, writer: &mut W $(, $first: bool)?) -> io::Result<()> {
            if self.$level() {
                self.outer.$name(writer $(, $first)?)
            } else {
                CompactFormatter.$name(writer $(, $first)?)
            }
        }
    )*};
}

impl Formatter for RowLines {
    by_level! {
        begin_array() if open;
        end_array() if close;
        begin_array_value(first) if has_lines;
        end_array_value() if has_lines;
        begin_object() if open;
        end_object() if close;
        begin_object_key(first) if has_lines;
        begin_object_value() if has_lines;
        end_object_value() if has_lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Series};
    use crate::report::{Length, Row};
    use crate::scratch::Scratch;

    #[test]
    fn files_hold_the_report() {
        let scratch = Scratch::new();
        let into = scratch.path().join("deep/er");
        let pictures = into.join("pictures");
        let mut report = Report::new("penn", Length::Full).unwrap();
        report.rows = vec![Row::new("a", &[("n", 1.0)], "ratio", &[0.5, 1.5]); 2];
        report.figures = vec![
            Figure::new("size", "t", Axis::log("x", "B"), Axis::linear("y", ""))
                .with(Series::line("one", vec![[1.0, 2.0]])),
        ];
        let files = write(&report, &into, &pictures).unwrap();
        assert_eq!(files, [into.join("penn.json"), pictures.join("penn-size.svg")]);
        let text = std::fs::read_to_string(&files[0]).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let row = "    {\"name\":\"a\",\"parameters\":{\"n\":1.0},\"value\":1.0,\"unit\":\"ratio\",\
                   \"spread\":[0.5,1.5],\"samples\":2}";
        assert!(text.contains(&format!("\n  \"rows\": [\n{row},\n{row}\n  ],\n")), "{text}");
        crate::svg::tests::well_formed(&std::fs::read_to_string(&files[1]).unwrap()).unwrap();
        for directory in [&into, &pictures] {
            let here = std::fs::read_dir(directory).unwrap().count();
            assert_eq!(here, if *directory == into { 2 } else { 1 }, "nothing else is left");
        }
        assert!(write(&report, &files[0], &pictures).is_err(), "a file is no directory");
    }
}

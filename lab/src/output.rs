//! A report as files: `NAME.json` with everything, `NAME.csv` with the rows, and for each picture
//! `NAME-PICTURE.svg` and `NAME-PICTURE.csv`.

use std::io;
use std::path::{Path, PathBuf};

use crate::report::Report;
use crate::{csv, svg};

/// Writes a report into a directory, which is made if it is not there. Answers the files written.
/// Each appears whole or not at all.
///
/// # Errors
/// With the file that could not be written.
pub fn write(report: &Report, directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    use anyhow::Context;
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let mut files = vec![
        (format!("{}.json", report.experiment), serde_json::to_string_pretty(report)? + "\n"),
        (format!("{}.csv", report.experiment), csv::report(report)),
    ];
    for figure in &report.figures {
        let name = picture(report, &figure.name);
        files.push((format!("{name}.svg"), svg::draw(figure)));
        files.push((format!("{name}.csv"), figure.to_csv()));
    }
    let mut written = Vec::new();
    for (name, text) in files {
        let path = directory.join(name);
        replace(&path, &text).with_context(|| path.display().to_string())?;
        written.push(path);
    }
    Ok(written)
}

/// The name of a picture's file, without its ending.
pub(crate) fn picture(report: &Report, figure: &str) -> String {
    format!("{}-{figure}", report.experiment)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::OwnSocket;
    use crate::figure::{Axis, Figure, Series};
    use crate::report::Length;

    #[test]
    fn files_hold_the_report() {
        let socket = OwnSocket::new().unwrap();
        let into = socket.path().with_file_name("deep/er");
        let mut report = Report::new("penn", Length::Full).unwrap();
        report.figures = vec![
            Figure::new("size", "t", Axis::log("x", "B"), Axis::linear("y", ""))
                .with(Series::line("one", vec![[1.0, 2.0]])),
        ];
        let files = write(&report, &into).unwrap();
        let names: Vec<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["penn.json", "penn.csv", "penn-size.svg", "penn-size.csv"]);
        let text = std::fs::read_to_string(&files[0]).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        crate::svg::tests::well_formed(&std::fs::read_to_string(&files[2]).unwrap()).unwrap();
        assert_eq!(std::fs::read_dir(&into).unwrap().count(), 4, "nothing else is left there");
        assert!(write(&report, &files[0]).is_err(), "a file is no directory");
    }
}

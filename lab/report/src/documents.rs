//! The documents that show figures: `docs/benchmarks.md`, its pictures, the README's chart, and the
//! figures between markers in other pages. All come from `lab/results`. The picture of a recorded
//! terminal comes from the recording beside it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::age::Ages;
use crate::cast::Cast;
use crate::output::PICTURES;
use crate::prose::{Change, rewrite};
use crate::results::Results;
use crate::{headlines, how_fast, output, page, terminal};

/// The results, in the repository.
pub const RESULTS: &str = "lab/results";
/// The page of headlines and pictures.
const PAGE: &str = "docs/benchmarks.md";
/// The page with the chart.
const README: &str = "README.md";
/// The ending of a recorded terminal's file.
const CAST: &str = "cast";
/// The largest number of lines of the page.
const MOST_LINES: usize = 400;

/// A difference between a file and the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file, relative to the repository.
    pub file: PathBuf,
    /// The line and its texts.
    pub change: Change,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { line, old, new } = &self.change;
        write!(f, "{}:{line}: is `{old}`, should be `{new}`", self.file.display())
    }
}

/// The documents as they should be.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// The differences.
    pub differences: Vec<Difference>,
    /// The number of figures in prose.
    pub figures: usize,
    /// Why the ages of results are unknown, one line each.
    pub unknown: Vec<String>,
    /// Files that differ, and their new texts.
    files: Vec<(PathBuf, String)>,
}

impl Documents {
    /// Reads the results and the documents of a repository.
    ///
    /// # Errors
    /// If a file is not readable, or a figure names no row.
    pub fn read(repository: &Path) -> anyhow::Result<Documents> {
        let results = Results::read(&repository.join(RESULTS))?;
        let ages = Ages::of(&results, repository);
        let mut documents = Documents::default();
        documents.pictures(repository, &results)?;
        documents.recordings(repository)?;
        documents.page(repository, &results, &ages)?;
        let chart = how_fast::chart(&results, &ages)?;
        for file in with_prose(repository)? {
            let mut text = read(&repository.join(&file))?;
            let mut changes = Vec::new();
            if let (Some(chart), true) = (&chart, file == Path::new(README)) {
                documents.chart(repository, &chart.picture, &ages)?;
                let new = how_fast::with_caption(&text, &chart.caption)?;
                if let Some(change) = difference(&text, &new, &ages) {
                    changes.push(change);
                    text = new;
                }
            }
            let rewritten =
                rewrite(&text, &results, &ages).with_context(|| file.display().to_string())?;
            documents.figures += rewritten.figures;
            changes.extend(rewritten.changes);
            if !changes.is_empty() {
                documents.differ(file, changes, rewritten.text);
            }
        }
        documents.unknown = ages.unknown;
        Ok(documents)
    }

    /// Writes the files that differ. Returns their names.
    ///
    /// # Errors
    /// With the file that could not be written.
    pub fn write(&self, repository: &Path) -> anyhow::Result<Vec<PathBuf>> {
        for (file, text) in &self.files {
            output::replace(&repository.join(file), text)?;
        }
        Ok(self.files.iter().map(|(file, _)| file.clone()).collect())
    }

    fn pictures(&mut self, repository: &Path, results: &Results) -> anyhow::Result<()> {
        for (name, new) in results.0.iter().flat_map(output::drawn) {
            let file = Path::new(PICTURES).join(name);
            let old = read_if_there(&repository.join(&file))?;
            if let Some(change) = first_difference(&old, &new) {
                self.differ(file, vec![change], new);
            }
        }
        Ok(())
    }

    /// Draws each recording.
    fn recordings(&mut self, repository: &Path) -> anyhow::Result<()> {
        let directory = repository.join(PICTURES);
        let entries = std::fs::read_dir(&directory).into_iter().flatten();
        let mut casts: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        casts.retain(|path| path.extension().is_some_and(|ending| ending == CAST));
        casts.sort();
        for cast in casts {
            let read = Cast::read(&read(&cast)?).with_context(|| cast.display().to_string())?;
            let new = terminal::draw(&read);
            let drawn = cast.with_extension("svg");
            let old = read_if_there(&drawn)?;
            if let Some(change) = first_difference(&old, &new) {
                let name = drawn.file_name().unwrap_or_default();
                self.differ(Path::new(PICTURES).join(name), vec![change], new);
            }
        }
        Ok(())
    }

    fn chart(&mut self, repository: &Path, new: &str, ages: &Ages) -> anyhow::Result<()> {
        let file = Path::new(PICTURES).join(how_fast::FILE);
        let old = read_if_there(&repository.join(&file))?;
        if let Some(change) = difference(&old, new, ages) {
            self.differ(file, vec![change], new.to_owned());
        }
        Ok(())
    }

    fn page(&mut self, repository: &Path, results: &Results, ages: &Ages) -> anyhow::Result<()> {
        let names = results.0.iter().map(|report| report.experiment.clone());
        let remarks = names
            .filter(|name| repository.join(RESULTS).join(name).with_extension("md").exists())
            .collect();
        let new = page::page(results, &headlines::table(results, ages)?, &remarks);
        let lines = new.lines().count();
        ensure!(lines <= MOST_LINES, "{PAGE} has {lines} lines, more than {MOST_LINES}");
        let old = read_if_there(&repository.join(PAGE))?;
        if let Some(change) = difference(&old, &new, ages) {
            self.differ(PAGE.into(), vec![change], new);
        }
        Ok(())
    }

    fn differ(&mut self, file: PathBuf, changes: Vec<Change>, text: String) {
        let one = |change| Difference { file: file.clone(), change };
        self.differences.extend(changes.into_iter().map(one));
        self.files.push((file, text));
    }
}

/// Returns the first line that differs. Where ages are unknown, the marks of old results say nothing.
fn difference(old: &str, new: &str, ages: &Ages) -> Option<Change> {
    if ages.unknown.is_empty() {
        return first_difference(old, new);
    }
    let [old, new] = [old, new].map(|text| text.replace(headlines::OLD, ""));
    first_difference(&old, &new)
}

/// Returns the first line that differs.
fn first_difference(old: &str, new: &str) -> Option<Change> {
    if old == new {
        return None;
    }
    let (mut before, mut after) = (old.split('\n'), new.split('\n'));
    let mut line = 0;
    loop {
        line += 1;
        let (old, new) = (before.next(), after.next());
        if old != new || old.is_none() {
            let text = |line: Option<&str>| line.unwrap_or("the end of the file").to_owned();
            return Some(Change { line, old: text(old), new: text(new) });
        }
    }
}

/// Returns the Markdown files that may have markers.
fn with_prose(repository: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for directory in ["", "docs", RESULTS] {
        let path = repository.join(directory);
        for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let file = Path::new(directory).join(entry?.file_name());
            if file.extension().is_some_and(|ending| ending == "md") && file != Path::new(PAGE) {
                files.push(file);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn read_if_there(path: &Path) -> anyhow::Result<String> {
    if path.exists() { read(path) } else { Ok(String::new()) }
}

/// Writes the documents of a repository that differ from the results; with `check`, fails because
/// of them. Prints what it did, or what differs.
///
/// # Errors
/// As [`Documents::read`] and [`Documents::write`].
pub fn report(repository: &Path, check: bool) -> anyhow::Result<ExitCode> {
    let documents = Documents::read(repository)?;
    for why in &documents.unknown {
        eprintln!("{why}");
    }
    if check {
        for difference in &documents.differences {
            eprintln!("{difference}");
        }
        let (figures, differ) = (documents.figures, documents.differences.len());
        println!("{figures} figures in prose, the page and its pictures: {differ} differ");
        return Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    for file in documents.write(repository)? {
        eprintln!("wrote {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Figure};
    use crate::report::Row;
    use crate::scratch::Scratch;

    /// Makes a repository with one result and `docs/prose.md` with its figure, all written.
    fn repository() -> (Scratch, PathBuf) {
        let scratch = Scratch::new();
        let root = scratch.path().join("repository");
        let row = Row::new("queue to bare queue", &[("packet_bytes", 64.0)], "ratio", &[0.8732; 5]);
        let mut report = crate::results::tests::results(vec![row]).0.remove(0);
        report.figures =
            vec![Figure::new("size", "By size", Axis::log("x", "B"), Axis::linear("y", ""))];
        output::write(&report, &root.join(RESULTS), &root.join(PICTURES)).unwrap();
        let prose = "a\nb <!--=queue; queue to bare queue; ; value-->?<!--/-->\n";
        output::replace(&root.join("docs/prose.md"), prose).unwrap();
        Documents::read(&root).unwrap().write(&root).unwrap();
        (scratch, root)
    }

    fn said(root: &Path) -> Vec<String> {
        let documents = Documents::read(root).unwrap();
        documents.differences.iter().map(ToString::to_string).collect()
    }

    fn edit(path: &Path, from: &str, to: &str) {
        let text = read(path).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    #[test]
    fn written_documents_do_not_differ() {
        let (_scratch, root) = repository();
        let documents = Documents::read(&root).unwrap();
        assert_eq!((documents.differences.len(), documents.figures), (0, 1));
        assert_eq!(documents.unknown.len(), 1, "there is no git repository");
        assert!(documents.write(&root).unwrap().is_empty());
    }

    #[test]
    fn a_changed_digit_is_found_in_each_file_and_put_right() {
        let (_scratch, root) = repository();
        let prose = read(&root.join("docs/prose.md")).unwrap();
        assert!(prose.contains("-->0.873<!--"), "{prose}");
        edit(&root.join("docs/prose.md"), "0.873", "0.878");
        assert_eq!(said(&root), ["docs/prose.md:2: is `0.878`, should be `0.873`"]);
        edit(&root.join(PAGE), "0.873", "0.878");
        edit(&root.join(PICTURES).join("queue-size.svg"), "By size", "By sizes");
        let all = said(&root);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].starts_with("docs/pictures/queue-size.svg:"), "{all:?}");
        assert!(all[1].starts_with("docs/benchmarks.md:") && all[1].contains("0.878"), "{all:?}");
        Documents::read(&root).unwrap().write(&root).unwrap();
        assert_eq!(said(&root), [""; 0]);
        assert_eq!(read(&root.join("docs/prose.md")).unwrap(), prose);
    }

    #[test]
    fn a_changed_result_is_found() {
        let (_scratch, root) = repository();
        edit(&root.join(RESULTS).join("queue.json"), "\"value\":0.8732", "\"value\":0.9732");
        let all = said(&root);
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[1], "docs/prose.md:2: is `0.873`, should be `0.973`");
    }

    #[test]
    fn a_changed_recording_or_its_picture_is_found() {
        let (_scratch, root) = repository();
        let cast = root.join(PICTURES).join("kill.cast");
        let text = "{\"version\":2,\"width\":9,\"height\":1,\"timestamp\":0,\"title\":\"t\"}\n\
                    [0.5,\"o\",\"$ one\\r\\n\"]\n";
        output::replace(&cast, text).unwrap();
        assert!(said(&root)[0].starts_with("docs/pictures/kill.svg:1: "));
        Documents::read(&root).unwrap().write(&root).unwrap();
        assert_eq!(said(&root), [""; 0]);
        edit(&cast, "$ one", "$ two");
        assert_eq!(said(&root).len(), 1);
        edit(&cast, "\"o\"", "\"i\"");
        let error = format!("{:#}", Documents::read(&root).unwrap_err());
        assert!(error.ends_with("kill.cast: the cast's line 2"), "{error}");
    }

    #[test]
    fn a_figure_without_a_row_names_file_line_and_row() {
        let (_scratch, root) = repository();
        edit(&root.join("docs/prose.md"), "bare queue", "other ring");
        let error = format!("{:#}", Documents::read(&root).unwrap_err());
        assert_eq!(
            error,
            "docs/prose.md: line 2: queue; queue to other ring: there is no such row"
        );
    }

    #[test]
    fn the_first_difference_is_that_of_a_line() {
        let change = |line, old: &str, new: &str| {
            Some(Change { line, old: old.to_owned(), new: new.to_owned() })
        };
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), change(2, "b", "c"));
        assert_eq!(first_difference("a", "a\nc"), change(2, "the end of the file", "c"));
        assert_eq!(first_difference("a\nb", "a"), change(2, "b", "the end of the file"));
    }

    /// The anchor that a Markdown viewer gives a heading.
    fn anchor(heading: &str) -> String {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    /// The pages of the repository that people read.
    fn pages(root: &Path) -> Vec<PathBuf> {
        let in_directory = |directory: PathBuf| {
            let entries = std::fs::read_dir(directory).unwrap();
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension() == Some("md".as_ref()))
        };
        in_directory(root.to_owned()).chain(in_directory(root.join("docs"))).collect()
    }

    #[test]
    fn links_between_pages_lead_to_files_and_headings() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut links, mut dead) = (0, Vec::new());
        for page in pages(&root) {
            let text = std::fs::read_to_string(&page).unwrap();
            for after in text.split("](").skip(1) {
                let Some((target, _)) = after.split_once(')') else { continue };
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                if target.contains("://") || target.contains(char::is_whitespace) {
                    continue;
                }
                links += 1;
                let to =
                    if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
                let leads = to.exists()
                    && (heading.is_empty() || {
                        let text = std::fs::read_to_string(&to).unwrap();
                        text.lines().any(|line| line.starts_with('#') && anchor(line) == heading)
                    });
                if !leads {
                    dead.push(format!("{}: {target}", page.display()));
                }
            }
        }
        assert!(links > 200, "{links} links: too few to be all");
        assert!(dead.is_empty(), "{dead:#?}");
    }
}

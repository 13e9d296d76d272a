//! A check of the documentation: each public method has an example that the compiler sees. It reads the source by its
//! layout, which `cargo fmt` guarantees.

use std::path::PathBuf;

use crate::public_items::sources;
use crate::structure::repository;

/// The crates whose methods have examples.
const CRATES: &[&str] = &["client", "net", "pdu"];

/// Returns the name of a public function, or of a public trait, that a line declares. A trait that is not at the margin is
/// in a private module.
fn declared(line: &str) -> Option<&str> {
    let name = match line.strip_prefix("pub trait ") {
        Some(name) => name,
        None => {
            let mut rest = line.trim_start().strip_prefix("pub ")?;
            for qualifier in ["const ", "async ", "unsafe "] {
                rest = rest.strip_prefix(qualifier).unwrap_or(rest);
            }
            rest.strip_prefix("fn ")?
        }
    };
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// Returns `true` if a documentation comment has a block of code that rustdoc compiles.
fn has_example<'a>(documentation: impl Iterator<Item = &'a str>) -> bool {
    let (mut is_inside, mut found) = (false, false);
    for line in documentation {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_inside = !is_inside;
            let mut words = language.split(',').map(str::trim);
            found |= is_inside
                && words.all(|word| matches!(word, "" | "rust" | "no_run" | "should_panic"));
        }
    }
    found
}

/// Returns the number of declarations in a file's text, and those without an example: line and name. A method of a public
/// trait has the example of its trait.
fn without_example(text: &str) -> (usize, Vec<(usize, &str)>) {
    let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines: Vec<_> = text[..end].lines().collect();
    let (mut declarations, mut without) = (0, Vec::new());
    for (number, line) in lines.iter().enumerate() {
        let Some(name) = declared(line) else { continue };
        declarations += 1;
        // Attributes, of one line or several, are between the comment and the declaration.
        let before = lines[..number].iter().rev().map(|line| line.trim_start());
        let is_other = |line: &&str| line.is_empty() || line.ends_with(['{', '}', ';']);
        let attributes =
            before.clone().take_while(|line| !line.starts_with("///") && !is_other(line));
        let comment = before.skip(attributes.count());
        let comment = comment.map_while(|line| line.strip_prefix("///"));
        if !has_example(comment.collect::<Vec<_>>().into_iter().rev()) {
            without.push((number + 1, name));
        }
    }
    (declarations, without)
}

#[test]
fn each_public_method_has_an_example() {
    let (mut declarations, mut without) = (0, Vec::new());
    for name in CRATES {
        let mut paths: Vec<PathBuf> = Vec::new();
        sources(&repository().join("crates").join(name).join("src"), &mut paths);
        let is_test = |path: &PathBuf| {
            path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"))
        };
        for path in paths.into_iter().filter(|path| !is_test(path)) {
            let text = std::fs::read_to_string(&path).unwrap();
            let (count, missing) = without_example(&text);
            declarations += count;
            let shown = path.strip_prefix(repository()).unwrap().display();
            without.extend(missing.iter().map(|(line, name)| format!("{shown}:{line}: {name}")));
        }
    }
    assert!(declarations > 300, "{declarations} declarations are too few");
    assert!(
        without.is_empty(),
        "add an example (a block of code) to the documentation of:\n{}",
        without.join("\n")
    );
}

#[test]
fn a_method_without_an_example_is_found() {
    let text = "\
/// Text.
///
/// ```
/// f();
/// ```
#[must_use]
#[expect(
    dead_code,
    reason = \"a test\"
)]
pub const fn with() {}

/// ```text
/// not compiled
/// ```
pub fn text() {}

/// ```
/// f();
/// ```
pub struct Other;

/// Text.
pub async fn without() {}
pub fn undocumented() {}
/// Text.
pub trait Alone {
    /// A method of a trait.
    fn method(&self);
}
/// ```no_run
/// f();
/// ```
pub fn last() {}
pub(crate) fn private() {}
pub use other::fn_name;

#[cfg(test)]
mod tests {
    pub fn helper() {}
}
";
    let (declarations, without) = without_example(text);
    let names: Vec<_> = without.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["text", "without", "undocumented", "Alone"]);
    assert_eq!((declarations, without[0].0), (6, 16));
}

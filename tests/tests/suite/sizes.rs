//! How large the product may become: lines of code without blanks, comments and tests. `tests/sizes` has the limits; a
//! limit that grows needs its reason there.

use std::collections::BTreeMap;
use std::path::Path;

use crate::structure::{code, files, repository};

/// The most lines of a file before its tests, comments and blanks included. The examples in its documentation are tests.
const MOST_LINES_OF_A_FILE: usize = 450;

/// Counts the lines of code of a file.
pub(crate) fn lines_of_code(path: &Path) -> usize {
    code(path).lines().filter(|line| !line.trim().is_empty()).count()
}

/// Returns the limits by name.
fn limits() -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(repository().join("tests/sizes")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let limit = |line: &str| {
        let (name, most) = line.split_once(' ').unwrap();
        (name.to_owned(), most.parse().unwrap())
    };
    lines.map(limit).collect()
}

/// Returns the lines of code of each crate of the product.
fn crates() -> BTreeMap<String, usize> {
    let count = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let mut paths = Vec::new();
        files(&entry.path().join("src"), &mut paths);
        let lines = paths.iter().map(|path| lines_of_code(path)).sum();
        (entry.file_name().into_string().unwrap(), lines)
    };
    std::fs::read_dir(repository().join("crates")).unwrap().map(count).collect()
}

#[test]
fn the_product_does_not_grow() {
    let (limits, crates) = (limits(), crates());
    let total: usize = crates.values().sum();
    for (name, lines) in &crates {
        println!("{name} {lines}");
    }
    println!("crates {total}");
    let most = limits["crates"];
    assert!(total <= most, "crates/ has {total} lines of code, more than {most} (tests/sizes)");
    // The limit follows what was deleted.
    assert!(
        total * 100 >= most * 97,
        "crates/ has {total} lines of code: lower {most} in tests/sizes"
    );
}

/// Returns the number of lines, without those of examples in documentation comments, each with the empty line before it.
fn without_examples(text: &str) -> usize {
    let (mut lines, mut is_example, mut is_after_empty) = (0, false, false);
    for line in text.lines().map(str::trim) {
        let documentation = ["///", "//!"].iter().find_map(|mark| line.strip_prefix(mark));
        let is_fence = documentation.is_some_and(|text| text.trim_start().starts_with("```"));
        let begins = is_fence && !is_example;
        is_example = documentation.is_some() && (is_example ^ is_fence);
        lines += usize::from(!is_example && !is_fence);
        lines -= usize::from(begins && is_after_empty);
        is_after_empty = documentation.is_some_and(str::is_empty);
    }
    lines
}

#[test]
fn lines_of_examples_do_not_count() {
    let text = "/// Text.\n///\n/// ```\n/// f();\n/// ```\nfn f() {}\n";
    assert_eq!(without_examples(text), 2);
    // A fence without an end counts no further than its comment.
    assert_eq!(without_examples("//! ```\n//! f();\n\nfn f() {}\n"), 2);
}

/// Files of more lines are named with their lengths, and may not grow.
#[test]
fn files_are_short() {
    let limits = limits();
    let mut paths = Vec::new();
    let sources = ["crates", "lab", "tests"].map(|name| repository().join(name));
    sources.iter().for_each(|source| files(source, &mut paths));
    assert!(paths.len() > 700, "{} files are too few", paths.len());
    let mut long = BTreeMap::new();
    for path in paths {
        let name = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
        let is_source = name.contains("/src/") && !name.contains("/target/");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = without_examples(text.split("\n#[cfg(test)]\nmod tests {").next().unwrap());
        if is_source && lines > MOST_LINES_OF_A_FILE {
            long.insert(name, lines);
        }
    }
    for (name, lines) in &long {
        let most = limits.get(name).copied().unwrap_or(MOST_LINES_OF_A_FILE);
        assert!(*lines <= most, "{name} has {lines} lines before its tests, more than {most}");
    }
    for name in limits.keys().filter(|name| name.contains('/')) {
        assert!(long.contains_key(name), "{name} is short: take it out of tests/sizes");
    }
}

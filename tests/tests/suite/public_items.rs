//! A check of the crates that are no interface for applications or drivers: each of their public items is
//! named outside of its crate. It finds names, and so misses an item whose name others have as well.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::structure::{code, files, repository};

/// The crates whose public items only this repository uses.
const INTERNAL: [&str; 10] = [
    "bpf", "engine", "memory", "netlink", "packet", "protocol", "queue", "rdma", "sandbox",
    "waiting",
];

fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    parts.filter(|word| !word.is_empty())
}

/// Returns all source files below a folder, except those that a build made.
pub(crate) fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Returns the name of the public item that a line of code defines.
fn public_item(line: &str) -> Option<&str> {
    let mut rest = line.trim_start().strip_prefix("pub ")?;
    loop {
        let (word, after) = rest.split_once(' ')?;
        let is_qualifier = after.starts_with("fn ") || after.starts_with("unsafe ");
        match word {
            "const" | "unsafe" | "async" if is_qualifier => rest = after,
            "fn" | "const" | "static" | "mod" | "struct" | "enum" | "trait" | "type" | "union" => {
                return words(after).next();
            }
            _ => return None,
        }
    }
}

/// Returns the words by which a crate's interface makes items public: those of signatures and fields, and of
/// links and examples in the documentation.
fn interface<'a>(text: &'a str, code: &'a str) -> BTreeSet<&'a str> {
    let (mut all, mut is_signature) = (BTreeSet::new(), false);
    for line in code.lines().map(str::trim_start) {
        let begins = line.starts_with("pub ");
        // A variant of an enumeration has no `pub`.
        let is_variant = line.starts_with(char::is_uppercase) && line.contains('(');
        if begins || is_variant || is_signature {
            let defined = public_item(line);
            all.extend(words(line).filter(|word| Some(*word) != defined));
        }
        let is_function = begins && line.contains("fn ");
        is_signature = (is_function || is_signature) && !line.ends_with(['{', ';']);
    }
    let mut is_example = false;
    for line in text.lines().map(str::trim_start) {
        if !line.starts_with("///") && !line.starts_with("//!") {
            is_example = false;
            continue;
        }
        is_example ^= line.contains("```");
        if is_example || line.contains("[`") {
            all.extend(words(line));
        }
    }
    all
}

#[test]
fn public_items_of_internal_crates_are_used_outside_of_them() {
    let source = |name| repository().join("crates").join(name).join("src");
    let mut all = Vec::new();
    for folder in ["crates", "lab", "tests", "examples", "fuzz"] {
        sources(&repository().join(folder), &mut all);
    }
    // Who names a word: a bit for each internal crate, and one for everyone else.
    let mut named: HashMap<String, u16> = HashMap::new();
    for path in all {
        let owner = INTERNAL.iter().position(|name| path.starts_with(source(name)));
        let bit = 1 << owner.unwrap_or(INTERNAL.len());
        for word in words(&std::fs::read_to_string(path).unwrap()) {
            match named.get_mut(word) {
                Some(bits) => *bits |= bit,
                None => drop(named.insert(word.to_owned(), bit)),
            }
        }
    }
    let (mut checked, mut unused) = (0, Vec::new());
    for (place, name) in INTERNAL.iter().enumerate() {
        let mut own = Vec::new();
        files(&source(name), &mut own);
        let texts: Vec<_> = own
            .iter()
            .map(|path| (path, std::fs::read_to_string(path).unwrap(), code(path)))
            .collect();
        let interface: BTreeSet<_> =
            texts.iter().flat_map(|(_, text, code)| interface(text, code)).collect();
        for (path, _, code) in &texts {
            for item in code.lines().filter_map(public_item) {
                checked += 1;
                if named[item] == 1 << place && !interface.contains(item) {
                    unused.push(format!("{}: {item}", path.display()));
                }
            }
        }
    }
    assert!(checked > 800, "{checked} items are too few");
    assert!(unused.is_empty(), "make private, or delete:\n{}", unused.join("\n"));
}

#[test]
fn an_unused_item_is_found() {
    for (line, found) in [
        ("    pub const fn a(self) -> B {", Some("a")),
        ("pub const LIMIT: usize = 1;", Some("LIMIT")),
        ("pub struct Words<T> {", Some("Words")),
        ("pub unsafe fn new() {", Some("new")),
        ("pub(crate) fn private() {", None),
        ("    pub field: usize,", None),
        ("pub use a::B;", None),
    ] {
        assert_eq!(public_item(line), found, "{line}");
    }
    let code = "pub fn f(\n    a: Argument,\n) -> Result {\n    body()\n}\npub struct Alone {\n";
    let text = "/// See [`Linked`].\n/// ```\n/// example();\n/// ```\n/// prose\n";
    let words = interface(text, code);
    assert!(["Argument", "Result", "Linked", "example"].iter().all(|word| words.contains(word)));
    assert!(!["prose", "body", "Alone", "f"].iter().any(|word| words.contains(word)));
}

//! Children made by `fork` from programs with sockets of `towpath-net`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use towpath_tests::process::Program;
use towpath_tests::served::Served;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

/// Types of plain values, which no process owns.
const VALUES: [&str; 6] =
    ["BindOptions", "Event", "Events", "Interest", "Ready", "ReceivedDatagram"];
/// The trait behind `Source`, which programs cannot name.
const HIDDEN: &str = "Watchable";

/// Returns the source files below a folder, without tests.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        // The sockets of `mio`, `tokio` and `quinn` call those that this test calls, and nothing before them.
        if ["testing", "mio", "tokio", "quinn"].contains(&name.as_str()) || name.ends_with("_tests")
        {
            continue;
        }
        if path.is_dir() {
            files(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// Returns a type without its parameters: `Incoming` of `Incoming<'_> {`.
fn type_name(text: &str) -> &str {
    text.split(['<', ' ']).next().unwrap()
}

/// Returns the public methods in the source of `towpath-net`, and those of traits that its public
/// structures implement, as `Type::method`. Reads the source by its layout, which `cargo fmt`
/// guarantees.
fn public_methods() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates/net/src");
    let mut paths = Vec::new();
    files(&source, &mut paths);
    let texts: Vec<_> = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let lines = || texts.iter().flat_map(|text| text.lines());
    let structures: BTreeSet<&str> =
        lines().filter_map(|line| line.strip_prefix("pub struct ")).map(type_name).collect();
    let mut found = BTreeSet::new();
    // The type of the current block, and how its public methods begin.
    let mut block = None;
    for line in lines() {
        if let Some(header) = line.strip_prefix("impl ") {
            block = Some(match header.split_once(" for ") {
                Some((HIDDEN, on)) => (type_name(on), "no method"),
                Some((_, on)) => (type_name(on), "    fn "),
                None => (type_name(header), "    pub fn "),
            });
        } else if line == "}" {
            block = None;
        }
        if let Some((on, mark)) = block
            && structures.contains(on.trim_start_matches('&'))
            && !VALUES.contains(&on)
            && let Some(rest) = line.strip_prefix(mark)
        {
            found.insert(format!("{on}::{}", rest.split(['(', '<']).next().unwrap()));
        }
    }
    found
}

/// While a thread holds the locks of a network, each call in a child returns its named error at once,
/// and drops are silent. The parent's network continues.
#[test]
fn every_call_of_a_forked_socket_fails_at_once_and_the_parents_network_continues() {
    let expected = public_methods();
    assert!(expected.len() > 80, "{expected:?}");
    for driving in ["thread", "application"] {
        let server = Served::start(&PEER, &[]);
        let mut forked = PEER.start(&["forked-sockets", server.path(), driving]);
        let mut called = BTreeSet::new();
        loop {
            let line = forked.line();
            let Some(name) = line.strip_prefix("called ") else {
                assert_eq!(line, "done");
                break;
            };
            called.insert(name.to_owned());
        }
        assert!(forked.leave().success());
        let missed: Vec<_> = expected.difference(&called).collect();
        assert!(missed.is_empty(), "not called in a child (forked_sockets/calls.rs): {missed:?}");
        // Names with spaces are not of methods.
        let stale = called.difference(&expected).find(|name| !name.contains(' '));
        assert_eq!(stale, None, "no such public method");
        server.stop();
    }
}

//! Checks of the lists of files in `docs/life-of-a-packet.md`: each is short, and each of its
//! functions exists and is called from another file of the list.

use std::path::{Path, PathBuf};

/// The most files of a direction.
const MOST_FILES: usize = 20;
/// The crates of which each direction has a file.
const LIBRARIES: [&str; 3] = ["memory", "packet", "queue"];
/// The engine's poll iteration, which calls the first function of a direction, publishes and
/// completes.
pub(crate) const ITERATION: &str = "crates/engine/src/engine/iteration.rs";

/// A file of a path, and the function in it.
pub(crate) struct Step {
    pub(crate) file: String,
    function: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the list of each direction.
pub(crate) fn lists() -> Vec<(String, Vec<Step>)> {
    let text = std::fs::read_to_string(repository().join("docs/life-of-a-packet.md")).unwrap();
    let lists = text.split("<!-- path: ").skip(1).map(|list| {
        let (name, list) = list.split_once(" -->\n").unwrap();
        let rows = list.lines().skip(2).take_while(|line| line.starts_with('|'));
        let steps = rows.map(|row| {
            let file = row.split_once("](../").unwrap().1.split_once(')').unwrap().0.to_owned();
            let function = row.split('`').nth(1).unwrap().to_owned();
            Step { file, function }
        });
        (name.to_owned(), steps.collect())
    });
    lists.collect()
}

/// Returns a file's code: no comments, and no unit tests.
fn code(file: &str) -> String {
    let text = std::fs::read_to_string(repository().join(file)).unwrap();
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns `true` if the code defines the function.
fn defines(code: &str, function: &str) -> bool {
    ["(", "<"].iter().any(|next| code.contains(&format!("fn {function}{next}")))
}

/// Returns `true` if the code calls the function.
fn calls(code: &str, function: &str) -> bool {
    ["(", "::<"].iter().any(|next| {
        let call = format!("{function}{next}");
        code.match_indices(&call).any(|(at, _)| {
            let before = &code[..at];
            (before.is_empty()
                || before.ends_with('.')
                || before.ends_with(':')
                || before.ends_with([' ', '(', '!']))
                && !before.ends_with("fn ")
        })
    })
}

#[test]
fn each_direction_crosses_few_files() {
    let lists = lists();
    let names: Vec<&str> = lists.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["received", "sent", "local"]);
    for (name, steps) in &lists {
        assert!((5..=MOST_FILES).contains(&steps.len()), "{name}: {} files", steps.len());
        let has =
            |of: &str| steps.iter().any(|step| step.file.starts_with(&format!("crates/{of}/")));
        assert!(LIBRARIES.into_iter().all(has), "{name}: a library is missing");
        assert_eq!(has("device"), name != "local", "{name}: the driver");
    }
}

/// The application calls the client's functions; every other one is called from another file of the
/// list, or in the engine's poll iteration.
#[test]
fn each_function_is_on_its_path() {
    for (name, steps) in lists() {
        for step in &steps {
            let Step { file, function } = step;
            assert!(defines(&code(file), function), "{name}: {file} has no function {function}");
            let is_called = file.starts_with("crates/client/")
                || calls(&code(ITERATION), function)
                || steps
                    .iter()
                    .filter(|other| other.file != *file)
                    .any(|other| calls(&code(&other.file), function));
            assert!(is_called, "{name}: no file of the list calls {function} of {file}");
        }
    }
}

#[test]
fn calls_are_told_from_other_words() {
    assert!(calls("let a = self.port.poll(1);", "poll"));
    assert!(calls("serve::<true>(x)", "serve"));
    assert!(calls("tx::check(x)?", "check"));
    assert!(!calls("fn poll(&mut self)", "poll"));
    assert!(!calls("self.repoll(1)", "poll"));
    assert!(!calls("let poll = 1;", "poll"));
    assert!(defines("pub(crate) fn take<const N: usize>(", "take"));
    assert!(!defines("fn take_all(", "take"));
}

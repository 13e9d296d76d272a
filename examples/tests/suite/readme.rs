//! Asserts that the README shows the program of an example, and that the examples are short.

/// Returns the program in a Markdown text.
fn shown(markdown: &str) -> &str {
    let (_, after) = markdown.split_once("```rust,no_run\n").expect("the text has a program");
    after.split_once("```").expect("which ends").0
}

/// Returns the part of a program from its socket on.
///
/// The parts before differ: the README's program takes its argument in one line, the example has a
/// usage and an exit status, and may attach within a VLAN.
fn from_sockets(program: &str) -> &str {
    let start = program.find("    // As on Linux, this socket").expect("the program has a socket");
    &program[start..]
}

#[test]
fn the_first_program_is_the_one_in_the_readme() {
    let readme = shown(include_str!("../../../README.md"));
    assert_eq!(readme, shown(include_str!("../../src/first.md")), "the shown program is compiled");
    let example = include_str!("../../src/bin/udp_echo.rs");
    assert_eq!(from_sockets(readme), from_sockets(example), "the example is shown");
}

#[test]
fn every_example_is_read_at_a_glance() {
    for (name, text) in [
        ("board", include_str!("../../src/bin/board.rs")),
        ("channel", include_str!("../../src/bin/channel.rs")),
        ("kv", include_str!("../../src/bin/kv.rs")),
        ("echo", include_str!("../../src/bin/echo.rs")),
        ("udp_echo", include_str!("../../src/bin/udp_echo.rs")),
        ("oob_echo", include_str!("../../src/bin/oob_echo.rs")),
        ("own_queue", include_str!("../../src/bin/own_queue.rs")),
        ("pdu_echo", include_str!("../../src/bin/pdu_echo.rs")),
        ("web", include_str!("../../src/bin/web.rs")),
    ] {
        let lines = text.lines().count();
        assert!(lines < 105, "{name} has {lines} lines");
    }
}

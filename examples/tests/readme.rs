//! The README shows this program, and not one that it once was.

/// From the first import on: what comes before is for who reads the file itself.
fn program(text: &str) -> &str {
    text.find("use ").map_or("", |start| &text[start..])
}

#[test]
fn the_first_program_is_the_one_in_the_readme() {
    let readme = include_str!("../../README.md");
    let (_, after) = readme.split_once("```rust,no_run\n").expect("the README has a program");
    let (shown, _) = after.split_once("```").expect("which ends");
    assert_eq!(shown, program(include_str!("../src/bin/udp_echo.rs")));
}

#[test]
fn every_example_is_read_at_a_glance() {
    for (name, text) in [
        ("echo", include_str!("../src/bin/echo.rs")),
        ("udp_echo", include_str!("../src/bin/udp_echo.rs")),
        ("pdu_echo", include_str!("../src/bin/pdu_echo.rs")),
        ("web", include_str!("../src/bin/web.rs")),
    ] {
        let lines = text.lines().count();
        assert!(lines < 100, "{name} has {lines} lines");
    }
}

//! Asserts that every example reports its usage and its errors as text, and by the exit status.

use std::process::{Command, Stdio};

/// The examples, and the least and the largest number of arguments of each.
const EXAMPLES: [(&str, &str, [usize; 2]); 9] = [
    ("board", env!("CARGO_BIN_EXE_board"), [1, 2]),
    ("channel", env!("CARGO_BIN_EXE_channel"), [1, 2]),
    ("echo", env!("CARGO_BIN_EXE_echo"), [1, 1]),
    ("kv", env!("CARGO_BIN_EXE_kv"), [1, 3]),
    ("oob_echo", env!("CARGO_BIN_EXE_oob_echo"), [1, 2]),
    ("own_queue", env!("CARGO_BIN_EXE_own_queue"), [1, 1]),
    ("pdu_echo", env!("CARGO_BIN_EXE_pdu_echo"), [1, 1]),
    ("udp_echo", env!("CARGO_BIN_EXE_udp_echo"), [1, 2]),
    ("web", env!("CARGO_BIN_EXE_web"), [2, 3]),
];

/// Returns the exit status of a program, its standard output and its standard error.
fn run(program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn no_example_is_missing_here() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin");
    let mut there: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, EXAMPLES.map(|(name, _, _)| format!("{name}.rs")));
}

#[test]
fn help_is_the_usage_and_success() {
    for (name, program, _) in EXAMPLES {
        for arguments in [&["--help"][..], &["-h"], &["/some/path", "--help"]] {
            let (status, out, error) = run(program, arguments);
            assert_eq!((status, error.as_str()), (Some(0), ""), "{name} {arguments:?}");
            assert!(out.contains(&format!("usage: {name} SOCKET")), "{name} {arguments:?}: {out}");
        }
    }
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (name, program, [least, most]) in EXAMPLES {
        let (few, many) = (vec!["x"; least - 1], vec!["x"; most + 1]);
        let mut option = vec!["x"; least];
        option[0] = "--no-such-option";
        for arguments in [few, many, option] {
            let (status, out, error) = run(program, &arguments);
            assert_eq!((status, out.as_str()), (Some(2), ""), "{name} {arguments:?}: {error}");
            assert!(error.starts_with(&format!("{name}: usage: {name} SOCKET")), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}

#[test]
fn an_error_is_one_line_of_words_and_status_1() {
    for (name, program, [least, _]) in EXAMPLES {
        let mut arguments = vec!["/nonexistent/tap0.sock"];
        arguments.resize(least, "/");
        let (status, _, error) = run(program, &arguments);
        assert_eq!(status, Some(1), "{name}: {error}");
        let start = format!("{name}: /nonexistent/tap0.sock: No such file or directory");
        assert!(error.starts_with(&start), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!error.contains(['{', '"']), "a text, not the debug form of a value: {error}");
    }
    let web = env!("CARGO_BIN_EXE_web");
    let (status, _, error) = run(web, &["/nonexistent/tap0.sock", "/nonexistent/root"]);
    assert_eq!(status, Some(1), "{error}");
    assert!(error.starts_with("web: /nonexistent/root: No such file or directory"), "{error}");
}

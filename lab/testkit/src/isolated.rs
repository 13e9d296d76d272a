//! Tests in a network namespace of their own.
//!
//! A test harness has several threads, so that a test cannot go into a user namespace. Instead the
//! test starts its own program again, for itself alone, in a new namespace.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use towpath_sandbox::{Unavailable, explain, isolate};

/// How long an isolated test may take. It only ends a test that hangs.
pub const ISOLATED_LIMIT: Duration = Duration::from_secs(180);

/// The environment variable that, set to 1, makes a skipped test a failed one.
pub const REQUIRE_ALL: &str = "TOWPATH_REQUIRE_ALL";

/// Tells the second program that it is inside, and for which test.
const INSIDE: &str = "TOWPATH_TEST_INSIDE";

/// The most output of an isolated test that is kept, in bytes.
const OUTPUT_MAX_BYTES: u64 = 4 << 20;

/// Runs the rest of a test in a network namespace of its own, in a process of its own, with the
/// rights of root there. It has to be the whole body of a `#[test]`. Where the machine does not
/// allow it the test is skipped, see [`skip`]. The test fails when the body panics, does not reach
/// its end, or takes longer than [`ISOLATED_LIMIT`].
///
/// ```no_run
/// #[test]
/// fn the_loopback_is_ours() {
///     towpath_testkit::isolated!(|| {
///         assert_eq!(towpath_netlink::Netlink::open().unwrap().links().unwrap().len(), 1);
///     });
/// }
/// ```
#[macro_export]
macro_rules! isolated {
    ($body:expr) => {{
        fn here() {}
        $crate::isolated($crate::test_name(here), $body)
    }};
}

/// Returns the test harness's name of the test that contains the item `here`.
#[doc(hidden)]
#[must_use]
pub fn test_name<T>(_here: T) -> &'static str {
    let path = std::any::type_name::<T>();
    let path = path.strip_suffix("::here").unwrap_or(path).trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_crate, test)| test)
}

/// Does the work of [`isolated!`], for the test of a name.
///
/// # Panics
/// When the test fails, or is skipped where all are required.
pub fn isolated(test: &str, body: impl FnOnce()) {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        body();
        // The harness succeeds even without a test of the name: so the test prints that it ran.
        println!("{}", end_of(test));
        return;
    }
    let program = std::env::current_exe().expect("the running program has a path");
    let mut command = Command::new(program);
    command
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    isolate(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => match explain(&error) {
            Some(why) => return skip(test, &why),
            None => panic!("{test} cannot be started: {error}"),
        },
    };

    let output = child.stdout.take().expect("a pipe was asked for");
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        let _ = output.take(OUTPUT_MAX_BYTES).read_to_end(&mut read);
        String::from_utf8_lossy(&read).into_owned()
    });
    let deadline = Instant::now() + ISOLATED_LIMIT;
    let status = loop {
        match child.try_wait().expect("the child is ours") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // A surviving grandchild would hold the pipe open: do not wait for it.
    let patience = Instant::now() + Duration::from_secs(2);
    while !reader.is_finished() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(reader.is_finished(), "{test} left a process behind that holds its output open");
    let text = reader.join().expect("reading does not panic");
    print!("{text}");
    let status = status.unwrap_or_else(|| panic!("{test} took longer than {ISOLATED_LIMIT:?}"));
    assert!(status.success(), "{test} failed in its namespace: {status}");
    assert!(text.contains(&end_of(test)), "{test} did not come to its end in its namespace");
}

fn end_of(test: &str) -> String {
    format!("[{test} came to its end in a namespace of its own]")
}

/// Returns `true` if a test that cannot run here fails: [`REQUIRE_ALL`] is 1.
#[must_use]
pub fn required() -> bool {
    std::env::var_os(REQUIRE_ALL).is_some_and(|value| value == "1")
}

/// Reports that a test is skipped, and why, past the harness' capture, so that the message always
/// shows.
///
/// # Panics
/// Where all tests are [`required`].
pub fn skip(test: &str, why: &Unavailable) {
    assert!(!required(), "{test} has to run here ({REQUIRE_ALL}=1) and cannot: {why}");
    // In one write: other tests print at the same time.
    let line = format!("SKIP {test}: {}; {}\n", why.cause, why.remedy);
    let _ = io::stderr().write_all(line.as_bytes());
}

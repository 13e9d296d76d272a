//! Programs of others, with which some tests compare.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use towpath_sandbox::Unavailable;

use crate::isolated::skip;

/// Returns `true` if all programs that a test compares with are in `PATH`: pairs of a program and its
/// package in Debian. Otherwise the test is skipped, see [`skip`].
///
/// This looks in no directory beside `PATH`, so the test may start each program by its name.
///
/// # Panics
/// If a program is missing and all tests are [`required`](crate::required).
#[must_use]
pub fn has_programs(test: &str, programs: &[(&str, &str)]) -> bool {
    let is_missing = |(program, _): &&(&str, &str)| find_program(program).is_none();
    let (missing, packages): (Vec<&str>, Vec<&str>) =
        programs.iter().filter(is_missing).copied().unzip();
    if missing.is_empty() {
        return true;
    }
    // tests/ordinary-user compares these with docs/testing.md.
    let cause = format!("foreign programs not in PATH: {}", missing.join(", "));
    let remedy = format!("apt-get install {}", packages.join(" "));
    skip(test, &Unavailable { cause, remedy });
    false
}

/// Returns the path of a program in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let places = std::env::var_os("PATH")?;
    std::env::split_paths(&places).map(|place| place.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    let is = |file: std::fs::Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    path.metadata().is_ok_and(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_file_that_may_be_started() {
        assert!(is_program(&std::env::current_exe().unwrap()));
        assert!(!is_program(Path::new("/")));
        assert!(!is_program(Path::new("/proc/self/status")));
        assert!(!is_program(Path::new("/nonexistent/program")));
        assert!(has_programs("a_program_is_a_file_that_may_be_started", &[]));
        assert_eq!(find_program("no-program-has-this-name"), None);
    }
}

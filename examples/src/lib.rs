//! Code that the example programs share: usage and errors, reported in one line; and connections by
//! which one application lets another one use its memory.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit status after wrong usage, as of most commands.
const USAGE: u8 = 2;

/// Runs an example that takes `N` arguments, and returns its exit status.
///
/// `usage` is the name of the example and of its arguments, such as `"echo SOCKET"`. Arguments in
/// brackets at the end may be left out together; they are then empty. The first line of `about` is
/// the example's purpose. `--help` prints both with status 0. Another number of arguments, or an
/// unknown option, prints one line on standard error and returns status 2. An error of `run` prints
/// one line of text and returns status 1.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     towpath_examples::run("greet NAME", "Greets.", |[name]| {
///         println!("Hello, {}!", name.display());
///         Ok(())
///     })
/// }
/// ```
pub fn run<const N: usize>(
    usage: &str,
    about: &str,
    run: impl FnOnce([OsString; N]) -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    let name = usage.split_whitespace().next().unwrap_or_default();
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        // The reader may have closed the pipe, which is no error.
        let _ = writeln!(io::stdout(), "{about}\n\nusage: {usage}");
        return ExitCode::SUCCESS;
    }
    let optional = usage.strip_suffix(']').and_then(|usage| usage.rsplit_once('['));
    let optional = optional.map_or(0, |(_, names)| names.split_whitespace().count());
    if arguments.len() + optional == N {
        arguments.resize(N, OsString::new());
    }
    let is_option = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
    let failed = match <[OsString; N]>::try_from(arguments) {
        Ok(arguments) if !arguments.iter().any(is_option) => run(arguments),
        _ => {
            let _ = writeln!(io::stderr(), "{name}: usage: {usage}");
            return ExitCode::from(USAGE);
        }
    };
    let Err(error) = failed else { return ExitCode::SUCCESS };
    let _ = writeln!(io::stderr(), "{name}: {error}");
    ExitCode::FAILURE
}

pub mod apertures;

#[cfg(doctest)]
#[doc = include_str!("first.md")]
struct First;

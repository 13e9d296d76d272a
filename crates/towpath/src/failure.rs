//! The end of a command that failed: one line, and a status.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::standard_error;

/// The status after wrong usage, as clap and most commands have it.
const USAGE: u8 = 2;

/// The reason why a subcommand failed: one line that names the thing and the remedy, and the exit
/// status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    /// Returns the failure of an attempt: status 1.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), status: 1 }
    }

    /// Returns the failure for invalid options or settings: status 2.
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), status: USAGE }
    }

    /// Returns the failure for a machine or user that does not allow the operation: status 77.
    pub(crate) fn unavailable(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), status: towpath_sandbox::EXIT_UNAVAILABLE }
    }

    /// Returns the end without an error after the reader has gone: status 0, and no line.
    pub(crate) fn silent() -> Failure {
        Failure { text: String::new(), status: 0 }
    }

    /// Returns the failure with a place, such as a file and a line, before its text.
    pub(crate) fn at(self, place: &str) -> Failure {
        Failure { text: format!("{place}: {}", self.text), ..self }
    }

    /// Returns the failure's line.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the failure's text in one line, as [`Failure::report`] prints it.
    pub(crate) fn line(&self) -> String {
        one_line(&self.text)
    }

    /// Prints the failure to standard error. A server and its keeper leave it in their log, which does not wait for a
    /// reader.
    pub(crate) fn report(&self) -> ExitCode {
        if self.text.is_empty() {
            return ExitCode::from(self.status);
        }
        let line = format!("towpath: {}\n", self.line());
        if standard_error::is_on() {
            standard_error::add(line.as_bytes());
        } else {
            // Without standard error the message is lost; the status still shows the failure.
            let _ = io::stderr().write_all(line.as_bytes());
        }
        ExitCode::from(self.status)
    }
}

/// Installs a panic hook that reports a defect of this program in one line, unless the user asked
/// for a backtrace. The standard library also panics if it cannot print; the hook reports that as a
/// failure.
pub(crate) fn tell_defects_in_one_line() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |defect| {
        let payload = defect.payload();
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        if let Some(cause) = text.strip_prefix("failed printing to stdout: ") {
            let _ = Failure::new(format!("standard output: {cause}")).report();
            std::process::exit(1);
        }
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            return usual(defect);
        }
        let place = defect.location().map(ToString::to_string).unwrap_or_default();
        let line = format!("a defect of this program, please report it: {place}: {text}");
        let _ = Failure::new(line).report();
    }));
}

/// Returns the system's text for an error, without its number.
pub(crate) fn says(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Returns the remedy for an error that means an exhausted resource; else an empty text.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
        Some(libc::ENOMEM) => "; free memory, or raise its limit (ulimit -v, MemoryMax=)",
        Some(libc::EAGAIN) => "; raise the limit of threads or of memory (ulimit -u, ulimit -v)",
        Some(libc::EFBIG) => "; raise the limit of file sizes (ulimit -f)",
        _ => "",
    }
}

/// Prints the output of a subcommand. Ignores a reader that closed the pipe early.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {}", says(&error))))
        }
        _ => Ok(()),
    }
}

/// Prints help and version as clap formats them, and clap's errors of several lines in one line.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            // `args` would panic on words that are not UTF-8.
            let subcommand = std::env::args_os().nth(1).and_then(|word| word.into_string().ok());
            let subcommand = subcommand.unwrap_or_default();
            Failure::usage(usage_text(&error.to_string(), &subcommand)).report()
        }
    }
}

/// Returns the error in one line, with the command that shows the help of a subcommand: the one in
/// the error's usage line, or else `given`.
fn usage_text<'a>(text: &'a str, given: &'a str) -> String {
    let mut subcommand = given;
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(usage) = line.strip_prefix("Usage: towpath ") {
            let word = usage.split(' ').next().unwrap_or_default();
            subcommand = if word.starts_with(|c: char| c.is_ascii_lowercase()) { word } else { "" };
        } else if !line.starts_with("For more information") {
            lines.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let space = if subcommand.is_empty() { "" } else { " " };
    format!("{}; see: towpath {subcommand}{space}--help", lines.join("; ").replace(":;", ":"))
}

/// Joins a text to one line, without the error numbers that the standard library appends.
fn one_line(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.find(" (os error ") {
        let Some(length) = text[start..].find(')') else { break };
        text.replace_range(start..=start + length, "");
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_usage_is_one_line() {
        let text = "error: unexpected argument '--foo' found\n\n  tip: a similar argument exists\n\n\
                    Usage: towpath serve [OPTIONS]\n\nFor more information, try '--help'.\n";
        assert_eq!(
            usage_text(text, "serve"),
            "unexpected argument '--foo' found; tip: a similar argument exists; \
             see: towpath serve --help"
        );
        let text = "error: the following arguments were not provided:\n  <FILE>\n\n\
                    Usage: towpath <SUBCOMMAND>\n";
        assert_eq!(
            usage_text(text, "--device"),
            "the following arguments were not provided: <FILE>; see: towpath --help"
        );
        let text = "error: invalid value '0' for '--mtu <BYTES>': 0 is out of range\n\n\
                    For more information, try '--help'.\n";
        assert_eq!(
            usage_text(text, "serve"),
            "invalid value '0' for '--mtu <BYTES>': 0 is out of range; see: towpath serve --help"
        );
    }

    #[test]
    fn system_errors_are_shown_without_their_number() {
        assert_eq!(says(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(says(&io::Error::other("x")), "x");
        assert_eq!(one_line("a\n  b\n"), "a; b");
        assert_eq!(one_line("x: no (os error 2); do y (os error 13)"), "x: no; do y");
        assert_eq!(one_line("a (os error "), "a (os error");
    }
}

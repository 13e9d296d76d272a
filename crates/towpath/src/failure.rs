//! The end of a command that failed: one line, and a status.
#![forbid(unsafe_code)]

use std::backtrace::{Backtrace, BacktraceStatus};
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

    /// Returns the failure with more text at the end.
    pub(crate) fn with(self, more: &str) -> Failure {
        Failure { text: format!("{}{more}", self.text), ..self }
    }

    /// Returns the failure's line.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the failure's text in one line, as [`Failure::report`] prints it.
    pub(crate) fn line(&self) -> String {
        one_line(&self.text)
    }

    /// Prints the failure to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        if self.text.is_empty() {
            return ExitCode::from(self.status);
        }
        tell(&format!("towpath: {}\n", self.line()));
        ExitCode::from(self.status)
    }
}

/// Installs a panic hook that reports a defect of this program in one line, and the backtrace if the user asked
/// for it (`RUST_BACKTRACE`). The standard library also panics if it cannot print; the hook reports that as a
/// failure.
pub(crate) fn tell_defects_in_one_line() {
    std::panic::set_hook(Box::new(|defect| {
        let payload = defect.payload();
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        if let Some(cause) = text.strip_prefix("failed printing to stdout: ") {
            let _ = Failure::new(format!("standard output: {cause}")).report();
            std::process::exit(1);
        }
        let place = defect.location().map(ToString::to_string).unwrap_or_default();
        let line = format!("a defect of this program, please report it: {place}: {text}");
        let _ = Failure::new(line).report();
        // What the standard library's hook prints; but that one would wait for standard error's reader.
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            tell(&format!("stack backtrace:\n{backtrace}"));
        }
    }));
}

/// Writes lines to standard error. A server and its keeper leave them in their log, which does not wait for a reader.
fn tell(lines: &str) {
    if standard_error::is_on() {
        standard_error::add(lines.as_bytes());
    } else {
        // Without standard error the lines are lost; the status still shows a failure.
        let _ = io::stderr().write_all(lines.as_bytes());
    }
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
    use std::io::Read;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// Set in a process that has a defect.
    const DEFECT: &str = "TOWPATH_TEST_DEFECT";

    /// Starts this test in a process that has a defect in a thread, and returns it with its standard error.
    fn start_with_a_defect() -> (Child, io::PipeReader, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["failure::tests::a_defect_waits_for_no_reader", "--exact", "--nocapture"]);
        command.env(DEFECT, "").env("RUST_BACKTRACE", "1").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(writer.try_clone().unwrap());
        (command.spawn().unwrap(), reader, writer)
    }

    /// Has a defect once standard input ends, as a server would.
    fn have_a_defect() -> ! {
        standard_error::turn_on();
        tell_defects_in_one_line();
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let failed = std::thread::spawn(|| panic!("on purpose")).join();
        standard_error::finish();
        std::process::exit(if failed.is_err() { 0 } else { 1 })
    }

    #[test]
    fn a_defect_waits_for_no_reader() {
        if std::env::var_os(DEFECT).is_some() {
            have_a_defect();
        }
        let (mut read, mut reader, writer) = start_with_a_defect();
        drop((read.stdin.take(), writer));
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(read.wait().unwrap().success(), "{said}");
        assert!(said.contains("please report it: ") && said.contains(": on purpose"), "{said}");
        assert!(said.contains("stack backtrace:\n   0: "), "{said}");

        let (mut unread, _reader, mut writer) = start_with_a_defect();
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while writer.write(&[b'#'; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, flags).unwrap();
        drop(unread.stdin.take());
        let until = Instant::now() + Duration::from_secs(40);
        let status = loop {
            match unread.try_wait().unwrap() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                ended => break ended,
            }
        };
        if status.is_none() {
            unread.kill().unwrap();
            unread.wait().unwrap();
        }
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }

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

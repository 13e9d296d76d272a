//! The ends of servers: how one ended, and when the next one starts.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::options::KeeperOptions;

/// The pause before another start, after a server that ended before it served. It doubles with each
/// such end, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Returns how a server ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the server was killed by signal {signal}"),
        (None, code) => format!("the server ended with exit code {}", code.unwrap_or(-1)),
    }
}

/// Returns `true` if a server ended by a defect, and not because another process killed it.
pub(super) fn is_defect(status: ExitStatus) -> bool {
    // The exit code of a program of Rust that has panicked.
    const PANICKED: i32 = 101;
    const DEFECTS: [i32; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    let by_signal = status.signal().is_some_and(|signal| DEFECTS.contains(&signal));
    by_signal || status.code() == Some(PANICKED)
}

/// When the next server starts.
pub(super) enum Next {
    AtOnce,
    After(Duration),
    None,
}

impl Next {
    /// Returns the time of the next start, after `failed_starts` that failed one after the other.
    pub(super) fn after(failed_starts: u32) -> Next {
        let Some(doublings) = failed_starts.checked_sub(1) else { return Next::AtOnce };
        let pause = FIRST_PAUSE * 2u32.saturating_pow(doublings).min(1 << 10);
        Next::After(pause.min(LONGEST_PAUSE))
    }

    /// Tells the operator what follows the end of a server.
    pub(super) fn log(&self, options: &KeeperOptions, end: &str, failed_starts: u32) {
        let interface = &options.interface;
        match self {
            Next::AtOnce => {
                tracing::warn!(interface, "{end}: another server starts, and resumes the sessions");
            }
            Next::After(pause) => tracing::error!(
                interface,
                "{end} before it served (attempt {failed_starts}): another start in {} ms",
                pause.as_millis()
            ),
            Next::None => {
                let why = match options.hold.as_secs() {
                    0 => "with --hold 0, no other server follows it".to_owned(),
                    hold => format!("no server has served for {hold} s"),
                };
                tracing::error!(
                    interface,
                    "{end}: {why}, and the keeper ends; remove the cause that the lines before \
                     give, and start towpath serve again"
                );
            }
        }
    }
}

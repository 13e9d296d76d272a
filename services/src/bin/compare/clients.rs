//! The programs that ask the services, and what they print.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use towpath_services::Failure;

/// Connections of wrk at once.
const CONNECTIONS: u32 = 200;
/// Questions of dnsperf at once.
const QUESTIONS: u32 = 100;
/// Names in the zone of the name server.
const HOSTS: u32 = 1000;
/// Streams that the client of QUIC sends in one round.
const STREAMS: u64 = 16;

/// A service and how it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Http,
    Fresh,
    Tls,
    Quic,
    Dns,
}

/// What a client counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    /// Requests without an answer.
    pub(crate) lost: u64,
}

impl Load {
    pub(crate) const ALL: [Load; 5] = [Load::Http, Load::Fresh, Load::Tls, Load::Quic, Load::Dns];

    /// Returns the load's name in the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::Http => "http",
            Load::Fresh => "fresh",
            Load::Tls => "tls",
            Load::Quic => "quic",
            Load::Dns => "dns",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Load> {
        Load::ALL.into_iter().find(|load| load.name() == name)
    }

    /// Returns what the load is.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Load::Http => "axum, wrk with 200 kept connections",
            Load::Fresh => "axum, wrk with 200 connections at a time, one for each request",
            Load::Tls => "rustls, openssl s_time with one handshake after the other",
            Load::Quic => "quinn, quinn with 16 streams of 1 MiB at a time, echoed",
            Load::Dns => "hickory, dnsperf with 100 questions at a time",
        }
    }

    /// Returns the service's program, and its arguments after the socket.
    pub(crate) fn service(self, directory: &Path) -> (&'static str, Vec<OsString>) {
        let serve = || vec![directory.into(), "serve".into()];
        match self {
            Load::Http | Load::Fresh => ("http", vec![]),
            Load::Tls => ("tls", serve()),
            Load::Quic => ("quic", serve()),
            Load::Dns => ("dns", vec![]),
        }
    }

    /// Returns the client's command. `programs`: the folder of the services.
    pub(crate) fn client(
        self,
        programs: &Path,
        directory: &Path,
        at: Ipv4Addr,
        window: Duration,
    ) -> Result<Command, Failure> {
        let seconds = window.as_secs().max(1);
        let line = match self {
            Load::Http | Load::Fresh => {
                format!("wrk -t 1 -c {CONNECTIONS} -d {seconds} http://{at}/")
            }
            Load::Tls => format!("openssl s_time -connect {at}:443 -new -time {seconds}"),
            Load::Quic => {
                let mut command = Command::new(programs.join("quic"));
                command.arg("kernel").arg(directory).arg(format!("{at}:4433,{}", rounds(seconds)));
                return Ok(command);
            }
            Load::Dns => {
                let questions = directory.join("questions");
                let lines = (0..HOSTS).map(|host| format!("host{host}.service.test A\n"));
                std::fs::write(&questions, lines.collect::<String>())?;
                let mut command = Command::new("dnsperf");
                command.arg("-d").arg(questions).args(["-s", &at.to_string()]);
                command.args(["-q", &QUESTIONS.to_string(), "-l", &seconds.to_string()]);
                return Ok(command);
            }
        };
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        if self == Load::Fresh {
            // wrk leaves out a header without the space.
            command.args(["-H", "Connection: close"]);
        }
        Ok(command)
    }

    /// Reads what a client printed, without an error, in a run of this time; `None` if that is no count.
    pub(crate) fn counted(self, said: &str, window: Duration) -> Option<Counted> {
        let after = |key: &str| said.lines().find_map(|line| line.trim().strip_prefix(key));
        let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
        let (requests, lost) = match self {
            Load::Http | Load::Fresh => {
                if after("Non-2xx").is_some() {
                    return None;
                }
                let line = said.lines().find(|line| line.contains(" requests in "))?;
                // "connect 0, read 12, write 0, timeout 0"
                let errors = after("Socket errors:").map_or(Some(0), |line| {
                    line.split(',')
                        .map(|part| part.split(' ').next_back()?.parse::<u64>().ok())
                        .sum()
                })?;
                (number(line)?, errors)
            }
            Load::Tls => (number(said.lines().find(|line| line.contains(" real seconds"))?)?, 0),
            Load::Quic => said
                .contains(" came back")
                .then(|| (rounds(window.as_secs().max(1)) * STREAMS, 0))?,
            Load::Dns => (number(after("Queries completed:")?)?, number(after("Queries lost:")?)?),
        };
        (requests > 0).then_some(Counted { requests, lost })
    }
}

/// Returns the rounds of the client of QUIC, which does not stop by time: they take about as long.
fn rounds(seconds: u64) -> u64 {
    4 * seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_print_is_counted() {
        let window = Duration::from_secs(2);
        let counted = |load: Load, said: &str| {
            load.counted(said, window).map(|counted| (counted.requests, counted.lost))
        };
        let wrk = "  4711 requests in 2.00s, 1KB read\n";
        assert_eq!(counted(Load::Http, wrk), Some((4711, 0)));
        let errors = format!("{wrk}  Socket errors: connect 1, read 20, write 0, timeout 300\n");
        assert_eq!(counted(Load::Fresh, &errors), Some((4711, 321)));
        assert_eq!(counted(Load::Http, &format!("{wrk}  Non-2xx or 3xx responses: 9\n")), None);
        let openssl = "99 connections in 0.20s; 495.00 connections/user sec, bytes read 0\n\
                       99 connections in 3 real seconds, 0 bytes read per connection\n";
        assert_eq!(counted(Load::Tls, openssl), Some((99, 0)));
        let quic = "16 streams of 1048576 bytes came back\n";
        assert_eq!(counted(Load::Quic, quic), Some((8 * 16, 0)));
        let dnsperf = "  Queries sent:         100\n  Queries completed:    98 (98.00%)\n  \
                       Queries lost:         2 (2.00%)\n";
        assert_eq!(counted(Load::Dns, dnsperf), Some((98, 2)));
        assert_eq!(Load::ALL.map(|load| counted(load, "")), [None; 5]);
    }
}

//! The example `web`, started as a process.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::programs::Running;

/// The port of the example.
pub(crate) const PORT: u16 = 8080;

/// Starts the example, which serves a directory, and returns its address.
pub(crate) fn start(
    web: &Path,
    socket: &Path,
    files: &Path,
) -> anyhow::Result<(Running, SocketAddrV4)> {
    let mut running = Running::start(web, None, |command| {
        command.args([socket, files]).arg(PORT.to_string()).stdout(Stdio::piped());
        command.stderr(Stdio::inherit());
    })?;
    let said = running.0.stdout.take().context("web without its output")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    let Some(ip) = address(&line) else { bail!("web said {line:?}, without an IPv4 address") };
    Ok((running, SocketAddrV4::new(ip, PORT)))
}

/// Finds the IPv4 address in the line that the example prints.
fn address(line: &str) -> Option<Ipv4Addr> {
    line.split(['[', ']', ',', ' ']).find_map(|word| word.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_first_line() {
        let line = "serving /tmp/a at port 8080 of [10.77.0.2, fe80::1]\n";
        assert_eq!(address(line), Some(Ipv4Addr::new(10, 77, 0, 2)));
        assert_eq!(address("serving nothing"), None);
    }
}

//! The frames that a server sends for others than the neighbour, and whether their senders may send
//! them. `tcpdump` records them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::programs::{Running, Serve};

/// What `tcpdump` has recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frames {
    pub(super) frames: f64,
    /// Frames that no right of their sender allows.
    pub(super) forged: f64,
    /// Frames that the kernel dropped for `tcpdump`.
    pub(super) missed: f64,
}

/// The addresses of the neighbour's session.
struct Neighbour {
    mac: String,
    ip: String,
}

/// A running `tcpdump`.
pub(super) struct Watch {
    process: Running,
    neighbour: Neighbour,
    lines: PathBuf,
    errors: PathBuf,
}

impl Watch {
    /// Records each frame from the server to the TAP that is no IPv4 packet with both of the
    /// neighbour's addresses.
    pub(super) fn start(tcpdump: &Path, serve: &Serve, tap: &str) -> anyhow::Result<Watch> {
        let report = towpath_client::report(&serve.socket)?;
        let text = |name: &str| -> anyhow::Result<String> {
            let value = report["sessions"][0][name].as_str();
            Ok(value.context("a session without addresses")?.to_owned())
        };
        let (mac, ip) = (text("mac")?, text("ipv4")?);
        let ip = ip.split('/').next().unwrap_or_default().to_owned();
        let (lines, errors) =
            (serve.socket.with_file_name("frames"), serve.socket.with_file_name("tcpdump"));
        let (out, err) = (File::create(&lines)?, File::create(&errors)?);
        let filter = format!("not (ether src {mac} and ip src host {ip})");
        let process = Running::start(tcpdump, None, |command| {
            // As root: tcpdump's own user could not write the file.
            command.args(["-Z", "root", "-i", tap, "-Q", "in", "-n", "-e", "-t", "-q", "-l"]);
            command.args(["-B", "65536"]).arg(filter);
            command.stdout(Stdio::from(out)).stderr(Stdio::from(err));
        })?;
        let watch = Watch { process, neighbour: Neighbour { mac, ip }, lines, errors };
        // tcpdump reports its start as text.
        for _ in 0..500 {
            if std::fs::read_to_string(&watch.errors)?.contains("listening on") {
                return Ok(watch);
            }
            thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("tcpdump did not start: {}", std::fs::read_to_string(&watch.errors)?)
    }

    /// Ends the recording.
    pub(super) fn end(mut self) -> anyhow::Result<Frames> {
        ensure!(self.process.0.try_wait()?.is_none(), "tcpdump has ended");
        let pid = i32::try_from(self.process.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("its number")?, Signal::INT)?;
        self.process.0.wait()?;
        let (lines, errors) =
            (std::fs::read_to_string(&self.lines)?, std::fs::read_to_string(&self.errors)?);
        let missed = missed(&errors).context("tcpdump says not how many frames it missed")?;
        // An empty line ends the output.
        let lines: Vec<_> = lines.lines().filter(|line| !line.is_empty()).collect();
        let is_forged = |line: &&&str| !is_allowed(line, &self.neighbour);
        let forged = lines.iter().filter(is_forged);
        Ok(Frames {
            frames: lines.len() as f64,
            forged: forged.inspect(|line| eprintln!("forged: {line}")).count() as f64,
            missed,
        })
    }
}

/// Returns the number of frames that tcpdump missed, by its last lines.
fn missed(errors: &str) -> Option<f64> {
    let line = errors.lines().find(|line| line.ends_with("packets dropped by kernel"))?;
    line.split(' ').next()?.parse().ok()
}

/// Returns `true` if the sender of a frame may send it, by tcpdump's line.
///
/// All sessions' link addresses have the same first three bytes. The other three are the number of the
/// session's IPv4 address in its network. So a link address says which IPv4 address belongs to it.
fn is_allowed(line: &str, neighbour: &Neighbour) -> bool {
    let Some((source, rest)) = line.split_once(" > ") else { return false };
    let Some((block, number)) = source.rsplit_once(':') else { return false };
    let is_ours = neighbour.mac.rsplit_once(':').is_some_and(|(ours, _)| ours == block);
    let Ok(number) = u8::from_str_radix(number, 16) else { return false };
    let Some((network, _)) = neighbour.ip.rsplit_once('.') else { return false };
    let own = format!("{network}.{number}");
    let Some((kind, packet)) = rest.split_once(": ") else { return false };
    let has_own = |address: &str| {
        let port = address.strip_prefix(own.as_str());
        port.is_some_and(|port| port.is_empty() || port.starts_with(['.', ',']))
    };
    let sender = if kind.contains("IPv4") {
        packet.split_once(" > ").map(|(sender, _)| sender)
    } else if kind.contains("ARP") {
        // "Request who-has A tell B", "Reply B is-at MAC".
        let request = packet.split_once(" tell ").map(|(_, teller)| teller);
        request.or_else(|| packet.strip_prefix("Reply ")?.split_once(" is-at ").map(|one| one.0))
    } else {
        // Others have no IPv4 address. This server gives no IPv6 addresses but link-local ones.
        return is_ours;
    };
    is_ours && sender.is_some_and(has_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_has_the_two_addresses_of_its_session() {
        let neighbour =
            Neighbour { mac: "02:3a:c6:00:00:02".to_owned(), ip: "10.97.0.2".to_owned() };
        let allowed = |line: &str| is_allowed(line, &neighbour);
        let ip = ", IPv4, length 106: ";
        let from = |mac: &str, rest: &str| format!("{mac} > 02:00:00:00:00:01{rest}");
        let own = "02:3a:c6:00:00:03";
        assert!(allowed(&from(own, &format!("{ip}10.97.0.3.1 > 10.97.0.1.2: UDP, length 64"))));
        assert!(allowed(&from(own, &format!("{ip}10.97.0.3 > 10.97.0.1: ICMP echo request"))));
        assert!(allowed(&from(
            own,
            ", ARP, length 42: Request who-has 10.97.0.1 tell 10.97.0.3, length 28"
        )));
        assert!(allowed(&from(
            own,
            ", ARP, length 42: Reply 10.97.0.3 is-at 02:3a:c6:00:00:03, length 28"
        )));
        assert!(allowed(&from(own, ", IPv6, length 70: fe80::1 > ff02::2: ICMP6")));
        // Addresses of the neighbour, of the kernel, of a stranger.
        for sender in ["10.97.0.2.1", "10.97.0.1.1", "192.0.2.1.1", "10.97.0.30.1", "10.97.0.3"] {
            let line = from(own, &format!("{ip}{sender} > 10.97.0.1.2: UDP, length 64"));
            assert_eq!(allowed(&line), sender == "10.97.0.3", "{line}");
        }
        for mac in ["02:3a:c6:00:00:02", "02:00:00:00:00:01", "02:3a:c7:00:00:03", "ff"] {
            let line = from(mac, &format!("{ip}10.97.0.3.1 > 10.97.0.1.2: UDP, length 64"));
            assert!(!allowed(&line), "{line}");
        }
        assert!(!allowed(&from(
            own,
            ", ARP, length 42: Request who-has 10.97.0.1 tell 10.97.0.2, length 28"
        )));
        assert!(!allowed(&from(own, ", ARP, length 42: Reply 10.97.0.2 is-at 02:3a:c6:00:00:03")));
        assert!(!allowed(""));
    }

    #[test]
    fn tcpdump_says_what_it_missed() {
        let text = "listening on x\n7 packets captured\n9 packets received by filter\n2 packets dropped by kernel\n";
        assert_eq!(missed(text), Some(2.0));
        assert_eq!(missed("listening on x\n"), None);
    }
}

//! Where packets between the kernel and the application are lost: the counters of each queue on the way.

use anyhow::Context;
use towpath_net::{Network, UdpSocket};

use crate::programs::Serve;

/// The counters of each place, in the order in which packets pass them.
#[derive(Debug)]
pub(super) struct Losses(Vec<(&'static str, u64)>);

/// Counters of the application's stack for frames that it drops on the way to its sockets.
const STACK_RECEIVES: [&str; 3] = ["rx_malformed", "rx_checksum", "udp_no_socket"];
/// Counters of the application's stack for frames that it does not send.
const STACK_SENDS: [&str; 3] = ["transmit_limit", "neighbour_dropped", "no_route"];

impl Losses {
    /// Reads the counters. The server must serve.
    pub(super) fn read(
        serve: &Serve,
        network: &Network,
        socket: &UdpSocket,
        kernel: &KernelCounts,
    ) -> anyhow::Result<Losses> {
        let report = towpath_client::report(&serve.socket)?;
        let device = |name: &str| report["device"]["counters"][name].as_u64().unwrap_or(0);
        let stack = |names: &[&str]| {
            network.counters().iter().filter(|(name, _)| names.contains(name)).map(|(_, n)| n).sum()
        };
        Ok(Losses(vec![
            ("in the kernel, without a route or room", kernel.discarded),
            ("at the interface's queue in the kernel", kernel.interface),
            ("by the server's driver on receive", device("rx_dropped_driver")),
            ("by the server, without an endpoint", device("rx_dropped_no_match")),
            ("at the session's receive queue", endpoints(&report, "rx_dropped_no_buffers")),
            ("by the budget of an endpoint", endpoints(&report, "rx_dropped_over_budget")),
            ("by the server, with unusable metadata", endpoints(&report, "rx_dropped_unusable")),
            ("by the application's stack on receive", stack(&STACK_RECEIVES)),
            ("at the application's socket", socket.dropped()?),
            ("by the application's stack on transmit", stack(&STACK_SENDS)),
            ("by the server on transmit", endpoints(&report, "tx_dropped_")),
            ("by the server's driver on transmit", device("tx_dropped_driver")),
            ("at the kernel's socket", kernel.socket),
        ]))
    }

    /// Returns the numbers of packets that were lost since an earlier reading.
    pub(super) fn since(&self, earlier: &Losses) -> Vec<(&'static str, u64)> {
        let pairs = self.0.iter().zip(&earlier.0);
        pairs.map(|((name, now), (_, before))| (*name, now.saturating_sub(*before))).collect()
    }
}

/// Sums the counters of all endpoints whose names begin with a prefix.
fn endpoints(report: &serde_json::Value, prefix: &str) -> u64 {
    let all = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let endpoints = all(&report["sessions"]).into_iter().flat_map(|one| all(&one["endpoints"]));
    let counters = endpoints.filter_map(|one| one["counters"].as_object().cloned());
    let counts = counters.flatten().filter(|(name, _)| name.starts_with(prefix));
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

/// The kernel's counters at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCounts {
    /// Packets that the kernel did not give to an interface.
    discarded: u64,
    /// Packets that the interface did not take.
    interface: u64,
    /// Datagrams for which a UDP socket had no room.
    socket: u64,
}

impl KernelCounts {
    /// Reads the counters of this thread's network namespace, with those of an interface.
    pub(super) fn read(interface: &str) -> anyhow::Result<KernelCounts> {
        let text = |path: &str| {
            std::fs::read_to_string(format!("/proc/thread-self/net/{path}"))
                .with_context(|| format!("/proc/thread-self/net/{path}"))
        };
        let (devices, snmp) = (text("dev")?, text("snmp")?);
        let count = |protocol, name| {
            counter(&snmp, protocol, name).with_context(|| format!("no counter {name}"))
        };
        Ok(KernelCounts {
            discarded: count("Ip:", "OutDiscards")? + count("Ip:", "OutNoRoutes")?,
            interface: interface_drops(&devices, interface)
                .with_context(|| format!("no counters of {interface}"))?,
            socket: count("Udp:", "RcvbufErrors")?,
        })
    }
}

/// Reads the number of packets that an interface dropped on transmit.
fn interface_drops(table: &str, interface: &str) -> Option<u64> {
    let lines = table.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, counts) = lines.into_iter().find(|(name, _)| *name == interface)?;
    // Eight columns of received packets, then bytes, packets, errors and drops of sent ones.
    counts.split_whitespace().nth(11)?.parse().ok()
}

/// Reads a counter of a protocol. The protocol's first line has the names, and its second line the counts.
fn counter(table: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, counts) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|one| one == name)?;
    counts.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let devices = "Inter-| Receive\n face |bytes\n  lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n \
                       tap0: 1 2 3 4 5 6 7 8 9 10 11 92 13 14 15 16\n";
        assert_eq!(interface_drops(devices, "tap0"), Some(92));
        assert_eq!(interface_drops(devices, "tap1"), None);
        let snmp = "Ip: a b\nIp: 1 2\nUdp: InDatagrams InErrors RcvbufErrors\nUdp: 7 8 9\n";
        assert_eq!(counter(snmp, "Udp:", "RcvbufErrors"), Some(9));
        assert_eq!(counter(snmp, "Ip:", "RcvbufErrors"), None);
    }
}

//! A flood of SYN segments with random source addresses, sent to a TAP as the kernel sends.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use fastrand::Rng;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::transport::tcp_flags;
use towpath_testkit::PacketSocket;

/// The time between two bursts of a flood with a rate.
const BURST: Duration = Duration::from_millis(1);
/// The options of each SYN: an MSS of 1460.
const OPTIONS: [u8; 4] = [2, 4, 0x05, 0xb4];
/// The ethertype of the socket, which receives nothing.
const ETHERTYPE: u16 = 0x88b5;
/// The Ethernet address that the SYNs come from: none that the server knows.
const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0x5f, 1];

/// The SYNs that wait in the TAP at most, where the flood is as fast as its reader. The queue has
/// room for more, so other packets find room.
const WAITING: u64 = 256;
/// The SYNs that such a flood sends between two looks at the TAP.
const FEW: u64 = 32;

/// The packets that the TAP's reader got from the kernel, and those that found the queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) delivered: u64,
    pub(super) dropped: u64,
}

impl Traffic {
    /// Reads the kernel's counters of an interface (`tun_put_user` and `tun_net_xmit` in
    /// drivers/net/tun.c count).
    pub(super) fn of(interface: &str) -> anyhow::Result<Traffic> {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        Traffic::read(&table, interface).with_context(|| format!("no counters of {interface}"))
    }

    fn read(table: &str, interface: &str) -> Option<Traffic> {
        let line = table
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
        let count = |column| line.split_whitespace().nth(column)?.parse().ok();
        // Eight columns of received packets, then bytes, packets, errors and drops of sent ones.
        Some(Traffic { delivered: count(9)?, dropped: count(11)? })
    }

    /// Returns the traffic since an earlier look.
    pub(super) fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            delivered: self.delivered.saturating_sub(earlier.delivered),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }

    fn sum(self) -> u64 {
        self.delivered + self.dropped
    }
}

/// Sends SYNs to a port until the flood is over: this many per second, or as many as the TAP's
/// reader takes. Returns the number of SYNs sent.
pub(super) fn flood(
    interface: &str,
    (mac, to): ([u8; 6], SocketAddrV4),
    rate: Option<u32>,
    over: &AtomicBool,
) -> anyhow::Result<u64> {
    let socket = PacketSocket::open(interface, ETHERTYPE)?;
    let (mut random, mut sent) = (Rng::with_seed(0x51f1), 0);
    let (start, before) = (Instant::now(), Traffic::of(interface)?);
    while !over.load(Ordering::Relaxed) {
        let due = match rate {
            Some(rate) => {
                std::thread::sleep(BURST);
                (start.elapsed().as_secs_f64() * f64::from(rate)) as u64
            }
            None => {
                let waiting = sent - Traffic::of(interface)?.since(before).sum().min(sent);
                if waiting >= WAITING {
                    std::thread::yield_now();
                    continue;
                }
                sent + FEW
            }
        };
        // A SYN that finds the queue full is lost, like one that the network loses.
        while sent < due && !over.load(Ordering::Relaxed) {
            socket.send(&syn(&mut random, mac, to))?;
            sent += 1;
        }
    }
    Ok(sent)
}

/// Makes a SYN from a random address and port.
fn syn(random: &mut Rng, mac: [u8; 6], to: SocketAddrV4) -> Vec<u8> {
    let port = 1024 + random.u16(..64_000);
    let tcp = Tcp {
        sequence: random.u32(..),
        acknowledgement: 0,
        flags: tcp_flags::SYN,
        window: 0xfaf0,
        options: &OPTIONS,
    };
    let flow = Flow::v4().macs(SOURCE_MAC, mac).addresses(source(random), *to.ip());
    flow.ports(port, to.port()).tcp(&tcp, &[])
}

/// Returns a random address that a host of another network may have.
fn source(random: &mut Rng) -> Ipv4Addr {
    loop {
        let [first, rest @ ..] = random.u32(..).to_be_bytes();
        if (1..224).contains(&first) && first != 10 && first != 127 {
            return Ipv4Addr::from([first, rest[0], rest[1], rest[2]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_interface() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n    \
                     lo:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n tpflood0: 1 2 3 4 5 6 7 8 900 70 \
                     11 30 13 14 15 16\n";
        let traffic = Traffic::read(table, "tpflood0").unwrap();
        assert_eq!(traffic, Traffic { delivered: 70, dropped: 30 });
        assert_eq!(traffic.since(Traffic { delivered: 50, dropped: 30 }).sum(), 20);
        assert_eq!(Traffic::read(table, "tpflood"), None);
        Traffic::of("lo").unwrap();
    }

    #[test]
    fn syns_come_from_many_hosts_of_other_networks() {
        let mut random = Rng::with_seed(1);
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 8080);
        let mut sources = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let frame = syn(&mut random, [2, 0, 0, 0, 0, 9], to);
            assert_eq!(frame.len(), 14 + 20 + 24);
            assert_eq!((frame[47] & 0x3f, &frame[30..34]), (tcp_flags::SYN, &[10, 77, 0, 2][..]));
            let address = Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]);
            assert!(!address.is_loopback() && !address.is_multicast() && address.octets()[0] != 10);
            sources.insert(address);
        }
        assert!(sources.len() > 9_900, "{}", sources.len());
    }
}

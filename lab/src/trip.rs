//! Round trips of one small UDP packet: the packet, the clock, and an application that asks or
//! answers.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, Session, WaitStrategy};
use towpath_packet::build::Flow;
use towpath_testkit::pin;

use crate::flow::{self, HEADER_BYTES};
use crate::latency::Latency;

/// The bytes of a packet or datagram.
pub(crate) const TRIP_BYTES: usize = 64;
pub(crate) const ASKS: u16 = 1000;
pub(crate) const ANSWERS: u16 = 2000;
/// The longest wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How often a child that sleeps looks whether its parent is gone.
pub(crate) const LOOKS: Duration = Duration::from_millis(100);
/// Trips between two reads of the clock while a thread spins.
pub(crate) const SPINS: u32 = 4096;

pub(crate) type Packet = [u8; TRIP_BYTES];

/// Runs work in a thread of its own, on a core if one is given.
pub(crate) fn in_thread<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(cpu) = cpu {
                pin(cpu)?;
            }
            work()
        });
        thread.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
    })
}

/// Times trips for a window, after a quarter of it that is not counted.
pub(crate) fn timed(
    window: Duration,
    mut trip: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Latency> {
    let mut times = Latency::new()?;
    let mut start = Instant::now();
    let counted = start + window / 4;
    let end = counted + window;
    while start < end {
        trip()?;
        let now = Instant::now();
        if start >= counted {
            times.record(now - start);
        }
        start = now;
    }
    Ok(times)
}

/// One application: a session with one endpoint.
pub(crate) struct Application {
    pub(crate) session: Session,
    endpoint: Endpoint,
}

impl Application {
    pub(crate) fn attach(
        socket: &Path,
        port: u16,
        wait_strategy: WaitStrategy,
    ) -> anyhow::Result<Application> {
        let name = if port == ASKS { "asks" } else { "answers" };
        let options = Options { name: name.into(), wait_strategy, ..Options::default() };
        let mut session = Session::attach(socket, &options)?;
        let endpoint = session.open(&Rule::new().udp(port))?;
        Ok(Application { session, endpoint })
    }

    pub(crate) fn addresses(&self) -> anyhow::Result<([u8; 6], Ipv4Addr)> {
        let info = self.session.info();
        Ok((info.mac.octets(), info.ipv4.context("a session without an IPv4 address")?.0))
    }

    /// Returns the packet to another application.
    pub(crate) fn packet_to(&self, (mac, ip): ([u8; 6], Ipv4Addr)) -> anyhow::Result<Packet> {
        let (own_mac, own_ip) = self.addresses()?;
        let flow = Flow::v4().macs(own_mac, mac).addresses(own_ip, ip).ports(ASKS, ANSWERS);
        let mut packet = [0; TRIP_BYTES];
        packet[..HEADER_BYTES].copy_from_slice(&flow::headers(&flow, TRIP_BYTES - HEADER_BYTES)?);
        Ok(packet)
    }

    pub(crate) fn send(&mut self, packet: &Packet) -> anyhow::Result<()> {
        self.session.sender().send(self.endpoint, TRIP_BYTES, Meta::FULL, |parts| {
            if let [part] = parts {
                part.copy_from_slice(packet);
            }
        })?;
        Ok(self.session.sender().flush()?)
    }

    /// Returns the packet that waits, if any.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Option<Packet>> {
        let mut got = None;
        self.session.receiver().receive(QueuePair::FIRST, 1, |packet| {
            got = packet.contiguous().and_then(<[u8]>::first_chunk).copied();
        })?;
        Ok(got)
    }

    /// Polls until a packet comes.
    pub(crate) fn spin(&mut self) -> anyhow::Result<Packet> {
        let (mut looks, mut since) = (0_u32, None);
        loop {
            if let Some(packet) = self.receive()? {
                return Ok(packet);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(SPINS) {
                let since = *since.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < PATIENCE, "a packet was lost");
            }
        }
    }
}

/// Returns the answer to a packet: sender and receiver in each other's place.
pub(crate) fn turned(packet: &Packet) -> Packet {
    let mut answer = *packet;
    for (one, other, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        answer[one..one + len].copy_from_slice(&packet[other..other + len]);
        answer[other..other + len].copy_from_slice(&packet[one..one + len]);
    }
    answer
}

/// The cores of the two applications; the engine's is the server's matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    pub(crate) asks: Option<usize>,
    pub(crate) answers: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_back_to_the_sender() {
        let there = Flow::v4().ports(ASKS, ANSWERS);
        let back = Flow {
            source_mac: there.destination_mac,
            destination_mac: there.source_mac,
            source: there.destination,
            destination: there.source,
            ..Flow::v4().ports(ANSWERS, ASKS)
        };
        let packet = |flow: &Flow| -> Packet {
            let headers = flow::headers(flow, TRIP_BYTES - HEADER_BYTES).unwrap();
            let mut packet = [9; TRIP_BYTES];
            packet[..HEADER_BYTES].copy_from_slice(&headers);
            packet
        };
        assert_eq!(turned(&packet(&there)), packet(&back));
    }
}

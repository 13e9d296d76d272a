//! The programs that receive: each in a process of its own, which counts packets and sends those
//! back that ask for it. A line on the standard input asks for the count.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use towpath_client::{Endpoint, Options, QueuePair, Rule, SendError, Session, WaitStrategy};
use towpath_packet::{MacAddr, Meta};
use towpath_testkit::PacketRing;

use super::count::Count;
use super::packet::{ETHERTYPE, goes_back, swap};
use super::port::Port;
use super::styles::{self, Round};
use super::trial::Receiver;
use crate::child::{Role, tell};

/// Packets that a program takes at once.
const BATCH: usize = 64;
/// Slots of the application's queues: enough for a burst while another process runs.
const SLOTS: u32 = 4096;

/// The application's address. The Ethernet address of the first application would end like that of all
/// IPv4 hosts, and the kernel's card would receive the packets, too.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 70);

impl Role for Receiver {
    const NAME: &'static str = "CardReceiver";

    fn act(self) -> anyhow::Result<()> {
        receive(&self)
    }
}

/// Receives until the parent is gone.
fn receive(receiver: &Receiver) -> anyhow::Result<()> {
    let count = Count::default();
    let counted = count.clone();
    let (mac, mut run): (_, Round) = match receiver {
        Receiver::Kernel { interface, mac } => {
            let ring = PacketRing::open(interface, ETHERTYPE)?;
            (*mac, Box::new(kernel(ring, counted)))
        }
        Receiver::Linked { address, rx_usecs } => {
            let port = Port::open(address, *rx_usecs)?;
            (port.mac(), Box::new(linked(port, counted)))
        }
        Receiver::Served { socket } => {
            let (session, endpoint) = attach(socket)?;
            (session.info().mac.octets(), Box::new(served(session, endpoint, counted)))
        }
        Receiver::Older { style, address, rx_usecs } => {
            styles::application(*style, address, *rx_usecs, counted)?
        }
    };
    tell(&MacAddr::new(mac).to_string())?;
    std::thread::spawn(move || {
        loop {
            if let Err(error) = run() {
                eprintln!("towpath-lab: {error:#}");
                std::process::exit(1);
            }
        }
    });
    match receiver {
        Receiver::Served { socket } => count.report(|| notifications(socket)),
        _ => count.report(|| Ok(0)),
    }
}

/// Returns the number of notifications that a server has sent.
fn notifications(socket: &Path) -> anyhow::Result<u64> {
    let report = towpath_client::report(socket)?;
    let count = report.pointer("/device/counters/notifications").and_then(|count| count.as_u64());
    count.context("a report without notifications")
}

/// Returns one round of a program on a packet socket: all packets, then a sleep.
fn kernel(mut ring: PacketRing, count: Count) -> impl FnMut() -> anyhow::Result<()> + Send {
    move || {
        loop {
            let packets = ring.receive(BATCH, |packet| goes_back(packet) && swap(packet));
            ring.flush()?;
            count.add_packets(packets);
            if packets == 0 {
                break;
            }
        }
        poll(&mut [PollFd::new(&ring, PollFlags::IN)], None)?;
        Ok(())
    }
}

/// Returns one round of a program that drives the card itself.
fn linked(mut port: Port, count: Count) -> impl FnMut() -> anyhow::Result<()> + Send {
    move || {
        loop {
            let packets = port.receive(|head| goes_back(head) && swap(head))?;
            count.add_packets(packets);
            if packets == 0 {
                break;
            }
        }
        port.sleep()
    }
}

fn attach(socket: &Path) -> anyhow::Result<(Session, Endpoint)> {
    let options = Options {
        name: "card".into(),
        receive_slots: SLOTS,
        transmit_slots: SLOTS,
        wait_strategy: WaitStrategy::Block,
        ipv4: Some(ADDRESS),
        ..Options::default()
    };
    let mut session = Session::attach(socket, &options)?;
    let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
    Ok((session, endpoint))
}

/// Returns one round of an application of a server.
fn served(
    mut session: Session,
    endpoint: Endpoint,
    count: Count,
) -> impl FnMut() -> anyhow::Result<()> + Send {
    let mut notifications = 0;
    // The packets of a batch that go back, one after the other, and their lengths.
    let (mut bytes, mut lens) = (Vec::new(), Vec::with_capacity(BATCH));
    move || {
        session.wait(None)?;
        loop {
            let packets = session.receiver().receive(QueuePair::FIRST, BATCH, |packet| {
                let packet = packet.contiguous().unwrap_or_default();
                if goes_back(packet) {
                    bytes.extend_from_slice(packet);
                    lens.push(packet.len());
                }
            })?;
            let mut rest = bytes.as_mut_slice();
            for len in lens.drain(..) {
                let (packet, later) = rest.split_at_mut(len);
                swap(packet);
                send(&mut session, endpoint, packet)?;
                rest = later;
            }
            bytes.clear();
            session.sender().flush()?;
            count.add_packets(packets);
            let sum = session.statistics().notifications;
            count.add_ipcs(sum - std::mem::replace(&mut notifications, sum));
            if packets == 0 {
                return Ok(());
            }
        }
    }
}

/// Sends a packet; waits while there is no room.
fn send(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> anyhow::Result<()> {
    loop {
        let sent = session.sender().send(endpoint, packet.len(), Meta::FULL, |parts| {
            if let [part] = parts {
                part.copy_from_slice(packet);
            }
        });
        match sent {
            Err(SendError::Full) => {
                session.sender().want_room(endpoint.queue_pair())?;
                session.wait(None)?;
            }
            sent => return Ok(sent?),
        }
    }
}

//! Connections of RoCEv2 against a hostile peer: never a panic, no access beyond a request's range, each request of
//! this side completes once and in its order, and each frame that is sent can be read.
//!
//! The input is a conversation of steps of three bytes: the kind, and two more. The packet of a peer follows its step,
//! from the base transport header on and without the invariant CRC, which this program computes. Flags set the packet's
//! number and its memory, because a random number is that of the next packet once in 2^24 times.
#![no_main]

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use towpath_packet::roce::{Path, Received, UDP_PORT, read_frame, seal};
use towpath_rdma::requester::{Work, WorkKind};
use towpath_rdma::responder::{MOST_MESSAGE_BYTES, Progress};
use towpath_rdma::{
    Access, Connection, Delivery, Host, NotCopied, NotReady, PROBE, Psn, Range, Refused, Timing,
};

const KEY: u32 = 7;
const MEMORY: u64 = 1 << 20;
const MTU: u32 = 256;
const TIMING: Timing =
    Timing { quiet: 2_500_000_000, dead: 10_000_000_000, not_ready: 1_000_000_000 };
const MOST_WORKS: usize = 64;
const HEADER_BYTES: usize = 42;

/// The packet's number is one near the next of the peer.
const NEXT: u8 = 1;
/// The packet's number is one near the oldest of this side without an acknowledgement.
const OLDEST: u8 = 2;
/// The packet names the exported memory.
const MEMORY_OF_THIS_SIDE: u8 = 4;
/// The packet has a full payload.
const FULL: u8 = 8;

/// This side's memory and queue.
#[derive(Default)]
struct Application {
    works: VecDeque<Work>,
    /// The range of the peer's last write.
    writing: Range,
    room: u8,
    revoked: bool,
    delivered: Option<Psn>,
}

impl Application {
    fn is_allowed(&self, range: Range) -> Result<(), Refused> {
        let end = range.address.checked_add(range.len).ok_or(Refused)?;
        if self.revoked || range.key != KEY || end > MEMORY { Err(Refused) } else { Ok(()) }
    }

    fn check_work(&self, id: u64, offset: u64, len: usize) {
        let work = self.works.iter().find(|work| work.id == id).expect("a request under way");
        assert!(offset + len as u64 <= work.bytes, "{work:?}: {len} bytes from {offset} on");
    }
}

impl Host for Application {
    fn check(&mut self, range: Range, access: Access) -> Result<(), Refused> {
        assert!(range.len > 0);
        self.is_allowed(range)?;
        if access == Access::Write {
            self.writing = range;
        }
        Ok(())
    }

    fn place(&mut self, range: Range, bytes: &[u8]) -> Result<(), NotCopied> {
        assert_eq!(range.len, bytes.len() as u64);
        let Range { key, address, len } = self.writing;
        let is_within = range.address >= address && range.address + range.len <= address + len;
        assert!(range.key == key && is_within, "{range:?} is not in {:?}", self.writing);
        Ok(self.is_allowed(range)?)
    }

    fn fetch(&mut self, range: Range, to: &mut [u8]) -> Result<(), NotCopied> {
        assert_eq!(range.len, to.len() as u64);
        to.fill(0x5a);
        Ok(self.is_allowed(range)?)
    }

    fn deliver(&mut self, psn: Psn, message: Delivery<'_>) -> Result<(), NotReady> {
        if let Delivery::Message(bytes) = message {
            assert!(bytes.len() <= MOST_MESSAGE_BYTES);
        }
        assert_ne!(self.delivered, Some(psn), "a message comes once");
        self.room = self.room.checked_sub(1).ok_or(NotReady)?;
        self.delivered = Some(psn);
        Ok(())
    }

    fn load(&mut self, id: u64, offset: u64, to: &mut [u8]) -> Result<(), NotCopied> {
        self.check_work(id, offset, to.len());
        to.fill(0xa5);
        Ok(())
    }

    fn store(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), NotCopied> {
        self.check_work(id, offset, bytes.len());
        if self.revoked { Err(NotCopied::Refused) } else { Ok(()) }
    }

    fn complete(&mut self, id: u64, _: Psn) {
        if id != PROBE {
            assert_eq!(self.works.pop_front().map(|work| work.id), Some(id));
        }
    }
}

struct Conversation {
    connection: Connection,
    application: Application,
    now: u64,
    next_id: u64,
}

fn path() -> Path {
    Path {
        source_mac: [2; 6],
        destination_mac: [4; 6],
        source: Ipv4Addr::new(10, 0, 0, 1).into(),
        destination: Ipv4Addr::new(10, 0, 0, 2).into(),
        source_port: 50_000,
        ecn: true,
    }
}

/// Returns a frame of the peer with this packet, and a CRC that fits.
fn frame_of(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 8, 0, 0x45, 2];
    let udp = (packet.len() + 12) as u16;
    frame.extend((udp + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0xc3, 0x50]);
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0; 2]);
    assert_eq!(frame.len(), HEADER_BYTES);
    frame.extend(packet);
    frame.extend([0; 4]);
    seal(&mut frame);
    frame
}

impl Conversation {
    fn new() -> Conversation {
        let progress = Progress { expected: Psn::new(0xff_fffe), messages: 0, writing: None };
        let first = (Psn::new(0xff_fff0), 4);
        Conversation {
            connection: Connection::new((path(), 17), MTU, first, progress, TIMING, 0),
            application: Application { room: 8, ..Application::default() },
            now: 0,
            next_id: 0,
        }
    }

    /// Receives a packet of the peer, changed as the flags say.
    fn receive(&mut self, flags: u8, packet: &[u8]) {
        let mut packet = packet.to_vec();
        // Seven back, and up to fifteen forward.
        let near = |psn: Psn| psn.plus(0xff_fff9).plus(u32::from(flags >> 4)).number();
        let psn = match flags {
            _ if flags & NEXT != 0 => Some(near(self.connection.progress().expected)),
            _ if flags & OLDEST != 0 => Some(near(self.connection.requester().oldest())),
            _ => None,
        };
        if let (Some(psn), Some(bytes)) = (psn, packet.get_mut(9..12)) {
            bytes.copy_from_slice(&psn.to_be_bytes()[1..]);
        }
        if flags & MEMORY_OF_THIS_SIDE != 0
            && let Some(reth) = packet.get_mut(12..28)
        {
            reth[..6].fill(0);
            reth[8..12].copy_from_slice(&KEY.to_be_bytes());
            reth[12..14].fill(0);
        }
        if flags & FULL != 0 {
            packet.resize(packet.len().max(12) + MTU as usize, 0);
        }
        let frame = frame_of(&packet);
        if let Ok(Received { segment, congestion, .. }) = read_frame(&frame) {
            let (connection, application) = (&mut self.connection, &mut self.application);
            // No copy of this application takes several calls.
            assert!(connection.receive(&segment, congestion, application, self.now));
        }
    }

    fn push(&mut self, kind: u8, size: u8) {
        if self.application.works.len() >= MOST_WORKS || self.connection.why_ended().is_some() {
            return;
        }
        let bytes = u64::from(size) * u64::from(size) * 4;
        let (kind, bytes) = match kind % 4 {
            0 => (WorkKind::Write, bytes),
            1 => (WorkKind::WriteWithValue(9), bytes),
            2 => (WorkKind::Read, bytes),
            _ => (WorkKind::Send, u64::from(size) % 65),
        };
        let work = Work { id: self.next_id, kind, bytes, key: 3, address: u64::MAX - 1000 };
        self.next_id += 1;
        self.application.works.push_back(work);
        self.connection.push(work, bytes, self.now);
    }

    fn transmit(&mut self, most: u8) {
        let mut frame = [0; 2048];
        for _ in 0..most {
            let (connection, application) = (&mut self.connection, &mut self.application);
            let Some(bytes) = connection.transmit(application, self.now, &mut frame) else { break };
            let sent = read_frame(&frame[..bytes]).expect("a frame that can be read");
            assert_eq!(sent.segment.bth.destination, 17);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut conversation = Conversation::new();
    let mut rest = bytes;
    while let Some(([step, a, b], after)) = rest.split_first_chunk() {
        rest = after;
        match step % 8 {
            4 => conversation.push(*a, *b),
            5 => conversation.now += u64::from(u16::from_be_bytes([*a, *b])) * 100_000,
            6 => conversation.transmit(*a % 64),
            7 => {
                conversation.application.room = *a;
                conversation.application.revoked = b & 3 == 3;
            }
            _ => {
                let (packet, after) = after.split_at(usize::from(*b).min(after.len()));
                rest = after;
                conversation.receive(*a, packet);
            }
        }
    }
});

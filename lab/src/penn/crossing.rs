//! PDUs across a device: from a PDU endpoint over a server and its TAP to a packet socket of the
//! kernel, and back. Both sides segment PDUs to an MTU of 1500 bytes and reassemble them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use towpath_client::{Options, Session};
use towpath_pdu::{
    Accepted, ETHERTYPE, Fragment, Limits, OVERHEAD_BYTES, PduEndpoint, Pieces, Reassembler,
};
use towpath_testkit::PacketSocket;

use super::pdus;
use crate::messages::{Amount, Moved, PATIENCE, Pace, add};
use crate::techniques::Waits;

const CHANNEL: u32 = 1;
/// The address of the packet socket's side.
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
/// The most PDUs in flight, and their bytes, unless two PDUs are longer: a TAP holds 500 frames for
/// its reader.
const WINDOW: u64 = 64;
const WINDOW_BYTES: usize = 128 << 10;
/// Buffers of the session, and fragments in its transmit queue: more than a window has.
const SLOTS: u32 = 1024;
/// Buffers of the packet socket, if the kernel grants them.
const SOCKET_BYTES: usize = 4 << 20;
/// The longest sleep while PDUs are in flight.
const GLANCE: Duration = Duration::from_millis(100);

/// The direction of a transfer, as the application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the application to the device.
    Writing,
    /// From the device to the application.
    Reading,
}

/// An application and a packet socket with a TAP between them, in one thread.
pub(super) struct Crossing {
    near: PduEndpoint,
    far: Far,
    waits: Waits,
    sum: u64,
}

impl Crossing {
    /// Attaches to a server, and opens a packet socket on the server's TAP.
    pub(super) fn new(socket: &Path, tap: &str, waits: Waits) -> anyhow::Result<Crossing> {
        let options = Options {
            name: "pdus".into(),
            transmit_slots: SLOTS,
            receive_slots: SLOTS,
            ..Options::default()
        };
        let session = Session::attach(socket, &options)?;
        let to = session.info().mac;
        let options = towpath_pdu::Options { ahead: SLOTS, ..Default::default() };
        let near = PduEndpoint::open(session, &options)?;
        let far = Far::new(tap, to.octets(), near.chunk_bytes())?;
        Ok(Crossing { near, far, waits, sum: 0 })
    }

    /// Returns the length of the longest PDU.
    pub(super) fn max_pdu_bytes(&self) -> usize {
        self.near.max_pdu_bytes()
    }

    /// Carries PDUs in one direction; returns when all have arrived.
    pub(super) fn run(
        &mut self,
        direction: Direction,
        pdu_bytes: usize,
        amount: Amount,
        bits_per_s: Option<f64>,
    ) -> anyhow::Result<Moved> {
        let window = WINDOW.min((WINDOW_BYTES / pdu_bytes) as u64).max(2);
        let pace = Pace::new(pdu_bytes, bits_per_s);
        let (mut sent, mut got, mut last) = (0_u64, 0_u64, pace.start);
        loop {
            let over = amount.is_sent(&pace, sent);
            if over && got == sent {
                std::hint::black_box(self.sum);
                return Ok(Moved { messages: got, took: pace.start.elapsed() });
            }
            let left = match amount {
                Amount::Messages(all) => all - sent,
                Amount::Time(_) if over => 0,
                Amount::Time(_) => u64::MAX,
            };
            let due = pace.due().saturating_sub(sent);
            let may = (window - (sent - got)).min(due).min(left);
            let before = sent + got;
            sent += self.send(direction, may, pdu_bytes)?;
            got += self.receive(direction, pdu_bytes)?;
            if sent + got > before {
                last = Instant::now();
                continue;
            }
            ensure!(last.elapsed() < PATIENCE, "{} PDUs did not arrive", sent - got);
            if self.waits == Waits::Blocks {
                self.sleep(direction, sent - got, &pace, sent)?;
            }
        }
    }

    /// Sends at most `most` PDUs; returns their number.
    fn send(&mut self, direction: Direction, most: u64, pdu_bytes: usize) -> anyhow::Result<u64> {
        if direction == Direction::Reading {
            (0..most).try_for_each(|number| self.far.send(pdu_bytes, number as u8))?;
            return Ok(most);
        }
        pdus::send(&mut self.near, (FAR, CHANNEL), most, pdu_bytes)
    }

    /// Receives the PDUs that have come, and returns their number.
    fn receive(&mut self, direction: Direction, pdu_bytes: usize) -> anyhow::Result<u64> {
        if direction == Direction::Writing {
            return self.far.receive(pdu_bytes, &mut self.sum);
        }
        let (mut got, mut sum, mut all_whole) = (0, self.sum, true);
        self.near.receive(256, |pdu| {
            all_whole &= pdu.len() == pdu_bytes;
            sum = pdu.parts().map(add).fold(sum, u64::wrapping_add);
            got += 1;
        })?;
        ensure!(all_whole, "a PDU has another length than was sent");
        self.sum = sum;
        Ok(got)
    }

    /// Sleeps until something arrives, or the next PDU is due.
    fn sleep(
        &mut self,
        direction: Direction,
        in_flight: u64,
        pace: &Pace,
        sent: u64,
    ) -> anyhow::Result<()> {
        let left = pace.left(sent).unwrap_or_default();
        if in_flight == 0 {
            thread::sleep(left.min(GLANCE));
            return Ok(());
        }
        let most = if pace.each_ns > 0.0 { left.min(GLANCE) } else { GLANCE };
        if most.is_zero() {
            return Ok(());
        }
        match direction {
            Direction::Reading => drop(self.near.wait(Some(most))?),
            Direction::Writing => self.far.wait(most),
        }
        Ok(())
    }
}

/// The kernel's side: a packet socket on the TAP.
struct Far {
    socket: PacketSocket,
    to: [u8; 6],
    chunk_bytes: usize,
    next_id: u32,
    reassembler: Reassembler,
    pdu: Vec<u8>,
    frame: Vec<u8>,
}

impl Far {
    fn new(tap: &str, to: [u8; 6], chunk_bytes: usize) -> anyhow::Result<Far> {
        let socket = PacketSocket::open(tap, ETHERTYPE)?;
        // Without the privilege for more, the kernel's limit applies.
        sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES))?;
        sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
        Ok(Far {
            socket,
            to,
            chunk_bytes,
            next_id: 0,
            reassembler: Reassembler::new(Limits::default()),
            pdu: Vec::new(),
            frame: vec![0; OVERHEAD_BYTES + chunk_bytes],
        })
    }

    /// Sends a PDU with a system call per fragment.
    fn send(&mut self, pdu_bytes: usize, fill: u8) -> anyhow::Result<()> {
        self.pdu.clear();
        self.pdu.resize(pdu_bytes, fill);
        let crc = crc32c::crc32c(&self.pdu);
        for (number, part) in self.pdu.chunks(self.chunk_bytes).enumerate() {
            let fragment = Fragment {
                destination: self.to.into(),
                source: FAR.into(),
                channel: CHANNEL,
                id: self.next_id,
                total: pdu_bytes as u32,
                offset: (number * self.chunk_bytes) as u32,
                len: part.len() as u16,
                crc,
            };
            let (headers, room) = self.frame.split_at_mut(OVERHEAD_BYTES);
            if let Some(headers) = headers.first_chunk_mut() {
                fragment.write(headers);
            }
            room[..part.len()].copy_from_slice(part);
            let start = Instant::now();
            while !self.socket.send(&self.frame[..OVERHEAD_BYTES + part.len()])? {
                ensure!(start.elapsed() < PATIENCE, "the interface's queue stays full");
                thread::yield_now();
            }
        }
        self.next_id = self.next_id.wrapping_add(1);
        Ok(())
    }

    /// Reads the frames that wait, with a system call each, and returns the number of PDUs.
    fn receive(&mut self, pdu_bytes: usize, sum: &mut u64) -> anyhow::Result<u64> {
        let (now, mut got) = (Instant::now(), 0);
        while let Some(len) = self.socket.receive(&mut self.frame)? {
            let frame = std::iter::once(&self.frame[..len]);
            let pdu = match self.reassembler.accept(now, frame.clone()) {
                Ok(Accepted::InPlace(fragment)) => {
                    let mut part = Pieces::after_headers(frame, fragment.len as usize);
                    part.next().unwrap_or_default()
                }
                Ok(Accepted::Reassembled(_, pdu)) => pdu,
                Ok(Accepted::Waits | Accepted::Queued(_)) => continue,
                Err(dropped) => anyhow::bail!("a fragment was dropped: {dropped}"),
            };
            ensure!(pdu.len() == pdu_bytes, "a PDU has another length than was sent");
            *sum = sum.wrapping_add(add(pdu));
            got += 1;
        }
        Ok(got)
    }

    /// Sleeps until a frame comes.
    fn wait(&self, most: Duration) {
        let timeout =
            Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
    }
}

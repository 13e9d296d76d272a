//! The data part of the device: segments frames, and reassembles them.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, ETHERNET_HEADER_BYTES, Info, Kick,
    MAX_PARTS, Meta, POOL_HEADROOM_BYTES, Packet, Received, SpaceId, Spaces,
};
use towpath_pdu::atm::{Accepted, Adaptation, Cell, Limits, Reassembler, Segmenter};

use super::link::{ReceivingEnd, SendingEnd};
use super::sizes::{CIRCUIT, DATA_BYTES, RECEIVE_CELLS, TRANSMIT_PACKETS};

/// The shortest frame of Ethernet, without its checksum.
const SHORTEST_BYTES: usize = 60;
/// Empty buffers that the device takes.
const BUFFERS: usize = 1024;

/// The queue of one end.
pub(super) struct CellQueue {
    info: Info,
    longest: usize,
    adaptation: Adaptation,
    to: SendingEnd,
    from: ReceivingEnd,
    /// AAL3/4: the tag of the next PDU.
    tag: u8,
    /// The frame that is segmented.
    frame: Vec<u8>,
    /// Packets whose last cell leaves at that time.
    leaving: VecDeque<(Instant, Completion)>,
    /// Cells that have arrived and are not reassembled.
    arrived: VecDeque<Cell>,
    reassembler: Reassembler,
    /// A received frame, which waits for buffers unless it is empty.
    received: Vec<u8>,
    buffers: VecDeque<(SpaceId, u32)>,
    counters: Counters,
}

impl CellQueue {
    pub(super) fn new(
        info: Info,
        longest: usize,
        adaptation: Adaptation,
        to: SendingEnd,
        from: ReceivingEnd,
    ) -> CellQueue {
        let mut reassembler = Reassembler::new(Limits {
            cells: RECEIVE_CELLS,
            pdu_bytes: longest,
            ..Limits::default()
        });
        reassembler.open(CIRCUIT, adaptation).expect("the first circuit");
        CellQueue {
            info,
            longest,
            adaptation,
            to,
            from,
            tag: 0,
            frame: Vec::with_capacity(longest),
            leaving: VecDeque::with_capacity(TRANSMIT_PACKETS),
            arrived: VecDeque::with_capacity(RECEIVE_CELLS),
            reassembler,
            received: Vec::with_capacity(longest),
            buffers: VecDeque::with_capacity(BUFFERS),
            counters: Counters::default(),
        }
    }

    /// Copies a packet to `frame`, and pads it. Returns `true` if the packet can be sent.
    fn fetch(&mut self, spaces: &Spaces, packet: &Packet<'_>) -> bool {
        let len: usize = packet.parts.iter().map(|part| part.len as usize).sum();
        let can_send = packet.parts.len() <= MAX_PARTS
            && (ETHERNET_HEADER_BYTES..=self.longest).contains(&len)
            && packet.tag.is_none()
            && packet.meta.is_full();
        if !can_send {
            return false;
        }
        self.frame.clear();
        self.frame.resize(len.max(SHORTEST_BYTES), 0);
        let mut at = 0;
        packet.parts.iter().all(|part| {
            let to = &mut self.frame[at..at + part.len as usize];
            at += to.len();
            spaces.copy_out(part.space, part.offset, to).is_ok()
        })
    }

    fn segmenter(&self, len: usize) -> Segmenter {
        let segmenter = match self.adaptation {
            Adaptation::Aal5 => Segmenter::aal5(CIRCUIT, len),
            Adaptation::Aal34 => Segmenter::aal34(CIRCUIT, 0, self.tag, len),
        };
        segmenter.expect("a frame is as long as a PDU may be")
    }

    /// Takes the cells that have arrived. The card loses those that find no memory.
    fn take_arrived(&mut self, now: Instant) {
        while let Some(cell) = self.from.next(now) {
            if self.arrived.len() + self.reassembler.held_cells() < RECEIVE_CELLS {
                self.arrived.push_back(cell);
            } else {
                self.from.lose();
            }
        }
    }

    /// Reassembles cells up to the end of a frame. Returns `true` if a frame is complete.
    fn reassemble(&mut self, now: Instant) -> bool {
        while let Some(cell) = self.arrived.pop_front() {
            match self.reassembler.accept(now, &cell) {
                Ok(Accepted::Complete(pdu)) if pdu.len() >= ETHERNET_HEADER_BYTES => {
                    self.received.clear();
                    self.received.resize(pdu.len(), 0);
                    pdu.copy_to(&mut self.received);
                    return true;
                }
                // The PDU is shorter than an Ethernet header: the device drops it. The reassembler
                // counts its own drops.
                Ok(Accepted::Complete(_)) => self.counters.rx_dropped += 1,
                Ok(Accepted::Waits) | Err(_) => {}
            }
        }
        false
    }

    /// Gives the received frame to the engine. Returns `true` if its buffers were enough.
    fn deliver(&mut self, spaces: &mut Spaces, out: &mut Vec<Received>) -> bool {
        let count = self.received.len().div_ceil(DATA_BYTES);
        if self.buffers.len() < count {
            return false;
        }
        let before = out.len();
        for (number, piece) in self.received.chunks(DATA_BYTES).enumerate() {
            let Some((space, buffer)) = self.buffers.pop_front() else { return false };
            let offset = buffer + POOL_HEADROOM_BYTES as u32;
            if spaces.copy_in(space, offset, piece).is_err() {
                // The server has removed the buffer's memory since.
                out.truncate(before);
                self.counters.rx_dropped += 1;
                self.received.clear();
                return true;
            }
            let len = piece.len() as u32;
            out.push(Received {
                continues: number + 1 < count,
                ..Received::whole(space, buffer, offset, len, Meta::FULL)
            });
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += self.received.len() as u64;
        self.received.clear();
        true
    }
}

impl DeviceQueue for CellQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let bytes = self.info.limits.rx_buffer_bytes as u32;
        let limits = self.info.limits;
        let room = BUFFERS - self.buffers.len();
        let good = |buffer: &&u32| {
            limits.is_aligned(**buffer) && spaces.is_writable(space, **buffer, bytes)
        };
        let before = self.buffers.len();
        self.buffers.extend(buffers.iter().take(room).take_while(good).map(|one| (space, *one)));
        self.buffers.len() - before
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.take_arrived(now);
        let mut packets = 0;
        while packets < budget {
            if self.received.is_empty() && !self.reassemble(now) || !self.deliver(spaces, out) {
                break;
            }
            packets += 1;
        }
        Ok(packets)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        for (number, packet) in packets.iter().enumerate() {
            if self.leaving.len() == TRANSMIT_PACKETS {
                return Ok(number);
            }
            if !self.fetch(spaces, packet) {
                self.counters.tx_dropped += 1;
                self.leaving.push_back((now, Completion::dropped(packet.token)));
                continue;
            }
            let mut cells = self.segmenter(self.frame.len());
            if !self.to.has_room(cells.remaining(), now) {
                return Ok(number);
            }
            let mut left = now;
            let frame = &self.frame;
            while let Some(cell) =
                cells.next_cell(|offset, to| to.copy_from_slice(&frame[offset..offset + to.len()]))
            {
                left = self.to.send(cell, now);
            }
            self.tag = self.tag.wrapping_add(1);
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += self.frame.len() as u64;
            self.leaving.push_back((left, Completion::sent(packet.token)));
        }
        Ok(packets.len())
    }

    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        let mut completed = 0;
        while completed < budget
            && let Some((_, completion)) = self.leaving.pop_front_if(|(left, _)| *left <= now)
        {
            out.push(completion);
            completed += 1;
        }
        Ok(completed)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: bool) -> Result<Armed, DeviceError> {
        Ok(Armed::Work)
    }

    /// Returns all empty buffers, and completes all packets in flight. The link carries their cells on.
    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..).map(|(_, buffer)| buffer));
        let now = Instant::now();
        self.leaving.iter_mut().for_each(|(left, _)| *left = now);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

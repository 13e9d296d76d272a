//! Packets to send.

use towpath_device::virtio::HEADER_BYTES;
use towpath_device::{Completion, Packet, PacketLimits, SHORTEST_FRAME_BYTES, Spaces};

use super::super::memory::ZEROS_AT;
use super::super::packets::{MOST_PARTS, PacketInFlight};
use super::super::ring::{MOST_ENTRIES, Piece};
use super::VirtioNetQueue;

/// The most descriptors of a packet: the header, its parts, and zeros behind a short frame.
const MOST_DESCRIPTORS: usize = MOST_PARTS + 2;

/// The pieces of a packet, before they are in the ring.
struct Pieces {
    all: [Piece; MOST_DESCRIPTORS],
    count: usize,
}

impl Pieces {
    fn push(&mut self, address: u64, len: u32) -> Option<()> {
        // The device may refuse a piece of no bytes, and stop.
        if len > 0 {
            *self.all.get_mut(self.count)? = Piece { address, len, is_written: false };
            self.count += 1;
        }
        Some(())
    }
}

impl VirtioNetQueue {
    /// Puts packets into the ring. Returns how many the device took, dropped ones included.
    pub(super) fn submit(&mut self, spaces: &Spaces, packets: &[Packet<'_>]) -> usize {
        let limits = PacketLimits::of(&self.parts.info, true, self.pool);
        let none = Piece { address: 0, len: 0, is_written: false };
        let mut made = Pieces { all: [none; MOST_DESCRIPTORS], count: 0 };
        let mut taken = 0;
        for packet in packets {
            if self.sending + self.done.len() >= usize::from(MOST_ENTRIES) {
                break;
            }
            let len = limits.len_of(packet);
            let described = len.and_then(|len| self.describe(spaces, packet, len, &mut made));
            let Some(len) = len.filter(|_| described.is_some()) else {
                self.counters.dropped();
                self.done.push_back(Completion::dropped(packet.token));
                taken += 1;
                continue;
            };
            let Some(head) = self.parts.tx.push(&made.all[..made.count]) else { break };
            let (token, len, number) = (packet.token, len as u32, self.next);
            self.in_flight[usize::from(head)] = PacketInFlight { token, len, number };
            self.next += 1;
            self.sending += 1;
            taken += 1;
        }
        taken
    }

    /// Makes the pieces of a packet of `len` bytes: a header without any work for the device, the parts, and
    /// zeros behind a short frame. `None` if the device cannot send it.
    fn describe(
        &self,
        spaces: &Spaces,
        packet: &Packet<'_>,
        len: usize,
        made: &mut Pieces,
    ) -> Option<()> {
        made.count = 0;
        let zeros = self.parts.rings.address() + ZEROS_AT as u64;
        made.push(zeros, HEADER_BYTES as u32)?;
        for part in packet.parts {
            let address = spaces.device_address(part.space, part.offset, part.len)?;
            made.push(address, part.len)?;
        }
        made.push(zeros, SHORTEST_FRAME_BYTES.saturating_sub(len) as u32)
    }

    /// Returns `true` if the ring has room for any packet.
    pub(super) fn has_room(&self) -> bool {
        self.parts.tx.room() >= MOST_DESCRIPTORS
            && self.sending + self.done.len() < usize::from(MOST_ENTRIES)
    }

    /// Moves the packets that the device has sent to `done`.
    pub(super) fn fetch_completions(&mut self) {
        loop {
            let used = match self.parts.tx.take() {
                Ok(Some(used)) => used,
                Ok(None) => return,
                Err(_) => {
                    self.is_wrong = true;
                    return;
                }
            };
            let PacketInFlight { token, len, .. } = self.in_flight[usize::from(used.head)];
            self.sending -= 1;
            let outcome = self.counters.sent(len as usize);
            self.done.push_back(Completion { token, outcome });
        }
    }

    /// Moves the packets that a reset has ended to `done`, in the order in which the device took them.
    pub(super) fn return_packets(&mut self) {
        let heads = self.parts.tx.heads();
        let mut ended: Vec<_> = heads.map(|head| self.in_flight[usize::from(head)]).collect();
        ended.sort_by_key(|one| one.number);
        self.done.extend(ended.iter().map(|one| Completion::returned(one.token)));
        self.sending = 0;
    }
}

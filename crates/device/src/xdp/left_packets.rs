//! The packets that wait in the sockets of an earlier server.
//!
//! A keeper holds copies of a server's sockets, so the kernel goes on receiving when the server is
//! killed. The next server needs sockets of its own, since a hardware queue has one memory. It copies
//! the packets that wait in the earlier ones, and has these closed. The kernel frees a hardware queue
//! only some RCU grace periods after that, and drops the packets that arrive meanwhile. So a thread
//! does this first, while the others of the start do everything else.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::net::sockopt;
use rustix::net::xdp::XDP_PGOFF_RX_RING;
use towpath_memory::{Mapping, SharedFile};

use super::ring::{CONTINUES, Consumer, Descriptor};
use super::socket::RING_ENTRIES;
use crate::{EarlierObjects, LARGE_FRAME_BYTES};

/// The name under which a keeper holds the socket of a hardware queue, before the queue's number.
pub(super) const SOCKET: &str = "device-socket-";
/// The name under which the store has the memory of a lane, before the lane's number.
const MEMORY: &str = "device-memory-";

/// The packets that waited, by hardware queues.
#[derive(Default)]
pub(super) struct LeftPackets(Mutex<Vec<(u32, Taken)>>);

/// The thread that takes the packets, and has the sockets closed.
pub(super) struct Taking(Option<JoinHandle<LeftPackets>>);

/// Packets that waited for some hardware queues.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) packets: VecDeque<Vec<u8>>,
    /// The number of descriptors, of a packet each or of a part of one, that were dropped.
    pub(super) dropped: u64,
}

struct LeftSocket {
    hardware: u32,
    socket: OwnedFd,
    memory: OwnedFd,
}

impl LeftPackets {
    /// Begins to take the packets that wait in the sockets of the last server that left any. Then
    /// closes the sockets of all earlier servers, and the keeper's copies of them.
    pub(super) fn begin(earlier: &mut EarlierObjects) -> io::Result<Taking> {
        let sockets = earlier.take_with_prefix(SOCKET);
        let Some(last) = sockets.iter().map(|(_, server, _)| *server).max() else {
            return Ok(Taking(None));
        };
        let (mut left, mut names) = (Vec::new(), Vec::new());
        let memories = || earlier.with_prefix(MEMORY).filter(|(_, server, _)| *server == last);
        let lanes = memories().count() as u32;
        for (number, server, socket) in sockets {
            names.push(format!("{SOCKET}{number}"));
            let Ok(hardware) = number.parse::<u32>() else { continue };
            let lane = hardware.checked_rem(lanes).map(|lane| lane.to_string());
            let memory = memories().find(|one| server == last && Some(one.0) == lane.as_deref());
            // A server that was killed during its start left no memory, and no packet arrived.
            let Some((_, _, memory)) = memory else { continue };
            left.push(LeftSocket { hardware, socket, memory: memory.try_clone_to_owned()? });
        }
        let (keeper, drops) = (earlier.keeper().cloned(), earlier.is_after_crash());
        Ok(Taking(Some(std::thread::spawn(move || {
            let taken = left.into_iter().map(|one| one.take(drops)).collect();
            // A keeper that does not answer has the server fail later, when it binds its sockets.
            let _ = keeper.map_or(Ok(()), |keeper| keeper.release_sockets(&names));
            LeftPackets(Mutex::new(taken))
        }))))
    }

    /// Returns the packets that waited for these hardware queues.
    pub(super) fn take(&self, hardware: &[u32]) -> Taken {
        let mut all = Taken::default();
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, taken) in left.extract_if(.., |(number, _)| hardware.contains(number)) {
            all.packets.extend(taken.packets);
            all.dropped += taken.dropped;
        }
        all
    }
}

impl Taking {
    /// Waits for the thread.
    pub(super) fn finish(self) -> LeftPackets {
        let joined = self.0.map(JoinHandle::join).transpose();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap_or_default()
    }
}

impl LeftSocket {
    /// Takes the packets that wait, or drops them. Closes this process's copy of the socket.
    fn take(self, drops: bool) -> (u32, Taken) {
        let mut taken = Taken::default();
        // A kernel before Linux 6.4 maps no ring of a bound socket: what waits is lost.
        if let Ok(ring) = ring(self.socket.as_fd()) {
            let memory = if drops { None } else { map(self.memory).ok() };
            copy_packets(ring, memory.as_ref(), &mut taken);
        }
        (self.hardware, taken)
    }
}

/// Maps the memory of the earlier server's packets.
fn map(memory: OwnedFd) -> io::Result<Mapping> {
    SharedFile::adopt(memory)?.map_readable()
}

/// Maps the ring of a socket's received packets.
fn ring(socket: BorrowedFd<'_>) -> io::Result<Consumer<Descriptor>> {
    let offsets = sockopt::xdp_mmap_offsets(socket)?;
    Consumer::map(socket, XDP_PGOFF_RX_RING, offsets.rx, RING_ENTRIES)
}

/// Copies the packets in a ring out of their memory. Drops a packet that cannot be read, and all
/// packets without `memory`.
fn copy_packets(mut ring: Consumer<Descriptor>, memory: Option<&Mapping>, taken: &mut Taken) {
    let (mut packet, mut parts, mut is_whole) = (Vec::new(), 0, true);
    for ahead in 0..ring.available(RING_ENTRIES) {
        let part = ring.peek(ahead);
        parts += 1;
        is_whole &= memory.is_some_and(|memory| append(memory, part, &mut packet));
        if part.options & CONTINUES == 0 {
            let packet = std::mem::take(&mut packet);
            match std::mem::replace(&mut is_whole, true) {
                true => taken.packets.push_back(packet),
                false => taken.dropped += parts,
            }
            parts = 0;
        }
    }
    taken.dropped += parts;
}

/// Appends a part of a packet. Returns `false` if it is outside of the memory, or if the packet is
/// longer than any.
fn append(memory: &Mapping, part: Descriptor, packet: &mut Vec<u8>) -> bool {
    let from = packet.len();
    let Ok(at) = usize::try_from(part.address) else { return false };
    if from + part.len as usize > LARGE_FRAME_BYTES {
        return false;
    }
    packet.resize(from + part.len as usize, 0);
    memory.copy_out(at, &mut packet[from..])
}

#[cfg(test)]
mod tests {
    use towpath_memory::{PAGE_BYTES, Region};

    use super::*;

    #[test]
    fn parts_outside_of_the_memory_and_long_packets_are_dropped() {
        let mut region = Region::private(PAGE_BYTES).unwrap();
        assert!(region.copy_in(256, b"packet"));
        let memory = region.mapping().clone();
        let part = |address, len| Descriptor { address, len, options: 0 };
        let mut packet = Vec::new();
        assert!(append(&memory, part(256, 4), &mut packet));
        assert!(append(&memory, part(260, 2), &mut packet));
        assert_eq!(packet, b"packet");
        for (address, len) in [(PAGE_BYTES as u64, 1), (u64::MAX, 1), (256, u32::MAX)] {
            assert!(!append(&memory, part(address, len), &mut Vec::new()), "{address}, {len}");
        }
        let mut longest = vec![0; LARGE_FRAME_BYTES];
        assert!(!append(&memory, part(0, 1), &mut longest));
    }
}

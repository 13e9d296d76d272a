//! The sockets that an earlier server left.
//!
//! A keeper holds copies of a server's sockets, so the kernel goes on receiving when the server is
//! killed. The next server goes on with them ([`kept`](super::kept)) if it can. If it cannot, it needs
//! sockets of its own, since a hardware queue has one memory: it copies the packets that wait in the
//! earlier ones, and has these closed. The kernel frees a hardware queue only some RCU grace periods
//! after that, and drops the packets that arrive meanwhile. So a thread does this first, while the
//! others of the start do everything else.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::net::sockopt;
use rustix::net::xdp::XDP_PGOFF_RX_RING;
use towpath_memory::{Mapping, SharedFile};

use super::kept::{Kept, LeftSocket};
use super::ring::{CONTINUES, Consumer, Descriptor};
use super::socket::{EARLIER_RX_ENTRIES, RX_ENTRIES};
use crate::{EarlierObjects, Keeper, LARGE_FRAME_BYTES};

/// The name under which a keeper holds the socket of a hardware queue, before the queue's number.
pub(super) const SOCKET: &str = "device-socket-";
/// The name under which a keeper holds the ledger of a lane, before the lane's number.
pub(super) const LEDGER: &str = "device-ledger-";
/// The name under which a keeper holds the memory of a lane, before the lane's number.
pub(super) const MEMORY: &str = "device-umem-";
/// The same without the last `-`.
pub(super) const MEMORY_NAME: &str = MEMORY.split_at(MEMORY.len() - 1).0;
/// The name that servers with rings of [`EARLIER_RX_ENTRIES`] use. Such a server would take the positions of a longer
/// ring for positions of a short ring, and deliver stale packets. If the server finds no memory under this name, it
/// only closes the sockets.
const EARLIER_MEMORY: &str = "device-memory-";

/// The sockets of the last server that left any, with their memory and their ledger.
pub(super) struct LeftSockets {
    sockets: Vec<LeftSocket>,
    /// The names of the sockets of all earlier servers.
    names: Vec<String>,
    /// The ledger of each lane, if there is one.
    ledgers: Vec<Option<OwnedFd>>,
    keeper: Option<Arc<dyn Keeper>>,
    /// `true` if their packets are dropped, because one of them may have made that server crash.
    drops: bool,
}

/// The packets that waited, by hardware queues.
#[derive(Default)]
pub(super) struct LeftPackets(Mutex<Vec<(u32, Taken)>>);

/// The thread that takes the packets, and has the sockets closed.
pub(super) struct Taking(JoinHandle<LeftPackets>);

/// Packets that waited for some hardware queues.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) packets: VecDeque<Vec<u8>>,
    /// The number of descriptors, of a packet each or of a part of one, that were dropped.
    pub(super) dropped: u64,
}

impl LeftSockets {
    /// Takes the sockets of all earlier servers out of what they left; `None` if there are none.
    pub(super) fn find(earlier: &mut EarlierObjects) -> io::Result<Option<LeftSockets>> {
        let sockets = earlier.take_with_prefix(SOCKET);
        let Some(last) = sockets.iter().map(|(_, server, _)| *server).max() else {
            return Ok(None);
        };
        let (mut left, mut names) = (Vec::new(), Vec::new());
        let of_last = |prefix| earlier.with_prefix(prefix).filter(|(_, server, _)| *server == last);
        let memories = || of_last(MEMORY).chain(of_last(EARLIER_MEMORY));
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
        let ledger = |lane: u32| {
            let one = of_last(LEDGER).find(|(number, _, _)| *number == lane.to_string());
            one.map(|(_, _, ledger)| ledger.try_clone_to_owned()).transpose()
        };
        let ledgers = (0..lanes).map(ledger).collect::<io::Result<_>>()?;
        let (keeper, drops) = (earlier.keeper().cloned(), earlier.is_after_crash());
        Ok(Some(LeftSockets { sockets: left, names, ledgers, keeper, drops }))
    }

    /// Returns `true` if these are the sockets of so many hardware queues and lanes, with ledgers.
    pub(super) fn are_whole(&self, queues: u32, lanes: u32) -> bool {
        let mut numbers: Vec<u32> = self.sockets.iter().map(|one| one.hardware).collect();
        numbers.sort_unstable();
        numbers.into_iter().eq(0..queues)
            && self.ledgers.len() == lanes as usize
            && self.ledgers.iter().all(Option::is_some)
    }

    /// Returns what each lane can go on with.
    pub(super) fn by_lanes(self) -> Vec<Kept> {
        let lanes = self.ledgers.len().max(1) as u32;
        let mut all: Vec<Kept> = Vec::new();
        for ledger in self.ledgers.into_iter().flatten() {
            all.push(Kept::new(ledger, self.drops));
        }
        for one in self.sockets {
            if let Some(kept) = all.get_mut((one.hardware % lanes) as usize) {
                kept.sockets.push(one);
            }
        }
        all
    }

    /// Begins to take the packets that wait. Then closes the sockets, and the keeper's copies.
    pub(super) fn release(self) -> Taking {
        Taking(std::thread::spawn(move || {
            let taken = self.sockets.into_iter().map(|one| take(one, self.drops)).collect();
            // A keeper that does not answer has the server fail later, when it binds its sockets.
            let _ = self.keeper.map_or(Ok(()), |keeper| keeper.release_sockets(&self.names));
            LeftPackets(Mutex::new(taken))
        }))
    }
}

impl LeftPackets {
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

    /// Takes the packets that wait in these sockets, and closes this process's copies of them.
    pub(super) fn add(&self, kept: Kept) {
        let taken = kept.sockets.into_iter().map(|one| take(one, kept.drops));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
    }
}

impl Taking {
    /// Waits for the thread.
    pub(super) fn finish(self) -> LeftPackets {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Takes the packets that wait in a socket, or drops them. Closes this process's copy of the socket.
fn take(left: LeftSocket, drops: bool) -> (u32, Taken) {
    let mut taken = Taken::default();
    // A kernel before Linux 6.4 maps no ring of a bound socket: what waits is lost.
    if let Ok(ring) = ring(left.socket.as_fd()) {
        let memory = if drops { None } else { map(left.memory).ok() };
        copy_packets(ring, memory.as_ref(), &mut taken);
    }
    (left.hardware, taken)
}

/// Maps the memory of the earlier server's packets.
fn map(memory: OwnedFd) -> io::Result<Mapping> {
    SharedFile::adopt(memory)?.map_readable()
}

/// Maps the ring of a socket's received packets.
fn ring(socket: BorrowedFd<'_>) -> io::Result<Consumer<Descriptor>> {
    let offsets = sockopt::xdp_mmap_offsets(socket)?;
    let map = |entries| Consumer::map(socket, XDP_PGOFF_RX_RING, offsets.rx, entries);
    // The kernel refuses to map more entries than the ring has.
    map(RX_ENTRIES).or_else(|_| map(EARLIER_RX_ENTRIES))
}

/// Copies the packets in a ring out of their memory. Drops a packet that cannot be read, and all
/// packets without `memory`.
fn copy_packets(mut ring: Consumer<Descriptor>, memory: Option<&Mapping>, taken: &mut Taken) {
    let (mut packet, mut parts, mut is_whole) = (Vec::new(), 0, true);
    for ahead in 0..ring.available(RX_ENTRIES) {
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

    /// Returns what a server with one hardware queue leaves, with its memory under a name.
    fn left(memory: &str) -> EarlierObjects {
        let mut earlier = EarlierObjects::default();
        for name in ["device-socket-0", "device-ledger-0", memory] {
            earlier.add(name, 3, io::pipe().unwrap().0.into());
        }
        earlier
    }

    #[test]
    fn memory_is_found_by_both_names() {
        for name in [&format!("{MEMORY}0"), "device-memory-0"] {
            let sockets = LeftSockets::find(&mut left(name)).unwrap().unwrap();
            assert_eq!(sockets.sockets.len(), 1, "{name}");
            assert!(sockets.are_whole(1, 1), "{name}");
        }
    }

    /// A server whose rings are shorter finds no memory, and so no packets. It closes the sockets.
    #[test]
    fn an_earlier_version_does_not_find_the_memory() {
        let mut earlier = left(&format!("{MEMORY_NAME}-0"));
        assert_eq!(earlier.with_prefix("device-memory-").count(), 0);
        let none = LeftSockets::find(&mut left("device-another-0")).unwrap().unwrap();
        assert_eq!(
            (none.sockets.len(), none.names.as_slice()),
            (0, &["device-socket-0".to_owned()][..])
        );
        assert!(!none.are_whole(1, 1));
        assert!(LeftSockets::find(&mut earlier).unwrap().unwrap().are_whole(1, 1));
    }
}

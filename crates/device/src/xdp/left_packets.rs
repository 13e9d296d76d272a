//! The packets that wait in the sockets of an earlier server.
//!
//! A keeper holds copies of a server's sockets, so the kernel goes on receiving when the server is
//! killed. The next server needs sockets of its own, since a hardware queue has one memory. Before it
//! has the earlier ones closed, it copies the packets that wait in them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// The sockets that an earlier server left, with their memory.
#[derive(Default)]
pub(super) struct LeftPackets(Mutex<Vec<LeftSocket>>);

struct LeftSocket {
    hardware: u32,
    socket: OwnedFd,
    memory: OwnedFd,
}

impl LeftPackets {
    /// Finds the sockets of the last server that left any, with their memory.
    pub(super) fn find(earlier: &EarlierObjects) -> io::Result<LeftPackets> {
        let last = earlier.with_prefix(SOCKET).map(|(_, server, _)| server).max();
        let Some(last) = last.filter(|_| !earlier.is_after_crash()) else {
            return Ok(LeftPackets::default());
        };
        let memories = || earlier.with_prefix(MEMORY).filter(|(_, server, _)| *server == last);
        let lanes = memories().count() as u32;
        let mut left = Vec::new();
        for (number, _, socket) in earlier.with_prefix(SOCKET).filter(|one| one.1 == last) {
            let Ok(hardware) = number.parse::<u32>() else { continue };
            let lane = hardware.checked_rem(lanes).map(|lane| lane.to_string());
            let memory = memories().find(|one| Some(one.0) == lane.as_deref());
            // A server that was killed during its start left no memory, and no packet arrived.
            let Some((_, _, memory)) = memory else { continue };
            let (socket, memory) = (socket.try_clone_to_owned()?, memory.try_clone_to_owned()?);
            left.push(LeftSocket { hardware, socket, memory });
        }
        Ok(LeftPackets(Mutex::new(left)))
    }

    /// Takes the packets that wait for these hardware queues, and closes this process's copies of
    /// their sockets.
    pub(super) fn take(&self, hardware: &[u32]) -> VecDeque<Vec<u8>> {
        let mut packets = VecDeque::new();
        for left in self.left().extract_if(.., |one| hardware.contains(&one.hardware)) {
            // A packet that cannot be read, and those behind it, are lost.
            let _ = map(left.memory)
                .and_then(|memory| copy_packets(left.socket.as_fd(), &memory, &mut packets));
        }
        packets
    }

    fn left(&self) -> MutexGuard<'_, Vec<LeftSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maps the memory of the earlier server's packets.
fn map(memory: OwnedFd) -> io::Result<Mapping> {
    SharedFile::adopt(memory)?.map_readable()
}

/// Copies the packets in a socket's ring.
fn copy_packets(
    socket: BorrowedFd<'_>,
    memory: &Mapping,
    packets: &mut VecDeque<Vec<u8>>,
) -> io::Result<()> {
    let offsets = sockopt::xdp_mmap_offsets(socket)?;
    // Linux 6.4; earlier kernels map no ring of a bound socket.
    let mut ring =
        Consumer::<Descriptor>::map(socket, XDP_PGOFF_RX_RING, offsets.rx, RING_ENTRIES)?;
    let mut packet = Vec::new();
    for ahead in 0..ring.available(RING_ENTRIES) {
        let part = ring.peek(ahead);
        let from = packet.len();
        let at = usize::try_from(part.address).map_err(|_| io::ErrorKind::InvalidData)?;
        if from + part.len as usize > LARGE_FRAME_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        packet.resize(from + part.len as usize, 0);
        if !memory.copy_out(at, &mut packet[from..]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if part.options & CONTINUES == 0 {
            packets.push_back(std::mem::take(&mut packet));
        }
    }
    Ok(())
}

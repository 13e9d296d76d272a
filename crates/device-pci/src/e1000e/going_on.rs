//! What an earlier server left of a running card, and whether this one can go on with it.
//!
//! A keeper holds the open device with its interrupts, the memory of the packets, the rings, and the ledger of
//! the receive buffers. So the device goes on when the server is killed: it receives into these memories, and
//! sends what it was told to. The next server waits until it has sent all, since the engine sends again
//! what was in flight, and the sessions' memories are mapped anew. Then it goes on with both rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use towpath_device::{EarlierObjects, Keeper, PacketMemory};
use towpath_memory::Region;

use super::card::Card;
use super::descriptor;
use super::ledger::{Header, Opened, RingLedger};
use super::memory::{RING_ENTRIES, SharedRings};
use super::names::{QUEUE_STRIDE, RDT, TDH, TDT};
use super::queue::{RX_BUFFER_BYTES, rings_at};

/// The names under which a keeper holds these, before the queue's number. The memory of the packets is the
/// engine's.
const RINGS: &str = "device-card-rings-";
const LEDGER: &str = "device-card-ledger-";
const MEMORY: &str = "device-memory-";

/// The longest wait for packets that an earlier server told the device to send, at 1 Gbit/s: 512 of 1 500 bytes take
/// 6 ms for each queue.
const SENDING_LIMIT: Duration = Duration::from_millis(20);

/// A queue with which this server goes on.
pub(super) struct GoingOn {
    pub(super) header: Header,
    pub(super) shared: SharedRings,
    pub(super) ledger: RingLedger,
    pub(super) files: Files,
    /// The file of the memory of the packets.
    pub(super) memory: OwnedFd,
    /// The tails of both rings. The device could return others later.
    pub(super) rx_tail: u32,
    pub(super) tx_tail: u32,
    /// The buffers that the device has, in ascending order.
    pub(super) buffers: Vec<u32>,
    /// `true` if the packets that wait are dropped, because one of them may have made the earlier
    /// server crash.
    pub(super) drops: bool,
}

/// The files of rings and ledger, which a keeper can hold.
pub(super) struct Files {
    pub(super) rings: OwnedFd,
    pub(super) ledger: OwnedFd,
}

impl Files {
    /// Has a keeper hold the files of a queue, and none of earlier ones. The engine's memory follows later: a server that
    /// finds no memory does not go on.
    pub(super) fn replace(&self, keeper: &dyn Keeper, queue: u32) -> io::Result<()> {
        keeper.release_sockets(&[LEDGER, RINGS, MEMORY].map(|name| of(name, queue)))?;
        keeper.hold_socket(&of(RINGS, queue), self.rings.as_fd())?;
        // A next server goes on with the rings only once it finds a ledger.
        keeper.hold_socket(&of(LEDGER, queue), self.ledger.as_fd())
    }

    /// Has a keeper hold the files of an earlier server, with the memory of the packets, for this one.
    pub(super) fn hold_again(
        &self,
        keeper: &dyn Keeper,
        queue: u32,
        memory: BorrowedFd<'_>,
    ) -> io::Result<()> {
        keeper.hold_socket(&of(MEMORY, queue), memory)?;
        keeper.hold_socket(&of(RINGS, queue), self.rings.as_fd())?;
        keeper.hold_socket(&of(LEDGER, queue), self.ledger.as_fd())
    }
}

/// Returns the name of an object of a queue.
fn of(name: &str, queue: u32) -> String {
    format!("{name}{queue}")
}

impl GoingOn {
    /// Returns the queues of an earlier server's engines in their order, if the running card can go on with all of them;
    /// none otherwise. Waits until the card has sent what that server told it to.
    pub(super) fn find(
        earlier: &EarlierObjects,
        card: &Card,
        opened: Opened,
        queues: usize,
    ) -> io::Result<Vec<GoingOn>> {
        let queues = 0..queues as u32;
        // The server may have had more queues.
        if earlier.copy(&of(RINGS, queues.end))?.is_some() {
            return Ok(Vec::new());
        }
        let until = Instant::now() + SENDING_LIMIT * 1000 / card.megabits().clamp(10, 1000);
        let find = |queue| GoingOn::find_one(earlier, card, opened, queue, until);
        let found: io::Result<Option<Vec<_>>> = queues.map(find).collect();
        Ok(found?.unwrap_or_default())
    }

    fn find_one(
        earlier: &EarlierObjects,
        card: &Card,
        opened: Opened,
        queue: u32,
        until: Instant,
    ) -> io::Result<Option<GoingOn>> {
        let [rings, ledger, memory] =
            [RINGS, LEDGER, MEMORY].map(|name| earlier.copy(&of(name, queue)));
        let (Some(rings), Some(ledger), Some(memory)) = (rings?, ledger?, memory?) else {
            return Ok(None);
        };
        let Some((ledger, header, ledger_file)) = RingLedger::of_earlier(ledger)? else {
            return Ok(None);
        };
        let Some((shared, rings)) = SharedRings::of_earlier(rings)? else { return Ok(None) };
        let [_, (rings_address, _)] = header.memories;
        let [rx, tx] = rings_at(rings_address);
        if header.opened != opened || !card.runs_with(queue, rx, tx) {
            return Ok(None);
        }
        let Some(tx_tail) = tail_after_all(card, queue, &shared, until) else { return Ok(None) };
        let rx_tail = card.registers.read(RDT.at(queue, QUEUE_STRIDE));
        let Some(buffers) = buffers(&ledger, rx_tail, header.packets.pool_bytes) else {
            return Ok(None);
        };
        let files = Files { rings, ledger: ledger_file };
        let drops = earlier.is_after_crash();
        Ok(Some(GoingOn {
            header,
            shared,
            ledger,
            files,
            memory,
            rx_tail,
            tx_tail,
            buffers,
            drops,
        }))
    }
}

impl GoingOn {
    /// Returns `true` if the memory of the packets has the sizes that the engine wants.
    pub(super) fn has_memory(&self, wanted: PacketMemory) -> io::Result<bool> {
        let [(_, mapped_bytes), _] = self.header.memories;
        let file_bytes = rustix::fs::fstat(&self.memory)?.st_size as u64;
        let is_whole = Region::is_file_of(&self.memory, wanted.bytes);
        Ok(is_whole && file_bytes == mapped_bytes && self.header.packets == wanted)
    }
}

/// Returns the tail of the transmit ring, once the device has sent all that it was told to; `None` if it has not in time.
fn tail_after_all(card: &Card, queue: u32, shared: &SharedRings, until: Instant) -> Option<u32> {
    let tail = card.registers.read(TDT.at(queue, QUEUE_STRIDE));
    if tail >= RING_ENTRIES {
        return None;
    }
    // The head moves when the device fetches a descriptor, and the device writes the last one of a packet when
    // it has fetched the packet.
    let last = shared.tx.after(tail, RING_ENTRIES - 1);
    loop {
        let words = shared.tx.fetch(last);
        let is_written = words == [0, 0] || descriptor::is_sent(words[1]);
        if is_written && card.registers.read(TDH.at(queue, QUEUE_STRIDE)) == tail {
            return Some(tail);
        }
        if Instant::now() > until {
            return None;
        }
        sleep(Duration::from_micros(100));
    }
}

/// Returns the buffers that the device has, in ascending order; `None` if they are not those of a ledger: in the
/// pool, and each in one descriptor.
fn buffers(ledger: &RingLedger, tail: u32, pool_bytes: usize) -> Option<Vec<u32>> {
    let (oldest, _) = ledger.oldest();
    if tail >= RING_ENTRIES || oldest >= RING_ENTRIES {
        return None;
    }
    let held = (tail + RING_ENTRIES - oldest) % RING_ENTRIES;
    let index = |ahead| (oldest + ahead) % RING_ENTRIES;
    let mut buffers: Vec<_> = (0..held).map(|ahead| ledger.buffer(index(ahead))).collect();
    buffers.sort_unstable();
    let are_apart = buffers.windows(2).all(|two| two[0] != two[1]);
    let is_one = |buffer: &u32| buffer.is_multiple_of(RX_BUFFER_BYTES as u32);
    let end = buffers.last().map_or(0, |last| *last as usize + RX_BUFFER_BYTES);
    (are_apart && buffers.iter().all(is_one) && end <= pool_bytes).then_some(buffers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_has_the_buffers_from_the_oldest_to_the_tail() {
        let opened = Opened { mtu: 1500, has_one_interrupt: false };
        let packets = PacketMemory::default();
        let header = Header { mac: [0; 6], opened, packets, memories: [(0, 0); 2] };
        let (mut ledger, _) = RingLedger::new(&header).unwrap();
        for (index, buffer) in [(510, 4096), (511, 0), (0, 8192), (1, 2048)] {
            ledger.set_buffer(index, buffer);
        }
        ledger.set_oldest(510, false);
        assert_eq!(buffers(&ledger, 2, 10240), Some(vec![0, 2048, 4096, 8192]));
        assert_eq!(buffers(&ledger, 0, 10240), Some(vec![0, 4096]));
        assert_eq!(buffers(&ledger, 510, 0), Some(vec![]));
        assert_eq!(buffers(&ledger, 2, 10239), None, "beyond the memory");
        assert_eq!(buffers(&ledger, 3, 10240), None, "a buffer twice");
        assert_eq!(buffers(&ledger, 512, 10240), None);
        ledger.set_buffer(0, 8193);
        assert_eq!(buffers(&ledger, 1, 1 << 20), None, "within a buffer");
        ledger.set_oldest(512, false);
        assert_eq!(buffers(&ledger, 2, 10240), None);
    }
}

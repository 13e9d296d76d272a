//! Shared rings, as of U-Net: buffers stay where the card has put the packets, both processes reach them, and
//! rings in shared memory carry their numbers. Each packet costs a notification (a write of an eventfd), whether
//! the other side is awake or not.

use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustix::io::Errno;
use towpath_memory::{SharedFile, own_words, peer_words};
use towpath_queue::spsc::{Observed, Published};
use towpath_queue::{OwnWords, PeerWords};

use super::ends::{Ends, LINE_WORDS, notify};
use crate::card::count::Count;
use crate::card::packet::{goes_back, swap};
use crate::card::port::{BATCH, BUFFERS, HEAD_BYTES, Port};

const _: () = assert!(BUFFERS.is_power_of_two());
/// The bit of a slot that asks the driver to send the packet.
const IS_SENT: u64 = 1 << 63;
/// Buffers that the application gives back without a notification. The card has the rest of them, or the driver
/// is notified.
const UNREPORTED: u32 = BUFFERS / 4;

/// The end of a ring that one process writes.
struct Writer {
    index: Published,
    slots: OwnWords,
}

impl Writer {
    fn new(file: &SharedFile) -> anyhow::Result<Writer> {
        let mut words = own_words(file.map_writable()?);
        let index = Published::resume(words.split_off_front(LINE_WORDS));
        Ok(Writer { index, slots: words })
    }

    fn push(&mut self, buffer: u32, len: u32, flags: u64) {
        let slot = self.index.now() % BUFFERS;
        self.slots.store(slot as usize, flags | u64::from(len) << 32 | u64::from(buffer));
        self.index.advance(1);
        self.index.publish();
    }
}

/// The other end.
struct Reader {
    index: Observed,
    slots: PeerWords,
    taken: u32,
}

impl Reader {
    fn new(file: &SharedFile) -> anyhow::Result<Reader> {
        let words = peer_words(&Arc::new(file.map_readable()?));
        let index = Observed::new(words.part(0, LINE_WORDS), 0);
        Ok(Reader { index, slots: words.part(LINE_WORDS, BUFFERS as usize), taken: 0 })
    }

    /// Returns the next buffer, its packet's length, and whether that is to be sent.
    fn pop(&mut self) -> anyhow::Result<Option<(u32, u32, bool)>> {
        if self.taken == self.index.seen() {
            let limit = self.taken.wrapping_add(BUFFERS);
            let seen = self.index.observe(limit);
            if seen.ok().context("an index out of its range")? == self.taken {
                return Ok(None);
            }
        }
        let slot = self.slots.fetch((self.taken % BUFFERS) as usize);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some((slot as u32, ((slot & !IS_SENT) >> 32) as u32, slot & IS_SENT != 0)))
    }
}

/// Returns one round of the driver.
pub(super) fn driver(
    ends: Ends,
    mut port: Port,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<()>> {
    let (mut ring, mut returned) = (Writer::new(&ends.driver)?, Reader::new(&ends.application)?);
    let (mut taken, mut back) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    Ok(move || {
        let mut work = port.take(&mut taken)?;
        for &(buffer, len) in &taken {
            ring.push(buffer, len, 0);
            notify(&ends.application_bell)?;
        }
        while let Some((buffer, len, is_sent)) = returned.pop()? {
            if is_sent {
                back.push((buffer, len));
            } else {
                port.complete(buffer);
            }
            if back.len() == BATCH {
                port.send_from(&back)?;
                back.clear();
            }
            work += 1;
        }
        port.send_from(&back)?;
        back.clear();
        port.refill_in_batches()?;
        if work > 0 {
            return Ok(());
        }
        port.sleep_beside(Some(ends.driver_bell.as_fd()))?;
        match rustix::io::read(&ends.driver_bell, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

/// Returns one round of the application.
pub(super) fn application(
    ends: Ends,
    count: Count,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<()>> {
    let (mut ring, mut received) = (Writer::new(&ends.application)?, Reader::new(&ends.driver)?);
    let mut memory = ends.packets.map_writable()?;
    let mut unreported = 0;
    Ok(move || {
        rustix::io::read(&ends.application_bell, &mut [0_u8; 8])?;
        let (mut packets, mut notifications) = (0, 0);
        while let Some((buffer, len, _)) = received.pop()? {
            let mut head = [0; HEAD_BYTES];
            let is_inside = memory.mapping().copy_out(buffer as usize, &mut head);
            ensure!(is_inside, "a buffer outside of the memory");
            let sends =
                goes_back(&head) && swap(&mut head) && memory.copy_in(buffer as usize, &head);
            ring.push(buffer, len, if sends { IS_SENT } else { 0 });
            unreported += 1;
            if sends || unreported == UNREPORTED {
                notify(&ends.driver_bell)?;
                notifications += 1;
                unreported = 0;
            }
            packets += 1;
        }
        count.add_packets(packets);
        // The driver wrote the eventfd once per packet.
        count.add_ipcs(packets as u64 + notifications);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::styles::ends::WORDS_BYTES as BYTES;

    #[test]
    fn a_ring_carries_each_buffer_once() {
        let file = SharedFile::create("ring", BYTES).unwrap();
        let (mut writer, mut reader) = (Writer::new(&file).unwrap(), Reader::new(&file).unwrap());
        for round in 0..3 {
            assert_eq!(reader.pop().unwrap(), None);
            // As many as there are buffers: the slots are used again in the next round.
            for number in 0..BUFFERS {
                let flags = if number == round { IS_SENT } else { 0 };
                writer.push(number * 4096, 1500, flags);
            }
            for number in 0..BUFFERS {
                let expected = (number * 4096, 1500, number == round);
                assert_eq!(reader.pop().unwrap(), Some(expected));
            }
        }
        assert_eq!(reader.pop().unwrap(), None);
    }

    #[test]
    fn more_entries_than_buffers_are_refused() {
        let file = SharedFile::create("ring", BYTES).unwrap();
        let (mut writer, mut reader) = (Writer::new(&file).unwrap(), Reader::new(&file).unwrap());
        for number in 0..=BUFFERS {
            writer.push(number, 64, 0);
        }
        assert!(reader.pop().is_err());
    }
}

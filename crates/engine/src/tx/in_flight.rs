//! The packets in flight, with the slots of the queues that they came from.

use towpath_queue::buffers::FreeBuffers;

/// The session key of packets whose session has ended. No session has it.
pub(super) const NO_SESSION: u32 = u32::MAX;

/// A packet in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    /// The session key of the sender.
    pub(crate) session: u32,
    /// The queue pair that the packet came from.
    pub(crate) queue_pair: u32,
    /// The packet's first slot in the queue.
    pub(crate) first: u32,
    /// The number of its slots.
    pub(crate) chain: u32,
    /// Device packets made from this packet that the device has not completed.
    pub(crate) remaining: u32,
}

/// The table of packets in flight.
#[derive(Debug)]
pub(crate) struct InFlightTable {
    entries: Vec<InFlight>,
    free: FreeBuffers,
}

impl InFlightTable {
    /// Creates a table with room for `entries` packets.
    pub(crate) fn new(entries: u32) -> InFlightTable {
        let free = FreeBuffers::new(0, entries);
        InFlightTable { entries: vec![InFlight::default(); entries as usize], free }
    }

    /// Enters a packet. Returns its number; `None` if there is no room.
    #[inline]
    pub(crate) fn begin(&mut self, one: InFlight) -> Option<u32> {
        let number = self.free.take()?;
        self.entries[number as usize] = one;
        Some(number)
    }

    /// Returns the session key of a packet's sender.
    pub(crate) fn sender(&self, number: u32) -> u32 {
        self.entries[number as usize].session
    }

    /// Forgets that packets are of a session.
    pub(crate) fn forget_session(&mut self, session: u32) {
        for entry in self.entries.iter_mut().filter(|entry| entry.session == session) {
            entry.session = NO_SESSION;
        }
    }

    /// Completes one device packet of an entry. Returns the entry if it was the last one.
    #[inline]
    pub(crate) fn complete_one(&mut self, number: u32) -> Option<InFlight> {
        let entry = &mut self.entries[number as usize];
        entry.remaining -= 1;
        if entry.remaining > 0 {
            return None;
        }
        self.free.release(number);
        Some(*entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_ends_with_its_last_device_packet() {
        let mut table = InFlightTable::new(2);
        let packet = |session, remaining| InFlight { session, remaining, ..InFlight::default() };
        let (one, two) = (table.begin(packet(5, 1)).unwrap(), table.begin(packet(6, 2)).unwrap());
        assert!(table.begin(packet(7, 1)).is_none(), "no room");
        assert_eq!((table.sender(one), table.sender(two)), (5, 6));
        assert!(table.complete_one(two).is_none());
        table.forget_session(5);
        assert_eq!(table.complete_one(one).unwrap().session, NO_SESSION);
        assert_eq!(table.complete_one(two).unwrap().session, 6);
        assert!(table.begin(packet(7, 1)).is_some());
    }
}

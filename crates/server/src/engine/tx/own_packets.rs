//! Packets that the engine makes itself, for connections with other hosts. They come from no queue, so
//! their completion frees only their bounce buffer.

use towpath_device::{DeviceError, Meta};

use crate::engine::oob::Parts;
use crate::engine::port::DevicePort;
use crate::engine::remote::Way;
use crate::engine::source::Source;
use crate::engine::tx::TxPath;
use crate::engine::tx::in_flight::{InFlight, NO_SESSION};

/// The way to the device.
pub(crate) struct OwnPackets<'a> {
    pub(crate) tx: &'a mut TxPath,
    pub(crate) port: &'a mut DevicePort,
}

impl Way for OwnPackets<'_> {
    fn has_room(&self) -> bool {
        self.tx.has_room(self.port)
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), DeviceError> {
        let OwnPackets { tx, port } = self;
        let one = InFlight { session: NO_SESSION, remaining: 1, ..InFlight::default() };
        let Some(slot) = tx.bounce.take() else { return Ok(()) };
        tx.bounce.hold(slot, &[]);
        let source = Source { prefix: frame, memory: port.memory(), pieces: &[] };
        let held = tx.bounce.append(slot, source, None);
        let number = if held { tx.in_flight.begin(one) } else { None };
        let Some(number) = number else {
            // Longer than the device's packets: the connection sends it again, and ends at last.
            tx.bounce.release(slot);
            return Ok(());
        };
        let part = tx.bounce.part(slot, None);
        let entry = &mut tx.bounce.slots[slot as usize];
        entry.parts.clear();
        entry.parts.push(part);
        (entry.meta, entry.tag, entry.in_flight_slot) = (Meta::FULL, None, number);
        tx.handoff.hand_off(slot, false, &tx.bounce, port)
    }

    fn go_on(&mut self, session: u32, queue_pair: u32, parts: &mut Parts<'_>) {
        let set =
            parts.sessions.get(session).and_then(|one| one.queue_pairs.get(queue_pair as usize));
        if let Some(unit) = set.map(|set| set.unit) {
            self.tx.schedule.hurry(unit);
        }
    }
}

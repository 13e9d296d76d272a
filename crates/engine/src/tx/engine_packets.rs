//! Packets that the engine makes itself: for connections with other hosts, and answers for freed leases. They come from no
//! queue, so //! their completion frees only their bounce buffer.

use towpath_device::{DeviceError, Meta};

use crate::oob::OobParts;
use crate::port::DevicePort;
use crate::remote::PacketOutput;
use crate::source::Source;
use crate::tx::TxPath;
use crate::tx::in_flight::{InFlight, NO_SESSION};

/// Sends the engine's own packets to the device.
pub(crate) struct EnginePacketOutput<'a> {
    pub(crate) tx: &'a mut TxPath,
    pub(crate) port: &'a mut DevicePort,
}

impl PacketOutput for EnginePacketOutput<'_> {
    fn has_room(&self) -> bool {
        self.tx.has_room(self.port)
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), DeviceError> {
        let EnginePacketOutput { tx, port } = self;
        let one = InFlight { session: NO_SESSION, remaining: 1, ..InFlight::default() };
        let Some(slot) = tx.bounce.take() else { return Ok(()) };
        tx.bounce.hold(slot, &[]);
        let source = Source { prefix: frame, memory: port.memory(), pieces: &[] };
        let held = tx.bounce.append(slot, source, None);
        let number = if held { tx.in_flight.begin(one) } else { None };
        let Some(number) = number else {
            // The frame is longer than the device's packets, or no entry is free. A connection retransmits it, and finally fails.
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

    fn recheck(&mut self, session: u32, queue_pair: u32, parts: &mut OobParts<'_>) {
        let queue = parts.sessions.get(session).and_then(|one| one.transmit.get(queue_pair));
        if let Some(queue) = queue {
            self.tx.schedule.make_due(queue.unit);
        }
    }
}

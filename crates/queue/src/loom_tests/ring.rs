//! Rings: a message reaches the side that sleeps, and so does room.

use loom::thread;

use super::{Bell, model, without};
use crate::ring::{Next, RingEnd, RingShape};
use crate::test_memory::Memory;
use crate::test_ring::{RingFar, RingNear};
use crate::tripwire::{ArmedWord, Firing, TripwireShape, Tripwires, fence};
use crate::word::Barrier;

/// A side that sleeps by its tripwire, and fires the peer's.
struct Side {
    ring: RingEnd<RingNear, RingFar>,
    own: Tripwires,
    bell: &'static Bell,
    theirs: ArmedWord,
    /// The server, as the peer's tripwire has it.
    firing: Firing,
    their_bell: &'static Bell,
}

impl Side {
    fn flush(&mut self) {
        let (theirs, firing) = (&mut self.theirs, &mut self.firing);
        if let Some(fenced) = self.ring.flush()
            && theirs.must_report(fenced)
            && firing.fire(fence(), 0)
        {
            self.their_bell.notify();
        }
    }

    fn sleep(&mut self) {
        self.ring.prepare_sleep();
        self.flush();
        self.own.arm(0);
        if !self.ring.has_message() && !self.ring.has_wanted_room().unwrap() {
            while !self.own.has_fired(0) {
                self.bell.sleep();
            }
        }
        self.own.disarm(0);
    }

    fn send(&mut self, byte: u8) {
        while !self.ring.find_room(48).unwrap() {
            self.sleep();
        }
        self.ring.write(0, &[byte]);
        self.ring.append(48);
        self.flush();
    }

    fn receive(&mut self) -> u8 {
        loop {
            if let Next::Message(len) = self.ring.peek().unwrap() {
                let mut byte = [0];
                self.ring.read(0, &mut byte);
                self.ring.consume(len);
                return byte[0];
            }
            self.sleep();
        }
    }
}

fn sides() -> [Side; 2] {
    let shape = RingShape::new(64).unwrap();
    let rings = [Memory::new(shape.memory_bytes() / 8), Memory::new(shape.memory_bytes() / 8)];
    let tripwires = TripwireShape::new(1);
    let armed = [Memory::new(tripwires.owner_words()), Memory::new(tripwires.owner_words())];
    let fired = [Memory::new(tripwires.server_words()), Memory::new(tripwires.server_words())];
    let bells = [Bell::new(), Bell::new()];
    [0, 1].map(|side: usize| {
        let other = 1 - side;
        Side {
            ring: RingEnd::new(
                (RingNear(rings[side].peer()), shape),
                (RingFar(rings[other].own()), shape),
            ),
            own: Tripwires::new(tripwires, armed[side].own(), fired[side].peer()),
            bell: bells[side],
            theirs: ArmedWord::new(armed[other].peer(), 0).unwrap(),
            firing: Firing::new(tripwires, fired[other].own(), armed[other].peer()),
            their_bell: bells[other],
        }
    })
}

/// A side sends a message that fills the ring, and the other one waits for it.
fn a_message() {
    let [mut sender, mut receiver] = sides();
    let sending = thread::spawn(move || sender.send(7));
    assert_eq!(receiver.receive(), 7);
    sending.join().unwrap();
}

/// A side waits for the room of a message that fills the ring.
fn room() {
    let [mut sender, mut receiver] = sides();
    sender.send(7);
    let sending = thread::spawn(move || sender.send(8));
    assert_eq!(receiver.receive(), 7);
    // The receiver does not sleep, and so tells of the room by itself.
    let next = receiver.ring.peek().unwrap();
    receiver.flush();
    sending.join().unwrap();
    let next = if next == Next::Nothing { receiver.ring.peek().unwrap() } else { next };
    assert_eq!(next, Next::Message(48));
    assert_eq!(receiver.receive(), 8);
}

#[test]
fn no_message_is_lost() {
    model(a_message);
}

#[test]
fn no_room_is_lost() {
    model(room);
}

#[test]
fn without_the_sleepers_barrier_a_message_is_lost() {
    without(Barrier::ArmerChecks, a_message);
}

#[test]
fn without_the_senders_barrier_a_message_is_lost() {
    without(Barrier::AccessorChecks, a_message);
}

#[test]
fn without_the_sleepers_barrier_room_is_lost() {
    without(Barrier::ArmerChecks, room);
}

#[test]
fn without_the_consumers_barrier_room_is_lost() {
    without(Barrier::AccessorChecks, room);
}

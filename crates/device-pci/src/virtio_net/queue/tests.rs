//! A queue with a device that the test plays.

use std::sync::Arc;

use towpath_device::{
    Access, Armed, DeviceQueue, Dma, DmaError, Kick, Meta, Outcome, Packet, Part, Received, Space,
    Spaces,
};
use towpath_memory::{Mapping, Region};

use super::super::card::working_double;
use super::super::memory::{SharedRings, ZEROS_AT};
use super::super::ring::Piece;
use super::super::{Options, info};
use super::*;

/// The device addresses of the packets' memory and of the rings.
const PACKETS_AT: u64 = 1 << 32;
const RINGS_AT_ADDRESS: u64 = 1 << 33;
const BUFFER_BYTES: u32 = 2048;
/// Where packets to send lie, behind the receive buffers.
const SENDING_AT: u32 = 8 * BUFFER_BYTES;

/// Has each memory at a known address.
struct At(u64);

impl Dma for At {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(self.0)
    }

    fn unregister(&self, _: u64) {}
}

fn registration(at: u64, memory: &Arc<Mapping>) -> Registration {
    let dma: Arc<dyn Dma> = Arc::new(At(at));
    Registration::new(&dma, memory, Access::ReadWrite).unwrap()
}

struct World {
    queue: VirtioNetQueue,
    spaces: Spaces,
    pool: SpaceId,
}

impl World {
    fn new() -> World {
        let region = Region::private(16 * BUFFER_BYTES as usize).unwrap();
        let registered = registration(PACKETS_AT, region.mapping());
        let mut spaces = Spaces::default();
        let pool = spaces.add(Space::writable(region).registered(Some(registered)));
        let SharedRings { rx, tx, mapping, .. } = SharedRings::new().unwrap();
        let rings = registration(RINGS_AT_ADDRESS, &mapping);
        let info = info(&Options::new("0000:00:03.0".parse().unwrap()), [2; 6]);
        let interrupt = Interrupt::new(Arc::new(crate::signals::new_eventfd().unwrap()));
        let card = Arc::new(working_double(64));
        let mut queue = VirtioNetQueue::new(QueueParts { info, card, rx, tx, rings, interrupt });
        queue.start().unwrap();
        World { queue, spaces, pool }
    }

    fn fill(&mut self, buffers: &[u32]) -> usize {
        let taken = self.queue.rx_fill(&self.spaces, self.pool, buffers);
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
        taken
    }

    /// The device writes a header and a packet of `len` bytes into the buffer at this index of its ring, and
    /// completes it at another.
    fn receive(&mut self, index: u16, at: u16, flags: u8, len: u32) {
        let (head, pieces) = self.queue.parts.rx.seen_by_device(index);
        let offset = (pieces[0].address - PACKETS_AT) as u32;
        self.spaces.copy_in(self.pool, offset, &[flags, 0, 0, 0, 0, 0, 34, 0, 6, 0, 1, 0]).unwrap();
        self.queue.parts.rx.use_chain(at, head.into(), len);
    }

    fn poll(&mut self, budget: usize) -> Result<(usize, Vec<Received>), DeviceError> {
        let mut out = Vec::new();
        let count = self.queue.rx_poll(&mut self.spaces, &mut out, budget)?;
        Ok((count, out))
    }

    fn send(&mut self, lens: &[u32], token: u64) -> usize {
        let mut offset = SENDING_AT;
        let part = |len: &u32| {
            let part = Part { space: self.pool, offset, len: *len };
            offset += len;
            part
        };
        let parts: Vec<Part> = lens.iter().map(part).collect();
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
        self.queue.tx_submit(&mut self.spaces, &[packet]).unwrap()
    }

    fn completions(&mut self) -> Vec<(u64, Outcome)> {
        let mut out = Vec::new();
        self.queue.tx_complete(&mut out, 1000).unwrap();
        out.iter().map(|one| (one.token, one.outcome)).collect()
    }
}

#[test]
fn a_buffer_has_the_header_at_the_end_of_the_headroom() {
    let mut world = World::new();
    assert_eq!(world.fill(&[0, BUFFER_BYTES, u32::MAX]), 2);
    let (_, pieces) = world.queue.parts.rx.seen_by_device(1);
    let expected = Piece { address: PACKETS_AT + 2048 + 116, len: 1932, is_written: true };
    assert_eq!(pieces, [expected]);
    // Out of order: the device completes the second buffer first.
    world.receive(1, 0, 0, 12 + 60);
    world.receive(0, 1, 2, 12 + 1522);
    let (count, out) = world.poll(8).unwrap();
    let found: Vec<_> = out.iter().map(|one| (one.buffer, one.offset, one.len)).collect();
    assert_eq!((count, found), (2, vec![(2048, 2048 + 128, 60), (0, 128, 1522)]));
    // That the device has found a checksum right is not reported: the driver did not ask.
    assert!(out.iter().all(|one| one.meta == Meta::FULL));
}

#[test]
fn bad_packets_are_dropped_and_their_buffers_go_back() {
    let mut world = World::new();
    let buffers: Vec<u32> = (0..6).map(|one| one * BUFFER_BYTES).collect();
    assert_eq!(world.fill(&buffers), 6);
    for (at, (flags, len)) in
        (0..).zip([(0, 0), (0, 12), (0, 11), (0, 12 + 1523), (0, u32::MAX), (1, 12 + 60)])
    {
        world.receive(at, at, flags, len);
    }
    assert_eq!(world.poll(4).unwrap(), (4, vec![]));
    assert_eq!(world.poll(4).unwrap(), (2, vec![]));
    assert_eq!(world.queue.counters().rx_dropped, 6);
    assert_eq!(world.poll(4).unwrap(), (0, vec![]));
    assert_eq!(world.queue.parts.rx.available_for_device().0, 12);
    let mut buffers = Vec::new();
    world.queue.reset(&mut buffers).unwrap();
    buffers.sort_unstable();
    assert_eq!(buffers, (0..6).map(|one| one * BUFFER_BYTES).collect::<Vec<_>>());
}

#[test]
fn a_packet_has_a_header_and_no_empty_piece() {
    let mut world = World::new();
    assert_eq!(world.send(&[20, 0, 30], 1), 1);
    let zeros = RINGS_AT_ADDRESS + ZEROS_AT as u64;
    let first = PACKETS_AT + u64::from(SENDING_AT);
    let pieces = [(zeros, 12), (first, 20), (first + 20, 30), (zeros, 10)];
    let expected = pieces.map(|(address, len)| Piece { address, len, is_written: false });
    let (_, seen) = world.queue.parts.tx.seen_by_device(0);
    assert_eq!(seen, expected);
    assert_eq!(world.queue.parts.tx.available_for_device().0, 0, "not before the kick");
    world.queue.kick(&mut world.spaces, Kick::Tx).unwrap();
    assert_eq!(world.queue.parts.tx.available_for_device().0, 1);
}

#[test]
fn packets_complete_in_any_order_and_return_in_theirs() {
    let mut world = World::new();
    for token in 1..=5 {
        assert_eq!(world.send(&[60], token), 1);
    }
    let heads = [0, 1, 2, 3, 4].map(|index| world.queue.parts.tx.seen_by_device(index).0);
    world.queue.parts.tx.use_chain(0, heads[3].into(), 0);
    assert_eq!(world.completions(), [(4, Outcome::Sent)]);
    // Its descriptors are the next ones, and the device takes the packet last.
    assert_eq!(world.send(&[60], 6), 1);
    world.queue.parts.tx.use_chain(1, heads[0].into(), 0);
    world.queue.reset(&mut Vec::new()).unwrap();
    let returned = [2, 3, 5, 6].map(|token| (token, Outcome::Returned));
    assert_eq!(world.completions(), [&[(1, Outcome::Sent)], &returned[..]].concat());
    assert_eq!(world.queue.counters().resets, 1);
}

#[test]
fn a_full_ring_refuses_packets() {
    let mut world = World::new();
    // 64 entries: 21 packets of three pieces.
    let taken = (0..64).take_while(|token| world.send(&[30, 30], *token) == 1).count();
    assert_eq!(taken, 21);
    assert!(!world.queue.has_room());
    assert_eq!(world.queue.arm(true).unwrap(), Armed::Sleep);
    let head = world.queue.parts.tx.seen_by_device(0).0;
    world.queue.parts.tx.use_chain(0, head.into(), 0);
    assert_eq!(world.queue.arm(true).unwrap(), Armed::Work);
}

#[test]
fn a_chain_that_the_device_does_not_have_is_an_error_until_a_reset() {
    let mut world = World::new();
    assert_eq!(world.fill(&[0]), 1);
    world.receive(0, 0, 0, 72);
    world.queue.parts.rx.use_chain(1, 63, 72);
    // The index is beyond what the device has: not even the first one counts.
    assert_eq!(world.poll(8).unwrap(), (0, vec![]));
    assert!(world.poll(8).unwrap_err().to_string().contains("does not have"));
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Work);
    let mut buffers = Vec::new();
    world.queue.reset(&mut buffers).unwrap();
    assert_eq!((buffers, world.fill(&[0])), (vec![0], 1));
    world.receive(0, 0, 0, 72);
    assert_eq!(world.poll(8).unwrap().0, 1);
}

#[test]
fn interrupts_are_off_while_the_engine_polls() {
    let mut world = World::new();
    world.fill(&[0]);
    let may = |world: &World| {
        let QueueParts { rx, tx, .. } = &world.queue.parts;
        [rx, tx].map(|ring| ring.available_for_device().1)
    };
    assert_eq!(may(&world), [false; 2]);
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep);
    assert_eq!(may(&world), [true, false]);
    world.poll(1).unwrap();
    assert_eq!(may(&world), [false; 2]);
    world.send(&[60], 1);
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep);
    assert_eq!(may(&world), [true; 2]);
}

#[test]
fn a_card_that_asks_for_a_reset_is_noticed() {
    let mut world = World::new();
    world.fill(&[0]);
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep);
    let card = world.queue.parts.card.clone();
    assert!(!card.notes_to_fail());
    card.ask_for_reset();
    assert!(card.notes_to_fail());
    assert!(world.queue.arm(false).unwrap_err().to_string().contains("asks for a reset"));
    assert!(world.poll(1).unwrap_err().to_string().contains("asks for a reset"));
    world.queue.reset(&mut Vec::new()).unwrap();
    assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep);
}

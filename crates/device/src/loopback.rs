//! An in-memory pair of devices: each end receives the packets that the other end sends.
//!
//! The pair serves tests, benchmarks and programs with both ends in one process. Each direction is
//! two bounded single-producer single-consumer rings, one of bytes and one of packet boundaries, so
//! the ends may live in different threads without a lock. One store per ring publishes a batch.

mod ring;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::{
    Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue,
    ETHERNET_HEADER_BYTES, Info, Kick, LARGE_PACKET_BYTES, Limits, MAX_PARTS, Meta,
    POOL_HEADROOM_BYTES, Packet, Part, Received, SpaceId, Spaces, VLAN_TAG_BYTES,
    check::PacketLimits,
};
use ring::{Batch, Bell, Receiver, Sender, Sent, WANTS_PACKETS, WANTS_ROOM};

/// The configuration of a pair of devices.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of both ends, to which `-a` and `-b` are appended.
    pub name: String,
    /// The largest IP packet, in bytes; 68 to 65535.
    pub mtu: usize,
    /// The number of packets that each direction holds, and of empty buffers that each end takes; 1
    /// to 65536.
    pub ring_packets: usize,
    /// The number of descriptors of each end's transmit ring: [`MAX_PARTS`] to 65536. A packet takes
    /// one descriptor per part, until `tx_complete` returns its completion.
    pub tx_descriptors: usize,
    /// [`Limits::rx_ring`]: buffers that the receive ring asks for.
    pub rx_ring: usize,
    /// [`Limits::rx_alignment`]: a power of two, at most 4096.
    pub rx_alignment: usize,
    /// [`Limits::address_bits`].
    pub address_bits: u32,
    /// [`Capabilities::tx_in_place`]. Without it, an end sends only from the space of its receive
    /// buffers.
    pub tx_in_place: bool,
    /// [`Capabilities::tx_asynchronous`]: as hardware does, the device fetches packets from the
    /// sender's memory in a later call than the one that took them. So tests notice memory that is
    /// reused too early.
    pub tx_asynchronous: bool,
    /// `true` to pass large packets and partial checksums unchanged, with their metadata.
    pub offloads: bool,
    /// `true` for a descriptor to sleep on. Without it, the engine must poll the ends.
    pub sleeps: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "loopback".to_owned(),
            mtu: 1500,
            ring_packets: 256,
            tx_descriptors: 1024,
            rx_ring: 0,
            rx_alignment: 64,
            address_bits: 64,
            tx_in_place: true,
            tx_asynchronous: false,
            offloads: true,
            sleeps: true,
        }
    }
}

/// Creates a pair.
///
/// # Errors
/// `EINVAL` when the configuration is out of range; the error of `eventfd`.
pub fn pair(config: &Config) -> io::Result<(LoopbackDevice, LoopbackDevice)> {
    let in_range = (68..=65535).contains(&config.mtu)
        && (1..=65536).contains(&config.ring_packets)
        && (MAX_PARTS..=65536).contains(&config.tx_descriptors)
        && config.rx_ring <= 65536
        && config.rx_alignment.is_power_of_two()
        && config.rx_alignment <= 4096;
    if !in_range {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (sender_a, receiver_b) = direction(config);
    let (sender_b, receiver_a) = direction(config);
    let bell_a = Arc::new(Bell::new(config.sleeps)?);
    let bell_b = Arc::new(Bell::new(config.sleeps)?);
    let bells = (bell_a.clone(), bell_b.clone());
    let a = LoopbackDevice::new(config, 0xa, (sender_a, receiver_a), bells);
    let b = LoopbackDevice::new(config, 0xb, (sender_b, receiver_b), (bell_b, bell_a));
    Ok((a, b))
}

/// Returns the longest frame of a configuration, in bytes.
fn longest(config: &Config) -> usize {
    let payload = if config.offloads { LARGE_PACKET_BYTES.max(config.mtu) } else { config.mtu };
    payload + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES
}

fn direction(config: &Config) -> (Sender, Receiver) {
    // Room for `ring_packets` frames of the MTU, and for at least two of the longest packets, so
    // that a large packet always finds room once the ring has drained.
    let frame = config.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
    let bytes = (config.ring_packets * frame).max(2 * longest(config));
    let (bytes_in, bytes_out) = rtrb::RingBuffer::new(bytes);
    let (packets_in, packets_out) = rtrb::RingBuffer::new(config.ring_packets);
    (
        Sender { bytes: bytes_in, packets: packets_in },
        Receiver { bytes: bytes_out, packets: packets_out },
    )
}

/// A packet that the device took and has not fetched (asynchronous mode); its parts are in
/// `held_parts`.
struct Held {
    parts: usize,
    meta: Meta,
    token: u64,
}

/// A completion that waits, and the descriptors that its packet took.
struct Done {
    completion: Completion,
    descriptors: usize,
}

/// One end of the pair.
pub struct LoopbackDevice {
    info: Info,
    /// `None` once the queue is open.
    queue: Option<LoopbackQueue>,
}

/// The one queue of an end.
struct LoopbackQueue {
    info: Info,
    longest: usize,
    ring_packets: usize,
    tx: Sender,
    rx: Receiver,
    own: Arc<Bell>,
    peer: Arc<Bell>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    buffers: VecDeque<(SpaceId, u32)>,
    held: VecDeque<Held>,
    held_parts: VecDeque<Part>,
    /// How many of the held packets the device has been told of.
    kicked: usize,
    /// `true` if the other end does not know of published packets.
    unannounced: bool,
    /// One packet's parts in one slice, while the device fetches the packet.
    scratch: Vec<Part>,
    done: VecDeque<Done>,
    /// Descriptors that no packet takes.
    free_descriptors: usize,
    /// The length of the last packet that found no room.
    wanted_bytes: usize,
    counters: Counters,
}

impl LoopbackDevice {
    fn new(
        config: &Config,
        letter: u8,
        (tx, rx): (Sender, Receiver),
        (own, peer): (Arc<Bell>, Arc<Bell>),
    ) -> LoopbackDevice {
        let longest = longest(config);
        let can = Capabilities {
            tx_in_place: config.tx_in_place,
            tx_checksum: config.offloads,
            tx_segmentation: config.offloads,
            rx_offload: config.offloads,
            tx_asynchronous: config.tx_asynchronous,
        };
        let info = Info {
            name: format!("{}-{letter:x}", config.name),
            // Locally administered, unicast (IEEE 802, 8.2.2); the letters say "loop".
            mac: [0x02, b'l', b'o', b'o', b'p', letter],
            mtu: config.mtu,
            can,
            queues: 1,
            limits: Limits {
                rx_alignment: config.rx_alignment,
                rx_headroom_bytes: POOL_HEADROOM_BYTES,
                rx_ring: config.rx_ring,
                tx_ring: config.tx_descriptors,
                address_bits: config.address_bits,
                ..Limits::new((POOL_HEADROOM_BYTES + longest).next_multiple_of(64))
            },
            rx_queue_packets: config.ring_packets,
        };
        let queue = LoopbackQueue {
            info: info.clone(),
            longest,
            ring_packets: config.ring_packets,
            tx,
            rx,
            own,
            peer,
            pool: None,
            buffers: VecDeque::with_capacity(config.ring_packets),
            held: VecDeque::new(),
            held_parts: VecDeque::new(),
            kicked: 0,
            unannounced: false,
            scratch: Vec::with_capacity(MAX_PARTS),
            done: VecDeque::with_capacity(config.ring_packets),
            free_descriptors: config.tx_descriptors,
            wanted_bytes: 0,
            counters: Counters::default(),
        };
        LoopbackDevice { info, queue: Some(queue) }
    }
}

impl Device for LoopbackDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let queue = if index == 0 { self.queue.take() } else { None };
        let queue = queue.ok_or_else(|| DeviceError::no_queue(&self.info.name, index == 0))?;
        Ok(Box::new(queue))
    }
}

impl LoopbackQueue {
    fn other_is_gone(&self) -> bool {
        self.own.closed.load(Ordering::Acquire)
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            name: self.info.name.clone(),
            cause: io::Error::new(io::ErrorKind::BrokenPipe, "the other end was dropped"),
        }
    }

    /// Publishes the held packets that the device was told of and for which there is room
    /// (asynchronous mode).
    fn fetch_held(&mut self, spaces: &Spaces) {
        if self.kicked == 0 {
            return;
        }
        let limits = self.limits();
        let mut batch = Batch::new(&mut self.tx);
        while self.kicked > 0
            && let Some(held) = self.held.front()
        {
            self.scratch.clear();
            self.scratch.extend(self.held_parts.range(..held.parts));
            let outcome = match batch.push(&limits, spaces, &self.scratch, held.meta) {
                Sent::Yes(len) => self.counters.sent(len),
                Sent::Bad => self.counters.dropped(),
                Sent::NoRoom(len) => {
                    self.wanted_bytes = len;
                    break;
                }
            };
            let completion = Completion { token: held.token, outcome };
            self.done.push_back(Done { completion, descriptors: held.parts });
            self.held_parts.drain(..held.parts);
            self.held.pop_front();
            self.kicked -= 1;
        }
        if batch.publish() {
            self.counters.system_calls += self.peer.ring(WANTS_PACKETS);
        }
    }

    /// Takes packets that the device fetches later (asynchronous mode). Returns how many.
    fn hold(&mut self, packets: &[Packet<'_>]) -> usize {
        let mut taken = 0;
        for packet in packets {
            let parts = packet.parts.len();
            if parts > MAX_PARTS {
                // The driver drops the packet, and places nothing in the ring.
                let completion =
                    Completion { token: packet.token, outcome: self.counters.dropped() };
                self.done.push_back(Done { completion, descriptors: 0 });
            } else if parts > self.free_descriptors {
                break;
            } else {
                self.free_descriptors -= parts;
                self.held_parts.extend(packet.parts);
                self.held.push_back(Held { parts, meta: packet.meta, token: packet.token });
            }
            taken += 1;
        }
        taken
    }

    fn limits(&self) -> PacketLimits {
        PacketLimits {
            can: self.info.can,
            frame_bytes: self.info.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES,
            large_bytes: self.longest,
            pool: self.pool,
        }
    }

    /// `true` if the wire has room for the packet that found none.
    fn has_wire_room(&self) -> bool {
        self.tx.packets.slots() > 0 && self.tx.bytes.slots() >= self.wanted_bytes
    }

    /// `true` if the transmit ring has room for any packet. A packet that needs less room than this
    /// finds it when the engine fetches the next completions.
    fn has_ring_room(&self) -> bool {
        self.free_descriptors >= MAX_PARTS && self.done.len() + self.held.len() < self.ring_packets
    }
}

impl DeviceQueue for LoopbackQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        let room = (self.ring_packets - self.buffers.len()).min(buffers.len());
        let limits = self.info.limits;
        let len = limits.rx_buffer_bytes as u32;
        let good = |at: &&u32| spaces.is_writable(space, **at, len) && limits.is_aligned(**at);
        let before = self.buffers.len();
        self.buffers.extend(buffers[..room].iter().take_while(good).map(|buffer| (space, *buffer)));
        self.buffers.len() - before
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.fetch_held(spaces);
        // This checks before it reads the rings, so that this end still sees the last packets of a
        // dropped end.
        let gone = self.other_is_gone();
        let waiting = self.rx.packets.slots();
        if waiting == 0 && gone {
            return Err(self.gone());
        }
        let count = waiting.min(budget).min(self.buffers.len());
        if count == 0 {
            return Ok(0);
        }
        let bytes = self.rx.bytes.slots();
        let bytes = self.rx.bytes.read_chunk(bytes).expect("bytes just counted");
        let packets = self.rx.packets.read_chunk(count).expect("packets just counted");
        let (first, second) = bytes.as_slices();
        let (near, far) = packets.as_slices();
        let mut at = 0;
        let mut returned = 0;
        for boundary in near.iter().chain(far) {
            let end = at + boundary.len as usize;
            let Some((space, buffer)) = self.buffers.pop_front() else { break };
            let offset = buffer + POOL_HEADROOM_BYTES as u32;
            let head = &first[at.min(first.len())..end.min(first.len())];
            let tail = &second[at.saturating_sub(first.len())..end.saturating_sub(first.len())];
            at = end;
            let mut copied = spaces.copy_in(space, offset, head);
            // Only a packet that wraps at the ring's end has a tail.
            if copied.is_ok() && !tail.is_empty() {
                copied = spaces.copy_in(space, offset + head.len() as u32, tail);
            }
            if copied.is_err() {
                // The server removed the buffer's memory since it was provided, so the device drops
                // the buffer.
                self.counters.rx_dropped += 1;
                continue;
            }
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += u64::from(boundary.len);
            returned += 1;
            out.push(Received { space, buffer, offset, len: boundary.len, meta: boundary.meta });
        }
        bytes.commit(at);
        packets.commit_all();
        self.counters.system_calls += self.peer.ring(WANTS_ROOM);
        Ok(returned)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        if self.other_is_gone() {
            return Err(self.gone());
        }
        self.fetch_held(spaces);
        let room = self.ring_packets.saturating_sub(self.done.len() + self.held.len());
        let packets = &packets[..room.min(packets.len())];
        if self.info.can.tx_asynchronous {
            return Ok(self.hold(packets));
        }
        let limits = self.limits();
        let mut batch = Batch::new(&mut self.tx);
        let mut taken = 0;
        for packet in packets {
            let mut descriptors = packet.parts.len();
            if descriptors > self.free_descriptors && descriptors <= MAX_PARTS {
                break;
            }
            let outcome = match batch.push(&limits, spaces, packet.parts, packet.meta) {
                Sent::Yes(len) => self.counters.sent(len),
                Sent::Bad => {
                    // The driver drops the packet, and places nothing in the ring.
                    descriptors = 0;
                    self.counters.dropped()
                }
                Sent::NoRoom(len) => {
                    self.wanted_bytes = len;
                    break;
                }
            };
            let completion = Completion { token: packet.token, outcome };
            self.done.push_back(Done { completion, descriptors });
            self.free_descriptors -= descriptors;
            taken += 1;
        }
        self.unannounced |= batch.publish();
        Ok(taken)
    }

    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        if ring == Kick::Rx {
            return Ok(());
        }
        self.kicked = self.held.len();
        self.fetch_held(spaces);
        if std::mem::take(&mut self.unannounced) {
            self.counters.system_calls += self.peer.ring(WANTS_PACKETS);
        }
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let count = self.done.len().min(budget);
        for done in self.done.drain(..count) {
            self.free_descriptors += done.descriptors;
            out.push(done.completion);
        }
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.own.fd.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        let Some(fd) = &self.own.fd else { return Ok(Armed::Work) };
        // This empties the doorbell before it sets `wants`, so that a later notification stays.
        let _ = rustix::io::read(fd, &mut [0; 8]);
        self.counters.system_calls += 1;
        let is_late = self.info.can.tx_asynchronous;
        let room_wanted = tx_waiting || self.kicked > 0;
        let receives = !self.buffers.is_empty();
        let wants =
            if receives { WANTS_PACKETS } else { 0 } | if room_wanted { WANTS_ROOM } else { 0 };
        self.own.wants.store(wants, Ordering::Relaxed);
        // Pairs with the fence in `Bell::ring`: the other end sees `wants`, or this end sees its
        // work.
        fence(Ordering::SeqCst);
        let work = !self.done.is_empty()
            || (receives && self.rx.packets.slots() > 0)
            || self.other_is_gone()
            || (self.kicked > 0 && self.has_wire_room())
            || (tx_waiting && self.has_ring_room() && (is_late || self.has_wire_room()));
        if work {
            self.own.wants.store(0, Ordering::Relaxed);
            return Ok(Armed::Work);
        }
        Ok(Armed::Sleep)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..).map(|(_, buffer)| buffer));
        // As a card does on a reset, the device forgets packets that it has not fetched, but
        // returns their tokens.
        self.done.extend(self.held.drain(..).map(|held| Done {
            completion: Completion::returned(held.token),
            descriptors: held.parts,
        }));
        self.held_parts.clear();
        self.kicked = 0;
        if self.other_is_gone() { Err(self.gone()) } else { Ok(()) }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for LoopbackQueue {
    fn drop(&mut self) {
        // Published packets stay readable. This end sets the flag after them, and notifies after
        // the flag.
        self.peer.closed.store(true, Ordering::Release);
        let _ = self.peer.notify_always();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use towpath_memory::Region;

    fn spaces(len: usize) -> (Spaces, SpaceId) {
        let mut spaces = Spaces::default();
        let id = spaces.add(Space::writable(Region::private(len).unwrap()));
        (spaces, id)
    }

    /// Returns the queues of a pair, and the size of their receive buffers.
    fn queues(config: &Config) -> (LoopbackQueue, LoopbackQueue, u32) {
        let (mut a, mut b) = pair(config).unwrap();
        let bytes = a.info().limits.rx_stride() as u32;
        (a.queue.take().unwrap(), b.queue.take().unwrap(), bytes)
    }

    #[test]
    fn a_packet_crosses() {
        let (mut a, mut b, buffer) = queues(&Config::default());
        let (mut sender, from) = spaces(4096);
        let (mut receiver, pool) = spaces(2 * buffer as usize);
        sender.copy_in(from, 100, b"hello").unwrap();
        assert_eq!(b.rx_fill(&receiver, pool, &[0, buffer]), 2);
        assert_eq!(b.arm(false).unwrap(), Armed::Sleep);
        let parts = [2u32, 3].map(|len| Part { space: from, offset: 98 + len, len });
        let packet = Packet { parts: &parts, meta: Meta::FULL, token: 7 };
        assert_eq!(a.tx_submit(&mut sender, &[packet]).unwrap(), 1);
        assert_eq!(b.arm(false).unwrap(), Armed::Work);
        let (mut tokens, mut got) = (Vec::new(), Vec::new());
        assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 1);
        assert_eq!(b.rx_poll(&mut receiver, &mut got, 9).unwrap(), 1);
        assert_eq!(tokens, [Completion::sent(7)]);
        let mut text = [0; 5];
        receiver.copy_out(pool, got[0].offset, &mut text).unwrap();
        assert_eq!((got[0].buffer, got[0].len, &text), (0, 5, b"heell"));
    }

    #[test]
    fn a_dropped_end_is_reported_after_its_last_packets() {
        let (mut a, mut b, buffer) = queues(&Config::default());
        let (mut receiver, pool) = spaces(buffer as usize);
        b.rx_fill(&receiver, pool, &[0]);
        let parts = [Part { space: pool, offset: 0, len: 60 }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, token: 7 };
        a.tx_submit(&mut receiver, &[packet]).unwrap();
        drop(a);
        let mut got = Vec::new();
        assert_eq!(b.rx_poll(&mut receiver, &mut got, 9).unwrap(), 1);
        assert!(matches!(b.rx_poll(&mut receiver, &mut got, 9), Err(DeviceError::Gone { .. })));
        assert!(matches!(b.tx_submit(&mut receiver, &[packet]), Err(DeviceError::Gone { .. })));
    }

    #[test]
    fn asynchronous_packets_are_fetched_later() {
        let config = Config { tx_asynchronous: true, ..Config::default() };
        let (mut a, mut b, buffer) = queues(&config);
        let (mut memory, pool) = spaces(2 * buffer as usize);
        b.rx_fill(&memory, pool, &[0]);
        memory.copy_in(pool, buffer, b"early").unwrap();
        let parts = [Part { space: pool, offset: buffer, len: 5 }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, token: 7 };
        assert_eq!(a.tx_submit(&mut memory, &[packet]).unwrap(), 1);
        let mut tokens = Vec::new();
        assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 0);
        memory.copy_in(pool, buffer, b"later").unwrap();
        a.rx_poll(&mut memory, &mut Vec::new(), 9).unwrap();
        assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 0, "the device does not know of it");
        a.kick(&mut memory, Kick::Tx).unwrap();
        assert_eq!(a.tx_complete(&mut tokens, 9).unwrap(), 1);
        let mut got = Vec::new();
        b.rx_poll(&mut memory, &mut got, 9).unwrap();
        let mut text = [0; 5];
        memory.copy_out(pool, got[0].offset, &mut text).unwrap();
        assert_eq!(&text, b"later");
    }

    #[test]
    fn a_packet_takes_a_descriptor_per_part_until_its_completion_is_fetched() {
        for tx_asynchronous in [false, true] {
            let config = Config { tx_descriptors: 50, tx_asynchronous, ..Config::default() };
            let (mut a, mut b, buffer) = queues(&config);
            let (mut memory, pool) = spaces(2 * buffer as usize);
            b.rx_fill(&memory, pool, &[0]);
            let part = Part { space: pool, offset: buffer, len: 2 };
            let (chain, one) = ([part; 45], [part]);
            let packet = |parts, token| Packet { parts, meta: Meta::FULL, token };
            let packets = [packet(&chain, 1), packet(&chain, 2), packet(&one, 3)];
            assert_eq!(a.tx_submit(&mut memory, &packets).unwrap(), 1, "the second finds no room");
            let ones = [packet(&one, 4); 6];
            assert_eq!(a.tx_submit(&mut memory, &ones).unwrap(), 5, "50 descriptors are taken");
            a.kick(&mut memory, Kick::Tx).unwrap();
            assert_eq!(a.tx_submit(&mut memory, &ones).unwrap(), 0, "not fetched");
            let mut completions = Vec::new();
            assert_eq!(a.tx_complete(&mut completions, 1).unwrap(), 1);
            assert_eq!(completions, [Completion::sent(1)]);
            assert_eq!(a.tx_submit(&mut memory, &packets[1..]).unwrap(), 1);
        }
    }

    #[test]
    fn a_reset_tells_sent_packets_from_those_it_returns() {
        let config = Config { tx_asynchronous: true, ..Config::default() };
        let (mut a, mut b, buffer) = queues(&config);
        let (mut memory, pool) = spaces(2 * buffer as usize);
        b.rx_fill(&memory, pool, &[0]);
        let good = [Part { space: pool, offset: buffer, len: 60 }];
        let packet = |parts, token| Packet { parts, meta: Meta::FULL, token };
        a.tx_submit(&mut memory, &[packet(&good, 1), packet(&[], 2)]).unwrap();
        a.kick(&mut memory, Kick::Tx).unwrap();
        a.tx_submit(&mut memory, &[packet(&good, 3), packet(&good, 4)]).unwrap();
        a.reset(&mut Vec::new()).unwrap();
        let mut completions = Vec::new();
        a.tx_complete(&mut completions, 9).unwrap();
        let expected = [
            Completion::sent(1),
            Completion::dropped(2),
            Completion::returned(3),
            Completion::returned(4),
        ];
        assert_eq!(completions, expected);
    }

    #[test]
    fn a_queue_opens_once() {
        let (mut a, _b) = pair(&Config::default()).unwrap();
        let mut spaces = Spaces::default();
        assert!(a.open_queue(1, &mut spaces).is_err(), "there is one queue");
        let queue = a.open_queue(0, &mut spaces).unwrap();
        assert!(a.open_queue(0, &mut spaces).is_err(), "it is open");
        drop(queue);
    }

    #[test]
    fn the_bytes_wrap() {
        let config = Config { mtu: 1000, ring_packets: 3, offloads: false, ..Config::default() };
        let (mut a, mut b, buffer) = queues(&config);
        let (mut memory, pool) = spaces(3 * buffer as usize);
        let mut tokens = Vec::new();
        for round in 0..500u32 {
            let len = 1 + round * 37 % 1000;
            let sent: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
            memory.copy_in(pool, 2 * buffer, &sent).unwrap();
            b.rx_fill(&memory, pool, &[0]);
            let parts = [Part { space: pool, offset: 2 * buffer, len }];
            let packet = Packet { parts: &parts, meta: Meta::FULL, token: 7 };
            assert_eq!(a.tx_submit(&mut memory, &[packet]).unwrap(), 1);
            a.tx_complete(&mut tokens, 9).unwrap();
            let mut got = Vec::new();
            assert_eq!(b.rx_poll(&mut memory, &mut got, 9).unwrap(), 1);
            let mut seen = vec![0; len as usize];
            memory.copy_out(pool, got[0].offset, &mut seen).unwrap();
            assert_eq!((got[0].len, seen), (len, sent));
        }
    }
}

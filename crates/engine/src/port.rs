//! The device and its memory. `memory.rs` makes the memory, `submit.rs` hands packets to the device, and
//! `stalls.rs` finds and resets a stalled device.
//!
//! One mapping that only this process has holds the device's pool, which the device writes, and behind
//! it the bounce buffers, which the device only reads. Pool and bounce buffers share one data
//! space, because a device that cannot send in place sends only from this space.

mod memory;
mod own;
mod stalls;
mod submit;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_device::{
    Access, Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, DmaError,
    Kick, Meta, POOL_HEADROOM_BYTES, PacketMemory, Received, Registration, Space, SpaceId, Spaces,
};
use towpath_memory::{Mapping, PAGE_BYTES};
use towpath_protocol::settings::Values;
use towpath_queue::buffers::FreeBuffers;

use crate::clock::clock_ns;
use crate::own::{MAX_IN_FLIGHT, MAX_OF_ALL, Own, OwnQueues};
use crate::session::Session;
use crate::session::transmit_side::SendsFrom;
use crate::watchdog::Watchdog;
use memory::{check_reach, device_memory, earlier_memory, slot_bytes};

pub(crate) use memory::{BOUNCE_SLOTS, BounceMemory, FRAME_BYTES};

/// Counts of the packets that the device took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that the device took. A packet given to the device again counts again.
    pub(crate) taken: u64,
    /// The bytes of these packets.
    pub(crate) taken_bytes: u64,
}

/// The device's queue, its data spaces, its receive buffers and its watchdog.
pub(crate) struct DevicePort {
    queue: Box<dyn DeviceQueue>,
    name: String,
    mtu: usize,
    /// The MTU when the engine started, for which the bounce buffers have room.
    most_mtu: usize,
    link_up: bool,
    /// `true` if the device reaches only registered memory.
    registers: bool,
    can: Capabilities,
    rx_queue_packets: u64,
    rx_packet_buffers: usize,
    spaces: Spaces,
    /// The device's pool and the bounce buffers, for reading.
    memory: Arc<Mapping>,
    /// The file of this memory, if the next server may need it.
    file: Option<OwnedFd>,
    space: SpaceId,
    pool_buffers: u32,
    pool_buffer_bytes: u32,
    /// `true` for a ring, by [`Kick`], with entries that the device was not told of.
    unkicked: [bool; 2],
    watchdog: Watchdog,
    /// `true` if the memory is that of an earlier server's packets.
    has_earlier_memory: bool,
    counts: Counts,
    /// Packets that the device completed or returned, of those that `counts` has.
    returned: u64,
    /// The own queues of sessions.
    own: OwnQueues,
}

impl std::fmt::Debug for DevicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePort").field("device", &self.name).finish_non_exhaustive()
    }
}

impl DevicePort {
    /// Makes the memory of a queue of a device and opens the queue. The engine will take at most
    /// `batch` packets from it per poll iteration. `builds`: the engine also makes packets itself. Also returns the memory of the bounce buffers.
    ///
    /// # Errors
    /// Fails if memory cannot be allocated or the queue does not open.
    pub(crate) fn start(
        device: &mut dyn Device,
        queue: usize,
        batch: usize,
        builds: bool,
        values: &Values,
    ) -> Result<(DevicePort, BounceMemory), DeviceError> {
        let info = device.info().clone();
        let limits = info.limits;
        // A multiple of the alignment, too: that and 128 are powers of two.
        let pool_buffer_bytes = limits.rx_stride().next_multiple_of(128) as u32;
        // A batch of buffers may be with the engine while the ring holds as many as it needs.
        let pool_buffers = (batch * 2).clamp(64, 4096).max(limits.rx_ring + batch) as u32;
        let dma = device.dma_of(queue);
        let slot_bytes = slot_bytes(&info, dma.is_some(), builds);
        let mut pool_bytes = pool_buffers as usize * pool_buffer_bytes as usize;
        let gives_queues = device.own_queue_limits().is_ok();
        if gives_queues {
            // The bounce buffers are mapped once more.
            pool_bytes = pool_bytes.next_multiple_of(PAGE_BYTES);
        }
        let bytes = pool_bytes + BOUNCE_SLOTS as usize * slot_bytes;
        let failed = |cause| {
            let name = info.name.clone();
            DeviceError::Failed { name, what: "memory for its packets", cause }
        };
        check_reach(&limits, bytes).map_err(failed)?;
        let memory = PacketMemory { bytes, pool_bytes };
        let earlier = device.earlier_memory(queue, memory).map_err(failed)?;
        let has_earlier_memory = earlier.is_some();
        let is_kept = dma.is_some() || device.keeps_memory();
        let new = || device_memory(memory, is_kept, gives_queues);
        let made = earlier.map_or_else(new, |file| earlier_memory(file, bytes));
        let (mut region, file, bounce_file) = made.map_err(failed)?;
        let memory = region.mapping().clone();
        let mut spaces = Spaces::default();
        let refused = |refused: DmaError| failed(io::Error::other(refused));
        let register = |dma| Registration::new(dma, &memory, Access::ReadWrite).map_err(refused);
        let registration = dma.as_ref().map(register).transpose()?;
        let pool = Space::writable(region.split_off_front(pool_bytes));
        let space = spaces.add(pool.registered(registration));
        let mut queue = device.open_queue(queue, &mut spaces)?;
        // A queue that has buffers from an earlier server learns their space.
        queue.rx_fill(&spaces, space, &[]);
        let port = DevicePort {
            queue,
            name: info.name,
            mtu: info.mtu,
            most_mtu: info.mtu,
            link_up: true,
            registers: dma.is_some(),
            can: info.can,
            rx_queue_packets: info.rx_queue_packets as u64,
            rx_packet_buffers: limits.rx_packet_buffers,
            spaces,
            memory,
            file,
            space,
            pool_buffers,
            pool_buffer_bytes,
            unkicked: [false; 2],
            watchdog: Watchdog::of(values),
            has_earlier_memory,
            counts: Counts::default(),
            returned: 0,
            own: OwnQueues::default(),
        };
        let (headroom, slots) = (limits.tx_headroom, BOUNCE_SLOTS);
        Ok((port, BounceMemory { region, space, slots, slot_bytes, headroom, file: bounce_file }))
    }

    /// Returns the file of the device's memory, if a keeper can hold it. The keeper already holds the memory
    /// of an earlier server.
    pub(crate) fn memory_file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().filter(|_| !self.has_earlier_memory).map(AsFd::as_fd)
    }

    /// Returns `true` if the memory is that of an earlier server's packets.
    pub(crate) fn has_earlier_memory(&self) -> bool {
        self.has_earlier_memory
    }

    /// Returns the device's name in the log.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sets the device's name in the log.
    pub(crate) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Returns the largest IP packet, in bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Records a change of the MTU. The bounce buffers limit how much it grows.
    pub(crate) fn set_mtu(&mut self, bytes: usize) {
        self.mtu = bytes.min(self.most_mtu);
    }

    /// Records a change of the link. Only a link that comes up restarts the watchdog: while the
    /// link is down, the watchdog may still free packets of ended sessions. Those of sessions' own
    /// queues restart either way, since while the link is down they check ending sessions alone.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.link_up = up;
        if up {
            self.watchdog.restart(self.of_device().1);
        }
        self.own.restart_watchdogs();
    }

    /// Returns the device's capabilities.
    #[inline]
    pub(crate) fn can(&self) -> Capabilities {
        self.can
    }

    /// Returns `true` if the device does the offload work that `meta` leaves to it.
    pub(crate) fn takes(&self, meta: &Meta) -> bool {
        let can = self.can();
        let segments = meta.segmentation.is_none_or(|segmentation| {
            can.tx_segmentation && (!segmentation.ecn || can.tx_segmentation_ecn)
        });
        meta.is_full() || can.tx_checksum && segments || self.copies(meta)
    }

    /// Returns `true` for a packet that the device copies from the sender's memory itself, before
    /// the call that passes it returns.
    #[inline]
    pub(crate) fn copies(&self, meta: &Meta) -> bool {
        meta.segmentation.is_some() && self.can().tx_large_copied
    }

    /// Returns the number of packets that may wait in the device: half of those that it keeps.
    pub(crate) fn most_waiting(&self) -> u64 {
        self.rx_queue_packets / 2
    }

    /// Returns the maximum number of buffers of a received packet.
    pub(crate) fn rx_packet_buffers(&self) -> usize {
        self.rx_packet_buffers
    }

    /// Returns the memory of the pool, in which received packets are.
    #[inline]
    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Returns the number of the device's pool buffers.
    #[cfg(test)]
    pub(crate) fn pool_buffers(&self) -> u32 {
        self.pool_buffers
    }

    /// Returns the offset of a pool buffer, in bytes.
    #[inline]
    pub(crate) fn offset_of(&self, buffer: u32) -> u32 {
        buffer * self.pool_buffer_bytes
    }

    /// Returns the pool buffer at an offset.
    #[inline]
    pub(crate) fn buffer_at(&self, offset: u32) -> u32 {
        offset / self.pool_buffer_bytes
    }

    /// Adds the memory from which a session sends. The device sends from it in place unless it
    /// cannot, or refused to register the memory.
    /// A session with a queue of its own brings all of its memory along.
    pub(crate) fn add_space(&mut self, key: u32, session: &mut Session) {
        if let Some(own) = session.take_own_queue() {
            let place = self.own.add(key, *own, self.watchdog.fresh(), &mut self.spaces);
            session.transmit.sends_from =
                SendsFrom { space: place.space, in_place: place.parts > 1 };
            session.extras.own = Own::Served(place);
            return;
        }
        let transmit = &mut session.transmit;
        let space = Space::new(transmit.memory().clone());
        let space = self.spaces.add(space.registered(transmit.registration.clone()));
        let reaches = !self.registers || transmit.registration.is_some();
        transmit.sends_from = SendsFrom { space, in_place: self.can.tx_in_place && reaches };
    }

    /// Returns the data space of the device's own memory.
    #[cfg(test)]
    pub(crate) fn bounce_space(&self) -> SpaceId {
        self.space
    }

    /// Removes a memory of which no packet is in flight.
    pub(crate) fn remove_space(&mut self, space: SpaceId) {
        self.spaces.remove(space);
    }

    /// Returns the pool buffers that the device does not have from an earlier server.
    pub(crate) fn empty_buffers(&self) -> FreeBuffers {
        let mut empty = FreeBuffers::with_room(self.pool_buffers as usize);
        let ours = (0..self.pool_buffers).filter(|one| !self.queue.holds(self.offset_of(*one)));
        ours.rev().for_each(|buffer| empty.release(buffer));
        empty
    }

    /// Gives the device empty buffers, by their offsets. Returns how many it took, from the front.
    /// The device need not know of them before [`DevicePort::kick`].
    pub(crate) fn fill(&mut self, offsets: &[u32]) -> usize {
        let taken = self.queue.rx_fill(&self.spaces, self.space, offsets);
        self.unkicked[Kick::Rx as usize] |= taken > 0;
        taken
    }

    /// Tells the device of new entries of a ring, if it does not know of all.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    #[inline]
    pub(crate) fn kick(&mut self, ring: Kick) -> Result<(), DeviceError> {
        if ring == Kick::Tx && !self.own.is_empty() {
            self.own.kick(&mut self.spaces)?;
        }
        if !std::mem::take(&mut self.unkicked[ring as usize]) {
            return Ok(());
        }
        self.queue.kick(&mut self.spaces, ring)
    }

    /// Tells the device of empty buffers, and appends at most `budget` received packets to `out`.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn poll(
        &mut self,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.kick(Kick::Rx)?;
        self.queue.rx_poll(&mut self.spaces, out, budget)
    }

    /// Appends the completions of packets to `out`. Returns their number.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn complete(&mut self, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        let count = self.queue.tx_complete(out, BOUNCE_SLOTS as usize)?;
        self.returned += count as u64;
        self.watchdog.completed(count, self.of_device().0, clock_ns);
        if self.own.is_empty() {
            return Ok(count);
        }
        let own = self.own.complete(out)?;
        self.returned += own as u64;
        Ok(count + own)
    }

    /// Returns the number of packets in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.counts.taken - self.returned
    }

    /// Returns the descriptor that becomes readable when the device has work.
    pub(crate) fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.sleep_fd()
    }

    /// Returns the descriptors that become readable when sessions' own queues have work.
    pub(crate) fn own_sleep_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        (0..self.own.end()).filter_map(|number| self.own.sleep_fd(number))
    }

    /// Asks the device to end the engine's sleep. `waiting`: packets wait for room, too.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn arm(&mut self, waiting: bool) -> Result<Armed, DeviceError> {
        let own = if self.own.is_empty() { Armed::Sleep } else { self.own.arm()? };
        Ok(if self.queue.arm(waiting)? == Armed::Work { Armed::Work } else { own })
    }

    /// Returns the number of packets in flight, and of those ever returned, without those of
    /// sessions' own queues.
    #[inline]
    fn of_device(&self) -> (u64, u64) {
        let (own_out, own_completed) = self.own.counts();
        (self.in_flight() - own_out, self.returned - own_completed)
    }

    /// Returns the driver's counters.
    pub(crate) fn driver_counters(&self) -> Counters {
        let mut counters = self.queue.counters();
        self.own.count(&mut counters);
        counters
    }

    /// Returns the counts of packets that the device took.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the error of an operation on the device that the kernel refused.
    pub(crate) fn failed(&self, what: &'static str, cause: impl Into<io::Error>) -> DeviceError {
        DeviceError::Failed { name: self.name().to_string(), what, cause: cause.into() }
    }
}

const _: () = assert!(MAX_IN_FLIGHT * 8 <= BOUNCE_SLOTS as usize);
const _: () = assert!(MAX_OF_ALL * 2 <= BOUNCE_SLOTS as usize);
const _: () = assert!(POOL_HEADROOM_BYTES.is_multiple_of(64));

#[cfg(test)]
mod tests {
    use towpath_device::{Packet, Part};
    use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
    use towpath_device_testing::loopback;

    use super::*;

    fn port(config: &loopback::Config) -> (DevicePort, BounceMemory, DeviceFarEnd) {
        let (mut near, far) = loopback::pair(config).unwrap();
        let (port, memory) =
            DevicePort::start(&mut near, 0, 64, false, &Values::default()).unwrap();
        (port, memory, DeviceFarEnd::new(Box::new(far)))
    }

    #[test]
    fn received_packets_are_in_the_buffers_that_the_device_got() {
        let (mut port, _, mut far) = port(&loopback::Config::default());
        let offsets = [port.offset_of(3), port.offset_of(5)];
        assert_eq!(port.fill(&offsets), 2);
        for byte in [1, 2] {
            assert!(far.send(&[byte; 60], Meta::FULL));
        }
        let mut received = Vec::new();
        assert_eq!(port.poll(&mut received, 8).unwrap(), 2);
        for (one, byte) in received.iter().zip([1, 2]) {
            let mut data = [0; 60];
            assert!(port.memory().copy_out(one.offset as usize, &mut data));
            assert_eq!(data, [byte; 60]);
            assert!([3, 5].contains(&port.buffer_at(one.buffer)));
        }
    }

    #[test]
    fn the_bounce_buffers_are_behind_the_pool_and_the_device_may_not_write_them() {
        let (mut port, memory, _far) = port(&loopback::Config::default());
        let pool_end = port.offset_of(port.pool_buffers());
        assert_eq!(memory.region.offset(), pool_end as usize);
        assert_eq!(port.fill(&[pool_end]), 0, "no buffer of the pool");
    }

    #[test]
    fn the_pool_follows_the_limits_of_the_device() {
        let config =
            loopback::Config { rx_ring: 1000, rx_alignment: 4096, ..loopback::Config::default() };
        let (mut port, memory, _far) = port(&config);
        assert_eq!(port.pool_buffers(), 1000 + 64, "the ring, and a batch");
        let offsets: Vec<u32> = (0..20).map(|buffer| port.offset_of(buffer)).collect();
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(4096)));
        assert_eq!(port.fill(&offsets), 20);
        assert!(memory.region.offset() >= 1064 * 4096);

        let config = loopback::Config { address_bits: 20, ..loopback::Config::default() };
        let (mut near, _far) = loopback::pair(&config).unwrap();
        let outcome = DevicePort::start(&mut near, 0, 64, false, &Values::default());
        assert!(matches!(outcome, Err(DeviceError::Failed { what: "memory for its packets", .. })));
    }

    #[test]
    fn packets_are_in_flight_until_the_device_completes_or_returns_them() {
        let config = loopback::Config { ring_packets: 2, ..loopback::Config::default() };
        let (mut port, memory, _far) = port(&config);
        let offset = memory.region.offset() as u32;
        let parts = [Part { space: memory.space, offset, len: 60 }];
        let packet = |token| Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
        let taken = port.submit(&[packet(1), packet(2), packet(3)]).unwrap();
        assert_eq!((taken, port.in_flight()), (2, 2));
        let counts = Counts { taken: 2, taken_bytes: 120 };
        assert_eq!(port.counts(), counts);
        let (mut buffers, mut completions) = (Vec::new(), Vec::new());
        port.reset(&mut buffers, &mut completions).unwrap();
        assert_eq!((port.in_flight(), completions.len()), (0, 2));
        assert_eq!(port.counts(), counts);
    }
}

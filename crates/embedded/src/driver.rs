//! The driver of a device and its memory, for one thread at a time.

mod receive;
mod reset;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use towpath_device::{
    Access, Completion, Device, DeviceError, DeviceQueue, Filter, FilterError, Info, Part,
    Registration, Space, SpaceId, Spaces, TxHeadroom, VLAN_TAG_BYTES, packet_memory,
};
use towpath_memory::{Mapping, Region};
use towpath_queue::buffers::FreeBuffers;

use crate::reader::Readers;
use crate::reception::Reception;
use crate::sleep::Bell;
use crate::{Config, Counts};

/// The maximum number of packets of one batch for the device.
const BATCH: usize = 32;
/// Bytes that an Ethernet header and a VLAN tag add to an IP packet.
const AROUND_BYTES: usize = 18;
/// Bytes in front of a packet to send; they hold its length.
const LENGTH_BYTES: usize = 64;

/// A device and the memory of its packets, for one thread at a time.
///
/// A driver belongs to the process that made it. A child made by `fork` must not call or drop it;
/// [`Embedded`](crate::Embedded) refuses such calls.
pub struct Driver {
    queue: Box<dyn DeviceQueue>,
    /// The control part, which reports events.
    device: Box<dyn Device>,
    name: String,
    spaces: Spaces,
    space: SpaceId,
    pub(super) buffers: Buffers,
    own: FreeBuffers,
    /// The memory of the driver's own buffers.
    own_memory: Region,
    receive: FreeBuffers,
    /// Packets for which the device had no room, in order.
    waiting: VecDeque<Waiting>,
    completions: Vec<Completion>,
    /// Packets in flight from which [`Driver::send`] takes completions.
    collect_at: u64,
    /// `true` if packets may stay in flight after the call that submitted them.
    goes_on: bool,
    /// Buffers of packets that other threads left, and that the device completed.
    pub(super) slots: Vec<u32>,
    reception: Reception,
    returned_buffers: Vec<u32>,
    /// `false` while the device's link is down, as far as the device's events say.
    is_link_up: bool,
    /// `true` while a thread is inside of the section. A thread that enters and finds `true` learns
    /// that the last one panicked.
    is_inside: bool,
    /// `true` once a thread panicked inside: the device may have any state, and is not called any
    /// more.
    is_broken: bool,
    pub(super) failure: Option<DeviceError>,
    /// Wakes the sleeping thread for work of which the device does not know.
    pub(super) bell: Option<Bell>,
    counts: Counts,
}

/// A packet that the device has yet to take.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    buffer: u32,
    len: u32,
}

/// The positions of the buffers: first those of packets that threads left, then those of threads
/// inside, then those to receive into.
#[derive(Clone, Debug)]
pub(super) struct Buffers {
    /// For reading. To write a packet takes its buffer's [`Region`].
    memory: Arc<Mapping>,
    left: u32,
    transmit_bytes: usize,
    /// The offset of the first buffer to receive into.
    receive_start: usize,
    receive_bytes: usize,
    pub(super) longest: usize,
}

impl Buffers {
    fn start(&self, buffer: u32) -> usize {
        buffer as usize * self.transmit_bytes
    }

    fn part(&self, Waiting { buffer, len }: Waiting, space: SpaceId) -> Part {
        Part { space, offset: (self.start(buffer) + LENGTH_BYTES) as u32, len }
    }

    /// Returns the length of a packet that a thread left.
    fn left_len(&self, slot: u32) -> u32 {
        let mut len = [0; 4];
        let read = self.memory.copy_out(self.start(slot), &mut len);
        debug_assert!(read, "a buffer has its length in front");
        u32::from_ne_bytes(len)
    }

    /// Returns the offset of a buffer to receive into.
    fn receive_start(&self, buffer: u32) -> u32 {
        (self.receive_start + buffer as usize * self.receive_bytes) as u32
    }

    fn receive_buffer(&self, start: u32) -> u32 {
        ((start - self.receive_start(0)) as usize / self.receive_bytes) as u32
    }
}

/// Writes a packet that a thread leaves, and its length in front, into the buffer's region.
pub(super) fn write_left(region: &mut Region, packet: &[u8]) {
    let len = (packet.len() as u32).to_ne_bytes();
    let written = region.copy_in(0, &len) && region.copy_in(LENGTH_BYTES, packet);
    debug_assert!(written, "buffers are as long as the longest packet");
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("device", &self.name).finish_non_exhaustive()
    }
}

/// The sizes of a driver's buffers, in bytes.
struct Sizes {
    /// The longest frame.
    longest: usize,
    /// A transmit buffer, and a receive buffer.
    transmit_bytes: usize,
    receive_bytes: usize,
    /// All transmit buffers.
    transmit: usize,
    /// The offset of the first receive buffer.
    receive_start: usize,
    /// All buffers.
    bytes: usize,
}

impl Sizes {
    /// Returns the sizes that a device and a configuration need.
    fn new(info: &Info, config: &Config) -> Result<Sizes, DeviceError> {
        let in_range = |count: u32| (1..=1 << 16).contains(&count);
        if !config.left.is_power_of_two()
            || ![config.left, config.own, config.receive].into_iter().all(in_range)
        {
            let cause = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(failed(info, "numbers of buffers", cause));
        }
        let limits = &info.limits;
        if limits.tx_headroom != TxHeadroom::None {
            let cause = io::Error::from(io::ErrorKind::Unsupported);
            return Err(failed(
                info,
                "checksums by the device, which this driver does not leave to it",
                cause,
            ));
        }
        let longest = info.mtu + AROUND_BYTES;
        let transmit_bytes = (LENGTH_BYTES + longest).next_multiple_of(128);
        // A device may send only from aligned buffers in one piece, as it receives into them.
        let transmit_bytes = if transmit_bytes < limits.rx_alignment {
            transmit_bytes.next_power_of_two()
        } else {
            transmit_bytes.next_multiple_of(limits.rx_alignment)
        };
        let receive_bytes = limits.rx_stride().next_multiple_of(128);
        let transmit = (config.left + config.own) as usize * transmit_bytes;
        let receive_start = transmit.next_multiple_of(limits.rx_alignment);
        let bytes = receive_start + config.receive as usize * receive_bytes;
        if u32::try_from(bytes).is_err() || !limits.reaches(bytes) {
            let cause = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(failed(info, "memory for its packets", cause));
        }
        Ok(Sizes { longest, transmit_bytes, receive_bytes, transmit, receive_start, bytes })
    }
}

fn failed(info: &Info, what: &'static str, cause: io::Error) -> DeviceError {
    DeviceError::Failed { name: info.name.clone(), what, cause }
}

impl Driver {
    /// Starts a device.
    ///
    /// # Errors
    /// When there is no memory, when the device does not start, or when a number is out of its
    /// range.
    pub fn new(device: Box<dyn Device>, config: Config) -> Result<Driver, DeviceError> {
        Driver::with_left(device, config).map(|(driver, _)| driver)
    }

    /// Starts a device, and returns the memory of each buffer in which threads may leave packets.
    pub(super) fn with_left(
        mut device: Box<dyn Device>,
        config: Config,
    ) -> Result<(Driver, Vec<Region>), DeviceError> {
        let info = device.info().clone();
        let failed = |cause: io::Error| failed(&info, "memory for its packets", cause);
        let Sizes { longest, transmit_bytes, receive_bytes, transmit, receive_start, bytes } =
            Sizes::new(&info, &config)?;
        let (mut memory, _) = packet_memory(bytes, device.dma().is_some()).map_err(failed)?;
        let buffers = Buffers {
            memory: memory.mapping().clone(),
            left: config.left,
            transmit_bytes,
            receive_start,
            receive_bytes,
            longest,
        };
        let left = (0..config.left).map(|_| memory.split_off_front(transmit_bytes)).collect();
        let own_memory = memory.split_off_front(config.own as usize * transmit_bytes);
        // The gap up to the first aligned buffer.
        let _ = memory.split_off_front(receive_start - transmit);
        let mut spaces = Spaces::default();
        // The device writes the receive buffers, and only reads the others.
        let register = |dma| Registration::new(dma, memory.mapping(), Access::ReadWrite);
        let registration = device.dma().as_ref().map(register).transpose();
        let refused = |error| failed(io::Error::other(error));
        let space = spaces.add(Space::writable(memory).registered(registration.map_err(refused)?));
        // Only the program knows which packets it wants.
        match device.add_filter(&Filter::Everything) {
            Ok(()) | Err(FilterError::Unsupported) => {}
            Err(error) => return Err(failed(io::Error::other(error))),
        }
        let queue = device.open_queue(0, &mut spaces)?;
        let packets = (config.left + config.own) as usize;
        let driver = Driver {
            queue,
            device,
            name: info.name.clone(),
            spaces,
            space,
            own: FreeBuffers::new(config.left, config.left + config.own),
            own_memory,
            receive: FreeBuffers::new(0, config.receive),
            waiting: VecDeque::with_capacity(packets),
            completions: Vec::with_capacity(packets),
            collect_at: u64::from(config.left.min(config.own) / 2).clamp(1, BATCH as u64),
            goes_on: info.can.tx_asynchronous,
            slots: Vec::with_capacity(config.left as usize),
            reception: Reception::new(
                BATCH * info.limits.rx_packet_buffers,
                info.limits.rx_packet_buffers * receive_bytes + VLAN_TAG_BYTES,
            ),
            returned_buffers: Vec::with_capacity(config.receive as usize),
            is_link_up: true,
            is_inside: false,
            is_broken: false,
            buffers,
            failure: None,
            bell: None,
            counts: Counts::default(),
        };
        Ok((driver, left))
    }

    fn fail(&mut self, error: DeviceError) {
        self.failure.get_or_insert(error);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(bell) = &mut self.bell {
            bell.notify();
        }
    }

    /// Notes that the thread that slept is awake.
    pub(super) fn disarm(&mut self) {
        if let Some(bell) = &mut self.bell {
            bell.awake();
        }
    }

    /// Returns the descriptor that is readable while the device has events.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.event_fd()
    }

    /// Returns the descriptor by which the device wakes a thread.
    pub(super) fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.sleep_fd()
    }

    /// Returns the bytes of the longest packet that the device may receive.
    pub(super) fn longest_received(&self) -> usize {
        let buffers = self.device.info().limits.rx_packet_buffers;
        buffers * self.buffers.receive_bytes + VLAN_TAG_BYTES
    }

    /// Has [`Driver::interrupt`] deliver received packets to readers.
    pub(super) fn set_readers(&mut self, readers: Readers) {
        self.reception.readers = Some(readers);
    }

    /// Notes that a thread entered. If the last thread panicked inside, the driver failed for good.
    #[inline]
    pub(super) fn begin(&mut self) {
        if std::mem::replace(&mut self.is_inside, true) {
            self.fail_after_panic();
        }
    }

    /// Notes that the thread inside leaves.
    #[inline]
    pub(super) fn end(&mut self) {
        self.is_inside = false;
    }

    #[cold]
    pub(super) fn fail_after_panic(&mut self) {
        self.is_broken = true;
        let cause =
            io::Error::other("a thread panicked inside of the driver; open the device anew");
        self.fail(DeviceError::Failed { name: self.name.clone(), what: "a call", cause });
    }

    /// Returns the counts, for a change.
    pub(super) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Returns the number of packets that wait for the device or are in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.in_flight() as usize
    }

    /// Returns the number of packets that the device took and did not complete.
    pub(super) fn in_flight(&self) -> u64 {
        self.counts.taken - self.counts.returned
    }

    /// Returns the counts; the counts of the section are 0.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { device: self.queue.counters(), ..self.counts }
    }
}

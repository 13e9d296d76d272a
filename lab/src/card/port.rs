//! A card that this program drives with Towpath's driver, without a server: packets stay in the
//! buffers into which the card received them.

use std::os::fd::BorrowedFd;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use towpath_device::{
    Access, Armed, Completion, Device, DeviceQueue, Filter, Kick, Meta, Packet, Part, Received,
    Registration, Space, SpaceId, Spaces, packet_memory,
};
use towpath_device_pci::PciAddress;
use towpath_device_pci::e1000e::{E1000eDevice, Moderation, Options};
use towpath_memory::Region;

/// The bytes of a buffer.
const BUFFER_BYTES: usize = 2048;
/// Buffers to receive into: the card's ring, and as many that may be in flight.
pub(super) const BUFFERS: u32 = 1024;
/// Packets of one batch.
pub(super) const BATCH: usize = 64;
/// Buffers that the card gets together. Fewer would cost more writes of its registers.
const REFILL: usize = 32;
/// The bytes of a packet of which this program decides.
pub(super) const HEAD_BYTES: usize = 16;
/// The token of the packet that is sent again and again.
const TEMPLATE: u64 = u64::MAX;

/// A card and the memory of its packets.
pub(super) struct Port {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    _device: Box<dyn Device>,
    spaces: Spaces,
    space: SpaceId,
    /// From a buffer to the next one, in bytes.
    stride: usize,
    mac: [u8; 6],
    /// Buffers that neither the card has nor a packet in flight.
    free: Vec<u32>,
    /// The room for buffers in the card's ring.
    room: usize,
    received: Vec<Received>,
    /// Received packets that go back.
    back: Vec<(u32, u32)>,
    completions: Vec<Completion>,
    /// Writes of the card's registers.
    writes: u64,
}

impl Port {
    /// Opens a card that VFIO has. `rx_usecs`: the least time between two interrupts.
    pub(super) fn open(address: &str, rx_usecs: u32) -> anyhow::Result<Port> {
        let (memory, _) = packet_memory(Port::bytes(BUFFER_BYTES), true)?;
        Port::over(address, rx_usecs, memory, BUFFER_BYTES)
    }

    /// Returns the bytes of memory for buffers that are `stride` bytes apart.
    pub(super) const fn bytes(stride: usize) -> usize {
        (1 + BUFFERS as usize) * stride
    }

    /// Opens a card as [`Port::open`] does, over memory of [`Port::bytes`] for buffers.
    pub(super) fn over(
        address: &str,
        rx_usecs: u32,
        memory: Region,
        stride: usize,
    ) -> anyhow::Result<Port> {
        ensure!(memory.len() >= Port::bytes(stride), "too little memory for buffers");
        let address: PciAddress = address.parse().context("a card's address")?;
        let mut options = Options::new(address);
        options.moderation = Moderation::Vectors { rx_usecs, tx_usecs: rx_usecs };
        let mut device = E1000eDevice::open(&options)?;
        let (mac, room) = (device.info().mac, device.info().limits.rx_ring);
        let dma = device.dma().context("a card without access to memory")?;
        let registration = Registration::new(&dma, memory.mapping(), Access::ReadWrite)?;
        let mut spaces = Spaces::default();
        let space = spaces.add(Space::writable(memory).registered(Some(registration)));
        device.add_filter(&Filter::Address(mac))?;
        let queue = device.open_queue(0, &mut spaces)?;
        let mut port = Port {
            queue,
            _device: Box::new(device),
            spaces,
            space,
            stride,
            mac,
            room,
            free: (1..=BUFFERS).map(|number| number * stride as u32).collect(),
            received: Vec::with_capacity(BATCH),
            back: Vec::with_capacity(BATCH),
            completions: Vec::with_capacity(BATCH),
            writes: 0,
        };
        port.refill()?;
        Ok(port)
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the number of writes of the card's registers since it was opened, for packets alone.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Takes a batch of received packets. `is_back` may change the start of a packet, and returns
    /// `true` to have the packet sent from where it lies. Returns the number of packets.
    pub(super) fn receive(
        &mut self,
        mut is_back: impl FnMut(&mut [u8; HEAD_BYTES]) -> bool,
    ) -> anyhow::Result<usize> {
        self.back.clear();
        let count = self.poll()?;
        for one in &self.received {
            let mut head = [0; HEAD_BYTES];
            self.spaces.copy_out(self.space, one.offset, &mut head)?;
            if is_back(&mut head) {
                self.spaces.copy_in(self.space, one.offset, &head)?;
                self.back.push((one.buffer, one.len));
            } else {
                self.free.push(one.buffer);
            }
        }
        let back = std::mem::take(&mut self.back);
        self.send_from(&back)?;
        self.back = back;
        self.refill_in_batches()?;
        Ok(count)
    }

    /// Takes a batch of received packets: each with its buffer, where it lies, and its length. The caller
    /// gives each buffer back, by [`Port::complete`] or [`Port::send_from`].
    pub(super) fn take(&mut self, taken: &mut Vec<(u32, u32)>) -> anyhow::Result<usize> {
        let count = self.poll()?;
        taken.clear();
        taken.extend(self.received.iter().map(|one| (one.buffer, one.len)));
        Ok(count)
    }

    fn poll(&mut self) -> anyhow::Result<usize> {
        self.received.clear();
        let count = self.queue.rx_poll(&mut self.spaces, &mut self.received, BATCH)?;
        self.room += self.received.len();
        Ok(count)
    }

    /// Gives back the buffer of a received packet.
    pub(super) fn complete(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// Copies a received packet.
    pub(super) fn copy_out(&self, buffer: u32, to: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.spaces.copy_out(self.space, buffer, to)?)
    }

    /// Copies a packet into a free buffer, for [`Port::send_from`]. Returns `None` if no buffer is free.
    pub(super) fn copy_in(&mut self, packet: &[u8]) -> anyhow::Result<Option<u32>> {
        ensure!(packet.len() <= self.stride, "a packet longer than a buffer");
        let Some(buffer) = self.free.pop() else { return Ok(None) };
        self.spaces.copy_in(self.space, buffer, packet)?;
        Ok(Some(buffer))
    }

    /// Sends at most [`BATCH`] packets from their buffers, with one kick, and gives the buffers back.
    pub(super) fn send_from(&mut self, from: &[(u32, u32)]) -> anyhow::Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let part = |(offset, len)| [Part { space: self.space, offset, len }];
        let parts: [[Part; 1]; BATCH] =
            std::array::from_fn(|place| part(from.get(place).copied().unwrap_or_default()));
        let packet = |(place, (offset, _)): (usize, &(u32, u32))| Packet {
            parts: &parts[place],
            meta: Meta::FULL,
            tag: None,
            token: u64::from(*offset),
        };
        let mut packets =
            [Packet { parts: &[], meta: Meta::FULL, tag: None, token: TEMPLATE }; BATCH];
        for (to, from) in packets.iter_mut().zip(from.iter().enumerate().map(packet)) {
            *to = from;
        }
        let packets = packets.get(..from.len()).context("more packets than a batch")?;
        let taken = self.queue.tx_submit(&mut self.spaces, packets)?;
        // The card has no room: as a switch does, this program drops the rest.
        self.free.extend(from[taken..].iter().map(|(offset, _)| *offset));
        self.kick_tx(taken)
    }

    fn kick_tx(&mut self, taken: usize) -> anyhow::Result<()> {
        if taken > 0 {
            self.queue.kick(&mut self.spaces, Kick::Tx)?;
            self.writes += 1;
        }
        self.completions.clear();
        self.queue.tx_complete(&mut self.completions, BATCH)?;
        let tokens = self.completions.iter().map(|one| one.token);
        self.free.extend(tokens.filter(|token| *token != TEMPLATE).map(|token| token as u32));
        Ok(())
    }

    /// Gives the card its free buffers if that is worth a write of its register.
    pub(super) fn refill_in_batches(&mut self) -> anyhow::Result<()> {
        if self.room >= REFILL { self.refill() } else { Ok(()) }
    }

    fn refill(&mut self) -> anyhow::Result<()> {
        let taken = self.queue.rx_fill(&self.spaces, self.space, &self.free);
        self.free.drain(..taken);
        self.room -= taken;
        if taken > 0 {
            self.queue.kick(&mut self.spaces, Kick::Rx)?;
            self.writes += 1;
        }
        Ok(())
    }

    /// Sets the packet that [`Port::send`] sends.
    pub(super) fn set_packet(&mut self, packet: &[u8]) -> anyhow::Result<()> {
        ensure!(packet.len() <= self.stride, "a packet longer than a buffer");
        Ok(self.spaces.copy_in(self.space, 0, packet)?)
    }

    /// Sends the packet `count` times, with one kick per batch.
    pub(super) fn send(&mut self, count: usize, len: usize) -> anyhow::Result<()> {
        let parts = [Part { space: self.space, offset: 0, len: len as u32 }];
        let packets =
            [Packet { parts: &parts, meta: Meta::FULL, tag: None, token: TEMPLATE }; BATCH];
        let mut left = count;
        while left > 0 {
            let taken = self.queue.tx_submit(&mut self.spaces, &packets[..left.min(BATCH)])?;
            left -= taken;
            self.kick_tx(taken)?;
        }
        Ok(())
    }

    /// Sleeps until there may be work.
    pub(super) fn sleep(&mut self) -> anyhow::Result<()> {
        self.sleep_beside(None)
    }

    /// Sleeps until there may be work, or until the other descriptor is readable.
    pub(super) fn sleep_beside(&mut self, other: Option<BorrowedFd<'_>>) -> anyhow::Result<()> {
        if self.queue.arm(false)? == Armed::Work {
            return Ok(());
        }
        let fd: BorrowedFd<'_> = self.queue.sleep_fd().context("a card without interrupts")?;
        let wait = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        match other {
            None => poll(&mut [wait(fd)], None)?,
            Some(other) => poll(&mut [wait(fd), wait(other)], None)?,
        };
        Ok(())
    }
}

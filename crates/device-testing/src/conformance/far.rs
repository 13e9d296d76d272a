//! The other end of the wire.

use std::collections::VecDeque;

use towpath_device::{
    Access, Assembly, Capabilities, Completion, Device, DeviceQueue, Kick, Meta, Packet, Part,
    Received, Registration, Space, SpaceId, Spaces,
};
use towpath_memory::Region;

use super::everything::receive_everything;

/// Puts frames on a device's wire, and takes them off.
pub trait FarEnd: Send {
    /// Sends a frame toward the device. Returns `false` if there is no room now.
    fn send(&mut self, frame: &[u8], meta: Meta) -> bool;

    /// Returns the next frame from the wire, if there is one now. This may be other traffic; the
    /// suite recognizes its own frames by their source address.
    fn receive(&mut self) -> Option<(Vec<u8>, Meta)>;

    /// `true` if [`FarEnd::send`] takes large packets and partial checksums.
    fn takes_metadata(&self) -> bool;
}

/// The number of the far device's empty buffers, and of its slots for packets to send.
const BUFFERS: u32 = 128;
const PLACES: u32 = 64;
/// The size of a slot: room for the longest packet, in bytes.
const PLACE_BYTES: u32 = 64 * 1024 + 64;

/// A device as the other end, for devices that come in pairs.
pub struct DeviceFarEnd {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the first queue.
    _device: Option<Box<dyn Device>>,
    can: Capabilities,
    spaces: Spaces,
    memory: SpaceId,
    /// Free slots for packets to send: offsets, which serve as tokens.
    places: Vec<u64>,
    assembly: Assembly,
    completions: Vec<Completion>,
    received: VecDeque<Received>,
}

impl DeviceFarEnd {
    /// Starts the device, which has one queue.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn new(mut device: Box<dyn Device>) -> DeviceFarEnd {
        receive_everything(&mut *device);
        let mut far = DeviceFarEnd::of_queue(&mut *device, 0);
        far._device = Some(device);
        far
    }

    /// Starts all queues of the device, which lives as long as the first of them.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn of_all(mut device: Box<dyn Device>) -> Vec<DeviceFarEnd> {
        receive_everything(&mut *device);
        let queues = 0..device.info().queues;
        let mut far: Vec<_> =
            queues.map(|queue| DeviceFarEnd::of_queue(&mut *device, queue)).collect();
        if let Some(first) = far.first_mut() {
            first._device = Some(device);
        }
        far
    }

    fn of_queue(device: &mut dyn Device, index: usize) -> DeviceFarEnd {
        let mut spaces = Spaces::default();
        let buffer_bytes = device.info().limits.rx_stride() as u32;
        let bytes = BUFFERS as usize * buffer_bytes as usize + (PLACES * PLACE_BYTES) as usize;
        let region = Region::private(bytes).expect("memory");
        let register =
            |dma| Registration::new(dma, region.mapping(), Access::ReadWrite).expect("registered");
        let registration = device.dma_of(index).as_ref().map(register);
        let memory = spaces.add(Space::writable(region).registered(registration));
        let mut queue = device.open_queue(index, &mut spaces).expect("the far end starts");
        let buffers: Vec<u32> = (0..BUFFERS).map(|index| index * buffer_bytes).collect();
        queue.rx_fill(&spaces, memory, &buffers);
        queue.kick(&mut spaces, Kick::Rx).expect("the far end starts");
        let start = BUFFERS * buffer_bytes;
        let places = (0..PLACES).map(|index| u64::from(start + index * PLACE_BYTES)).collect();
        let can = device.info().can;
        let received = VecDeque::new();
        DeviceFarEnd {
            queue,
            _device: None,
            can,
            spaces,
            memory,
            places,
            assembly: Assembly::default(),
            completions: Vec::new(),
            received,
        }
    }

    fn turn(&mut self) {
        let mut received = Vec::new();
        let budget = 64usize.saturating_sub(self.received.len());
        // A device that is gone has no more packets to return.
        let _ = self.queue.rx_poll(&mut self.spaces, &mut received, budget);
        self.received.extend(received);
        let _ = self.queue.tx_complete(&mut self.completions, PLACES as usize);
        self.places.extend(self.completions.drain(..).map(|completion| completion.token));
    }
}

impl FarEnd for DeviceFarEnd {
    fn send(&mut self, frame: &[u8], meta: Meta) -> bool {
        assert!(frame.len() <= PLACE_BYTES as usize, "a frame longer than a slot");
        self.turn();
        let Some(token) = self.places.pop() else { return false };
        let offset = token as u32;
        self.spaces.copy_in(self.memory, offset, frame).expect("inside");
        let parts = [Part { space: self.memory, offset, len: frame.len() as u32 }];
        let packet = Packet { parts: &parts, meta, tag: None, token };
        let taken = self.queue.tx_submit(&mut self.spaces, &[packet]).expect("the far end sends");
        if taken == 0 {
            self.places.push(token);
        }
        self.queue.kick(&mut self.spaces, Kick::Tx).expect("the far end sends");
        self.turn();
        taken > 0
    }

    fn receive(&mut self) -> Option<(Vec<u8>, Meta)> {
        if self.received.is_empty() {
            self.turn();
        }
        let count = 1 + self.received.iter().position(|one| !one.continues)?;
        let buffers = &self.received.make_contiguous()[..count];
        let (frame, meta) = self.assembly.received(&self.spaces, buffers).expect("inside");
        let frame = frame.to_vec();
        for one in self.received.drain(..count) {
            self.queue.rx_fill(&self.spaces, one.space, &[one.buffer]);
        }
        self.queue.kick(&mut self.spaces, Kick::Rx).expect("the far end receives");
        Some((frame, meta))
    }

    fn takes_metadata(&self) -> bool {
        self.can.tx_checksum && self.can.tx_segmentation
    }
}

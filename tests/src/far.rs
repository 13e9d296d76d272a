//! The far end of a loopback device that echoes every packet, without allocating, so that a test
//! can count the allocations of its process.

use towpath_device::{
    Completion, Device, DeviceQueue, Kick, Meta, Packet, Part, Received, Space, SpaceId, Spaces,
};
use towpath_memory::Region;

const FRAMES: u32 = 256;

/// The far end.
pub struct Echo {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    _device: Box<dyn Device>,
    spaces: Spaces,
    pool: SpaceId,
    buffer_bytes: u32,
    received: Vec<Received>,
    completions: Vec<Completion>,
    /// Buffers back from the device, to be provided again.
    empty: Vec<u32>,
    /// Received packets to be echoed, in the order of their arrival.
    waiting: std::collections::VecDeque<Received>,
    /// The number of echoed packets.
    pub echoed: u64,
}

impl std::fmt::Debug for Echo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Echo").field("echoed", &self.echoed).finish_non_exhaustive()
    }
}

impl Echo {
    /// Starts the device.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn new(mut device: Box<dyn Device>) -> Echo {
        let mut spaces = Spaces::default();
        let queue = device.open_queue(0, &mut spaces).expect("the far end starts");
        let buffer_bytes = device.info().limits.rx_stride().next_multiple_of(128) as u32;
        let memory = Region::private((FRAMES * buffer_bytes) as usize).expect("memory");
        let pool = spaces.add(Space::writable(memory));
        let empty = (0..FRAMES).map(|index| index * buffer_bytes).collect();
        Echo {
            queue,
            _device: device,
            spaces,
            pool,
            buffer_bytes,
            received: Vec::with_capacity(64),
            completions: Vec::with_capacity(FRAMES as usize),
            empty,
            waiting: std::collections::VecDeque::with_capacity(FRAMES as usize),
            echoed: 0,
        }
    }

    /// Receives packets and echoes the waiting ones. Returns the number of both together; `None`
    /// when the other end is gone.
    pub fn turn(&mut self) -> Option<usize> {
        self.completions.clear();
        self.queue.tx_complete(&mut self.completions, FRAMES as usize).ok()?;
        self.empty.extend(self.completions.iter().map(|completion| completion.token as u32));
        let taken = self.queue.rx_fill(&self.spaces, self.pool, &self.empty);
        self.empty.drain(..taken);
        self.queue.kick(&mut self.spaces, Kick::Rx).ok()?;
        self.received.clear();
        self.queue.rx_poll(&mut self.spaces, &mut self.received, 64).ok()?;
        let mut work = self.received.len();
        for one in &self.received {
            let mut addresses = [0; 12];
            self.spaces.copy_out(self.pool, one.offset, &mut addresses).ok()?;
            addresses.rotate_left(6);
            self.spaces.copy_in(self.pool, one.offset, &addresses).ok()?;
            self.waiting.push_back(*one);
        }
        while let Some(one) = self.waiting.front() {
            let parts = [Part { space: self.pool, offset: one.offset, len: one.len }];
            let token = u64::from(one.buffer / self.buffer_bytes * self.buffer_bytes);
            let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
            if self.queue.tx_submit(&mut self.spaces, &[packet]).ok()? == 0 {
                break;
            }
            self.echoed += 1;
            work += 1;
            self.waiting.pop_front();
        }
        self.queue.kick(&mut self.spaces, Kick::Tx).ok()?;
        Some(work)
    }
}

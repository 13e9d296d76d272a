//! A hardware queue that a session has to itself, with the session's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_device::xdp::XdpDevice;
use towpath_device::{
    Access, Completion, Device, DeviceQueue, HardwareQueue, Kick, Meta, Outcome, OwnMemory, Packet,
    Part, Received, Registration, Space, SpaceId, Spaces,
};
use towpath_memory::{FilePart, Mapping, Region, SharedFile};

/// The distance and the number of the session's receive buffers.
const BUFFER_BYTES: u32 = 2176;
const BUFFERS: u32 = 7;

/// The server's queue of a device.
pub(crate) struct Main {
    pub(crate) queue: Box<dyn DeviceQueue>,
    spaces: Spaces,
    space: SpaceId,
    buffer_bytes: u32,
}

/// The queue of a session.
pub(crate) struct Own {
    pub(crate) queue: Box<dyn DeviceQueue>,
    spaces: Spaces,
    space: SpaceId,
    /// The session's receive buffers, as its application maps them.
    pub(crate) receive: Mapping,
    transmit: Region,
    headers: Region,
    offsets: (u32, u32),
}

impl Main {
    pub(crate) fn open(device: &mut XdpDevice) -> Main {
        let mut spaces = Spaces::default();
        let buffer_bytes = device.info().limits.rx_stride() as u32;
        let region = Region::private(512 * buffer_bytes as usize).unwrap();
        let registration =
            Registration::new(&device.dma().unwrap(), region.mapping(), Access::ReadWrite).unwrap();
        let space = spaces.add(Space::writable(region).registered(Some(registration)));
        let queue = device.open_queue(0, &mut spaces).unwrap();
        let mut main = Main { queue, spaces, space, buffer_bytes };
        let buffers: Vec<u32> = (0..512).map(|index| index * buffer_bytes).collect();
        main.fill(&buffers);
        main
    }

    pub(crate) fn fill(&mut self, buffers: &[u32]) {
        assert_eq!(self.queue.rx_fill(&self.spaces, self.space, buffers), buffers.len());
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
    }

    /// Takes the packets that have arrived.
    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.queue.rx_poll(&mut self.spaces, &mut out, 64).unwrap();
        let buffers: Vec<u32> = out.iter().map(|one| one.buffer).collect();
        assert!(buffers.iter().all(|buffer| buffer.is_multiple_of(self.buffer_bytes)));
        let packets = out.iter().map(|one| {
            let mut bytes = vec![0; one.len as usize];
            self.spaces.copy_out(one.space, one.offset, &mut bytes).unwrap();
            bytes
        });
        let packets = packets.collect();
        self.fill(&buffers);
        packets
    }
}

impl Own {
    pub(crate) fn open(device: &XdpDevice, ceded: HardwareQueue) -> Own {
        let bytes = (BUFFERS * BUFFER_BYTES) as usize;
        let receive = SharedFile::create("receive", bytes).unwrap();
        let transmit = SharedFile::create("transmit", 3 * 4096).unwrap();
        let (headers, header_file) = Region::private_file("headers", 2 * 4096).unwrap();
        let mapping = Mapping::joined(&[
            FilePart { file: &receive, offset: 0, len: receive.len() },
            FilePart { file: &transmit, offset: 0, len: transmit.len() },
            header_file.part(4096, 4096),
        ]);
        let mapping = Arc::new(mapping.unwrap());
        // The session's own mapping stays the only writer.
        let writable = transmit.map_writable().unwrap();
        transmit.seal_future_write().unwrap();
        let (buffer_bytes, buffers) = (BUFFER_BYTES, BUFFERS);
        let memory = OwnMemory { mapping: mapping.clone(), buffer_bytes, buffers };
        let (queue, registration, parts) =
            device.own_queues().unwrap().open(ceded, &memory).unwrap();
        assert!(parts > 1, "the kernel sends several parts");
        let mut spaces = Spaces::default();
        let space = spaces.add(Space::new(mapping).registered(Some(registration)));
        let ends = (receive.len() as u32, (receive.len() + transmit.len()) as u32);
        let receive = receive.map_readable().unwrap();
        let mut own =
            Own { queue, spaces, space, receive, transmit: writable, headers, offsets: ends };
        own.fill(&(0..BUFFERS).collect::<Vec<_>>());
        own
    }

    /// Gives the device buffers of the session, by their numbers.
    pub(crate) fn fill(&mut self, buffers: &[u32]) {
        let offsets: Vec<u32> = buffers.iter().map(|buffer| buffer * BUFFER_BYTES).collect();
        assert_eq!(self.queue.rx_fill(&self.spaces, self.space, &offsets), buffers.len());
        assert_eq!(self.queue.rx_fill(&self.spaces, self.space, &offsets[..1]), 0, "twice");
        let behind = [BUFFERS * BUFFER_BYTES];
        assert_eq!(self.queue.rx_fill(&self.spaces, self.space, &behind), 0, "no buffer");
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
    }

    /// Takes the packets that have arrived, with the numbers of their buffers, from where the
    /// application reads them.
    pub(crate) fn receive(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut out: Vec<Received> = Vec::new();
        self.queue.rx_poll(&mut self.spaces, &mut out, 64).unwrap();
        let packet = |one: &Received| {
            assert!(one.is_whole() && one.buffer.is_multiple_of(BUFFER_BYTES));
            assert_eq!(one.offset, one.buffer + 256, "behind the kernel's headroom");
            let mut bytes = vec![0; one.len as usize];
            assert!(self.receive.copy_out(one.offset as usize, &mut bytes));
            (one.buffer / BUFFER_BYTES, bytes)
        };
        out.iter().map(packet).collect()
    }

    /// Sends a packet, whose first bytes lie in the server's memory, and the others in the
    /// session's.
    pub(crate) fn send(&mut self, header: &[u8], payload: &[u8], token: u64) {
        assert!(self.headers.copy_in(4096 + 100, header) && self.transmit.copy_in(77, payload));
        let part = |offset, len: usize| Part { space: self.space, offset, len: len as u32 };
        let (transmit, headers) = self.offsets;
        let parts = [part(headers + 100, header.len()), part(transmit + 77, payload.len())];
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
        assert_eq!(self.queue.tx_submit(&mut self.spaces, &[packet]).unwrap(), 1);
    }

    /// Has the device send, and waits until it has.
    pub(crate) fn sent(&mut self, token: u64) {
        self.queue.kick(&mut self.spaces, Kick::Tx).unwrap();
        self.completes(Completion { token, outcome: Outcome::Sent });
    }

    pub(crate) fn completes(&mut self, expected: Completion) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut done = Vec::new();
        while done.is_empty() {
            assert!(Instant::now() < deadline, "no completion");
            self.queue.tx_complete(&mut done, 8).unwrap();
        }
        assert_eq!(done, [expected]);
    }
}

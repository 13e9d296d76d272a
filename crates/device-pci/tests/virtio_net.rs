//! The driver of virtio cards, in a virtual machine: see tests/virtio-card.
//!
//! `TOWPATH_CARD` names the card by its PCI address, `TOWPATH_FAR` the kernel's interface at the other end of the
//! wire, and `TOWPATH_MAC` the address that the kernel's driver has shown for the card.

#[path = "support/elsewhere.rs"]
mod elsewhere;

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use elsewhere::{misdirected, until};
use towpath_device::{
    Access, Completion, Device, DeviceQueue, Filter, Kick, Meta, Packet, Part, Registration, Space,
    SpaceId, Spaces,
};
use towpath_device_pci::PciAddress;
use towpath_device_pci::virtio_net::{Options, VirtioNetDevice};
use towpath_device_testing::conformance::{self, FarEnd, FramesOnly, PacketSocket, Pair};
use towpath_memory::Region;

const TESTS: [(&str, fn()); 4] = [
    ("opens", opens),
    ("conformance", conformance),
    ("goes_on_after_a_stop", goes_on_after_a_stop),
    ("wrong_addresses", wrong_addresses),
];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    // What the script does to a card that a server drives.
    if filter.as_deref() == Some("stops") {
        return stops();
    }
    for (name, test) in TESTS {
        if filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        test();
        println!("test virtio_net::{name} ... ok ({} ms)", start.elapsed().as_millis());
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run tests/virtio-card"))
}

fn open() -> VirtioNetDevice {
    let address: PciAddress = variable("TOWPATH_CARD").parse().unwrap();
    VirtioNetDevice::open(&Options::new(address)).unwrap()
}

/// Opens the kernel's interface at the other end. QEMU's card does not carry metadata over this wire.
fn far() -> FramesOnly {
    FramesOnly(PacketSocket::open(&variable("TOWPATH_FAR")).unwrap())
}

/// The card's own address is that which the kernel's driver shows.
fn opens() {
    let octets = open().info().mac.map(|octet| format!("{octet:02x}"));
    let mac = octets.join(":");
    println!("the card's own address: {mac}");
    assert_eq!(mac, variable("TOWPATH_MAC"));
}

fn conformance() {
    conformance::run("virtio_net", 1, || Pair { device: Box::new(open()), far: Box::new(far()) });
}

/// An open card, with the first buffers of its memory to receive, and the last one to send.
struct World {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    _device: VirtioNetDevice,
    spaces: Spaces,
    good: SpaceId,
    far: FramesOnly,
}

const BUFFER_BYTES: u32 = 2048;
const SENDING_AT: u32 = 7 * BUFFER_BYTES;

fn frame() -> Vec<u8> {
    [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], [0x88, 0xb5, 7, 7, 7, 7]].concat()
}

impl World {
    fn new() -> World {
        let mut device = open();
        device.add_filter(&Filter::Everything).unwrap();
        let mut spaces = Spaces::default();
        let dma = device.dma().unwrap();
        let mut region = Region::private(8 * BUFFER_BYTES as usize).unwrap();
        assert!(region.copy_in(SENDING_AT as usize, &frame()));
        let registration = Registration::new(&dma, region.mapping(), Access::ReadWrite).unwrap();
        let good = spaces.add(Space::writable(region).registered(Some(registration)));
        let queue = device.open_queue(0, &mut spaces).unwrap();
        World { queue, _device: device, spaces, good, far: far() }
    }

    fn give(&mut self, space: SpaceId, buffers: &[u32]) {
        assert_eq!(self.queue.rx_fill(&self.spaces, space, buffers), buffers.len());
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
    }

    fn send(&mut self, space: SpaceId, offset: u32, token: u64) {
        let parts = [Part { space, offset, len: frame().len() as u32 }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
        assert_eq!(self.queue.tx_submit(&mut self.spaces, &[packet]).unwrap(), 1);
        self.queue.kick(&mut self.spaces, Kick::Tx).unwrap();
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.queue.tx_complete(&mut done, 8).unwrap();
        done
    }

    /// Sends and receives a frame.
    fn works(&mut self) {
        let good = self.good;
        self.send(good, SENDING_AT, 99);
        until("a completion", || self.completions() == [Completion::sent(99)]);
        until("the frame that was sent", || {
            self.far.receive().is_some_and(|(got, _)| got.starts_with(&frame()))
        });
        let mut received = Vec::new();
        until("a received frame", || {
            self.far.send(&frame(), Meta::FULL);
            self.queue.rx_poll(&mut self.spaces, &mut received, 8).unwrap();
            !received.is_empty()
        });
    }
}

/// Resets the card behind the driver's back: writes 0 to `device_status`, by the window that a capability of the
/// configuration space opens to the BARs (virtio 1.2, 4.1.4.9).
fn stops() {
    let path = format!("/sys/bus/pci/devices/{}/config", variable("TOWPATH_CARD"));
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut configuration = [0; 256];
    file.read_exact_at(&mut configuration, 0).unwrap();
    let byte = |at: usize| usize::from(configuration[at]);
    let mut at = byte(0x34);
    while (byte(at), byte(at + 3)) != (9, 5) {
        at = byte(at + 1);
        assert!(at != 0, "no window to the BARs");
    }
    // QEMU's card has its common configuration at the start of BAR 4, and the register at offset 20: one byte.
    for (place, value) in [(4, 4), (8, 20), (12, 1)] {
        file.write_all_at(
            &u32::to_le_bytes(value)[..if place == 4 { 1 } else { 4 }],
            (at + place) as u64,
        )
        .unwrap();
    }
    file.write_all_at(&[0], (at + 16) as u64).unwrap();
}

/// A card that does not send is reset, and sends what it had not.
fn goes_on_after_a_stop() {
    let mut world = World::new();
    let good = world.good;
    world.give(good, &[0, BUFFER_BYTES]);
    world.works();
    stops();
    world.send(good, SENDING_AT, 5);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(world.completions(), [], "the card has stopped");
    let mut buffers = Vec::new();
    world.queue.reset(&mut buffers).unwrap();
    assert_eq!(world.completions(), [Completion::returned(5)]);
    world.give(good, &buffers);
    world.works();
}

/// The IOMMU stops a device whose descriptors name wrong addresses: it reads and writes nothing there. After a
/// reset, it works as before.
fn wrong_addresses() {
    let mut world = World::new();
    let good = world.good;
    let (written, memory) = misdirected(0x7d_0000_0000);
    let written = world.spaces.add(written);
    let read = world.spaces.add(misdirected(0x7c_0000_0000).0);
    world.give(written, &[0]);
    world.give(good, &[BUFFER_BYTES, 2 * BUFFER_BYTES]);
    for _ in 0..20 {
        world.far.send(&frame(), Meta::FULL);
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut seen = [0; 2048];
    assert!(memory.copy_out(0, &mut seen));
    assert_eq!(seen, [0; 2048], "written elsewhere");
    world.queue.reset(&mut Vec::new()).unwrap();
    world.give(good, &[0, BUFFER_BYTES]);
    world.works();
    world.send(read, 0, 1);
    std::thread::sleep(Duration::from_millis(200));
    // QEMU's card completes the packet, and sends other bytes in its place.
    world.completions();
    world.queue.reset(&mut Vec::new()).unwrap();
    world.completions();
    world.give(good, &[0, BUFFER_BYTES]);
    world.works();
}

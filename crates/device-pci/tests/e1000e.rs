//! The driver of the Intel 82574L, in a virtual machine: see tests/card.
//!
//! `TOWPATH_CARD` names the card by its PCI address, and `TOWPATH_FAR` the kernel's interface at the other
//! end of the wire.

#[path = "support/elsewhere.rs"]
mod elsewhere;

use std::time::Instant;

use elsewhere::{misdirected, until};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use towpath_device::{
    Access, Device, Filter, Kick, Meta, Packet, Part, Registration, Space, Spaces,
};
use towpath_device_pci::PciAddress;
use towpath_device_pci::e1000e::{E1000eDevice, Options};
use towpath_device_testing::conformance::{self, FarEnd, FramesOnly, PacketSocket, Pair};
use towpath_memory::Region;

const TESTS: [(&str, fn()); 2] =
    [("conformance", conformance), ("wrong_addresses", wrong_addresses)];
/// What the script does to a card that a server drives.
const FAULTS: [(&str, fn()); 1] = [("stops_sending", stops_sending)];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let fault = FAULTS.iter().find(|(name, _)| filter.as_deref() == Some(name));
    if let Some((_, fault)) = fault {
        return fault();
    }
    for (name, test) in TESTS {
        if filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        test();
        println!("test e1000e::{name} ... ok ({} ms)", start.elapsed().as_millis());
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run tests/card"))
}

fn open() -> E1000eDevice {
    let address: PciAddress = variable("TOWPATH_CARD").parse().unwrap();
    E1000eDevice::open(&Options::new(address)).unwrap()
}

/// Opens the kernel's interface at the other end. It sends no large packets: QEMU 7 sends IP fragments instead.
fn far() -> FramesOnly {
    FramesOnly(PacketSocket::open(&variable("TOWPATH_FAR")).unwrap())
}

fn conformance() {
    conformance::run("e1000e", 1, || Pair { device: Box::new(open()), far: Box::new(far()) });
}

/// The IOMMU stops a device whose descriptors name wrong addresses: it reads and writes nothing there, and
/// afterwards works as before.
fn wrong_addresses() {
    let mut device = open();
    device.add_filter(&Filter::Everything).unwrap();
    let mut far = far();
    let mut spaces = Spaces::default();
    let dma = device.dma().unwrap();
    let mut region = Region::private(8 * 2048).unwrap();
    let frame = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], [0x88, 0xb5, 7, 7, 7, 7]].concat();
    assert!(region.copy_in(6 * 2048, &frame));
    let registration = Registration::new(&dma, region.mapping(), Access::ReadWrite).unwrap();
    let good = spaces.add(Space::writable(region).registered(Some(registration)));
    let (written, memory) = misdirected(0x7d_0000_0000);
    let written = spaces.add(written);
    let read = spaces.add(misdirected(0x7c_0000_0000).0);
    let mut queue = device.open_queue(0, &mut spaces).unwrap();
    // The first received packet goes elsewhere, and the second one where it should.
    assert_eq!(queue.rx_fill(&spaces, written, &[0]), 1);
    assert_eq!(queue.rx_fill(&spaces, good, &[2048, 4096]), 2);
    queue.kick(&mut spaces, Kick::Rx).unwrap();
    let mut received = Vec::new();
    until("a packet after one that went elsewhere", || {
        far.send(&frame, Meta::FULL);
        queue.rx_poll(&mut spaces, &mut received, 8).unwrap();
        received.iter().any(|one| one.buffer == 2048)
    });
    let mut seen = [0; 2048];
    assert!(memory.copy_out(0, &mut seen));
    assert_eq!(seen, [0; 2048], "written elsewhere");
    let mut send = |space, offset, token| {
        let parts = [Part { space, offset, len: frame.len() as u32 }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token };
        assert_eq!(queue.tx_submit(&mut spaces, &[packet]).unwrap(), 1);
        queue.kick(&mut spaces, Kick::Tx).unwrap();
    };
    send(read, 0, 1);
    send(good, 6 * 2048, 2);
    let mut done = Vec::new();
    until("completions", || {
        queue.tx_complete(&mut done, 8).unwrap();
        done.len() == 2
    });
    until("the good packet", || far.receive().is_some_and(|(got, _)| got.starts_with(&frame)));
}

/// Changes a register of a card that a server drives, from outside: clears and sets bits.
fn change_register(at: u64, clear: u32, set: u32) {
    let path = format!("/sys/bus/pci/devices/{}/resource0", variable("TOWPATH_CARD"));
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses a free address range. The process ends with the mapping.
    let base = unsafe { mmap(std::ptr::null_mut(), 0x20000, protection, flags, &file, 0).unwrap() };
    // SAFETY: the mapping has 128 KiB, and registers are aligned words in it.
    let register = unsafe { base.byte_add(at as usize) }.cast::<u32>();
    // SAFETY: as above.
    unsafe { register.write_volatile(register.read_volatile() & !clear | set) };
}

/// The card stops sending: `TCTL.EN` is cleared.
fn stops_sending() {
    change_register(0x0400, 1 << 1, 0);
}

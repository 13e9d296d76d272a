//! The driver of virtio cards, in a virtual machine: see tests/virtio-card.
//!
//! `TOWPATH_CARD` names the card by its PCI address, `TOWPATH_FAR` the kernel's interface at the other end of the
//! wire, and `TOWPATH_MAC` the address that the kernel's driver has shown for the card.

#[path = "support/packet_socket.rs"]
mod packet_socket;

use std::time::Instant;

use packet_socket::{FramesOnly, PacketSocket};
use towpath_device::Device;
use towpath_device::conformance::{self, Pair};
use towpath_device::pci::PciAddress;
use towpath_device::pci::virtio_net::{Options, VirtioNetDevice};

const TESTS: [(&str, fn()); 2] = [("opens", opens), ("conformance", conformance)];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
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

//! The driver of the Intel 82574L, in a virtual machine: see tests/card.
//!
//! `TOWPATH_CARD` names the card by its PCI address, and `TOWPATH_FAR` the kernel's interface at the other
//! end of the wire.

#[path = "support/packet_socket.rs"]
mod packet_socket;

use std::time::Instant;

use packet_socket::{FramesOnly, PacketSocket};
use towpath_device::conformance::{self, Pair};
use towpath_device::pci::PciAddress;
use towpath_device::pci::e1000e::{E1000eDevice, Options};

const TESTS: [(&str, fn()); 1] = [("conformance", conformance)];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
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

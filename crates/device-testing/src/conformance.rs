//! The contract of every device, as a test suite to run on each of them.
//!
//! A driver's tests call [`run`] with a function that makes a device and the other end of its wire.
//! See `docs/adding-a-device.md`. This module asserts, and is only for tests.
//!
//! The suite checks, in this order, each on a device of its own: order in both directions; budgets;
//! a full transmit ring; chains of parts; large packets, partial checksums and VLAN tags to insert;
//! VLAN tags and flow hashes of received packets; filters; packets and buffers outside of every space;
//! reset during traffic; a random mix; that no wake-up is lost. In every check, the device returns each token and each buffer exactly once, and does not read the memory
//! of a packet again after it returned the token.

mod bad_parts;
mod buffers;
mod checks;
mod everything;
mod far;
mod filters;
mod frames;
mod near;
mod offloads;
mod packet_socket;
mod tags_and_hashes;
mod wake_ups;

pub use far::{DeviceFarEnd, FarEnd};
pub use packet_socket::{FramesOnly, PacketSocket};

use towpath_device::Device;

use near::Near;

/// A device and the other end of its wire.
pub struct Pair {
    /// The device to test, not started.
    pub device: Box<dyn Device>,
    /// The other end.
    pub far: Box<dyn FarEnd>,
}

/// Runs the suite. `seed` makes the run repeatable; the text of every failure names it.
///
/// # Panics
/// When the device breaks the contract.
pub fn run(name: &str, seed: u64, mut make: impl FnMut() -> Pair) {
    for (check, body) in checks::ALL {
        println!("conformance of {name}: {check} (seed {seed})");
        let Pair { device, mut far } = make();
        let mut near = Near::new(device, format!("{name}: {check}, seed {seed}"));
        body(&mut near, &mut *far, seed);
        near.finish();
    }
}

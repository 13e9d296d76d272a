//! The contract of every device, as a test to be run on each of them.
//!
//! A driver's tests call [`run`] with a function that makes a device and the other end of its wire.
//! See `docs/adding-a-device.md`. Everything here asserts: it is for tests alone.
//!
//! The suite checks, in this order, each on a device of its own: order both ways; budgets; a full
//! transmit ring; chains of parts; large packets and partial checksums; packets and buffers outside
//! of every space; reset in the middle; a random mix; that no wake-up is lost. And all the time:
//! each token comes back exactly once, each buffer exactly once, and the device does not read
//! memory again whose token came back.

mod checks;
mod far;
mod near;
mod wake_ups;

pub use far::{DeviceFarEnd, FarEnd};

use crate::Device;
use near::Near;

/// A device and the other end of its wire.
pub struct Pair {
    /// The device to be tested; not started yet.
    pub device: Box<dyn Device>,
    /// The other end.
    pub far: Box<dyn FarEnd>,
}

/// Runs the suite. `seed` makes the run repeatable; every failure's text names it.
///
/// # Panics
/// When the device does not keep to the contract.
pub fn run(name: &str, seed: u64, mut make: impl FnMut() -> Pair) {
    for (check, body) in checks::ALL {
        println!("conformance of {name}: {check} (seed {seed})");
        let Pair { device, mut far } = make();
        let mut near = Near::new(device, format!("{name}: {check}, seed {seed}"));
        body(&mut near, &mut *far, seed);
        near.finish();
    }
}

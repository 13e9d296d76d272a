//! What every device must keep to, as a test to be run on each of them.
//!
//! A driver's tests call [`run`] with a function that makes a device and what is at the other end
//! of its wire. See `docs/adding-a-device.md`. Everything here asserts: it is for tests alone.
//!
//! What is checked, in this order, each on a device of its own: order both ways; budgets; a full
//! transmit ring; chains of parts; large packets and unfinished checksums; packets and frames
//! outside of every space; reset in the middle; a random mix; that no wake-up is lost. And all the
//! time: each token comes back exactly once, each frame exactly once, and memory whose token came
//! back is not read again.

mod checks;
mod far;
mod near;
mod wake_ups;

pub use far::{DeviceFarEnd, FarEnd};

use crate::Device;
use near::Near;

/// A device and what is at the other end of its wire.
pub struct Pair {
    /// The device to be tested; not started yet.
    pub device: Box<dyn Device>,
    /// The other end.
    pub far: Box<dyn FarEnd>,
}

/// Runs the suite. `seed` makes it repeatable; it is in every failure's text.
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

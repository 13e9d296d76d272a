//! Pauses between packets.

use std::time::{Duration, Instant};

use fastrand::Rng;

/// Pauses before a packet: often not at all; awake, for about as long as sides spin; or asleep, for
/// long enough that the sides sleep as well.
pub(super) fn pause(random: &mut Rng) {
    match random.u64(..4) {
        0 => {
            let until = Instant::now() + Duration::from_nanos(random.u64(..60_000));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        1 => std::thread::sleep(Duration::from_micros(random.u64(..150))),
        _ => {}
    }
}

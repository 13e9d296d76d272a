//! Our TCP against smoltcp's, over a link that loses, repeats, delays and changes segments: what
//! arrives is what was sent, or the connection fails.
//!
//! The input: two bytes of settings, two pairs of bytes for the amounts of data, then a byte per
//! packet for its fate (`crates/stack/tests/peer`).
#![no_main]

#[path = "../../crates/stack/tests/suite/peer/mod.rs"]
mod peer;

use libfuzzer_sys::fuzz_target;
use peer::{Ending, MAX_FATES, Pair};

fuzz_target!(|input: &[u8]| {
    let [settings, buffer, a, b, c, d, fates @ ..] = input else { return };
    let (listens, mutates) = (settings & 1 != 0, settings & 2 != 0);
    let bytes = [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])].map(usize::from);
    let fates = &fates[..fates.len().min(MAX_FATES)];
    let ending = Pair::new(fates, mutates, 4096 + usize::from(*buffer) * 256).run(listens, bytes);
    // A link that loses everything for long ends the connection; that also is an end.
    assert!(mutates || ending != Ending::Stalled);
});

//! Hand-made fragments, and random numbers that a seed reproduces.

#![allow(dead_code, reason = "each test program uses a part of it")]

use fastrand::Rng;
use towpath_pdu::{Fragment, OVERHEAD_BYTES};

pub(crate) const ALICE: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const BOB: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Returns a generator from `TOWPATH_SEED`, or the test's own seed; prints the seed.
pub(crate) fn seeded(own: u64) -> Rng {
    let given = std::env::var("TOWPATH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or(own);
    println!("TOWPATH_SEED={seed}");
    Rng::with_seed(seed)
}

/// Returns random bytes.
pub(crate) fn random_bytes(random: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Makes a fragment's frame.
pub(crate) fn frame(fragment: &Fragment, part: &[u8]) -> Vec<u8> {
    let mut headers = [0; OVERHEAD_BYTES];
    fragment.write(&mut headers);
    [&headers[..], part].concat()
}

/// Makes a PDU's frames, each with at most `chunk` bytes of it.
pub(crate) fn cut(from: [u8; 6], channel: u32, id: u32, pdu: &[u8], chunk: usize) -> Vec<Vec<u8>> {
    let parts: Vec<&[u8]> = if pdu.is_empty() { vec![pdu] } else { pdu.chunks(chunk).collect() };
    let fragment = |number: usize, part: &[u8]| Fragment {
        destination: BOB.into(),
        source: from.into(),
        channel,
        id,
        total: pdu.len() as u32,
        offset: (number * chunk) as u32,
        len: part.len() as u16,
        crc: crc32c::crc32c(pdu),
    };
    parts.iter().enumerate().map(|(number, part)| frame(&fragment(number, part), part)).collect()
}

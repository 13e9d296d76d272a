//! Frames whose every byte follows from their number, so that a receiver knows the whole content.

use fastrand::Rng;
use towpath_client::MacAddr;

/// The ethertype of checked frames, one for experiments (IEEE 802, local experimental 1).
pub const ETHERTYPE: u16 = 0x88b5;
/// An address that no session has: frames to it leave through the device.
pub const ELSEWHERE: [u8; 6] = [0x02, 0x99, 0x99, 0x99, 0x99, 0x99];

const HEADER_BYTES: usize = 14 + 16;

/// Returns the length of the frame of a number, in bytes: 60 to 1514.
#[must_use]
pub fn len(seed: u64, number: u64) -> usize {
    60 + Rng::with_seed(seed ^ number.wrapping_mul(0x1_0001)).usize(..1455)
}

/// Writes the frame of a number over `to`, whose length is [`len`]'s.
pub fn write(
    to: &mut [u8],
    destination: impl Into<MacAddr>,
    source: impl Into<MacAddr>,
    seed: u64,
    number: u64,
) {
    to[..6].copy_from_slice(&destination.into().octets());
    to[6..12].copy_from_slice(&source.into().octets());
    to[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    to[14..22].copy_from_slice(&seed.to_le_bytes());
    to[22..30].copy_from_slice(&number.to_le_bytes());
    let mut word = Rng::with_seed(seed.rotate_left(17) ^ number);
    for piece in to[HEADER_BYTES..].chunks_mut(8) {
        piece.copy_from_slice(&word.u64(..).to_le_bytes()[..piece.len()]);
    }
}

/// Returns the frame of a number.
#[must_use]
pub fn frame(
    destination: impl Into<MacAddr>,
    source: impl Into<MacAddr>,
    seed: u64,
    number: u64,
) -> Vec<u8> {
    let mut frame = vec![0; len(seed, number)];
    write(&mut frame, destination, source, seed, number);
    frame
}

/// Compares a frame with that of a number, byte for byte.
///
/// # Errors
/// The difference.
pub fn check(
    seen: &[u8],
    destination: impl Into<MacAddr>,
    source: impl Into<MacAddr>,
    seed: u64,
    number: u64,
) -> Result<(), String> {
    if seen.len() != len(seed, number) {
        return Err(format!("number {number}: {} bytes for {}", seen.len(), len(seed, number)));
    }
    let mut expected = [0; 1514];
    let expected = &mut expected[..seen.len()];
    write(expected, destination, source, seed, number);
    match seen.iter().zip(expected.iter()).position(|(seen, expected)| seen != expected) {
        None => Ok(()),
        Some(at) => Err(format!(
            "number {number}: byte {at} of {} is {:#04x} and not {:#04x}",
            seen.len(),
            seen[at],
            expected[at]
        )),
    }
}

/// Returns the sender of a frame.
#[must_use]
pub fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..12)?.try_into().ok()
}

//! The frames of the suite.

use towpath_device::Meta;

use super::near::{FAR_MAC, NEAR_MAC};
use crate::random::Random;

/// Returns a frame of the suite: the ethertype for local experiments (IEEE 802, 9.2.3), a number,
/// and bytes that depend on the number.
pub(super) fn frame(source: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let destination = if source == NEAR_MAC { FAR_MAC } else { NEAR_MAC };
    let mut frame = Vec::with_capacity(len);
    frame.extend(destination);
    frame.extend(source);
    frame.extend([0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    let mut random = Random::new(u64::from(number));
    while frame.len() < len {
        frame.extend(random.draw().to_le_bytes());
    }
    frame.truncate(len);
    frame
}

/// Returns the offsets at which to split `len` bytes into `parts` parts of at least one byte each, or into
/// as many as there are bytes.
pub(super) fn cuts(random: &mut Random, len: usize, parts: usize) -> Vec<usize> {
    let mut cuts = std::collections::BTreeSet::new();
    while cuts.len() < parts.min(len) - 1 {
        cuts.insert(1 + random.below(len as u64 - 1) as usize);
    }
    cuts.into_iter().collect()
}

#[track_caller]
pub(super) fn assert_frames(what: &str, got: &[(Vec<u8>, Meta)], expected: &[Vec<u8>]) {
    for (at, expected) in expected.iter().enumerate() {
        let Some((got, meta)) = got.get(at) else {
            panic!("{what}: frame {at} of {} did not arrive", expected.len());
        };
        assert!(got == expected, "{what}: frame {at} differs:\n{got:x?}\n{expected:x?}");
        assert!(meta.is_full(), "{what}: frame {at} has offload work left");
    }
    assert_eq!(got.len(), expected.len(), "{what}: more frames than were sent");
}

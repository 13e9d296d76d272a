//! Metadata words of a peer: never a panic, and accepted words encode to the same words again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_packet::checksum::{complete, completed, field_at};
use towpath_packet::{Checksum, Meta};

fuzz_target!(|bytes: &[u8]| {
    let Some((words, frame)) = bytes.split_first_chunk::<16>() else { return };
    let (first, second) = words.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
    let words = [word(first), word(second)];
    let Some(meta) = Meta::from_words(words) else { return };
    assert_eq!(meta.to_words(), words);
    if meta.segmentation.is_some() {
        assert!(!meta.is_full());
    }
    let Checksum::Partial { start, offset } = meta.checksum else { return };
    let mut whole = frame.to_vec();
    let done = complete(&mut whole, start, offset);
    assert_eq!(done.is_ok(), field_at(start, offset, frame.len()).is_ok());
    let (left, right) = frame.split_at(frame.len() / 3);
    match completed(&[left, right], start, offset) {
        Ok((field, value)) => assert_eq!(whole[field..field + 2], value),
        Err(outside) => assert_eq!(done, Err(outside)),
    }
});

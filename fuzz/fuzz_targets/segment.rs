//! Segmentation and completion of checksums. 16 bytes are the sender's metadata, the rest is its
//! packet. Never a panic; segments are right, their payload is the packet's, and their number is
//! bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::offload::{MAX_SEGMENTS, OffloadError, check};
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter, complete_into};
use towpath_packet::{Headers, Meta};

fuzz_target!(|bytes: &[u8]| {
    let Some((words, packet)) = bytes.split_first_chunk::<16>() else { return };
    let (first, second) = words.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
    let Some(meta) = Meta::from_words([word(first), word(second)]) else { return };

    let headers = Headers::parse(packet, packet.len());
    let checked = headers.map(|headers| check(&meta, &headers, packet.len()));
    let good = matches!(checked, Ok(Ok(())));
    let mut scratch = Vec::new();
    let mut frames = 0;
    let made = complete_into(packet, &meta, &mut scratch, |frame| {
        frames += 1;
        // A segment is right on the wire for any content of the packet. (A packet that is only
        // completed is as right as the pseudo-header's sum that the sender wrote.)
        if meta.segmentation.is_some() {
            let headers = Headers::parse(frame, frame.len()).expect("a whole header");
            assert_eq!(verify(frame, &headers), Verdict::Right, "{frame:x?}");
        }
    });
    assert_eq!(made.unwrap_or(0), frames);
    assert!(!good || made.is_ok(), "{made:?}");
    assert!(frames <= MAX_SEGMENTS);

    if meta.segmentation.is_some() {
        // A packet from the network may be longer than its IP header states; the segmenter omits
        // the rest.
        assert_eq!(made.is_ok(), good || matches!(checked, Ok(Err(OffloadError::Length))));
        let prefix = &packet[..packet.len().min(256)];
        let Ok(mut segmenter) = Segmenter::new(prefix, packet.len(), &meta) else { return };
        let mut header = [0; MAX_HEADER_BYTES];
        let (longest, mut at) = (segmenter.frame_bytes(), None);
        while let Some(segment) = segmenter.next(&mut header) {
            assert!(segment.header_bytes() + segment.payload.len() <= longest);
            assert!(at.is_none_or(|at| at == segment.payload.start));
            assert!(segment.payload.end <= packet.len());
            at = Some(segment.payload.end);
            frames -= 1;
        }
        assert_eq!(frames, 0);
    }
});

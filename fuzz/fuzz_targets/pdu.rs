//! Fragments of PDUs: never a panic, limits are kept, each fragment counts once, and each delivered
//! PDU has the stated CRC.
//!
//! The input is a conversation. Each frame follows a byte of flags, the time since the last frame
//! in hundredths of a second, and its length.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use towpath_pdu::{
    Accepted, ETHERTYPE, Fragment, Limits, OVERHEAD_BYTES, Pieces, Reassembler, VERSION,
};

/// Corrects ethertype, version and the header check, so that more than one frame in 2^32 passes
/// them.
const MEND: u8 = 1;
/// Sets the PDU's CRC to that of this part.
const WHOLE: u8 = 2;
/// Splits the frame into pieces of 50 bytes.
const PIECES: u8 = 4;

fn limits() -> Limits {
    Limits {
        partials: 6,
        partials_of_source: 3,
        bytes: 150_000,
        time: Duration::from_millis(500),
        finished: 8,
        ..Limits::default()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut reassembler = Reassembler::new(limits());
    let mut now = Instant::now();
    let mut rest = bytes;
    while let Some(([flags, wait, high, low], after)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        let (frame, after) = after.split_at(len);
        rest = after;
        now += Duration::from_millis(u64::from(*wait) * 10);
        let mut frame = frame.to_vec();
        if let Some((headers, part)) = frame.split_first_chunk_mut::<OVERHEAD_BYTES>() {
            if flags & MEND != 0 {
                headers[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
                headers[14..16].copy_from_slice(&[VERSION, 0]);
                if flags & WHOLE != 0 {
                    headers[34..38].copy_from_slice(&crc32c::crc32c(part).to_be_bytes());
                }
                let check = crc32c::crc32c(&headers[..38]);
                headers[38..].copy_from_slice(&check.to_be_bytes());
            }
            if let Ok(fragment) = Fragment::parse(headers, len) {
                let mut written = [0; OVERHEAD_BYTES];
                fragment.write(&mut written);
                assert_eq!(written, *headers);
            }
        }
        let parts = frame.chunks(if flags & PIECES != 0 { 50 } else { usize::MAX });
        let crc = |parts: &mut dyn Iterator<Item = &[u8]>| parts.fold(0, crc32c::crc32c_append);
        match reassembler.accept(now, parts.clone()) {
            Ok(Accepted::InPlace(fragment)) => {
                let mut pieces = Pieces::after_headers(parts, fragment.len as usize);
                assert_eq!(crc(&mut pieces), fragment.crc);
            }
            Ok(Accepted::Reassembled(fragment, whole)) => {
                assert_eq!(whole.len(), fragment.total as usize);
                assert_eq!(crc32c::crc32c(whole), fragment.crc);
            }
            Ok(Accepted::Waits) => assert!(reassembler.waiting() > 0),
            Err(_) => {}
        }
        let (counters, limits) = (reassembler.counters(), limits());
        assert!(counters.adds_up(reassembler.waiting()), "{counters:?}");
        assert!(reassembler.waiting() <= limits.partials);
        assert!(reassembler.held_bytes() <= limits.bytes);
        assert!(reassembler.deadline().is_none_or(|deadline| deadline > now));
    }
    reassembler.expire(now + limits().time);
    assert_eq!(reassembler.waiting(), 0);
});

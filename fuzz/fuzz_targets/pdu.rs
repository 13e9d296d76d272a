//! Fragments of PDUs: never a panic, limits are kept, each fragment counts once, and each delivered
//! PDU has the stated CRC.
//!
//! The input is a conversation. Each frame follows a byte of flags, the time since the last frame
//! in hundredths of a second, and its length. Flags give channels queues, and take PDUs from them.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use towpath_pdu::{
    Accepted, ChannelQueue, Channels, ETHERTYPE, Fragment, Limits, OVERHEAD_BYTES, Pdu, Pieces,
    VERSION,
};

/// Corrects ethertype, version and the header check, so that more than one frame in 2^32 passes
/// them.
const MEND: u8 = 1;
/// Sets the PDU's CRC to that of this part.
const WHOLE: u8 = 2;
/// Splits the frame into pieces of 50 bytes.
const PIECES: u8 = 4;
/// Gives the frame's channel a queue, or closes the queue that it has.
const QUEUE: u8 = 8;
/// Takes a PDU, in turn.
const TAKE: u8 = 16;
/// Takes a PDU of the frame's channel.
const TAKE_FROM: u8 = 32;

const QUEUE_PDUS: usize = 3;
const QUEUE_BYTES: usize = 100_000;

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
    let mut channels = Channels::new(limits());
    let mut open = Vec::new();
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
        let channel = frame
            .get(18..22)
            .map_or(0, |bytes| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)));
        if flags & QUEUE != 0 && channels.close(channel).is_none() {
            let queue = ChannelQueue::new(channel).pdus(QUEUE_PDUS).bytes(QUEUE_BYTES);
            if channels.open(&queue.weight(u32::from(*wait))).is_ok() && !open.contains(&channel) {
                open.push(channel);
            }
        }
        let parts = frame.chunks(if flags & PIECES != 0 { 50 } else { usize::MAX });
        let crc = |parts: &mut dyn Iterator<Item = &[u8]>| parts.fold(0, crc32c::crc32c_append);
        match channels.accept(now, parts.clone()) {
            Ok(Accepted::InPlace(fragment)) => {
                let mut pieces = Pieces::after_headers(parts, fragment.len as usize);
                assert_eq!(crc(&mut pieces), fragment.crc);
            }
            Ok(Accepted::Reassembled(fragment, whole)) => {
                assert_eq!(whole.len(), fragment.total as usize);
                assert_eq!(crc32c::crc32c(whole), fragment.crc);
            }
            Ok(Accepted::Queued(fragment)) => {
                assert!(channels.state(fragment.channel).unwrap().queued > 0);
            }
            Ok(Accepted::Waits) => assert!(channels.deadline().is_some()),
            Err(_) => {}
        }
        let check = |pdu: Pdu<'_>| assert_eq!(pdu.contiguous().unwrap().len(), pdu.len());
        if flags & TAKE != 0 {
            channels.take(1, check);
        }
        if flags & TAKE_FROM != 0 {
            channels.take_from(channel, 1, check);
        }
        let (shared, limits) = (channels.shared(), limits());
        let counters = shared.counters();
        assert!(counters.adds_up(shared.waiting()), "{counters:?}");
        assert!(shared.waiting() <= limits.partials);
        assert!(shared.held_bytes() <= limits.bytes);
        assert!(channels.deadline().is_none_or(|deadline| deadline > now));
        for state in open.iter().filter_map(|channel| channels.state(*channel)) {
            assert!(state.received.adds_up(state.incomplete), "{state:?}");
            assert_eq!(state.received.reassembled, state.taken + state.queued as u64);
            assert!(state.queued + state.incomplete <= QUEUE_PDUS);
            assert!(state.held_bytes <= QUEUE_BYTES);
        }
    }
    channels.expire(now + limits().time);
    assert_eq!(channels.shared().waiting(), 0);
    assert!(open.iter().filter_map(|one| channels.state(*one)).all(|one| one.incomplete == 0));
});

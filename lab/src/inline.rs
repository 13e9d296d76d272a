//! Whether a small packet is carried faster inside the queue than in a buffer beside it, as Riddoch
//! and Pope's programmed I/O carries small messages.
//!
//! Both ways use a bare queue of 16-byte slots between two threads. In one, a packet is a descriptor
//! and a buffer of a pool. In the other, the packet's bytes fill the slots behind its descriptor, so
//! that packets in buffers could use the same queue as before. Neither side checks anything, so the
//! difference is about the most that a queue with checks could gain.

use std::time::Duration;

use anyhow::ensure;

use crate::Settings;
use crate::bare::{self, Finish, SLOTS, race};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// Bytes of a slot.
const SLOT_BYTES: usize = 16;
/// Packets: from a word to three slots.
const SIZES: [usize; 4] = [8, 16, 32, 48];
/// Packets published together: each alone, and as many as the experiment's other rows have.
const BATCHES: [usize; 2] = [1, bare::BATCH];

pub(crate) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 50 } else { 200 });
    for batch in BATCHES {
        for packet_bytes in SIZES {
            let pairs = Pairs::measure(
                settings.pairs(),
                || run(cores, (packet_bytes, batch), window),
                || bare::run_in_batches(cores, (packet_bytes, batch), window),
            )?;
            let parameters = [("packet_bytes", packet_bytes as f64), ("batch", batch as f64)];
            let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
            let name = "bare queue: payload in the slots, to in a buffer";
            outcome.rows.push(row(name, "ratio", &pairs.ratios()));
            outcome.context.push(row("bare queue: payload in the slots", "Mpps", &pairs.ours));
            outcome.context.push(row("bare queue: payload in a buffer", "Mpps", &pairs.base));
        }
    }
    Ok(())
}

/// Runs one window over a bare queue with the payload in its slots. Returns millions of packets per
/// second.
fn run(
    cores: (usize, usize),
    (packet_bytes, batch): (usize, usize),
    window: Duration,
) -> anyhow::Result<f64> {
    let slots = 1 + packet_bytes.div_ceil(SLOT_BYTES);
    ensure!(batch <= SLOTS, "a batch of {batch} packets in {SLOTS} places");
    // Room for as many packets as the queue with buffers has. A packet never wraps.
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 2]>::new(SLOTS * slots);
    let payload = vec![[0x5a_u64; 2]; slots - 1];
    let mut into = payload.clone();
    let produce = move || {
        let Ok(mut chunk) = producer.write_chunk(batch * slots) else { return 0 };
        let (first, second) = chunk.as_mut_slices();
        for packet in first.chunks_exact_mut(slots).chain(second.chunks_exact_mut(slots)) {
            packet[0] = [0, packet_bytes as u64];
            packet[1..].iter_mut().zip(&payload).for_each(|(slot, bytes)| *slot = *bytes);
        }
        chunk.commit_all();
        batch as u64
    };
    let consume = move |finish: &Finish| {
        let mut got = 0;
        while finish.has_more(got) {
            let waiting = (consumer.slots() / slots).min(batch);
            let Ok(chunk) = consumer.read_chunk(waiting * slots) else { continue };
            let (first, second) = chunk.as_slices();
            for packet in first.chunks_exact(slots).chain(second.chunks_exact(slots)) {
                let count = packet[0][1].div_ceil(SLOT_BYTES as u64) as usize;
                let bytes = &packet[1..][..count];
                into.iter_mut().zip(bytes).for_each(|(to, slot)| *to = *slot);
                std::hint::black_box(&into);
            }
            chunk.commit_all();
            got += waiting as u64;
        }
        got
    };
    race(cores, window, produce, consume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_arrives_both_ways() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!("SKIP every_packet_arrives_both_ways: two threads that spin need two cores");
            return;
        }
        let cores = crate::machine::two_cores().unwrap();
        let window = Duration::from_millis(10);
        for batch in BATCHES {
            for packet_bytes in SIZES {
                for mpps in [
                    run(cores, (packet_bytes, batch), window).unwrap(),
                    bare::run_in_batches(cores, (packet_bytes, batch), window).unwrap(),
                ] {
                    assert!(mpps.is_finite() && mpps > 0.0, "{mpps}");
                }
            }
        }
    }
}

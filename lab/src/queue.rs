//! One queue against a bare queue: the cost of two sides that do not trust each other.
//!
//! Both carry 16-byte descriptors in batches of 64 from one pinned thread to another; the producer
//! writes every byte of a packet and the consumer reads it, and both prefetch the packets ahead.
//! The queue's two sides have separate mappings of the same memory files, as two processes have;
//! its consumer fetches, checks and accounts for each buffer as the server does.

use std::sync::Arc;
use std::time::Duration;

use towpath_memory::{Mapping, Region, SharedFile, own_words, peer_words};
use towpath_queue::buffers::{BufferLedger, FreeBuffers};
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, PoolShape, prefetch_distance};
use towpath_queue::layout::QueueShape;
use towpath_queue::receive::{application_side, server_side};
use towpath_queue::transmit::{TransmitConsumer, TransmitProducer};

use crate::Settings;
use crate::bare::{self, BATCH, Finish, SLOTS, race, read_frame, write_frame};
use crate::inline;
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// The lower limit of the ratio.
const AT_LEAST: f64 = 0.85;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let mut outcome = Outcome {
        how: format!(
            "one transmit queue against a bare queue; producer on core {}, consumer on core {}, \
             both spin; {SLOTS} slots, batches of {BATCH}; every byte written and read",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let window = Duration::from_millis(if settings.quick { 100 } else { 400 });
    for packet_bytes in [64, 1500] {
        let pairs = Pairs::measure(
            settings.pairs(),
            || run(cores, packet_bytes, window),
            || bare::run(cores, packet_bytes, window),
        )?;
        let parameters = [("packet_bytes", packet_bytes as f64)];
        outcome.rows.push(
            Row::new("queue to bare queue", &parameters, "ratio", &pairs.ratios())
                .at_least(AT_LEAST),
        );
        outcome.context.push(Row::new("queue", &parameters, "Mpps", &pairs.ours));
        outcome.context.push(Row::new("bare queue", &parameters, "Mpps", &pairs.base));
    }
    inline::measure(settings, cores, &mut outcome)?;
    Ok(outcome)
}

/// The two sides of a queue in shared memory, each with its own mappings.
struct Sides {
    producer: TransmitProducer,
    producer_pool: Region,
    consumer: TransmitConsumer,
    consumer_pool: Mapping,
    ledger: BufferLedger,
    pool: PoolShape,
}

impl Sides {
    fn new(buffer_bytes: usize) -> anyhow::Result<Sides> {
        let slots = SLOTS as u32;
        let (Some(shape), Some(pool)) =
            (QueueShape::new(slots, slots), PoolShape::new(slots, buffer_bytes as u32))
        else {
            anyhow::bail!("this shape is not valid for a queue");
        };
        let application = SharedFile::create("bench-application", shape.application_words() * 8)?;
        let server = SharedFile::create("bench-server", shape.server_words() * 8)?;
        let buffers = SharedFile::create("bench-pool", pool.pool_bytes())?;
        let mut ledger_words = own_words(Region::private(
            (shape.ledger_words() + BufferLedger::words_for(slots)).next_multiple_of(8) * 8,
        )?);
        let done = ledger_words.split_off_front(shape.ledger_words());
        let (producer, _receive) = application_side(
            &shape,
            pool,
            own_words(application.map_writable()?),
            &peer_words(&Arc::new(server.map_readable()?)),
        );
        let (consumer, _receive) = server_side(
            &shape,
            pool,
            own_words(server.map_writable()?),
            &peer_words(&Arc::new(application.map_readable()?)),
            done,
        );
        Ok(Sides {
            producer,
            producer_pool: buffers.map_writable()?,
            consumer,
            consumer_pool: buffers.map_readable()?,
            ledger: BufferLedger::new(ledger_words, slots),
            pool,
        })
    }
}

/// Runs one window. Returns millions of packets per second.
fn run(cores: (usize, usize), packet_bytes: usize, window: Duration) -> anyhow::Result<f64> {
    let Sides { mut producer, mut producer_pool, mut consumer, consumer_pool, mut ledger, pool } =
        Sides::new(packet_bytes)?;
    let payload = vec![0x5a; packet_bytes];
    let mut into = vec![0; packet_bytes];
    let mut free = FreeBuffers::new(0, SLOTS as u32);
    let produce = move || {
        if free.len() < BATCH {
            let reclaimed = producer.reclaim(|buffer| free.release(buffer));
            reclaimed.expect("the consumer is correct");
            if free.len() < BATCH {
                return 0;
            }
        }
        for _ in 0..BATCH {
            let Some(buffer) = free.take() else { break };
            // Prefetches as the client library does.
            if let Some(buffer) = free.next(prefetch_distance(packet_bytes) as usize) {
                let start = pool.buffer_offset(buffer) + HEADROOM_BYTES as usize;
                producer_pool.prefetch_to_write(start, packet_bytes);
            }
            let descriptor = Descriptor {
                buffer,
                start: HEADROOM_BYTES,
                len: packet_bytes as u32,
                endpoint: 0,
                flags: 0,
            };
            write_frame(&mut producer_pool, descriptor.pool_offset(&pool), &payload);
            producer.free_slot().expect("there are as many slots as buffers").push(descriptor);
        }
        producer.publish();
        BATCH as u64
    };
    let consume = move |finish: &Finish| {
        let mut packets = [Descriptor::default(); BATCH];
        let mut got = 0;
        while finish.has_more(got) {
            consumer.observe().expect("the producer is correct");
            let (first, count) = consumer.take_plain(&mut ledger, &mut packets, i64::MAX);
            let packets = &packets[..count];
            let prefetch = |one: &Descriptor| {
                consumer_pool.prefetch(one.pool_offset(&pool), one.len as usize);
            };
            let ahead = prefetch_distance(packet_bytes) as usize;
            packets.iter().take(ahead).for_each(prefetch);
            for (index, one) in packets.iter().enumerate() {
                packets.get(index + ahead).into_iter().for_each(prefetch);
                let len = one.len as usize;
                read_frame(&consumer_pool, one.pool_offset(&pool), &mut into[..len]);
            }
            if count > 0 {
                consumer.complete(&mut ledger, first, count as u32);
                consumer.publish();
            }
            got += count as u64;
        }
        got
    };
    race(cores, window, produce, consume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_arrives() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!("SKIP every_packet_arrives: one core; two threads that spin need two");
            return;
        }
        let cores = two_cores().unwrap();
        for packet_bytes in [64, 1500] {
            let window = Duration::from_millis(20);
            for mpps in [
                run(cores, packet_bytes, window).unwrap(),
                bare::run(cores, packet_bytes, window).unwrap(),
            ] {
                assert!(mpps.is_finite() && mpps > 0.0, "{mpps}");
            }
        }
    }
}

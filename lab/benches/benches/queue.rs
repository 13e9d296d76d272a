//! Microbenchmarks of the queues, for quick work on one function of the crate.
//!
//! One thread plays the application and the server of one queue pair. Each iteration moves a batch
//! through one direction, from the first push until its sender has the buffers or slots back. The
//! two sides have mappings of their own of the same memory files, as two processes have.
//!
//! | group | an iteration |
//! |---|---|
//! | `transmit` | the application pushes and publishes; the server takes, completes and publishes; the application reclaims |
//! | `receive` | the application provides buffers; the server takes and fills them; the application takes the packets |
//! | `events` | one side marks queue pairs; the other side takes and acknowledges the events |
//!
//! ```text
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench queue                # all
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench queue -- transmit    # one group
//! ```
//!
//! No cache line moves between cores, and no payload is copied. So the results are no figures of
//! the documents: `towpath-lab queue` measures those, between two cores and against a bare queue.

use std::hint::black_box;
use std::slice;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_queue::buffers::BufferLedger;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN, PoolShape};
use towpath_queue::events::{Acknowledger, EventShape, Marker, fence};
use towpath_queue::layout::QueueShape;
use towpath_queue::receive::{ReceiveConsumer, ReceiveProducer, application_side, server_side};
use towpath_queue::transmit::{TransmitConsumer, TransmitProducer};
use towpath_queue::{OwnWords, PeerWords};

/// Slots of each queue, and buffers of each pool.
const SLOTS: u32 = 256;
/// Descriptors, or queue pairs with news, of an iteration.
const BATCHES: [u32; 3] = [1, 16, 64];
const BUFFER_BYTES: u32 = 1500;

/// Maps a new memory file as its writer and as its reader.
fn words(len: usize) -> (OwnWords, PeerWords) {
    let file = SharedFile::create("bench", len * 8).expect("a memory file");
    let own = own_words(file.map_writable().expect("a mapping"));
    (own, peer_words(&Arc::new(file.map_readable().expect("a mapping"))))
}

/// Words of the ledger, which no peer writes.
fn private_words(len: usize) -> OwnWords {
    own_words(Region::private(len * 8).expect("memory"))
}

fn descriptor(buffer: u32) -> Descriptor {
    Descriptor { buffer, start: HEADROOM_BYTES, len: BUFFER_BYTES, endpoint: 0, flags: 0 }
}

/// The application's side of a queue pair.
struct Application {
    transmit: TransmitProducer,
    receive: ReceiveConsumer,
}

/// The server's side of a queue pair.
struct Server {
    transmit: TransmitConsumer,
    receive: ReceiveProducer,
    ledger: BufferLedger,
}

/// Creates a queue pair. An iteration uses one of its two directions, so one ledger serves both.
fn sides() -> (Application, Server) {
    let shape = QueueShape::new(SLOTS, SLOTS).expect("a power of two");
    let pool = PoolShape::new(SLOTS, BUFFER_BYTES).expect("a small pool");
    let (application_own, application_peer) = words(shape.application_words());
    let (server_own, server_peer) = words(shape.server_words());
    let (transmit, receive) = application_side(&shape, pool, application_own, &server_peer);
    let application = Application { transmit, receive };
    let done = private_words(shape.ledger_words());
    let (transmit, receive) = server_side(&shape, pool, server_own, &application_peer, done);
    let ledger = BufferLedger::new(private_words(BufferLedger::words_for(SLOTS)), SLOTS);
    (application, Server { transmit, receive, ledger })
}

fn transmit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transmit");
    for batch in BATCHES {
        let (mut application, mut server) = sides();
        let descriptors: Vec<Descriptor> = (0..batch).map(descriptor).collect();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        group.throughput(Throughput::Elements(batch.into()));
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            bencher.iter(|| {
                for descriptor in black_box(&descriptors) {
                    assert!(application.transmit.push(slice::from_ref(descriptor)));
                }
                application.transmit.publish();

                assert_eq!(server.transmit.observe(), Ok(batch));
                for _ in 0..batch {
                    let taken = server.transmit.take(&mut server.ledger, &mut packet);
                    let (count, first) = taken.expect("a correct peer").expect("a packet");
                    black_box(&packet[..count]);
                    server.transmit.complete(&mut server.ledger, first, count as u32);
                }
                server.transmit.publish();

                let reclaimed = application.transmit.reclaim(|frame| _ = black_box(frame));
                assert_eq!(reclaimed, Ok(batch));
            });
        });
    }
    group.finish();
}

fn receive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive");
    for batch in BATCHES {
        let (mut application, mut server) = sides();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        group.throughput(Throughput::Elements(batch.into()));
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            bencher.iter(|| {
                for frame in 0..batch {
                    assert!(application.receive.provide(black_box(frame)));
                }
                application.receive.publish();

                assert_eq!(server.receive.observe(&mut server.ledger), Ok(batch));
                for _ in 0..batch {
                    let filled = descriptor(server.receive.buffer(0));
                    server.receive.push(black_box(filled));
                }
                server.receive.publish(&mut server.ledger);

                assert_eq!(application.receive.observe(), Ok(batch));
                for _ in 0..batch {
                    assert_eq!(application.receive.take(&mut packet), Ok(1));
                    black_box(&packet[..1]);
                }
            });
        });
    }
    group.finish();
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    for batch in BATCHES {
        let shape = EventShape::new(SLOTS).expect("few queue pairs");
        let (marker_own, marker_peer) = words(shape.marker_words());
        let (acknowledger_own, acknowledger_peer) = words(shape.acknowledger_words());
        let mut marker = Marker::new(shape, marker_own, &acknowledger_peer);
        let mut acknowledger = Acknowledger::new(shape, acknowledger_own, &marker_peer);
        group.throughput(Throughput::Elements(batch.into()));
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            bencher.iter(|| {
                let fenced = fence();
                for queue_pair in 0..batch {
                    assert_eq!(marker.mark(fenced, black_box(queue_pair)), Ok(true));
                }
                assert!(marker.publish());
                let taken = acknowledger.take(batch, |queue_pair| _ = black_box(queue_pair));
                assert_eq!(taken, Ok(batch));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = towpath_benches::short();
    targets = transmit, receive, events
}
criterion_main!(benches);

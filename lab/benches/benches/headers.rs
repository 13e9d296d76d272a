//! Microbenchmarks of the work on headers, for quick work on one function of the crate.
//!
//! | group | an iteration |
//! |---|---|
//! | `parse-full` | the full parser reads the headers of one packet |
//! | `parse-plain` | the parser of the fast path does the same, for packets that are plain |
//! | `sum` | the Internet checksum of some bytes |
//! | `segment` | a large TCP packet becomes 45 segments with their checksums |
//!
//! ```text
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench headers                # all
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench headers -- parse-plain # one group
//! ```
//!
//! The same bytes are in the first-level cache each time. So the results are no figures of the
//! documents.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::headers::PREFIX_BYTES;
use towpath_packet::segment::segment_into;
use towpath_packet::{Headers, Sum, plain};

/// Payload of each segment, and their number: as close to 64 KiB as IP allows.
const SEGMENT_BYTES: u16 = 1440;
const SEGMENTS: usize = 45;

/// Returns a packet of each kind whose parsers do different work.
fn packets() -> [(&'static str, Vec<u8>); 6] {
    let tcp = Tcp::default();
    [
        ("tcp4", Flow::v4().tcp(&tcp, &[0; 1400])),
        ("tcp6", Flow::v6().tcp(&tcp, &[0; 1400])),
        ("udp4", Flow::v4().udp(&[0; 18])),
        ("udp6", Flow::v6().udp(&[0; 18])),
        ("udp4-vlan", Flow::v4().vlan(7).udp(&[0; 18])),
        ("arp", Flow::v4().who_has()),
    ]
}

/// Returns the bytes that the engine copies before it parses them.
fn prefix(packet: &[u8]) -> &[u8] {
    &packet[..packet.len().min(PREFIX_BYTES)]
}

fn full(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse-full");
    for (name, packet) in packets() {
        assert!(Headers::parse(prefix(&packet), packet.len()).is_ok());
        group.bench_function(name, |bencher| {
            // By reference, or an iteration would copy the headers once more.
            bencher.iter(|| {
                let headers = Headers::parse(black_box(prefix(&packet)), black_box(packet.len()));
                _ = black_box(&headers);
            });
        });
    }
    group.finish();
}

fn plain(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse-plain");
    for (name, packet) in packets() {
        if plain::read(prefix(&packet), packet.len()).is_none() {
            continue;
        }
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let plain = plain::read(black_box(prefix(&packet)), black_box(packet.len()));
                _ = black_box(&plain);
            });
        });
    }
    group.finish();
}

fn sum(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum");
    for len in [20, 64, 1500, 65_536] {
        let bytes = vec![0x5a; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| {
                let mut sum = Sum::default();
                sum.add(black_box(&bytes));
                sum.folded()
            });
        });
    }
    group.finish();
}

fn segment(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("segment");
    for (name, flow) in [("tcp4", Flow::v4()), ("tcp6", Flow::v6())] {
        let payload = vec![0x5a; SEGMENTS * usize::from(SEGMENT_BYTES)];
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &payload, SEGMENT_BYTES);
        let mut scratch = Vec::new();
        group.throughput(Throughput::Bytes(packet.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let made = segment_into(black_box(&packet), &meta, &mut scratch, |frame| {
                    black_box(frame);
                });
                assert_eq!(made, Ok(SEGMENTS));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = towpath_benches::short();
    targets = full, plain, sum, segment
}
criterion_main!(benches);

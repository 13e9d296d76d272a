//! Microbenchmarks of the flow table, for quick work on one function of it.
//!
//! Each iteration looks up one plain packet among 1, 100 or 10 000 flow rules that give the same
//! fields.
//!
//! | group | the order of packets | the last-flow cache |
//! |---|---|---|
//! | `lookup-trains` | 16 of a flow, one after the other | on |
//! | `lookup-random` | each of a flow chosen at random | off |
//!
//! ```text
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench flow_table                  # all
//! cargo bench --manifest-path lab/Cargo.toml -p towpath-benches --bench flow_table -- lookup-random # one group
//! ```
//!
//! Nothing else of the engine runs and evicts the table from the processor's caches. So the results
//! are no figures of the documents: `towpath-lab demux` measures those, with and without the cache
//! in turn.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use towpath_engine::demux::{Destination, Direction, FlowCache, FlowTable};
use towpath_packet::build::Flow;
use towpath_packet::plain::{self, Plain};
use towpath_packet::{FlowRule, FlowVlan};

/// Flow rules of the table.
const RULES: [u16; 3] = [1, 100, 10_000];
/// Packets of a train.
const TRAIN: usize = 16;
/// Packets that a benchmark looks up again and again; a power of two.
const PACKETS: usize = 4096;

/// A number like the engine's random one. With a seed of few bits, such as 1, the hashes of these
/// rules happen to collide, and a lookup among 100 compares four keys instead of one or two.
const SEED: u64 = 0x5eed_5eed_1234_5678;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Returns a table in which each of the ports from 0 on has an endpoint.
fn table(rules: u16, cache: FlowCache) -> FlowTable {
    let mut table = FlowTable::new(SEED, cache);
    for port in 0..rules {
        let rule = FlowRule {
            mac: Some(MAC),
            vlan: FlowVlan::Untagged,
            protocol: Some(17),
            port: Some(port),
            ..FlowRule::default()
        };
        let to = Destination { session: 0, endpoint: port.into() };
        assert!(table.insert(&rule, false, to), "a rule of its own");
    }
    table
}

/// Returns packets in trains of random ports, with their endpoints.
fn packets(rules: u16, train: usize) -> Vec<(Plain, u32)> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut packets = Vec::with_capacity(PACKETS);
    while packets.len() < PACKETS {
        let port = random.u16(..rules);
        let frame = Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC).ports(1000, port).udp(b"x");
        let plain = plain::read(&frame, frame.len()).expect("a plain packet");
        packets.extend(std::iter::repeat_n((plain, u32::from(port)), train));
    }
    packets
}

/// Measures the lookups of one order of packets.
fn lookups(criterion: &mut Criterion, name: &str, train: usize, cache: FlowCache) {
    let mut group = criterion.benchmark_group(name);
    for rules in RULES {
        let mut table = table(rules, cache);
        let packets = packets(rules, train);
        for (plain, endpoint) in &packets {
            let found = table.lookup_plain(Direction::Received, plain);
            assert_eq!(found.map(|found| found.endpoint), Some(*endpoint));
        }
        let mut next = 0;
        group.bench_function(BenchmarkId::from_parameter(rules), |bencher| {
            bencher.iter(|| {
                next = (next + 1) % PACKETS;
                table.lookup_plain(Direction::Received, black_box(&packets[next].0))
            });
        });
    }
    group.finish();
}

fn trains(criterion: &mut Criterion) {
    lookups(criterion, "lookup-trains", TRAIN, FlowCache::On);
}

fn random(criterion: &mut Criterion) {
    lookups(criterion, "lookup-random", 1, FlowCache::Off);
}

criterion_group! {
    name = benches;
    config = towpath_benches::short();
    targets = trains, random
}
criterion_main!(benches);

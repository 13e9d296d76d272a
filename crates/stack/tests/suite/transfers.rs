//! Two stacks exchange data over a link that loses, duplicates, delays and mangles frames.

use std::time::Duration;

use crate::simulation::{self, Faults, World, config};
use towpath_stack::{Config, Offload};

/// The bytes of a segment that the option takes.
const TIMESTAMP_BYTES: u64 = 12;

fn offloaded(mut config: Config) -> Config {
    config.offload = Offload { checksum: true, tcp_segmentation: true, max_frame_bytes: 65_535 };
    config
}

fn transfer(
    seed: u64,
    v6: bool,
    configs: [Config; 2],
    faults: Faults,
    cuts: bool,
    len: usize,
) -> World {
    let mut world = World::new(seed, configs);
    world.cuts = cuts;
    world.faults = faults;
    let (client, server) = world.connected(80, v6);
    let bytes = simulation::bytes(&mut world.random, len);
    let until = world.now + Duration::from_secs(3600);
    world.echo(client, server, &bytes, until);
    world
}

#[test]
fn a_clean_link_carries_everything_once() {
    for v6 in [false, true] {
        for offload in [false, true] {
            let make = |node| if offload { offloaded(config(node)) } else { config(node) };
            let world = transfer(1, v6, [make(0), make(1)], Faults::default(), offload, 3_000_000);
            for node in &world.nodes {
                let counters = node.stack.counters();
                assert_eq!(counters.tcp_retransmitted, 0, "{v6} {offload} {counters:#?}");
                assert_eq!(counters.rx_checksum + counters.rx_ip_checksum, 0);
                assert_eq!(counters.tcp_transmit_refused, 0);
            }
        }
    }
}

#[test]
fn large_packets_reduce_the_number_of_packets() {
    let plain = transfer(2, false, [config(0), config(1)], Faults::default(), false, 2_000_000);
    let large = [offloaded(config(0)), offloaded(config(1))];
    let large = transfer(2, false, large, Faults::default(), false, 2_000_000);
    assert!(large.carried * 4 < plain.carried, "{} {}", large.carried, plain.carried);
}

/// A peer may request small segments of any size. No packet has too many or too small segments for
/// the link, which the simulation asserts. (The stack accepts no size under 48.)
#[test]
fn peers_with_small_segments_get_smaller_large_packets() {
    for v6 in [false, true] {
        for segment_bytes in [1, 48, 87, 88, 100, 159, 160, 300, 511, 512, 536, 1000] {
            let mut world = World::new(7, [offloaded(config(0)), offloaded(config(1))]);
            (world.cuts, world.segment_bytes) = (true, Some(segment_bytes));
            let (client, server) = world.connected(80, v6);
            let bytes = simulation::bytes(&mut world.random, 200_000);
            let until = world.now + Duration::from_secs(3600);
            world.echo(client, server, &bytes, until);
            for node in &world.nodes {
                let counters = node.stack.counters();
                assert_eq!(counters.tcp_retransmitted, 0, "{v6} {segment_bytes} {counters:#?}");
                assert_eq!(counters.tcp_transmit_refused, 0);
                // Fewer packets than segments, if the link segments at all.
                let payload = u64::from(segment_bytes.max(48)) - TIMESTAMP_BYTES;
                let large = counters.tcp_sent < 200_000 / payload;
                assert_eq!(large, payload >= 88, "{v6} {segment_bytes} {counters:#?}");
            }
        }
    }
}

#[test]
fn transfers_work_between_unequal_links() {
    transfer(3, false, [offloaded(config(0)), config(1)], Faults::default(), true, 500_000);
    let mut jumbo = config(1);
    jumbo.mtu = 9000;
    // Both agree on the smaller of their MTUs: the link checks the length of each frame.
    transfer(4, true, [config(0), jumbo], Faults::default(), true, 500_000);
}

#[test]
fn faults_cost_time_but_no_byte() {
    for seed in 10..110 {
        let faults = Faults {
            lost: [0, 10, 30, 50][seed as usize % 4],
            doubled: [0, 20][seed as usize % 2],
            late: [0, 50, 200][seed as usize % 3],
            mangled: [0, 5, 10][seed as usize % 3],
        };
        let make = |node| if seed % 2 == 0 { offloaded(config(node)) } else { config(node) };
        let world =
            transfer(seed, seed % 3 == 0, [make(0), make(1)], faults, seed % 4 < 2, 200_000);
        println!("{:?} {:?}", world.now, world.nodes[0].stack.counters().tcp_retransmitted);
    }
}

/// A loss that only smoltcp's timeout detects would cost a second.
#[test]
fn losses_cost_round_trips_and_not_seconds() {
    for seed in 200..220 {
        let faults = Faults { lost: 10, doubled: 10, late: 10, mangled: 1 };
        let world = transfer(seed, seed % 2 == 0, [config(0), config(1)], faults, false, 2_000_000);
        let counters = world.nodes.each_ref().map(|node| *node.stack.counters());
        let again: u64 = counters.iter().map(|counters| counters.tcp_retransmitted).sum();
        let seconds = world.now.as_micros() as f64 / 1e6;
        println!("{seconds:.2} s, {again} segments again");
        assert!(again >= 20, "{again}");
        assert!(seconds < again as f64 * 0.1, "{seconds} s for {again} segments");
    }
}

#[test]
fn connections_end_and_leave_nothing_but_time_wait() {
    let mut world = World::new(30, [config(0), config(1)]);
    let (client, server) = world.connected(80, false);
    let bytes = simulation::bytes(&mut world.random, 1000);
    let until = world.now + Duration::from_secs(10);
    world.echo(client, server, &bytes, until);
    let now = world.now;
    world.nodes[0].stack.tcp_close(now, client).unwrap();
    world.nodes[1].stack.tcp_close(now, server).unwrap();
    world.idle(Duration::from_secs(5));
    assert_eq!(world.nodes[0].stack.tcp_sizes(), (0, 1));
    assert_eq!(world.nodes[1].stack.tcp_sizes(), (0, 0));
    world.idle(Duration::from_secs(120));
    // No timer of an idle stack is ever due.
    for node in &world.nodes {
        assert_eq!(node.stack.poll_at(world.now), None);
    }
}

//! The conformance suite on the in-memory pair, in several configurations.

use std::time::Duration;

use crate::one_at_a_time::run;
use towpath_device_testing::conformance::{DeviceFarEnd, Pair};
use towpath_device_testing::loopback::{self, Config, Reception, Timing};

fn check(name: &str, config: Config) {
    run(name, || {
        let (device, far) = loopback::pair(&config).unwrap();
        Pair { device: Box::new(device), far: Box::new(DeviceFarEnd::new(Box::new(far))) }
    });
}

#[test]
fn default_configuration() {
    check("loopback", Config::default());
}

#[test]
fn without_offloads() {
    check("loopback without offloads", Config { offloads: false, ..Config::default() });
}

#[test]
fn with_tags_to_insert() {
    let config = Config { tx_tags: true, ..Config::default() };
    check("loopback that inserts tags", config.clone());
    check("asynchronous loopback that inserts tags", Config { tx_asynchronous: true, ..config });
}

#[test]
fn asynchronous() {
    check("asynchronous loopback", Config { tx_asynchronous: true, ..Config::default() });
}

#[test]
fn transmit_from_the_pool_only() {
    let config = Config { tx_in_place: false, tx_asynchronous: true, ..Config::default() };
    check("loopback, pool alone", config);
}

#[test]
fn to_be_polled() {
    check("loopback to be polled", Config { sleeps: false, ..Config::default() });
}

#[test]
fn tiny() {
    let config = Config { ring_packets: 3, ..Config::default() };
    check("loopback of three packets", config.clone());
    check("asynchronous loopback of three packets", Config { tx_asynchronous: true, ..config });
}

#[test]
fn registered_memory() {
    let config = Config { dma_bytes: Some(1 << 30), ..Config::default() };
    check("loopback of registered memory", config.clone());
    let config = Config { tx_asynchronous: true, tx_in_place: false, ..config };
    check("asynchronous loopback of registered memory, pool alone", config);
}

#[test]
fn few_descriptors() {
    let config = Config { tx_descriptors: 50, ..Config::default() };
    check("loopback of 50 descriptors", config.clone());
    check("asynchronous loopback of 50 descriptors", Config { tx_asynchronous: true, ..config });
}

#[test]
fn aligned_buffers() {
    check("loopback of aligned buffers", Config { rx_alignment: 4096, ..Config::default() });
}

/// Late and batched completions, moderated interrupts and slow kicks change no outcome.
#[test]
fn slow_hardware() {
    let us = Duration::from_micros;
    let timings = [
        (
            "late completions",
            Timing { completion_batch: 65536, completion_delay: us(50), ..Timing::default() },
        ),
        (
            "batched completions",
            Timing { completion_batch: 16, completion_delay: us(200), ..Timing::default() },
        ),
        ("moderated interrupts", Timing { interrupt_delay: us(100), ..Timing::default() }),
        ("slow kicks", Timing { kick_time: us(2), ..Timing::default() }),
        (
            "all of these",
            Timing {
                completion_batch: 16,
                completion_delay: us(200),
                interrupt_delay: us(100),
                kick_time: us(2),
            },
        ),
    ];
    for ((name, timing), tx_asynchronous) in
        timings.into_iter().zip([true, false].into_iter().cycle())
    {
        let config = Config { timing, tx_asynchronous, tx_descriptors: 300, ..Config::default() };
        check(&format!("loopback with {name}"), config);
    }
}

#[test]
fn jumbo() {
    check("loopback of jumbo frames", Config { mtu: 9000, ..Config::default() });
}

/// Packets that span buffers, removed tags, verified checksums and hashes change no packet.
#[test]
fn received_packets_with_tags_and_hashes() {
    let spans = |bytes| Reception { data_bytes: Some(bytes), ..Reception::default() };
    let reception =
        Reception { removes_tags: true, verifies: true, hashes: true, ..Reception::default() };
    let all = Reception { data_bytes: Some(200), ..reception };
    for (name, reception, offloads, tx_asynchronous) in [
        ("short buffers", spans(64), false, true),
        ("buffers shorter than large packets", spans(2048), true, false),
        ("tags, checksums and hashes", reception, true, true),
        ("all of these", all, false, false),
    ] {
        let ring_packets = if tx_asynchronous { 50 } else { 256 };
        let config =
            Config { reception, offloads, ring_packets, tx_asynchronous, ..Config::default() };
        check(&format!("loopback with {name}"), config);
    }
}

/// A device that filters receives what it was told of, and else behaves as one that does not.
#[test]
fn filters() {
    for (name, filters_addresses, filters_flows) in
        [("addresses", true, false), ("addresses and flows", true, true)]
    {
        let reception = Reception { filters_addresses, filters_flows, ..Reception::default() };
        let config = Config { reception, ..Config::default() };
        check(&format!("loopback that filters {name}"), config);
    }
}

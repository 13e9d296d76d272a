//! The conformance suite on the in-memory pair, in several configurations.

use towpath_device::conformance::{self, DeviceFarEnd, Pair};
use towpath_device::loopback::{self, Config};

fn check(name: &str, config: Config) {
    conformance::run(name, 1, || {
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
fn few_descriptors() {
    let config = Config { tx_descriptors: 50, ..Config::default() };
    check("loopback of 50 descriptors", config.clone());
    check("asynchronous loopback of 50 descriptors", Config { tx_asynchronous: true, ..config });
}

#[test]
fn aligned_buffers() {
    check("loopback of aligned buffers", Config { rx_alignment: 4096, ..Config::default() });
}

#[test]
fn jumbo() {
    check("loopback of jumbo frames", Config { mtu: 9000, ..Config::default() });
}

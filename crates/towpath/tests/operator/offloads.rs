//! Offloads of AF_XDP, in software: what the kernel leaves to the receiver.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use towpath_client::{Options, Rule, Session};
use towpath_packet::Headers;
use towpath_packet::checksum::{Verdict, verify};

use crate::beside_the_kernel::{FAR, NEAR, may_attach, sockets, user};
use crate::networks::wire;
use crate::running::*;

const LEASE: [&str; 2] = ["--lease", "192.0.2.64/28"];

/// Returns the next packet, as the session got it.
fn next(session: &mut Session) -> Vec<u8> {
    let mut packet = None;
    until("a packet comes", || {
        session.wait(Some(Duration::from_millis(10))).unwrap();
        packet = session.receive_one(0).unwrap();
        packet.is_some()
    });
    packet.unwrap()
}

/// A datagram of the kernel's at the other end of a veth, whose checksum is partial. The engine
/// completes it for an endpoint that takes none, and counts it.
fn a_partial_checksum_is_completed(mode: &str) {
    let far = wire(&FAR, &NEAR);
    let (directory, user) = (sockets(), user());
    let device = format!("xdp:uplink,mode={mode}");
    let arguments = ["--device", &device, "--user", &user, LEASE[0], LEASE[1]];
    let server = serve(&directory, "s.sock", &arguments);
    let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
    let own = session.info().ipv4.unwrap().0;
    let mac = session.info().mac.map(|byte| format!("{byte:02x}")).join(":");
    far.run(|| {
        let add = ["neigh", "add", &own.to_string(), "lladdr", &mac, "dev", "far"];
        assert!(Command::new("ip").args(add).status().unwrap().success());
    })
    .unwrap();
    session.open(&Rule::new().udp(5000)).unwrap();
    session.open(&Rule::new().udp(5001).with_offload()).unwrap();
    let socket = far.run(|| UdpSocket::bind("192.0.2.200:4000").unwrap()).unwrap();
    for (port, is_right) in [(5000, true), (5001, false)] {
        socket.send_to(b"of the kernel", (own, port)).unwrap();
        let packet = next(&mut session);
        assert!(packet.ends_with(b"of the kernel"));
        let verdict = verify(&packet, &Headers::parse(&packet, packet.len()).unwrap());
        assert_eq!(verdict == Verdict::Right, is_right, "port {port}: {packet:x?}");
    }
    until("both are counted", || {
        let counts = &server.report()["device"]["counters"];
        counts["rx_partial"] == 2 && counts["rx_software_offloads"] == 1
    });
}

#[test]
fn a_partial_checksum_is_completed_natively() {
    towpath_testkit::isolated!(|| {
        if may_attach("offloads::a_partial_checksum_is_completed_natively") {
            a_partial_checksum_is_completed("native");
        }
    });
}

#[test]
fn a_partial_checksum_is_completed_generically() {
    towpath_testkit::isolated!(|| {
        if may_attach("offloads::a_partial_checksum_is_completed_generically") {
            a_partial_checksum_is_completed("generic");
        }
    });
}

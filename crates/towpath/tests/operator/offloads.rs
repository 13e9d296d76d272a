//! Offloads of AF_XDP: checksums that the kernel leaves to the receiver, and those of sent packets.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{Options, QueuePair, Rule, Session};
use towpath_net::{Network, SessionLink, TcpStream};
use towpath_packet::Headers;
use towpath_packet::checksum::{Verdict, verify};

use crate::beside_the_kernel::{FAR, NEAR, may_attach, sockets, user};
use crate::networks::{net, wire};
use crate::running::*;

const LEASE: [&str; 2] = ["--lease", "192.0.2.64/28"];

/// Returns the next packet, as the session got it.
fn next(session: &mut Session) -> Vec<u8> {
    let mut packet = None;
    until("a packet comes", || {
        session.wait(Some(Duration::from_millis(10))).unwrap();
        packet = session.receiver().receive_one(QueuePair::FIRST).unwrap();
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
    let mac = session.info().mac;
    far.run(|| net().add_neighbour("far", own.into(), mac.octets()).unwrap()).unwrap();
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

/// Sends datagrams and a short TCP conversation of an application to a host at the other end of a
/// veth. Returns how many checksums the engine completed.
fn checksums_of_the_engine(option: &str) -> u64 {
    let far = wire(&FAR, &NEAR);
    let (directory, user) = (sockets(), user());
    let device = format!("xdp:uplink,{option}");
    let arguments = ["--device", &device, "--user", &user, LEASE[0], LEASE[1]];
    let mut server = serve(&directory, "s.sock", &arguments);
    let session = Session::attach(&server.socket, &SessionLink::options("test")).unwrap();
    let network = Network::builder().over(session).unwrap();
    let receiver = far.run(|| UdpSocket::bind("192.0.2.200:7").unwrap()).unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let sender = towpath_net::UdpSocket::bind(&network, "0.0.0.0:0").unwrap();
    let mut got = [0; 2000];
    for len in [0, 1, 17, 18, 64, 1000, 1471, 1472] {
        let payload: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        sender.send_to(&payload, "192.0.2.200:7").unwrap();
        let (count, _) = receiver.recv_from(&mut got).unwrap();
        assert!(got[..count] == payload, "{len} bytes");
    }
    let listener = far.run(|| TcpListener::bind("192.0.2.200:80").unwrap()).unwrap();
    let mut stream = TcpStream::connect(&network, "192.0.2.200:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    for round in 0..20_u8 {
        stream.write_all(&[round; 100]).unwrap();
        accepted.read_exact(&mut got[..100]).unwrap();
        assert_eq!(got[..100], [round; 100]);
    }
    let counts = || server.report()["device"]["counters"].clone();
    until("all packets are counted", || counts()["tx_packets"].as_u64().unwrap() >= 28);
    assert_eq!(counts()["tx_dropped_driver"], 0);
    let completed = counts()["tx_software_offloads"].as_u64().unwrap();
    drop(network);
    // A killed server's keeper would hold its locked memory for a while.
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    net().delete_link("uplink").unwrap();
    completed
}

/// The far kernel verifies what the near one completes in software (`tx-checksum=kernel`). A
/// checksum that the interface completes stays partial on a veth.
#[test]
fn the_interface_or_the_kernel_completes_checksums_of_sent_packets() {
    towpath_testkit::isolated!(|| {
        const TEST: &str =
            "offloads::the_interface_or_the_kernel_completes_checksums_of_sent_packets";
        if !may_attach(TEST) {
            return;
        }
        assert!(checksums_of_the_engine("mode=generic") >= 28);
        for mode in ["mode=generic", "mode=native"] {
            for who in ["tx-checksum", "tx-checksum=kernel"] {
                assert_eq!(checksums_of_the_engine(&format!("{mode},{who}")), 0, "{mode} {who}");
            }
        }
    });
}

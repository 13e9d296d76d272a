//! Asserts that the web example sends a response with the whole body in one segment, and the next
//! one before the peer acknowledges it.
//!
//! The test itself is the peer, by frames on a packet socket. It decides when the peer
//! acknowledges, so it counts segments and depends on no clock.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use crate::network::web::{content, plain, start};
use crate::network::{Served, TAP, possible};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4};
use towpath_packet::transport::tcp_flags::{ACK, PSH, SYN};
use towpath_testkit::{PacketSocket, isolated};

/// The time after which a hanging test fails.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// The peer's addresses. The kernel has neither of them, so it stays out of the connection.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const ADDRESS: [u8; 4] = [10, 77, 0, 99];
const EXAMPLE: [u8; 4] = [10, 77, 0, 2];

/// The content of a received TCP segment.
#[derive(Debug)]
struct Segment {
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    payload: Vec<u8>,
}

impl Segment {
    /// Reads a frame that the stack of the example sent to this peer.
    fn read(frame: &[u8]) -> Option<Segment> {
        let ip = &frame[14..];
        let (header_bytes, total) = (usize::from(ip[0] & 15) * 4, [ip[2], ip[3]]);
        if ip[9] != 6 || ip[12..20] != [EXAMPLE, ADDRESS].concat() {
            return None;
        }
        let tcp = &ip[header_bytes..usize::from(u16::from_be_bytes(total))];
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        Some(Segment {
            sequence: word(4),
            acknowledgement: word(8),
            flags: tcp[13],
            payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
        })
    }
}

/// A TCP connection whose every segment the test sends.
struct Peer {
    flow: Flow,
    packets: PacketSocket,
    questions: PacketSocket,
    arrived: VecDeque<Segment>,
    /// The number of the next byte that this side sends.
    sequence: u32,
    /// The number of the next byte that this side has not acknowledged.
    expected: u32,
}

impl Peer {
    /// Finds the example, and connects to its port 80.
    fn connect() -> Peer {
        let questions = PacketSocket::open(TAP, ETHERTYPE_ARP).unwrap();
        let packets = PacketSocket::open(TAP, ETHERTYPE_IPV4).unwrap();
        let flow = Flow::v4().addresses(ADDRESS, EXAMPLE).ports(4000, 80).macs(MAC, [0; 6]);
        let arrived = VecDeque::new();
        let mut peer = Peer { flow, packets, questions, arrived, sequence: 1000, expected: 0 };
        assert!(peer.questions.send(&peer.flow.who_has()).unwrap());
        while peer.flow.destination_mac == [0; 6] {
            peer.receive();
        }
        peer.send(SYN, b"");
        let answer = peer.next();
        assert_eq!((answer.flags, answer.acknowledgement), (SYN | ACK, 1001), "{answer:?}");
        (peer.sequence, peer.expected) = (1001, answer.sequence.wrapping_add(1));
        peer
    }

    /// Sends a segment that acknowledges everything before `expected`.
    fn send(&mut self, flags: u8, payload: &[u8]) {
        let tcp = Tcp {
            sequence: self.sequence,
            acknowledgement: self.expected,
            flags,
            ..Tcp::default()
        };
        assert!(self.packets.send(&self.flow.tcp(&tcp, payload)).unwrap());
        self.sequence = self.sequence.wrapping_add(payload.len() as u32);
    }

    /// Waits for frames, and answers requests for this peer's hardware address.
    fn receive(&mut self) {
        let sockets = [self.packets.as_fd(), self.questions.as_fd()];
        let mut polled = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
        assert_ne!(poll(&mut polled, Some(&PATIENCE)).unwrap(), 0, "nothing more arrives");
        let mut frame = [0; 2048];
        while let Some(len) = self.questions.receive(&mut frame).unwrap() {
            // The sender's addresses, and the target address (RFC 826).
            let is_for_us = len >= 42 && frame[28..32] == EXAMPLE && frame[38..42] == ADDRESS;
            if is_for_us {
                self.flow.destination_mac = frame[22..28].try_into().unwrap();
                if frame[21] == 1 {
                    assert!(self.questions.send(&self.flow.i_have()).unwrap());
                }
            }
        }
        while let Some(len) = self.packets.receive(&mut frame).unwrap() {
            self.arrived.extend(Segment::read(&frame[..len]));
        }
    }

    /// Returns the next segment, without acknowledging it.
    fn next(&mut self) -> Segment {
        loop {
            if let Some(segment) = self.arrived.pop_front() {
                return segment;
            }
            self.receive();
        }
    }

    /// Returns the next payload with bytes that the peer has not acknowledged.
    fn payload(&mut self) -> (u32, Vec<u8>) {
        loop {
            let segment = self.next();
            let end = segment.sequence.wrapping_add(segment.payload.len() as u32);
            if end.wrapping_sub(self.expected).cast_signed() > 0 {
                return (segment.sequence, segment.payload);
            }
        }
    }

    /// Requests the small file.
    fn request(&mut self) {
        self.send(ACK | PSH, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n");
    }

    /// Requests the small file twice, and acknowledges nothing meanwhile: the next request does.
    /// Returns `false` if the second response comes only together with a repetition of the first,
    /// or not before so many of them.
    fn ask_twice(&mut self) -> bool {
        self.request();
        let (start, first) = self.payload();
        assert_eq!(start, self.expected);
        assert!(first.ends_with(BODY), "head and body are one segment: {first:?}");
        self.request();
        for _ in 0..REPETITIONS {
            let (at, payload) = self.payload();
            if payload != first {
                return false;
            }
            if at != start {
                assert_eq!(at, start.wrapping_add(first.len() as u32));
                self.expected = at.wrapping_add(first.len() as u32);
                return true;
            }
        }
        false
    }
}

/// Repetitions of a response that a slow machine may cause.
const REPETITIONS: usize = 4;
const BODY: &[u8] = b"hello\n";

#[test]
fn a_response_does_not_wait_for_an_acknowledgement() {
    if !possible("a_response_does_not_wait_for_an_acknowledgement", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        let (directory, _) = content();
        let mut web = start(&served, &directory);
        let mut peer = Peer::connect();
        for round in 0..3 {
            // Nagle's algorithm would hold each second response back.
            assert!(peer.ask_twice(), "the second response of round {round} waits");
        }
        web.assert_alive();
        served.server.stop().unwrap();
    });
}

//! The links of the switch in memory: wires, captures, and their end.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pcap_file::pcapng::{Block, PcapNgReader};
use towpath_net::testing::{Fate, Faults, Switch, Wire};
use towpath_net::{Driving, LinkError, Lost, Network, TcpListener, TcpStream, UdpSocket};

use crate::switch::without_ipv6;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a switch with two hosts, and a socket of each; the hosts know each other's link addresses.
fn sockets() -> (Switch, UdpSocket, UdpSocket) {
    let switch = Switch::new();
    let (one, other) = (switch.host().unwrap(), switch.host().unwrap());
    let sender = UdpSocket::bind(&one, "10.0.0.1:7").unwrap();
    let receiver = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    receiver.set_read_timeout(LIMIT).unwrap();
    sender.send_to(b"first", "10.0.0.2:7").unwrap();
    receiver.recv(&mut [0; 16]).unwrap();
    (switch, sender, receiver)
}

/// Returns how many datagrams wait in a socket, once the switch has advanced its clock.
fn arrived(receiver: &UdpSocket) -> usize {
    receiver.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| receiver.recv(&mut [0; 2048]).ok()).count()
}

/// Returns the reason of a lost link.
fn lost(error: &io::Error) -> Lost {
    assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(LinkError::Lost(reason)) => *reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_take_the_delays_of_both_wires() {
    let (switch, sender, receiver) = sockets();
    for (host, both) in [(1, 1), (2, 2)] {
        switch.set_wire(host, Wire::new().delay(HOUR)).unwrap();
        sender.send_to(b"question", "10.0.0.2:7").unwrap();
        switch.advance(both * HOUR - HOUR / 2);
        assert_eq!(arrived(&receiver), 0);
        switch.advance(HOUR);
        assert_eq!(arrived(&receiver), 1);
    }
    let error = switch.set_wire(3, Wire::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "the switch has no host 3: its hosts are 1 to 2");
    assert!(switch.set_wire(0, Wire::new()).is_err());
}

/// The clock of the hosts is also that of the machine: a blocked call returns without [`Switch::advance`].
#[test]
fn a_blocked_call_waits_for_a_wire() {
    let switch = Switch::new();
    let wire = Wire::new().delay(Duration::from_millis(2)).bandwidth(100_000_000);
    for driving in [Driving::Thread, Driving::Application] {
        let builder = || Network::builder().driving(driving);
        let server = switch.host_over(wire, Network::builder()).unwrap();
        let client = switch.host_over(wire, builder()).unwrap();
        let at = server.addresses().into_iter().find(|address| address.is_ipv4()).unwrap();
        let listener = TcpListener::bind(&server, (at, 80)).unwrap();
        let mut stream = TcpStream::connect(&client, (at, 80)).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        stream.write_all(&[7; 10_000]).unwrap();
        accepted.read_exact(&mut [0; 10_000]).unwrap();
        accepted.write_all(b"answer").unwrap();
        stream.read_exact(&mut [0; 6]).unwrap();
    }
}

#[test]
fn frames_wait_for_the_rate_of_a_wire_and_find_a_queue() {
    let (switch, sender, receiver) = sockets();
    // The stacks' own frames, such as those for link addresses, would take time of the wire as well.
    switch.set_filter(|frame| match (&frame.bytes[12..14], frame.bytes[23]) {
        ([8, 0], 17) => Fate::Deliver,
        _ => Fate::Lose,
    });
    // A frame of 50 bytes takes 400 s.
    switch.set_wire(2, Wire::new().bandwidth(1).queue(4)).unwrap();
    let before = switch.counters().overflowed;
    for _ in 0..8 {
        sender.send_to(b"datagram", "10.0.0.2:7").unwrap();
    }
    switch.advance(Duration::from_secs(200));
    // One is on the wire, and four wait.
    assert_eq!((arrived(&receiver), switch.counters().overflowed - before), (0, 3));
    for _ in 0..5 {
        switch.advance(Duration::from_secs(400));
        assert_eq!(arrived(&receiver), 1);
    }
    switch.advance(HOUR);
    assert_eq!(arrived(&receiver), 0);
}

#[test]
fn a_stream_is_whole_over_slow_wires_with_faults() {
    let switch = Switch::new();
    let wire = Wire::new().delay(Duration::from_millis(15)).bandwidth(10_000_000).queue(20);
    let server = switch.host_over(wire, Network::builder()).unwrap();
    let client = switch.host_over(Wire::new().mtu(9000), Network::builder()).unwrap();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    switch.set_faults(Faults::with_seed(5).loss(0.005).reordering(0.01));
    let sent: Vec<u8> = (0..500_000_u32).map(|at| (at / 7) as u8).collect();
    std::thread::scope(|scope| {
        let sent = &sent;
        scope.spawn(move || {
            stream.write_all(sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let receiving = scope.spawn(move || {
            accepted.set_read_timeout(LIMIT).unwrap();
            let mut received = Vec::new();
            accepted.read_to_end(&mut received).unwrap();
            received
        });
        while !receiving.is_finished() {
            switch.advance(Duration::from_millis(5));
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(receiving.join().unwrap() == *sent);
    });
    assert!(switch.counters().overflowed > 0 && switch.counters().oversized == 0);
}

/// Sends datagrams over wires with faults, with one thread for everything. Returns the numbers of those that arrived, in
/// their order.
fn numbers(seed: u64) -> Vec<u8> {
    let switch = Switch::new();
    let host = || {
        let builder = Network::builder().driving(Driving::Application);
        let builder = builder.stack(|config| config.seed = 1).stack(without_ipv6);
        switch.host_with(builder).unwrap()
    };
    let (one, other) = (host(), host());
    let receiver = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    let sender = UdpSocket::bind(&one, "10.0.0.1:7").unwrap();
    receiver.set_nonblocking(true).unwrap();
    sender.send_to(b"first", "10.0.0.2:7").unwrap();
    while receiver.recv(&mut [0; 16]).is_err() {
        one.turn().unwrap();
        other.turn().unwrap();
    }
    let wire = Wire::new().delay(HOUR).bandwidth(1000).queue(100);
    (1..=2).for_each(|host| switch.set_wire(host, wire).unwrap());
    switch.set_faults(Faults::with_seed(seed).loss(0.2).duplication(0.1).reordering(0.2));
    for number in 0..80 {
        sender.send_to(&[number], "10.0.0.2:7").unwrap();
    }
    one.turn().unwrap();
    let mut numbers = Vec::new();
    for _ in 0..100 {
        switch.advance(HOUR / 10);
        other.turn().unwrap();
        let mut number = [0];
        while receiver.recv(&mut number).is_ok() {
            numbers.push(number[0]);
        }
    }
    numbers
}

#[test]
fn the_same_seed_has_the_same_outcome_over_wires() {
    let first = numbers(3);
    assert!((50..=100).contains(&first.len()) && !first.is_sorted(), "{first:?}");
    assert_eq!(first, numbers(3));
    assert_ne!(first, numbers(4));
}

#[test]
fn hosts_have_the_mtu_of_their_wires() {
    let switch = Switch::new();
    let jumbo = || switch.host_over(Wire::new().mtu(9000), Network::builder()).unwrap();
    let (one, other, plain) = (jumbo(), jumbo(), switch.host().unwrap());
    let receivers = [(&other, "10.0.0.2:7"), (&plain, "10.0.0.3:7")]
        .map(|(host, at)| UdpSocket::bind(host, at).unwrap());
    let longest = Arc::new(Mutex::new(0));
    let seen = longest.clone();
    switch.set_filter(move |frame| {
        let mut longest = seen.lock().unwrap();
        *longest = frame.bytes.len().max(*longest);
        Fate::Deliver
    });
    let sender = UdpSocket::bind(&one, "10.0.0.1:7").unwrap();
    sender.send_to(&[7; 8000], "10.0.0.2:7").unwrap();
    assert_eq!(receivers[0].recv(&mut [0; 9000]).unwrap(), 8000);
    assert_eq!(*longest.lock().unwrap(), 8042);
    sender.send_to(b"short", "10.0.0.3:7").unwrap();
    assert_eq!(receivers[1].recv(&mut [0; 9000]).unwrap(), 5);
    sender.send_to(&[7; 8000], "10.0.0.3:7").unwrap();
    // Another thread may send the frame.
    while switch.counters().oversized == 0 {
        std::thread::yield_now();
    }
    assert_eq!(switch.counters().oversized, 1);
    // A change of the wire leaves the MTU.
    switch.set_wire(2, Wire::new()).unwrap();
    sender.send_to(&[7; 8000], "10.0.0.2:7").unwrap();
    assert_eq!(receivers[0].recv(&mut [0; 9000]).unwrap(), 8000);
    let error = switch.host_over(Wire::new().mtu(100), Network::builder()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn a_lost_link_fails_every_call_with_its_reason() {
    let switch = Switch::new();
    let (server, client) = (switch.host().unwrap(), switch.host().unwrap());
    let builder = Network::builder().driving(Driving::Application);
    let driven = switch.host_with(builder).unwrap();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| accepted.read(&mut [0; 8]).unwrap_err());
        let accepts = scope.spawn(|| listener.accept().unwrap_err());
        switch.lose_link(1, Lost::ServerGone).unwrap();
        assert_eq!(lost(&reads.join().unwrap()), Lost::ServerGone);
        assert_eq!(lost(&accepts.join().unwrap()), Lost::ServerGone);
    });
    // The first reason stays.
    switch.lose_link(1, Lost::Revoked).unwrap();
    assert_eq!(lost(&accepted.write(b"answer").unwrap_err()), Lost::ServerGone);
    let socket = UdpSocket::bind(&driven, "10.0.0.3:7").unwrap();
    driven.turn().unwrap();
    switch.lose_link(3, Lost::Revoked).unwrap();
    assert_eq!(lost(&driven.turn().unwrap_err()), Lost::Revoked);
    assert_eq!(lost(&socket.recv(&mut [0; 8]).unwrap_err()), Lost::Revoked);
    // The peer sees nothing, and its frames are lost.
    let before = switch.counters().lost;
    stream.write_all(b"question").unwrap();
    switch.advance(Duration::from_secs(5));
    assert!(stream.take_error().unwrap().is_none() && switch.counters().lost > before);
    assert_eq!(switch.lose_link(4, Lost::Revoked).unwrap_err().kind(), ErrorKind::NotFound);
    // A program that attaches again has a new host.
    let again = switch.host().unwrap();
    assert!(again.addresses().contains(&"10.0.0.4".parse().unwrap()));
}

/// A writer of which the test keeps a handle.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    /// Returns the datagrams of a capture: `true` if it was sent, the time since 1970, and the last byte.
    fn datagrams(&self) -> Vec<(bool, Duration, u8)> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut datagrams, mut interfaces) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => interfaces.push(interface.into_owned()),
                Block::EnhancedPacket(packet) if packet.data[12..14] == [8, 0] => {
                    let options = format!("{:?}", packet.options);
                    let is_sent = options.contains("Flags(2)");
                    assert!(is_sent || options.contains("Flags(1)"), "{options}");
                    datagrams.push((is_sent, packet.timestamp, *packet.data.last().unwrap()));
                }
                _ => {}
            }
        }
        assert_eq!(interfaces.len(), 1);
        datagrams
    }
}

#[test]
fn a_capture_has_the_frames_of_its_host() {
    let (switch, sender, receiver) = sockets();
    let (sent, received) = (Memory::default(), Memory::default());
    switch.capture(1, sent.clone()).unwrap();
    switch.capture(2, received.clone()).unwrap();
    switch.set_wire(2, Wire::new().delay(HOUR)).unwrap();
    switch.set_filter(|frame| match frame.bytes.last() {
        Some(b'2') => Fate::Lose,
        _ => Fate::Deliver,
    });
    for datagram in [b"datagram 1", b"datagram 2"] {
        sender.send_to(datagram, "10.0.0.2:7").unwrap();
    }
    switch.advance(2 * HOUR);
    receiver.recv(&mut [0; 16]).unwrap();
    switch.end_capture(1).unwrap();
    switch.end_capture(2).unwrap();
    sender.send_to(b"datagram 3", "10.0.0.2:7").unwrap();
    let (sent, received) = (sent.datagrams(), received.datagrams());
    let directions = |all: &[(bool, Duration, u8)]| -> Vec<_> {
        all.iter().map(|(is_sent, _, last)| (*is_sent, *last)).collect()
    };
    assert_eq!(directions(&sent), [(true, b'1'), (true, b'2')]);
    assert_eq!(directions(&received), [(false, b'1')]);
    assert_eq!(received[0].1 - sent[0].1, HOUR);
    // An ended capture, and a host without one, have nothing to end.
    switch.end_capture(1).unwrap();
    assert_eq!(switch.end_capture(3).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(switch.capture(0, io::sink()).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Takes the headers of a capture, and no packet.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > 200 { Err(ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_error_of_a_captures_writer_comes_with_its_end() {
    let (switch, sender, receiver) = sockets();
    switch.capture(1, Full(0)).unwrap();
    for _ in 0..8 {
        sender.send_to(b"datagram", "10.0.0.2:7").unwrap();
        receiver.recv(&mut [0; 16]).unwrap();
    }
    assert_eq!(switch.end_capture(1).unwrap_err().kind(), ErrorKind::StorageFull);
    switch.capture(1, io::sink()).unwrap();
    sender.send_to(b"datagram", "10.0.0.2:7").unwrap();
    switch.end_capture(1).unwrap();
}

//! The settings of sockets, and calls of several threads.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use crate::wire_tests::{A, B, Ending, Pair, connection, eventually, is_tcp_without_syn, pair};
use crate::{Driving, KeepAlive, TcpListener, TcpStream, UdpSocket};

const BOTH: [Driving; 2] = [Driving::Thread, Driving::Application];
const LONG: Duration = Duration::from_secs(3600);
const TCP: u8 = 6;
const UDP: u8 = 17;

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn a_drop_that_lingers_waits_for_the_peer() {
    for driving in BOTH {
        let pair = pair(driving);
        let (mut ours, mut theirs) = connection(&pair);
        ours.set_linger(Some(LONG)).unwrap();
        assert_eq!(ours.linger().unwrap(), Some(LONG));
        pair.to_b.hold(is_tcp_without_syn);
        ours.write_all(b"the last words").unwrap();
        let dropping = thread::spawn(move || drop(ours));
        thread::sleep(Duration::from_millis(50));
        assert!(!dropping.is_finished(), "the drop did not wait");
        pair.to_b.release();
        // The peer has the data, and keeps its direction open: the drop does not wait for more.
        dropping.join().unwrap();
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"the last words");
        drop(theirs);
        pair.a.drain(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn a_drop_that_lingers_in_vain_resets() {
    for driving in BOTH {
        let pair = pair(driving);
        let (mut ours, mut theirs) = connection(&pair);
        let linger = Duration::from_millis(50);
        ours.set_linger(Some(linger)).unwrap();
        pair.to_b.hold(is_tcp_without_syn);
        ours.write_all(b"unheard").unwrap();
        let begin = Instant::now();
        drop(ours);
        assert!(begin.elapsed() >= linger);
        eventually("a reset", || pair.a.connections() == 0);
        // The reset is behind the data and the end of the stream.
        pair.to_b.release();
        assert_eq!(read_to_reset(&pair, &mut theirs), b"unheard");
    }
}

/// Reads to the end of the stream, behind which a reset comes: that concerns writes only.
fn read_to_reset(pair: &Pair, stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    eventually("the reset", || pair.b.counters().tcp_resets_received > 0);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(stream.write(b"in vain").unwrap_err().kind(), ErrorKind::BrokenPipe);
    got
}

#[test]
fn a_drop_without_blocking_lingers_in_the_background() {
    let pair = pair(Driving::Thread);
    for (linger, is_received) in [(LONG, true), (Duration::from_millis(50), false)] {
        let (mut ours, mut theirs) = connection(&pair);
        ours.set_linger(Some(linger)).unwrap();
        ours.set_nonblocking(true).unwrap();
        pair.to_b.hold(is_tcp_without_syn);
        ours.write_all(b"later").unwrap();
        // The drop returns though the peer has nothing.
        drop(ours);
        assert_eq!(pair.a.connections(), 1);
        if !is_received {
            eventually("a reset", || pair.a.connections() == 0);
        }
        pair.to_b.release();
        if is_received {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"later");
        } else {
            assert_eq!(read_to_reset(&pair, &mut theirs), b"later");
        }
        drop(theirs);
        eventually("closed", || pair.a.connections() == 0);
    }
}

#[test]
fn a_drop_with_unread_data_does_not_linger() {
    let pair = pair(Driving::Thread);
    let (ours, mut theirs) = connection(&pair);
    theirs.write_all(b"unread").unwrap();
    assert_eq!(ours.peek(&mut [0; 10]).unwrap(), 6);
    ours.set_linger(Some(LONG)).unwrap();
    (&ours).write_all(b"lost").unwrap();
    pair.to_b.hold(is_tcp_without_syn);
    drop(ours);
    eventually("a reset", || pair.a.connections() == 0);
    pair.to_b.release();
    let error = theirs.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn vectored_calls_use_all_their_parts() {
    let pair = pair(Driving::Thread);
    let (mut ours, mut theirs) = connection(&pair);
    ours.set_nodelay(true).unwrap();
    let sent = bytes(1000);
    let parts = [&sent[..0], &sent[..1], &[], &sent[1..400], &sent[400..]].map(IoSlice::new);
    let before = pair.a.counters().tx_frames;
    assert_eq!(ours.write_vectored(&parts).unwrap(), 1000);
    // The stack got all parts before it sent a segment.
    eventually("received", || theirs.peek(&mut [0; 1000]).unwrap() == 1000);
    assert_eq!(pair.a.counters().tx_frames - before, 1);
    let (mut first, mut second, mut third) = ([0; 300], [0; 600], [0; 300]);
    let mut into = [&mut first[..], &mut [], &mut second, &mut third].map(IoSliceMut::new);
    assert_eq!(theirs.read_vectored(&mut into).unwrap(), 1000);
    assert_eq!([&first[..], &second, &third[..100]].concat(), sent);
    assert_eq!(theirs.read_vectored(&mut []).unwrap(), 0);
    assert_eq!(ours.write_vectored(&[]).unwrap(), 0);
    // Parts beyond what the buffer takes are left to the next call, as with one part.
    theirs.set_nonblocking(true).unwrap();
    let error = theirs.read_vectored(&mut [IoSliceMut::new(&mut [0; 10])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ours.set_nonblocking(true).unwrap();
    let large = bytes(100_000);
    let parts = [IoSlice::new(&large), IoSlice::new(&large), IoSlice::new(&large)];
    let mut written = 0;
    while let Ok(count) = ours.write_vectored(&parts) {
        assert!(count > 0);
        written += count;
        assert!(written < 1 << 30);
    }
    // A read of data does not take the error that follows the data.
    let (mut ours, mut theirs) = connection(&pair);
    ours.write_all(b"last").unwrap();
    eventually("received", || theirs.peek(&mut [0; 10]).unwrap() == 4);
    ours.abort();
    eventually("the reset", || pair.b.counters().tcp_resets_received == 1);
    let mut into = [[0; 4], [0; 4]];
    let [first, second] = &mut into;
    let mut into = [IoSliceMut::new(first), IoSliceMut::new(second)];
    assert_eq!(theirs.read_vectored(&mut into).unwrap(), 4);
    // Nor does a call without bytes.
    assert_eq!(theirs.read_vectored(&mut [IoSliceMut::new(&mut [])]).unwrap(), 0);
    assert_eq!(theirs.write_vectored(&[IoSlice::new(&[])]).unwrap(), 0);
    let error = theirs.read_vectored(&mut into).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_time_to_live_is_that_of_the_packets() {
    let pair = pair(Driving::Thread);
    let Pair { a, b, to_a, to_b } = &pair;
    let listener = TcpListener::bind(a, format!("{A}:80")).unwrap();
    assert_eq!(listener.ttl().unwrap(), 64);
    listener.set_ttl(9).unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let mut theirs = TcpStream::connect(b, format!("{A}:80")).unwrap();
    let mut ours = accepting.join().unwrap();
    assert_eq!((ours.ttl().unwrap(), theirs.ttl().unwrap()), (9, 64));
    ours.write_all(b"1").unwrap();
    theirs.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(to_b.last_ttl(TCP), Some(9));
    theirs.set_ttl(255).unwrap();
    theirs.write_all(b"1").unwrap();
    ours.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(to_a.last_ttl(TCP), Some(255));
    let socket = UdpSocket::bind(a, format!("{A}:0")).unwrap();
    assert_eq!((socket.ttl().unwrap(), socket.multicast_ttl_v4().unwrap()), (64, 1));
    socket.set_ttl(5).unwrap();
    socket.set_multicast_ttl_v4(2).unwrap();
    for (to, ttl) in [(B, 5), ("224.0.0.251", 2)] {
        socket.send_to(b"1", format!("{to}:9")).unwrap();
        eventually("the datagram", || to_b.last_ttl(UDP) == Some(ttl));
    }
    for wrong in [0, 256] {
        assert_eq!(socket.set_ttl(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(theirs.set_ttl(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_silent_peer_is_probed_and_given_up() {
    let pair = pair(Driving::Thread);
    let (mut ours, _theirs) = connection(&pair);
    assert_eq!(ours.keep_alive().unwrap(), None);
    let (idle, interval) = (Duration::from_millis(40), Duration::from_millis(20));
    let keep_alive = KeepAlive { idle, interval, probes: 3 };
    for wrong in [
        KeepAlive { idle: Duration::ZERO, ..keep_alive },
        KeepAlive { interval: Duration::ZERO, ..keep_alive },
        KeepAlive { probes: 0, ..keep_alive },
    ] {
        let error = ours.set_keep_alive(Some(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    pair.to_b.hold(is_tcp_without_syn);
    let begin = Instant::now();
    ours.set_keep_alive(Some(keep_alive)).unwrap();
    assert_eq!(ours.keep_alive().unwrap(), Some(keep_alive));
    assert_eq!(ours.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(begin.elapsed() >= idle + 3 * interval);
    assert!(pair.to_b.held() >= 3, "three probes");
}

#[test]
fn a_user_timeout_ends_a_connection() {
    let pair = pair(Driving::Thread);
    let (mut ours, _theirs) = connection(&pair);
    assert_eq!(ours.user_timeout().unwrap(), None);
    assert!(ours.set_user_timeout(Some(Duration::ZERO)).is_err());
    let timeout = Duration::from_millis(100);
    ours.set_user_timeout(Some(timeout)).unwrap();
    assert_eq!(ours.user_timeout().unwrap(), Some(timeout));
    pair.to_b.hold(is_tcp_without_syn);
    ours.write_all(b"unheard").unwrap();
    assert_eq!(ours.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn urgent_data_is_told_and_stays_in_the_stream() {
    let pair = pair(Driving::Thread);
    let (mut ours, mut theirs) = connection(&pair);
    ours.write_all(b"first ").unwrap();
    assert_eq!(ours.send_urgent(b"now").unwrap(), 3);
    ours.write_all(b" later").unwrap();
    let mut got = [0; 15];
    eventually("all data", || theirs.peek(&mut got).unwrap() == 15);
    assert_eq!(theirs.urgent().unwrap(), Some(9));
    theirs.read_exact(&mut got[..6]).unwrap();
    assert_eq!(theirs.urgent().unwrap(), Some(3));
    theirs.read_exact(&mut got[6..]).unwrap();
    assert_eq!((&got[..], theirs.urgent().unwrap()), (&b"first now later"[..], None));
    eventually("acknowledged", || ours.info().unwrap().in_flight == 0);
    let info = ours.info().unwrap();
    assert_eq!(info.segment, 1448);
    assert!(info.timestamps && info.selective && info.congestion_window >= info.segment);
}

/// A listener that begins while connections of the last one are in TIME-WAIT, and open.
#[test]
fn a_port_with_connections_can_be_bound_again() {
    let pair = pair(Driving::Thread);
    let at = format!("{A}:80");
    let mut open = Vec::new();
    for round in 0..3 {
        let listener = TcpListener::bind(&pair.a, &at).unwrap();
        for closes_first in [true, false] {
            let theirs = TcpStream::connect(&pair.b, &at).unwrap();
            let (ours, _) = listener.accept().unwrap();
            if closes_first {
                drop(ours);
                assert_eq!((&theirs).read(&mut [0; 1]).unwrap(), 0);
            } else {
                open.push((ours, theirs));
            }
        }
        eventually("TIME-WAIT", || pair.a.counters().tcp_time_wait == round + 1);
        drop(listener);
    }
    for (mut ours, mut theirs) in open {
        ours.write_all(b"still open").unwrap();
        theirs.read_exact(&mut [0; 10]).unwrap();
    }
}

#[test]
fn a_connection_from_a_given_address_and_port() {
    for driving in BOTH {
        let pair = pair(driving);
        let listener = TcpListener::bind(&pair.b, "0.0.0.0:7").unwrap();
        let [a, b, any] = [A, B, "0.0.0.0"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (to, from) = (SocketAddr::new(b, 7), |ip, port| SocketAddr::new(ip, port));
        let connect = |from| TcpStream::connect_from(&pair.a, from, to);
        let stream = connect(from(any, 179)).unwrap();
        assert_eq!(stream.local_addr().unwrap(), from(a, 179));
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, from(a, 179));
        let chosen = connect(from(a, 0)).unwrap().local_addr().unwrap();
        assert!(chosen.ip() == a && chosen.port() > 1023, "{chosen}");
        let nonblocking = TcpStream::connect_nonblocking_from(&pair.a, from(a, 180), to).unwrap();
        assert_eq!(nonblocking.local_addr().unwrap().port(), 180);
        for (from, kind) in [
            (from(a, 179), ErrorKind::AddrInUse),
            (from(b, 181), ErrorKind::AddrNotAvailable),
            ("[::]:182".parse().unwrap(), ErrorKind::InvalidInput),
        ] {
            assert_eq!(connect(from).unwrap_err().kind(), kind, "{from}");
        }
        drop((stream, accepted));
    }
}

#[test]
fn threads_read_and_write_one_stream() {
    const LEN: usize = 3_000_000;
    for driving in BOTH {
        let pair = pair(driving);
        let (ours, theirs) = connection(&pair);
        let sent = bytes(LEN);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for stream in [&ours, &theirs] {
                let sent = &sent;
                threads.push(scope.spawn(move || {
                    (&*stream).write_all(sent).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                }));
                threads.push(scope.spawn(move || {
                    let mut got = Vec::new();
                    (&*stream).read_to_end(&mut got).unwrap();
                    assert!(got == *sent, "{} of {LEN} bytes, or wrong ones", got.len());
                }));
            }
            // Also when no thread of the network's own sockets blocks any more.
            while driving == Driving::Application && threads.iter().any(|one| !one.is_finished()) {
                pair.a.drive(Duration::from_millis(10)).unwrap();
            }
        });
    }
}

#[test]
fn a_shutdown_ends_a_read_of_another_thread() {
    for driving in BOTH {
        let pair = pair(driving);
        let (ours, _theirs) = connection(&pair);
        let reader = ours.try_clone().unwrap();
        let reading = thread::spawn(move || (&reader).read(&mut [0; 1]).unwrap());
        thread::sleep(Duration::from_millis(20));
        ours.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    }
}

/// The list of sockets shows what each of them is, and what waits in it.
#[test]
fn a_network_lists_its_sockets() {
    let pair = pair(Driving::Thread);
    let _ending = Ending(pair.a.clone());
    let udp = UdpSocket::bind(&pair.a, format!("{A}:9")).unwrap();
    let listener = TcpListener::bind(&pair.a, format!("{A}:80")).unwrap();
    let mut waiting = TcpStream::connect(&pair.b, format!("{A}:80")).unwrap();
    let far = UdpSocket::bind(&pair.b, "0.0.0.0:0").unwrap();
    far.send_to(b"four", format!("{A}:9")).unwrap();
    waiting.write_all(b"seventh").unwrap();
    let of = |local: &str, has_peer: bool| {
        let local: std::net::SocketAddr = local.parse().unwrap();
        let sockets = pair.a.sockets();
        let found = sockets.iter().find(|one| one.local == local && one.peer.is_some() == has_peer);
        *found.unwrap_or_else(|| panic!("{local} is not in {sockets:?}"))
    };
    eventually("all waits", || {
        of(&format!("{A}:9"), false).received > 4 && of(&format!("{A}:80"), true).received == 7
    });
    assert_eq!(of(&format!("{A}:80"), false).received, 1, "a connection to accept");
    let connection = of(&format!("{A}:80"), true);
    assert_eq!(connection.peer, Some(waiting.local_addr().unwrap()));
    assert_eq!(connection.state, Some(crate::TcpState::Established));
    drop((udp, listener));
    eventually("the sockets are gone", || pair.a.sockets().is_empty());
}

//! Several datagrams per call, and the header fields of datagrams, with the kernel's own sockets as the sender.

use std::io::{ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU8;
use std::time::Duration;

use rustix::net::sockopt;
use towpath_net::{
    BindOptions, DatagramToSend, ReceivedDatagram, TcpListener, TcpStream, UdpSocket,
};
use towpath_testkit::isolated;

use crate::server_tap::{host, serve};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

/// Receives `count` datagrams, as many at once as have arrived, in buffers of 8 bytes.
fn receive(socket: &UdpSocket, count: usize) -> Vec<(Vec<u8>, ReceivedDatagram)> {
    let (mut all, mut received) = (Vec::new(), Vec::new());
    while all.len() < count {
        let mut memory = [[0; 8]; 3];
        let mut buffers = memory.each_mut().map(|buffer| IoSliceMut::new(buffer));
        let got = socket.recv_many(&mut buffers, &mut received).unwrap();
        assert!((1..=3).contains(&got) && got == received.len(), "{got}");
        all.extend(
            received.iter().zip(&memory).map(|(one, data)| (data[..one.len].to_vec(), *one)),
        );
    }
    all
}

#[test]
fn datagrams_of_the_kernel_arrive_with_their_header_fields() {
    isolated!(|| {
        let server = serve(1500);
        let a = host(&server, "a");
        for (ours, theirs) in [("10.77.0.2:7", "10.77.0.1:0"), ("[fd77::2]:7", "[fd77::1]:0")] {
            let socket = UdpSocket::bind(&a, ours).unwrap();
            socket.set_read_timeout(TIMEOUT).unwrap();
            let kernel = std::net::UdpSocket::bind(theirs).unwrap();
            if theirs.starts_with('[') {
                sockopt::set_ipv6_unicast_hops(&kernel, Some(37)).unwrap();
                sockopt::set_ipv6_tclass(&kernel, 0xb9).unwrap();
            } else {
                kernel.set_ttl(37).unwrap();
                sockopt::set_ip_tos(&kernel, 0xb9).unwrap();
            }
            // The last datagram is longer than the buffer, and arrives in fragments.
            for len in [0, 1, 2, 3, 4, 5, 6, 7, 8, 3000] {
                kernel.send_to(&vec![len as u8; len], ours).unwrap();
            }
            let all = receive(&socket, 10);
            for ((data, one), len) in all.iter().zip([0, 1, 2, 3, 4, 5, 6, 7, 8, 3000]) {
                assert_eq!((data, one.datagram_bytes), (&vec![len as u8; len.min(8)], len));
                assert_eq!((one.from, one.len), (kernel.local_addr().unwrap(), len.min(8)));
                assert_eq!(
                    (one.to, one.tos, one.ttl),
                    (socket.local_addr().unwrap().ip(), 0xb9, 37)
                );
            }
            socket.set_nonblocking(true).unwrap();
            let (mut byte, mut received) = ([0], vec![all[0].1]);
            let error = socket.recv_many(&mut [IoSliceMut::new(&mut byte)], &mut received);
            assert_eq!((error.unwrap_err().kind(), received.len()), (ErrorKind::WouldBlock, 0));
            assert_eq!(socket.recv_many(&mut [], &mut received).unwrap(), 0);
        }
    });
}

#[test]
fn several_datagrams_leave_with_fields_of_their_own() {
    isolated!(|| {
        let server = serve(1500);
        let (a, b) = (host(&server, "a"), host(&server, "b"));
        let kernel = std::net::UdpSocket::bind("10.77.0.1:9").unwrap();
        kernel.set_read_timeout(TIMEOUT).unwrap();
        for (from, to) in [("10.77.0.2", "10.77.0.3"), ("fd77::2", "fd77::3")] {
            let any = if from.contains(':') { "[::]:8" } else { "0.0.0.0:8" };
            let receiver = UdpSocket::bind(&b, any).unwrap();
            receiver.set_read_timeout(TIMEOUT).unwrap();
            let sender = UdpSocket::bind(&a, any).unwrap();
            sender.set_tos(0x10).unwrap();
            let (from, to): (std::net::IpAddr, std::net::IpAddr) =
                (from.parse().unwrap(), to.parse().unwrap());
            sender.connect((to, 8)).unwrap();
            let plain = DatagramToSend::to_peer(b"plain");
            let mut special = DatagramToSend::new(b"special", (to, 8).into());
            (special.from, special.tos, special.ttl) = (Some(from), Some(0x2a), NonZeroU8::new(9));
            assert_eq!(sender.send_many(&[plain, special, plain]).unwrap(), 3);
            assert_eq!(sender.send_many(&[]).unwrap(), 0);
            let all = receive(&receiver, 3);
            let fields: Vec<_> = all
                .iter()
                .map(|(data, one)| (&data[..], one.from.ip(), one.to, one.tos, one.ttl))
                .collect();
            let plain_fields = (&b"plain"[..], from, to, 0x10, 64);
            assert_eq!(fields, [plain_fields, (&b"special"[..], from, to, 0x2a, 9), plain_fields]);
            // A datagram that cannot leave ends the call before it, and fails the next one.
            let mut wrong = special;
            wrong.from = Some(to);
            assert_eq!(sender.send_many(&[plain, wrong, plain]).unwrap(), 1);
            assert_eq!(
                sender.send_many(&[wrong, plain]).unwrap_err().kind(),
                ErrorKind::AddrNotAvailable
            );
            assert_eq!(receive(&receiver, 1)[0].0, b"plain");
        }
        // Of the kernel's own network stack as the receiver.
        let sender = UdpSocket::bind(&a, "10.77.0.2:0").unwrap();
        let datagram = |data| DatagramToSend::new(data, kernel.local_addr().unwrap());
        assert_eq!(sender.send_many(&[datagram(b"one"), datagram(b"two")]).unwrap(), 2);
        let mut buffer = [0; 8];
        for want in [b"one", b"two"] {
            let (len, from) = kernel.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (&want[..], sender.local_addr().unwrap()));
        }
    });
}

/// A socket at `[::]` exchanges datagrams with IPv4 hosts, whose addresses are IPv6 addresses there, as on Linux.
#[test]
fn a_socket_takes_both_families() {
    isolated!(|| {
        let server = serve(1500);
        let a = host(&server, "a");
        let both = UdpSocket::bind(&a, "[::]:7").unwrap();
        both.set_read_timeout(TIMEOUT).unwrap();
        let taken = UdpSocket::bind(&a, "0.0.0.0:7").unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let mut buffer = [0; 16];
        for (theirs, ours, seen) in [
            ("10.77.0.1:0", "10.77.0.2:7", "::ffff:10.77.0.1"),
            ("[fd77::1]:0", "[fd77::2]:7", "fd77::1"),
        ] {
            let kernel = std::net::UdpSocket::bind(theirs).unwrap();
            kernel.set_read_timeout(TIMEOUT).unwrap();
            kernel.connect(ours).unwrap();
            kernel.send(b"question").unwrap();
            let got = both.recv_datagram(&mut buffer).unwrap();
            let port = kernel.local_addr().unwrap().port();
            assert_eq!(got.from, (seen.parse::<std::net::IpAddr>().unwrap(), port).into());
            // By the address that the application sees, by the host's own, and to a connected peer.
            let mut answer = DatagramToSend::new(b"answer", got.from);
            answer.from = Some(got.to);
            assert_eq!(both.send_many(&[answer]).unwrap(), 1);
            both.send_to(b"again", kernel.local_addr().unwrap()).unwrap();
            let other = UdpSocket::bind(&a, "[::]:0").unwrap();
            other.connect(got.from).unwrap();
            assert_eq!(other.peer_addr().unwrap(), got.from);
            for want in [&b"answer"[..], b"again"] {
                let count = kernel.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..count], want);
            }
            // A host that refuses is reported in both families.
            other.connect((got.from.ip(), 9)).unwrap();
            other.set_read_timeout(TIMEOUT).unwrap();
            other.send(b"?").unwrap();
            assert_eq!(other.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
        drop(both);
        let mut options = BindOptions::default();
        options.only_v6 = true;
        let v6 = UdpSocket::bind_with(&a, "[::]:7", options).unwrap();
        let v4 = UdpSocket::bind(&a, "0.0.0.0:7").unwrap();
        v4.set_read_timeout(TIMEOUT).unwrap();
        std::net::UdpSocket::bind("10.77.0.1:0").unwrap().send_to(b"4", "10.77.0.2:7").unwrap();
        assert!(v4.recv_from(&mut buffer).unwrap().1.is_ipv4());
        v6.set_nonblocking(true).unwrap();
        assert_eq!(v6.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        let refused = v6.send_to(b"?", "10.77.0.1:9").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_listener_takes_both_families() {
    isolated!(|| {
        let server = serve(1500);
        let a = host(&server, "a");
        let both = TcpListener::bind(&a, "[::]:80").unwrap();
        assert_eq!(both.local_addr().unwrap(), "[::]:80".parse().unwrap());
        let taken = TcpListener::bind(&a, "10.77.0.2:80").unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        for (to, seen) in [("10.77.0.2:80", "::ffff:10.77.0.1"), ("[fd77::2]:80", "fd77::1")] {
            let kernel = std::net::TcpStream::connect(to).unwrap();
            let (stream, peer) = both.accept().unwrap();
            let want =
                (seen.parse::<std::net::IpAddr>().unwrap(), kernel.local_addr().unwrap().port());
            assert_eq!((peer, stream.peer_addr().unwrap()), (want.into(), want.into()));
            assert!(stream.local_addr().unwrap().is_ipv6());
        }
        // A stream to an IPv4 host by its IPv6 address.
        let kernel = std::net::TcpListener::bind("10.77.0.1:0").unwrap();
        let port = kernel.local_addr().unwrap().port();
        let mapped: std::net::SocketAddr = format!("[::ffff:10.77.0.1]:{port}").parse().unwrap();
        let stream = TcpStream::connect(&a, mapped).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), mapped);
        assert!(kernel.accept().unwrap().1.is_ipv4());
        drop(both);
        let mut options = BindOptions::default();
        options.only_v6 = true;
        let _v6 = TcpListener::bind_with(&a, "[::]:80", options).unwrap();
        let refused = std::net::TcpStream::connect("10.77.0.2:80").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        TcpListener::bind(&a, "0.0.0.0:80").unwrap();
    });
}

/// The groups of the tests below.
const GROUPS: [&str; 2] = ["239.1.2.3", "ff05::1:3"];

fn join(socket: &UdpSocket, group: IpAddr) -> std::io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(group) => socket.join_multicast_v6(&group, 0),
    }
}

fn leave(socket: &UdpSocket, group: IpAddr) -> std::io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, 0),
    }
}

/// The kernel, this network and another application of the host exchange datagrams to a group.
#[test]
fn groups_are_joined_beside_the_kernel() {
    isolated!(|| {
        let server = serve(1500);
        let (a, b) = (host(&server, "a"), host(&server, "b"));
        for (group, kernel_address) in GROUPS.into_iter().zip(["10.77.0.1", "fd77::1"]) {
            let group: IpAddr = group.parse().unwrap();
            let kernel_address: IpAddr = kernel_address.parse().unwrap();
            let to = SocketAddr::new(group, 7);
            let any = if group.is_ipv4() { "0.0.0.0:7" } else { "[::]:7" };
            let [first, second] = [&a, &b].map(|network| UdpSocket::bind(network, any).unwrap());
            let kernel = std::net::UdpSocket::bind((kernel_address, 7)).unwrap();
            let member = std::net::UdpSocket::bind(to).unwrap();
            match (group, kernel_address) {
                (IpAddr::V4(group), IpAddr::V4(own)) => member.join_multicast_v4(&group, &own),
                (IpAddr::V6(group), _) => member.join_multicast_v6(&group, 0),
                _ => unreachable!(),
            }
            .unwrap();
            member.set_read_timeout(TIMEOUT).unwrap();
            let (mut buffer, mut own) = ([0; 8], [0; 8]);
            for socket in [&first, &second] {
                socket.set_read_timeout(TIMEOUT).unwrap();
                join(socket, group).unwrap();
            }
            kernel.send_to(b"kernel", to).unwrap();
            for socket in [&first, &second] {
                let received = socket.recv_datagram(&mut buffer).unwrap();
                assert_eq!(buffer[..received.len], *b"kernel");
                assert_eq!((received.to, received.from), (group, kernel.local_addr().unwrap()));
            }
            // The kernel also sends it to its own member.
            let got = |buffer: &mut [u8]| member.recv_from(buffer).map(|(len, _)| len).unwrap();
            assert_eq!(got(&mut buffer), 6);
            first.send_to(b"first", to).unwrap();
            assert_eq!(first.recv_from(&mut own).unwrap().0, 5);
            assert_eq!(second.recv_from(&mut buffer).unwrap().0, 5);
            assert_eq!(got(&mut buffer), 5);
            // Without the loop, and without the membership.
            first.set_multicast_loop_v4(false).unwrap();
            leave(&second, group).unwrap();
            first.send_to(b"last", to).unwrap();
            assert_eq!(got(&mut buffer), 4);
            for socket in [&first, &second] {
                socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let error = socket.recv_from(&mut buffer).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            let other = "a network has one interface";
            if let IpAddr::V6(group) = group {
                let error = second.join_multicast_v6(&group, 3).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
                assert!(error.to_string().contains(other), "{error}");
            }
            if let IpAddr::V4(group) = group {
                let error = second.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 1));
                assert_eq!(error.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
                second.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 3)).unwrap();
            }
        }
    });
}

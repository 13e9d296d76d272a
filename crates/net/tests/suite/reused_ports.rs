//! Several sockets on one port (`BindOptions::reuse_port`), with the kernel's sockets as the peers.

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket as KernelSocket;
use std::thread::JoinHandle;
use std::time::Duration;

use towpath_net::{BindOptions, Network, TcpListener, UdpSocket};
use towpath_testkit::isolated;

use crate::server_tap::{host, serve};

const LIMIT: Option<Duration> = Some(Duration::from_secs(5));

fn reuse() -> BindOptions {
    let mut options = BindOptions::default();
    options.reuse_port = true;
    options
}

/// Starts a thread that accepts connections with its own listener, and answers each by the thread's number. The thread
/// ends after a connection that sends a zero.
fn start(network: &Network, number: u8) -> JoinHandle<usize> {
    let listener = TcpListener::bind_with(network, "[::]:80", reuse()).unwrap();
    std::thread::spawn(move || {
        for count in 0.. {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&[number]).unwrap();
            if byte == [0] {
                return count;
            }
        }
        unreachable!();
    })
}

/// Each thread has a listener on the same port. When a thread has ended, the others get all connections.
#[test]
fn threads_share_the_connections_of_a_port() {
    isolated!(|| {
        let server = serve(1500);
        let network = host(&server, "a");
        let mut threads: Vec<_> = (1..=3).map(|number| (number, start(&network, number))).collect();
        let ask = |byte: u8| {
            let mut stream = std::net::TcpStream::connect("10.77.0.2:80").unwrap();
            stream.set_read_timeout(LIMIT).unwrap();
            stream.write_all(&[byte]).unwrap();
            let mut number = [0];
            stream.read_exact(&mut number).unwrap();
            number[0]
        };
        let other = TcpListener::bind(&network, "[::]:80").unwrap_err();
        assert_eq!(other.kind(), ErrorKind::AddrInUse);
        while !threads.is_empty() {
            let mut served = [0; 4];
            for _ in 0..60 {
                served[usize::from(ask(1))] += 1;
            }
            let are_busy = threads.iter().all(|(number, _)| served[usize::from(*number)] > 0);
            assert!(are_busy, "{served:?} of {}", threads.len());
            let ended = ask(0);
            let at = threads.iter().position(|(number, _)| *number == ended).unwrap();
            threads.remove(at).1.join().unwrap();
        }
        let gone = std::net::TcpStream::connect("10.77.0.2:80").unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
        TcpListener::bind(&network, "[::]:80").unwrap();
    });
}

/// A server has a socket for new peers, and one that is connected to each known peer.
#[test]
fn connected_datagram_sockets_share_the_port_of_the_first() {
    isolated!(|| {
        let server = serve(1500);
        let network = host(&server, "a");
        let first = UdpSocket::bind_with(&network, "10.77.0.2:7", reuse()).unwrap();
        first.set_read_timeout(LIMIT).unwrap();
        let peers: Vec<KernelSocket> = (0..5)
            .map(|_| KernelSocket::bind("10.77.0.1:0").unwrap())
            .inspect(|peer| peer.connect("10.77.0.2:7").unwrap())
            .collect();
        let mut buffer = [0; 16];
        let mut connected = Vec::new();
        for peer in &peers {
            peer.send(b"hello").unwrap();
            let (_, from) = first.recv_from(&mut buffer).unwrap();
            assert_eq!(from, peer.local_addr().unwrap());
            let socket = UdpSocket::bind_with(&network, "10.77.0.2:7", reuse()).unwrap();
            socket.connect(from).unwrap();
            socket.set_read_timeout(LIMIT).unwrap();
            connected.push(socket);
        }
        for (peer, socket) in peers.iter().zip(&connected) {
            peer.set_read_timeout(LIMIT).unwrap();
            peer.send(b"again").unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
            socket.send(b"answer").unwrap();
            assert_eq!(peer.recv(&mut buffer).unwrap(), 6);
        }
        first.set_nonblocking(true).unwrap();
        assert_eq!(first.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

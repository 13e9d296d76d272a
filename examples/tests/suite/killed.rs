//! Tests what the peers of a killed example learn: kernel sockets at a TAP's other end.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use towpath_testkit::isolated;

use crate::network::web::{HOSTS, content, plain, start};
use crate::network::{Running, Served, possible};

/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const LIMIT: Duration = Duration::from_secs(20);

/// The engine resets a connection of a program that SIGKILL ended, as the kernel does.
#[test]
fn a_connection_of_a_killed_program_is_reset() {
    if !possible("killed::a_connection_of_a_killed_program_is_reset", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        for host in HOSTS {
            let (directory, _) = content();
            let web = start(&served, &directory);
            let to = SocketAddr::new(host.parse().unwrap(), 80);
            let mut connected = TcpStream::connect_timeout(&to, LIMIT).unwrap();
            connected.set_read_timeout(Some(LIMIT)).unwrap();
            connected.write_all(b"GET /").unwrap();
            // Sends SIGKILL.
            drop(web);
            connected.write_all(b" HTTP/1.0").unwrap();
            let error = connected.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{host}");
            let again = TcpStream::connect_timeout(&to, LIMIT).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::ConnectionRefused, "{host}");
        }
        served.server.stop().unwrap();
    });
}

#[test]
fn datagrams_to_a_killed_program_are_refused() {
    if !possible("killed::datagrams_to_a_killed_program_are_refused", &[]) {
        return;
    }
    isolated!(|| {
        let served = Served::start(1500, plain);
        for host in HOSTS {
            let echo = Running::start(env!("CARGO_BIN_EXE_udp_echo"), &served, &[]);
            let to = SocketAddr::new(host.parse().unwrap(), 7);
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let asking = UdpSocket::bind(any).unwrap();
            asking.connect(to).unwrap();
            asking.set_read_timeout(Some(LIMIT)).unwrap();
            asking.send(b"are you there?").unwrap();
            assert_eq!(asking.recv(&mut [0; 20]).unwrap(), 14);
            // Sends SIGKILL.
            drop(echo);
            asking.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let until = Instant::now() + LIMIT;
            let error = loop {
                // The session may get a datagram before the server learns of the end.
                let asked = asking.send(b"are you there?").and_then(|_| asking.recv(&mut [0; 20]));
                match asked.unwrap_err() {
                    late if late.kind() == ErrorKind::WouldBlock && Instant::now() < until => {}
                    error => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{host}");
        }
        served.server.stop().unwrap();
    });
}

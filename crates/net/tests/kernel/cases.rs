//! The tests.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use towpath_net::{
    Driving, Events, Interest, Network, Poller, TcpListener, TcpStream, Trigger, UdpSocket,
};
use towpath_netlink::Netlink;
use towpath_testkit::ping;

use crate::{Bench, PLAIN, Setting, eventually};

/// The time limit of an echo.
const ECHO_LIMIT: Duration = Duration::from_secs(5);

pub(crate) const ALL: &[(&str, fn())] = &[
    ("echoes_of_any_size", echoes_of_any_size),
    ("datagrams_of_any_size", datagrams_of_any_size),
    ("a_refused_datagram_is_told", a_refused_datagram_is_told),
    ("kernel_fetches_and_uploads", kernel_fetches_and_uploads),
    ("we_fetch_and_upload", we_fetch_and_upload),
    ("other_settings", other_settings),
    ("two_hundred_connections_at_once", two_hundred_connections_at_once),
    ("half_close_both_ways", half_close_both_ways),
    ("resets_both_ways", resets_both_ways),
    ("refused_and_unreachable", refused_and_unreachable),
    ("timeouts", timeouts),
    ("a_poller_watches_many", a_poller_watches_many),
    ("the_application_drives", the_application_drives),
    ("a_dead_link_is_told_at_once", a_dead_link_is_told_at_once),
    ("an_idle_network_sleeps", an_idle_network_sleeps),
    ("a_write_wakes_no_waiter", a_write_wakes_no_waiter),
];

fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

fn address(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

fn echoes_of_any_size() {
    for mtu in [1500, 9000] {
        let bench = Bench::new(Setting { mtu, ..PLAIN });
        for ip in bench.ours {
            for len in [0, 56, 1400, 1473, 8973, 20_000, 60_000] {
                ping(ip, len, ECHO_LIMIT).unwrap_or_else(|error| panic!("{ip} {len}: {error}"));
            }
        }
        assert_eq!(bench.network.counters().icmp_echoes, 14);
    }
}

fn datagrams_of_any_size() {
    for offload in [false, true] {
        let bench = Bench::new(Setting { offload, ..PLAIN });
        for (ours, kernel) in bench.ours.into_iter().zip(bench.kernel) {
            let socket = UdpSocket::bind(&bench.network, address(ours, 7)).unwrap();
            let echo = thread::spawn(move || {
                let mut buffer = vec![0; 70_000];
                for _ in 0..7 {
                    let (len, from) = socket.recv_from(&mut buffer).unwrap();
                    assert_eq!(socket.send_to(&buffer[..len], from).unwrap(), len);
                }
            });
            let client = std::net::UdpSocket::bind(address(kernel, 0)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.connect(address(ours, 7)).unwrap();
            let mut buffer = vec![0; 70_000];
            for len in [0, 1, 1472, 1473, 9001, 40_000, 65_507] {
                let data = bytes(len);
                client.send(&data).unwrap();
                assert_eq!(client.recv(&mut buffer).unwrap(), len);
                assert_eq!(buffer[..len], data);
            }
            echo.join().unwrap();
        }
        assert_eq!(bench.network.counters().rx_checksum, 0);
        let socket = UdpSocket::bind(&bench.network, "0.0.0.0:0").unwrap();
        let to = address(bench.kernel[0], 9);
        assert_eq!(socket.send_to(&[0; 65_508], to).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn a_refused_datagram_is_told() {
    let bench = Bench::new(PLAIN);
    for (ours, kernel) in bench.ours.into_iter().zip(bench.kernel) {
        let socket = UdpSocket::bind(&bench.network, address(ours, 0)).unwrap();
        socket.connect(address(kernel, 9)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send(b"anybody?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // The other direction: the port on our side is unreachable.
        let client = std::net::UdpSocket::bind(address(kernel, 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(address(ours, 9)).unwrap();
        client.send(b"anybody?").unwrap();
        let error = client.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

/// Serves `count` connections: hashes the received data, and after its end sends `data` and the
/// hash back.
fn serve(network: &Network, at: SocketAddr, count: usize, data: Vec<u8>) -> thread::JoinHandle<()> {
    let listener = TcpListener::bind(network, at).unwrap();
    let network = network.clone();
    thread::spawn(move || {
        let mut threads = Vec::new();
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            let data = data.clone();
            threads.push(thread::spawn(move || {
                let (mut hash, mut buffer) = (Sha256::new(), vec![0; 65_536]);
                loop {
                    match stream.read(&mut buffer).unwrap() {
                        0 => break,
                        len => hash.update(&buffer[..len]),
                    }
                }
                stream.write_all(&data).unwrap();
                stream.write_all(&hash.finalize()).unwrap();
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        network.drain(Duration::from_secs(20)).unwrap();
    })
}

/// Runs the other side of [`serve`].
fn exchange(
    mut stream: impl Read + Write,
    close: impl FnOnce(&mut dyn ReadWrite),
    upload: &[u8],
    download: &[u8],
) {
    stream.write_all(upload).unwrap();
    close(&mut stream);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    let (data, hash) = got.split_at(download.len());
    assert_eq!(Sha256::digest(data), Sha256::digest(download), "the downloaded data differs");
    assert_eq!(hash, &Sha256::digest(upload)[..], "the uploaded data differs");
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn kernel_client(at: SocketAddr, upload: &[u8], download: &[u8]) {
    let stream = std::net::TcpStream::connect_timeout(&at, Duration::from_secs(10)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let half = stream.try_clone().unwrap();
    exchange(stream, |_| half.shutdown(Shutdown::Write).unwrap(), upload, download);
}

fn transfers(bench: &Bench, len: usize) {
    for ours in bench.ours {
        let (upload, download) = (bytes(len), bytes(len + 12_345));
        let at = address(ours, 80);
        let server = serve(&bench.network, at, 1, download.clone());
        kernel_client(at, &upload, &download);
        server.join().unwrap();
    }
    let counters = bench.network.counters();
    assert_eq!((counters.rx_checksum, counters.rx_malformed), (0, 0), "{counters:#?}");
    assert_eq!(counters.tcp_transmit_refused, 0);
}

fn kernel_fetches_and_uploads() {
    let bench = Bench::new(PLAIN);
    transfers(&bench, 20_000_000);
    // Both directions used large packets.
    let counters = bench.network.counters();
    assert!(counters.tx_bytes / counters.tx_frames > 3000, "{counters:#?}");
}

fn we_fetch_and_upload() {
    let bench = Bench::new(PLAIN);
    for kernel in bench.kernel {
        let listener = std::net::TcpListener::bind(address(kernel, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (upload, download) = (bytes(5_000_000), bytes(6_000_000));
        let data = download.clone();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            stream.write_all(&data).unwrap();
            stream.write_all(&Sha256::digest(&got)).unwrap();
        });
        let stream = TcpStream::connect(&bench.network, at).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), at);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let half = stream.try_clone().unwrap();
        exchange(&stream, |_| half.shutdown(Shutdown::Write).unwrap(), &upload, &download);
        server.join().unwrap();
    }
}

fn other_settings() {
    for (mtu, offload) in [(1500, false), (9000, true), (9000, false), (1280, true)] {
        let bench = Bench::new(Setting { mtu, offload, ..PLAIN });
        transfers(&bench, 2_000_000);
    }
}

fn two_hundred_connections_at_once() {
    const COUNT: usize = 200;
    let bench = Bench::new(PLAIN);
    let (upload, download) = (bytes(30_000), bytes(50_000));
    let at = address(bench.ours[0], 80);
    let server = serve(&bench.network, at, COUNT, download.clone());
    // All connections exist before the test uses the first.
    let streams: Vec<_> = (0..COUNT)
        .map(|_| std::net::TcpStream::connect_timeout(&at, Duration::from_secs(10)).unwrap())
        .collect();
    eventually("all accepted", || bench.network.counters().tcp_accepted == COUNT as u64);
    assert_eq!(bench.network.connections(), COUNT);
    let threads: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            let (upload, download) = (upload.clone(), download.clone());
            thread::spawn(move || {
                let half = stream.try_clone().unwrap();
                exchange(stream, |_| half.shutdown(Shutdown::Write).unwrap(), &upload, &download);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    server.join().unwrap();
    assert_eq!(bench.network.connections(), 0);
}

/// Returns both ends of a connection: ours and the kernel's.
fn pair(bench: &Bench) -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind(&bench.network, address(bench.ours[0], 0)).unwrap();
    let at = listener.local_addr().unwrap();
    // A network without a library thread needs a thread blocked in one of its calls.
    let connecting =
        thread::spawn(move || std::net::TcpStream::connect_timeout(&at, Duration::from_secs(10)));
    let (ours, peer) = listener.accept().unwrap();
    let theirs = connecting.join().unwrap().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(peer, theirs.local_addr().unwrap());
    ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (ours, theirs)
}

fn half_close_both_ways() {
    let bench = Bench::new(PLAIN);
    let (mut ours, mut theirs) = pair(&bench);
    let mut buffer = [0; 100];
    theirs.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ours.read(&mut buffer).unwrap(), 0);
    ours.write_all(b"still here").unwrap();
    assert_eq!(theirs.read(&mut buffer).unwrap(), 10);
    drop(ours);
    assert_eq!(theirs.read(&mut buffer).unwrap(), 0);
    let (mut ours, mut theirs) = pair(&bench);
    ours.shutdown(Shutdown::Write).unwrap();
    assert_eq!(theirs.read(&mut buffer).unwrap(), 0);
    assert_eq!(ours.write(b"no").unwrap_err().kind(), ErrorKind::BrokenPipe);
    theirs.write_all(b"still here").unwrap();
    assert_eq!(ours.peek(&mut buffer).unwrap(), 10);
    assert_eq!(ours.read(&mut buffer).unwrap(), 10);
    drop(theirs);
    assert_eq!(ours.read(&mut buffer).unwrap(), 0);
    // The connection is closed on both sides, but unread bytes would still be there.
    eventually("one connection in TIME-WAIT", || bench.network.counters().tcp_time_wait == 1);
}

fn resets_both_ways() {
    let bench = Bench::new(PLAIN);
    let mut buffer = [0; 100];
    let (ours, mut theirs) = pair(&bench);
    ours.abort();
    assert_eq!(theirs.read(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (ours, mut theirs) = pair(&bench);
    ours.set_linger(Some(Duration::ZERO)).unwrap();
    drop(ours);
    assert_eq!(theirs.read(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Unread bytes are lost, and the kernel receives a reset.
    let (ours, mut theirs) = pair(&bench);
    theirs.write_all(b"unread").unwrap();
    ours.peek(&mut buffer).unwrap();
    drop(ours);
    assert_eq!(theirs.read(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // A reset from the kernel wakes a blocked reader.
    let (mut ours, theirs) = pair(&bench);
    let reader = thread::spawn(move || ours.read(&mut [0; 100]).unwrap_err().kind());
    thread::sleep(Duration::from_millis(50));
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    assert_eq!(reader.join().unwrap(), ErrorKind::ConnectionReset);
}

fn refused_and_unreachable() {
    let bench = Bench::new(PLAIN);
    for (ours, kernel) in bench.ours.into_iter().zip(bench.kernel) {
        let refused = TcpStream::connect(&bench.network, address(kernel, 9)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let refused = std::net::TcpStream::connect(address(ours, 9)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    let nowhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
    let error = TcpStream::connect(&bench.network, nowhere).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    let IpAddr::V4(kernel) = bench.kernel[0] else { unreachable!() };
    let [a, b, c, _] = kernel.octets();
    let silent = address(IpAddr::from([a, b, c, 99]), 80);
    // The call's own timeout expires before the network finds that no host answers there.
    let error = TcpStream::connect_timeout(&bench.network, &silent, Duration::from_millis(300))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let error = TcpStream::connect(&bench.network, silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    let listener = TcpListener::bind(&bench.network, address(bench.ours[0], 80)).unwrap();
    let again = TcpListener::bind(&bench.network, "0.0.0.0:80").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    drop(listener);
    TcpListener::bind(&bench.network, "0.0.0.0:80").unwrap();
    let error = UdpSocket::bind(&bench.network, "192.0.2.1:53").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
}

fn timeouts() {
    let bench = Bench::new(PLAIN);
    let (mut ours, _theirs) = pair(&bench);
    ours.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let begin = Instant::now();
    assert_eq!(ours.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    // The kernel does not read: first its window closes, then our buffer is full.
    ours.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let data = bytes(100_000);
    let mut written = 0;
    let error = loop {
        match ours.write(&data) {
            Ok(len) => written += len,
            Err(error) => break error,
        }
        assert!(written < 1 << 30);
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ours.set_nonblocking(true).unwrap();
    assert_eq!(ours.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(ours.set_read_timeout(Some(Duration::ZERO)).is_err());
}

/// Serves 20 connections of kernel sockets in one thread, by the poller's descriptor or by its wait.
fn serve_many(driving: Driving, trigger: Trigger, by_descriptor: bool) {
    let bench = Bench::new(Setting { driving, ..PLAIN });
    let poller = Poller::new().unwrap();
    let listener = TcpListener::bind(&bench.network, address(bench.ours[0], 80)).unwrap();
    listener.set_nonblocking(true).unwrap();
    poller.register(&listener, 0, Interest::READABLE, trigger).unwrap();
    let at = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..20u8)
        .map(|number| {
            thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(at).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                for round in 0..50u8 {
                    stream.write_all(&[number, round]).unwrap();
                    let mut back = [0; 2];
                    stream.read_exact(&mut back).unwrap();
                    assert_eq!(back, [number, round]);
                }
            })
        })
        .collect();
    let (mut streams, mut over, mut events) = (Vec::new(), 0, Events::with_capacity(7));
    let until = Instant::now() + Duration::from_secs(10);
    while over < 20 {
        assert!(Instant::now() < until, "{over} of 20 are over");
        let mut timeout = Duration::from_secs(1);
        if by_descriptor {
            let mut fds = [rustix::event::PollFd::new(&poller, rustix::event::PollFlags::IN)];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&second)).unwrap();
            timeout = Duration::ZERO;
        }
        poller.wait(&mut events, Some(timeout)).unwrap();
        for event in &events {
            assert!(event.ready.is_readable(), "{event:?}");
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let token = streams.len() as u64 + 1;
                    poller.register(&stream, token, Interest::READABLE, trigger).unwrap();
                    streams.push(Some(stream));
                }
                continue;
            }
            let place = &mut streams[event.token as usize - 1];
            let mut stream = place.as_ref().expect("no event after the drop");
            let mut buffer = [0; 100];
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) => {
                        *place = None;
                        over += 1;
                        break;
                    }
                    Ok(len) => stream.write_all(&buffer[..len]).unwrap(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
                if trigger == Trigger::Level {
                    break;
                }
            }
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn a_poller_watches_many() {
    for trigger in [Trigger::Level, Trigger::Edge] {
        serve_many(Driving::Thread, trigger, true);
        serve_many(Driving::Thread, trigger, false);
        serve_many(Driving::Application, trigger, false);
    }
}

fn the_application_drives() {
    let bench = Bench::new(Setting { driving: Driving::Application, ..PLAIN });
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1, "an unexpected thread");
    transfers(&bench, 3_000_000);
    // Several threads, of which one at a time drives.
    let (upload, download) = (bytes(20_000), bytes(30_000));
    let at = address(bench.ours[0], 81);
    let server = serve(&bench.network, at, 10, download.clone());
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let (upload, download) = (upload.clone(), download.clone());
            thread::spawn(move || kernel_client(at, &upload, &download))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.join().unwrap();
    // And with explicit calls of `drive`: no thread is blocked in a call.
    let ip = bench.ours[0];
    let pinging = thread::spawn(move || ping(ip, 5000, ECHO_LIMIT));
    while !pinging.is_finished() {
        bench.network.drive(Duration::from_millis(20)).unwrap();
    }
    pinging.join().unwrap().unwrap();
}

fn a_dead_link_is_told_at_once() {
    for driving in [Driving::Thread, Driving::Application] {
        let bench = Bench::new(Setting { driving, ..PLAIN });
        let listener = TcpListener::bind(&bench.network, address(bench.ours[0], 80)).unwrap();
        let (mut ours, _theirs) = pair(&bench);
        let socket = UdpSocket::bind(&bench.network, "0.0.0.0:0").unwrap();
        let blocked = [
            thread::spawn(move || listener.accept().unwrap_err()),
            thread::spawn(move || ours.read(&mut [0; 10]).unwrap_err()),
            thread::spawn(move || socket.recv(&mut [0; 10]).unwrap_err()),
        ];
        thread::sleep(Duration::from_millis(100));
        Netlink::open().unwrap().delete_link(&bench.name).unwrap();
        for thread in blocked {
            let error = thread.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            assert!(matches!(cause, Some(towpath_net::LinkError::Failed(_))), "{error}");
        }
        let to = address(bench.kernel[0], 9);
        let error = TcpStream::connect(&bench.network, to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkDown);
    }
}

/// Returns the number of times that the library's thread went to sleep.
fn sleeps() -> u64 {
    let mut sleeps = None;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).unwrap().trim() != "towpath-net" {
            continue;
        }
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt")).unwrap();
        sleeps = Some(line.split_whitespace().last().unwrap().parse().unwrap());
    }
    sleeps.expect("the library's thread")
}

fn an_idle_network_sleeps() {
    let bench = Bench::new(PLAIN);
    let (mut ours, mut theirs) = pair(&bench);
    ours.write_all(b"hello").unwrap();
    theirs.read_exact(&mut [0; 5]).unwrap();
    // The kernel solicits neighbours and routers on a new interface for a while.
    thread::sleep(Duration::from_millis(1500));
    let (before, frames) = (sleeps(), bench.network.counters().rx_frames);
    thread::sleep(Duration::from_millis(1500));
    let (woken, frames) = (sleeps() - before, bench.network.counters().rx_frames - frames);
    assert!(woken <= frames + 1, "{woken} wake-ups for {frames} frames");
}

fn a_write_wakes_no_waiter() {
    const ROUNDS: u64 = 500;
    let bench = Bench::new(PLAIN);
    let (mut ours, mut theirs) = pair(&bench);
    let echo = thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok(len @ 1..) = theirs.read(&mut buffer) {
            theirs.write_all(&buffer[..len]).unwrap();
        }
    });
    let (before, frames) = (sleeps(), bench.network.counters().rx_frames);
    for _ in 0..ROUNDS {
        ours.write_all(b"ping").unwrap();
        ours.read_exact(&mut [0; 4]).unwrap();
    }
    let (woken, frames) = (sleeps() - before, bench.network.counters().rx_frames - frames);
    // The library's thread wakes for received frames. It also wakes for a contended lock, and for
    // an acknowledgement delayed by ten milliseconds.
    assert!(frames <= 2 * ROUNDS + 20, "{frames} frames");
    assert!(woken <= frames + ROUNDS / 5, "{woken} wake-ups for {frames} frames");
    drop(ours);
    echo.join().unwrap();
}

//! How many threads a connection wakes, and how often.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::wire_tests::{A, B, Ending, Pair, eventually, is_tcp_without_syn, pair};
use crate::{Driving, Network, TcpListener, TcpStream, UdpSocket};

const THREADS: usize = 4;

/// Returns how often a blocked thread woke that did not drive.
fn woken(network: &Network) -> u64 {
    network.shared().core().standby.wakes
}

/// Waits until `blocked` threads are blocked, and in a network without a library thread another one
/// drives, asleep.
fn settle(network: &Network, blocked: usize) {
    eventually("all threads wait", || {
        let shared = network.shared();
        let core = shared.core();
        let is_led = shared.threaded || core.standby.led;
        core.standby.blocked == blocked && is_led && shared.is_asleep()
    });
}

/// Connects, and keeps the connection until the peer has closed it.
fn visit(network: &Network, at: &str) -> thread::JoinHandle<()> {
    let mut stream = TcpStream::connect(network, at).unwrap();
    thread::spawn(move || assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0))
}

/// A connection wakes one of the threads that accept, and in a network without a library thread
/// at most one more, to drive in its place. Connections that arrive together are all accepted.
fn threads_accept(driving: Driving) {
    const ONE_BY_ONE: u64 = 200;
    const TOGETHER: u64 = 200;
    let Pair { a, b, to_a, .. } = pair(driving);
    let at = format!("{A}:80");
    let listener = TcpListener::bind(&a, &at).unwrap();
    let accepted = AtomicU64::new(0);
    let is_last = |count| count == ONE_BY_ONE + TOGETHER;
    // In a network without a library thread, one of the threads drives.
    let blocked = if driving == Driving::Thread { THREADS } else { THREADS - 1 };
    thread::scope(|scope| {
        let _ending = Ending(a.clone());
        for _ in 0..THREADS {
            let listener = listener.try_clone().unwrap();
            let accepted = &accepted;
            scope.spawn(move || {
                listener.set_nonblocking(false).unwrap();
                while let Ok((stream, _)) = listener.accept() {
                    drop(stream);
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        settle(&a, blocked);
        let before = woken(&a);
        for number in 1..=ONE_BY_ONE {
            visit(&b, &at).join().unwrap();
            eventually("accepted", || accepted.load(Ordering::Relaxed) == number);
            settle(&a, blocked);
        }
        let wakes = woken(&a) - before;
        println!("{driving:?}: {wakes} wake-ups for {ONE_BY_ONE} connections one by one");
        // A thread that is about to sleep may wake in addition to the one that sleeps.
        let most = ONE_BY_ONE + ONE_BY_ONE / 4;
        assert!(wakes <= most, "{wakes} wake-ups, at most {most}");
        assert!(driving != Driving::Thread || wakes >= ONE_BY_ONE, "{wakes}");
        // The handshakes' last segments arrive together, and so do the connections.
        to_a.hold(is_tcp_without_syn);
        let before = woken(&a);
        let visits: Vec<_> = (0..TOGETHER).map(|_| visit(&b, &at)).collect();
        eventually("all held", || to_a.held() as u64 >= TOGETHER);
        to_a.release();
        eventually("all accepted", || is_last(accepted.load(Ordering::Relaxed)));
        visits.into_iter().for_each(|visit| visit.join().unwrap());
        let wakes = woken(&a) - before;
        println!("{driving:?}: {wakes} wake-ups for {TOGETHER} connections together");
        assert!(wakes <= 2 * TOGETHER, "{wakes} wake-ups");
        // Threads that wait without a connection do not wake, once all that were woken have run.
        eventually("no thread wakes", || {
            let before = woken(&a);
            thread::sleep(Duration::from_millis(100));
            woken(&a) == before
        });
    });
    assert!(is_last(a.counters().tcp_accepted));
}

#[test]
fn each_connection_wakes_one_thread() {
    threads_accept(Driving::Thread);
}

#[test]
fn each_connection_wakes_one_thread_without_a_library_thread() {
    threads_accept(Driving::Application);
}

/// The waits of one thread: how often it woke, and how often it drove the network meanwhile.
fn waits(network: &Network) -> (u64, u64) {
    let core = network.shared().core();
    (core.standby.wakes, core.standby.turns)
}

/// Returns `true` for the frames of an open TCP connection that have data.
fn has_data(frame: &[u8]) -> bool {
    // Each segment of an open connection has 12 bytes of options.
    is_tcp_without_syn(frame) && frame.len() > 14 + 20 + 32
}

/// A connection and its first data that arrive together wake the accepting thread once. If the data
/// arrives later, it waits once more.
fn accepts_and_reads(driving: Driving) {
    let Pair { a, b, to_a, .. } = pair(driving);
    let listener = TcpListener::bind(&a, format!("{A}:80")).unwrap();
    let _ending = Ending(a.clone());
    for together in [true, false].into_iter().cycle().take(20) {
        to_a.hold(if together { is_tcp_without_syn } else { has_data });
        let listener = listener.try_clone().unwrap();
        let (accepted, seen) = mpsc::channel();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            accepted.send(()).unwrap();
            let mut bytes = [0; 100];
            let len = stream.read(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"request");
            stream
        });
        settle(&a, usize::from(driving == Driving::Thread));
        let mut before = (waits(&a), a.shared().sleeps());
        let mut client = TcpStream::connect(&b, format!("{A}:80")).unwrap();
        client.write_all(b"request").unwrap();
        if together {
            // The handshake's last segment, and the data.
            eventually("both are held", || to_a.held() >= 2);
            settle(&a, usize::from(driving == Driving::Thread));
            before = (waits(&a), a.shared().sleeps());
        } else {
            seen.recv().unwrap();
            eventually("the data is held", || to_a.held() >= 1);
            eventually("the thread waits for the data", || {
                let core = a.shared().core();
                core.standby.blocked + usize::from(core.standby.led) == 1 && a.shared().is_asleep()
            });
        }
        to_a.release();
        let stream = serving.join().unwrap();
        let ((wakes, turns), slept) = (waits(&a), a.shared().sleeps() - before.1);
        let (wakes, turns) = (wakes - before.0.0, turns - before.0.1);
        match (driving, together) {
            (Driving::Thread, true) => assert_eq!((wakes, turns), (1, 0)),
            (Driving::Thread, false) => assert!(wakes + turns >= 2, "{wakes} + {turns}"),
            // The thread drives. It was asleep already, and has not slept again.
            (Driving::Application, true) => assert_eq!((wakes, slept), (0, 0)),
            (Driving::Application, false) => assert!(wakes == 0 && slept >= 1, "{wakes}, {slept}"),
        }
        drop((stream, client));
        while [&a, &b].iter().any(|network| network.connections() > 0) {
            a.drain(Duration::from_secs(20)).unwrap();
        }
        // The next thread that accepts does not drive unless each does.
        eventually("the library drives", || !a.shared().core().standby.active);
    }
}

#[test]
fn a_connection_with_data_wakes_the_thread_once() {
    accepts_and_reads(Driving::Thread);
}

#[test]
fn a_connection_with_data_wakes_the_thread_once_without_a_library_thread() {
    accepts_and_reads(Driving::Application);
}

/// While a thread of the application drives, others wait for its turns, without waking at each.
#[test]
fn a_thread_drains_while_another_one_drives() {
    let Pair { a, b, .. } = pair(Driving::Application);
    let listener = TcpListener::bind(&a, format!("{A}:80")).unwrap();
    let idle = TcpListener::bind(&a, format!("{A}:81")).unwrap();
    let (mut waiting, mut client) = (None, None);
    let ending = Ending(a.clone());
    thread::scope(|scope| {
        scope.spawn(|| client = Some(TcpStream::connect(&b, format!("{A}:80")).unwrap()));
        let (stream, _) = listener.accept().unwrap();
        waiting = Some(thread::spawn(move || drop(idle.accept())));
        settle(&a, 0);
        stream.shutdown(Shutdown::Write).unwrap();
        drop(stream);
    });
    let closing = thread::spawn(move || drop(client));
    // Without news of the other thread's turns this would take the whole time.
    a.drain(Duration::from_secs(3600)).unwrap();
    assert_eq!(a.connections(), 0);
    closing.join().unwrap();
    drop(ending);
    waiting.unwrap().join().unwrap();
}

/// A thread that finds the link taken leaves its frames to the holder, also to one that only counts.
#[test]
fn a_datagram_is_sent_while_another_thread_counts_lost_frames() {
    let pair = pair(Driving::Thread);
    let receiver = UdpSocket::bind(&pair.b, format!("{B}:7")).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let sender = UdpSocket::bind(&pair.a, format!("{A}:0")).unwrap();
    let mut buffer = [0; 16];
    // The neighbour's link address is known from here on.
    sender.send_to(b"first", format!("{B}:7")).unwrap();
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 5);
    pair.to_a.while_asked_for_lost(move || {
        let sending = std::thread::spawn(move || sender.send_to(b"second", format!("{B}:7")));
        assert_eq!(sending.join().unwrap().unwrap(), 6);
    });
    assert_eq!(pair.a.lost(), 0);
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 6);
}

/// Nothing else would wake the calls that wait for the library's thread.
#[test]
fn a_panic_of_the_librarys_thread_ends_the_network() {
    let Pair { a, b, to_a, .. } = pair(Driving::Thread);
    let socket = UdpSocket::bind(&b, format!("{B}:7")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    to_a.hold(|_| {
        let is_the_librarys = std::thread::current().name() == Some("towpath-net");
        assert!(!is_the_librarys, "the test's link breaks here");
        false
    });
    let sender = UdpSocket::bind(&a, format!("{A}:0")).unwrap();
    // The library's thread answers that nothing has this port, or a request for the link address before.
    sender.send_to(b"question", format!("{B}:9")).unwrap();
    let error = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkDown, "{error}");
    assert!(UdpSocket::bind(&b, format!("{B}:8")).is_err());
}

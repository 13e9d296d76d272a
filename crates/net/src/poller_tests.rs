//! Pollers over two networks on a wire in memory.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::wire_tests::{A, B, Ending, Pair, connection, eventually, pair};
use crate::{Driving, Events, Interest, Poller, Ready, TcpListener, TcpStream, Trigger, UdpSocket};

const BOTH: [Driving; 2] = [Driving::Thread, Driving::Application];
const LONG: Option<Duration> = Some(Duration::from_secs(20));
const NONE: Option<Duration> = Some(Duration::ZERO);
const READ: Interest = Interest::READABLE;

/// Waits, and returns the tokens and what the sockets are ready for.
fn wait(poller: &Poller, timeout: Option<Duration>) -> Vec<(u64, Ready)> {
    let mut events = Events::default();
    let count = poller.wait(&mut events, timeout).unwrap();
    assert_eq!(count, events.len());
    events.iter().map(|event| (event.token, event.ready)).collect()
}

/// Checks that there is no event, also a while later.
fn silent(poller: &Poller) {
    assert_eq!(wait(poller, Some(Duration::from_millis(30))), []);
}

fn is_readable(poller: &Poller) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(poller, PollFlags::IN)], Some(&none)).unwrap() == 1
}

/// A connection, of which the first network's end is non-blocking.
fn streams(pair: &Pair) -> (TcpStream, TcpStream) {
    let (ours, theirs) = connection(pair);
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

#[test]
fn each_trigger_reports_what_it_promises() {
    for driving in BOTH {
        for trigger in [Trigger::Level, Trigger::Edge, Trigger::OneShot] {
            let pair = pair(driving);
            let _ending = Ending(pair.a.clone());
            let (mut ours, mut theirs) = streams(&pair);
            let poller = Poller::new().unwrap();
            poller.register(&ours, 5, READ, trigger).unwrap();
            silent(&poller);
            theirs.write_all(b"one").unwrap();
            assert_eq!(wait(&poller, LONG), [(5, Ready::READABLE)], "{trigger:?}");
            // Without a call of the socket, only the level remains.
            match trigger {
                Trigger::Level => assert_eq!(wait(&poller, LONG), [(5, Ready::READABLE)]),
                Trigger::Edge | Trigger::OneShot => silent(&poller),
            }
            // Further data is a further edge, although the first was not read.
            theirs.write_all(b"two").unwrap();
            if trigger == Trigger::OneShot {
                silent(&poller);
                poller.modify(&ours, 6, READ, trigger).unwrap();
                assert_eq!(wait(&poller, LONG), [(6, Ready::READABLE)]);
            } else {
                assert_eq!(wait(&poller, LONG), [(5, Ready::READABLE)], "{trigger:?}");
            }
            let mut bytes = Vec::new();
            eventually("all data is read", || {
                wait(&poller, NONE);
                let mut more = [0; 10];
                let count = ours.read(&mut more).unwrap_or_default();
                bytes.extend_from_slice(&more[..count]);
                bytes == b"onetwo"
            });
            silent(&poller);
        }
    }
}

#[test]
fn ends_and_errors_have_names() {
    let pair = pair(Driving::Thread);
    let _ending = Ending(pair.a.clone());
    let poller = Poller::new().unwrap();
    let (mut ours, theirs) = streams(&pair);
    poller.register(&ours, 0, READ, Trigger::Edge).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(&poller, LONG), [(0, Ready::READABLE | Ready::READ_CLOSED)]);
    assert_eq!(ours.read(&mut [0; 1]).unwrap(), 0);
    // The other direction is open, and a level does not report it.
    poller.modify(&ours, 0, Interest::WRITABLE, Trigger::Level).unwrap();
    assert_eq!(wait(&poller, LONG), [(0, Ready::WRITABLE)]);
    ours.shutdown(Shutdown::Write).unwrap();
    let [(_, ready)] = wait(&poller, LONG)[..] else { panic!("one event") };
    assert!(ready.contains(Ready::READ_CLOSED | Ready::WRITE_CLOSED), "{ready:?}");
    drop((ours, theirs));
    assert_eq!(wait(&poller, NONE), [], "a dropped socket has no event");

    // A reset is an error to every interest.
    let (ours, theirs) = streams(&pair);
    poller.register(&ours, 1, Interest::PRIORITY, Trigger::OneShot).unwrap();
    silent(&poller);
    theirs.abort();
    let [(1, ready)] = wait(&poller, LONG)[..] else { panic!("one event") };
    assert!(ready.is_error() && ready.is_read_closed() && ready.is_write_closed(), "{ready:?}");
    assert_eq!((&ours).read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    // Urgent data.
    let (mut ours, theirs) = streams(&pair);
    poller.register(&ours, 2, Interest::PRIORITY, Trigger::Edge).unwrap();
    theirs.send_urgent(b"!").unwrap();
    assert_eq!(wait(&poller, LONG), [(2, Ready::PRIORITY)]);
    assert_eq!(ours.read(&mut [0; 9]).unwrap(), 1);

    // A connect that succeeds, and one that is refused.
    let listener = TcpListener::bind(&pair.b, format!("{B}:80")).unwrap();
    let open = TcpStream::connect_nonblocking(&pair.a, listener.local_addr().unwrap()).unwrap();
    poller.register(&open, 3, Interest::WRITABLE, Trigger::OneShot).unwrap();
    assert_eq!(wait(&poller, LONG), [(3, Ready::WRITABLE)]);
    assert!(open.take_error().unwrap().is_none());
    let refused = TcpStream::connect_nonblocking(&pair.a, format!("{B}:81").parse().unwrap());
    let refused = refused.unwrap();
    poller.register(&refused, 4, Interest::WRITABLE, Trigger::OneShot).unwrap();
    let [(4, ready)] = wait(&poller, LONG)[..] else { panic!("one event") };
    assert!(ready.is_writable() && ready.is_error(), "{ready:?}");
    let error = refused.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn registrations_are_made_changed_and_removed() {
    let pair = pair(Driving::Thread);
    let _ending = Ending(pair.a.clone());
    let (one, other) = (Poller::new().unwrap(), Poller::new().unwrap());
    let socket = UdpSocket::bind(&pair.a, format!("{A}:9")).unwrap();
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(one.modify(&socket, 1, READ, Trigger::Level)), ErrorKind::NotFound);
    assert_eq!(kind(one.deregister(&socket)), ErrorKind::NotFound);
    one.register(&socket, 1, READ, Trigger::Level).unwrap();
    let clone = socket.try_clone().unwrap();
    assert_eq!(kind(one.register(&clone, 2, READ, Trigger::Edge)), ErrorKind::AlreadyExists);
    // Several pollers have the event each.
    other.register(&clone, 2, READ, Trigger::Edge).unwrap();
    let far = UdpSocket::bind(&pair.b, format!("{B}:0")).unwrap();
    far.send_to(b"?", format!("{A}:9")).unwrap();
    assert_eq!(wait(&one, LONG), [(1, Ready::READABLE)]);
    assert_eq!(wait(&other, LONG), [(2, Ready::READABLE)]);
    one.deregister(&clone).unwrap();
    assert_eq!(wait(&one, NONE), []);
    far.send_to(b"?", format!("{A}:9")).unwrap();
    assert_eq!(wait(&other, LONG), [(2, Ready::READABLE)]);
    silent(&one);
    // A socket that leaves with an event has none.
    far.send_to(b"?", format!("{A}:9")).unwrap();
    eventually("the event waits", || is_readable(&other));
    drop(clone);
    assert!(is_readable(&other), "a handle remains");
    drop(socket);
    assert_eq!(wait(&other, NONE), []);
    assert!(!is_readable(&other));
    assert_eq!(format!("{other:?}"), "Poller { sockets: 0, ready: 0 }");
}

/// A poller's descriptor is readable while events wait, also within another set.
#[test]
fn a_pollers_descriptor_goes_into_another_set() {
    let pair = pair(Driving::Thread);
    let _ending = Ending(pair.a.clone());
    let (mut ours, mut theirs) = streams(&pair);
    let poller = Poller::new().unwrap();
    let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&outer, &poller, EventData::new_u64(3), EventFlags::IN).unwrap();
    poller.register(&ours, 1, READ, Trigger::Level).unwrap();
    let waits = |timeout: i64| {
        let mut found = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        let timeout = Timespec { tv_sec: timeout, tv_nsec: 0 };
        epoll::wait(&outer, &mut found[..], Some(&timeout)).unwrap() == 1
    };
    assert!(!waits(0));
    for round in 0..100_u8 {
        theirs.write_all(&[round]).unwrap();
        assert!(waits(20), "round {round}");
        assert_eq!(wait(&poller, NONE), [(1, Ready::READABLE)]);
        assert!(waits(0), "a level stays");
        let mut byte = [0];
        assert_eq!((ours.read(&mut byte).unwrap(), byte), (1, [round]));
        // The poller finds out now that no data is left.
        assert_eq!(wait(&poller, NONE), []);
        assert!(!waits(0), "round {round}");
    }
}

#[test]
fn a_wait_ends_by_time_or_by_a_wake() {
    for driving in BOTH {
        let pair = pair(driving);
        let _ending = Ending(pair.a.clone());
        let socket = UdpSocket::bind(&pair.a, format!("{A}:9")).unwrap();
        let poller = Poller::new().unwrap();
        poller.register(&socket, 1, READ, Trigger::Level).unwrap();
        let begun = Instant::now();
        assert_eq!(wait(&poller, Some(Duration::from_millis(20))), []);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        poller.wake();
        assert_eq!(wait(&poller, None), [], "a wake before the wait ends it");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&poller, None));
            thread::sleep(Duration::from_millis(20));
            poller.wake();
            assert_eq!(waiting.join().unwrap(), []);
        });
        assert!(!is_readable(&poller));
    }
}

/// Clones of one listener in pollers of four threads: none of the threads starves another, and each connection is
/// accepted once.
#[test]
fn threads_with_pollers_of_their_own_share_a_listener() {
    const CONNECTIONS: usize = 200;
    for driving in BOTH {
        let pair = pair(driving);
        let ending = Ending(pair.a.clone());
        let listener = TcpListener::bind(&pair.a, format!("{A}:80")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let accepted = AtomicUsize::new(0);
        let pollers: Vec<Poller> = (0..4).map(|_| Poller::new().unwrap()).collect();
        thread::scope(|scope| {
            for poller in &pollers {
                let (listener, accepted) = (listener.try_clone().unwrap(), &accepted);
                scope.spawn(move || {
                    poller.register(&listener, 0, READ, Trigger::Edge).unwrap();
                    while accepted.load(Ordering::Relaxed) < CONNECTIONS {
                        wait(poller, Some(Duration::from_millis(100)));
                        while listener.accept().is_ok() {
                            accepted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..CONNECTIONS {
                TcpStream::connect(&pair.b, format!("{A}:80")).unwrap();
            }
        });
        assert_eq!(accepted.load(Ordering::Relaxed), CONNECTIONS);
        drop(ending);
    }
}

/// A program's own epoll drives a network without a thread of the library, timers included: the handshake's first
/// segment is lost, and only the timer sends it again.
#[test]
fn a_programs_own_loop_drives_a_network() {
    let pair = pair(Driving::Application);
    let _ending = Ending(pair.a.clone());
    let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let poller = Poller::new().unwrap();
    epoll::add(&outer, pair.a.work_fd().unwrap(), EventData::new_u64(0), EventFlags::IN).unwrap();
    epoll::add(&outer, &poller, EventData::new_u64(1), EventFlags::IN).unwrap();
    let listener = TcpListener::bind(&pair.b, format!("{B}:80")).unwrap();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    });
    pair.to_b.hold(|frame| frame[12..14] == [8, 0] && frame[47] & 2 != 0);
    let mut stream = TcpStream::connect_nonblocking(&pair.a, format!("{B}:80").parse().unwrap());
    let stream = stream.as_mut().unwrap();
    poller.register(stream, 7, READ | Interest::WRITABLE, Trigger::Edge).unwrap();
    let (mut got, mut turns) = (0, 0);
    let until = Instant::now() + Duration::from_secs(20);
    pair.a.turn().unwrap();
    while got < 1000 {
        assert!(Instant::now() < until, "{got} bytes came back");
        let mut found =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        let count = epoll::wait(&outer, &mut found[..], Some(&timeout)).unwrap();
        for event in &found[..count] {
            if event.data.u64() == 0 {
                pair.a.turn().unwrap();
                turns += 1;
                // The timer has sent the segment again.
                if pair.to_b.held() >= 2 {
                    pair.to_b.release();
                }
            }
        }
        for (token, ready) in wait(&poller, NONE) {
            assert_eq!(token, 7);
            assert!(!ready.is_error(), "{ready:?}");
            if ready.is_writable() && got == 0 {
                assert_eq!(stream.write(&[7; 1000]).unwrap(), 1000);
            }
            let mut bytes = [0; 2000];
            while let Ok(count) = stream.read(&mut bytes) {
                got += count;
            }
        }
    }
    assert!(turns < 200, "{turns} turns for one exchange");
    stream.shutdown(Shutdown::Write).unwrap();
    echo.join().unwrap();
}

/// With a thread of the library there is nothing to drive.
#[test]
fn a_driven_network_has_no_work_for_others() {
    let pair = pair(Driving::Thread);
    let _ending = Ending(pair.a.clone());
    assert_eq!(pair.a.work_fd().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(pair.a.turn().unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// A blocked call beside a program's event loop sleeps: neither makes the other one spin, and the loop drives again
/// once the call has ended.
#[test]
fn a_blocked_call_and_a_programs_loop_take_turns() {
    let pair = pair(Driving::Application);
    let _ending = Ending(pair.a.clone());
    let (mut ours, mut theirs) = connection(&pair);
    ours.set_nonblocking(false).unwrap();
    let is_readable = || {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(pair.a.work_fd().unwrap(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&none)).unwrap() == 1
    };
    eventually("the loop has no work", || {
        pair.a.turn().unwrap();
        !is_readable()
    });
    let before = pair.a.shared().sleeps();
    let reading = thread::spawn(move || {
        let mut byte = [0];
        ours.read_exact(&mut byte).unwrap();
        ours
    });
    eventually("the call drives", || pair.a.shared().core().standby.led);
    for _ in 0..50 {
        if is_readable() {
            pair.a.turn().unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
    let slept = pair.a.shared().sleeps() - before;
    assert!(slept < 20, "{slept} sleeps of a call that nothing woke");
    theirs.write_all(&[1]).unwrap();
    let ours = reading.join().unwrap();
    eventually("the loop drives", is_readable);
    pair.a.turn().unwrap();
    let poller = Poller::new().unwrap();
    poller.register(&ours, 1, READ, Trigger::Edge).unwrap();
    theirs.write_all(&[2]).unwrap();
    assert_eq!(wait(&poller, LONG), [(1, Ready::READABLE)]);
}

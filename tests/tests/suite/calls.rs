//! The cost of a packet, counted and not measured: system calls, notifications, and wake-ups of an
//! idle system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_client::{Meta, Options, QueuePair, Rule, Session};
use towpath_netlink::Netlink;
use towpath_testkit::{
    ProcessTimes, SyscallCount, SyscallWatch, WatchEnd, isolated, process_cpu_time, skip,
};
use towpath_tests::process::{Process, Program};
use towpath_tests::served::Served;
use towpath_tests::wire::Wire;
use towpath_tests::{PATIENCE, eventually, frames};

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn count(process: &mut Process) -> u64 {
    process.ask("count").parse().unwrap()
}

/// Watches threads while `then` runs. Returns `None`, and prints a message, where that is not
/// allowed.
fn watched(test: &str, threads: &[u32], then: impl FnOnce()) -> Option<Vec<SyscallCount>> {
    let mut watches = Vec::new();
    for thread in threads {
        match SyscallWatch::start(*thread, PATIENCE) {
            Ok(watch) => watches.push(watch),
            Err(error) => {
                let why = error.unavailable().unwrap_or_else(|| panic!("{error}"));
                skip(test, why);
                return None;
            }
        }
    }
    then();
    let counts: Vec<_> = watches.into_iter().map(|watch| watch.stop().unwrap()).collect();
    for one in &counts {
        assert_eq!(one.ended, WatchEnd::Stopped);
    }
    Some(counts)
}

#[test]
fn no_system_call_from_application_to_application() {
    let server = Served::start(&PEER, &["wait=poll", "far=none"]);
    let mut pair = PEER.start(&["pair", server.path(), "1", "spin"]);
    pair.expect("running");
    let threads = [server.thread("engine"), pair.pid()];
    let (test, before) = ("no_system_call_from_application_to_application", count(&mut pair));
    // The application makes a system call to print its count: not while the test watches it.
    let counts = watched(test, &threads, || std::thread::sleep(Duration::from_millis(800)));
    if let Some(counts) = counts {
        let packets = count(&mut pair) - before;
        assert!(packets > 100, "{packets} packets");
        assert_eq!(counts[0].total(), 0, "engine, {packets} packets: {}", counts[0]);
        assert_eq!(counts[1].total(), 0, "application, {packets} packets: {}", counts[1]);
    }
    pair.finish();
    server.stop();
}

#[test]
fn no_system_call_of_a_channel_or_of_polled_tripwires() {
    let server = Served::start(&PEER, &["wait=poll", "far=none"]);
    let mut channel = PEER.start(&["channel", server.path()]);
    channel.expect("running");
    let threads = [server.thread("engine"), channel.pid()];
    let test = "no_system_call_of_a_channel_or_of_polled_tripwires";
    let before = count(&mut channel);
    let counts = watched(test, &threads, || std::thread::sleep(Duration::from_millis(800)));
    if let Some(counts) = counts {
        let messages = count(&mut channel) - before;
        assert!(messages > 100, "{messages} messages");
        assert_eq!(counts[0].total(), 0, "engine, {messages} messages: {}", counts[0]);
        assert_eq!(counts[1].total(), 0, "application, {messages} messages: {}", counts[1]);
    }
    channel.finish();
    server.stop();
}

#[test]
fn no_system_call_of_the_engine_over_a_device_in_memory() {
    let server = Served::start(&PEER, &["wait=poll", "far=echo"]);
    let mut echoed = PEER.start(&["echoed", server.path(), "1"]);
    echoed.expect("running");
    // An application sleeps first beside an engine that has no history of it.
    let before = count(&mut echoed);
    let test = "no_system_call_of_the_engine_over_a_device_in_memory";
    let counts = watched(test, &[server.thread("engine")], || {
        std::thread::sleep(Duration::from_millis(800));
    });
    if let Some(counts) = counts {
        let packets = count(&mut echoed) - before;
        assert!(packets > 200, "{packets} packets");
        // Waking a sleeping application is the only system call.
        let notifications = counts[0].number(libc::SYS_sendto);
        assert_eq!(counts[0].total(), notifications, "engine, {packets} packets: {}", counts[0]);
        assert!(notifications <= packets, "{notifications} notifications for {packets} packets");
    }
    echoed.finish();
    server.stop();
}

#[test]
fn over_a_tap_only_its_reads_and_writes() {
    isolated!(|| {
        let test = "over_a_tap_only_its_reads_and_writes";
        if let Err(why) = towpath_testkit::check_tun() {
            return skip(test, &why);
        }
        let server = Served::start(&PEER, &["wait=poll", "tap=calls0"]);
        let mut netlink = Netlink::open().unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/calls0/disable_ipv6", "1").unwrap();
        netlink.set_up("calls0").unwrap();
        let mut wire = Wire::open("calls0").unwrap();
        let mut session = Session::attach(server.socket(), &Options::default()).unwrap();
        let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
        let own = session.info().mac;
        let (sent, received) = (640, 640);
        let counts = watched(test, &[server.thread("engine")], || {
            for batch in 0..sent / 64 {
                for number in batch * 64..batch * 64 + 64 {
                    let frame = frames::frame(frames::ELSEWHERE, own.octets(), 1, number);
                    session.sender().send_bytes(endpoint, &frame).unwrap();
                    wire.send(&frames::frame(own.octets(), frames::ELSEWHERE, 2, number)).unwrap();
                }
                session.sender().flush().unwrap();
                // In poll mode the application never sleeps, so the engine never notifies it.
                let mut got = 0;
                eventually("the batch went both ways", || {
                    session
                        .receiver()
                        .receive(QueuePair::FIRST, 64, |packet| {
                            let number = batch * 64 + got;
                            let seen = packet.contiguous().unwrap();
                            frames::check(seen, own.octets(), frames::ELSEWHERE, 2, number)
                                .unwrap();
                            got += 1;
                        })
                        .unwrap();
                    got == 64 && session.sender().unsent(QueuePair::FIRST).unwrap() == 0
                });
            }
        });
        let Some(counts) = counts else { return };
        let (reads, writes) =
            (counts[0].number(libc::SYS_read), counts[0].number(libc::SYS_writev));
        assert_eq!(writes, sent, "one write per packet: {}", counts[0]);
        assert!(reads >= received, "one read per packet, and empty ones: {}", counts[0]);
        assert_eq!(counts[0].total(), reads + writes, "{}", counts[0]);
        let mut number = 0;
        while let Some(seen) = wire.receive() {
            frames::check(&seen, frames::ELSEWHERE, own.octets(), 1, number).unwrap();
            number += 1;
        }
        assert_eq!(number, sent);
        drop(session);
        server.stop();
    });
}

#[test]
fn one_doorbell_a_batch_at_most() {
    const BATCHES: u64 = 200;
    const BATCH: u64 = 32;
    let server = Served::start(&PEER, &["far=none"]);
    let attach = || {
        let mut session = Session::attach(server.socket(), &Options::default()).unwrap();
        let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
        (session, endpoint)
    };
    let ((mut a, of_a), (mut b, _of_b)) = (attach(), attach());
    let (from, to) = (a.info().mac, b.info().mac);
    let notifications = server.device_counter("notifications");
    let got = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut number = 0;
            while number < BATCHES * BATCH {
                assert!(b.wait(Some(PATIENCE)).unwrap(), "number {number} did not come");
                b.receiver()
                    .receive(QueuePair::FIRST, 64, |packet| {
                        frames::check(packet.contiguous().unwrap(), to, from, 1, number).unwrap();
                        number += 1;
                    })
                    .unwrap();
                got.store(number, Ordering::Release);
            }
            b.statistics()
        });
        for batch in 0..BATCHES {
            for number in batch * BATCH..(batch + 1) * BATCH {
                a.sender()
                    .send(of_a, frames::len(1, number), Meta::FULL, |parts| {
                        frames::write(parts[0], to, from, 1, number);
                    })
                    .unwrap();
            }
            a.sender().flush().unwrap();
            eventually("the batch is received", || {
                got.load(Ordering::Acquire) == (batch + 1) * BATCH
            });
            // Both sides have time to sleep.
            std::thread::sleep(Duration::from_millis(1));
            a.sender().unsent(QueuePair::FIRST).unwrap();
        }
        let of_b = receiver.join().unwrap();
        let (of_a, notifications) =
            (a.statistics(), server.device_counter("notifications") - notifications);
        println!("sender {of_a:?}, receiver {of_b:?}, {notifications} notifications of the server");
        assert_eq!(of_a.batches, BATCHES);
        assert!(
            of_a.notifications <= BATCHES,
            "{} notifications for {BATCHES} batches",
            of_a.notifications
        );
        assert!(notifications <= BATCHES, "{notifications} notifications for {BATCHES} batches");
        assert!(of_b.wake_ups <= BATCHES, "{} wake-ups for {BATCHES} batches", of_b.wake_ups);
        // Both sides did sleep; otherwise the test would prove nothing.
        assert!(of_a.notifications > BATCHES / 2 && notifications > BATCHES / 2);
    });
    drop((a, b));
    server.stop();
}

#[test]
fn an_idle_system_sleeps() {
    const TIME: Duration = Duration::from_secs(3);
    let server = Served::start(&PEER, &["far=none"]);
    let mut sleepers: Vec<Process> = (0..3)
        .map(|_| {
            let mut sleeper = PEER.start(&["sleeper", server.path()]);
            sleeper.expect("asleep");
            sleeper
        })
        .collect();
    let macs: Vec<String> = server.report()["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["mac"].as_str().unwrap().to_owned())
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let pids: Vec<u32> =
        [server.pid()].into_iter().chain(sleepers.iter().map(Process::pid)).collect();
    let look = || -> Vec<(ProcessTimes, Duration)> {
        pids.iter()
            .map(|pid| (ProcessTimes::of(*pid).unwrap(), process_cpu_time(*pid).unwrap()))
            .collect()
    };
    let before = look();
    std::thread::sleep(TIME);
    for ((before, cpu_before), (after, cpu_after)) in before.iter().zip(look()) {
        assert_eq!(before.threads.len(), after.threads.len());
        for (then, now) in before.threads.iter().zip(&after.threads) {
            assert_eq!(
                then.voluntary_switches, now.voluntary_switches,
                "thread {} was woken",
                now.name
            );
        }
        let used = cpu_after - *cpu_before;
        assert!(used < TIME / 200, "{used:?} of a processor in {TIME:?}");
    }
    // The engine wakes a session that gets a packet.
    let mut session = Session::attach(server.socket(), &Options::default()).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
    for mac in macs {
        let mut to = [0; 6];
        for (byte, text) in to.iter_mut().zip(mac.split(':')) {
            *byte = u8::from_str_radix(text, 16).unwrap();
        }
        let frame = frames::frame(to, session.info().mac.octets(), 1, 1);
        session.sender().send_bytes(endpoint, &frame).unwrap();
    }
    session.sender().flush().unwrap();
    for sleeper in &mut sleepers {
        sleeper.expect("woken: Ok(true)");
    }
    drop(session);
    server.stop();
}

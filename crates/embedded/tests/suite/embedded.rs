//! Several threads send through one driver of their own process while another thread resets it.
//! Only packets that a reset counts are lost, none is duplicated, and each thread's packets keep
//! their order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_device::{Armed, Meta};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_embedded::{Config, Embedded, Protection, SendError};

const THREADS: u64 = 3;
/// ThreadSanitizer does not see the order that the library's mutex gives: the library is not instrumented.
const BOTH: &[Protection] = if cfg!(towpath_tsan) {
    &[Protection::Optimistic]
} else {
    &[Protection::Optimistic, Protection::Mutex]
};

fn packet(thread: u64, number: u64) -> Vec<u8> {
    let mut packet = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5];
    packet.extend_from_slice(&thread.to_le_bytes());
    packet.extend_from_slice(&number.to_le_bytes());
    packet.resize(60 + (number as usize * 7 + thread as usize) % 1400, number as u8);
    packet
}

fn read(packet: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap());
    (word(14), word(22))
}

fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < until, "{what}: not within 20 s");
        std::thread::yield_now();
    }
}

/// The packets that arrived, by thread.
#[derive(Default)]
struct Arrived {
    last: [Option<u64>; THREADS as usize],
    count: u64,
}

impl Arrived {
    fn take(&mut self, bytes: &[u8]) {
        let (thread, number) = read(bytes);
        assert_eq!(bytes, packet(thread, number), "a changed packet");
        let last = &mut self.last[thread as usize];
        assert!(last.is_none_or(|last| number > last), "{thread}: {number} after {last:?}");
        *last = Some(number);
        self.count += 1;
    }
}

fn exchange(device: &loopback::Config, config: Config, each: u64, resets: bool) {
    let (near, far) = loopback::pair(device).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let driver = Embedded::new(Box::new(near), config).unwrap();
    let (sending, refused) = (AtomicU64::new(THREADS), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let mut arrived = Arrived::default();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (driver, sending, refused) = (&driver, &sending, &refused);
            threads.push(scope.spawn(move || {
                for number in 0..each {
                    let packet = packet(thread, number);
                    wait("room", || match driver.send(&packet) {
                        Ok(()) => true,
                        Err(SendError::WouldBlock) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            false
                        }
                        Err(error) => panic!("{error}"),
                    });
                }
                sending.fetch_sub(1, Ordering::Release);
            }));
        }
        if resets {
            let (driver, over) = (&driver, &over);
            threads.push(scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    driver.reset();
                    std::thread::sleep(Duration::from_micros(200));
                }
            }));
        }
        wait("completion of all packets", || {
            while let Some((frame, _)) = far.receive() {
                arrived.take(&frame);
            }
            sending.load(Ordering::Acquire) == 0 && driver.drive() == Some(0)
        });
        over.store(true, Ordering::Release);
        // ThreadSanitizer sees the end of a thread that is joined, not that of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    while let Some((frame, _)) = far.receive() {
        arrived.take(&frame);
    }
    let counts = driver.counts().expect("no other thread is inside");
    println!("{counts:?}, {} refused, {} arrived", refused.load(Ordering::Relaxed), arrived.count);
    assert!(driver.failure().is_none());
    let sent = THREADS * each;
    // Each thread published each slot that it took; no thread gave one up.
    assert_eq!(counts.direct + counts.left, sent);
    let cases = [counts.straight, counts.busy, counts.behind, counts.link_down];
    assert_eq!(cases.iter().sum::<u64>(), counts.direct, "{cases:?}");
    if config.write == Protection::Mutex {
        assert_eq!(counts.left, 0);
    } else {
        assert_eq!((counts.contended, counts.blocked_ns), (0, 0), "no thread waits");
    }
    assert_eq!((counts.taken, counts.returned), (sent, sent));
    assert_eq!(arrived.count + counts.lost, sent, "lost or duplicated packets");
    assert_eq!(counts.device.tx_dropped, 0);
    assert_eq!(counts.device.resets, counts.resets);
    if resets {
        assert!(counts.resets > 0);
    } else {
        assert_eq!(counts.lost, 0);
    }
}

#[test]
fn three_threads_lose_nothing() {
    for write in BOTH.iter().copied() {
        let config = Config { write, ..Config::default() };
        exchange(&loopback::Config::default(), config, 5_000, false);
    }
}

#[test]
fn three_threads_with_hardly_any_room() {
    let device = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
    for write in BOTH.iter().copied() {
        let config = Config { left: 2, own: 1, receive: 1, write, ..Config::default() };
        exchange(&device, config, 1_000, false);
    }
}

#[test]
fn three_threads_lose_only_packets_that_resets_count() {
    // The device fetches packets late, so that a reset finds some to lose.
    let device = loopback::Config { tx_asynchronous: true, ..loopback::Config::default() };
    for write in BOTH.iter().copied() {
        exchange(&device, Config { write, ..Config::default() }, 5_000, true);
    }
}

/// With the section, the callback runs inside: it leaves the answer, which is sent before the
/// thread exits. With the mutex, the callback runs outside of it.
#[test]
fn received_packets_are_whole_and_can_be_answered() {
    BOTH.iter().copied().for_each(answers);
}

fn answers(write: Protection) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let config = Config { write, ..Config::default() };
    let driver = Embedded::new(Box::new(near), config).unwrap();
    for number in 0..1000 {
        let packet = packet(1, number);
        wait("room", || far.send(&packet, Meta::FULL));
        let mut got = 0;
        wait("a packet", || {
            // The callback runs inside: it leaves the answer, which is sent before this thread
            // exits.
            got += driver.receive(1, |bytes, meta| {
                assert_eq!((bytes, meta), (&packet[..], Meta::FULL));
                driver.send(bytes).unwrap();
            });
            got == 1
        });
        let mut answer = None;
        wait("the answer", || {
            answer = far.receive();
            answer.is_some()
        });
        assert_eq!(answer.unwrap().0, packet);
    }
    let counts = driver.counts().unwrap();
    let all = if write == Protection::Mutex { (0, 1000) } else { (1000, 0) };
    assert_eq!((counts.left, counts.direct), all);
}

/// A packet in several buffers comes in one piece, and with the tag that the device removed.
#[test]
fn packets_that_span_buffers_come_in_one_piece() {
    let reception = loopback::Reception {
        data_bytes: Some(128),
        removes_tags: true,
        ..loopback::Reception::default()
    };
    let device = loopback::Config { reception, ..loopback::Config::default() };
    let (near, far) = loopback::pair(&device).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
    for number in 0..200 {
        let mut packet = packet(1, number);
        if number % 2 == 0 {
            packet.splice(12..12, [0x81, 0, 0, 7]);
        }
        wait("room", || far.send(&packet, Meta::FULL));
        let received = driver.receive(1, |bytes, _| assert_eq!(bytes, packet));
        assert_eq!(received, 1);
    }
}

fn is_readable(driver: &Embedded, within: Duration) -> bool {
    let fd = driver.sleep_fd().expect("the device has a descriptor");
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut polled, Some(&timeout)).unwrap() == 1
}

/// A packet that the driver accepted may wait. Room wakes the sleeping thread, also for a packet
/// that another thread sent during the sleep.
#[test]
fn a_sleeping_thread_is_woken_by_room_and_by_packets() {
    const LONG: Duration = Duration::from_secs(20);
    for tx_asynchronous in [false, true] {
        let config = loopback::Config { ring_packets: 4, tx_asynchronous, ..Default::default() };
        let (near, far) = loopback::pair(&config).unwrap();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
        let asleep = |why: &str| {
            wait(why, || {
                driver.drive();
                driver.arm() == Some(Armed::Sleep)
            });
            assert!(!is_readable(&driver, Duration::ZERO), "{why}");
        };
        asleep("nothing was sent");
        // The far end holds four packets. The driver accepts the others too, and they wait.
        for number in 0..12 {
            driver.send(&packet(0, number)).unwrap();
        }
        assert!(is_readable(&driver, LONG), "packets wait and the device was not armed for them");
        let mut number = 0;
        while number < 12 {
            asleep("there is no room");
            let (frame, _) = far.receive().expect("a packet that the device took");
            assert_eq!(frame, packet(0, number));
            number += 1;
            while let Some((frame, _)) = far.receive() {
                assert_eq!(frame, packet(0, number));
                number += 1;
            }
            assert!(number == 12 || is_readable(&driver, LONG), "room came");
            driver.drive();
        }
        wait("completion of all packets", || driver.drive() == Some(0));
        // Packets do not wake a thread that never received.
        assert!(far.send(&packet(0, 0), Meta::FULL));
        asleep("no thread receives");
        wait("the packet", || driver.receive(9, |_, _| ()) == 1);
        assert_eq!(driver.receive(9, |_, _| ()), 0);
        asleep("no packets");
        assert!(far.send(&packet(0, 0), Meta::FULL));
        assert!(is_readable(&driver, LONG), "a packet came");
        assert_eq!(driver.arm(), Some(Armed::Work));
        assert_eq!(driver.receive(9, |_, _| ()), 1);
        assert_eq!(driver.receive(9, |_, _| ()), 0);
        // A thread that is awake again needs no notification.
        asleep("nothing waits");
        driver.disarm();
        driver.send(&packet(0, 0)).unwrap();
        assert!(!is_readable(&driver, Duration::ZERO), "no thread sleeps");
        wait("the packet", || {
            driver.drive();
            far.receive().is_some()
        });
        wait("completion of the packet", || driver.drive() == Some(0));
        // A reset makes the device forget the wake-ups that a thread requested.
        asleep("before the reset");
        driver.reset();
        assert!(is_readable(&driver, LONG), "a reset");
        asleep("after the reset");
        drop(far);
        let _ = driver.send(&packet(0, 0));
        wait("the failure", || driver.send(&packet(0, 1)) == Err(SendError::Failed));
        assert!(is_readable(&driver, LONG), "the device failed");
        assert_eq!(driver.arm(), Some(Armed::Work), "no thread sleeps on a device that failed");
    }
    let config = loopback::Config { sleeps: false, ..Default::default() };
    let (near, _far) = loopback::pair(&config).unwrap();
    let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
    assert!(driver.sleep_fd().is_none(), "the device must be polled");
    assert_eq!(driver.arm(), Some(Armed::Work));
}

/// One thread drives for all, and sleeps while there is no work; others send with hardly any room.
#[test]
fn one_driving_thread_sleeps_and_no_packet_stays_behind() {
    const EACH: u64 = 500;
    let config = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
    let over = AtomicBool::new(false);
    let mut arrived = Arrived::default();
    std::thread::scope(|scope| {
        let (driver, over) = (&driver, &over);
        let mut threads = vec![scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                driver.drive();
                if driver.arm() == Some(Armed::Sleep) {
                    assert!(is_readable(driver, Duration::from_secs(20)), "no wake-up came");
                }
            }
        })];
        for thread in 0..THREADS {
            threads.push(scope.spawn(move || {
                for number in 0..EACH {
                    let packet = packet(thread, number);
                    wait("room", || driver.send(&packet).is_ok());
                    if number % 50 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }));
        }
        // After the last packet was sent, only the sleeping thread drives.
        wait("all packets", || {
            while let Some((frame, _)) = far.receive() {
                arrived.take(&frame);
            }
            arrived.count == THREADS * EACH
        });
        over.store(true, Ordering::Release);
        // The thread may be between its look at `over` and its sleep.
        while !threads[0].is_finished() {
            driver.reset();
            std::thread::sleep(Duration::from_millis(1));
        }
        // ThreadSanitizer sees the end of a thread that is joined, not that of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn invalid_configurations_and_packets_are_refused() {
    let driver = |config| {
        let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        Embedded::new(Box::new(near), config).map(|driver| (driver, far))
    };
    for config in [
        Config { left: 3, ..Config::default() },
        Config { left: 0, ..Config::default() },
        Config { own: 0, ..Config::default() },
        Config { receive: 1 << 17, ..Config::default() },
    ] {
        assert!(driver(config).is_err(), "{config:?}");
    }
    for (reader, count) in [(3, 1), (0, 1), (1 << 17, 1), (2, 1 << 20)] {
        let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
        let config = Config { reader, ..Config::default() };
        let started = Embedded::with_readers(Box::new(near), config, count, |_| None);
        assert!(started.is_err(), "{count} readers of {reader}");
    }
    let (driver, far) = driver(Config::default()).unwrap();
    let most = 1518;
    assert_eq!(driver.send(&[0; 1519]), Err(SendError::TooLong { len: 1519, most }));
    drop(far);
    // The driver may take the first packet before it notices the failure.
    let _ = driver.send(&packet(0, 0));
    assert_eq!(driver.send(&packet(0, 1)), Err(SendError::Failed));
    assert!(driver.failure().is_some());
}

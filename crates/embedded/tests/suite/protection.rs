//! Optimistic protection between a thread that sends, one that handles interrupts, and those that
//! read, with the write path and the read path protected in either way. Nothing is lost, each
//! stream keeps its order, and each sleeper is woken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_device::{Armed, Meta};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, LoopbackDevice};
use towpath_embedded::{Config, Counts, Embedded, Protection, Reader, SendError};

const BOTH: [Protection; 2] = [Protection::Optimistic, Protection::Mutex];
const LONG: Duration = Duration::from_secs(20);

/// Makes a packet for a reader.
fn packet(reader: u8, number: u64) -> Vec<u8> {
    let mut packet = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5, reader];
    packet.extend_from_slice(&number.to_le_bytes());
    packet.resize(60 + (number as usize * 7) % 1400, number as u8);
    packet
}

fn number(packet: &[u8]) -> u64 {
    u64::from_le_bytes(packet[15..23].try_into().unwrap())
}

/// The reader of a packet: what its byte 14 says.
fn choose(packet: &[u8]) -> Option<usize> {
    Some(packet[14].into())
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>, within: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

fn is_called(driver: &Embedded) -> bool {
    is_readable(driver.sleep_fd().expect("the device has a descriptor"), Duration::ZERO)
}

fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within 20 s");
        std::thread::yield_now();
    }
}

fn start(
    device: &loopback::Config,
    config: Config,
    readers: usize,
    choose: impl Fn(&[u8]) -> Option<usize> + Send + 'static,
) -> (Embedded, Vec<Reader>, DeviceFarEnd, LoopbackCable) {
    let (near, far) = loopback::pair(device).unwrap();
    let cable = LoopbackCable(near.cable());
    let (driver, readers) =
        Embedded::with_readers(Box::new(near), config, readers, choose).unwrap();
    (driver, readers, DeviceFarEnd::new(Box::<LoopbackDevice>::new(far)), cable)
}

struct LoopbackCable(loopback::Cable);

/// Handles interrupts until `over`, as a program does.
fn handle_interrupts(driver: &Embedded, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        if driver.interrupt() == Armed::Sleep {
            let fd = driver.sleep_fd().expect("the device has a descriptor");
            assert!(is_readable(fd, LONG), "no wake-up came");
        }
    }
}

/// Reads packets until all came. The reader sleeps while there are none.
fn read_all(reader: &mut Reader, from: u8, all: u64) {
    let mut next = 0;
    while next < all {
        let received = reader.read(32, |bytes, meta| {
            assert_eq!((bytes, meta), (&packet(from, next)[..], Meta::FULL));
            next += 1;
        });
        if received == Ok(0) && reader.arm() == Ok(true) {
            assert!(is_readable(reader.sleep_fd(), LONG), "no wake-up came");
        }
    }
}

const READERS: u8 = 2;

/// One thread sends, one handles interrupts, two read, and this one is the far end.
fn exchange(device: &loopback::Config, config: Config, each: u64) -> Counts {
    let (driver, mut readers, mut far, _cable) = start(device, config, READERS.into(), choose);
    let (over, taken) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; READERS as usize]);
    std::thread::scope(|scope| {
        let (driver, over) = (&driver, &over);
        let mut threads = vec![scope.spawn(move || handle_interrupts(driver, over))];
        for ((reader, from), taken) in readers.iter_mut().zip(0..).zip(&taken) {
            threads.push(scope.spawn(move || {
                read_all(reader, from, each);
                taken.store(each, Ordering::Release);
            }));
        }
        threads.push(scope.spawn(move || {
            for number in 0..each {
                let packet = packet(9, number);
                wait("room", || match driver.send(&packet) {
                    Ok(()) => true,
                    Err(SendError::WouldBlock) => false,
                    Err(error) => panic!("{error}"),
                });
            }
        }));
        let (mut arrived, mut sent) = (0, 0);
        wait("all packets", || {
            while let Some((frame, _)) = far.receive() {
                assert_eq!(frame, packet(9, arrived), "the sender's packets, in order");
                arrived += 1;
            }
            // Both readers' packets, one after the other.
            let (reader, number) = ((sent % u64::from(READERS)) as u8, sent / u64::from(READERS));
            if number < each && far.send(&packet(reader, number), Meta::FULL) {
                sent += 1;
            }
            arrived == each && taken.iter().all(|taken| taken.load(Ordering::Acquire) == each)
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
    for reader in &readers {
        let counts = reader.counts();
        println!("{counts:?}");
        assert_eq!((counts.delivered, counts.read), (each, each));
        assert_eq!((counts.dropped_full, counts.dropped_deferred), (0, 0));
        if config.read == Protection::Mutex {
            assert_eq!(counts.deferred, 0);
        } else {
            assert_eq!(counts.contended, 0, "the thread that delivers waits for no reader");
        }
    }
    let counts = driver.counts().expect("no other thread is inside");
    println!("{counts:?}");
    assert_eq!((counts.direct + counts.left, counts.taken), (each, each));
    assert_eq!((counts.rx_no_reader, counts.rx_malformed, counts.lost), (0, 0, 0));
    counts
}

#[test]
fn nothing_is_lost_in_any_combination() {
    for (write, read) in BOTH.into_iter().flat_map(|write| BOTH.map(|read| (write, read))) {
        // Room for all packets: those of a reader that is late are dropped otherwise.
        let config = Config { write, read, reader: 4096, ..Config::default() };
        for tx_asynchronous in [false, true] {
            let device = loopback::Config { tx_asynchronous, ..loopback::Config::default() };
            let counts = exchange(&device, config, 200);
            if write == Protection::Mutex {
                assert_eq!((counts.interrupts_left, counts.left), (0, 0));
            } else {
                assert_eq!(counts.contended, 0, "no thread waits");
            }
        }
        let narrow = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
        let config = Config { left: 2, own: 1, receive: 2, ..config };
        exchange(&narrow, config, 30);
    }
}

/// A thread inside does an interrupt's work that another one left, and unmasks the interrupt.
#[test]
fn an_interrupts_work_is_left_to_the_thread_inside() {
    let (driver, mut readers, mut far, _cable) =
        start(&loopback::Config::default(), Config::default(), 1, choose);
    let mut number_sent = 0;
    let mut send = |far: &mut DeviceFarEnd, count: u64| {
        for _ in 0..count {
            assert!(far.send(&packet(0, number_sent), Meta::FULL));
            number_sent += 1;
        }
    };
    let mut expected = 0;
    let mut read = |reader: &mut Reader| {
        let before = expected;
        let mut take = |bytes: &[u8], _| {
            assert_eq!(number(bytes), expected);
            expected += 1;
        };
        while reader.read(32, &mut take).unwrap() > 0 {}
        expected - before
    };
    assert_eq!(driver.interrupt(), Armed::Sleep);
    // The first packet is for the program, and holds the thread inside.
    for (packets, left_over) in [(1, 0), (20, 0), (100, 68)] {
        assert!(!is_called(&driver));
        assert!(far.send(&packet(0, 1 << 40), Meta::FULL));
        let held = driver.receive(1, |_, _| {
            send(&mut far, packets);
            assert_eq!(driver.interrupt(), Armed::Sleep, "the work is left");
            assert_eq!(readers[0].read(1, |_, _| ()), Ok(0), "and not done yet");
        });
        assert_eq!(held, 1);
        assert_eq!(read(&mut readers[0]), packets - left_over, "{packets} packets");
        // With work left over, the thread inside calls the thread that handles interrupts.
        assert_eq!(is_called(&driver), left_over > 0);
        while driver.interrupt() == Armed::Work {}
        assert_eq!(read(&mut readers[0]), left_over);
        assert!(!is_called(&driver), "the notification is taken");
        // The interrupt is unmasked: the next packet comes with one.
        send(&mut far, 1);
        assert!(is_called(&driver));
        assert_eq!(driver.interrupt(), Armed::Sleep);
        assert_eq!(read(&mut readers[0]), 1);
    }
    let counts = driver.counts().unwrap();
    assert_eq!(counts.interrupts_left, 3);
}

/// Packets wait while the link is down, are sent in order when it is up again, and are refused once
/// there is no buffer.
#[test]
fn packets_wait_for_the_link() {
    for write in BOTH {
        let config = Config { own: 8, write, ..Config::default() };
        let (driver, _, mut far, cable) = start(&loopback::Config::default(), config, 0, choose);
        driver.send(&packet(0, 0)).unwrap();
        cable.0.set_link(false);
        assert!(is_called(&driver), "the link wakes the thread");
        assert!(driver.take_events());
        for number in 1..=7 {
            driver.send(&packet(0, number)).unwrap();
        }
        let refused = (8..12).filter(|number| driver.send(&packet(0, *number)).is_err()).count();
        assert!(refused >= 3, "{write:?}: {refused}");
        assert_eq!(driver.interrupt(), Armed::Sleep, "no room to wait for");
        assert!(!is_called(&driver));
        let before = driver.counts().unwrap();
        assert_eq!((before.straight, before.behind, before.busy), (1, 0, 0));
        assert_eq!(before.link_down, before.direct - 1);
        assert_eq!(before.refused, refused as u64);
        cable.0.set_link(true);
        assert!(is_called(&driver), "the link wakes the thread");
        driver.interrupt();
        let mut arrived = Vec::new();
        wait("the packets", || {
            driver.drive();
            while let Some((frame, _)) = far.receive() {
                arrived.push(number(&frame));
            }
            arrived.len() as u64 >= before.direct
        });
        assert_eq!(arrived, (0..before.direct).collect::<Vec<_>>(), "{write:?}");
        driver.send(&packet(0, 99)).unwrap();
        assert_eq!(driver.counts().unwrap().straight, 2, "straight again");
    }
}

/// Packets do not wait for a device that was removed, also not if its link was down before.
#[test]
fn a_removed_device_is_a_failure() {
    for write in BOTH {
        let config = Config { write, ..Config::default() };
        let (driver, _, _, cable) = start(&loopback::Config::default(), config, 0, choose);
        cable.0.set_link(false);
        assert!(driver.take_events());
        driver.send(&packet(0, 0)).unwrap();
        cable.0.remove();
        driver.interrupt();
        assert!(matches!(driver.send(&packet(0, 1)), Err(SendError::Failed)), "{write:?}");
        assert!(driver.failure().is_some_and(|failure| failure.is_gone()));
    }
}

/// The program's function panics for one packet: that packet is lost. The other packets, and the
/// work that another thread left, are not.
#[test]
fn a_panic_of_the_programs_function_loses_one_packet() {
    for write in BOTH {
        let config = Config { write, ..Config::default() };
        let (driver, mut readers, mut far, _cable) =
            start(&loopback::Config::default(), config, 1, |packet| {
                assert_ne!(number(packet), 3, "the panic that this test wants");
                choose(packet)
            });
        driver.interrupt();
        (0..8).for_each(|number| assert!(far.send(&packet(0, number), Meta::FULL)));
        assert!(catch_unwind(AssertUnwindSafe(|| driver.interrupt())).is_err(), "{write:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| driver.send(&packet(9, 0)).unwrap());
        });
        assert_eq!(far.receive().map(|(frame, _)| frame), Some(packet(9, 0)), "others go on");
        while driver.interrupt() == Armed::Work {}
        let mut read = Vec::new();
        readers[0].read(32, |packet, _| read.push(number(packet))).unwrap();
        assert_eq!(read, [0, 1, 2, 4, 5, 6, 7]);
        (8..300).for_each(|number| {
            assert!(far.send(&packet(0, number), Meta::FULL));
            while driver.interrupt() == Armed::Work {}
            assert_eq!(readers[0].read(1, |_, _| ()), Ok(1), "no buffer is lost");
        });
        assert!(driver.failure().is_none());
    }
}

/// A callback that panics inside has its packet; the thread does what was left before it goes down.
#[test]
fn a_panic_of_a_callback_leaves_no_work_undone() {
    for write in BOTH {
        let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let config = Config { write, ..Config::default() };
        let driver = Embedded::new(Box::new(near), config).unwrap();
        driver.receive(1, |_, _| ());
        (0..4).for_each(|number| assert!(far.send(&packet(0, number), Meta::FULL)));
        let receive = || {
            driver.receive(32, |bytes, _| {
                driver.send(bytes).unwrap();
                assert_ne!(number(bytes), 1, "the panic that this test wants");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(receive)).is_err(), "{write:?}");
        for answer in 0..2 {
            let frame = far.receive().map(|(frame, _)| frame);
            assert_eq!(frame, Some(packet(0, answer)), "{write:?}: what was left is sent");
        }
        assert_eq!(driver.arm(), Some(Armed::Work), "packets are left");
        let mut read = Vec::new();
        while driver.receive(32, |bytes, _| read.push(number(bytes))) > 0 {}
        assert_eq!(read, [2, 3], "{write:?}");
        assert!(driver.failure().is_none());
    }
}

#[test]
fn packets_without_a_reader_are_counted() {
    let (driver, mut readers, mut far, _cable) =
        start(&loopback::Config::default(), Config::default(), 1, |packet| {
            (packet[14] < 9).then_some(packet[14].into())
        });
    driver.interrupt();
    for reader in [0, 1, 9, 0] {
        assert!(far.send(&packet(reader, 0), Meta::FULL));
    }
    while driver.interrupt() == Armed::Work {}
    assert_eq!(readers[0].read(32, |_, _| ()), Ok(2));
    assert_eq!(driver.counts().unwrap().rx_no_reader, 2);
}

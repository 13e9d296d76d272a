//! Several threads send through one driver of their own process while another one resets it:
//! nothing is lost but what the reset counts, nothing is doubled, and each thread's packets keep
//! their order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use towpath_device::conformance::{DeviceFarEnd, FarEnd};
use towpath_device::{Meta, loopback};
use towpath_server::embedded::{Config, Embedded, SendError};

const THREADS: u64 = 3;

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

/// What arrived, by thread.
#[derive(Default)]
struct Arrived {
    last: [Option<u64>; THREADS as usize],
    count: u64,
}

impl Arrived {
    fn take(&mut self, bytes: &[u8]) {
        let (thread, number) = read(bytes);
        assert_eq!(bytes, packet(thread, number), "as it was sent");
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
        for thread in 0..THREADS {
            let (driver, sending, refused) = (&driver, &sending, &refused);
            scope.spawn(move || {
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
            });
        }
        if resets {
            let (driver, over) = (&driver, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    driver.reset();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
        wait("all that was sent is done with", || {
            while let Some((frame, _)) = far.receive() {
                arrived.take(&frame);
            }
            sending.load(Ordering::Acquire) == 0 && driver.drive() == Some(0)
        });
        over.store(true, Ordering::Release);
    });
    while let Some((frame, _)) = far.receive() {
        arrived.take(&frame);
    }
    let counts = driver.counts().expect("nobody else is inside");
    println!("{counts:?}, {} refused, {} arrived", refused.load(Ordering::Relaxed), arrived.count);
    assert!(driver.failure().is_none());
    let sent = THREADS * each;
    // A slot that was taken was published: nobody gives one up.
    assert_eq!(counts.direct + counts.left, sent);
    assert_eq!((counts.taken, counts.returned), (sent, sent));
    assert_eq!(arrived.count + counts.lost, sent, "lost, or doubled");
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
    exchange(&loopback::Config::default(), Config::default(), 5_000, false);
}

#[test]
fn three_threads_with_hardly_any_room() {
    let device = loopback::Config { ring_packets: 4, ..loopback::Config::default() };
    exchange(&device, Config { left: 2, own: 1, receive: 1 }, 1_000, false);
}

#[test]
fn three_threads_lose_what_resets_count_and_nothing_else() {
    // Packets are fetched late, so that a reset finds some to lose.
    let device = loopback::Config { tx_asynchronous: true, ..loopback::Config::default() };
    exchange(&device, Config::default(), 5_000, true);
}

#[test]
fn what_is_received_is_whole_and_may_be_answered() {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
    for number in 0..1000 {
        let packet = packet(1, number);
        wait("room", || far.send(&packet, Meta::FINISHED));
        let mut got = 0;
        wait("a packet", || {
            // From inside: the answer is left, and sent before this thread goes.
            got += driver.receive(1, |bytes, meta| {
                assert_eq!((bytes, meta), (&packet[..], Meta::FINISHED));
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
    assert_eq!((counts.left, counts.direct), (1000, 0));
}

#[test]
fn what_is_wrong_is_refused() {
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
    let (driver, far) = driver(Config::default()).unwrap();
    let most = 1518;
    assert_eq!(driver.send(&[0; 1519]), Err(SendError::TooLong { len: 1519, most }));
    drop(far);
    // The first may go in before the driver hears of it.
    let _ = driver.send(&packet(0, 0));
    assert_eq!(driver.send(&packet(0, 1)), Err(SendError::Failed));
    assert!(driver.failure().is_some());
}

//! A TAP interface in the program itself: three threads send through one driver without a lock
//! while a fourth resets it. The kernel's side receives every packet, each thread's in its order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use towpath_device::tap::{self, TapDevice};
use towpath_embedded::{Config, Embedded, SendError};
use towpath_netlink::Netlink;
use towpath_testkit::{isolated, skip};
use towpath_tests::eventually;
use towpath_tests::wire::Wire;

const THREADS: u64 = 3;
/// Packets of each thread: those of all threads fit unread into an ordinary user's smallest socket
/// buffer.
const EACH: u64 = 2_000;
/// An ethertype for experiments (IEEE 802.1, local).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

fn packet(thread: u64, number: u64) -> Vec<u8> {
    let mut packet = vec![0xff; 6];
    packet.extend_from_slice(&[2, 0, 0, 0, 0, 9]);
    packet.extend_from_slice(&ETHERTYPE);
    packet.extend_from_slice(&thread.to_le_bytes());
    packet.extend_from_slice(&number.to_le_bytes());
    packet.resize(60 + (number % 200) as usize, number as u8);
    packet
}

#[test]
fn three_threads_and_resets_lose_nothing_on_a_tap() {
    isolated!(|| {
        if let Err(why) = towpath_testkit::check_tun() {
            return skip("three_threads_and_resets_lose_nothing_on_a_tap", &why);
        }
        let name = "threads0";
        let options = tap::Options { name: name.to_owned(), offloads: true };
        let device = TapDevice::open(&options).unwrap();
        let file = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        let _ = std::fs::write(file, "1");
        Netlink::open().unwrap().set_up(name).unwrap();
        let mut wire = Wire::open(name).unwrap();
        let driver = Embedded::new(Box::new(device), Config::default()).unwrap();
        let (sending, over) = (AtomicU64::new(THREADS), AtomicBool::new(false));
        // The number that each may send: the kernel drops packets without room in the socket's
        // buffer.
        let seen = AtomicU64::new(0);
        let mut next = [0; THREADS as usize];
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (driver, sending, seen) = (&driver, &sending, &seen);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let packet = packet(thread, number);
                        while number * THREADS > seen.load(Ordering::Relaxed) + 128 {
                            std::thread::yield_now();
                        }
                        while driver.send(&packet) == Err(SendError::WouldBlock) {
                            std::thread::yield_now();
                        }
                    }
                    sending.fetch_sub(1, Ordering::Release);
                });
            }
            let (driver, over) = (&driver, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    driver.reset();
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            eventually("all that was sent is on the wire", || {
                while let Some(frame) = wire.receive() {
                    let (thread, number) = (u64::from(frame[14]), &mut next[frame[14] as usize]);
                    assert_eq!(frame, packet(thread, *number), "each thread's in order");
                    *number += 1;
                    seen.fetch_add(1, Ordering::Relaxed);
                }
                sending.load(Ordering::Acquire) == 0
                    && driver.drive() == Some(0)
                    && next == [EACH; THREADS as usize]
            });
            over.store(true, Ordering::Release);
        });
        let counts = driver.counts().expect("no other thread is inside");
        println!("{counts:?}");
        assert_eq!(counts.direct + counts.left, THREADS * EACH);
        assert_eq!((counts.taken, counts.device.tx_dropped), (THREADS * EACH, 0));
        assert!(counts.resets > 0 && counts.device.resets == counts.resets);
        assert!(wire.receive().is_none(), "no packet came twice");
        assert!(driver.failure().is_none());
    });
}

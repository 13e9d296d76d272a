//! An application that attached properly and then writes any value anywhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::{Lost, QueuePair, SendError};
use towpath_tests::frames;

use crate::hostile::Hostile;

/// The time of a session without a violation; on a busy machine, up to ten times as long, until the
/// server has delivered some of its packets.
const ROUND: Duration = Duration::from_millis(20);
/// Packets that come back from a server that had its part of the processors.
const DELIVERED: usize = 8;

/// Attaches this often, and each time writes in one of several ways while it sends. Prints
/// `rounds N violated M` at the end.
pub(crate) fn run(socket: &Path, seed: u64, rounds: u64) {
    let mut random = Rng::with_seed(seed);
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let mut violated = 0;
    for round in 0..rounds {
        let mut hostile = Hostile::attach(socket, "random");
        let way = round % 5;
        let stop = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            let words = (hostile.pages, hostile.transmit_pool, hostile.places.clone());
            let mut other = Rng::with_seed(random.u64(..));
            let stop = &stop;
            scope.spawn(move || {
                let (pages, transmit_pool, places) = words;
                let heads: Vec<usize> = places
                    .queue_pairs
                    .iter()
                    .flat_map(|set| [set.transmit_head, set.receive_head, set.transmit_head + 1])
                    .chain([0, places.acknowledgements, places.events])
                    .collect();
                while !stop.load(Ordering::Relaxed) {
                    match way {
                        // Every word.
                        0 => places.all.clone().for_each(|index| pages.store(index, other.u64(..))),
                        // Any word, now and then.
                        1 => {
                            let index = other.usize(..places.all.end);
                            pages.store(index, other.u64(..));
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        // One bit of any word, there and back.
                        2 => {
                            let index = other.usize(..places.all.end);
                            let bit = 1 << other.u64(..64);
                            pages.store(index, pages.load(index) ^ bit);
                            pages.store(index, pages.load(index) ^ bit);
                        }
                        // Indices that are off by a little, or by much.
                        3 => {
                            let index = heads[other.usize(..heads.len())];
                            let now = pages.load(index);
                            let by = match other.u64(..3) {
                                0 => other.u64(..8),
                                1 => other.u64(..) >> 32,
                                _ => other.u64(..),
                            };
                            pages.store(index, now.wrapping_add(by));
                            std::thread::sleep(Duration::from_micros(20));
                        }
                        // The buffer pool, under the copies, metadata and headers included: no
                        // violation by itself, but the packets may have any content.
                        _ => {
                            let index = other.usize(..transmit_pool.len());
                            transmit_pool.store(index, other.u64(..));
                        }
                    }
                }
            });
            let lost = send_until_lost(&mut hostile);
            stop.store(true, Ordering::Relaxed);
            lost
        });
        violated += u64::from(matches!(lost, Some(Lost::Violated(_))));
        *ends.entry(format!("way {way}: {lost:?}")).or_default() += 1;
    }
    for (end, count) in ends {
        println!("{end}: {count}");
    }
    println!("rounds {rounds} violated {violated}");
}

fn send_until_lost(hostile: &mut Hostile) -> Option<Lost> {
    let own = hostile.session.info().mac;
    let start = Instant::now();
    let (mut number, mut delivered) = (0, 0);
    while start.elapsed() < ROUND || (delivered < DELIVERED && start.elapsed() < 10 * ROUND) {
        let to = if number % 2 == 0 { own } else { frames::ELSEWHERE.into() };
        let frame = frames::frame(to.octets(), own.octets(), 11, number);
        number += 1;
        match hostile.session.sender().send_bytes(hostile.endpoint, &frame) {
            Ok(()) => {}
            Err(SendError::Full) => hostile.ring(),
            Err(SendError::Lost(lost)) => return Some(lost),
            Err(error) => panic!("{error}"),
        }
        if let Err(lost) = hostile.session.sender().flush() {
            return Some(lost);
        }
        hostile.ring();
        match hostile.session.receiver().receive(QueuePair::FIRST, 64, |_| ()) {
            Ok(packets) => delivered += packets,
            Err(_) => return hostile.session.lost(),
        }
        if number % 8 == 0
            && let Err(lost) = hostile.session.wait(Some(Duration::from_micros(200)))
        {
            return Some(lost);
        }
    }
    None
}

//! The check that no wake-up is ever lost, with the other end in a thread of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use towpath_device::Meta;

use super::far::FarEnd;
use super::frames::{assert_frames, frame};
use super::near::{FAR_MAC, NEAR_MAC, Near, Outgoing, PATIENCE, drain};
use crate::random::Random;

/// Polls without a sleep.
const POLLS_AWAKE: usize = 5000;
/// The environment variable with the number of packets that arrive.
const ARRIVALS: &str = "TOWPATH_WAKE_UPS";
/// The packets that are sent, at least: many times the capacity of a ring.
const LEAST_SENT: usize = 1500;

/// Returns the number of packets that arrive, each of which has to wake the suite. A sanitizer checks each
/// access, so a sanitizer needs few packets.
///
/// # Panics
/// If the variable is no number.
fn arrivals() -> usize {
    match std::env::var(ARRIVALS) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{ARRIVALS}={text} is no number")),
        Err(_) if cfg!(towpath_sanitize) => 200,
        Err(_) => 500,
    }
}

/// Ends the other thread's loop when this thread ends, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn wake_ups(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    if near.queue.sleep_fd().is_none() {
        let armed = near.queue.arm(false).expect("arm");
        assert_eq!(armed, towpath_device::Armed::Work, "{}: allows sleep without fd", near.what());
        return;
    }
    arrivals_wake(near, far, seed);
    // A device may stop preparing for sleeps while the engine polls.
    for _ in 0..POLLS_AWAKE {
        near.receive();
    }
    arrivals_wake(near, far, seed);
    room_wakes(near, far, seed);
}

/// Sends one frame at a time, each when the suite may be falling asleep.
fn arrivals_wake(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let count = arrivals();
    let seen = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let sender = scope.spawn(|| {
            let mut random = Random::new(seed);
            for number in 0..count {
                while seen.load(Ordering::Acquire) < number {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::yield_now();
                }
                for _ in 0..random.below(3000) {
                    std::hint::spin_loop();
                }
                let frame = frame(FAR_MAC, number as u32, 60);
                while !far.send(&frame, Meta::FULL) && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        let mut received = 0;
        while received < count {
            let got = near.receive().len();
            received += got;
            seen.store(received, Ordering::Release);
            if got == 0 {
                near.sleep(false, &format!("after frame {received}"));
            }
        }
        // ThreadSanitizer sees the end of a thread that is joined, not that of a scope.
        sender.join().expect("the far end sent all");
    });
}

/// Fills the ring, while the other end takes some frames now and then.
fn room_wakes(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let count = LEAST_SENT.max(2 * arrivals());
    let taken = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let frames: Vec<Vec<u8>> =
        (0..count as u32).map(|number| frame(NEAR_MAC, number, 60)).collect();
    std::thread::scope(|scope| {
        let stop_guard = Stop(&stop);
        let arrived = &taken;
        let stop = &stop;
        let handle = scope.spawn(move || {
            let mut random = Random::new(seed);
            let mut got = Vec::new();
            while got.len() < count && !stop.load(Ordering::Relaxed) {
                drain(far, &mut got);
                arrived.store(got.len(), Ordering::Release);
                for _ in 0..random.below(3000) {
                    std::hint::spin_loop();
                }
            }
            got
        });
        let mut sent = 0;
        while sent < count || near.outstanding() > 0 {
            let packets: Vec<Outgoing<'_>> =
                frames[sent..].iter().take(64).map(|frame| Outgoing::whole(frame)).collect();
            let offered = near.offer(&packets);
            sent += offered;
            near.receive();
            let tokens = near.take_tokens(64);
            if offered == 0 && tokens == 0 {
                near.sleep(sent < count, &format!("for room after frame {sent}"));
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while taken.load(Ordering::Acquire) < count && Instant::now() < deadline {
            near.receive();
            std::thread::yield_now();
        }
        drop(stop_guard);
        let got = handle.join().expect("the far end's thread");
        assert_frames(near.what(), &got, &frames);
    });
}

//! Bulk data through connections for a time, checked byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fastrand::Rng;

use super::hosts::{Receiver, Sender};

/// The data repeat after this many bytes. No part of them is like another one, so a byte at a wrong
/// place is seen.
const PATTERN_BYTES: usize = 64 * 1024;
/// The time between two points of a picture.
pub(super) const SLICE: Duration = Duration::from_millis(100);

/// What a connection carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Course {
    /// Bytes that the receiving application got.
    pub(super) bytes: u64,
    /// The bytes of each [`SLICE`] of the window.
    pub(super) slices: Vec<u64>,
    /// The sender's congestion window in each slice, in bytes.
    pub(super) windows: Vec<u64>,
}

impl Course {
    /// Adds up what several connections carried in one window.
    pub(super) fn sum(courses: &[Course]) -> Course {
        let slices = courses.iter().map(|course| course.slices.len()).max().unwrap_or(0);
        let mut sum = Course::of(slices);
        for course in courses {
            sum.bytes += course.bytes;
            for (to, from) in sum.slices.iter_mut().zip(&course.slices) {
                *to += from;
            }
            for (to, from) in sum.windows.iter_mut().zip(&course.windows) {
                *to += from;
            }
        }
        sum
    }

    fn of(slices: usize) -> Course {
        Course { bytes: 0, slices: vec![0; slices], windows: vec![0; slices] }
    }

    /// Returns the throughput over a window, in Mbit/s.
    pub(super) fn mbit_s(&self, window: Duration) -> f64 {
        self.bytes as f64 * 8.0 / window.as_secs_f64() / 1e6
    }
}

/// Sends through all connections at the same time, as fast as they take data. The window begins
/// when the threads start.
pub(super) fn carry(
    connections: Vec<(Sender, Receiver)>,
    window: Duration,
) -> anyhow::Result<Vec<Course>> {
    let (pattern, over) = (pattern(), AtomicBool::new(false));
    let (pattern, over) = (&pattern, &over);
    let start = Instant::now();
    let slices = window.as_nanos().div_ceil(SLICE.as_nanos()) as usize;
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for (sender, receiver) in connections {
            ends.push((
                scope.spawn(move || send(sender, pattern, (start, slices), over)),
                scope.spawn(move || receive(receiver, pattern, (start, slices), window)),
            ));
        }
        let joined = |failed| move |_| anyhow::anyhow!("the {failed} thread failed");
        let (mut senders, mut courses) = (Vec::new(), Vec::new());
        for (sender, receiver) in ends {
            senders.push(sender);
            courses.push(receiver.join().map_err(joined("receiving")));
        }
        over.store(true, Ordering::Relaxed);
        let mut windows = Vec::new();
        for sender in senders {
            windows.push(sender.join().map_err(joined("sending"))??);
        }
        let mut ended = Vec::new();
        for (course, windows) in courses.into_iter().zip(windows) {
            let (course, receiver) = course??;
            // The receivers close only now, when no sender minds.
            drop(receiver);
            ended.push(Course { windows, ..course });
        }
        Ok(ended)
    })
}

fn pattern() -> Vec<u8> {
    let mut random = Rng::with_seed(0x7077);
    (0..PATTERN_BYTES / 8).flat_map(|_| random.u64(..).to_ne_bytes()).collect()
}

/// Sends the pattern again and again until it is over. The end of the connection is no failure
/// then. Returns the congestion window in each slice, read once in it.
fn send(
    mut stream: Sender,
    pattern: &[u8],
    (start, slices): (Instant, usize),
    over: &AtomicBool,
) -> anyhow::Result<Vec<u64>> {
    let (mut at, mut windows) = (0, Vec::with_capacity(slices));
    while !over.load(Ordering::Relaxed) {
        let slice = slice_of(start.elapsed()).min(slices - 1);
        if slice >= windows.len() {
            windows.resize(slice + 1, stream.congestion_window()?);
        }
        match stream.write(&pattern[at..]) {
            Ok(len) => at = (at + len) % pattern.len(),
            Err(error) if is_glance(&error) => {}
            Err(_) if over.load(Ordering::Relaxed) => break,
            Err(error) => return Err(error).context("sending"),
        }
    }
    windows.resize(slices, windows.last().copied().unwrap_or_default());
    Ok(windows)
}

/// Returns the slice in which a time lies.
fn slice_of(time: Duration) -> usize {
    (time.as_nanos() / SLICE.as_nanos()) as usize
}

/// Receives until the window is over. A connection that stalls counts with what it carried.
fn receive(
    mut stream: Receiver,
    pattern: &[u8],
    (start, slices): (Instant, usize),
    window: Duration,
) -> anyhow::Result<(Course, Receiver)> {
    let mut course = Course::of(slices);
    let mut buffer = vec![0; 2 * PATTERN_BYTES];
    loop {
        let read = stream.read(&mut buffer);
        let at = start.elapsed();
        if at >= window {
            return Ok((course, stream));
        }
        match read {
            Ok(0) => anyhow::bail!("a connection ended before its time"),
            Ok(len) => {
                check(&buffer[..len], pattern, course.bytes)?;
                course.bytes += len as u64;
                course.slices[slice_of(at).min(slices - 1)] += len as u64;
            }
            Err(error) if is_glance(&error) => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

/// Checks that these are the bytes that were sent at this place.
fn check(mut got: &[u8], pattern: &[u8], place: u64) -> anyhow::Result<()> {
    let mut at = (place % pattern.len() as u64) as usize;
    while !got.is_empty() {
        let len = got.len().min(pattern.len() - at);
        ensure!(
            got[..len] == pattern[at..at + len],
            "the bytes after the first {place} are not those that were sent"
        );
        (got, at) = (&got[len..], 0);
    }
    Ok(())
}

/// Returns `true` for the error of a call that waited without progress.
fn is_glance(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::hosts::{GLANCE, Sends};
    use super::*;

    impl Sends for UnixStream {
        fn congestion_window(&self) -> std::io::Result<u64> {
            Ok(7)
        }
    }

    fn connection() -> (Sender, Receiver) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_write_timeout(Some(GLANCE)).unwrap();
        far.set_read_timeout(Some(GLANCE)).unwrap();
        (Box::new(near), Box::new(far))
    }

    #[test]
    fn all_connections_carry_and_each_slice_counts() {
        let window = Duration::from_millis(250);
        let courses = carry(vec![connection(), connection()], window).unwrap();
        assert_eq!(courses.len(), 2);
        for course in courses {
            assert!(course.bytes > 0);
            assert_eq!(course.slices.len(), 3);
            assert_eq!(course.slices.iter().sum::<u64>(), course.bytes);
            assert_eq!(course.windows, [7; 3]);
        }
        let course = |slices: [u64; 2]| Course {
            bytes: slices.iter().sum(),
            slices: slices.into(),
            windows: slices.into(),
        };
        assert_eq!(Course::sum(&[course([1, 2]), course([10, 20])]), course([11, 22]));
    }

    #[test]
    fn a_wrong_byte_is_seen() {
        let pattern = pattern();
        let twice = [&pattern[..], &pattern[..]].concat();
        check(&twice[100..pattern.len() + 200], &pattern, 100).unwrap();
        check(&twice[5..9], &pattern, pattern.len() as u64 + 5).unwrap();
        let mut wrong = pattern.clone();
        wrong.swap(70, 80);
        assert!(check(&wrong, &pattern, 0).is_err());
        assert!(check(&twice[1..50], &pattern, 0).is_err(), "a byte is missing");
    }

    #[test]
    fn a_connection_that_ends_early_is_a_failure() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(near);
        let window = Duration::from_secs(5);
        assert!(receive(Box::new(far), &pattern(), (Instant::now(), 50), window).is_err());
    }
}

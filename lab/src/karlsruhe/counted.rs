//! Counts of a measurement's parts, each a thread of its own.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_testkit::{Participants, Usage};

use super::left::Left;

/// One side of a measurement: returns the number of packets or bytes that it moved.
pub(super) type Part<'a> = Box<dyn FnOnce() -> anyhow::Result<u64> + Send + 'a>;

/// The counts of all parts.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// The return value of each part, in their order.
    pub(super) moved: Vec<u64>,
    /// From the first part's start to the last one's end.
    pub(super) took: Duration,
    /// The usage of all participants.
    pub(super) usage: Usage,
    /// The idle part of all cores, where the experiment counts it.
    pub(super) left: Option<f64>,
}

/// Runs parts side by side until the last is done. No thread ends before the participants' accounts
/// are read: an ended thread is in no account of switches, and an ending one may be missed.
pub(super) fn counted(
    participants: &Participants,
    mut left: Option<&mut Left>,
    parts: Vec<Part<'_>>,
) -> anyhow::Result<Counted> {
    thread::scope(|scope| {
        let (done, outcomes) = mpsc::channel();
        let mut gates = Vec::new();
        let mut moved = vec![0; parts.len()];
        if let Some(left) = &mut left {
            left.begin()?;
        }
        let before = participants.moment()?;
        let start = Instant::now();
        for (place, part) in parts.into_iter().enumerate() {
            let (open, gate) = mpsc::channel::<()>();
            gates.push(open);
            let done = done.clone();
            scope.spawn(move || {
                let outcome = part();
                // After another part's failure, no receiver is left and nothing is to be counted.
                let _ = done.send((place, outcome, Instant::now()));
                // No message is ever sent: the gate opens when its other end is dropped.
                let _ = gate.recv();
            });
        }
        drop(done);
        let mut last = start;
        for _ in 0..moved.len() {
            let (place, outcome, ended) = outcomes.recv().context("a part had no result")?;
            moved[place] = outcome?;
            last = last.max(ended);
        }
        let left = left.map(Left::end).transpose()?;
        let usage = before.until(&participants.moment()?);
        drop(gates);
        Ok(Counted { moved, took: last - start, usage, left })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAPS: u64 = 20;

    #[test]
    fn each_thread_is_counted_once() {
        let own = Participants::new(&[std::process::id()]);
        let nap = || -> anyhow::Result<u64> {
            for _ in 0..NAPS {
                thread::sleep(Duration::from_micros(200));
            }
            Ok(NAPS)
        };
        // One thread finishes long before the other.
        let counted = counted(&own, None, vec![Box::new(|| Ok(1)), Box::new(nap)]).unwrap();
        assert_eq!(counted.moved, [1, NAPS]);
        assert!(counted.usage.sleeps >= NAPS, "{counted:?}");
        assert!(counted.took >= Duration::from_micros(200) * NAPS as u32, "{counted:?}");
    }

    #[test]
    fn an_error_of_one_thread_is_returned() {
        let own = Participants::new(&[std::process::id()]);
        let parts: Vec<Part<'_>> =
            vec![Box::new(|| Ok(1)), Box::new(|| anyhow::bail!("no frames"))];
        assert_eq!(counted(&own, None, parts).unwrap_err().to_string(), "no frames");
    }
}

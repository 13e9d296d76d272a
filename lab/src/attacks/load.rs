//! How threads use the processors, as the scheduler counts it.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_attacks::BusyThread;

/// A thread's times and sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// The time on a processor.
    ran: Duration,
    /// The time for which it was runnable and waited for a processor.
    waited: Duration,
    sleeps: u64,
}

impl Use {
    /// Reads a thread's counts; `None` if it has ended.
    fn of(pid: u32, thread: u32) -> Option<Use> {
        let file = |name| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).ok();
        let (times, status) = (file("schedstat")?, file("status")?);
        let mut times = times.split(' ').map(|ns| ns.parse().map(Duration::from_nanos));
        let (ran, waited) = (times.next()?.ok()?, times.next()?.ok()?);
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Some(Use { ran, waited, sleeps: sleeps?.trim().parse().ok()? })
    }

    fn since(&self, before: &Use) -> Use {
        Use {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
        }
    }
}

/// The use of the processors by the threads of processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Load(BTreeMap<u32, Use>);

impl Load {
    /// Returns the use since the threads of these processes began.
    pub(super) fn of(processes: impl Iterator<Item = u32>) -> Load {
        let threads = |pid: u32| {
            let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
            let numbers =
                entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
            numbers.filter_map(move |thread| Some((thread, Use::of(pid, thread)?)))
        };
        Load(processes.flat_map(threads).collect())
    }

    /// Returns the use since an earlier time.
    pub(super) fn since(&self, before: &Load) -> Load {
        let since = |(thread, now): (&u32, &Use)| {
            (*thread, now.since(&before.0.get(thread).copied().unwrap_or_default()))
        };
        Load(self.0.iter().map(since).collect())
    }

    /// Returns the threads that use the processors as these do, beyond what the same threads usually do in a window.
    pub(super) fn beyond(&self, usual: &Load, window: Duration) -> Vec<BusyThread> {
        let busy = |(thread, used): (&u32, &Use)| {
            let usual = usual.0.get(thread).copied().unwrap_or_default();
            let more = used.ran.saturating_sub(usual.ran).as_secs_f64();
            // A thread waits because it has work: its wait counts as its work does.
            let part = if used.ran.is_zero() { 0.0 } else { more / used.ran.as_secs_f64() };
            let runnable = (used.ran + used.waited).as_secs_f64() * part / window.as_secs_f64();
            let sleeps = used.sleeps.saturating_sub(usual.sleeps).max(1);
            let period = window / u32::try_from(sleeps).unwrap_or(u32::MAX);
            BusyThread { runnable: runnable.min(1.0), period: period.max(SHORTEST) }
        };
        self.0.iter().map(busy).filter(|one| one.runnable > LEAST).collect()
    }
}

/// The least part of the time that is worth a thread.
const LEAST: f64 = 0.002;
/// The shortest period: a sleep takes some of this time by itself.
const SHORTEST: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_imitated_thread_by_thread() {
        let ms = Duration::from_millis;
        let one = |ran, waited, sleeps| Use { ran: ms(ran), waited: ms(waited), sleeps };
        let before = Load(BTreeMap::from([(1, one(10, 0, 4)), (2, one(7, 7, 7))]));
        let after =
            Load(BTreeMap::from([(1, one(60, 50, 14)), (2, one(7, 7, 7)), (3, one(4, 0, 0))]));
        let window = after.since(&before);
        let usual = Load(BTreeMap::from([(1, one(25, 0, 5))]));
        let [first, third] = window.beyond(&usual, ms(100))[..] else { panic!("two threads") };
        // Half of the first thread's work was usual, and so half of its time.
        assert_eq!(first, BusyThread { runnable: 0.5, period: ms(20) });
        assert_eq!(third, BusyThread { runnable: 0.04, period: ms(100) });
    }

    #[test]
    fn this_process_uses_a_processor() {
        let before = Load::of([std::process::id()].into_iter());
        let since = std::time::Instant::now();
        while since.elapsed() < Duration::from_millis(50) {}
        let used = Load::of([std::process::id()].into_iter()).since(&before);
        let busy = used.beyond(&Load::default(), since.elapsed());
        assert!(busy.iter().any(|one| one.runnable > 0.5), "{busy:?}");
    }
}

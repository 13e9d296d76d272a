//! Spinning before a sleep, in a thread of the application that drives.
//!
//! A thread that awaits an answer to what it wrote spins as long as that has recently cost less
//! than the wake-ups that it saved ([`Spinner`]). A stream in one direction keeps itself going, and
//! its threads need the processors. The library's thread does not spin: it would do so beside the
//! threads for which it works.

use towpath_stack::Instant;
use towpath_waiting::{Costs, Spinner};

/// When a thread of the application that drives spins.
#[derive(Debug)]
pub(crate) struct Spinning {
    spinner: Spinner,
    /// `true` if the thread has slept since it last had received something.
    slept: bool,
    /// Until when each spin goes on, whatever the spinner says.
    #[cfg(test)]
    pub(crate) forced: Option<Instant>,
}

impl Default for Spinning {
    /// A thread spins for at most the time of two wake-ups: while it is awake, the engine need not
    /// wake it, nor the peer wait for that. Their time is the usual one, since to measure it takes
    /// longer than some programs run.
    fn default() -> Spinning {
        let wake_up = Costs::USUAL.wake_up;
        Spinning {
            spinner: Spinner::with_price(wake_up, 2 * wake_up),
            slept: false,
            #[cfg(test)]
            forced: None,
        }
    }
}

impl Spinning {
    /// Records that frames arrived.
    pub(crate) fn received(&mut self, now: Instant) {
        self.spinner.found(nanoseconds(now), std::mem::take(&mut self.slept));
    }

    /// Records that the thread goes to sleep.
    pub(crate) fn sleeps(&mut self, now: Instant) {
        self.slept = self.spinner.is_idle();
        self.spinner.sleeps(nanoseconds(now));
    }

    /// Records that the thread no longer waits.
    pub(crate) fn stop(&mut self, now: Instant) {
        self.spinner.stop(nanoseconds(now));
        self.slept = false;
    }

    /// Returns `true` if the thread is to look for frames again instead of a sleep.
    pub(crate) fn keeps_spinning(&mut self, now: Instant) -> bool {
        #[cfg(test)]
        if let Some(until) = self.forced {
            return now < until;
        }
        self.spinner.poll_again(nanoseconds(now))
    }
}

fn nanoseconds(at: Instant) -> u64 {
    at.as_micros() * 1000
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::thread;
    use std::time::Duration;

    use crate::lock::lock;
    use crate::wire_tests::{Ending, Pair, connection, eventually, pair};
    use crate::{Driving, Network, TcpStream};

    /// Longer than the tests take unless they fail.
    const FOREVER: Duration = Duration::from_secs(60);

    fn spin_forever(network: &Network) {
        let shared = network.shared();
        lock(&shared.spinning).forced = Some(shared.clock.now() + FOREVER);
    }

    fn exchange(from: &TcpStream, to: &TcpStream) {
        { from }.write_all(b"?").unwrap();
        { to }.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn a_thread_that_awaits_an_answer_spins_and_another_reader_sleeps() {
        let pair = pair(Driving::Application);
        let (ours, theirs) = connection(&pair);
        let Pair { a, .. } = &pair;
        spin_forever(a);
        thread::scope(|scope| {
            let answering = scope.spawn(|| {
                for _ in 0..20 {
                    { &theirs }.read_exact(&mut [0]).unwrap();
                    { &theirs }.write_all(b"!").unwrap();
                }
                // These answer no request.
                for _ in 0..20 {
                    eventually("the reader sleeps", || a.shared().is_asleep());
                    { &theirs }.write_all(b"!").unwrap();
                }
            });
            let before = a.shared().sleeps();
            (0..20).for_each(|_| {
                { &ours }.write_all(b"?").unwrap();
                { &ours }.read_exact(&mut [0]).unwrap();
            });
            assert_eq!(a.shared().sleeps(), before, "it slept");
            (0..20).for_each(|_| { &ours }.read_exact(&mut [0]).unwrap());
            answering.join().unwrap();
        });
    }

    #[test]
    fn a_spin_holds_up_no_other_thread_and_no_timeout() {
        let pair = pair(Driving::Application);
        let ((ours, theirs), (other, end)) = (connection(&pair), connection(&pair));
        other.set_nodelay(true).unwrap();
        spin_forever(&pair.a);
        exchange(&ours, &theirs);
        thread::scope(|scope| {
            let _ending = Ending(pair.a.clone());
            let spinning = scope.spawn(|| { &ours }.read_exact(&mut [0]).unwrap());
            eventually("a thread drives", || pair.a.shared().core().standby.led);
            eventually("the link is free", || pair.a.shared().is_link_free());
            // Each send finds the link free, or leaves its frames to the thread that spins.
            (0..1000).for_each(|_| exchange(&other, &end));
            { &theirs }.write_all(b"!").unwrap();
            spinning.join().unwrap();
            ours.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            exchange(&ours, &theirs);
            let kind = { &ours }.read(&mut [0]).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
        });
    }
}

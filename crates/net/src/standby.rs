//! The library's thread while a thread of the application drives.
//!
//! A thread that blocks in one call after the other, as in requests and answers, would wait each
//! time for the library's thread to wake, to work and to wake it in turn. So the library's thread
//! stands by once its last eight wake-ups went to one socket on which only one thread waits: from
//! then on, the thread that blocks drives the network itself, and the link wakes it directly. The
//! first turn that wakes another thread ends that, and the library's thread drives again.
//!
//! Between two calls of that thread, no thread drives. The library's thread looks after a while
//! whether the thread has come back, and drives again if it has not. While one call blocks for
//! longer than that, the library's thread sleeps without a limit, and the thread wakes it at the
//! call's end.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which the library's thread checks whether a thread still drives. Without one,
/// frames and timers wait at most twice as long.
pub(crate) const STANDBY: Duration = Duration::from_millis(1);

/// The number of wake-ups in a row of one thread after which that thread drives. Threads that are
/// all busy rarely wake in such a row by chance.
const IN_A_ROW: u32 = 8;

/// Which threads drive; under the stack's lock.
#[derive(Debug, Default)]
pub(crate) struct Standby {
    /// `true` while the library's thread leaves driving to threads that block.
    pub(crate) active: bool,
    /// `true` while a thread of the application drives.
    pub(crate) led: bool,
    /// Threads that block and do not drive.
    pub(crate) blocked: usize,
    /// The number of turns in which threads of the application drove.
    pub(crate) turns: u64,
    /// The times that blocked threads that did not drive woke.
    pub(crate) wakes: u64,
    /// `true` once something watched a socket: its events need the library's thread, also while a
    /// thread that blocks elsewhere computes.
    polled: bool,
    /// `true` while the library's thread sleeps until it is woken.
    sleeps_without_limit: bool,
    /// The waiter (one per socket) of the last wake-up, and the number of wake-ups in a row of that
    /// waiter alone.
    last: usize,
    row: u32,
}

impl Standby {
    /// Begins the turn of a thread of the application. Returns `false` if another thread drives.
    pub(crate) fn begin(&mut self, threaded: bool) -> bool {
        let free = !self.led && (self.active || !threaded);
        self.led |= free;
        free
    }

    /// Ends that turn, in a network with a thread of the library if `threaded`. Returns `true` if
    /// the caller must wake that thread: it would not look, or must drive.
    #[must_use]
    pub(crate) fn end(&mut self, threaded: bool) -> bool {
        self.led = false;
        self.turns += 1;
        threaded && (self.sleeps_without_limit || !self.active)
    }

    /// Records that something watches a socket, whose events need the library's thread. Returns `true` if
    /// that thread had left the driving to others.
    pub(crate) fn watch(&mut self) -> bool {
        let had_left = self.active || self.led;
        self.polled = true;
        self.woke_others();
        had_left
    }

    /// Records the wake-ups of a round of the library's thread: `threads` has each waiter once per
    /// thread that waits. After [`IN_A_ROW`] rounds in which one thread of one waiter wakes alone,
    /// the library's thread stands by, unless a socket has a poller.
    pub(crate) fn woke(&mut self, mut threads: impl Iterator<Item = usize>) {
        let Some(first) = threads.next() else { return };
        let alone = threads.next().is_none();
        self.row = if alone && first == self.last { self.row + 1 } else { 1 };
        self.last = first;
        self.active |= alone && self.row >= IN_A_ROW && !self.polled;
    }

    /// Records that a thread of the application that drives wakes others: they need the library's
    /// thread.
    pub(crate) fn woke_others(&mut self) {
        self.active = false;
        self.row = 0;
    }

    /// Stands by, in the library's thread, until it must drive again or until `over`.
    pub(crate) fn wait<'a, T>(
        mut core: MutexGuard<'a, T>,
        woken: &Condvar,
        of: impl Fn(&mut T) -> &mut Standby,
        over: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        // Until the turn of a thread that drives is over, even if it is to be the last one.
        while {
            let standby = of(&mut core);
            (standby.active || standby.led) && !over(&core)
        } {
            let before = of(&mut core).turns;
            core = woken.wait_timeout(core, STANDBY).unwrap_or_else(PoisonError::into_inner).0;
            let standby = of(&mut core);
            if standby.turns != before || !standby.active {
                continue;
            }
            if !standby.led {
                standby.active = false;
            } else {
                standby.sleeps_without_limit = true;
                core = woken.wait(core).unwrap_or_else(PoisonError::into_inner);
                of(&mut core).sleeps_without_limit = false;
            }
        }
        core
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::wire_tests::serve;
    use crate::{Network, SessionLink, UdpSocket};
    use towpath_client::Session;

    #[test]
    fn a_thread_drives_once_the_library_has_woken_it_alone_in_a_row() {
        let mut standby = Standby::default();
        let wake = |standby: &mut Standby, threads: &[usize]| standby.woke(threads.iter().copied());
        assert!(!standby.begin(true), "the library's thread drives");
        for _ in 0..100 {
            wake(&mut standby, &[1]);
            wake(&mut standby, &[2]);
            wake(&mut standby, &[2, 2]);
            wake(&mut standby, &[]);
        }
        assert!(!standby.begin(true), "another thread needs the library's");
        standby.polled = true;
        (0..2 * IN_A_ROW).for_each(|_| wake(&mut standby, &[1]));
        assert!(!standby.begin(true), "a poller needs the library's thread");
        standby.polled = false;
        standby.woke_others();
        for _ in 0..IN_A_ROW {
            assert!(!standby.begin(true), "it may have been chance");
            wake(&mut standby, &[3]);
        }
        assert!(standby.begin(true));
        assert!(!standby.begin(true), "one drives");
        assert!(!standby.end(true), "the library's thread looks by itself");
        assert!(standby.begin(true));
        standby.woke_others();
        assert!(standby.end(true), "the library's thread must drive");
        assert!(!standby.begin(true));
        (0..IN_A_ROW).for_each(|_| wake(&mut standby, &[3]));
        assert!(standby.begin(true));
        standby.watch();
        assert!(standby.end(true) && !standby.begin(true), "a new poller needs it at once");
    }

    #[test]
    fn without_a_library_thread_the_first_to_block_drives() {
        let mut standby = Standby::default();
        assert!(standby.begin(false));
        assert!(!standby.begin(false));
        assert!(!standby.end(false), "there is no thread to wake");
    }

    /// A thread that asks and waits for the answer, again and again, drives its network.
    #[test]
    fn a_thread_that_blocks_drives_its_network() {
        let (server, _far) = serve();
        let host = |name| {
            let socket = server.connect().unwrap();
            let session = Session::attach_over(socket, &SessionLink::options(name)).unwrap();
            Network::builder().over(session).unwrap()
        };
        let (a, b) = (host("a"), host("b"));
        let echo = UdpSocket::bind(&a, "10.77.0.2:7").unwrap();
        let echoing = std::thread::spawn(move || {
            let mut bytes = [0; 4];
            while bytes != [0xff; 4] {
                let (count, from) = echo.recv_from(&mut bytes).unwrap();
                echo.send_to(&bytes[..count], from).unwrap();
            }
        });
        let socket = UdpSocket::bind(&b, "0.0.0.0:0").unwrap();
        socket.connect("10.77.0.2:7").unwrap();
        let ask = |number: u32| {
            socket.send(&number.to_le_bytes()).unwrap();
            assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 4);
        };
        let turns = || b.shared().core().standby.turns;
        let mut asked = 0;
        while turns() < 10 {
            ask(asked);
            asked += 1;
        }
        ask(u32::MAX);
        echoing.join().unwrap();
        drop((a, b));
        server.stop().unwrap();
    }

    /// The library's thread takes over from a thread that does not come back, and sleeps without a
    /// limit while one blocks for long.
    #[test]
    fn the_library_takes_over() {
        let shared = Arc::new((Mutex::new(Standby::default()), Condvar::new()));
        let over = Arc::new(AtomicBool::new(false));
        let library = |shared: &Arc<(Mutex<Standby>, Condvar)>| {
            let (shared, over) = (shared.clone(), over.clone());
            std::thread::spawn(move || {
                let is_over = |_: &Standby| over.load(Ordering::Relaxed);
                drop(Standby::wait(shared.0.lock().unwrap(), &shared.1, |one| one, is_over));
            })
        };
        let lock = || shared.0.lock().unwrap();
        lock().active = true;
        library(&shared).join().unwrap();
        assert!(!lock().active, "no thread came");

        lock().active = true;
        assert!(lock().begin(true));
        let thread = library(&shared);
        while !lock().sleeps_without_limit {
            std::thread::yield_now();
        }
        assert!(lock().end(true), "it must be woken");
        shared.1.notify_all();
        thread.join().unwrap();
        assert!(!lock().active && !lock().sleeps_without_limit);

        // It also ends while a thread drives.
        lock().active = true;
        assert!(lock().begin(true));
        let thread = library(&shared);
        while !lock().sleeps_without_limit {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        shared.1.notify_all();
        thread.join().unwrap();
    }
}

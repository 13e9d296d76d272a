//! Hooks for a simulation of server, applications and device in one thread, with a clock of its own.
//!
//! This module exists only with `--cfg towpath_simulation`. The simulation runs the server's code
//! with [`run`]. Before each store into shared memory, at each reading of the clock, at most calls
//! of the device and wherever the server would sleep, control goes to the simulation's
//! [`Schedule`]. The schedule lets the other parties act in between, or ends the server at that
//! point ([`kill`]). What remains is what a killed process would leave: from then on, the server's
//! code stores nothing into shared memory.

extern crate std;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::prelude::v1::*;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A point at which control goes to the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The server is about to store a word into shared memory.
    Store,
    /// The server reads the clock.
    Clock,
    /// The server calls its device.
    Device,
}

/// Decides which party acts at each point.
pub trait Schedule {
    /// The server has come to a point.
    fn at(&self, point: Point);

    /// The server sleeps until `is_ready` returns `true`, or for `timeout` nanoseconds.
    fn sleep(&self, timeout: Option<u64>, is_ready: &dyn Fn() -> bool);
}

/// The party whose code this thread runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Party {
    /// An application, the device or the simulation itself.
    Other,
    Server,
    /// A server that was killed.
    Killed,
}

thread_local! {
    static PARTY: Cell<Party> = const { Cell::new(Party::Other) };
    static NOW: Cell<u64> = const { Cell::new(0) };
    static SCHEDULE: RefCell<Option<Rc<dyn Schedule>>> = const { RefCell::new(None) };
}

struct Killed;

/// Runs a server's code. Returns its value, or `None` if the schedule killed the server. The code
/// owns everything of the server, which ends with it.
pub fn run<T>(schedule: Rc<dyn Schedule>, server: impl FnOnce() -> T) -> Option<T> {
    SCHEDULE.set(Some(schedule));
    PARTY.set(Party::Server);
    let outcome = catch_unwind(AssertUnwindSafe(server));
    PARTY.set(Party::Other);
    SCHEDULE.set(None);
    match outcome {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Killed>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Kills the server. Only its schedule calls this.
pub fn kill() -> ! {
    PARTY.set(Party::Killed);
    resume_unwind(Box::new(Killed))
}

/// Gives control to the schedule, if the server's code runs.
pub fn pass(point: Point) {
    outside(|schedule| schedule.at(point));
}

/// Calls the schedule outside of the server's code.
fn outside(call: impl FnOnce(&dyn Schedule)) {
    if PARTY.get() != Party::Server {
        return;
    }
    let Some(schedule) = SCHEDULE.with_borrow(Clone::clone) else { return };
    PARTY.set(Party::Other);
    call(&*schedule);
    PARTY.set(Party::Server);
}

/// Passes the point before a store. Returns `false` if the store has no effect, because the server
/// is dead.
pub(crate) fn store() -> bool {
    pass(Point::Store);
    PARTY.get() != Party::Killed
}

/// Sleeps as [`Schedule::sleep`] says. Outside of a server's code, returns at once.
pub fn sleep(timeout: Option<u64>, is_ready: &dyn Fn() -> bool) {
    outside(|schedule| schedule.sleep(timeout, is_ready));
}

/// Returns the simulation's time, in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    NOW.get()
}

/// Sets the simulation's time, in nanoseconds.
pub fn set_now(now: u64) {
    NOW.set(now);
}

/// Returns the simulation's time as a point in time.
#[must_use]
pub fn instant() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_nanos(now())
}

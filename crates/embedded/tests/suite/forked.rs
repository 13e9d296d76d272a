//! Children made by `fork` from a program with a driver: each call returns at once, and the parent's driver continues.
//! Another thread of the parent is inside at the fork, and does not exist in the child.
//!
//! The unsafe code forks, and gives a child copies of the parent's values.

use std::os::fd::OwnedFd;
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use towpath_device::{Armed, Meta};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_embedded::{
    Config, Counts, Embedded, Protection, ReadError, Reader, ReaderCounts, SendError,
};

/// The time limit of a child. It only ends a child that hangs.
const LIMIT_S: u32 = 20;

/// ThreadSanitizer does not see the order that the library's mutex gives.
const WAYS: &[Protection] = if cfg!(towpath_tsan) {
    &[Protection::Optimistic]
} else {
    &[Protection::Optimistic, Protection::Mutex]
};

const PACKET: [u8; 60] = [0xff; 60];

/// Writes to a pipe on drop. The driver owns the witness, as a part of the program's function.
struct Witness(OwnedFd);

impl Drop for Witness {
    fn drop(&mut self) {
        rustix::io::write(&self.0, b"x").unwrap();
    }
}

/// A call in a child. Returns `true` if the outcome is right.
type Call = fn(Embedded, Reader) -> bool;

/// Each public method of a driver and a reader, and their drops.
const CALLS: [(&str, Call); 15] = [
    ("new", |inherited, _| {
        let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let driver = Embedded::new(Box::new(near), Config::default()).unwrap();
        std::mem::forget(inherited);
        driver.send(&PACKET) == Ok(()) && far.receive().is_some()
    }),
    ("with_readers", |inherited, _| {
        let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
        let made = Embedded::with_readers(Box::new(near), Config::default(), 1, |_| Some(0));
        let (driver, mut readers) = made.unwrap();
        std::mem::forget(inherited);
        driver.failure().is_none() && readers[0].read(1, |_, _| ()) == Ok(0)
    }),
    ("send", |driver, _| {
        driver.send(&PACKET) == Err(SendError::Forked)
            && driver.send(&[0; 1 << 16]) == Err(SendError::Forked)
            && SendError::Forked.to_string().contains("this process was forked")
    }),
    ("drive", |driver, _| driver.drive() == Some(0)),
    ("interrupt", |driver, _| driver.interrupt() == Armed::Work),
    ("take_events", |driver, _| driver.take_events()),
    ("sleep_fd", |driver, reader| {
        let _ = reader.sleep_fd();
        driver.sleep_fd().is_none()
    }),
    ("arm", |driver, mut reader| {
        driver.arm() == Some(Armed::Work) && reader.arm() == Err(ReadError::Forked)
    }),
    ("disarm", |driver, _| {
        driver.disarm();
        true
    }),
    ("reset", |driver, _| {
        driver.reset();
        true
    }),
    ("receive", |driver, _| driver.receive(32, |_, _| ()) == 0),
    ("counts", |driver, reader| {
        driver.counts() == Some(Counts::default()) && reader.counts() == ReaderCounts::default()
    }),
    ("failure", |driver, _| {
        let reason = || driver.failure().map(|error| error.to_string());
        let says = |reason: Option<String>| reason.is_some_and(|it| it.contains("was forked"));
        says(reason()) && says(reason())
    }),
    ("read", |_, mut reader| reader.read(1, |_: &[u8], _: Meta| ()) == Err(ReadError::Forked)),
    ("drop", |driver, reader| {
        drop((driver, reader));
        true
    }),
];

/// Runs `call` in a child, with copies of the parent's values. Returns the child's exit status; `None` if a signal
/// ended it.
fn in_child(driver: &Embedded, reader: &Reader, call: Call) -> Option<i32> {
    // SAFETY: the child makes calls that take no lock of another thread, then ends without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a timer of this process, whose signal ends it.
        unsafe { libc::alarm(LIMIT_S) };
        // SAFETY: the child's copies of the parent's values, which the child uses once.
        let copies = unsafe { (std::ptr::read(driver), std::ptr::read(reader)) };
        let call = std::panic::AssertUnwindSafe(|| call(copies.0, copies.1));
        let is_right = std::panic::catch_unwind(call).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of this process, and writes a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

fn is_readable(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn calls_in_a_child_return_at_once_and_leave_the_parents_driver() {
    for &way in WAYS {
        let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let mut far = DeviceFarEnd::new(Box::new(far));
        let (dropped, end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let witness = Witness(end);
        let ((enters, entered), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let choose = move |_: &[u8]| {
            let _ = &witness;
            enters.send(()).unwrap();
            released.recv().unwrap();
            Some(0)
        };
        let config = Config { write: way, read: way, ..Config::default() };
        let (driver, mut readers) =
            Embedded::with_readers(Box::new(near), config, 1, choose).unwrap();
        let mut reader = readers.pop().unwrap();
        let _ = driver.interrupt();
        assert!(far.send(&PACKET, Meta::FULL));
        let outcomes = std::thread::scope(|scope| {
            let inside = scope.spawn(|| driver.interrupt());
            entered.recv().unwrap();
            let outcomes = CALLS.map(|(name, call)| {
                (name, in_child(&driver, &reader, call), is_readable(&dropped))
            });
            release.send(()).unwrap();
            inside.join().unwrap();
            outcomes
        });
        for (name, status, has_dropped) in outcomes {
            assert_eq!(status, Some(0), "{way:?}: {name}");
            assert!(!has_dropped, "{way:?}: {name} drops the parent's device");
        }
        assert_eq!(reader.read(32, |bytes, _| assert_eq!(bytes, PACKET)), Ok(1));
        driver.send(&PACKET).unwrap();
        assert!(far.receive().is_some_and(|(bytes, _)| bytes == PACKET));
        assert!(driver.failure().is_none());
        let counts = driver.counts().unwrap();
        assert_eq!((counts.taken, counts.direct, counts.left, counts.resets), (1, 1, 0, 0));
        drop(driver);
        assert!(is_readable(&dropped), "the parent drops its device");
    }
}

#[test]
fn all_public_methods_are_called() {
    let called = |name: &str| CALLS.iter().any(|(call, _)| *call == name);
    let sources = [include_str!("../../src/lib.rs"), include_str!("../../src/reader.rs")];
    let mut methods = 0;
    for line in sources.iter().flat_map(|text| text.lines()) {
        let Some(rest) = line.strip_prefix("    pub fn ") else { continue };
        let name = rest.split(['(', '<']).next().unwrap();
        assert!(called(name), "the test calls {name} in no child");
        methods += 1;
    }
    assert!(methods >= CALLS.len(), "found only {methods} methods of a driver and a reader");
}

//! One driver for all threads of a program, without a server or an engine.
//!
//! Any thread may send, and any thread may reset the device. A thread that finds no other thread
//! inside drives the device with its own packet and with those that others left. A thread that
//! finds another one inside leaves its packet in a buffer of its own and continues
//! ([`towpath_queue::optimistic`]; Tracey and Banerji, 3.3). The program trusts itself: it needs no
//! rights, rules, protective copies or doorbells. The sending thread copies a packet once, into
//! memory that the device may access.
//!
//! The device gets the packets of one thread in the order in which that thread sent them. No thread
//! waits, but packets wait while the device is full or its link is down. The driver accepts packets
//! while it has buffers for them, and then returns [`SendError::WouldBlock`]. The next call of any
//! thread that finds room in the device submits the waiting packets. If no such call may come, one
//! thread drives for all, and sleeps on [`Embedded::sleep_fd`] meanwhile:
//!
//! ```no_run
//! # use towpath_device::Armed;
//! # use towpath_embedded::Embedded;
//! # fn sleep_on(_: Option<std::os::fd::BorrowedFd<'_>>) {}
//! # fn drive_for_all(embedded: &Embedded) {
//! loop {
//!     embedded.drive();
//!     while embedded.receive(32, |packet, _| println!("{} bytes", packet.len())) > 0 {}
//!     if embedded.arm() == Some(Armed::Sleep) {
//!         sleep_on(embedded.sleep_fd());
//!         embedded.disarm();
//!     }
//! }
//! # }
//! ```
//!
//! With [readers](Embedded::with_readers), one thread handles the device's interrupts, and each
//! reader's thread takes the packets that the program's function chose for it. If another thread is
//! inside at an interrupt, the interrupt's work is left to that thread, and the interrupt stays
//! masked until it is done:
//!
//! ```no_run
//! # use towpath_device::Armed;
//! # use towpath_embedded::Embedded;
//! # fn sleep_on(_: Option<std::os::fd::BorrowedFd<'_>>) {}
//! # fn handle_interrupts(embedded: &Embedded) {
//! loop {
//!     if embedded.interrupt() == Armed::Sleep {
//!         sleep_on(embedded.sleep_fd());
//!     }
//! }
//! # }
//! ```
//!
//! [`Config::write`] and [`Config::read`] choose a mutex instead, for the write path and for the
//! read path: then a thread waits while another one is inside.
//!
//! A driver and its readers belong to the process that made them. In a child made by `fork`, each
//! call returns at once, and neither a call nor a drop has an effect on the device. The thread
//! inside may not exist in the child, so a call that waited for that thread would never return.
//! [`Embedded::send`] fails with [`SendError::Forked`],
//! and [`Embedded::failure`] returns the reason. [`Reader::read`] and [`Reader::arm`] fail with
//! [`ReadError::Forked`]. No call receives a packet, and all counts are 0. Do not fork in a function
//! that [`Embedded::receive`] calls: the child would continue inside of the driver.

#![forbid(unsafe_code)]

mod config;
mod door;
mod driver;
mod packet;
mod reader;
mod reception;
mod sleep;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use towpath_device::{Armed, Device, DeviceError, Meta};
use towpath_memory::ForkGuard;

use config::FORKED;
pub use config::{Config, Counts, Protection, ReadError, ReaderCounts, SendError};
use door::{Door, INTERRUPT, RESET};
pub use driver::Driver;
pub use reader::Reader;
use reader::{Choose, Readers};

/// The most readers of a driver.
const MOST_READERS: usize = 1 << 10;

/// A device that any thread of the program may use.
pub struct Embedded {
    guard: ForkGuard,
    /// `Some` until the drop.
    door: Option<Door>,
    /// The device's name, for the error in a child made by `fork`.
    name: String,
    /// The longest packet that the driver sends, in bytes.
    longest: usize,
    /// The descriptor on which a thread sleeps.
    sleep: Option<OwnedFd>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("longest", &self.longest).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Starts a device.
    ///
    /// # Errors
    /// As [`Driver::new`], or when the system has no descriptor left.
    pub fn new(device: Box<dyn Device>, config: Config) -> Result<Embedded, DeviceError> {
        Embedded::start(device, config, None).map(|(embedded, _)| embedded)
    }

    /// Starts a device with `count` readers, at most 1024. `choose` returns the number of a
    /// received packet's reader; the driver drops a packet without one. The function runs inside of
    /// the driver, so it may not use the driver. If it panics, its packet is lost, and the panic
    /// goes on in the thread that did the work of the interrupt.
    ///
    /// # Errors
    /// As [`Embedded::new`], or when a number is out of its range.
    pub fn with_readers(
        device: Box<dyn Device>,
        config: Config,
        count: usize,
        choose: impl Fn(&[u8]) -> Option<usize> + Send + 'static,
    ) -> Result<(Embedded, Vec<Reader>), DeviceError> {
        Embedded::start(device, config, Some((count, Box::new(choose))))
    }

    fn start(
        device: Box<dyn Device>,
        config: Config,
        readers: Option<(usize, Choose)>,
    ) -> Result<(Embedded, Vec<Reader>), DeviceError> {
        let name = device.info().name.clone();
        let failed = |what: &'static str| {
            let name = name.clone();
            move |cause: io::Error| DeviceError::Failed { name, what, cause }
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let guard = ForkGuard::new().map_err(failed("the guard against forks"))?;
        let (mut driver, left) = Driver::with_left(device, config)?;
        let longest = driver.buffers.longest;
        let mut sleep = None;
        if let Some(device) = driver.sleep_fd() {
            let both = sleep::over(device, driver.event_fd());
            let (both, bell) = both.map_err(failed("descriptors to sleep on"))?;
            (sleep, driver.bell) = (Some(both), Some(bell));
        }
        let mut all = Vec::new();
        if let Some((count, choose)) = readers {
            let in_range = (1..=1 << 16).contains(&config.reader)
                && config.reader.is_power_of_two()
                && count <= MOST_READERS;
            let shape = (config.reader, driver.longest_received());
            let readers = if in_range {
                Readers::new(count, shape, config.read, choose, &guard)
            } else {
                Err(invalid())
            };
            let (readers, each) = readers.map_err(failed("readers"))?;
            driver.set_readers(readers);
            all = each;
        }
        let door = Door::new(config.write, left, driver);
        let door = door.ok_or_else(invalid).map_err(failed("numbers of buffers"))?;
        Ok((Embedded { guard, door: Some(door), name, longest, sleep }, all))
    }

    /// Returns the door; `None` in a child made by `fork`.
    #[inline]
    fn door(&self) -> Option<&Door> {
        if self.guard.is_parent() { self.door.as_ref() } else { None }
    }

    /// Sends a packet. This thread submits the packet itself when no other thread is inside, and
    /// else leaves the packet to the thread inside. The call never waits, except for a mutex. If
    /// the device has no room, or its link is down, the packet stays with the driver, after the
    /// packets that already wait, and a later call of any thread submits it. [`Embedded::drive`]
    /// returns how many packets wait. After [`Embedded::arm`], room in the device wakes a sleeping
    /// thread.
    ///
    /// # Errors
    /// [`SendError`]; then the packet is neither sent nor left.
    #[inline]
    pub fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let door = self.door().ok_or(SendError::Forked)?;
        let most = self.longest;
        if packet.len() > most {
            return Err(SendError::TooLong { len: packet.len(), most });
        }
        door.send(packet)
    }

    /// Submits waiting packets. Returns how many packets wait for the device or are in flight;
    /// `None` when another thread is inside, which does the work. In a child made by `fork`,
    /// returns 0.
    pub fn drive(&self) -> Option<usize> {
        let Some(door) = self.door() else { return Some(0) };
        let mut pending = None;
        door.drive(0, |driver, _| pending = Some(driver.pending())).resume();
        pending
    }

    /// Does the work of the device's interrupt: delivers received packets to their readers, at most
    /// 32 of them, takes completions, submits waiting packets, and unmasks the interrupt. One
    /// thread handles interrupts: it calls this before each sleep on [`Embedded::sleep_fd`].
    ///
    /// If another thread is inside, the call leaves the work to that thread, which does it before
    /// it leaves, and unmasks the interrupt, or wakes the sleeper if work is left.
    ///
    /// [`Armed::Sleep`]: the caller may sleep; [`Embedded::sleep_fd`] becomes readable when there
    /// is work. [`Armed::Work`]: call again; there is work already, the device failed, it must be
    /// polled, or this process is a child made by `fork`.
    pub fn interrupt(&self) -> Armed {
        let Some(door) = self.door() else { return Armed::Work };
        let service = door.drive(INTERRUPT, |_, _| ());
        // Another thread did the work, or will do it: then it has armed the device, or has notified.
        let otherwise = if self.sleep.is_some() { Armed::Sleep } else { Armed::Work };
        let armed = service.armed.unwrap_or(otherwise);
        service.resume();
        armed
    }

    /// Takes the device's events, so that packets wait while its link is down.
    /// [`Embedded::interrupt`] and [`Embedded::arm`] do that, too. Returns `false` when another
    /// thread is inside; call again.
    pub fn take_events(&self) -> bool {
        let Some(door) = self.door() else { return true };
        let mut taken = false;
        let take = |driver: &mut Driver, _| {
            driver.take_events();
            taken = true;
        };
        door.drive(0, take).resume();
        taken
    }

    /// Returns the descriptor that becomes readable when the device has packets, or room for
    /// waiting packets; `None` for a device that must be polled, and in a child made by `fork`. One
    /// thread at a time may sleep on the descriptor, after [`Embedded::arm`].
    #[must_use]
    pub fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().filter(|_| self.guard.is_parent()).map(AsFd::as_fd)
    }

    /// Submits waiting packets and requests wake-ups; the caller calls this before each sleep. The
    /// device wakes the caller for packets if the caller called [`Embedded::receive`] until it
    /// returned 0. If packets wait for room, the device wakes the caller for room, also for packets
    /// that other threads send meanwhile.
    ///
    /// [`Armed::Sleep`]: [`Embedded::sleep_fd`] becomes readable when there is work.
    /// [`Armed::Work`]: there is work already, the device failed, it must be polled, or this process
    /// is a child made by `fork`. `None`: another thread is inside; call again.
    pub fn arm(&self) -> Option<Armed> {
        let Some(door) = self.door() else { return Some(Armed::Work) };
        let mut armed = None;
        door.drive(0, |driver, _| armed = Some(driver.arm())).resume();
        armed
    }

    /// Tells other calls that the caller is awake again, after a sleep that [`Embedded::arm`]
    /// allowed. The call is optional. Without it, the next packet that a thread sends before the
    /// next [`Embedded::arm`] notifies the caller, which costs two system calls.
    pub fn disarm(&self) {
        // A thread inside may notify the caller although the caller is awake. That does no harm.
        let _ = self.door().and_then(|door| door.enter(Driver::disarm));
    }

    /// Resets the device now; if another thread is inside, that thread resets it before it leaves.
    pub fn reset(&self) {
        if let Some(door) = self.door() {
            door.drive(RESET, |_, _| ()).resume();
        }
    }

    /// Receives at most `budget` packets, and at most 32, in a program without readers. Returns
    /// their number, which is 0 also when another thread is inside. `each` may send. If it panics,
    /// its packet is received, and the next call goes on with the packets behind it. The first call
    /// gives the device its receive buffers; the device drops packets that arrive before it.
    ///
    /// With [`Protection::Mutex`], the call takes the mutex for each packet, and waits for it. It
    /// returns 0 when another thread receives.
    pub fn receive(&self, budget: usize, each: impl FnMut(&[u8], Meta)) -> usize {
        self.door().map_or(0, |door| door.receive(budget, each))
    }

    /// Returns the counts; `None` when another thread is inside.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        let Some(door) = self.door() else { return Some(Counts::default()) };
        let mut counts = None;
        let count = |driver: &mut Driver, entered| {
            counts = Some(Counts { entered, ..driver.counts() });
        };
        door.drive(0, count).resume();
        counts.map(|counts| Counts { left: door.left(), ..counts })
    }

    /// Takes the device's failure; `None` when the device did not fail, or another thread is
    /// inside. In a child made by `fork`, each call returns an error that says so.
    pub fn failure(&self) -> Option<DeviceError> {
        let Some(door) = self.door() else {
            let cause = io::Error::new(io::ErrorKind::NotConnected, FORKED);
            return Some(DeviceError::Failed { name: self.name.clone(), what: "a call", cause });
        };
        let mut failure = None;
        let take = |driver: &mut Driver, _| failure = failure.take().or(driver.failure.take());
        door.drive(0, take).resume();
        failure
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if !self.guard.is_parent() {
            // The device belongs to the parent, and a drop here could stop the device.
            std::mem::forget(self.door.take());
        }
    }
}

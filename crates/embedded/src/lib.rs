//! One driver for all threads of a program, without a server, an engine or a lock.
//!
//! Any thread may send, and any thread may reset the device. A thread that finds no other thread
//! inside drives the device with its own packet and with those that others left. A thread that
//! finds another one inside leaves its packet in a buffer of its own and continues
//! ([`towpath_queue::optimistic`]; Tracey and Banerji, 3.3). The program trusts itself: it needs no
//! rights, rules, protective copies or doorbells. The sending thread copies a packet once, into
//! memory that the device may access.
//!
//! The device gets the packets of one thread in the order in which that thread sent them. No thread
//! waits, but packets wait while the device is full. The driver accepts packets while it has
//! buffers for them, and then returns [`SendError::WouldBlock`]. The next call of any thread that
//! finds room in the device submits the waiting packets. If no such call may come, one thread
//! drives for all, and sleeps on [`Embedded::sleep_fd`] meanwhile:
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

#![forbid(unsafe_code)]

mod driver;
mod sleep;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use towpath_device::{Armed, Device, DeviceError, Meta};
use towpath_memory::Region;
use towpath_queue::optimistic::{Entered, Left, Optimistic};

pub use driver::Driver;
use driver::write_left;

/// The only request that a thread can leave.
const RESET: u64 = 1;

/// The numbers of a driver's buffers.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Packets that threads may leave, a power of two up to 65 536.
    pub left: u32,
    /// Packets of threads inside that may wait for the device, 1 to 65 536.
    pub own: u32,
    /// Buffers to receive into, 1 to 65 536.
    pub receive: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { left: 256, own: 256, receive: 256 }
    }
}

/// The reason why the driver did not send a packet. The packet stays with the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no room now.
    #[error("no room; drive the device, and send again")]
    WouldBlock,
    /// The packet is longer than the device takes.
    #[error("{len} bytes; the device takes at most {most}")]
    TooLong {
        /// The packet's length, in bytes.
        len: usize,
        /// The longest packet, in bytes.
        most: usize,
    },
    /// The device failed; [`Embedded::failure`] returns the reason. A reset may repair it.
    #[error("the device failed")]
    Failed,
}

/// The counts of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the thread inside sent itself.
    pub direct: u64,
    /// Packets that other threads left for the thread inside.
    pub left: u64,
    /// Packets that the device took.
    pub taken: u64,
    /// Packets that the device completed.
    pub returned: u64,
    /// Of these, the packets that the device had not sent when it was reset.
    pub lost: u64,
    /// Times that a thread entered.
    pub entered: u64,
    /// Resets.
    pub resets: u64,
    /// The device's counters.
    pub device: towpath_device::Counters,
}

/// A device that any thread of the program may use.
#[derive(Debug)]
pub struct Embedded {
    section: Optimistic<Driver, Region>,
    /// The longest packet that the driver sends, in bytes.
    longest: usize,
    /// The descriptor on which a thread sleeps.
    sleep: Option<OwnedFd>,
}

impl Embedded {
    /// Starts a device.
    ///
    /// # Errors
    /// As [`Driver::new`], or when the system has no descriptor left.
    pub fn new(device: Box<dyn Device>, config: Config) -> Result<Embedded, DeviceError> {
        let name = device.info().name.clone();
        let (mut driver, left) = Driver::with_left(device, config)?;
        let longest = driver.buffers.longest;
        let mut sleep = None;
        if let Some(device) = driver.sleep_fd() {
            let (both, bell) = sleep::over(device).map_err(|cause| DeviceError::Failed {
                name: name.clone(),
                what: "descriptors to sleep on",
                cause,
            })?;
            (sleep, driver.bell) = (Some(both), Some(bell));
        }
        let section = Optimistic::with_memory(left, driver).ok_or_else(|| {
            let cause = io::Error::from(io::ErrorKind::InvalidInput);
            DeviceError::Failed { name, what: "numbers of buffers", cause }
        })?;
        Ok(Embedded { section, longest, sleep })
    }

    /// Sends a packet. This thread submits the packet itself when no other thread is inside, and
    /// else leaves the packet to the thread inside. The call never waits. If the device has no
    /// room, the packet stays with the driver, after the packets that already wait, and a later
    /// call of any thread submits it. [`Embedded::drive`] returns how many packets wait. After
    /// [`Embedded::arm`], room in the device wakes a sleeping thread.
    ///
    /// # Errors
    /// [`SendError`]; then the packet is neither sent nor left.
    pub fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let most = self.longest;
        if packet.len() > most {
            return Err(SendError::TooLong { len: packet.len(), most });
        }
        let Some(mut entered) = self.section.try_enter() else {
            let mut leaving = self.section.leave().ok_or(SendError::WouldBlock)?;
            leaving.write(|buffer| write_left(buffer, packet));
            leaving.publish();
            self.section.drive(pump);
            return Ok(());
        };
        reset_on_request(&mut entered);
        entered.state().collect_due();
        take_left(&mut entered);
        let outcome = if entered.is_nothing_left() {
            entered.state().send_next(packet)
        } else if let Some(mut leaving) = entered.leave() {
            // Another thread is still writing a packet, after which this thread may have left
            // earlier packets. So this packet goes after that one too.
            leaving.write(|buffer| write_left(buffer, packet));
            leaving.publish();
            pump(&mut entered);
            Ok(())
        } else {
            entered.state().flush();
            Err(SendError::WouldBlock)
        };
        release_completed(&mut entered);
        let took_all = !entered.state().has_waiting();
        self.exit(entered, took_all);
        outcome
    }

    /// Exits the section, and does the work that other threads left meanwhile, unless the device
    /// could not take all packets.
    fn exit(&self, entered: Entered<'_, Driver, Region>, took_all: bool) {
        match entered.exit() {
            Left::Nothing => {}
            Left::Work if !took_all => {}
            Left::Work | Left::Requests => {
                self.section.drive(pump);
            }
        }
    }

    /// Submits waiting packets. Returns how many packets wait for the device or are in flight;
    /// `None` when another thread is inside, which does the work.
    pub fn drive(&self) -> Option<usize> {
        let mut pending = None;
        self.section.drive(|entered| {
            let took_all = pump(entered);
            pending = Some(entered.state().pending());
            took_all
        });
        pending
    }

    /// Returns the descriptor that becomes readable when the device has packets, or room for
    /// waiting packets; `None` for a device that must be polled. One thread at a time may sleep on
    /// the descriptor, after [`Embedded::arm`].
    #[must_use]
    pub fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(AsFd::as_fd)
    }

    /// Submits waiting packets and requests wake-ups; the caller calls this before each sleep. The
    /// device wakes the caller for packets if the caller called [`Embedded::receive`] until it
    /// returned 0. If packets wait for room, the device wakes the caller for room, also for packets
    /// that other threads send meanwhile.
    ///
    /// [`Armed::Sleep`]: [`Embedded::sleep_fd`] becomes readable when there is work.
    /// [`Armed::Work`]: there is work already, the device failed, or it must be polled. `None`:
    /// another thread is inside; call again.
    pub fn arm(&self) -> Option<Armed> {
        let mut armed = None;
        self.section.drive(|entered| {
            let took_all = pump(entered);
            armed = Some(entered.state().arm());
            took_all
        });
        armed
    }

    /// Tells other calls that the caller is awake again, after a sleep that [`Embedded::arm`]
    /// allowed. The call is optional. Without it, the next packet that a thread sends before the
    /// next [`Embedded::arm`] notifies the caller, which costs two system calls.
    pub fn disarm(&self) {
        // A thread inside may notify the caller although the caller is awake. That does no harm.
        let Some(mut entered) = self.section.try_enter() else { return };
        entered.state().disarm();
        let took_all = !entered.state().has_waiting();
        self.exit(entered, took_all);
    }

    /// Resets the device now; if another thread is inside, that thread resets it before it leaves.
    pub fn reset(&self) {
        self.section.request(RESET);
        self.section.drive(pump);
    }

    /// Receives at most `budget` packets, and at most 32. Returns their number, which is 0 also
    /// when another thread is inside. `each` may send. The first call gives the device its receive
    /// buffers; the device drops packets that arrive before it.
    pub fn receive(&self, budget: usize, each: impl FnMut(&[u8], Meta)) -> usize {
        let Some(mut entered) = self.section.try_enter() else { return 0 };
        let took_all = pump(&mut entered);
        let received = entered.state().receive(budget, each);
        self.exit(entered, took_all);
        received
    }

    /// Returns the counts; `None` when another thread is inside.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        let mut counts = None;
        self.section.drive(|entered| {
            let took_all = pump(entered);
            let times = entered.entered();
            counts = Some(Counts { entered: times, ..entered.state().counts() });
            took_all
        });
        counts.map(|counts| Counts { left: self.section.left(), ..counts })
    }

    /// Takes the device's failure; `None` when the device did not fail, or another thread is
    /// inside.
    pub fn failure(&self) -> Option<DeviceError> {
        let mut failure = None;
        self.section.drive(|entered| {
            let took_all = pump(entered);
            failure = failure.take().or_else(|| entered.state().failure.take());
            took_all
        });
        failure
    }
}

/// Does the work that comes first for each holder: requests, completions, packets that other
/// threads left, and waiting packets. Returns whether the device took all of them.
fn pump(entered: &mut Entered<'_, Driver, Region>) -> bool {
    reset_on_request(entered);
    entered.state().collect();
    take_left(entered);
    entered.state().flush()
}

fn reset_on_request(entered: &mut Entered<'_, Driver, Region>) {
    if entered.requests() & RESET != 0 {
        entered.state().reset();
    }
}

/// Releases the slots of completed packets, then takes the packets that other threads left.
fn take_left(entered: &mut Entered<'_, Driver, Region>) {
    release_completed(entered);
    while let Some(slot) = entered.take() {
        entered.state().add_left(slot);
    }
}

/// Releases the slots of completed packets, since the driver cannot reach the section.
fn release_completed(entered: &mut Entered<'_, Driver, Region>) {
    while let Some(slot) = entered.state().slots.pop() {
        entered.release(slot);
    }
}

//! One driver for all threads of a program, without a server, an engine or a lock.
//!
//! Any thread sends, and any thread may reset the device. Who finds nobody inside drives the device
//! with its own packet and with what others left; who finds somebody inside leaves its packet in a
//! frame of its own and goes on ([`towpath_queue::optimistic`]; Tracey and Banerji, 3.3). The
//! program is one, and trusts itself: there are no rights, rules or copies for trust here, and no
//! doorbells. A packet is copied once, into memory that the device may reach.
//!
//! Packets of one thread go to the device in the order in which it sent them. No thread waits, but
//! packets do where the device is full: as long as there are frames for them they are taken, and when
//! there are none, [`SendError::WouldBlock`] says so. What waits goes on with the next call of any
//! thread that finds the device with room. Where none may come, one thread drives for all, and sleeps
//! on [`Embedded::sleep_fd`] meanwhile:
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
//!     }
//! }
//! # }
//! ```

mod driver;
mod sleep;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use towpath_device::{Armed, Device, DeviceError, Meta};
use towpath_memory::Region;
use towpath_queue::optimistic::{Entered, Left, Optimistic};

pub use driver::Driver;
use driver::write;

/// The one request that can be left.
const RESET: u64 = 1;

/// How much memory a driver has.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Packets that threads may have left, a power of two up to 65 536.
    pub left: u32,
    /// Packets of those that were inside themselves that may wait for the device, 1 to 65 536.
    pub own: u32,
    /// Frames to receive into, 1 to 65 536.
    pub receive: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { left: 256, own: 256, receive: 256 }
    }
}

/// Why a packet was not sent. It was not, and may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room now.
    #[error("no room; drive the device, and send again")]
    WouldBlock,
    /// Longer than the device takes.
    #[error("{len} bytes; the device takes at most {most}")]
    TooLong {
        /// The packet's length, in bytes.
        len: usize,
        /// The most, in bytes.
        most: usize,
    },
    /// The device failed, [`Embedded::failure`] says how; a reset may mend it.
    #[error("the device failed")]
    Failed,
}

/// What a driver counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were sent by the thread that was inside.
    pub direct: u64,
    /// Packets that were left for it.
    pub left: u64,
    /// Packets that the device took.
    pub taken: u64,
    /// Packets that it is done with.
    pub returned: u64,
    /// Of these, those that it had not sent when it was reset.
    pub lost: u64,
    /// Times that a thread went in.
    pub entered: u64,
    /// Resets.
    pub resets: u64,
    /// What the device counted.
    pub device: towpath_device::Counters,
}

/// A device that any thread of the program may use.
#[derive(Debug)]
pub struct Embedded {
    section: Optimistic<Driver, Region>,
    /// The longest packet that is sent, in bytes.
    longest: usize,
    /// What a thread sleeps on.
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
        let longest = driver.frames.longest;
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
            DeviceError::Failed { name, what: "numbers of frames", cause }
        })?;
        Ok(Embedded { section, longest, sleep })
    }

    /// Sends a packet: by itself when nobody is inside, else by leaving it to who is. Never waits.
    /// The packet is taken then, and goes to the device now if that has room, or else, behind what
    /// waits already, with a later call of any thread: [`Embedded::drive`] says whether anything
    /// waits, and [`Embedded::arm`] sees to it that who sleeps hears of room for it.
    ///
    /// # Errors
    /// [`SendError`]; the packet is not sent then, and not left.
    pub fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let most = self.longest;
        if packet.len() > most {
            return Err(SendError::TooLong { len: packet.len(), most });
        }
        let Some(mut entered) = self.section.try_enter() else {
            let mut leaving = self.section.leave().ok_or(SendError::WouldBlock)?;
            leaving.write(|frame| write(frame, 0, packet));
            leaving.publish();
            self.section.drive(pump);
            return Ok(());
        };
        let mut could = pump(&mut entered);
        let outcome = if entered.is_nothing_left() {
            entered.state().send(packet)
        } else if let Some(mut leaving) = entered.leave() {
            // Something is being written that a packet of this thread may be behind: this one goes
            // behind it as well.
            leaving.write(|frame| write(frame, 0, packet));
            leaving.publish();
            could = pump(&mut entered);
            Ok(())
        } else {
            Err(SendError::WouldBlock)
        };
        match entered.exit() {
            Left::Nothing => {}
            Left::Work if !could => {}
            Left::Work | Left::Requests => {
                self.section.drive(pump);
            }
        }
        outcome
    }

    /// Goes on with what waits. Answers how many packets wait for the device or are with it; `None`
    /// when another thread is inside, which does it.
    pub fn drive(&self) -> Option<usize> {
        let mut pending = None;
        self.section.drive(|entered| {
            let could = pump(entered);
            pending = Some(entered.state().pending());
            could
        });
        pending
    }

    /// What becomes readable when the device has packets, or room for what waits; `None` for a device
    /// that must be polled. One thread at a time may sleep on it, after [`Embedded::arm`].
    #[must_use]
    pub fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(AsFd::as_fd)
    }

    /// Before each sleep: goes on with what waits, and asks to be woken for packets, if
    /// [`Embedded::receive`] was called until it answered 0, and for room, if packets wait for it, also
    /// those that other threads send meanwhile. [`Armed::Sleep`]: [`Embedded::sleep_fd`] becomes
    /// readable when there is something to do. [`Armed::Work`]: there is already, the device failed,
    /// or it must be polled. `None`: another thread is inside; call again.
    pub fn arm(&self) -> Option<Armed> {
        let mut armed = None;
        self.section.drive(|entered| {
            let could = pump(entered);
            armed = Some(entered.state().arm());
            could
        });
        armed
    }

    /// Has the device reset, now or by who is inside, before it goes.
    pub fn reset(&self) {
        self.section.request(RESET);
        self.section.drive(pump);
    }

    /// Receives at most `budget` packets, and no more than 32; 0 also when another thread is inside.
    /// `each` may send.
    pub fn receive(&self, budget: usize, each: impl FnMut(&[u8], Meta)) -> usize {
        let Some(mut entered) = self.section.try_enter() else { return 0 };
        let could = pump(&mut entered);
        let received = entered.state().receive(budget, each);
        match entered.exit() {
            Left::Nothing => {}
            Left::Work if !could => {}
            Left::Work | Left::Requests => {
                self.section.drive(pump);
            }
        }
        received
    }

    /// What was counted; `None` when another thread is inside.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        let mut counts = None;
        self.section.drive(|entered| {
            let could = pump(entered);
            let times = entered.entered();
            counts = Some(Counts { entered: times, ..entered.state().counts() });
            could
        });
        counts.map(|counts| Counts { left: self.section.left(), ..counts })
    }

    /// Takes what the device failed with; `None` when it did not, or another thread is inside.
    pub fn failure(&self) -> Option<DeviceError> {
        let mut failure = None;
        self.section.drive(|entered| {
            let could = pump(entered);
            failure = failure.take().or_else(|| entered.state().failure.take());
            could
        });
        failure
    }
}

/// What whoever is inside does before all else: requests, what the device is done with, what was
/// left, and what it has room for. Answers whether all went.
fn pump(entered: &mut Entered<'_, Driver, Region>) -> bool {
    if entered.requests() & RESET != 0 {
        entered.state().reset();
    }
    entered.state().collect();
    // Slots go back to the queue, which is not the driver's to reach.
    while let Some(slot) = entered.state().slots.pop() {
        entered.release(slot);
    }
    while let Some(slot) = entered.take() {
        entered.state().waiting.push_back(slot);
    }
    entered.state().flush()
}

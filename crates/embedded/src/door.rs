//! The protection of the write path: an optimistic section or a mutex around the driver.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use towpath_device::{Armed, Meta};
use towpath_memory::Region;
use towpath_queue::optimistic::{Entered, Left, Optimistic};

use crate::driver::{Driver, write_left};
use crate::packet::Packet;
use crate::reception::Panic;
use crate::{Protection, SendError};

/// The requests that a thread can leave: to reset the device, and to do an interrupt's work.
pub(crate) const RESET: u64 = 1;
pub(crate) const INTERRUPT: u64 = 2;

pub(crate) enum Door {
    Optimistic(Box<Optimistic<Driver, Region>>),
    Mutex(Box<Locked>),
}

type Inside<'a> = Entered<'a, Driver, Region>;

/// What a thread does of an interrupt's work during one stay inside.
#[derive(Default)]
pub(crate) struct Service {
    /// `true` if the thread handles interrupts itself, and left the request.
    is_own: bool,
    /// `true` if an interrupt's work is left to this thread.
    is_due: bool,
    /// The answer of the device that this thread armed.
    pub(crate) armed: Option<Armed>,
    panic: Option<Panic>,
}

impl Service {
    /// Resets the device if a thread left that request, and notes that for an interrupt's work.
    fn follow(&mut self, requests: u64, driver: &mut Driver) {
        self.is_due |= requests & INTERRUPT != 0;
        if requests & RESET != 0 {
            driver.reset();
        }
    }

    /// Does an interrupt's work if it is due, after all other work: the device is armed last. A
    /// thread does it once per stay, and then calls the thread whose work it is.
    fn interrupt(&mut self, driver: &mut Driver) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        if self.armed.is_some() {
            driver.call_back();
            return;
        }
        driver.counts_mut().interrupts_left += u64::from(!self.is_own);
        let armed = driver.interrupt();
        if !self.is_own && armed == Armed::Work {
            driver.call_back();
        }
        self.armed = Some(armed);
        self.panic = driver.take_panic().or(self.panic.take());
    }

    /// Continues a panic of the program's function, once no thread depends on this one.
    pub(crate) fn resume(self) {
        if let Some(panic) = self.panic {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Door {
    pub(crate) fn new(write: Protection, left: Vec<Region>, driver: Driver) -> Option<Door> {
        match write {
            Protection::Optimistic => {
                let section = Optimistic::with_memory(left, driver)?;
                Some(Door::Optimistic(Box::new(section)))
            }
            Protection::Mutex => Some(Door::Mutex(Box::new(Locked {
                driver: Mutex::new(driver),
                packet: Mutex::new(Packet::default()),
            }))),
        }
    }

    /// Sends a packet, or leaves it to the thread inside.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        match self {
            Door::Optimistic(section) => send_by(section, packet),
            Door::Mutex(locked) => {
                let mut driver = locked.lock();
                driver.collect_due();
                driver.send_next(packet)
            }
        }
    }

    /// Leaves requests, if a thread can, and does what is left, then `work`, unless another thread
    /// is inside. With a mutex this waits for the other thread.
    pub(crate) fn drive(&self, requests: u64, mut work: impl FnMut(&mut Driver, u64)) -> Service {
        let mut service = Service { is_own: requests & INTERRUPT != 0, ..Service::default() };
        match self {
            Door::Optimistic(section) => {
                if requests != 0 {
                    section.request(requests);
                }
                drive(section, &mut service, &mut work);
            }
            Door::Mutex(locked) => {
                let mut driver = locked.lock();
                service.follow(requests, &mut driver);
                driver.collect();
                driver.flush();
                service.interrupt(&mut driver);
                let entered = driver.counts().entered;
                work(&mut driver, entered);
            }
        }
        service
    }

    /// Lets `work` use the driver if no other thread is inside; with a mutex this waits.
    pub(crate) fn enter<T>(&self, work: impl FnOnce(&mut Driver) -> T) -> Option<T> {
        match self {
            Door::Optimistic(section) => {
                let mut entered = section.try_enter()?;
                entered.state().begin();
                let done = work(entered.state());
                exit(section, entered, Service::default());
                Some(done)
            }
            Door::Mutex(locked) => Some(work(&mut locked.lock())),
        }
    }

    /// Receives at most `budget` packets, and at most one batch.
    pub(crate) fn receive(&self, budget: usize, mut each: impl FnMut(&[u8], Meta)) -> usize {
        let section = match self {
            Door::Mutex(locked) => return locked.receive(budget, each),
            Door::Optimistic(section) => section,
        };
        let Some(mut entered) = section.try_enter() else { return 0 };
        entered.state().begin();
        let mut service = Service::default();
        pump(&mut entered, &mut service);
        let mut panic = None;
        let received = entered.state().receive_while(budget, |packet, meta| {
            // A panic of the program's function leaves the driver as it is, and the work of other
            // threads must be done.
            let call = std::panic::AssertUnwindSafe(|| each(packet, meta));
            panic = std::panic::catch_unwind(call).err();
            panic.is_none()
        });
        service.panic = panic.or(service.panic.take());
        exit(section, entered, service);
        received
    }

    /// Returns how many packets threads have left so far.
    pub(crate) fn left(&self) -> u64 {
        match self {
            Door::Optimistic(section) => section.left(),
            Door::Mutex(_) => 0,
        }
    }
}

/// Sends a packet from inside, or leaves it.
fn send_by(section: &Optimistic<Driver, Region>, packet: &[u8]) -> Result<(), SendError> {
    let mut service = Service::default();
    let Some(mut entered) = section.try_enter() else {
        let mut leaving = section.leave().ok_or(SendError::WouldBlock)?;
        leaving.write(|buffer| write_left(buffer, packet));
        leaving.publish();
        drive(section, &mut service, &mut |_, _| ());
        service.resume();
        return Ok(());
    };
    entered.state().begin();
    follow_requests(&mut entered, &mut service);
    entered.state().collect_due();
    take_left(&mut entered);
    let outcome = if entered.is_nothing_left() {
        entered.state().send_next(packet)
    } else if let Some(mut leaving) = entered.leave() {
        // Another thread is still writing a packet, after which this thread may have left
        // earlier packets. So this packet goes after that one too.
        leaving.write(|buffer| write_left(buffer, packet));
        leaving.publish();
        pump(&mut entered, &mut service);
        Ok(())
    } else {
        entered.state().flush();
        Err(SendError::WouldBlock)
    };
    release_completed(&mut entered);
    if service.is_due {
        pump(&mut entered, &mut service);
    }
    exit(section, entered, service);
    outcome
}

/// Exits the section, and does the work that other threads left meanwhile, unless the device could
/// not take all packets.
fn exit(section: &Optimistic<Driver, Region>, mut entered: Inside<'_>, mut service: Service) {
    let took_all = !entered.state().has_waiting();
    entered.state().end();
    match entered.exit() {
        Left::Nothing => {}
        Left::Work if !took_all => {}
        Left::Work | Left::Requests => drive(section, &mut service, &mut |_, _| ()),
    }
    service.resume();
}

fn drive(
    section: &Optimistic<Driver, Region>,
    service: &mut Service,
    work: &mut dyn FnMut(&mut Driver, u64),
) {
    section.drive(|entered| {
        entered.state().begin();
        pump(entered, service);
        let times = entered.entered();
        work(entered.state(), times);
        entered.state().end();
        // Also by now: an interrupt's work may have found the link up, and submitted what waited.
        !entered.state().has_waiting()
    });
}

/// Does the work that comes first for each holder: requests, completions, packets that other
/// threads left, and waiting packets.
fn pump(entered: &mut Inside<'_>, service: &mut Service) {
    follow_requests(entered, service);
    entered.state().collect();
    take_left(entered);
    entered.state().flush();
    service.interrupt(entered.state());
}

fn follow_requests(entered: &mut Inside<'_>, service: &mut Service) {
    let requests = entered.requests();
    if requests != 0 {
        service.follow(requests, entered.state());
    }
}

/// Releases the slots of completed packets, then takes the packets that other threads left.
fn take_left(entered: &mut Inside<'_>) {
    release_completed(entered);
    while let Some(slot) = entered.take() {
        entered.state().add_left(slot);
    }
}

/// Releases the slots of completed packets, since the driver cannot reach the section.
fn release_completed(entered: &mut Inside<'_>) {
    while let Some(slot) = entered.state().slots.pop() {
        entered.release(slot);
    }
}

/// A driver behind a mutex.
pub(crate) struct Locked {
    driver: Mutex<Driver>,
    /// The packet that a thread is receiving, outside of the mutex: it may send meanwhile.
    packet: Mutex<Packet>,
}

impl Locked {
    fn lock(&self) -> MutexGuard<'_, Driver> {
        let mut waited = None;
        let locked = match self.driver.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let begun = Instant::now();
                let locked = self.driver.lock();
                waited = Some(begun.elapsed());
                locked
            }
            Ok(driver) => Ok(driver),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
        };
        let mut driver = locked.unwrap_or_else(|poisoned| {
            self.driver.clear_poison();
            let mut driver = PoisonError::into_inner(poisoned);
            driver.fail_after_panic();
            driver
        });
        let counts = driver.counts_mut();
        counts.entered += 1;
        if let Some(waited) = waited {
            counts.contended += 1;
            counts.blocked_ns += waited.as_nanos() as u64;
        }
        driver
    }

    /// Receives as [`Door::receive`] does. Takes the mutex for each packet, and calls `each`
    /// without it. Returns 0 while another thread receives.
    fn receive(&self, budget: usize, mut each: impl FnMut(&[u8], Meta)) -> usize {
        let mut packet = match self.packet.try_lock() {
            Ok(packet) => packet,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let mut received = 0;
        while received < budget {
            let mut driver = self.lock();
            if received == 0 {
                driver.collect();
                driver.flush();
                driver.fetch(budget);
            }
            let Some(is_whole) = driver.next_packet() else { break };
            driver.exchange_packet(&mut packet);
            drop(driver);
            received += 1;
            if is_whole {
                each(packet.bytes(), packet.meta());
            }
        }
        received
    }
}

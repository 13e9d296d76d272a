//! Driving a network: frames in, frames out, timers.
//!
//! The holder of the link's lock may drive: the library's thread, a thread that has just written,
//! or a thread that is blocked while no library thread drives ([`Standby`]).

mod blocking;
mod closing_ports;
mod ending;
mod handing_over;
mod ports;
mod sleeping;
mod turns;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError};

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use towpath_stack::{Instant, Meta, SocketId, Stack, Transmit};

use crate::clock::Clock;
use crate::link_input::{receive_some, revoke_ports};
use crate::lock::lock;
use crate::readiness::Ready;
use crate::replacing::{self, Replacing};
use crate::spinning::Spinning;
use crate::standby::Standby;
use crate::wait::{ToTell, Waiter};
use crate::work_fd::{NEVER, WorkFd};
use crate::{Link, LinkError, PortProtocol, error};
use closing_ports::ClosingPorts;

/// The maximum number of rounds that a sending thread makes before the driver has to take over.
const KICK_ROUNDS: usize = 4;
/// The value of `sleeps_until` for a driver that is awake.
const AWAKE: u64 = 0;

/// State under the stack's lock.
pub(crate) struct Core {
    pub(crate) stack: Stack,
    pub(crate) waiters: std::collections::HashMap<SocketId, Arc<Waiter>>,
    /// The reason why the link is dead.
    pub(crate) dead: Option<LinkError>,
    /// Which threads drive.
    pub(crate) standby: Standby,
    /// In a network without a library thread: an entry for each thread that waits while another one
    /// drives.
    followers: Vec<Arc<Waiter>>,
    /// `true` if one of those was woken to drive, and is not awake yet.
    succeeding: bool,
    /// The waiters of [`SharedNetwork::drive`], which ends with the turn of any thread.
    turn_ends: Vec<Arc<Waiter>>,
    telling: ToTell,
    /// The ports of closed UDP sockets whose datagrams still wait.
    closing_ports: ClosingPorts,
    pub(crate) replacing: Replacing,
}

impl Core {
    /// Returns the time at which work is due without a received frame, if there is such a time.
    fn due_at(&self, now: Instant) -> Option<Instant> {
        let check_at = self.closing_ports.check_at(now);
        self.stack.poll_at(now).into_iter().chain(check_at).chain(self.replacing.check_at()).min()
    }

    /// Returns what a socket is ready for.
    fn readiness(&mut self, id: SocketId) -> Ready {
        if self.dead.is_some() { Ready::DEAD } else { readiness(&mut self.stack, id) }
    }
}

/// Returns what a socket is ready for. The stack then reports the next change.
fn readiness(stack: &mut Stack, id: SocketId) -> Ready {
    let readiness = match id {
        SocketId::Tcp(id) => stack.tcp_readiness(id),
        SocketId::Listener(id) => stack.tcp_listener_readiness(id),
        SocketId::Udp(id) => stack.udp_readiness(id),
    };
    readiness.map_or(Ready::DEAD, Ready::of)
}

/// State that all handles of a network share.
pub(crate) struct SharedNetwork {
    core: Mutex<Core>,
    link: Mutex<Box<dyn Link>>,
    pub(crate) clock: Clock,
    /// `true` if frames wait to be sent, and the holder of the link's lock must send them.
    pending: AtomicBool,
    /// The end of the driver's sleep, in microseconds of the clock.
    sleeps_until: AtomicU64,
    /// The last wake-up time set for the driver.
    kept: AtomicU64,
    /// The number of sleeps of threads that drive.
    sleeps: AtomicU64,
    pub(crate) spinning: Mutex<Spinning>,
    /// Ends the driver's sleep.
    wake: OwnedFd,
    /// Wakes the library's thread while it stands by.
    stands_by: Condvar,
    link_fd: OwnedFd,
    /// What a program's event loop waits for, once it has asked for that.
    external: OnceLock<WorkFd>,
    pub(crate) closing: AtomicBool,
    pub(crate) threaded: bool,
    /// `true` if the network must have the link open each local port.
    opens_ports: bool,
}

/// Adapts the link to the stack.
struct LinkTransmit<'a>(&'a mut dyn Link);

impl Transmit for LinkTransmit<'_> {
    fn room(&mut self, len: usize) -> bool {
        self.0.room(len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut fill = Some(fill);
        self.0.transmit(len, meta, &mut |frame| {
            if let Some(fill) = fill.take() {
                fill(frame);
            }
        })
    }
}

impl SharedNetwork {
    pub(crate) fn new(
        mut link: Box<dyn Link>,
        stack: Stack,
        clock: Clock,
        threaded: bool,
    ) -> std::io::Result<Self> {
        let (link_fd, opens_ports) = (link.sleep_fd()?, link.opens_ports());
        let is_shared = link.replacement().is_some_and(|one| one.is_shared());
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(SharedNetwork {
            core: Mutex::new(Core {
                stack,
                waiters: std::collections::HashMap::new(),
                dead: None,
                standby: Standby::default(),
                followers: Vec::new(),
                succeeding: false,
                turn_ends: Vec::new(),
                telling: Vec::new(),
                closing_ports: ClosingPorts::default(),
                replacing: Replacing::new(is_shared),
            }),
            link: Mutex::new(link),
            clock,
            pending: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(AWAKE),
            kept: AtomicU64::new(NEVER),
            sleeps: AtomicU64::new(0),
            spinning: Mutex::default(),
            wake,
            stands_by: Condvar::new(),
            link_fd,
            external: OnceLock::new(),
            closing: AtomicBool::new(false),
            threaded,
            opens_ports,
        })
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Calls `f` with the stack, then sends the frames that result.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut core = self.core();
        let result = f(&mut core, now);
        let wants = core.stack.wants_poll();
        drop(core);
        if wants {
            self.kick();
        }
        result
    }

    /// Checks that the link is not dead.
    ///
    /// # Errors
    /// The link's error.
    pub(crate) fn check_link(&self) -> std::io::Result<()> {
        self.core().dead.as_ref().map_or(Ok(()), |dead| Err(error::link(dead)))
    }

    /// Returns the number of TCP connections that are not closed yet.
    pub(crate) fn connections(&self) -> usize {
        self.core().stack.tcp_sizes().0
    }

    /// Closes the TCP ports that the stack no longer uses, and the UDP ports whose last datagrams the server has taken.
    fn close_unused_ports(&self, link: &mut dyn Link) {
        let now = self.clock.now();
        loop {
            let mut core = self.core();
            let Core { closing_ports, stack, .. } = &mut *core;
            let Some(local) = closing_ports.next(stack, link, now) else { break };
            drop(core);
            link.close_port(PortProtocol::Udp, local);
        }
        while let Some((is_ipv4, port)) = { self.core().stack.next_unused_port() } {
            let any =
                if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            link.close_port(PortProtocol::Tcp, SocketAddr::new(any, port));
        }
    }

    /// Has the link keep new flows and close ended flows, when it is time, during a replacement.
    fn update_flows(&self, link: &mut dyn Link) -> Result<(), LinkError> {
        let now = self.clock.now();
        let mut core = self.core();
        let Core { replacing, stack, .. } = &mut *core;
        let open = replacing.open_flows(link, stack, now);
        if replacing::refuse_flows(link, stack, now) {
            // The next round tells the sockets.
            self.notify();
        }
        drop(core);
        let Some(open) = open else { return Ok(()) };
        if replacing::update_flows(link, &open)? {
            self.core().replacing.check_again();
            self.notify();
        }
        Ok(())
    }

    /// Sends the waiting frames, or sets the flag `pending` for the holder of the link's lock.
    pub(crate) fn kick(&self) {
        for _ in 0..KICK_ROUNDS {
            self.pending.store(true, Ordering::Relaxed);
            // Pairs with the fence after the lock is released, below and in `sleeping.rs`: either
            // this thread gets the lock, or its holder sees that frames wait.
            fence(Ordering::SeqCst);
            let mut link = match self.link.try_lock() {
                Ok(link) => link,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.pending.store(false, Ordering::Relaxed);
            let result = self.round(link.as_mut(), Round::Send);
            drop(link);
            if let Err(error) = result {
                self.die(error);
                return;
            }
            fence(Ordering::SeqCst);
            if !self.pending.load(Ordering::Relaxed) && !self.core().stack.wants_poll() {
                break;
            }
        }
        self.wake_driver();
    }

    /// Wakes the driver if its sleep would last too long.
    fn wake_driver(&self) {
        let until = self.sleeps_until.load(Ordering::SeqCst);
        if until == AWAKE {
            return;
        }
        let core = self.core();
        let now = self.clock.now();
        let next = core.due_at(now).map_or(NEVER, Instant::as_micros);
        let blocked = core.stack.is_blocked();
        drop(core);
        if blocked || next < until {
            self.notify();
        }
    }

    /// Returns what a socket that has a new watcher is ready for. A thread of the application that drives now
    /// leaves the driving to the library's thread.
    pub(crate) fn start_watching(&self, id: SocketId) -> Ready {
        let mut core = self.core();
        let ready = core.readiness(id);
        let was_left = core.standby.watch();
        drop(core);
        if was_left && self.threaded {
            self.notify();
        }
        ready
    }

    /// Ends the driver's sleep.
    pub(crate) fn notify(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes a turn of the program's event loop due if a thread that drove has stopped, and nothing watches the link.
    fn rearm_external(&self) {
        if let Some(external) = self.external.get() {
            external.take_back();
        }
    }

    /// Makes one round.
    fn round(&self, link: &mut dyn Link, round: Round) -> Result<Done, LinkError> {
        let receive = round != Round::Send;
        let (mut worked, mut received) = (false, false);
        if receive {
            link.prepare()?;
        }
        let now = self.clock.now();
        let mut core = self.core();
        let Core { stack, waiters, telling, standby, replacing, .. } = &mut *core;
        worked |= self.opens_ports && revoke_ports(link, stack, now);
        worked |= replacing.tell(link, stack);
        let is_shared = replacing.check_at().is_some();
        if receive {
            received = receive_some(link, stack, now)?;
            worked |= received;
        }
        worked |= stack.poll(now, &mut LinkTransmit(link));
        let mut tell = std::mem::take(telling);
        while let Some(news) = stack.next_news() {
            let Some(waiter) = waiters.get(&news) else { continue };
            let is_watched = waiter.watchers.is_watched();
            let ready = if is_watched { readiness(stack, news) } else { Ready::EMPTY };
            if is_watched || waiter.is_awaited() {
                tell.push((waiter.clone(), ready));
            }
        }
        // Each waiter as often as it has threads that wait.
        let mut woken = tell.iter().flat_map(|(waiter, _)| {
            std::iter::repeat_n(Arc::as_ptr(waiter) as usize, waiter.waiting())
        });
        match round {
            Round::Library => standby.woke(woken),
            Round::Application if woken.next().is_some() => {
                standby.woke_others();
                // Ends the turn.
                worked = true;
            }
            Round::Application | Round::Send => {}
        }
        drop(core);
        let mut flushed = link.flush();
        if self.opens_ports {
            self.close_unused_ports(link);
        }
        if is_shared {
            flushed = flushed.and_then(|()| self.update_flows(link));
        }
        if !tell.is_empty() {
            for (waiter, ready) in tell.drain(..) {
                // A thread of the application that drives sleeps on the link, not on its condition
                // variable. In its own round it is awake, and repeats its call next.
                let leads = waiter.leading.load(Ordering::Relaxed);
                if leads && round == Round::Application {
                    waiter.tell_others(ready);
                    continue;
                }
                waiter.tell(ready);
                if leads {
                    self.notify();
                }
            }
            // Keeps the allocation for the next round.
            self.core().telling = tell;
        }
        flushed.map(|()| Done { worked, received })
    }

    /// Reports to all waiting threads that the link is dead. Returns the error of all further calls.
    fn die(&self, error: LinkError) -> std::io::Error {
        let mut core = self.core();
        let error = error::link(core.dead.get_or_insert(error));
        let waiters: Vec<_> = core.waiters.values().cloned().collect();
        drop(core);
        waiters.iter().for_each(|waiter| waiter.tell_all());
        self.notify();
        self.stands_by.notify_all();
        error
    }

    /// Returns `true` if the thread that drives sleeps.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeps_until.load(Ordering::SeqCst) != AWAKE
    }

    /// Returns `true` if no thread holds the link now.
    #[cfg(test)]
    pub(crate) fn is_link_free(&self) -> bool {
        self.link.try_lock().is_ok()
    }

    /// Returns the number of sleeps of threads that drive.
    #[cfg(test)]
    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Ends all calls that block.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.die(LinkError::Gone(Arc::from("the test is over")));
    }

    /// Ends the library's thread.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.notify();
        // The thread looks at `closing` under this lock before it waits.
        drop(self.core());
        self.stands_by.notify_all();
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// `true` if there was any work.
    worked: bool,
    /// `true` if frames arrived.
    received: bool,
}

/// Which thread makes a round, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// A thread that wrote, to send.
    Send,
    /// The library's thread, which drives.
    Library,
    /// A thread of the application that drives.
    Application,
}

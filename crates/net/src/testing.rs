//! Networks for the tests of programs (feature `testing`): hosts of one process at an Ethernet switch in memory, without a
//! server, rights or a network namespace.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use std::io::{Read, Write};
//! use towpath_net::testing::Switch;
//! use towpath_net::{TcpListener, TcpStream};
//!
//! let switch = Switch::new();
//! let (server, client) = (switch.host()?, switch.host()?);
//! let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
//! let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
//! stream.write_all(b"question")?;
//! let (mut accepted, _) = listener.accept()?;
//! let mut question = [0; 8];
//! accepted.read_exact(&mut question)?;
//! assert_eq!(&question, b"question");
//! # Ok(())
//! # }
//! ```
//!
//! A switch loses, duplicates, reorders and corrupts frames by a seed ([`Switch::set_faults`]), or as a function of the test
//! decides ([`Switch::set_filter`]). Its hosts have a clock that the test advances ([`Switch::advance`]): so a test of a
//! retransmission or of a timeout takes no time.
//!
//! A server that runs in a thread of its own has to be bound before its clients connect. A host whose
//! [driving](crate::Driving) is the application's does nothing while no call, task or event loop drives it. To have a host
//! vanish without a sign to its peers, end its network without waiting: `network.end(Duration::ZERO)`.
//!
//! The same program and seed see the same faults only if one thread does everything: with hosts of
//! [`Driving::Application`](crate::Driving::Application) that the test drives by [`Network::turn`], and a `seed` of its own in
//! each stack's configuration.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use towpath_stack::{Config, Meta, Offload};

use crate::driver::SharedNetwork;
use crate::lock::lock;
use crate::{Armed, Link, LinkError, LinkInfo, Network, NetworkBuilder};

/// The most hosts of a switch.
const MOST_HOSTS: u8 = 254;
/// Frames that wait for a host, as many as a session has receive buffers by default; the switch loses further ones.
const QUEUE: usize = 4096;
const ETHERNET_BYTES: usize = 14;
const MTU: usize = 1500;
/// The most by which the hosts' clock is ahead of the machine's, in microseconds: a hundred years.
const MOST_AHEAD: u64 = 100 * 365 * 86_400 * 1_000_000;
/// The least step of the clock while a host has something to do that it does not do.
const STEP: u64 = 1000;
/// How long a step of the clock waits for the hosts to handle what is due.
const PATIENCE: Duration = Duration::from_millis(20);

thread_local! {
    /// `true` while this thread runs a filter.
    static FILTERS: Cell<bool> = const { Cell::new(false) };
}

/// How often a switch does not deliver a frame as it was sent. By default, there are no faults. Each value is a probability
/// from 0.0 to 1.0; a value beyond counts as the nearest of these.
///
/// ```
/// use towpath_net::testing::Faults;
///
/// let faults = Faults::with_seed(7).loss(0.01).reordering(0.1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    loss: f64,
    duplication: f64,
    reordering: f64,
    corruption: f64,
    seed: u64,
}

impl Faults {
    /// Returns no faults. With the same seed, the same frames of a sequence will have faults.
    #[must_use]
    pub fn with_seed(seed: u64) -> Faults {
        Faults { seed, ..Faults::default() }
    }

    /// Loses frames.
    #[must_use]
    pub fn loss(self, probability: f64) -> Faults {
        Faults { loss: probability, ..self }
    }

    /// Delivers frames twice.
    #[must_use]
    pub fn duplication(self, probability: f64) -> Faults {
        Faults { duplication: probability, ..self }
    }

    /// Delivers frames behind the next one for the same host, at the latest with [`Switch::advance`] or
    /// [`Switch::release`].
    #[must_use]
    pub fn reordering(self, probability: f64) -> Faults {
        Faults { reordering: probability, ..self }
    }

    /// Inverts a bit of frames, behind their Ethernet header. ARP, which has no checksum, stays as it is.
    #[must_use]
    pub fn corruption(self, probability: f64) -> Faults {
        Faults { corruption: probability, ..self }
    }
}

/// A frame on its way to a host; see [`Switch::set_filter`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// The number of the host that sent it: 1 for the first of the switch.
    pub from: usize,
    /// The number of the host that is to receive it.
    pub to: usize,
    /// The frame, from its Ethernet header on.
    pub bytes: &'a [u8],
}

/// What a switch does with a frame; see [`Switch::set_filter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It delivers the frame, unless there is a fault.
    Deliver,
    /// It loses the frame.
    Lose,
    /// It keeps the frame until [`Switch::release`].
    Hold,
}

/// The frames of a switch, one for each receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchCounters {
    /// Delivered to a host, twice if duplicated.
    pub delivered: u64,
    /// Lost by a fault, by the filter, or because the host has gone.
    pub lost: u64,
    /// Lost because too many frames waited for the host.
    pub overflowed: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Delivered behind the next frame.
    pub reordered: u64,
    /// Delivered with an inverted bit.
    pub corrupted: u64,
    /// Kept until [`Switch::release`].
    pub held: u64,
}

/// An Ethernet switch in memory. Host N has the addresses 10.0.0.N/24 and, with N in hexadecimal, fd00::N/64, a link-local
/// one, and the Ethernet address 02:00:00:00:00:N. Clones are handles of the same switch. A child made by `fork` must use
/// neither.
///
/// If the filter panics, the switch loses each further frame, and the next call of a method, or the next drop of a handle,
/// panics in its place: so an assertion in a filter fails the test.
#[derive(Clone, Default)]
pub struct Switch {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told when a host is at rest.
    rested: Condvar,
    /// The microseconds by which the hosts' clock is ahead of the machine's.
    ahead: Arc<AtomicU64>,
}

type Filter = Box<dyn FnMut(Frame<'_>) -> Fate + Send>;

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    faults: Faults,
    random: fastrand::Rng,
    filter: Option<Filter>,
    /// The panic of the filter, which is not called any more.
    panic: Option<Box<dyn Any + Send>>,
    /// Frames that the filter holds, with the indices of their receivers.
    held: VecDeque<(usize, Vec<u8>)>,
    counters: SwitchCounters,
}

/// The receiving side of a host's port.
struct Port {
    arrived: VecDeque<Vec<u8>>,
    /// A frame that comes behind the next one.
    late: Option<Vec<u8>>,
    overflowed: u64,
    doorbell: Arc<OwnedFd>,
    /// Notifications so far.
    notified: u64,
    /// Their number when a round began after which the host had nothing to do.
    rested: u64,
    /// The host, once it runs. A strong reference would be dropped under the state's lock, which the link's drop takes.
    host: Weak<SharedNetwork>,
    /// `true` if a thread of the library drives the host.
    is_driven: bool,
    is_closed: bool,
}

impl Port {
    fn new(doorbell: Arc<OwnedFd>) -> Port {
        Port {
            arrived: VecDeque::new(),
            late: None,
            overflowed: 0,
            doorbell,
            notified: 0,
            rested: 0,
            host: Weak::new(),
            is_driven: false,
            is_closed: false,
        }
    }

    fn connect(&mut self, host: &Arc<SharedNetwork>) {
        (self.host, self.is_driven) = (Arc::downgrade(host), host.has_thread());
    }

    fn notify(&mut self) {
        self.notified += 1;
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Returns `true` if the host has handled everything that the switch told it, or does so only if its program drives it.
    fn is_at_rest(&self) -> bool {
        !self.is_driven || self.is_closed || self.arrived.is_empty() && self.rested >= self.notified
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        assert!(!FILTERS.get(), "a switch's filter must call neither the switch nor its hosts");
        lock(&self.state)
    }

    /// Waits until all hosts are at rest, but not for long.
    fn settle(&self) {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state();
        while !state.ports.iter().all(Port::is_at_rest) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.rested.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the microseconds until some host has something to do; `None` if none has.
    fn next_due(&self) -> Option<u64> {
        let driven = |port: &Port| port.is_driven.then(|| port.host.clone());
        let hosts: Vec<_> = self.state().ports.iter().filter_map(driven).collect();
        hosts.iter().filter_map(Weak::upgrade).filter_map(|host| host.next_due()).min()
    }
}

impl Switch {
    /// Makes a switch without hosts.
    #[must_use]
    pub fn new() -> Switch {
        Switch::default()
    }

    /// Adds the next host, which a thread of the library drives.
    ///
    /// # Errors
    /// As [`Switch::host_with`].
    pub fn host(&self) -> io::Result<Network> {
        self.host_with(Network::builder())
    }

    /// Adds the next host, with the driving and the stack's settings of a builder, for instance with other addresses. Its
    /// other properties have no effect. A number is used once, also if its host has ended.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use towpath_net::testing::Switch;
    /// use towpath_net::{Driving, Network};
    ///
    /// let builder = Network::builder().driving(Driving::Application);
    /// let host = Switch::new().host_with(builder.stack(|config| config.ipv6.clear()))?;
    /// assert!(host.addresses().contains(&[10, 0, 0, 1].into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrNotAvailable`] if the switch has had 254 hosts; if the settings contradict each other, or the system
    /// has no descriptor or thread left.
    pub fn host_with(&self, builder: NetworkBuilder) -> io::Result<Network> {
        self.check();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(eventfd(0, flags)?);
        let mut state = self.shared.state();
        let index = state.ports.len();
        let Some(last) = u8::try_from(index + 1).ok().filter(|last| *last <= MOST_HOSTS) else {
            let text = format!("a switch has at most {MOST_HOSTS} hosts in its life");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        };
        state.ports.push(Port::new(doorbell.clone()));
        drop(state);
        let mut config = Config::new([2, 0, 0, 0, 0, last]);
        config.ipv4 = Some((Ipv4Addr::new(10, 0, 0, last), 24));
        config.ipv6 = vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()), 64)];
        let shared = self.shared.clone();
        let link = SwitchLink { shared, index, doorbell, told: Vec::new(), notified: 0 };
        let host = builder.ahead(self.shared.ahead.clone()).on(Box::new(link), config);
        let mut state = self.shared.state();
        match &host {
            Ok(host) => state.ports[index].connect(host.shared_arc()),
            // The number is free again, unless another thread has added a host.
            Err(_) if state.ports.len() == index + 1 => drop(state.ports.pop()),
            Err(_) => {}
        }
        host
    }

    /// Sets the faults of all frames from now on, and begins with their seed.
    pub fn set_faults(&self, faults: Faults) {
        self.check();
        let mut state = self.shared.state();
        (state.faults, state.random) = (faults, fastrand::Rng::with_seed(faults.seed));
    }

    /// Has a function decide what becomes of each frame, once for each receiver, from now on, before any fault. It must call
    /// neither the switch nor a network, nor drop a socket.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    /// use towpath_net::UdpSocket;
    /// use towpath_net::testing::{Fate, Switch};
    ///
    /// let switch = Switch::new();
    /// let (one, other) = (switch.host()?, switch.host()?);
    /// // Datagrams to the second host: IPv4, with the protocol UDP.
    /// switch.set_filter(|frame| match (frame.to, &frame.bytes[12..14], frame.bytes[23]) {
    ///     (2, [8, 0], 17) => Fate::Hold,
    ///     _ => Fate::Deliver,
    /// });
    /// let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// UdpSocket::bind(&one, "10.0.0.1:0")?.send_to(b"late", "10.0.0.2:7")?;
    /// receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
    /// let mut datagram = [0; 4];
    /// assert!(receiver.recv(&mut datagram).is_err());
    /// assert_eq!(switch.release(), 1);
    /// assert_eq!(receiver.recv(&mut datagram)?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_filter(&self, filter: impl FnMut(Frame<'_>) -> Fate + Send + 'static) {
        self.replace_filter(Some(Box::new(filter)));
    }

    /// Ends what [`Switch::set_filter`] began. Held frames stay so.
    pub fn clear_filter(&self) {
        self.replace_filter(None);
    }

    fn replace_filter(&self, filter: Option<Filter>) {
        self.check();
        let earlier = std::mem::replace(&mut self.shared.state().filter, filter);
        // Without the lock: it may own sockets, whose drop sends frames.
        drop(earlier);
    }

    /// Panics as the filter did, once.
    fn check(&self) {
        let mut state = self.shared.state();
        let Some(panic) = state.panic.take() else { return };
        let filter = state.filter.take();
        drop(state);
        drop(filter);
        resume_unwind(panic);
    }

    /// Delivers all frames that the filter held, in their order and without faults, and those that come behind others.
    /// Returns the number of held frames.
    pub fn release(&self) -> usize {
        self.check();
        let mut state = self.shared.state();
        let held = std::mem::take(&mut state.held);
        let count = held.len();
        for (to, frame) in held {
            state.deliver(to, frame);
        }
        state.deliver_late();
        state.ports.iter_mut().for_each(Port::notify);
        count
    }

    /// Advances the clock of all hosts, which else runs as the machine's, from timer to timer. The hosts that the library
    /// drives have handled the timers, and what they sent, when this returns; but a call returns after 20 ms for each timer
    /// if other threads keep the hosts busy, and does not wait for hosts that the program drives. In all, the clock advances
    /// by at most a hundred years.
    ///
    /// The timeouts of reads, writes and lingering are of the machine's clock, that of
    /// [`TcpStream::connect_timeout`](crate::TcpStream::connect_timeout) is of the hosts'.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::io::{ErrorKind, Write};
    /// use std::time::Duration;
    /// use towpath_net::testing::{Fate, Switch};
    /// use towpath_net::{TcpListener, TcpStream};
    ///
    /// let switch = Switch::new();
    /// let (server, client) = (switch.host()?, switch.host()?);
    /// let _listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// stream.set_user_timeout(Some(Duration::from_secs(60)))?;
    /// switch.set_filter(|_| Fate::Lose);
    /// stream.write_all(b"lost")?;
    /// switch.advance(Duration::from_secs(59));
    /// assert!(stream.take_error()?.is_none());
    /// switch.advance(Duration::from_secs(2));
    /// assert_eq!(stream.take_error()?.unwrap().kind(), ErrorKind::TimedOut);
    /// # Ok(())
    /// # }
    /// ```
    pub fn advance(&self, time: Duration) {
        self.check();
        let ahead = &self.shared.ahead;
        let most = MOST_AHEAD.saturating_sub(ahead.load(Ordering::SeqCst));
        let mut left = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(most);
        self.shared.settle();
        while left > 0 {
            let step = self.shared.next_due().map_or(left, |due| due.max(STEP).min(left));
            left -= step;
            ahead.fetch_add(step, Ordering::SeqCst);
            let mut state = self.shared.state();
            state.deliver_late();
            // A driver that sleeps until a time of the clock looks again.
            state.ports.iter_mut().for_each(Port::notify);
            drop(state);
            self.shared.settle();
        }
        self.check();
    }

    /// Returns what became of the frames.
    #[must_use]
    pub fn counters(&self) -> SwitchCounters {
        self.check();
        self.shared.state().counters
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("Switch")
            .field("hosts", &state.ports.len())
            .field("faults", &state.faults)
            .field("counters", &state.counters)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Returns the receivers of a frame: the host with its address, or for a group all hosts.
    fn receivers(&self, frame: &[u8]) -> Range<usize> {
        match frame {
            [2, 0, 0, 0, 0, last, ..] if (1..=self.ports.len()).contains(&usize::from(*last)) => {
                let to = usize::from(*last) - 1;
                to..to + 1
            }
            [first, ..] if first & 1 != 0 => 0..self.ports.len(),
            _ => 0..0,
        }
    }

    /// Sends a frame to a host.
    fn send(&mut self, from: usize, to: usize, mut frame: Vec<u8>) {
        let fate = self.ask_filter(Frame { from: from + 1, to: to + 1, bytes: &frame });
        let Faults { loss, duplication, reordering, corruption, .. } = self.faults;
        // Each frame takes the same number of random numbers, whatever becomes of it.
        let [loses, duplicates, reorders, corrupts] =
            [loss, duplication, reordering, corruption].map(|one| self.random.f64() < one);
        let (byte, bit) = (self.random.usize(..MTU), self.random.u8(..8));
        match fate {
            Fate::Deliver if !loses => {}
            Fate::Hold => {
                self.counters.held += 1;
                return self.held.push_back((to, frame));
            }
            Fate::Deliver | Fate::Lose => {
                self.counters.lost += 1;
                return;
            }
        }
        if corrupts && frame.len() > ETHERNET_BYTES && frame[12..14] != [8, 6] {
            let at = ETHERNET_BYTES + byte % (frame.len() - ETHERNET_BYTES);
            frame[at] ^= 1 << bit;
            self.counters.corrupted += 1;
        }
        if duplicates {
            self.counters.duplicated += 1;
            self.deliver(to, frame.clone());
        }
        let late = &mut self.ports[to].late;
        if reorders && late.is_none() {
            *late = Some(frame);
            self.counters.reordered += 1;
        } else {
            let late = late.take();
            self.deliver(to, frame);
            late.into_iter().for_each(|late| self.deliver(to, late));
        }
    }

    /// Returns what the filter decides.
    fn ask_filter(&mut self, frame: Frame<'_>) -> Fate {
        let Some(filter) = &mut self.filter else { return Fate::Deliver };
        if self.panic.is_some() {
            return Fate::Lose;
        }
        FILTERS.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| filter(frame)));
        FILTERS.set(false);
        outcome.unwrap_or_else(|panic| {
            self.panic = Some(panic);
            Fate::Lose
        })
    }

    fn deliver(&mut self, to: usize, frame: Vec<u8>) {
        let port = &mut self.ports[to];
        if port.is_closed {
            self.counters.lost += 1;
        } else if port.arrived.len() < QUEUE {
            port.arrived.push_back(frame);
            self.counters.delivered += 1;
        } else {
            port.overflowed += 1;
            self.counters.overflowed += 1;
        }
    }

    /// Delivers the frames that come behind others.
    fn deliver_late(&mut self) {
        for to in 0..self.ports.len() {
            let late = self.ports[to].late.take();
            late.into_iter().for_each(|late| self.deliver(to, late));
        }
    }
}

/// A host's connection with a switch.
struct SwitchLink {
    shared: Arc<Shared>,
    /// The index of the host's port.
    index: usize,
    doorbell: Arc<OwnedFd>,
    /// The ports that were sent frames and that are yet to be notified.
    told: Vec<usize>,
    /// The host's notifications when the present round began.
    notified: u64,
}

impl Drop for SwitchLink {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        let port = &mut state.ports[self.index];
        port.is_closed = true;
        (port.arrived, port.late) = (VecDeque::new(), None);
    }
}

impl Link for SwitchLink {
    fn info(&self) -> LinkInfo {
        let mac = [2, 0, 0, 0, 0, self.index as u8 + 1];
        LinkInfo { mac, mtu: MTU, offload: Offload::default() }
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        self.notified = self.shared.state().ports[self.index].notified;
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let mut state = self.shared.state();
        let arrived = &mut state.ports[self.index].arrived;
        let count = arrived.len().min(budget);
        let frames: Vec<_> = arrived.drain(..count).collect();
        drop(state);
        frames.iter().for_each(|frame| take(frame, Meta::FULL));
        Ok(count)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        Ok(Some(!self.shared.state().ports[self.index].arrived.is_empty()))
    }

    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        let mut state = self.shared.state();
        for to in state.receivers(&frame).filter(|to| *to != self.index) {
            state.send(self.index, to, frame.clone());
            if !self.told.contains(&to) {
                self.told.push(to);
            }
        }
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let mut state = self.shared.state();
        self.told.drain(..).for_each(|to| state.ports[to].notify());
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.shared.state().ports[self.index].overflowed
    }

    fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
        let mut state = self.shared.state();
        let port = &mut state.ports[self.index];
        if !port.arrived.is_empty() {
            return Ok(Armed::Work);
        }
        port.rested = self.notified;
        self.shared.rested.notify_all();
        Ok(Armed::Sleep { writable: false })
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }
}

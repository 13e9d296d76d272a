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

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use towpath_stack::{Config, Meta, Offload};

use crate::lock::lock;
use crate::{Armed, Link, LinkError, LinkInfo, Network, NetworkBuilder};

/// The most hosts of a switch.
const MOST_HOSTS: u8 = 254;
/// Frames that wait for a host, as many as a session has receive buffers by default; the switch loses further ones.
const QUEUE: usize = 4096;
const ETHERNET_BYTES: usize = 14;
const MTU: usize = 1500;

/// How often a switch does not deliver a frame as it was sent; each value is a probability, from 0.0 to 1.0. By default, there
/// are no faults.
///
/// ```
/// use towpath_net::testing::Faults;
///
/// let mut faults = Faults::default();
/// (faults.loss, faults.seed) = (0.01, 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// The frame is lost.
    pub loss: f64,
    /// The frame is delivered twice.
    pub duplication: f64,
    /// The frame overtakes the one before it, if that still waits for the receiver.
    pub reordering: f64,
    /// A bit of the frame's IP packet is inverted.
    pub corruption: f64,
    /// The seed of the random numbers: with the same one, the same frames of a sequence have faults.
    pub seed: u64,
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
    /// Lost by a fault or by the filter.
    pub lost: u64,
    /// Lost because too many frames waited for the host.
    pub overflowed: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Delivered before the frame that was sent before.
    pub reordered: u64,
    /// Delivered with an inverted bit.
    pub corrupted: u64,
    /// Kept until [`Switch::release`].
    pub held: u64,
}

/// An Ethernet switch in memory. Its hosts have the addresses 10.0.0.1/24 and fd00::1/64, 10.0.0.2/24 and fd00::2/64, and so
/// on. Clones are handles of the same switch. A child made by `fork` must use neither.
#[derive(Clone, Default)]
pub struct Switch {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The microseconds by which the hosts' clock is ahead of the machine's.
    ahead: Arc<AtomicU64>,
}

type Filter = Box<dyn FnMut(&[u8]) -> Fate + Send>;

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    faults: Faults,
    random: fastrand::Rng,
    filter: Option<Filter>,
    /// Frames that the filter holds, with their receivers.
    held: VecDeque<(usize, Vec<u8>)>,
    counters: SwitchCounters,
}

/// The receiving side of a host's port.
struct Port {
    arrived: VecDeque<Vec<u8>>,
    overflowed: u64,
    doorbell: Arc<OwnedFd>,
}

impl Port {
    fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
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

    /// Adds the next host, with the driving and the stack's settings of a builder. Its other properties have no effect.
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
    /// [`io::ErrorKind::AddrNotAvailable`] if the switch has 254 hosts; if the settings contradict each other, or the system
    /// has no descriptor or thread left.
    pub fn host_with(&self, builder: NetworkBuilder) -> io::Result<Network> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(eventfd(0, flags)?);
        let mut state = lock(&self.shared.state);
        let number = state.ports.len();
        let Some(last) = u8::try_from(number + 1).ok().filter(|last| *last <= MOST_HOSTS) else {
            let text = format!("a switch has at most {MOST_HOSTS} hosts");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        };
        let port = Port { arrived: VecDeque::new(), overflowed: 0, doorbell: doorbell.clone() };
        state.ports.push(port);
        drop(state);
        let mut config = Config::new([2, 0, 0, 0, 0, last]);
        config.ipv4 = Some((Ipv4Addr::new(10, 0, 0, last), 24));
        config.ipv6 = vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()), 64)];
        let shared = self.shared.clone();
        let link = SwitchLink { shared, number, doorbell, told: Vec::new() };
        builder.ahead(self.shared.ahead.clone()).on(Box::new(link), config)
    }

    /// Sets the faults of all frames from now on, and begins with their seed.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = lock(&self.shared.state);
        (state.faults, state.random) = (faults, fastrand::Rng::with_seed(faults.seed));
    }

    /// Has a function decide what becomes of each frame, once for each receiver, from now on. It is given the frame from its
    /// Ethernet header on. It must not call the switch or a network.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    /// use towpath_net::UdpSocket;
    /// use towpath_net::testing::{Fate, Switch};
    ///
    /// let switch = Switch::new();
    /// let (one, other) = (switch.host()?, switch.host()?);
    /// // Datagrams: IPv4, with the protocol UDP.
    /// switch.set_filter(|frame| match (&frame[12..14], frame[23]) {
    ///     ([8, 0], 17) => Fate::Hold,
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
    pub fn set_filter(&self, filter: impl FnMut(&[u8]) -> Fate + Send + 'static) {
        lock(&self.shared.state).filter = Some(Box::new(filter));
    }

    /// Delivers all frames that the filter held, in their order. Returns their number.
    pub fn release(&self) -> usize {
        let mut state = lock(&self.shared.state);
        let held = std::mem::take(&mut state.held);
        let count = held.len();
        for (to, frame) in held {
            state.deliver(to, frame);
            state.ports[to].ring();
        }
        count
    }

    /// Advances the clock of all hosts, which else runs as the machine's: timers that are due by then expire at once. A
    /// connection whose peer has not acknowledged data for minutes of that clock ends, so advance it by steps while data is
    /// on its way. The timeouts of calls, such as [`TcpStream::set_read_timeout`](crate::TcpStream::set_read_timeout), are
    /// of the machine's clock.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::io::ErrorKind;
    /// use std::time::Duration;
    /// use towpath_net::testing::{Fate, Switch};
    /// use towpath_net::{TcpListener, TcpStream};
    ///
    /// let switch = Switch::new();
    /// let (server, client) = (switch.host()?, switch.host()?);
    /// let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// let stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// stream.set_user_timeout(Some(Duration::from_secs(60)))?;
    /// switch.set_filter(|_| Fate::Lose);
    /// std::io::Write::write(&mut &stream, b"lost")?;
    /// let failed = loop {
    ///     switch.advance(Duration::from_secs(1));
    ///     match stream.take_error()? {
    ///         Some(error) => break error,
    ///         None => std::thread::yield_now(),
    ///     }
    /// };
    /// assert_eq!(failed.kind(), ErrorKind::TimedOut);
    /// # Ok(())
    /// # }
    /// ```
    pub fn advance(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let add = |ahead: u64| Some(ahead.saturating_add(micros).min(u64::MAX / 2));
        let _ = self.shared.ahead.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        // A driver that sleeps until a time of the clock looks again.
        lock(&self.shared.state).ports.iter().for_each(Port::ring);
    }

    /// Returns what became of the frames.
    #[must_use]
    pub fn counters(&self) -> SwitchCounters {
        lock(&self.shared.state).counters
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
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
    fn send(&mut self, to: usize, mut frame: Vec<u8>) {
        let fate = self.filter.as_mut().map_or(Fate::Deliver, |filter| filter(&frame));
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
        // No checksum covers ARP.
        if corrupts && frame.len() > ETHERNET_BYTES && frame[12..14] != [8, 6] {
            let at = ETHERNET_BYTES + byte % (frame.len() - ETHERNET_BYTES);
            frame[at] ^= 1 << bit;
            self.counters.corrupted += 1;
        }
        if duplicates {
            self.counters.duplicated += 1;
            self.deliver(to, frame.clone());
        }
        self.deliver(to, frame);
        let arrived = &mut self.ports[to].arrived;
        if reorders && let Some(before) = arrived.len().checked_sub(2) {
            arrived.swap(before, before + 1);
            self.counters.reordered += 1;
        }
    }

    fn deliver(&mut self, to: usize, frame: Vec<u8>) {
        let port = &mut self.ports[to];
        if port.arrived.len() < QUEUE {
            port.arrived.push_back(frame);
            self.counters.delivered += 1;
        } else {
            port.overflowed += 1;
            self.counters.overflowed += 1;
        }
    }
}

/// A host's connection with a switch.
struct SwitchLink {
    shared: Arc<Shared>,
    /// The number of the host's port.
    number: usize,
    doorbell: Arc<OwnedFd>,
    /// The ports that were sent frames and whose doorbells are yet to ring.
    told: Vec<usize>,
}

impl Link for SwitchLink {
    fn info(&self) -> LinkInfo {
        let mac = [2, 0, 0, 0, 0, self.number as u8 + 1];
        LinkInfo { mac, mtu: MTU, offload: Offload::default() }
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let mut state = lock(&self.shared.state);
        let arrived = &mut state.ports[self.number].arrived;
        let count = arrived.len().min(budget);
        let frames: Vec<_> = arrived.drain(..count).collect();
        drop(state);
        frames.iter().for_each(|frame| take(frame, Meta::FULL));
        Ok(count)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        Ok(Some(!lock(&self.shared.state).ports[self.number].arrived.is_empty()))
    }

    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        let mut state = lock(&self.shared.state);
        for to in state.receivers(&frame).filter(|to| *to != self.number) {
            state.send(to, frame.clone());
            if !self.told.contains(&to) {
                self.told.push(to);
            }
        }
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let state = lock(&self.shared.state);
        self.told.drain(..).for_each(|to| state.ports[to].ring());
        Ok(())
    }

    fn lost(&self) -> u64 {
        lock(&self.shared.state).ports[self.number].overflowed
    }

    fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
        let is_empty = lock(&self.shared.state).ports[self.number].arrived.is_empty();
        Ok(if is_empty { Armed::Sleep { writable: false } } else { Armed::Work })
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }
}

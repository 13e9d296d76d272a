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
//! retransmission or of a timeout takes no time. A [`Wire`] between a host and the switch has a delay, a bandwidth, a queue
//! and an MTU; frames on their way obey the same clock. [`Switch::capture`] writes what a host sends and receives to a file
//! for Wireshark.
//!
//! [`Switch::lose_link`] ends the link of a host as the end of a session does, so that a test sees what a program does
//! when its server is lost; the [cookbook](crate::cookbook#going-on-after-the-end-of-a-session) has such a program.
//!
//! A server that runs in another thread has to be bound before its clients connect. A host whose
//! [driving](crate::Driving) is the application's does nothing while no call, task or event loop drives it. To have a host
//! vanish without a sign to its peers, end its network without waiting: `network.end(Duration::ZERO)`.
//!
//! The same program and seed see the same faults only if one thread does everything: with hosts of
//! [`Driving::Application`](crate::Driving::Application) that the test drives by [`Network::turn`], and a fixed `seed` in
//! each stack's configuration.

mod capture;
mod doorbell;
mod link;
mod links;
mod state;
mod wire;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_stack::Config;

use crate::{Network, NetworkBuilder};
use doorbell::Doorbell;
use link::SwitchLink;
use state::{Filter, Port, Shared};

pub use wire::Wire;

/// The most hosts of a switch.
const MOST_HOSTS: u8 = 254;
/// The most by which the hosts' clock is ahead of the machine's, in microseconds: a hundred years.
const MOST_AHEAD: u64 = 100 * 365 * 86_400 * 1_000_000;
/// The least step of the clock while a host has something to do that it does not do.
const STEP: u64 = 1000;
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
    ///
    /// ```
    /// # use towpath_net::testing::Faults;
    /// // Faults of the same seed are the same, in the same program.
    /// assert_eq!(Faults::with_seed(7).loss(0.1), Faults::with_seed(7).loss(0.1));
    /// ```
    #[must_use]
    pub fn with_seed(seed: u64) -> Faults {
        Faults { seed, ..Faults::default() }
    }

    /// Loses frames.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// # receiver.set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
    /// switch.set_faults(Faults::with_seed(1).loss(1.0));
    /// sender.send_to(b"lost", "10.0.0.2:7")?;
    /// assert!(receiver.recv(&mut [0; 8]).is_err());
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn loss(self, probability: f64) -> Faults {
        Faults { loss: probability, ..self }
    }

    /// Delivers frames twice.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// switch.set_faults(Faults::with_seed(1).duplication(1.0));
    /// sender.send_to(b"twice", "10.0.0.2:7")?;
    /// assert_eq!(receiver.recv(&mut [0; 8])?, receiver.recv(&mut [0; 8])?);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn duplication(self, probability: f64) -> Faults {
        Faults { duplication: probability, ..self }
    }

    /// Delivers frames behind the next one for the same host, at the latest with [`Switch::advance`] or
    /// [`Switch::release`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// # sender.send_to(b"first", "10.0.0.2:7")?;
    /// # receiver.recv(&mut [0; 8])?;
    /// switch.set_faults(Faults::with_seed(1).reordering(0.5));
    /// for number in 0..100 {
    ///     sender.send_to(&[number], "10.0.0.2:7")?;
    /// }
    /// # while switch.counters().reordered == 0 {}
    /// switch.set_faults(Faults::default());
    /// sender.send_to(&[100], "10.0.0.2:7")?;
    /// let mut numbers = [0; 101];
    /// for number in numbers.chunks_mut(1) {
    ///     receiver.recv(number)?;
    /// }
    /// assert!(!numbers.is_sorted());
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn reordering(self, probability: f64) -> Faults {
        Faults { reordering: probability, ..self }
    }

    /// Inverts a bit of frames, behind their Ethernet header. ARP, which has no checksum, stays as it is.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// # receiver.set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
    /// switch.set_faults(Faults::with_seed(1).corruption(1.0));
    /// sender.send_to(b"with an inverted bit", "10.0.0.2:7")?;
    /// // The receiving stack drops it, by its checksum or its address.
    /// assert!(receiver.recv(&mut [0; 64]).is_err());
    /// # std::io::Result::Ok(())
    /// ```
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
    /// Lost because too many frames waited, for the host or for a wire ([`Wire::queue`]).
    pub overflowed: u64,
    /// Lost because they exceed the receiver's MTU ([`Wire::mtu`]).
    pub oversized: u64,
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

impl Switch {
    /// Makes a switch without hosts.
    ///
    /// ```
    /// # use towpath_net::testing::Switch;
    /// // Two networks: their hosts do not reach each other, and have the same addresses.
    /// let (inside, outside) = (Switch::new(), Switch::new());
    /// let hosts = (inside.host()?, outside.host()?);
    /// assert_eq!(hosts.0.addresses()[0], hosts.1.addresses()[0]);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn new() -> Switch {
        Switch::default()
    }

    /// Adds the next host, which a thread of the library drives.
    ///
    /// ```
    /// # use towpath_net::testing::Switch;
    /// let switch = Switch::new();
    /// let (first, second) = (switch.host()?, switch.host()?);
    /// assert!(first.addresses().contains(&[10, 0, 0, 1].into()));
    /// assert!(second.addresses().contains(&[10, 0, 0, 2].into()));
    /// # std::io::Result::Ok(())
    /// ```
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
        self.add(Wire::new(), builder)
    }

    fn add(&self, wire: Wire, builder: NetworkBuilder) -> io::Result<Network> {
        self.check();
        let doorbell = Arc::new(Doorbell::new()?);
        let mut state = self.shared.state();
        let index = state.ports.len();
        let Some(last) = u8::try_from(index + 1).ok().filter(|last| *last <= MOST_HOSTS) else {
            let text = format!("a switch has at most {MOST_HOSTS} hosts in its life");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        };
        state.ports.push(Port::new(doorbell.clone(), wire));
        drop(state);
        let mut config = Config::new([2, 0, 0, 0, 0, last]);
        config.ipv4 = Some((Ipv4Addr::new(10, 0, 0, last), 24));
        config.ipv6 = vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()), 64)];
        let shared = self.shared.clone();
        let link = SwitchLink {
            shared,
            index,
            mtu: wire.mtu_bytes(),
            doorbell,
            has_timer: false,
            told: Vec::new(),
            notified: 0,
        };
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
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// switch.set_faults(Faults::with_seed(7).loss(0.5));
    /// for _ in 0..100 {
    ///     sender.send_to(b"question", "10.0.0.2:7")?;
    /// }
    /// switch.set_faults(Faults::default());
    /// println!("{} of 100 frames lost", switch.counters().lost);
    /// # std::io::Result::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// switch.set_filter(|_| Fate::Lose);
    /// sender.send_to(b"lost", "10.0.0.2:7")?;
    /// switch.clear_filter();
    /// // The stack asks for the peer's link address again after 1 s of the hosts' clock.
    /// switch.advance(std::time::Duration::from_secs(2));
    /// sender.send_to(b"delivered", "10.0.0.2:7")?;
    /// assert!(receiver.recv(&mut [0; 16]).is_ok());
    /// # std::io::Result::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// # sender.send_to(b"first", "10.0.0.2:7")?;
    /// # receiver.recv(&mut [0; 8])?;
    /// // Datagrams: IPv4, with the protocol UDP.
    /// switch.set_filter(|frame| match (&frame.bytes[12..14], frame.bytes[23]) {
    ///     ([8, 0], 17) => Fate::Hold,
    ///     _ => Fate::Deliver,
    /// });
    /// sender.send_to(b"late", "10.0.0.2:7")?;
    /// # while switch.counters().held == 0 {}
    /// assert_eq!(switch.release(), 1);
    /// assert_eq!(receiver.recv(&mut [0; 8])?, 4);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn release(&self) -> usize {
        self.check();
        let mut state = self.shared.state();
        let held = std::mem::take(&mut state.held);
        let count = held.len();
        let now = self.shared.now();
        for (to, frame) in held {
            state.deliver(to, frame, now, now);
        }
        state.deliver_late(now);
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
            self.shared.pass_all(&mut state);
            state.deliver_late(self.shared.now());
            // A driver that sleeps until a time of the clock looks again.
            state.ports.iter_mut().for_each(Port::notify);
            drop(state);
            self.shared.settle();
        }
        self.check();
    }

    /// Returns what became of the frames.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # use towpath_net::testing::{Fate, Faults, Switch};
    /// # let switch = Switch::new();
    /// # let (one, other) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// # let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// sender.send_to(b"question", "10.0.0.2:7")?;
    /// receiver.recv(&mut [0; 8])?;
    /// // A request and an answer for the link address, and the datagram.
    /// assert!(switch.counters().delivered >= 3);
    /// assert_eq!(switch.counters().lost, 0);
    /// # std::io::Result::Ok(())
    /// ```
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

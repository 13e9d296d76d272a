//! Readiness of many sockets through one descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use towpath_memory::ForkGuard;

use crate::error;
use crate::readiness::{Interest, Trigger};
use crate::ready_set::{Events, Set};
use crate::watch::Source;

/// A set of sockets, of any number of networks, whose readiness one thread can wait for. It is used like
/// epoll.
///
/// A poller is a handle: its clones share the set. Several threads may wait: each event is for one of
/// them. A socket may be registered with several pollers; clones of a socket share its registration.
///
/// Its descriptor ([`AsFd`]) goes into `epoll`, `poll` or `select`, beside those of a program's other
/// event sources: it is readable while events wait. Then call [`Poller::wait`] with a timeout of zero. If the
/// last events were of sockets with [`Trigger::Level`], the descriptor can be readable although no socket is
/// ready any more; the call finds that out.
///
/// Waiting costs the same however many sockets are registered.
///
/// In a child made by `fork`, an inherited poller has no events, and registers no socket. Its
/// descriptor is the parent's, and shows the parent's events.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{ErrorKind, Read};
/// use towpath_net::{Events, Interest, Network, Poller, TcpStream, Trigger};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let mut stream = TcpStream::connect(&network, "10.77.0.1:80")?;
/// stream.set_nonblocking(true)?;
/// let poller = Poller::new()?;
/// poller.register(&stream, 7, Interest::READABLE, Trigger::Level)?;
/// let mut events = Events::default();
/// let mut buffer = [0; 2048];
/// loop {
///     poller.wait(&mut events, None)?;
///     for event in &events {
///         assert_eq!(event.token, 7);
///         match stream.read(&mut buffer) {
///             Ok(0) => return Ok(()),
///             Ok(bytes) => println!("{bytes} bytes"),
///             Err(error) if error.kind() == ErrorKind::WouldBlock => {}
///             Err(error) => return Err(error.into()),
///         }
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Poller {
    set: Arc<Set>,
    guard: Arc<ForkGuard>,
}

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// ```
    /// # use towpath_net::Network;
    /// use towpath_net::{Events, Poller};
    ///
    /// let poller = Poller::new()?;
    /// // No socket is registered, so only `wake` ends this wait early.
    /// poller.wake();
    /// assert_eq!(poller.wait(&mut Events::default(), None)?, 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the system has no descriptor or memory left.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller { set: Arc::new(Set::new()?), guard: Arc::new(ForkGuard::new()?) })
    }

    fn checked(&self) -> io::Result<&Arc<Set>> {
        error::not_forked(&self.guard)?;
        Ok(&self.set)
    }

    /// Registers a socket. A socket that is ready already has an event at once, with each trigger. Dropping a
    /// socket removes its registration and its events.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// poller.register(&socket, 1, Interest::READABLE, Trigger::Level)?;
    /// socket.send_to(b"to this socket", "10.0.0.1:7")?;
    /// poller.wait(&mut events, None)?;
    /// assert_eq!(events.iter().map(|event| event.token).collect::<Vec<_>>(), [1]);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the socket, or a clone of it, is registered with this poller;
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn register(
        &self,
        socket: &impl Source,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let set = self.checked()?;
        let target = socket.socket_ref();
        let member = target.add_member(set, token, interest, trigger)?;
        member.ready(target.start_watching()?);
        Ok(())
    }

    /// Changes a registration. Enables a registration with [`Trigger::OneShot`] again after its event. If the socket is
    /// ready, it has an event.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// poller.register(&socket, 1, Interest::WRITABLE, Trigger::OneShot)?;
    /// poller.wait(&mut events, None)?;
    /// // The registration had its event; enable it again, now for reading.
    /// poller.modify(&socket, 1, Interest::READABLE, Trigger::OneShot)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the socket is not registered with this poller;
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn modify(
        &self,
        socket: &impl Source,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let set = self.checked()?;
        let target = socket.socket_ref();
        let member = target.member(set)?;
        member.change(token, interest, trigger);
        member.ready(target.start_watching()?);
        Ok(())
    }

    /// Removes a socket, which then has no events. Also works for a socket of a dead link.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// use std::time::Duration;
    ///
    /// poller.register(&socket, 1, Interest::WRITABLE, Trigger::Level)?;
    /// poller.deregister(&socket)?;
    /// assert_eq!(poller.wait(&mut events, Some(Duration::ZERO))?, 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the socket is not registered with this poller;
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn deregister(&self, socket: &impl Source) -> io::Result<()> {
        let set = self.checked()?;
        socket.socket_ref().remove_member(set)
    }

    /// Waits until a socket is ready, [`Poller::wake`] is called, or the timeout has passed; `None`: without
    /// a limit. Replaces the contents of `events`. Returns the number of events: 0 after a timeout or a
    /// wake-up.
    ///
    /// Sockets of a network with [`Driving::Application`](crate::Driving::Application) make progress while a
    /// thread waits here: it drives the network.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// use std::time::Duration;
    ///
    /// poller.register(&socket, 1, Interest::READABLE, Trigger::Level)?;
    /// // Nothing arrives within 10 ms.
    /// assert_eq!(poller.wait(&mut events, Some(Duration::from_millis(10)))?, 0);
    /// socket.send_to(b"to this socket", "10.0.0.1:7")?;
    /// assert_eq!(poller.wait(&mut events, None)?, 1);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked); with [`Driving::Application`](crate::Driving::Application),
    /// also the system's error if it has no descriptor or memory left. A dead link is no error here: its sockets are
    /// ready, and their calls return the error.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        self.checked()?.wait(events, timeout)
    }

    /// Makes one waiting thread return from [`Poller::wait`] with no events. If no thread waits, the next wait returns at
    /// once. Several calls before that wait count as one. Any thread may call this.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// let handle = poller.clone();
    /// let thread = std::thread::spawn(move || handle.wake());
    /// // Returns without an event, once the other thread calls `wake`.
    /// assert_eq!(poller.wait(&mut events, None)?, 0);
    /// # thread.join().unwrap();
    /// # std::io::Result::Ok(())
    /// ```
    pub fn wake(&self) {
        if self.guard.is_parent() {
            self.set.wake();
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.guard.is_parent() {
            self.set.use_fd();
        }
        self.set.as_fd()
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.guard.is_parent() {
            return f.debug_struct("Poller").finish_non_exhaustive();
        }
        let (sockets, ready) = self.set.counts();
        f.debug_struct("Poller").field("sockets", &sockets).field("ready", &ready).finish()
    }
}

//! A private host.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use towpath_memory::ForkGuard;
use towpath_stack::{Config, Counters, SocketId, SocketInfo, Stack};

use crate::clock::Clock;
use crate::driver::SharedNetwork;
use crate::error;
use crate::link::Link;
use crate::wait::Waiter;

/// The choice of the thread that receives, acknowledges and retransmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driving {
    /// A thread of the library. Once it has woken one application thread, and no other, several
    /// times in a row, it stands by, and that thread drives while it blocks.
    Thread,
    /// The application: a thread blocked in a call, in [`Poller::wait`](crate::Poller::wait) or in [`Network::drive`]; its
    /// own event loop, by [`Network::work_fd`] and [`Network::turn`]; or a task, by `tokio::drive`.
    Application,
}

/// The time for which the last drop waits for datagrams. The stack repeats a request for a neighbour's link address
/// after 1 s, and the rest is for the answer. [`Network::drain`] can wait longer.
const LAST_DROP_WAIT: Duration = Duration::from_millis(1500);

/// A private host: a stack and the link that carries its frames. This is a handle: its clones and
/// all their sockets share the host, which ends with the last of them. The drop of the last handle waits until the sent
/// datagrams have left, for at most 1.5 s. It does not wait for TCP connections; [`Network::drain`] does.
#[derive(Clone)]
pub struct Network {
    owner: Arc<Owner>,
}

/// Ends the host with the last handle.
struct Owner {
    /// A child made by `fork` must not read, lock or drop the state. A thread of the parent may have
    /// held a lock, and left the state behind the lock half-changed.
    shared: Arc<SharedNetwork>,
    thread: Option<JoinHandle<()>>,
    guard: ForkGuard,
}

impl Network {
    /// Starts a host on `link`, as [`NetworkBuilder::on`](crate::NetworkBuilder::on) says.
    pub(crate) fn start(
        link: Box<dyn Link>,
        mut config: Config,
        driving: Driving,
        ahead: Option<Arc<AtomicU64>>,
    ) -> io::Result<Network> {
        let info = link.info();
        config.mac = info.mac;
        config.mtu = info.mtu;
        config.offload = info.offload;
        config.reports_unused_ports = link.opens_ports();
        if config.seed == 0 {
            use std::hash::{BuildHasher, Hasher};
            // The standard library's only source of secret numbers.
            config.seed = std::hash::RandomState::new().build_hasher().finish();
        }
        let clock = Clock::new(ahead);
        let stack = Stack::new(config, clock.now())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let guard = ForkGuard::new()?;
        let threaded = driving == Driving::Thread;
        let shared = Arc::new(SharedNetwork::new(link, stack, clock, threaded)?);
        let mut thread = None;
        if threaded {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("towpath-net".into());
            thread = Some(builder.spawn(move || shared.run())?);
        }
        Ok(Network { owner: Arc::new(Owner { shared, thread, guard }) })
    }

    /// Returns the state of the network. Every call gets the state here, before it takes a lock. The
    /// check for a child made by `fork` is a load and a comparison.
    ///
    /// # Errors
    /// [`LinkError::Forked`].
    #[inline]
    pub(crate) fn checked(&self) -> io::Result<&SharedNetwork> {
        error::not_forked(&self.owner.guard)?;
        Ok(&self.owner.shared)
    }

    /// Returns what [`Network::checked`] does, to keep.
    ///
    /// # Errors
    /// [`LinkError::Forked`].
    pub(crate) fn checked_arc(&self) -> io::Result<&Arc<SharedNetwork>> {
        error::not_forked(&self.owner.guard)?;
        Ok(&self.owner.shared)
    }

    /// Returns the state of the network to keep, in the process that made it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared_arc(&self) -> &Arc<SharedNetwork> {
        &self.owner.shared
    }

    /// Returns the state of the network, for unit tests, which do not fork.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &SharedNetwork {
        &self.owner.shared
    }

    /// Receives, sends and handles due timers. If there is no work, waits for work for at most `timeout`.
    /// Only for networks with [`Driving::Application`]. If another thread drives the network, waits until that
    /// thread has finished.
    ///
    /// ```
    /// # use towpath_net::{Driving, Network, UdpSocket};
    /// # use towpath_net::testing::Switch;
    /// # let builder = Network::builder().driving(Driving::Application);
    /// # let network = Switch::new().host_with(builder)?;
    /// use std::time::Duration;
    ///
    /// let socket = UdpSocket::bind(&network, "10.0.0.1:7")?;
    /// socket.set_nonblocking(true)?;
    /// loop {
    ///     // Waits for at most 10 ms if there is no work.
    ///     network.drive(Duration::from_millis(10))?;
    ///     while let Ok((len, from)) = socket.recv_from(&mut [0; 2048]) {
    ///         println!("{len} bytes from {from}");
    ///     }
    ///     # break;
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the link is dead.
    pub fn drive(&self, timeout: Duration) -> io::Result<()> {
        self.checked()?.drive(timeout)
    }

    /// Returns a descriptor for a program's own event loop. It is readable while the network has work, due timers
    /// included. Call [`Network::turn`] once before the first wait, and whenever the descriptor is readable. Only for
    /// networks with [`Driving::Application`].
    ///
    /// ```
    /// # use towpath_net::{Driving, Network, UdpSocket};
    /// # use towpath_net::testing::Switch;
    /// # let builder = Network::builder().driving(Driving::Application);
    /// # let network = Switch::new().host_with(builder)?;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// network.turn()?;
    /// // The program's event loop waits for this descriptor, beside its other ones.
    /// let work = network.work_fd()?;
    /// poll(&mut [PollFd::new(&work, PollFlags::IN)], Some(&Default::default()))?;
    /// network.turn()?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a thread of the library drives the network; if the system has no descriptor
    /// left; [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn work_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.checked()?.work_fd()
    }

    /// Receives, sends and handles due timers, without waiting; for a program's own event loop. Afterwards the
    /// descriptor of [`Network::work_fd`] is readable once there is further work.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::ErrorKind;
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use towpath_net::{Driving, Network, UdpSocket};
    ///
    /// let builder = Network::builder().driving(Driving::Application);
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// let socket = UdpSocket::bind(&network, "0.0.0.0:7")?;
    /// socket.set_nonblocking(true)?;
    /// let mut datagram = [0; 2048];
    /// network.turn()?;
    /// loop {
    ///     // Here the program also waits for its other descriptors.
    ///     poll(&mut [PollFd::new(&network.work_fd()?, PollFlags::IN)], None)?;
    ///     network.turn()?;
    ///     loop {
    ///         match socket.recv_from(&mut datagram) {
    ///             // Without room for the answer, the peer asks again.
    ///             Ok((bytes, from)) => drop(socket.send_to(&datagram[..bytes], from)),
    ///             Err(error) if error.kind() == ErrorKind::WouldBlock => break,
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the link is dead; as [`Network::work_fd`].
    pub fn turn(&self) -> io::Result<()> {
        self.checked()?.turn()
    }

    /// Returns the number of frames for this network that were lost before they reached the stack: the session had no free
    /// receive buffer, the frames exceeded the server's budget per poll iteration, or the server could not pass them on.
    /// [`UdpSocket::dropped`](crate::UdpSocket::dropped) and [`Network::counters`] count only frames that the stack
    /// received. In a session with an endpoint per port, only frames for ports count. Returns 0 in a child made by
    /// `fork`, and for a link that does not count such frames ([`Link::lost`]). Waits while another thread opens or
    /// closes a port.
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let before = host.lost();
    /// // ... a while later ...
    /// println!("{} frames found no room in the session's memory", host.lost() - before);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.checked().map_or(0, SharedNetwork::lost)
    }

    /// Returns the stack's counters; all zero in a child made by `fork`.
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let counters = host.counters();
    /// println!("{counters:?}");
    /// assert_eq!(counters.neighbour_dropped, 0);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.checked()
            .map_or_else(|_| Counters::default(), |shared| *shared.core().stack.counters())
    }

    /// Returns the number of TCP connections that are not closed yet: also those that the
    /// application has dropped, half-open ones, and closed ones of which it still has a handle. A
    /// child made by `fork` has none.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// assert_eq!(host.connections(), 0);
    /// let _stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// // Both ends of the connection are of this host.
    /// assert_eq!(host.connections(), 2);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn connections(&self) -> usize {
        self.checked().map_or(0, SharedNetwork::connections)
    }

    /// Returns the sockets of this host, also connections that the application has dropped or has not accepted yet: their
    /// addresses, states and queues. A child made by `fork` has none.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_net::{Network, TcpListener};
    ///
    /// let network = Network::attach("/run/towpath/eth0.sock")?;
    /// let _listener = TcpListener::bind(&network, "0.0.0.0:80")?;
    /// for socket in network.sockets() {
    ///     println!("{} {:?} {:?}", socket.local, socket.peer, socket.state);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketInfo> {
        self.checked().map_or_else(|_| Vec::new(), |shared| shared.core().stack.sockets().collect())
    }

    /// Returns every IP address of this host; none in a child made by `fork`.
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// for address in host.addresses() {
    ///     println!("{address}");
    /// }
    /// assert!(host.addresses().contains(&[10, 0, 0, 1].into()));
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn addresses(&self) -> Vec<std::net::IpAddr> {
        let Ok(shared) = self.checked() else { return Vec::new() };
        shared.core().stack.addresses().map(|(address, _)| address).collect()
    }

    /// Waits until [`Network::connections`] is zero and all sent datagrams have left. The peers then
    /// have all data that was written before its stream was dropped, unless a reset or a timeout
    /// ended the connection. The device has the datagrams, unless a neighbour did not answer
    /// ([`Counters::neighbour_dropped`]). Drop listeners and streams first: a handle counts as a
    /// connection. A deadline beyond the clock's range never expires. Dropping the last handle waits
    /// for datagrams only, and for at most 1.5 s.
    ///
    /// ```
    /// # use std::io::Write;
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// stream.write_all(b"the last word")?;
    /// drop(stream);
    /// # drop(listener.accept()?);
    /// // The peer has the data, or the connection has failed.
    /// client.drain(Duration::from_secs(10))?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if connections are still open or datagrams still wait at the timeout;
    /// or the link's error.
    pub fn drain(&self, timeout: Duration) -> io::Result<()> {
        // The server does not report that it has sent a frame, so the thread checks at this interval.
        const CHECK_INTERVAL: Duration = Duration::from_millis(1);
        let shared = self.checked()?;
        let until = StdInstant::now().checked_add(timeout);
        loop {
            let connections = shared.connections();
            if connections == 0 && shared.unsent()? == 0 {
                return Ok(());
            }
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(StdInstant::now()));
            if left.is_zero() {
                let text = match connections {
                    0 => {
                        "datagrams still wait for a neighbour's answer, or for the device; wait longer, or \
                         check that the peer's host answers"
                    }
                    _ => "connections are still open; drop streams and listeners, or wait longer",
                };
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            if shared.threaded {
                shared.check_link()?;
                std::thread::sleep(left.min(if connections == 0 {
                    CHECK_INTERVAL
                } else {
                    5 * CHECK_INTERVAL
                }));
            } else {
                shared.drive(if connections == 0 { left.min(CHECK_INTERVAL) } else { left })?;
            }
        }
    }

    /// Ends the host, also for all other handles: drains the host for at most `timeout`
    /// ([`Network::drain`]), and drops the frames that still wait. Returns the last counters, of which
    /// [`Counters::unsent_at_end`] counts these frames. Later calls on other handles and on sockets
    /// fail.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use towpath_net::{Network, UdpSocket};
    ///
    /// let network = Network::attach("/run/towpath/eth0.sock")?;
    /// UdpSocket::bind(&network, "0.0.0.0:0")?.send_to(b"the last word", "10.77.0.1:4000")?;
    /// let counters = network.end(Duration::from_secs(3));
    /// println!("{} datagrams did not leave", counters.unsent_at_end);
    /// # Ok(())
    /// # }
    /// ```
    pub fn end(self, timeout: Duration) -> Counters {
        // Whatever the error, the next call drops and counts the frames that still wait.
        let _ = self.drain(timeout);
        if let Ok(shared) = self.checked() {
            shared.end_by_program();
        }
        self.counters()
    }

    /// Registers the waiter of a socket that a call has just made.
    pub(crate) fn register(&self, id: SocketId) -> Arc<Waiter> {
        let waiter = Arc::new(match id {
            SocketId::Listener(_) => Waiter::waking_one(),
            SocketId::Tcp(_) | SocketId::Udp(_) => Waiter::default(),
        });
        self.owner.shared.core().waiters.insert(id, waiter.clone());
        waiter
    }

    /// Removes the waiter of a socket whose last handle is dropped, and returns the network's state.
    /// Returns `None` in a child made by `fork`, in which the socket is the parent's.
    pub(crate) fn unregister(&self, id: SocketId) -> Option<&SharedNetwork> {
        let shared = self.checked().ok()?;
        let waiter = shared.core().waiters.remove(&id);
        if let Some(waiter) = waiter {
            waiter.watchers.end();
        }
        Some(shared)
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("addresses", &self.addresses()).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.guard.is_parent() {
            // The library's thread and the state are the parent's. The state's copy stays until this
            // process ends or calls `exec`.
            std::mem::forget((self.thread.take(), self.shared.clone()));
            return;
        }
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.send_the_rest(LAST_DROP_WAIT);
    }
}

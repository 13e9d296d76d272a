//! A private host.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Config, Counters, SocketId, Stack};

use crate::clock::Clock;
use crate::driver::Shared;
use crate::link::Link;
use crate::lock::lock;
use crate::wait::Waiter;

/// The choice of the thread that receives, acknowledges and retransmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driving {
    /// A thread of the library. Once it has woken one application thread, and no other, several
    /// times in a row, it stands by, and that thread drives while it blocks.
    Thread,
    /// The application: a thread blocked in a call, or [`Network::drive`].
    Application,
}

/// A private host: a stack and the link that carries its frames. This is a handle: its clones and
/// all their sockets share the host, which ends with the last of them.
#[derive(Clone)]
pub struct Network {
    owner: Arc<Owner>,
}

/// Ends the host with the last handle.
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Network {
    /// Starts a host on `link`. The link's Ethernet address, MTU and offload replace those in
    /// `config`, and the link decides on reports of unused ports; a random seed replaces a seed
    /// of 0.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the system has no descriptor or thread left.
    pub fn new(link: Box<dyn Link>, mut config: Config, driving: Driving) -> io::Result<Network> {
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
        let clock = Clock::new();
        let stack = Stack::new(config, clock.now())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let threaded = driving == Driving::Thread;
        let shared = Arc::new(Shared::new(link, stack, clock, threaded)?);
        let mut thread = None;
        if threaded {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("towpath-net".into());
            thread = Some(builder.spawn(move || shared.run())?);
        }
        Ok(Network { owner: Arc::new(Owner { shared, thread: Mutex::new(thread) }) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.owner.shared
    }

    /// Receives, sends and handles due timers. Without work, waits for some, at most `timeout`.
    /// Only for networks without a library thread. If another thread drives, waits for the end of
    /// its turn.
    ///
    /// # Errors
    /// If the link is dead.
    pub fn drive(&self, timeout: Duration) -> io::Result<()> {
        self.shared().drive(timeout)
    }

    /// Returns the stack's counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.shared().core().stack.counters()
    }

    /// Returns the number of TCP connections that are not closed yet: also those that the
    /// application has dropped, half-open ones, and closed ones of which it still has a handle.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared().core().stack.tcp_sizes().0
    }

    /// Returns every IP address of this host.
    #[must_use]
    pub fn addresses(&self) -> Vec<std::net::IpAddr> {
        self.shared().core().stack.addresses().map(|(address, _)| address).collect()
    }

    /// Waits until [`Network::connections`] is zero. The peers then have all data that was written
    /// before its stream was dropped, unless a reset or a timeout ended the connection. Drop
    /// listeners and streams first: a handle counts as a connection. A deadline beyond the clock's
    /// range never expires. Dropping the last handle ends the host without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if connections are still open then, or the link's error.
    pub fn drain(&self, timeout: Duration) -> io::Result<()> {
        let until = StdInstant::now().checked_add(timeout);
        while self.connections() > 0 {
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(StdInstant::now()));
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connections are still open"));
            }
            if self.shared().threaded {
                if let Some(error) = &self.shared().core().dead {
                    return Err(crate::error::link(error));
                }
                std::thread::sleep(left.min(Duration::from_millis(5)));
            } else {
                self.drive(left)?;
            }
        }
        Ok(())
    }

    /// Registers a socket's waiter.
    pub(crate) fn register(&self, id: SocketId) -> Arc<Waiter> {
        let waiter = Arc::new(match id {
            SocketId::Listener(_) => Waiter::waking_one(),
            SocketId::Tcp(_) | SocketId::Udp(_) => Waiter::default(),
        });
        self.shared().core().waiters.insert(id, waiter.clone());
        waiter
    }

    /// Removes a socket's waiter.
    pub(crate) fn unregister(&self, id: SocketId) {
        self.shared().core().waiters.remove(&id);
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("addresses", &self.addresses()).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

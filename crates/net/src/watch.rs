//! Sockets that something watches: a poller, a task, a descriptor.

use std::io;
use std::sync::Arc;

use towpath_stack::SocketId;

use crate::Network;
use crate::driver::SharedNetwork;
use crate::readiness::{Interest, Ready, Trigger};
use crate::ready_set::{Member, Set};
use crate::wait::Waiter;
#[cfg(feature = "tokio")]
use crate::watchers::TaskDirection;
use crate::watchers::WatchersGuard;

/// A socket that a [`Poller`](crate::Poller) can watch: [`TcpStream`](crate::TcpStream),
/// [`TcpListener`](crate::TcpListener) or [`UdpSocket`](crate::UdpSocket).
///
/// ```
/// use std::io;
/// use towpath_net::{Events, Interest, Poller, Source, Trigger};
///
/// /// Waits until a socket of any kind has something to read or to accept.
/// fn wait(socket: &impl Source) -> io::Result<()> {
///     let poller = Poller::new()?;
///     poller.register(socket, 0, Interest::READABLE, Trigger::Level)?;
///     poller.wait(&mut Events::default(), None).map(|_| ())
/// }
/// ```
pub trait Source: private::Watchable {}

pub(crate) mod private {
    /// Gives pollers access to a socket's network, number and watchers.
    pub trait Watchable {
        fn socket_ref(&self) -> super::SocketRef<'_>;
    }
}

/// A reference to a socket, for the pollers, tasks and descriptors that watch it.
#[derive(Clone, Copy)]
pub struct SocketRef<'a> {
    network: &'a Network,
    id: SocketId,
    waiter: &'a Arc<Waiter>,
}

impl<'a> SocketRef<'a> {
    pub(crate) fn new(network: &'a Network, id: SocketId, waiter: &'a Arc<Waiter>) -> Self {
        SocketRef { network, id, waiter }
    }

    /// Returns the network's state.
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub(crate) fn network(&self) -> io::Result<&'a Arc<SharedNetwork>> {
        self.network.checked_arc()
    }

    /// Locks the socket's watchers. Check first that the process was not forked.
    pub(crate) fn watchers(&self) -> WatchersGuard<'a> {
        self.waiter.watchers.lock()
    }

    /// Stores the waker that the next event in this direction wakes.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_by(&self, direction: TaskDirection, waker: &std::task::Waker) {
        let earlier = self.watchers().tasks.poll(direction, waker);
        drop(earlier);
    }

    /// Has the network report what happens to the socket. Returns what the socket is ready for now.
    pub(crate) fn start_watching(&self) -> io::Result<Ready> {
        Ok(self.network()?.start_watching(self.id))
    }

    /// Adds a member of a set.
    ///
    /// # Errors
    /// If the set has this socket already.
    pub(crate) fn add_member(
        &self,
        set: &Arc<Set>,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<Arc<Member>> {
        let network = self.network()?.clone();
        let mut watchers = self.watchers();
        if watchers.members.iter().any(|other| other.is_of(set)) {
            let text = "the socket is registered with this poller; use modify to change that";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let member = Member::new(set, (network, self.id), (token, interest, trigger));
        watchers.members.push(member.clone());
        Ok(member)
    }

    /// Returns the member of a set.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn member(&self, set: &Arc<Set>) -> io::Result<Arc<Member>> {
        let watchers = self.watchers();
        let found = watchers.members.iter().find(|member| member.is_of(set));
        found.cloned().ok_or_else(not_registered)
    }

    /// Removes the member of a set.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn remove_member(&self, set: &Arc<Set>) -> io::Result<()> {
        let mut watchers = self.watchers();
        let found = watchers.members.iter().position(|member| member.is_of(set));
        watchers.members.swap_remove(found.ok_or_else(not_registered)?).end();
        Ok(())
    }
}

fn not_registered() -> io::Error {
    let text = "the socket is not registered with this poller";
    io::Error::new(io::ErrorKind::NotFound, text)
}

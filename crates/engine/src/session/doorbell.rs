//! The way in which the server notifies an application.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::relays::Relay;

/// The way in which the server notifies an application. An application can make a notification take
/// arbitrarily long. Where others would wait for it, the worker of the application's user notifies;
/// otherwise the engine does.
#[derive(Clone, Debug)]
pub struct Doorbell {
    /// The server's end of the doorbell, which all lanes share; `None` once the session is over.
    socket: Option<Arc<OwnedFd>>,
    /// The worker's part; `None` where there is no worker.
    relay: Option<Relay>,
}

impl Doorbell {
    /// Returns a doorbell for which the worker of `relay` notifies where others would wait for that.
    pub fn new(socket: OwnedFd, relay: Relay) -> Doorbell {
        Doorbell { socket: Some(Arc::new(socket)), relay: Some(relay) }
    }

    /// Returns a doorbell that the engine itself always uses. The application must be trusted not
    /// to prolong a notification.
    #[must_use]
    pub fn direct(socket: OwnedFd) -> Doorbell {
        Doorbell { socket: Some(Arc::new(socket)), relay: None }
    }

    /// Takes the server's end of the doorbell out.
    pub(super) fn take_socket(&mut self) -> Option<Arc<OwnedFd>> {
        self.socket.take()
    }

    /// Returns the server's end of the doorbell.
    pub(crate) fn into_socket(self) -> Option<Arc<OwnedFd>> {
        self.socket
    }

    /// Returns the doorbell of a session that its application has yet to claim.
    pub fn none() -> Doorbell {
        Doorbell { socket: None, relay: None }
    }

    /// Returns the worker that can notify in place of the engine.
    pub(crate) fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// Notifies the application. The kernel walks the list of all waiters of the doorbell.
    pub(crate) fn notify(&self) {
        if let Some(socket) = &self.socket {
            // A full socket already holds a notification. The worker notices a closed one.
            towpath_protocol::doorbell::notify(socket);
        }
    }
}

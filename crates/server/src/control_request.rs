//! Requests to the control thread from its own process.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use crate::config::PolicyError;
use crate::policy::{Policy, PolicyChange};

/// A request of the server's owner to the control thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// Serves the peer on this connected socket, with an administrator's rights: an application in the same
    /// process, or one that was given the socket.
    Adopt(OwnedFd),
    /// Serves under another policy from now on, and tells what became of the sessions.
    Policy(Box<Policy>, Sender<Result<PolicyChange, PolicyError>>),
    /// Ends the server, and leaves its sessions for the next one.
    Leave,
    /// Ends the server.
    Stop,
}

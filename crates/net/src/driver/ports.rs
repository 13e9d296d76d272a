//! The local ports of a network whose link opens each of them.

use std::net::SocketAddr;

use towpath_stack::{Instant, SocketError};

use super::{Core, SharedNetwork};
use crate::lock::lock;
use crate::{PortProtocol, error};

impl SharedNetwork {
    /// Opens a local port, if the link demands it, and calls `f` with the stack and the address.
    /// Closes the port again if `f` fails. Then sends the frames that result.
    ///
    /// # Errors
    /// The link's error if the link is dead: a new socket there would wait for ever.
    pub(crate) fn with_port<R>(
        &self,
        protocol: PortProtocol,
        local: SocketAddr,
        f: impl FnOnce(&mut Core, Instant, SocketAddr) -> Result<R, SocketError>,
    ) -> std::io::Result<R> {
        self.check_link()?;
        if !self.opens_ports {
            return self.with(|core, now| f(core, now, local)).map_err(error::socket);
        }
        // Under the link's lock the port of a TCP socket that has just ended is not closed between
        // the two steps.
        let mut link = lock(&self.link);
        let (opened, is_new) = match link.open_port(protocol, local) {
            Ok(opened) => opened,
            Err(error) => {
                drop(link);
                // Another thread may have found the lock taken, and left its frames to this one.
                self.kick();
                return Err(error);
            }
        };
        let outcome = f(&mut self.core(), self.clock.now(), opened);
        if outcome.is_err() && (is_new || protocol == PortProtocol::Udp) {
            link.close_port(protocol, opened);
        }
        drop(link);
        self.kick();
        outcome.map_err(error::socket)
    }
}

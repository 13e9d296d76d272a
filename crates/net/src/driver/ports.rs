//! The local ports of a network whose link opens each of them.

use std::net::SocketAddr;

use towpath_stack::{Instant, SocketError};

use super::{Core, SharedNetwork};
use crate::lock::lock;
use crate::options::of_ipv4;
use crate::{Link, PortProtocol, error};

/// Ports that a link has opened for a socket.
struct Opened {
    protocol: PortProtocol,
    local: SocketAddr,
    /// Those that were not open before, or whose sockets the link counts.
    to_undo: Vec<SocketAddr>,
}

impl Opened {
    fn undo(&self, link: &mut dyn Link) {
        self.to_undo.iter().for_each(|local| link.close_port(self.protocol, *local));
    }

    fn open(&mut self, link: &mut dyn Link, local: SocketAddr) -> std::io::Result<SocketAddr> {
        let (opened, is_new) = link.open_port(self.protocol, local)?;
        if is_new || self.protocol == PortProtocol::Udp {
            self.to_undo.push(opened);
        }
        Ok(opened)
    }
}

fn open(
    link: &mut dyn Link,
    protocol: PortProtocol,
    local: SocketAddr,
    is_dual: bool,
) -> std::io::Result<Opened> {
    let mut opened = Opened { protocol, local, to_undo: Vec::new() };
    opened.local = opened.open(link, local)?;
    if let Some(of_ipv4) = of_ipv4(opened.local).filter(|_| is_dual)
        && let Err(error) = opened.open(link, of_ipv4)
    {
        opened.undo(link);
        return Err(error);
    }
    Ok(opened)
}

impl SharedNetwork {
    /// Opens a local port, if the link demands it, and calls `f` with the stack and the address.
    /// Closes the port again if `f` fails. Then sends the frames that result. At `[::]` with `is_dual`, opens the port of
    /// IPv4, too.
    ///
    /// # Errors
    /// The link's error if the link is dead: a new socket there would wait for ever.
    pub(crate) fn with_port<R>(
        &self,
        protocol: PortProtocol,
        local: SocketAddr,
        is_dual: bool,
        f: impl FnOnce(&mut Core, Instant, SocketAddr) -> Result<R, SocketError>,
    ) -> std::io::Result<R> {
        self.check_link()?;
        if !self.opens_ports {
            return self.with(|core, now| f(core, now, local)).map_err(error::socket);
        }
        // Under the link's lock the port of a TCP socket that has just ended is not closed between
        // the two steps.
        let mut link = lock(&self.link);
        let opened = match open(&mut **link, protocol, local, is_dual) {
            Ok(opened) => opened,
            Err(error) => {
                drop(link);
                // Another thread may have found the lock taken, and left its frames to this one.
                self.kick();
                return Err(error);
            }
        };
        let outcome = f(&mut self.core(), self.clock.now(), opened.local);
        if outcome.is_err() {
            opened.undo(&mut **link);
        }
        drop(link);
        self.kick();
        outcome.map_err(error::socket)
    }
}

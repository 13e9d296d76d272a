//! The local ports of a network whose link opens each of them.

use std::io;
use std::net::SocketAddr;

use towpath_stack::{Instant, SocketError};

use super::{Core, SharedNetwork};
use crate::lock::lock;
use crate::options::of_ipv4;
use crate::{Link, PortProtocol, error};

/// The most ports that are tried for a socket of both families.
const ATTEMPTS: usize = 16;

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

    fn open(&mut self, link: &mut dyn Link, local: SocketAddr) -> io::Result<SocketAddr> {
        let (opened, is_new) = link.open_port(self.protocol, local)?;
        if is_new || self.protocol == PortProtocol::Udp {
            self.to_undo.push(opened);
        }
        Ok(opened)
    }

    /// Opens the port of each family that the socket takes.
    fn open_all(&mut self, link: &mut dyn Link, is_dual: bool) -> io::Result<()> {
        self.local = self.open(link, self.local)?;
        if let Some(of_ipv4) = of_ipv4(self.local).filter(|_| is_dual) {
            let of_ipv4 = self.open(link, of_ipv4)?;
            // Without addresses of IPv6, the link has chosen no port before.
            self.local.set_port(of_ipv4.port());
        }
        Ok(())
    }
}

/// Opens ports, and calls `f` with the address. If the link chooses the port of a socket of both families, tries
/// another one where a port is taken in one of the families.
fn open_for<R>(
    link: &mut dyn Link,
    protocol: PortProtocol,
    local: SocketAddr,
    is_dual: bool,
    mut f: impl FnMut(SocketAddr) -> Result<R, SocketError>,
) -> io::Result<R> {
    let chooses = is_dual && local.port() == 0 && of_ipv4(local).is_some();
    // The link does not choose these again while they are open.
    let mut refused = Vec::new();
    let outcome = loop {
        let mut opened = Opened { protocol, local, to_undo: Vec::new() };
        let outcome = match opened.open_all(link, is_dual) {
            Ok(()) => f(opened.local).map_err(error::socket),
            Err(error) => Err(error),
        };
        let Err(error) = &outcome else { break outcome };
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        refused.push(opened);
        if !chooses || !is_taken || refused.len() == ATTEMPTS {
            break outcome;
        }
    };
    refused.iter().for_each(|opened| opened.undo(link));
    outcome
}

impl SharedNetwork {
    /// Prepares the link for reports of groups, if the link demands it.
    ///
    /// # Errors
    /// The link's error.
    pub(crate) fn open_groups(&self, is_ipv4: bool) -> io::Result<()> {
        self.check_link()?;
        if !self.opens_ports {
            return Ok(());
        }
        let outcome = lock(&self.link).open_groups(is_ipv4);
        // Another thread may have found the lock taken, and left its frames to this one.
        self.kick();
        outcome
    }

    /// Opens a local port, if the link demands it, and calls `f` with the stack and the address.
    /// Closes the port again if `f` fails. Then sends the frames that result. A socket at `[::]` with `is_dual` also gets the
    /// port of IPv4.
    ///
    /// # Errors
    /// The link's error if the link is dead: a new socket there would wait for ever.
    pub(crate) fn with_port<R>(
        &self,
        protocol: PortProtocol,
        local: SocketAddr,
        is_dual: bool,
        mut f: impl FnMut(&mut Core, Instant, SocketAddr) -> Result<R, SocketError>,
    ) -> io::Result<R> {
        self.check_link()?;
        if !self.opens_ports {
            return self.with(|core, now| f(core, now, local)).map_err(error::socket);
        }
        // Under the link's lock the port of a TCP socket that has just ended is not closed between
        // the two steps.
        let mut link = lock(&self.link);
        let outcome = open_for(&mut **link, protocol, local, is_dual, |opened| {
            f(&mut self.core(), self.clock.now(), opened)
        });
        drop(link);
        // Another thread may have found the lock taken, and left its frames to this one.
        self.kick();
        outcome
    }
}

//! The end of a network and of its ports. Frames that wait are sent first.

use std::net::SocketAddr;
use std::time::{Duration, Instant as StdInstant};

use super::closing_ports::CHECK_INTERVAL;
use super::sleeping::Caller;
use super::{Core, Round, SharedNetwork};
use crate::lock::lock;
use crate::{LinkError, PortProtocol, error};

impl SharedNetwork {
    /// Closes the port of a UDP socket, if the link demands it, once the server has taken the socket's datagrams. Does not
    /// wait for that.
    pub(crate) fn close_udp_port(&self, local: SocketAddr) {
        if !self.opens_ports {
            return;
        }
        let mut link = lock(&self.link);
        // A dead link has nothing to send.
        let in_link = link.flush().and_then(|()| link.unsent()).unwrap_or(0);
        let (now, mut core) = (self.clock.now(), self.core());
        let Core { closing_ports, stack, .. } = &mut *core;
        let waits = closing_ports.push(local, stack, in_link, now);
        drop(core);
        if !waits {
            link.close_port(PortProtocol::Udp, local);
        }
        drop(link);
        // Another thread may have found the lock taken, and left its frames to this one.
        self.kick();
    }

    /// Returns the number of received frames that were lost before the stack.
    pub(crate) fn lost(&self) -> u64 {
        let lost = lock(&self.link).lost();
        self.send_for_others();
        lost
    }

    /// Returns the number of frames that would be lost if the network ended now.
    ///
    /// # Errors
    /// If the link is dead.
    pub(crate) fn unsent(&self) -> std::io::Result<usize> {
        let mut link = lock(&self.link);
        let core = self.core();
        if let Some(dead) = &core.dead {
            return Err(error::link(dead));
        }
        let unsent = core.stack.unsent();
        drop(core);
        let in_link = link.unsent().map_err(|dead| error::link(&dead))?;
        drop(link);
        self.send_for_others();
        Ok(unsent + in_link)
    }

    /// Drives the network until the server has sent all frames, for at most `timeout`. No other thread may use the
    /// network.
    pub(crate) fn send_the_rest(&self, timeout: Duration) {
        let until = StdInstant::now() + timeout;
        while self.unsent().is_ok_and(|unsent| unsent > 0) && StdInstant::now() < until {
            let in_link_only = self.core().stack.unsent() == 0;
            let driven = if in_link_only { self.wait_for_link() } else { self.drive_until(until) };
            if driven.is_err() {
                return;
            }
        }
    }

    fn drive_until(&self, until: StdInstant) -> Result<(), LinkError> {
        self.work_or_sleep(Some(&Caller { until: Some(until), awaits_answer: false }))
    }

    /// Runs a round, and waits for one interval for the server to send frames.
    fn wait_for_link(&self) -> Result<(), LinkError> {
        self.round(lock(&self.link).as_mut(), Round::Application)?;
        std::thread::sleep(CHECK_INTERVAL);
        Ok(())
    }

    /// Drops the frames that wait, and declares the link dead, because the program ends the network.
    pub(crate) fn end_by_program(&self) {
        self.core().stack.drop_unsent();
        self.die(LinkError::Gone("the program has ended the network; attach a new one".into()));
    }
}

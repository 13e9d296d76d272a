//! A link that stops the thread that drives its network, while that thread holds the network's locks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};

use towpath_net::{Armed, Link, LinkError, LinkInfo, Meta, PortProtocol, SessionLink};

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    holds_a_thread: bool,
}

/// Stops threads that receive while it is closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    /// Waits until the gate holds a thread.
    pub(super) fn wait_for_a_thread(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.holds_a_thread).unwrap());
    }

    pub(super) fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.holds_a_thread = state.is_closed;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.is_closed).unwrap();
        state.holds_a_thread = false;
    }
}

/// A session's link behind a gate. The network calls `receive` under both of its locks.
pub(super) struct GatedLink {
    pub(super) link: SessionLink,
    pub(super) gate: Arc<Gate>,
}

impl Link for GatedLink {
    fn info(&self) -> LinkInfo {
        self.link.info()
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.link.sleep_fd()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        self.link.prepare()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        self.gate.pass();
        self.link.receive(budget, take)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        self.link.has_news()
    }

    fn room(&mut self, len: usize) -> bool {
        self.link.room(len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.link.transmit(len, meta, fill)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        self.link.arm(blocked)
    }

    fn disarm(&mut self) {
        self.link.disarm();
    }

    fn opens_ports(&self) -> bool {
        self.link.opens_ports()
    }

    fn open_port(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> io::Result<(SocketAddr, bool)> {
        self.link.open_port(protocol, local)
    }

    fn next_revoked_port(&mut self) -> Option<(PortProtocol, bool, u16)> {
        self.link.next_revoked_port()
    }

    fn close_port(&mut self, protocol: PortProtocol, local: SocketAddr) {
        self.link.close_port(protocol, local);
    }
}

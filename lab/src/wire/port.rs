//! An end of the wire inside of this process: the link of a Towpath network.
//!
//! Frames pass in both directions under one lock, with their memory: nothing is copied. The lock is
//! held for a few instructions, and never across a system call. The wire never waits for it: the
//! scheduler may stop the network's thread at any instruction, and the wire has to be punctual.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_net::{Armed, Link, LinkError, LinkInfo, Meta, Offload};

use super::frame::{FRAME_BYTES, Frame, MTU_BYTES};

/// The frames that wait for the wire, as in the ring of a network card.
const RING_FRAMES: usize = 256;
/// The frames that the link takes between two flushes.
const BATCH: usize = 64;
/// The frames that wait for the network; more are refused.
const WAITING_FRAMES: usize = 4096;

/// Wakes a sleeper.
pub(super) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(super) fn new() -> anyhow::Result<Doorbell> {
        Ok(Doorbell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn notify(&self) {
        // A counter at its limit is readable, too.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable.
    pub(super) fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

#[derive(Default)]
struct State {
    to_wire: VecDeque<Frame>,
    to_link: VecDeque<Frame>,
    /// Frames without content, for the link to fill.
    empty: Vec<Frame>,
    wire_sleeps: bool,
    link_sleeps: bool,
    /// `true` if the link waits for room in `to_wire`.
    wants_room: bool,
}

/// What the wire and the link share.
pub(super) struct Port {
    pub(super) mac: [u8; 6],
    state: Mutex<State>,
    wire: Arc<Doorbell>,
    link: Doorbell,
}

impl Port {
    /// Makes a port, and the link at its other side. `wire` wakes the wire.
    pub(super) fn new(mac: [u8; 6], wire: Arc<Doorbell>) -> anyhow::Result<(Arc<Port>, PortLink)> {
        let port = Port { mac, state: Mutex::default(), wire, link: Doorbell::new()? };
        let port = Arc::new(port);
        let link = PortLink {
            port: port.clone(),
            received: VecDeque::new(),
            used: Vec::new(),
            outgoing: VecDeque::new(),
            spare: Vec::new(),
        };
        Ok((port, link))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, unless the link has it.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Moves at most `budget` frames of the link to `out`. `spare` gives frames back for them.
    pub(super) fn take(&self, out: &mut Vec<Frame>, budget: usize, spare: &mut Vec<Frame>) {
        let Some(mut state) = self.try_state() else { return };
        let count = budget.min(state.to_wire.len());
        out.extend(state.to_wire.drain(..count));
        let surplus = state.empty.len().saturating_sub(2 * RING_FRAMES);
        spare.extend(state.empty.drain(..surplus));
        while state.empty.len() < BATCH
            && let Some(frame) = spare.pop()
        {
            state.empty.push(frame);
        }
        let ring = count > 0 && std::mem::take(&mut state.wants_room);
        drop(state);
        if ring {
            self.link.notify();
        }
    }

    /// Gives the link frames, unless it has the lock now. Returns how many it refused, because too
    /// many wait; these are then in `spare`.
    pub(super) fn give(&self, frames: &mut VecDeque<Frame>, spare: &mut Vec<Frame>) -> u64 {
        let Some(mut state) = self.try_state().filter(|_| !frames.is_empty()) else { return 0 };
        let room = WAITING_FRAMES.saturating_sub(state.to_link.len());
        let count = room.min(frames.len());
        state.to_link.extend(frames.drain(..count));
        let ring = std::mem::take(&mut state.link_sleeps);
        drop(state);
        if ring {
            self.link.notify();
        }
        let refused = frames.len() as u64;
        spare.extend(frames.drain(..));
        refused
    }

    /// Notes that the wire sleeps. Returns `false` if a frame waits for it, or may be about to.
    pub(super) fn wire_sleeps(&self) -> bool {
        let Some(mut state) = self.try_state() else { return false };
        state.wire_sleeps = state.to_wire.is_empty();
        state.wire_sleeps
    }

    /// Notes that the wire is awake. Otherwise the link notifies it for nothing.
    pub(super) fn wire_awake(&self) {
        if let Some(mut state) = self.try_state() {
            state.wire_sleeps = false;
        }
    }
}

/// The network's side of a port.
pub(super) struct PortLink {
    port: Arc<Port>,
    received: VecDeque<Frame>,
    /// Frames that the network has received, to be given back.
    used: Vec<Frame>,
    outgoing: VecDeque<Frame>,
    /// Frames to fill.
    spare: Vec<Frame>,
}

impl Link for PortLink {
    fn info(&self) -> LinkInfo {
        let offload =
            Offload { checksum: false, tcp_segmentation: false, max_frame_bytes: FRAME_BYTES };
        LinkInfo { mac: self.port.mac.into(), mtu: MTU_BYTES, offload }
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.port.link.fd().as_fd().try_clone_to_owned()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        let mut state = self.port.state();
        if self.received.is_empty() {
            std::mem::swap(&mut self.received, &mut state.to_link);
        }
        state.empty.append(&mut self.used);
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let count = budget.min(self.received.len());
        for frame in self.received.drain(..count) {
            take(frame.data(), Meta::FULL);
            self.used.push(frame);
        }
        Ok(count)
    }

    fn room(&mut self, len: usize) -> bool {
        self.outgoing.len() < BATCH && len <= FRAME_BYTES
    }

    fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if !self.room(len) {
            return false;
        }
        let mut frame = self.spare.pop().unwrap_or_else(Frame::new);
        fill(frame.resized(len));
        self.outgoing.push_back(frame);
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let mut state = self.port.state();
        let room = RING_FRAMES.saturating_sub(state.to_wire.len());
        let count = room.min(self.outgoing.len());
        state.to_wire.extend(self.outgoing.drain(..count));
        state.wants_room |= !self.outgoing.is_empty();
        while self.spare.len() < BATCH
            && let Some(frame) = state.empty.pop()
        {
            self.spare.push(frame);
        }
        let ring = std::mem::take(&mut state.wire_sleeps);
        drop(state);
        if ring {
            self.port.wire.notify();
        }
        Ok(())
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        self.flush()?;
        let mut state = self.port.state();
        let has_room = self.outgoing.is_empty() && state.to_wire.len() < RING_FRAMES;
        if !self.received.is_empty() || !state.to_link.is_empty() || blocked && has_room {
            return Ok(Armed::Work);
        }
        // The doorbell announces room, too, so the descriptor need never be writable.
        state.wants_room |= blocked;
        state.link_sleeps = true;
        Ok(Armed::Sleep { writable: false })
    }

    fn disarm(&mut self) {
        self.port.state().link_sleeps = false;
        self.port.link.quiet();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> (Arc<Port>, PortLink, Arc<Doorbell>) {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (port, link) = Port::new([2, 0, 0, 0, 0, 1], doorbell.clone()).unwrap();
        (port, link, doorbell)
    }

    fn rings(doorbell: &Doorbell) -> bool {
        let mut counter = [0; 8];
        rustix::io::read(doorbell.fd(), &mut counter).is_ok()
    }

    #[test]
    fn frames_pass_and_sleepers_wake() {
        let (port, mut link, doorbell) = port();
        assert!(link.transmit(60, Meta::FULL, &mut |frame| frame.fill(7)));
        link.flush().unwrap();
        assert!(!rings(&doorbell), "the wire is awake");
        assert!(!port.wire_sleeps(), "a frame waits");
        let (mut out, mut spare) = (Vec::new(), Vec::new());
        port.take(&mut out, 10, &mut spare);
        assert_eq!(out[0].data(), [7; 60]);
        assert!(port.wire_sleeps());
        assert!(link.transmit(60, Meta::FULL, &mut |frame| frame.fill(8)));
        link.flush().unwrap();
        assert!(rings(&doorbell));

        assert_eq!(link.arm(false).unwrap(), Armed::Sleep { writable: false });
        assert_eq!(port.give(&mut VecDeque::from(out), &mut spare), 0);
        assert!(rings(&port.link));
        assert_eq!(link.arm(false).unwrap(), Armed::Work);
        link.prepare().unwrap();
        let mut got = Vec::new();
        assert_eq!(link.receive(10, &mut |data, _| got = data.to_vec()).unwrap(), 1);
        assert_eq!(got, [7; 60]);
    }

    #[test]
    fn a_full_ring_refuses_and_announces_room() {
        let (port, mut link, _bell) = port();
        let mut taken = 0;
        while link.transmit(1000, Meta::FULL, &mut |_| ()) {
            taken += 1;
            if !link.room(1000) {
                link.flush().unwrap();
            }
        }
        assert_eq!(taken, RING_FRAMES + BATCH);
        assert_eq!(link.arm(true).unwrap(), Armed::Sleep { writable: false });
        let mut out = Vec::new();
        port.take(&mut out, 10, &mut Vec::new());
        assert!(rings(&port.link));
        assert_eq!(link.arm(true).unwrap(), Armed::Sleep { writable: false }, "full again");
        port.take(&mut out, 1000, &mut Vec::new());
        assert_eq!(link.arm(true).unwrap(), Armed::Work);
        link.flush().unwrap();
        port.take(&mut out, 1000, &mut Vec::new());
        assert_eq!(out.len(), taken, "each frame once");
    }

    #[test]
    fn a_network_that_does_not_receive_loses_frames() {
        let (port, _link, _bell) = port();
        let mut frames: VecDeque<_> = (0..WAITING_FRAMES + 3).map(|_| Frame::new()).collect();
        let mut spare = Vec::new();
        assert_eq!(port.give(&mut frames, &mut spare), 3);
        assert_eq!((frames.len(), spare.len()), (0, 3));
    }

    #[test]
    fn the_wire_does_not_wait_for_the_link() {
        let (port, _link, _bell) = port();
        let (mut frames, mut spare) = (VecDeque::from([Frame::new()]), Vec::new());
        let state = port.state();
        assert_eq!(port.give(&mut frames, &mut spare), 0);
        port.take(&mut spare, 10, &mut Vec::new());
        assert!(!port.wire_sleeps());
        assert_eq!((frames.len(), spare.len()), (1, 0), "for the next time");
        drop(state);
        assert_eq!(port.give(&mut frames, &mut spare), 0);
        assert_eq!((frames.len(), port.state().to_link.len()), (0, 1));
    }
}

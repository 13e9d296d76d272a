//! One connection: smoltcp's socket and what the stack keeps beside it.

use std::net::SocketAddr;
use std::time::Duration;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, State};

use super::port::{Path, Sent};
use super::recovery::Recovery;
use super::segment::{self, Segment, before};
use super::window::Window;
use crate::config::{CongestionControl, TcpConfig};
use crate::{Instant, ListenerId, SocketError};

/// Addresses and ports of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// Whose turn the connection is, beside what TCP says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener: half open, or waiting to be accepted.
    Listener(ListenerId),
    /// The application.
    Application,
    /// No owner: the connection ends by itself.
    Nobody,
}

/// Missed answers to keep-alives before the connection is given up.
const KEEP_ALIVE_PROBES: u32 = 9;

/// See the module.
pub(super) struct Connection {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) tuple: Tuple,
    pub(super) path: Path,
    pub(super) owner: Owner,
    /// Why the connection ended, until a caller has asked.
    pub(super) error: Option<SocketError>,
    /// It was established once.
    pub(super) established: bool,
    /// The application reads no more: what comes is thrown away.
    pub(super) read_shut: bool,
    /// The application writes no more, and smoltcp is told so when everything has arrived.
    pub(super) finishing: bool,
    /// The tuple is not ours any more: nothing comes and nothing is sent.
    pub(super) detached: bool,
    /// Queued to be looked at.
    pub(super) dirty: bool,
    /// Told to the application, which has not looked since.
    pub(super) told: bool,
    /// The last acknowledgement sent.
    pub(super) acknowledged: u32,
    /// The peer's last acknowledgement.
    pub(super) acknowledged_to: u32,
    /// How far the peer's windows are to be shifted (RFC 7323, 2.2).
    pub(super) window_shift: u8,
    /// The end of our own window.
    pub(super) window: Window,
    /// What is lost.
    pub(super) recovery: Recovery,
    pub(super) last_heard: Instant,
    /// Since when something waits for the peer's acknowledgement.
    pub(super) waiting_since: Option<Instant>,
    /// When the state that it is in has lasted too long.
    pub(super) give_up_at: Option<Instant>,
    pub(super) keep_alive: Option<Duration>,
}

impl Connection {
    pub(super) fn new(
        tuple: Tuple,
        path: Path,
        owner: Owner,
        config: &TcpConfig,
        now: Instant,
    ) -> Self {
        let receive = tcp::SocketBuffer::new(vec![0; config.receive_buffer_bytes]);
        let send = tcp::SocketBuffer::new(vec![0; config.send_buffer_bytes]);
        let mut socket = tcp::Socket::new(receive, send);
        socket.set_congestion_control(match config.congestion_control {
            CongestionControl::Cubic => tcp::CongestionControl::Cubic,
            CongestionControl::Reno => tcp::CongestionControl::Reno,
            CongestionControl::None => tcp::CongestionControl::None,
        });
        socket.set_ack_delay(Some(smol(config.ack_delay)));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Connection {
            sockets,
            handle,
            tuple,
            path,
            owner,
            error: None,
            established: false,
            read_shut: false,
            finishing: false,
            detached: false,
            dirty: false,
            told: false,
            acknowledged: 0,
            acknowledged_to: 0,
            window_shift: 0,
            window: Window::default(),
            recovery: Recovery::default(),
            last_heard: now,
            waiting_since: None,
            give_up_at: None,
            keep_alive: None,
        }
    }

    pub(super) fn sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.sockets
    }

    pub(super) fn socket(&self) -> &tcp::Socket<'static> {
        self.sockets.get(self.handle)
    }

    pub(super) fn socket_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn state(&self) -> State {
        self.socket().state()
    }

    /// Waiting for the handshake's end.
    pub(super) fn connecting(&self) -> bool {
        matches!(self.state(), State::Listen | State::SynSent | State::SynReceived)
    }

    /// Closes our direction. In LAST-ACK smoltcp hears neither duplicate acknowledgements nor news
    /// of the peer's window, so that what is lost there would wait for its long timeout. So the FIN
    /// of the side that is last waits until everything before it has arrived.
    pub(super) fn finish(&mut self) {
        self.finishing = self.state() == State::CloseWait && self.socket().send_queue() > 0;
        if !self.finishing {
            self.socket_mut().close();
        }
    }

    /// Bytes or a FIN that the peer has not acknowledged, sent or not.
    fn owes(&self) -> bool {
        self.socket().send_queue() > 0
            || matches!(self.state(), State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Notes how far the peer lets us send.
    pub(super) fn note_window(&mut self, seg: &Segment) {
        if !seg.has(segment::ACK) {
            return;
        }
        let shift = if seg.has(segment::SYN) { 0 } else { self.window_shift };
        let edge = seg.acknowledgement.wrapping_add(u32::from(seg.window) << shift);
        // The edge may move back a little, when the peer rounds its window to what it can say.
        if !before(seg.acknowledgement, self.acknowledged_to) || self.path.edge.is_none() {
            self.acknowledged_to = seg.acknowledgement;
            self.path.edge = Some(edge);
        }
    }

    /// Returns whether a segment with this sequence number was sent and is not acknowledged, as far
    /// as an ICMP error about it is concerned (RFC 5927, 4.1).
    pub(super) fn in_flight(&self, sequence: u32, config: &TcpConfig) -> bool {
        let Some(end) = self.path.sent_to else { return false };
        // As much as is ever in flight, with SYN and FIN: all there is before the peer's first word.
        let most = config.send_buffer_bytes as u32 + 2;
        let flight = match self.path.edge {
            Some(_) => end.wrapping_sub(self.acknowledged_to).min(most),
            None => most,
        };
        (1..=flight).contains(&end.wrapping_sub(sequence))
    }

    /// Notes what was sent. True when it had been sent before.
    pub(super) fn note_sent(&mut self, now: Instant, sent: &Sent) -> bool {
        self.window.note_sent(sent);
        if sent.flags & segment::ACK != 0 {
            self.acknowledged = sent.acknowledgement;
        }
        if sent.len == 0 {
            return false;
        }
        let end = sent.sequence.wrapping_add(sent.len);
        match self.path.sent_to {
            // A keep-alive lies before what was sent, and is one byte long.
            Some(to) if !before(to, end) => {
                let again = sent.len > 1 || before(end, to);
                if again {
                    self.recovery.sent(now, end, true);
                }
                again
            }
            _ => {
                let again = self.path.sent_to.is_some_and(|to| before(sent.sequence, to));
                self.path.sent_to = Some(end);
                self.recovery.sent(now, end, again);
                again
            }
        }
    }

    /// Starts or stops the clocks that smoltcp does not have.
    pub(super) fn note_time(&mut self, now: Instant, config: &TcpConfig) {
        if !self.owes() {
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
        if self.owner == Owner::Nobody && !self.detached && self.give_up_at.is_none() {
            self.give_up_at = Some(now + config.orphan_timeout);
        }
    }

    /// When the connection is to be given up, as things stand.
    pub(super) fn deadline(&self, config: &TcpConfig) -> Option<Instant> {
        // What a silent peer owes counts from when it last said anything.
        let silent = self
            .waiting_since
            .filter(|_| !self.connecting())
            .map(|since| since.max(self.last_heard) + config.user_timeout);
        let dead = self
            .keep_alive
            .filter(|_| self.established && self.state() != State::Closed)
            .map(|interval| self.last_heard + interval * (KEEP_ALIVE_PROBES + 1));
        [self.give_up_at, silent, dead].into_iter().flatten().min()
    }

    /// Whether a read would not have to wait.
    pub(super) fn readable(&self) -> bool {
        let socket = self.socket();
        socket.can_recv()
            || self.error.is_some()
            || self.read_shut
            || (!self.connecting() && !socket.may_recv())
    }

    /// Whether a write would not have to wait.
    pub(super) fn writable(&self) -> bool {
        let socket = self.socket();
        !self.connecting() && (socket.can_send() || !socket.may_send() || self.finishing)
    }

    /// Both directions are over.
    pub(super) fn closed(&self) -> bool {
        self.error.is_some() || matches!(self.state(), State::Closed | State::TimeWait)
    }
}

pub(super) fn smol(duration: Duration) -> smoltcp::time::Duration {
    smoltcp::time::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

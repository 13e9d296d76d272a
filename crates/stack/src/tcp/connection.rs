//! One connection: smoltcp's socket and the stack's state beside it.

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

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener: half open, or waiting to be accepted.
    Listener(ListenerId),
    /// The application.
    Application,
    /// No owner: the application closed the connection, which ends by itself.
    None,
}

/// The number of unanswered keep-alives after which the stack gives the connection up.
const KEEP_ALIVE_PROBES: u32 = 9;

/// See the module.
pub(super) struct Connection {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) tuple: Tuple,
    pub(super) path: Path,
    pub(super) owner: Owner,
    /// The reason why the connection ended, until the application has read it.
    pub(super) error: Option<SocketError>,
    /// `true` once the connection was established.
    pub(super) established: bool,
    /// `true` if the application has stopped reading: the stack discards received data.
    pub(super) read_shut: bool,
    /// `true` if the application has stopped writing, and the stack delays smoltcp's close until
    /// the peer has acknowledged everything.
    pub(super) finishing: bool,
    /// `true` if another connection may use the tuple: this connection neither sends nor receives.
    pub(super) detached: bool,
    /// `true` if the connection is queued for a visit.
    pub(super) dirty: bool,
    /// `true` if the connection was reported to the application, which has not checked it since.
    pub(super) told: bool,
    /// The last acknowledgement sent.
    pub(super) acknowledged: u32,
    /// The peer's last acknowledgement.
    pub(super) acknowledged_to: u32,
    /// The shift of the peer's windows (RFC 7323, 2.2).
    pub(super) window_shift: u8,
    /// The end of our own window.
    pub(super) window: Window,
    /// Loss detection.
    pub(super) recovery: Recovery,
    pub(super) last_heard: Instant,
    /// The time since which data waits for the peer's acknowledgement.
    pub(super) waiting_since: Option<Instant>,
    /// The time at which the present state has lasted too long.
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

    /// Returns `true` during the handshake.
    pub(super) fn connecting(&self) -> bool {
        matches!(self.state(), State::Listen | State::SynSent | State::SynReceived)
    }

    /// Closes our direction. In LAST-ACK smoltcp processes neither duplicate acknowledgements nor
    /// window updates, so data lost there would wait for smoltcp's long timeout. So if the peer
    /// closed first, our FIN waits until the peer has acknowledged everything before it.
    pub(super) fn finish(&mut self) {
        self.finishing = self.state() == State::CloseWait && self.socket().send_queue() > 0;
        if !self.finishing {
            self.socket_mut().close();
        }
    }

    /// Returns `true` if the peer has yet to acknowledge bytes or a FIN, sent or not.
    fn owes(&self) -> bool {
        self.socket().send_queue() > 0
            || matches!(self.state(), State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Records the end of the peer's window.
    pub(super) fn note_window(&mut self, seg: &Segment) {
        if !seg.has(segment::ACK) {
            return;
        }
        let shift = if seg.has(segment::SYN) { 0 } else { self.window_shift };
        let edge = seg.acknowledgement.wrapping_add(u32::from(seg.window) << shift);
        // The edge may move back a little if the peer rounds its window to a value that the header
        // can express.
        if !before(seg.acknowledgement, self.acknowledged_to) || self.path.edge.is_none() {
            self.acknowledged_to = seg.acknowledgement;
            self.path.edge = Some(edge);
        }
    }

    /// Returns `true` if a segment with this sequence number is in flight, so that an ICMP error
    /// about it is credible (RFC 5927, 4.1).
    pub(super) fn in_flight(&self, sequence: u32, config: &TcpConfig) -> bool {
        let Some(end) = self.path.sent_to else { return false };
        // The maximum ever in flight, with SYN and FIN. Before the peer's first segment there is no
        // other bound.
        let most = config.send_buffer_bytes as u32 + 2;
        let flight = match self.path.edge {
            Some(_) => end.wrapping_sub(self.acknowledged_to).min(most),
            None => most,
        };
        (1..=flight).contains(&end.wrapping_sub(sequence))
    }

    /// Records a sent segment. Returns `true` for a retransmission.
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
            // A keep-alive precedes the sent data, and is one byte long.
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

    /// Starts or stops the timers that smoltcp does not have.
    pub(super) fn note_time(&mut self, now: Instant, config: &TcpConfig) {
        if !self.owes() {
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
        if self.owner == Owner::None && !self.detached && self.give_up_at.is_none() {
            self.give_up_at = Some(now + config.orphan_timeout);
        }
    }

    /// Returns the time at which to give the connection up, in its present state.
    pub(super) fn deadline(&self, config: &TcpConfig) -> Option<Instant> {
        // The time of a silent peer counts from its last segment.
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

    /// Returns `true` if a read would not have to wait.
    pub(super) fn readable(&self) -> bool {
        let socket = self.socket();
        socket.can_recv()
            || self.error.is_some()
            || self.read_shut
            || (!self.connecting() && !socket.may_recv())
    }

    /// Returns `true` if a write would not have to wait.
    pub(super) fn writable(&self) -> bool {
        let socket = self.socket();
        !self.connecting() && (socket.can_send() || !socket.may_send() || self.finishing)
    }

    /// Returns `true` if both directions are closed, or an error is pending.
    pub(super) fn closed(&self) -> bool {
        self.error.is_some() || matches!(self.state(), State::Closed | State::TimeWait)
    }
}

pub(super) fn smol(duration: Duration) -> smoltcp::time::Duration {
    smoltcp::time::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// Returns an address and port as smoltcp's type.
pub(super) fn smol_endpoint(address: SocketAddr) -> smoltcp::wire::IpEndpoint {
    smoltcp::wire::IpEndpoint::new(address.ip().into(), address.port())
}

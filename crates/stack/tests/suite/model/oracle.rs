//! The oracle: what RFC 9293 says of a connection. The code is independent of the stack's own.
//!
//! Where the RFC leaves freedom, a transition returns several oracles, each with the answer that goes
//! with it. What the stack then does decides which of them remain.

use towpath_stack::{SocketError, TcpState};

/// The states of RFC 9293, 3.3.2. The oracle knows one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No connection; the next SYN meets a listener if there is one.
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// What the stack sends at once after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No segment at all.
    Nothing,
    /// Segments with data or FIN, which a new window or acknowledgement allows, acknowledgements, or
    /// nothing.
    MayAck,
    /// At least one segment that acknowledges.
    MustAck,
    /// The same, unless the stack has just sent one (RFC 5961, 7).
    Challenge,
    /// One reset with these numbers, unless the stack counts that it has sent too many.
    Reset(u32, Option<u32>),
    /// A reset of this side's connection, with the next sequence number.
    Abort,
    /// A SYN, or a SYN with an acknowledgement.
    Syn,
    /// A SYN with an acknowledgement, an acknowledgement, or nothing.
    MaySyn,
}

/// A possible state of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oracle {
    pub listening: bool,
    pub state: State,
    /// `true` if this side began the connection.
    pub active: bool,
    /// `true` if the application has an id of the connection.
    pub held: bool,
    /// The time when the application dropped the connection, which continues without it.
    pub dropped: Option<u64>,
    /// The initial sequence number, once sent.
    pub iss: Option<u32>,
    pub una: u32,
    pub nxt: u32,
    /// The peer's largest window (RFC 5961, 5.2), and the furthest number that it has allowed.
    pub max_window: u32,
    pub edge: u32,
    /// The number of the segment that set the window (SND.WL1).
    pub wl1: u32,
    /// `true` if the peer has closed its window or taken a part back, or the stack has probed a
    /// closed one: it may acknowledge with a number within the window.
    pub shrunk: bool,
    /// The bytes that the application has written; `true` if it has ended the stream.
    pub written: u32,
    pub finishing: bool,
    pub irs: u32,
    pub rcv_nxt: u32,
    /// The number after the window that the stack has announced.
    pub rcv_edge: u32,
    /// The window of this side's SYN.
    pub first_window: u16,
    /// Data and FIN ahead of a gap.
    pub ahead: Vec<(u32, u32)>,
    pub fin_at: Option<u32>,
    /// `true` if the peer has ended the stream.
    pub ended: bool,
    /// The bytes to read.
    pub unread: u32,
    pub read: u32,
    pub read_shut: bool,
    pub error: Option<SocketError>,
    /// The shifts of the peer's windows and of the stack's.
    pub shifts: (u8, u8),
    pub stamps: bool,
    /// The time when the connection came into a state with a time limit.
    pub since: u64,
    /// The number that the stack acknowledged last.
    pub told: u32,
    /// The time since which an acknowledgement is due.
    pub owed: Option<u64>,
    /// The time of the last answer that may be limited.
    pub challenged: Option<u64>,
}

/// Returns `true` if `a` is not before `b`.
pub fn at_least(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// Oracles, each with its answer.
pub type Choices = Vec<(Oracle, Answer)>;

impl Oracle {
    pub fn new(listening: bool) -> Oracle {
        Oracle {
            listening,
            state: State::Closed,
            active: false,
            held: false,
            dropped: None,
            iss: None,
            una: 0,
            nxt: 0,
            max_window: 0,
            edge: 0,
            wl1: 0,
            shrunk: false,
            written: 0,
            finishing: false,
            irs: 0,
            rcv_nxt: 0,
            rcv_edge: 0,
            first_window: 0,
            ahead: Vec::new(),
            fin_at: None,
            ended: false,
            unread: 0,
            read: 0,
            read_shut: false,
            error: None,
            shifts: (0, 0),
            stamps: false,
            since: 0,
            told: 0,
            owed: None,
            challenged: None,
        }
    }

    /// Returns `true` if the peer's initial number is known.
    pub fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::Closed | State::SynSent)
    }

    /// Returns the state as the application sees it.
    pub fn class(&self) -> TcpState {
        match self.state {
            State::SynSent | State::SynReceived => TcpState::Connecting,
            State::Established => TcpState::Established,
            State::CloseWait => TcpState::PeerClosed,
            State::FinWait1 | State::FinWait2 => TcpState::LocalClosed,
            State::Closing | State::LastAck | State::TimeWait | State::Closed => TcpState::Over,
        }
    }

    /// Returns the number of connections and of TIME-WAIT entries. What the application holds
    /// counts, also after its end.
    pub fn sizes(&self) -> (usize, usize) {
        let lives = !matches!(self.state, State::Closed | State::TimeWait) || self.held;
        (lives.into(), (self.state == State::TimeWait).into())
    }

    /// Returns the number of the FIN that this side sends.
    fn fin_number(&self) -> u32 {
        self.iss.unwrap_or(0).wrapping_add(1).wrapping_add(self.written)
    }

    pub fn fin_acknowledged(&self) -> bool {
        self.finishing && at_least(self.una, self.fin_number().wrapping_add(1))
    }

    /// Ends the connection. The application keeps its id.
    pub fn end(&mut self, error: Option<SocketError>) {
        self.state = State::Closed;
        self.error = if self.held { error } else { None };
        self.owed = None;
        self.dropped = None;
    }

    pub fn with(mut self, change: impl FnOnce(&mut Oracle)) -> Oracle {
        change(&mut self);
        self
    }
}

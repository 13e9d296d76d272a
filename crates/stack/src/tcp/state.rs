//! The states of a connection.

use crate::ListenerId;

/// The state of a connection (RFC 9293, 3.3.2). LISTEN is a listener, and SYN-RECEIVED of a
/// listener's connection an entry of its table of half-open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl State {
    /// Returns `true` during the handshake.
    pub(super) fn is_opening(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived)
    }

    /// Returns `true` if the peer may still send data.
    pub(super) fn receives(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns `true` if this side may still send data.
    pub(super) fn sends(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Returns `true` if both directions are over.
    pub(super) fn is_over(self) -> bool {
        matches!(self, State::TimeWait | State::Closed)
    }
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener: the connection waits to be accepted.
    Listener(ListenerId),
    /// The application.
    Application,
    /// No owner: the application closed the connection, which ends by itself.
    None,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ecn {
    #[default]
    Off,
    /// Our SYN asks for it.
    Asked,
    On,
}

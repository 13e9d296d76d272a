//! The state of loss recovery. `acknowledge` and `timeout` change it: acknowledgements and timers,
//! and what they do to the congestion window.
//!
//! | source | used for |
//! |---|---|
//! | RFC 8985 | detection by time (RACK), tail loss probes (TLP) |
//! | RFC 6675, RFC 6582 | recovery with selective acknowledgements, and without (NewReno) |
//! | RFC 6937 | the window during recovery (proportional rate reduction) |
//! | RFC 6298 | the retransmission timeout |
//! | RFC 3522, RFC 4015 | taking back a spurious recovery (Eifel) |
//! | RFC 3168 | the reaction to marks of routers |

use super::options::Block;
use super::sequence::Seq;
use crate::Instant;

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing counts as lost.
    #[default]
    Open,
    /// Lost data is sent again, at the pace of the acknowledgements.
    Recovery,
    /// The retransmission timeout passed.
    Loss,
}

/// A segment that the connection has to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Forced {
    #[default]
    None,
    /// The first lost segment, whatever the congestion window.
    Lost,
    /// A tail loss probe: new data, or the last segment again.
    TailLossProbe,
    /// A zero-window probe: as much as fits, at least one byte (RFC 9293, 3.8.6.1).
    WindowProbe,
}

/// The first retransmission of a phase, which shows whether anything was lost (RFC 3522, 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FirstRetransmission {
    #[default]
    None,
    /// Our clock when it was sent: an earlier echo shows that nothing was lost.
    At(u32),
    /// The peer has acknowledged new data since. Echoes of later retransmissions tell nothing.
    Judged,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    pub(super) forced: Forced,
    /// The end of the data sent when the phase began.
    pub(super) point: Seq,
    /// Bytes in flight when recovery began; bytes reported and sent since (RFC 6937, 3).
    pub(super) flight: u32,
    pub(super) delivered: u32,
    pub(super) sent: u32,
    /// Duplicate acknowledgements, from a peer without selective ones.
    pub(super) duplicates: u8,
    /// What the first retransmission tells of this phase.
    pub(super) first_retransmission: FirstRetransmission,
    /// A tail loss probe in flight: the end of the data then, and `true` if it was sent before.
    pub(super) tail: Option<(Seq, bool)>,
    /// The end of the data sent when the reordering window widened last.
    pub(super) widened: Option<Seq>,
    /// The end of the data sent when a router's mark reduced the window last.
    pub(super) ecn_reduced: Option<Seq>,
    /// `true` if the next new data is to tell the peer of the reduction (CWR).
    pub(super) tell_reduced: bool,
    /// The time from which the retransmission timeout counts.
    pub(super) base: Instant,
    /// The time when data may count as lost, and the time of the next tail loss probe.
    pub(super) reorder_at: Option<Instant>,
    pub(super) probe_at: Option<Instant>,
    pub(super) has_sent: bool,
    /// `true` while a zero-window probe is in flight.
    pub(super) probes_window: bool,
    /// `true` if the peer reports received data selectively.
    pub(super) selective: bool,
}

/// An acknowledgement of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement<'a> {
    pub(super) number: Seq,
    pub(super) blocks: &'a [Block],
    /// `true` if it could be a duplicate: no data, no new window.
    pub(super) is_bare: bool,
    /// The peer's echo of our clock, and our clock now.
    pub(super) echo: Option<u32>,
    pub(super) clock: u32,
    /// `true` if a router marked a packet of ours (ECE).
    pub(super) ece: bool,
}

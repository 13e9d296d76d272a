//! The state by which the engine decides whether to poll a session.

use towpath_queue::doorbell::Sleeper;

/// Marks a parked session in [`Activity::at`].
pub(crate) const PARKED: u32 = u32::MAX;

/// The state by which the table of sessions decides whether the engine polls a session.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Tells the application to notify the engine even if the engine is awake.
    pub(crate) parking: Sleeper,
    /// The session's index in the list of active sessions, or [`PARKED`].
    pub(crate) at: u32,
    /// The engine's age at the last packet to send, in poll iterations.
    pub(crate) news_at: u64,
}

//! The reach of sessions: the sessions with which each exchanges out-of-band messages.

/// The users with whose sessions a user's sessions exchange out-of-band messages. Both sides have to
/// agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// No sessions.
    None,
    /// The sessions of the same user.
    #[default]
    Own,
    /// The sessions of the same user, and of each user with the same right.
    All,
}

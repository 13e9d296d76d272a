//! The decision whether the engine itself notifies applications.
//!
//! An application can make a notification take arbitrarily long. The engine therefore notifies only if no other user has
//! to wait meanwhile. Once two untrusted users have had sessions, the decision stays negative, because they could come
//! and go.

/// Whether the engine itself notifies applications; otherwise workers do.
#[derive(Debug)]
pub(crate) struct DirectNotification {
    is_direct: bool,
    /// The first untrusted user that had a session.
    untrusted: Option<u32>,
    /// `true` if a second one had.
    are_several: bool,
}

impl DirectNotification {
    /// Begins without sessions: the engine notifies.
    pub(crate) fn new() -> DirectNotification {
        DirectNotification { is_direct: true, untrusted: None, are_several: false }
    }

    /// Returns `true` if the engine notifies.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Records that an untrusted user has or had a session.
    pub(crate) fn note_untrusted(&mut self, uid: u32) {
        self.are_several |= *self.untrusted.get_or_insert(uid) != uid;
    }

    /// Decides anew. `serve_several`: `true` if several users have sessions. Returns `true` if the decision is another
    /// one than before.
    pub(crate) fn decide(&mut self, serve_several: bool) -> bool {
        let is_direct = !self.are_several && !serve_several;
        std::mem::replace(&mut self.is_direct, is_direct) != is_direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_notifies_one_user_only() {
        let mut notification = DirectNotification::new();
        notification.note_untrusted(7);
        assert!(!notification.decide(false) && notification.is_direct());
        // An administrator has a session for a while.
        assert!(notification.decide(true) && !notification.is_direct());
        assert!(!notification.decide(true));
        assert!(notification.decide(false) && notification.is_direct());
        notification.note_untrusted(7);
        assert!(!notification.decide(false));
    }

    #[test]
    fn after_two_untrusted_users_the_engine_notifies_no_more() {
        let mut notification = DirectNotification::new();
        notification.note_untrusted(7);
        notification.note_untrusted(8);
        assert!(notification.decide(false) && !notification.is_direct());
        assert!(!notification.decide(false) && !notification.is_direct());
    }
}

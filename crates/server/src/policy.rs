//! The rights of users. By default, root and the server's own user may do everything, and no other
//! user may attach. Grants by name admit further users.

use towpath_protocol::message::Refusal;
use towpath_protocol::peer::{OVERFLOW_UID, Peer};

/// Grants and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Users that may attach.
    pub users: Vec<u32>,
    /// Groups whose members may attach.
    pub groups: Vec<u32>,
    /// Concurrent sessions of one user.
    pub sessions_per_user: usize,
    /// Concurrent sessions of all users admitted as members of one group, taken together.
    pub sessions_per_group: usize,
    /// Bytes of memory that all sessions of one user may have together. Administrators have no such
    /// limit.
    pub bytes_per_user: usize,
    /// Bytes of memory that all parts of one session may have together.
    pub session_bytes: usize,
    /// Endpoints that one session may have.
    pub endpoints_per_session: u32,
    /// Concurrent control connections of all users together.
    pub connections: usize,
}

/// The accounts that a connection counts against. A user admitted as a member of a group counts for
/// that group, too. A member with many user numbers (`subuid(5)`) thereby gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) group: Option<u32>,
    /// `true` if the memory of the account's sessions is limited: the user is no administrator.
    pub(crate) is_limited: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            users: Vec::new(),
            groups: Vec::new(),
            sessions_per_user: 64,
            sessions_per_group: 256,
            bytes_per_user: 4 << 30,
            session_bytes: 256 << 20,
            endpoints_per_session: 16_384,
            connections: 2048,
        }
    }
}

/// The rights of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All rights: the peer is root or the server's own user.
    Administrator,
    /// The right to attach, and to send and receive with the given addresses.
    Granted,
}

impl Policy {
    /// Returns the number of concurrent control connections of one user. It exceeds the number of
    /// sessions, so that tools can connect, too.
    #[must_use]
    pub fn connections_per_user(&self) -> usize {
        self.sessions_per_user * 2 + 4
    }

    /// Returns a peer's rights, and the group that grants them if the policy does not name the user
    /// itself. `own` is the server's user. `all_known` is `true` if every user has a distinct
    /// number in the server's user namespace.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub fn standing(
        &self,
        peer: &Peer,
        own: u32,
        all_known: bool,
    ) -> Result<(Standing, Option<u32>), (Refusal, String)> {
        if peer.uid == OVERFLOW_UID && !all_known {
            let text = "your user has no number in the server's user namespace, or cannot be told \
                        from those that have none; run server and application in one user \
                        namespace, and not as user 65534";
            return Err((Refusal::Permission, text.into()));
        }
        if peer.uid == 0 || peer.uid == own {
            return Ok((Standing::Administrator, None));
        }
        if self.users.contains(&peer.uid) {
            return Ok((Standing::Granted, None));
        }
        let member = |group: &&u32| peer.gid == **group || peer.groups.contains(group);
        if let Some(group) = self.groups.iter().find(member) {
            return Ok((Standing::Granted, Some(*group)));
        }
        Err((
            Refusal::Permission,
            format!(
                "user {} may not use this device; add {} to allow-user, or one of its groups to \
                 allow-group, in the server's configuration",
                peer.uid, peer.uid
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid, groups: groups.to_vec(), pid: 1, process: None }
    }

    #[test]
    fn only_administrators_and_named_users_are_admitted() {
        let policy = Policy { users: vec![7], groups: vec![70], ..Policy::default() };
        let standing =
            |peer: &Peer| policy.standing(peer, 500, false).map_err(|(refusal, _)| refusal);
        assert_eq!(standing(&peer(0, 0, &[])), Ok((Standing::Administrator, None)));
        assert_eq!(standing(&peer(500, 1, &[])), Ok((Standing::Administrator, None)));
        assert_eq!(standing(&peer(7, 1, &[])), Ok((Standing::Granted, None)));
        assert_eq!(standing(&peer(7, 70, &[])), Ok((Standing::Granted, None)), "by name");
        assert_eq!(standing(&peer(8, 70, &[])), Ok((Standing::Granted, Some(70))));
        assert_eq!(standing(&peer(8, 1, &[5, 70])), Ok((Standing::Granted, Some(70))));
        assert_eq!(standing(&peer(8, 1, &[5])), Err(Refusal::Permission));
        let unknown = peer(OVERFLOW_UID, 70, &[]);
        assert_eq!(standing(&unknown), Err(Refusal::Permission));
        // A server that runs as the overflow user cannot tell its own user from users without a
        // number.
        let standing = |all_known| policy.standing(&unknown, OVERFLOW_UID, all_known).ok();
        assert_eq!(standing(false), None);
        assert_eq!(standing(true), Some((Standing::Administrator, None)));
    }
}

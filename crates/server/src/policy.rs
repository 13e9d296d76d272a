//! The rights of users. Over the administration socket, root and the server's own user may do everything. Otherwise
//! each user, root included, has the rights of a grant that names the user or one of its groups.

mod terms;

use std::net::IpAddr;
use std::sync::Arc;

use towpath_engine::account::Account;
use towpath_protocol::message::Refusal;
use towpath_protocol::peer::{OVERFLOW_UID, Peer};

pub use terms::{AddressRange, PortRange, Terms};
pub use towpath_engine::roles::{Role, Roles};

/// Returns `true` if a user has all rights over the administration socket. `own`: the server's user.
pub(crate) fn may_administer(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// Grants and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Users and groups that may attach, each with its terms. The first grant that names the user
    /// applies, or else the first one that names one of its groups.
    pub grants: Vec<Grant>,
    /// Addresses that only one application gets.
    pub reservations: Vec<Reservation>,
    /// `true` if another policy may follow while the server runs
    /// ([`Server::set_policy`](crate::Server::set_policy)). Every user may then connect to the
    /// socket, where the server refuses those without a grant.
    pub may_change: bool,
    /// Concurrent sessions of one user.
    pub sessions_per_user: usize,
    /// Concurrent sessions of all users admitted as members of one group, taken together.
    pub sessions_per_group: usize,
    /// Bytes of memory that all sessions of one user may have together, within half of `total_bytes`.
    /// Administrators have no such limit.
    pub bytes_per_user: usize,
    /// Bytes of memory that all parts of one session may have together.
    pub session_bytes: usize,
    /// Bytes of memory that all sessions of all users, including administrators, may have together. One granted
    /// user has at most half of them, and so do all users admitted as members of one group together. All granted
    /// users together have at most seven eighths. By default there is no such limit.
    pub total_bytes: usize,
    /// Endpoints that one session may have.
    pub endpoints_per_session: u32,
    /// Ports of the host's own addresses that one user may hold.
    pub host_ports_per_user: usize,
    /// Ports of the host's own addresses that all users admitted as members of one group may hold,
    /// taken together.
    pub host_ports_per_group: usize,
    /// Ports of the host's own addresses that all granted users may hold together. The kernel needs
    /// the rest for connections of the host's programs (`ip_local_port_range`).
    pub host_ports: usize,
    /// Concurrent control connections of all users together.
    pub connections: usize,
}

/// Users and groups with the same rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The users.
    pub users: Vec<u32>,
    /// The groups: all users that are members.
    pub groups: Vec<u32>,
    /// Their rights.
    pub terms: Arc<Terms>,
}

/// An address that the pool gives to one application only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The application's user.
    pub uid: u32,
    /// The name that the application gives its session.
    pub name: String,
    /// The address. The application also gets the other family's address that belongs to it.
    pub address: IpAddr,
}

/// What became of the sessions when the policy changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange {
    /// Sessions that the server closed, because their users may not attach any more, or not with
    /// these addresses.
    pub sessions: usize,
    /// Endpoints that the server closed in the remaining sessions.
    pub endpoints: usize,
}

/// The limits of a user: see the fields of [`Policy`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sessions_per_user: usize,
    pub(crate) bytes_per_user: usize,
    pub(crate) session_bytes: usize,
    pub(crate) total_bytes: usize,
    pub(crate) endpoints_per_session: u32,
    pub(crate) host_ports_per_user: usize,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            grants: Vec::new(),
            reservations: Vec::new(),
            may_change: false,
            sessions_per_user: 64,
            sessions_per_group: 256,
            bytes_per_user: 4 << 30,
            session_bytes: 256 << 20,
            total_bytes: usize::MAX,
            endpoints_per_session: 16_384,
            host_ports_per_user: 4096,
            host_ports_per_group: 8192,
            host_ports: 14_000,
            connections: 2048,
        }
    }
}

/// The socket by which a peer came to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The applications' socket: the policy decides about every user, root included. The root user of a container can
    /// have this socket.
    Applications,
    /// The administration socket, or [`Server::connect`](crate::Server::connect): root and the server's user have all
    /// rights.
    Administrators,
    /// The session of an application that attached to a server of an earlier version, which had one socket for both.
    /// Root and the server's user keep the session without a grant, with the default terms.
    Earlier,
}

/// The rights of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All rights: the peer is root or the server's own user, and came by the administration socket.
    Administrator,
    /// The right to attach, and to send and receive within the terms of its grant.
    Granted,
}

/// What the policy says of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The peer's rights.
    pub standing: Standing,
    /// The group that admits the peer, if the policy does not name the user itself.
    pub group: Option<u32>,
    /// The terms of the grant.
    pub terms: Arc<Terms>,
}

impl Admission {
    /// Returns the account of a connection of this user.
    pub(crate) fn account(&self, uid: u32) -> Account {
        let is_limited = self.standing != Standing::Administrator;
        Account { uid, group: self.group, is_limited }
    }
}

impl Policy {
    /// Returns the hardware queues that some grant gives, in order.
    #[must_use]
    pub fn own_queues(&self) -> Vec<u32> {
        let all = self.grants.iter().flat_map(|grant| grant.terms.own_queues.iter().copied());
        all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the default policy with a grant of the default terms to users and groups.
    #[must_use]
    pub fn granting(users: Vec<u32>, groups: Vec<u32>) -> Policy {
        let named = !users.is_empty() || !groups.is_empty();
        let grant = Grant { users, groups, ..Grant::default() };
        Policy { grants: named.then_some(grant).into_iter().collect(), ..Policy::default() }
    }

    /// Returns the number of concurrent control connections of one user. It exceeds the number of
    /// sessions, so that tools can connect, too.
    #[must_use]
    pub fn connections_per_user(&self) -> usize {
        self.sessions_per_user * 2 + 4
    }

    /// Returns the limits of a user with these terms, which can only lower the policy's own.
    pub(crate) fn limits(&self, terms: &Terms) -> Limits {
        fn lower<T: Ord>(own: Option<T>, policy: T) -> T {
            match own {
                Some(own) => own.min(policy),
                None => policy,
            }
        }
        Limits {
            sessions_per_user: lower(terms.sessions_per_user, self.sessions_per_user),
            bytes_per_user: lower(terms.bytes_per_user, self.bytes_per_user),
            session_bytes: lower(terms.session_bytes, self.session_bytes),
            total_bytes: self.total_bytes,
            endpoints_per_session: lower(terms.endpoints_per_session, self.endpoints_per_session),
            host_ports_per_user: lower(terms.host_ports_per_user, self.host_ports_per_user),
        }
    }

    /// Returns `true` if users may attach over the applications' socket, now or later.
    #[must_use]
    pub fn admits_others(&self) -> bool {
        self.may_change || !self.grants.is_empty()
    }

    /// Returns a peer's rights. `entrance` is the socket by which the peer came, and `own` the server's user.
    /// `all_known` is `true` if every user has a distinct number in the server's user namespace.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub fn standing(
        &self,
        peer: &Peer,
        entrance: Entrance,
        own: u32,
        all_known: bool,
    ) -> Result<Admission, (Refusal, String)> {
        if peer.uid == OVERFLOW_UID && !all_known {
            let text = "your user has no number in the server's user namespace, or cannot be told \
                        from those that have none; run server and application in one user \
                        namespace, and not as user 65534";
            return Err((Refusal::Permission, text.into()));
        }
        let may_administer = may_administer(peer.uid, own);
        if may_administer && entrance == Entrance::Administrators {
            let terms = Arc::new(Terms::administrator());
            return Ok(Admission { standing: Standing::Administrator, group: None, terms });
        }
        let granted = |group, terms| Admission { standing: Standing::Granted, group, terms };
        if let Some(grant) = self.grants.iter().find(|grant| grant.users.contains(&peer.uid)) {
            return Ok(granted(None, grant.terms.clone()));
        }
        let member = |group: &&u32| peer.gid == **group || peer.groups.contains(group);
        for grant in &self.grants {
            if let Some(group) = grant.groups.iter().find(member) {
                return Ok(granted(Some(*group), grant.terms.clone()));
            }
        }
        if may_administer {
            if entrance == Entrance::Earlier {
                return Ok(granted(None, Arc::default()));
            }
            let text = format!(
                "this socket gives user {} only what the policy grants, and that is nothing; connect over \
                 SOCKET.admin, or the path of --admin-socket, or grant something to user {} (allow-user, policy)",
                peer.uid, peer.uid
            );
            return Err((Refusal::Permission, text));
        }
        if self.may_change {
            let text = format!(
                "the server's policy grants nothing to user {} or its groups; ask the \
                 administrator for a grant",
                peer.uid
            );
            return Err((Refusal::Permission, text));
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
    use Entrance::{Administrators, Applications, Earlier};

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid, groups: groups.to_vec(), pid: 1, process: None }
    }

    /// Returns what a policy says of a peer, without the terms.
    fn standing(
        policy: &Policy,
        peer: &Peer,
        entrance: Entrance,
        own: u32,
        all_known: bool,
    ) -> Result<(Standing, Option<u32>), Refusal> {
        let admission = policy.standing(peer, entrance, own, all_known);
        let admission = admission.map_err(|(refusal, _)| refusal)?;
        Ok((admission.standing, admission.group))
    }

    #[test]
    fn only_administrators_and_named_users_are_admitted() {
        let grant = Grant { users: vec![7], groups: vec![70], ..Grant::default() };
        let policy = Policy { grants: vec![grant], ..Policy::default() };
        let at = |entrance, peer: &Peer| standing(&policy, peer, entrance, 500, false);
        for administrator in [peer(0, 0, &[]), peer(500, 1, &[])] {
            let all = Ok((Standing::Administrator, None));
            assert_eq!(at(Administrators, &administrator), all);
            assert_eq!(at(Applications, &administrator), Err(Refusal::Permission));
            assert_eq!(at(Earlier, &administrator), Ok((Standing::Granted, None)));
        }
        let root = peer(0, 70, &[]);
        assert_eq!(at(Applications, &root), Ok((Standing::Granted, Some(70))), "as any member");
        for entrance in [Administrators, Earlier] {
            // The file of the socket keeps other users out; a grant also holds there.
            assert_eq!(at(entrance, &peer(7, 1, &[])), Ok((Standing::Granted, None)));
            assert_eq!(at(entrance, &peer(8, 1, &[])), Err(Refusal::Permission));
        }
        let of = |peer: &Peer| at(Applications, peer);
        assert_eq!(of(&peer(7, 1, &[])), Ok((Standing::Granted, None)));
        assert_eq!(of(&peer(7, 70, &[])), Ok((Standing::Granted, None)), "by name");
        assert_eq!(of(&peer(8, 70, &[])), Ok((Standing::Granted, Some(70))));
        assert_eq!(of(&peer(8, 1, &[5, 70])), Ok((Standing::Granted, Some(70))));
        assert_eq!(of(&peer(8, 1, &[5])), Err(Refusal::Permission));
        let unknown = peer(OVERFLOW_UID, 70, &[]);
        assert_eq!(of(&unknown), Err(Refusal::Permission));
        // A server that runs as the overflow user cannot tell its own user from users without a
        // number.
        let own = OVERFLOW_UID;
        let of = |known| standing(&policy, &unknown, Administrators, own, known).ok();
        assert_eq!(of(false), None);
        assert_eq!(of(true), Some((Standing::Administrator, None)));
    }

    #[test]
    fn a_grant_to_the_user_comes_before_those_to_its_groups() {
        let grant = |users: &[u32], groups: &[u32], endpoints| Grant {
            users: users.to_vec(),
            groups: groups.to_vec(),
            terms: Arc::new(Terms { endpoints_per_session: Some(endpoints), ..Terms::default() }),
        };
        let policy = Policy {
            grants: vec![grant(&[], &[70], 1), grant(&[], &[71, 70], 2), grant(&[7], &[], 3)],
            ..Policy::default()
        };
        let of = |peer: &Peer| {
            let admission = policy.standing(peer, Applications, 500, false).unwrap();
            (admission.group, admission.terms.endpoints_per_session)
        };
        assert_eq!(of(&peer(7, 70, &[])), (None, Some(3)));
        assert_eq!(of(&peer(8, 70, &[71])), (Some(70), Some(1)), "the first grant");
        assert_eq!(of(&peer(8, 1, &[71])), (Some(71), Some(2)));
        assert!(policy.standing(&peer(8, 1, &[]), Applications, 500, false).is_err());
        assert_eq!(of(&peer(0, 70, &[])), (Some(70), Some(1)), "root by its group");
        let root = policy.standing(&peer(0, 70, &[]), Administrators, 500, false).unwrap();
        assert!(root.terms.capture && root.terms.endpoints_per_session.is_none());
    }

    #[test]
    fn root_without_a_grant_keeps_an_earlier_session_with_the_default_terms() {
        let policy = Policy::default();
        let earlier = policy.standing(&peer(0, 0, &[]), Earlier, 500, false).unwrap();
        assert_eq!((earlier.standing, &*earlier.terms), (Standing::Granted, &Terms::default()));
        let text = policy.standing(&peer(0, 0, &[]), Applications, 500, false).unwrap_err().1;
        assert!(text.contains("SOCKET.admin") && text.contains("user 0"), "{text}");
        let body = towpath_protocol::message::ErrorBody::new(Refusal::Permission, &text);
        assert_eq!(body.text(), text, "a message has room for the whole text");
    }
}

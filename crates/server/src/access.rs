//! The rights of users, and the sockets at which they connect.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};
use towpath_engine::account::Party;
use towpath_keeper::LogLimit;
use towpath_protocol::peer::{Peer, every_user_has_a_number};
use tracing::warn;

use crate::arrivals::Arrivals;
use crate::listeners::{AdminWarnings, Listeners};
use crate::policy::{Admission, Entrance, Policy, may_administer};
use crate::refusal::Refused;

/// The pause in accepting after `accept4` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The policy, and the sockets at which the server listens.
pub(crate) struct Access {
    policy: Policy,
    /// The connections that were accepted and not admitted yet.
    pub(crate) arrivals: Arrivals,
    /// The listening sockets, if applications may connect from outside.
    listeners: Option<Listeners>,
    /// The warnings to root and the server's user about the applications' socket.
    warnings: AdminWarnings,
    /// The time at which the control thread listens again, after it could not accept a connection.
    listens_again: Option<Instant>,
    own_uid: u32,
    all_users_known: bool,
    /// The log lines that each user can cause.
    log: LogLimit<Party>,
    /// The log lines that each refused user can cause.
    refused_log: LogLimit<u32>,
    /// The log lines that all refused users can cause together: the policy does not bound their number.
    all_refused_log: LogLimit<()>,
    /// The log lines about more connections than the server serves, which any user can cause.
    flood_log: LogLimit<()>,
    /// The log lines that no user causes.
    own_log: LogLimit<()>,
    /// The number of connections that the server refused.
    refused: u64,
}

/// Takes a log line of a limit for all users together. Logs `left_out` if lines before it were left out.
fn allows(limit: &mut LogLimit<()>, left_out: &str) -> bool {
    let lines = limit.take((), Instant::now());
    if let Some(lines @ 1..) = lines {
        warn!(lines, "{left_out}");
    }
    lines.is_some()
}

/// Log lines that all refused users can cause at once, and per second after that.
const REFUSED_LINES: (u32, u32) = (100, 5);

/// The least limit of connections that wait in each line, if the limit of descriptors is not lower.
const LEAST_WAITING: usize = 64;

/// The highest such limit: the control thread looks at each party of a line.
const MOST_WAITING: usize = 1024;

/// Returns the most connections that may wait in each line.
fn most_waiting(policy: &Policy) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(descriptors / 16).unwrap_or(usize::MAX);
    policy.connections.div_ceil(4).clamp(LEAST_WAITING, MOST_WAITING).min(most.max(1))
}

impl Access {
    /// Admits users by a policy. Without listeners, no application connects from outside.
    pub(crate) fn new(policy: Policy, listeners: Option<Listeners>) -> Access {
        Access {
            // Waiting connections use the server's descriptors in addition to the admitted connections.
            arrivals: Arrivals::new(most_waiting(&policy)),
            policy,
            listeners,
            warnings: AdminWarnings::default(),
            listens_again: None,
            own_uid: rustix::process::geteuid().as_raw(),
            all_users_known: every_user_has_a_number(),
            log: LogLimit::default(),
            refused_log: LogLimit::default(),
            all_refused_log: LogLimit::new(REFUSED_LINES.0, REFUSED_LINES.1),
            flood_log: LogLimit::default(),
            own_log: LogLimit::default(),
            refused: 0,
        }
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Admits users by another policy from now on. The number of connections stays that of the start.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        let connections = self.policy.connections;
        self.policy = Policy { connections, ..policy };
        self.arrivals.forget_all();
    }

    /// Returns the rights of a peer that came by an entrance. A user is known while the policy admits it over the
    /// applications' socket.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn admit(&mut self, peer: &Peer, entrance: Entrance) -> Result<Admission, Refused> {
        let admission = self.policy.standing(peer, entrance, self.own_uid, self.all_users_known);
        match &admission {
            _ if entrance == Entrance::Administrators => {}
            Ok(admission) => self.arrivals.remember(admission.account(peer.uid)),
            Err(_) => self.arrivals.forget(peer.uid),
        }
        admission
    }

    /// Returns `true` if a user may administer the server: root, or the server's user.
    pub(crate) fn may_administer(&self, uid: u32) -> bool {
        may_administer(uid, self.own_uid)
    }

    /// Returns `true` if the server may log a line because of a user now.
    pub(crate) fn allows_line(&mut self, user: Party) -> bool {
        self.log.allows(user)
    }

    /// Returns `true` if the server may log now that it refused a user.
    pub(crate) fn allows_refusal_line(&mut self, uid: u32) -> bool {
        let now = Instant::now();
        // The lines that one user's limit leaves out count among those of all.
        if self.refused_log.take(uid, now).is_none() {
            self.all_refused_log.leave_out((), now);
            return false;
        }
        allows(&mut self.all_refused_log, "log lines about refused users were left out")
    }

    /// Counts a connection that the server refuses.
    pub(crate) fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Returns the number of connections that the server refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns `true` if the server may log now that users connect faster than it serves them.
    pub(crate) fn allows_flood_line(&mut self) -> bool {
        allows(&mut self.flood_log, "log lines about connections were left out")
    }

    /// Returns `true` if the server may log a line that no user causes now.
    pub(crate) fn allows_own_line(&mut self) -> bool {
        allows(&mut self.own_log, "log lines that no user causes were left out")
    }

    /// Accepts a connection of one of the two sockets; `None` without sockets.
    pub(crate) fn accept(&self, entrance: Entrance) -> Option<Result<OwnedFd, Errno>> {
        let socket = self.listeners.as_ref()?.of(entrance);
        Some(accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
    }

    /// Has an epoll set tell of new connections.
    pub(crate) fn watch(&self, set: &OwnedFd) -> io::Result<()> {
        self.listeners.as_ref().map_or(Ok(()), |listeners| listeners.watch(set))
    }

    /// Stops listening at a socket for a while: the socket stays readable. `set`: the epoll set.
    pub(crate) fn pause_accepting(&mut self, set: &OwnedFd, entrance: Entrance) {
        if let Some(listeners) = &self.listeners {
            listeners.forget(set, entrance);
            self.listens_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Accepts no more connections: the listening sockets keep them. `set`: the epoll set.
    pub(crate) fn stop_accepting(&mut self, set: &OwnedFd) {
        if let Some(listeners) = &self.listeners {
            listeners.forget(set, Entrance::Applications);
            listeners.forget(set, Entrance::Administrators);
        }
        self.listens_again = None;
    }

    /// Listens for connections again after [`ACCEPT_PAUSE`]. `set`: the epoll set.
    pub(crate) fn listen_again(&mut self, set: &OwnedFd) {
        if self.listens_again.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.listens_again = None;
        if self.watch(set).is_err() {
            self.listens_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Returns the time until the control thread must call [`Access::listen_again`].
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.listens_again.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Warns that root or the server's user asked at the applications' socket for what only an administrator may,
    /// once a minute at most.
    pub(crate) fn warn_of_admin_socket(&mut self, uid: u32, pid: i32, text: &str) {
        let Some(listeners) = &self.listeners else { return };
        if may_administer(uid, self.own_uid) && self.warnings.allows(uid, Instant::now()) {
            let admin = listeners.admin_path.display();
            warn!(
                uid,
                pid,
                "refused: {text}; SOCKET.admin is {admin}, where programs that are built with this version of Towpath \
                 connect by themselves"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::event::epoll;

    use super::*;
    use crate::policy::Grant;

    fn listener(name: &str) -> (OwnedFd, UnixStream) {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (socket.into(), client)
    }

    #[test]
    fn a_pause_ends_by_itself() {
        let (applications, _client) = listener("access-applications");
        let (administrators, _admin) = listener("access-administrators");
        let admin_path = "/nowhere".into();
        let listeners = Listeners { applications, administrators, admin_path };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        listeners.watch(&set).unwrap();
        let mut access = Access::new(Policy::default(), Some(listeners));
        let mut event = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let none = rustix::event::Timespec::default();
        let mut is_told = || epoll::wait(&set, &mut event[..], Some(&none)).unwrap() > 0;
        assert!(is_told() && access.next_deadline().is_none());
        assert!(access.accept(Entrance::Administrators).unwrap().is_ok());
        access.pause_accepting(&set, Entrance::Applications);
        assert!(!is_told() && access.next_deadline().is_some());
        std::thread::sleep(ACCEPT_PAUSE);
        access.listen_again(&set);
        assert!(is_told() && access.next_deadline().is_none());
        assert!(access.accept(Entrance::Applications).unwrap().is_ok());
        assert_eq!(access.accept(Entrance::Applications).unwrap().unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn without_listeners_there_is_nothing_to_accept() {
        let mut access = Access::new(Policy::default(), None);
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        access.pause_accepting(&set, Entrance::Applications);
        assert!(access.accept(Entrance::Applications).is_none());
        assert!(access.next_deadline().is_none() && access.may_administer(0));
    }

    /// Sessions of before a change of the policy, or of an earlier server, are admitted again: their users stay known.
    #[test]
    fn the_users_that_the_policy_admits_are_known() {
        let policy = || {
            let grant = Grant { users: vec![4242], ..Grant::default() };
            Policy { grants: vec![grant], ..Policy::default() }
        };
        let mut access = Access::new(policy(), None);
        let peer = |uid| Peer { uid, gid: 0, pid: 1, groups: Vec::new(), process: None };
        let own = access.own_uid;
        assert!(access.admit(&peer(own), Entrance::Administrators).is_ok());
        assert!(access.admit(&peer(4242), Entrance::Applications).is_ok());
        assert!(access.admit(&peer(4243), Entrance::Applications).is_err());
        assert_eq!([own, 4242, 4243].map(|uid| access.arrivals.knows(uid)), [false, true, false]);
        access.set_policy(policy());
        assert!(!access.arrivals.knows(4242), "the new policy has not admitted it yet");
        assert!(access.admit(&peer(4242), Entrance::Applications).is_ok());
        assert!(access.arrivals.knows(4242));
    }

    /// Refused users, of whom there can be many, neither fill the log nor use up the lines of other users.
    #[test]
    fn refused_users_share_the_log_lines_about_them() {
        let mut access = Access::new(Policy::default(), None);
        let logged = (0..10_000).filter(|uid| access.allows_refusal_line(*uid)).count() as u32;
        let (burst, per_second) = REFUSED_LINES;
        assert!((burst..burst + 30 * per_second).contains(&logged), "{logged} lines");
        let of_one = (0..100).filter(|_| access.allows_refusal_line(7)).count();
        assert!(of_one < 100, "all lines of one user are logged");
        assert!(access.allows_line(Party::User(20_000)));
        // Nor do users with sessions use up the server's own lines.
        for uid in 0..2000 {
            let _ = access.allows_line(Party::User(uid));
        }
        let floods = (0..100).filter(|_| access.allows_flood_line()).count();
        assert!(floods < 100 && access.allows_own_line());
        assert!(!access.allows_line(Party::User(30_000)));
    }

    #[test]
    fn another_policy_keeps_the_number_of_connections() {
        let mut access = Access::new(Policy { connections: 7, ..Policy::default() }, None);
        let sessions_per_group = 3;
        access.set_policy(Policy { sessions_per_group, ..Policy::default() });
        let policy = access.policy();
        assert_eq!((policy.connections, policy.sessions_per_group), (7, 3));
    }
}

//! Connections: the listening sockets, and the rights of the peers that connect.
//!
//! The server listens at two sockets. Only over the administration socket, root and the server's user are
//! administrators. A container can have the applications' socket without the other one: then its root, which has the
//! number of the host's root, gets what the policy grants to root.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use towpath_protocol::message::{ErrorBody, Message, Refusal};
use towpath_protocol::peer::{Peer, is_same_process};
use tracing::{info, warn};

use crate::account::{Party, may_administer};
use crate::connection::{Connection, Progress, Refused};
use crate::control::Control;
use crate::policy::{Admission, Entrance};
use crate::worker::link::Packet;
use crate::worker::wire::command;
use crate::worker::workers::Owner;

/// Connections that the control thread accepts per wake-up and socket.
const ACCEPTS: usize = 16;

/// The time without new connections after one that the server could not accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

impl Control {
    /// Accepts connections of one of the two sockets.
    pub(crate) fn accept(&mut self, entrance: Entrance) {
        for _ in 0..ACCEPTS {
            let Some(listeners) = &self.parts.listeners else { return };
            match accept_with(listeners.of(entrance), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            {
                Ok(socket) => self.adopt(socket, entrance),
                Err(Errno::AGAIN) => return,
                // Another connection may wait.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return self.pause_accepting(errno),
            }
        }
    }

    /// Logs the error of `accept4`, and stops listening for a while: the listening socket stays readable.
    fn pause_accepting(&mut self, errno: Errno) {
        if self.log.allows(Party::Administrator(self.own_uid)) {
            match errno {
                Errno::MFILE | Errno::NFILE => {
                    warn!("no descriptors left for a new connection; raise the limit (ulimit -n)");
                }
                Errno::PERM | Errno::NOSYS => warn!(
                    "cannot accept a connection: accept4: {errno}; a seccomp filter or the kernel refuses this call"
                ),
                _ => warn!("cannot accept a connection: accept4: {errno}; the server tries again"),
            }
        }
        if let Some(listeners) = &self.parts.listeners {
            listeners.forget(&self.epoll);
            self.listens_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Listens for connections again after [`ACCEPT_PAUSE`].
    pub(crate) fn listen_again(&mut self) {
        if self.listens_again.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.listens_again = None;
        if let Some(listeners) = &self.parts.listeners
            && listeners.watch(&self.epoll).is_err()
        {
            self.listens_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Takes on a connection. The control thread decides only by the kernel's credentials of the
    /// peer. The worker of the peer's user does everything else. For a user that may not attach,
    /// the common worker of all refused users does it.
    pub(crate) fn adopt(&mut self, socket: OwnedFd, entrance: Entrance) {
        let peer = match Peer::of(&socket) {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("the server cannot learn your user and groups: {error}");
                return self.turn_away(socket, Owner::Refused, (Refusal::Permission, text));
            }
        };
        let (admission, entrance) = match self.admit(&peer, entrance) {
            Ok(admitted) => admitted,
            Err((refusal, text)) => {
                self.log_refusal(&peer, entrance, &text);
                let line = (refusal, format!("{}: {text}", self.parts.info.name));
                return self.turn_away(socket, Owner::Refused, line);
            }
        };
        let account = admission.account(peer.uid);
        let owner = Owner::of(account);
        if !self.connections.has_room(&self.parts.policy, account) {
            let text = "your user, its group or this server has as many control connections as \
                        are allowed; end some applications, or raise the server's limits \
                        connections, sessions-per-user or sessions-per-group";
            return self.turn_away(socket, owner, (Refusal::Limit, text.into()));
        }
        if self.workers.has_hung(owner) {
            let text = "one of your applications blocks the server's worker process for your user; \
                        end that application, then attach again";
            return self.turn_away(socket, owner, (Refusal::Limit, text.into()));
        }
        let Some(worker) = self.worker_of(owner) else {
            let text = "the server cannot start a worker for your user: no descriptors left; raise \
                        the server's limit (ulimit -n)";
            return self.turn_away(socket, owner, (Refusal::Limit, text.into()));
        };
        let token = self.next_token;
        self.next_token += 1;
        // The worker watches the process. This thread keeps the descriptor for the store, and to
        // compare processes when an application claims a session.
        let process = peer.process.as_ref().and_then(|process| process.try_clone().ok());
        let descriptors = [Some(socket), process].into_iter().flatten().collect();
        let adopt = Packet::new(command::ADOPT, token, command::TIMED).with(descriptors);
        let trusted = may_administer(peer.uid, self.own_uid);
        let connection = Connection::new(worker, (peer, entrance), admission, trusted);
        self.connections.insert(token, connection);
        self.workers.count(worker, true);
        self.workers.tell(worker, owner, adopt);
    }

    /// Returns a peer's rights, and the socket that these rights are of.
    fn admit(&self, peer: &Peer, entrance: Entrance) -> Result<(Admission, Entrance), Refused> {
        let ask = |entrance| {
            self.parts.policy.standing(peer, entrance, self.own_uid, self.all_users_known)
        };
        match ask(entrance) {
            Ok(admission) => Ok((admission, entrance)),
            // The application comes back for its session, which a server with one socket for all let it have.
            Err(_) if self.has_earlier_session(peer) => {
                Ok((ask(Entrance::Earlier)?, Entrance::Earlier))
            }
            Err(refused) => Err(refused),
        }
    }

    /// Returns `true` if a session of an earlier version's server waits for this process.
    fn has_earlier_session(&self, peer: &Peer) -> bool {
        let Some(process) = &peer.process else { return false };
        self.unclaimed.iter().filter_map(|(_, token)| self.connections.get(*token)).any(|one| {
            one.entrance == Entrance::Earlier
                && matches!(one.progress, Progress::Unclaimed)
                && one.peer.uid == peer.uid
                && one
                    .peer
                    .process
                    .as_ref()
                    .is_some_and(|theirs| is_same_process(process, theirs).unwrap_or(false))
        })
    }

    fn log_refusal(&mut self, peer: &Peer, entrance: Entrance, text: &str) {
        if entrance == Entrance::Applications && may_administer(peer.uid, self.own_uid) {
            self.warn_of_admin_socket(peer.uid, peer.pid, text);
        } else if self.log.allows(Party::User(peer.uid)) {
            info!(uid = peer.uid, pid = peer.pid, "refused: {text}");
        }
    }

    /// Warns that root or the server's user asked at the applications' socket for what only an administrator may,
    /// once a minute at most.
    pub(crate) fn warn_of_admin_socket(&mut self, uid: u32, pid: i32, text: &str) {
        let Some(listeners) = &self.parts.listeners else { return };
        if may_administer(uid, self.own_uid) && self.admin_warnings.allows(uid, Instant::now()) {
            let admin = listeners.admin_path.display();
            warn!(
                uid,
                pid,
                "refused: {text}; SOCKET.admin is {admin}, where programs that are built with this version of Towpath \
                 connect by themselves"
            );
        }
    }

    /// Returns `true` if the server may log a line because of a connection's user now.
    pub(crate) fn log_allows_for(&mut self, token: u64) -> bool {
        let user = self.connections.get(token).map(|one| one.account.user());
        user.is_some_and(|user| self.log.allows(user))
    }

    /// Refuses a connection.
    fn turn_away(&mut self, socket: OwnedFd, owner: Owner, (refusal, text): Refused) {
        let owner = self.workers.to_turn_away(owner);
        // Without a process or descriptors for that worker, the control thread closes the
        // connection without reading it.
        let Some(worker) = self.worker_of(owner) else { return };
        if self.workers.is_flooded(worker) {
            if self.log.allows(Party::Administrator(self.own_uid)) {
                warn!(
                    "more connections to refuse than a worker keeps up with: one is closed unheard"
                );
            }
            return;
        }
        let body = Message::Error(Box::new(ErrorBody::new(refusal, &text))).encode();
        let refuse = Packet::new(command::REFUSE, 0, 0).with(vec![socket]).saying(body);
        self.workers.tell(worker, owner, refuse);
    }
}

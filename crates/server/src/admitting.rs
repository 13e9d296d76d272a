//! Connections: the listening sockets, and the rights of the peers that connect.
//!
//! The server listens at two sockets. Only over the administration socket, root and the server's user are
//! administrators. A container can have the applications' socket without the administration socket: then its root, which has the
//! number of the host's root, gets what the policy grants to root.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use towpath_engine::account::Account;
use towpath_protocol::message::{ErrorBody, Message, Refusal};
use towpath_protocol::peer::{self, Peer, is_same_process};
use tracing::{info, warn};

use crate::application::Application;
use crate::arrivals::Arrival;
use crate::connection::Connection;
use crate::control::Control;
use crate::policy::{Admission, Entrance};
use crate::refusal::Refused;
use crate::socket::BACKLOG;
use crate::worker::link::Packet;
use crate::worker::owner::Owner;
use crate::worker::wire::command;

/// Connections that the control thread admits per wake-up. The same wake-up handles at most one message of each worker.
const ADMISSIONS: usize = 2;

impl Control {
    /// Accepts connections of one of the two sockets, at most as many as the kernel's queue holds. They wait for
    /// [`Control::admit_arrivals`].
    pub(crate) fn accept(&mut self, entrance: Entrance) {
        for _ in 0..=BACKLOG {
            if self.server_run.is_ending() || self.access.arrivals.is_full(entrance) {
                return;
            }
            // The kernel's queue keeps further connections, so that none waits here for its close.
            if entrance == Entrance::Applications && self.workers.is_behind() {
                return self.access.pause_accepting(self.wakeups.set(), entrance);
            }
            let Some(accepted) = self.access.accept(entrance) else { return };
            match accepted {
                Ok(socket) => self.arrive(socket, entrance),
                Err(Errno::AGAIN) => return,
                // Another connection may wait.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return self.pause_accepting(errno, entrance),
            }
        }
    }

    /// Has a connection wait for admission.
    pub(crate) fn arrive(&mut self, socket: OwnedFd, entrance: Entrance) {
        let uid = peer::user_of(&socket);
        let Some(displaced) = self.access.arrivals.add(uid, (socket, entrance)) else { return };
        self.workers.close_unread(vec![displaced.socket]);
        let is_allowed = match displaced.culprit {
            Some((_, Some(party))) => self.access.allows_line(party),
            _ => self.access.allows_flood_line(),
        };
        match displaced.culprit {
            _ if !is_allowed => {}
            Some((uid, _)) => warn!(
                uid,
                "too many connections wait for admission; the server closed the newest waiting connection of this user \
                 without reading it; end the user's programs that connect repeatedly, or start the server with a higher \
                 limit connections"
            ),
            None => warn!(
                "connections of too many users wait for admission; the server closed one of them without reading it; start \
                 the server with a higher limit connections"
            ),
        }
    }

    /// Admits up to [`ADMISSIONS`] accepted connections, in turn for each party and user.
    pub(crate) fn admit_arrivals(&mut self) {
        for _ in 0..ADMISSIONS {
            let Some((socket, entrance)) = self.access.arrivals.next() else { return };
            if let Err(arrival) = self.adopt(socket, entrance) {
                return self.access.arrivals.put_back(arrival);
            }
        }
    }

    /// Logs the error of `accept4`, and stops listening for a while: the listening socket stays readable.
    fn pause_accepting(&mut self, errno: Errno, entrance: Entrance) {
        if self.access.allows_own_line() {
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
        self.access.pause_accepting(self.wakeups.set(), entrance);
    }

    /// Takes on a connection. The control thread decides only by the kernel's credentials of the
    /// peer. The worker of the peer's user does everything else. For a user that may not attach,
    /// the common worker of all refused users does it.
    ///
    /// # Errors
    /// The connection, if it has to wait because too many workers are being made.
    pub(crate) fn adopt(&mut self, socket: OwnedFd, came_by: Entrance) -> Result<(), Arrival> {
        let peer = match Peer::of(&socket) {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("the server cannot learn your user and groups: {error}");
                self.turn_away(socket, Owner::Refused, (Refusal::Permission, text));
                return Ok(());
            }
        };
        let (admission, entrance) = match self.admit(&peer, came_by) {
            Ok(admitted) => admitted,
            Err((refusal, text)) => {
                self.log_refusal(&peer, came_by, &text);
                let refused = (refusal, format!("{}: {text}", self.device.name()));
                self.turn_away(socket, Owner::Refused, refused);
                return Ok(());
            }
        };
        let account = admission.account(peer.uid);
        let owner = Owner::of(account);
        if let Err(text) = self.check_limits(account) {
            self.turn_away(socket, owner, (Refusal::Limit, text.to_owned()));
            return Ok(());
        }
        if self.workers.must_wait_for(owner) {
            return Err((socket, came_by));
        }
        let Some(worker) = self.worker_of(owner) else {
            let text = "the server cannot start a worker for your user: no descriptors left; raise \
                        the server's limit (ulimit -n)";
            self.turn_away(socket, owner, (Refusal::Limit, text.to_owned()));
            return Ok(());
        };
        let token = self.connections.numbers_mut().take_token();
        // The worker watches the process. This thread keeps the descriptor for the store, and to
        // compare processes when an application claims a session.
        let process = peer.process.as_ref().and_then(|process| process.try_clone().ok());
        let descriptors = [Some(socket), process].into_iter().flatten().collect();
        let adopt = Packet::new(command::ADOPT, token, command::TIMED).with(descriptors);
        let trusted = self.access.may_administer(peer.uid);
        let application = Application::new(worker, peer, entrance, admission, trusted);
        self.connections.insert(token, Connection::new(application));
        self.workers.count(worker, true);
        self.workers.tell(worker, owner, adopt);
        Ok(())
    }

    /// Checks that another control connection counts within the limits.
    fn check_limits(&self, account: Account) -> Result<(), &'static str> {
        if !self.connections.usage().has_room(self.access.policy(), account) {
            return Err("your user, its group or this server has as many control connections as \
                        are allowed; end some applications, or raise the server's limits \
                        connections, sessions-per-user or sessions-per-group");
        }
        if self.workers.has_too_many_closes(Owner::of(account)) {
            return Err(
                "the server still closes many of your earlier connections; connect less often, and \
                        attach fewer waiters (epoll, poll) to each connection",
            );
        }
        if self.workers.has_hung(Owner::of(account)) {
            return Err(
                "one of your applications blocks the server's worker process for your user; \
                        end that application, then attach again",
            );
        }
        Ok(())
    }

    /// Returns a peer's rights, and the socket that these rights are of.
    fn admit(&mut self, peer: &Peer, entrance: Entrance) -> Result<(Admission, Entrance), Refused> {
        match self.access.admit(peer, entrance) {
            Ok(admission) => Ok((admission, entrance)),
            // The application comes back for its session, which a server with one socket for all let it have.
            Err(_) if self.has_earlier_session(peer) => {
                Ok((self.access.admit(peer, Entrance::Earlier)?, Entrance::Earlier))
            }
            Err(refused) => Err(refused),
        }
    }

    /// Returns `true` if a session of an earlier version's server waits for this process.
    fn has_earlier_session(&self, peer: &Peer) -> bool {
        let Some(process) = &peer.process else { return false };
        let unclaimed = self.connections.unclaimed().tokens();
        let mut unclaimed = unclaimed.filter_map(|token| self.connections.get(token));
        unclaimed.any(|one| {
            let Application { entrance, peer: theirs, .. } = &one.application;
            let is_same = |theirs: &OwnedFd| is_same_process(process, theirs).unwrap_or(false);
            *entrance == Entrance::Earlier
                && one.is_unclaimed()
                && theirs.uid == peer.uid
                && theirs.process.as_ref().is_some_and(is_same)
        })
    }

    fn log_refusal(&mut self, peer: &Peer, entrance: Entrance, text: &str) {
        if entrance == Entrance::Applications && self.access.may_administer(peer.uid) {
            self.access.warn_of_admin_socket(peer.uid, peer.pid, text);
        } else if self.access.allows_refusal_line(peer.uid) {
            info!(uid = peer.uid, pid = peer.pid, "refused: {text}");
        }
    }

    /// Returns `true` if the server may log a line because of a connection's user now.
    pub(crate) fn log_allows_for(&mut self, token: u64) -> bool {
        let user = self.connections.get(token).map(|one| one.application.account.user());
        user.is_some_and(|user| self.access.allows_line(user))
    }

    /// Refuses a connection.
    fn turn_away(&mut self, socket: OwnedFd, owner: Owner, (refusal, text): Refused) {
        self.access.count_refused();
        let owner = self.workers.to_turn_away(owner);
        let Some(worker) = self.worker_of(owner) else {
            return self.workers.close_unread(vec![socket]);
        };
        if self.workers.is_flooded(worker) {
            self.workers.close_unread(vec![socket]);
            if self.access.allows_flood_line() {
                warn!(
                    "a worker cannot refuse connections fast enough; the server closed a connection without reading it"
                );
            }
            return;
        }
        let body = Message::Error(Box::new(ErrorBody::new(refusal, &text))).encode();
        let refuse = Packet::new(command::REFUSE, 0, 0).with(vec![socket]).saying(body);
        self.workers.tell(worker, owner, refuse);
    }
}

//! An application that comes back for a session of an earlier server.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use towpath_protocol::message::{self, Message, Refusal};
use towpath_protocol::peer::is_same_process;
use tracing::{info, warn};

use crate::connection::{Connection, Progress, Refused};
use crate::control::Control;
use crate::engine::commands::{Claim, Command};
use crate::engine::relays::Relay;
use crate::engine::session::Doorbell;
use crate::engine::wake_data;
use crate::engines::Reply;
use crate::prepare;
use crate::worker::link::Packet;
use crate::worker::wire::command;

impl Control {
    /// Gives an unclaimed session to the connection of its application.
    pub(crate) fn claim_session(
        &mut self,
        token: u64,
        resume: message::Resume,
    ) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let (session, not_found) = (resume.session, Refusal::NotFound);
        if !matches!(connection.progress, Progress::New) {
            return Err((Refusal::State, "resume: this connection has a session already".into()));
        }
        if resume.reserved != 0 {
            return Err((Refusal::Malformed, "resume: the reserved field must be 0".into()));
        }
        let old = self.connections.token_of(session);
        let (uid, account) = (connection.peer.uid, connection.account);
        let is_claimable = old.map_or(Ok(false), |old| self.is_claimable_by(old, connection));
        let is_claimable = is_claimable.unwrap_or_else(|error| {
            if self.log.allows(account.user()) {
                warn!(
                    session,
                    uid, "the server cannot compare processes: {error}; the session ends"
                );
            }
            false
        });
        let Some(old) = old.filter(|_| is_claimable) else {
            let text = format!(
                "resume: this process has no session {session} of an earlier server; attach again"
            );
            return Err((not_found, text));
        };
        let outcome = self.hand_to_application(token, old);
        outcome.map_err(|error| {
            let text = format!("resume: the server has no descriptors for the session: {error}");
            (Refusal::Limit, text)
        })
    }

    /// Returns `true` if an unclaimed session is that of the process at the other end of a
    /// connection.
    ///
    /// # Errors
    /// The kernel's error, if it refuses to compare the processes.
    fn is_claimable_by(&self, old: u64, connection: &Connection) -> io::Result<bool> {
        let Some(unclaimed) = self.connections.get(old) else { return Ok(false) };
        let (Some(theirs), Some(kept)) = (&connection.peer.process, &unclaimed.peer.process) else {
            return Ok(false);
        };
        let is_theirs = matches!(unclaimed.progress, Progress::Unclaimed)
            && unclaimed.peer.uid == connection.peer.uid;
        Ok(is_theirs && is_same_process(theirs, kept)?)
    }

    /// Makes a doorbell and eventfds, and has all engines give the session to its application.
    fn hand_to_application(&mut self, token: u64, old: u64) -> io::Result<()> {
        let lanes = self.parts.engines.lanes();
        // Everything that can fail comes first.
        let (doorbell, theirs) = towpath_protocol::doorbell::pair()?;
        let workers_doorbell = doorbell.try_clone()?;
        let no_room = || io::Error::from(rustix::io::Errno::MFILE);
        let worker = self.connections.get(token).map_or(u64::MAX, |one| one.worker);
        let worker_fd = self.workers.notified(worker).ok_or_else(no_room)?;
        let number = self.connections.get(old).map_or(0, |one| one.number);
        let (mut handed, mut wakes) = (vec![theirs], Vec::with_capacity(lanes));
        for lane in 0..lanes {
            let (wake, event) = prepare::wake()?;
            // The application does not have the descriptor yet, so this call is short.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(wake_data(number));
            epoll::add(self.workers.engine(lane).ok_or_else(no_room)?, &wake, data, flags)?;
            wakes.push(wake);
            handed.push(event);
        }
        let counter = self.free_counters.pop().ok_or_else(no_room)?;
        let trusted = self.move_session(token, old, counter);
        let relay = Relay { number: counter, worker: worker_fd, trusted };
        let open = Packet::new(command::OPEN_DOORBELL, token, u64::from(counter));
        self.tell_worker(token, open.with(vec![workers_doorbell]));
        let doorbell = Doorbell::new(doorbell, relay);
        let account = self.connections.get(token).map(|one| one.account);
        let claim = |wake| Claim { session: number, doorbell: doorbell.clone(), wake, account };
        let claims = wakes.into_iter().map(claim).map(Box::new);
        self.decide_who_notifies(token);
        let claims = claims.map(Command::ClaimSession).collect();
        self.parts.engines.command_each(claims, Reply::Claimed(token, handed));
        // The application's rights may have changed with its groups.
        if self.admit_again(token) {
            self.revoke_endpoints(token);
        } else {
            self.revoke(token);
        }
        Ok(())
    }

    /// Moves a session from the connection that stood for its application to the application's own
    /// connection. Returns `true` if that connection is an administrator's.
    fn move_session(&mut self, token: u64, old: u64, counter: u32) -> bool {
        let unfreeable = self
            .connections
            .get_mut(old)
            .map(|one| (one.unfreeable_bytes, std::mem::take(&mut one.is_unfreeable)));
        let number = self.connections.take_number(old);
        let Some(unclaimed) = self.connections.remove(old) else { return false };
        self.workers.count(unclaimed.worker, false);
        if let Some(process) = &unclaimed.peer.process {
            let _ = epoll::delete(&*self.epoll, process);
        }
        if let Some(connection) = self.connections.get_mut(token) {
            (connection.unfreeable_bytes, connection.is_unfreeable) =
                unfreeable.unwrap_or_default();
        }
        self.connections.give_number(token, number, unclaimed.bytes);
        let Some(connection) = self.connections.get_mut(token) else { return false };
        let (before, now) = (unclaimed.account, connection.account);
        let memories = unclaimed.apertures.as_ref().map_or(0, |one| one.memories());
        connection.name = unclaimed.name;
        connection.lease = unclaimed.lease;
        connection.shape = unclaimed.shape;
        connection.mappings = unclaimed.mappings;
        connection.pins = unclaimed.pins;
        connection.endpoints = unclaimed.endpoints;
        connection.apertures = unclaimed.apertures;
        connection.free = unclaimed.free;
        connection.last_resumed = unclaimed.last_resumed;
        connection.record = unclaimed.record;
        if let Some(record) = &mut connection.record {
            record.set_entrance(connection.entrance);
        }
        connection.counter = Some(counter);
        connection.progress = Progress::Lives;
        info!(
            session = number,
            name = connection.name,
            uid = connection.peer.uid,
            pid = connection.peer.pid,
            "claimed"
        );
        let is_administrators = connection.is_administrators();
        for _ in 0..memories {
            self.memories.give_back(before);
            self.memories.add(now);
        }
        is_administrators
    }

    /// Answers an application whose session all engines serve again.
    pub(crate) fn answer_claimed(&mut self, token: u64, handed: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get(token) else { return };
        let Some(lease) = connection.lease else { return };
        let attached = self.attached(connection, &lease);
        self.answer_with(token, &Message::Attached(attached), handed, 0);
    }
}

//! An application that comes back for a session of an earlier server.

use std::io;

use rustix::event::epoll;
use towpath_engine::account::Account;
use towpath_engine::commands::{Claim, Command};
use towpath_engine::relays::Relay;
use towpath_engine::session::doorbell::Doorbell;
use towpath_engine::wake_data;
use towpath_protocol::message::{self, Refusal};
use towpath_protocol::peer::is_same_process;
use tracing::{info, warn};

use crate::apertures::tables::ApertureTables;
use crate::application::Application;
use crate::connection::WithSession;
use crate::control::Control;
use crate::engines::Reply;
use crate::prepare;
use crate::refusal::Refused;
use crate::worker::link::Packet;
use crate::worker::wire::command;

impl Control {
    /// Gives an unclaimed session to the connection of its application.
    pub(crate) fn claim_session(
        &mut self,
        token: u64,
        resume: message::Resume,
    ) -> Result<(), Refused> {
        let application = self.connections.without_session(token, "resume")?;
        let (session, not_found) = (resume.session, Refusal::NotFound);
        if resume.reserved != 0 {
            return Err((Refusal::Malformed, "resume: the reserved field must be 0".into()));
        }
        let old = self.connections.token_of(session);
        let worker = application.worker;
        let (uid, account) = (application.peer.uid, application.account);
        let is_claimable = old.map_or(Ok(false), |old| self.is_claimable_by(old, application));
        let is_claimable = is_claimable.unwrap_or_else(|error| {
            if self.access.allows_line(account.user()) {
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
        let outcome = self.hand_to_application(token, worker, account, old, session);
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
    fn is_claimable_by(&self, old: u64, application: &Application) -> io::Result<bool> {
        let Some(unclaimed) = self.connections.get(old) else { return Ok(false) };
        let kept = &unclaimed.application.peer;
        let (Some(theirs), Some(process)) = (&application.peer.process, &kept.process) else {
            return Ok(false);
        };
        let is_theirs = unclaimed.is_unclaimed() && kept.uid == application.peer.uid;
        Ok(is_theirs && is_same_process(theirs, process)?)
    }

    /// Makes a doorbell and eventfds, and has all engines give the session to its application.
    fn hand_to_application(
        &mut self,
        token: u64,
        worker: u64,
        account: Account,
        old: u64,
        number: u32,
    ) -> io::Result<()> {
        let lanes = self.engines.lanes();
        // Everything that can fail comes first.
        let (doorbell, theirs) = towpath_protocol::doorbell::pair()?;
        let workers_doorbell = doorbell.try_clone()?;
        let no_room = || io::Error::from(rustix::io::Errno::MFILE);
        let worker_fd = self.workers.notified(worker).ok_or_else(no_room)?;
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
        let counter = self.connections.numbers_mut().take_counter().ok_or_else(no_room)?;
        let trusted = self.move_session(token, old, counter);
        let relay = Relay { number: counter, worker: worker_fd, trusted };
        let open = Packet::new(command::OPEN_DOORBELL, token, u64::from(counter));
        self.tell_worker(token, open.with(vec![workers_doorbell]));
        let doorbell = Doorbell::new(doorbell, relay);
        let account = Some(account);
        let claim = |wake| Claim { session: number, doorbell: doorbell.clone(), wake, account };
        let claims = wakes.into_iter().map(claim).map(Box::new);
        self.decide_who_notifies(token);
        let claims = claims.map(Command::ClaimSession).collect();
        self.engines.command_each(claims, Reply::Claimed(token, handed));
        // The application's rights may have changed with its groups.
        if self.admit_again(token) {
            self.revoke_endpoints(token);
        } else {
            self.revoke(token);
        }
        Ok(())
    }

    /// Moves a session from the connection that stood for its application to the application's own
    /// connection. Returns `true` if the application is an administrator's.
    fn move_session(&mut self, token: u64, old: u64, counter: u32) -> bool {
        let Some((before, connection)) = self.connections.move_session(old, token, counter) else {
            self.internal_error("a claimed session has no connection");
            return false;
        };
        self.workers.count(before.worker, false);
        if let Some(process) = &before.peer.process {
            self.wakeups.forget_process(process);
        }
        let memories = connection.apertures().map_or(0, ApertureTables::memories);
        let Some(WithSession { application, session, .. }) = connection.with_session() else {
            return false;
        };
        if let Some(record) = &mut session.record {
            record.set_entrance(application.entrance);
        }
        info!(
            session = session.number,
            name = session.name,
            uid = application.peer.uid,
            pid = application.peer.pid,
            "claimed"
        );
        self.shared.move_memories(memories, before.account, application.account);
        application.is_administrators()
    }
}

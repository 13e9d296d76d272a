//! The end of connections and of their sessions.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use towpath_device::Filter;
use towpath_engine::account::Account;
use towpath_engine::commands::Command;
use towpath_engine::session::Session;
use towpath_protocol::message::Refusal;
use tracing::info;

use crate::addresses::Holder;
use crate::connection::{Connection, State};
use crate::control::Control;
use crate::control_session::{Attaching, ControlSession, Ending, MappedSession, SessionPhase};
use crate::engines::Reply;
use crate::prepare::remove_stored;
use crate::worker::link::Packet;
use crate::worker::owner::Owner;
use crate::worker::pin;
use crate::worker::wire::command;

impl Control {
    /// Ends a connection that its worker has closed, and its session.
    pub(crate) fn connection_ended(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.gone = true;
        let (number, account) = (connection.number, connection.application.account);
        if let Some(mapped) = connection.mapped_mut() {
            match std::mem::replace(&mut mapped.phase, SessionPhase::Over) {
                // The control thread unmaps the memory slice by slice before it forgets the connection.
                SessionPhase::Populating if self.mapping_jobs.give_up(token) => return,
                SessionPhase::Live => {
                    if self.access.allows_line(account.user()) {
                        let name = &mapped.session.name;
                        info!(session = number, name, "detached");
                    }
                    return self.end_session(token, 0, Ending::AfterPackets);
                }
                SessionPhase::Unclaimed => return self.end_session(token, 0, Ending::AtOnce),
                SessionPhase::Populating | SessionPhase::Over => {}
            }
        } else if let Some(Attaching { session, prepared, counter }) = connection.take_attaching() {
            let mut left = prepared.into_descriptors();
            left.append(&mut self.forget_session(token, account, session, counter));
            self.workers.dispose(Owner::of(account), left);
        }
        self.drop_connection(token);
    }

    /// Has all engines end a session, unless they already have the command. A second command can end a draining session
    /// at once. The application reads the reason, 0 for none.
    pub(crate) fn end_session(&mut self, token: u64, reason: u32, ending: Ending) {
        let Some(Connection { application, state: State::Mapped(mapped), .. }) =
            self.connections.get_mut(token)
        else {
            return;
        };
        if mapped.ending >= ending {
            return;
        }
        mapped.ending = ending;
        if let Some(process) = &application.peer.process {
            // The control thread watches the process only while the session is unclaimed.
            self.wakeups.forget_process(process);
        }
        if let Some(record) = &mut mapped.session.record {
            record.end();
        }
        let number = mapped.session.number;
        let at_once = ending == Ending::AtOnce;
        self.command(Command::RemoveSession { number, reason, at_once }, Reply::Nothing);
    }

    /// Has all engines end a session that one engine closed without a command: the application broke the protocol.
    fn end_in_other_lanes(&mut self, number: u32) {
        if let Some((token, connection)) = self.connections.of_session_mut(number)
            && connection.ending() == Ending::None
        {
            self.end_session(token, 0, Ending::AtOnce);
        }
    }

    /// Forgets a connection that neither its worker nor an engine knows any more.
    fn drop_connection(&mut self, token: u64) {
        if self.connections.get(token).is_some_and(|one| one.gone && one.number == 0)
            && let Some(connection) = self.connections.remove(token)
        {
            self.workers.count(connection.application.worker, false);
            self.forget_user_page(connection.application.account.uid);
        }
    }

    /// Refuses a session whose memory the server cannot map.
    pub(crate) fn memory_failed(
        &mut self,
        token: u64,
        account: Account,
        session: ControlSession,
        counter: Option<u32>,
        mut left: Vec<OwnedFd>,
        error: &std::io::Error,
    ) {
        left.append(&mut self.forget_session(token, account, session, counter));
        self.workers.dispose(Owner::of(account), left);
        let refused = if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) {
            let text = "mapped: the application has left pages of its memory unallocated; it has to write \
                        each page, or to populate its mappings (MADV_POPULATE_WRITE), before this message";
            (Refusal::State, text.to_owned())
        } else {
            let text = format!(
                "mapped: the server could not seal, allocate or map the session's memory: {}",
                pin::describe(error)
            );
            (Refusal::Limit, text)
        };
        self.refuse(token, &refused);
    }

    /// Handles the end of a session in one engine: the session ends in all engines. The worker of the
    /// application's user closes the doorbell once no engine has it any more.
    pub(crate) fn lane_closed(&mut self, number: u32, doorbell: Arc<OwnedFd>) {
        self.end_in_other_lanes(number);
        if let Some(doorbell) = Arc::into_inner(doorbell) {
            self.close_doorbell(number, doorbell);
        }
    }

    /// Unmaps a session, slice by slice, once no engine holds anything of it any more.
    pub(crate) fn session_ended(&mut self, mut session: Box<Session>) {
        // Nothing is in flight any more, and the engine has dropped its clone.
        session.set_registration(None);
        let Some(session) = self.close_own_queue(session) else { return };
        self.end_in_other_lanes(session.number());
        if let Some((account, job)) = self.connections.return_part(*session, self.engines.lanes()) {
            self.mapping_jobs.push(account, job);
        }
    }

    /// Disposes of a session whose memory is unmapped.
    pub(crate) fn released(&mut self, token: u64, sessions: Vec<Session>) {
        let number = sessions.first().map(Session::number);
        let (mut left, mut doorbell) = (Vec::with_capacity(sessions.len()), None);
        for session in sessions {
            let (wake, last) = session.into_closed();
            left.extend(wake);
            doorbell = doorbell.or(last);
        }
        if let (Some(number), Some(doorbell)) = (number, doorbell) {
            self.close_doorbell(number, doorbell);
        }
        let Some((worker, account, mapped)) = self.connections.take_mapped(token) else {
            return self.internal_error("a session without a connection is unmapped");
        };
        let owner = Owner::of(account);
        let MappedSession { mut session, mappings, pins, counter, .. } = mapped;
        drop(mappings);
        if let Some(apertures) = session.apertures.take() {
            self.dispose_of_memories(*apertures, worker, account);
        }
        // The server pages come first.
        let mut files = self.forget_session(token, account, session, counter);
        files.append(&mut left);
        let left = files;
        // If the server ended the session, its application may still read the reason.
        let dispose = Packet::new(command::DISPOSE, token, command::WIPE).with(left);
        self.workers.tell(worker, owner, dispose);
        // The kernel frees the memory only after the worker has closed the pins.
        let pins = Packet::new(command::DISPOSE, 0, 0).with(pins);
        self.workers.tell(worker, owner, pins);
        self.drop_connection(token);
    }

    /// Has the worker close the doorbell, which ends the session for its application.
    pub(crate) fn close_doorbell(&mut self, number: u32, doorbell: OwnedFd) {
        let Some((token, connection)) = self.connections.of_session_mut(number) else { return };
        let counter = connection.mapped_mut().and_then(|mapped| mapped.counter.take());
        let (worker, owner) = (connection.application.worker, connection.application.owner());
        let value = counter.map_or(u64::MAX, u64::from);
        let mute = Packet::new(command::CLOSE_DOORBELL, token, value).with(vec![doorbell]);
        self.workers.tell(worker, owner, mute);
        self.connections.numbers_mut().give_back_counter(counter);
    }

    /// Releases the control thread's resources for a session, which its connection does not have any
    /// more. Returns its memory files, for disposal.
    #[must_use]
    fn forget_session(
        &mut self,
        token: u64,
        account: Account,
        session: ControlSession,
        counter: Option<u32>,
    ) -> Vec<OwnedFd> {
        self.connections.take_number(token);
        let ControlSession { number, name, lease, own_queue, endpoints, .. } = session;
        if let Some(hardware) = own_queue {
            self.device.own_queues_mut().release(hardware);
        }
        let holder = Holder { uid: account.uid, name };
        self.connections.numbers_mut().give_back_counter(counter);
        for (endpoint, opened) in endpoints.all() {
            self.forget_rule(opened);
            if !opened.revoked {
                self.addresses.release_port(opened);
            }
            self.addresses.forget_endpoint(opened, (number, endpoint));
        }
        self.device.release(&[Filter::Address(lease.mac)]);
        let is_last = self.addresses.release(&lease, holder);
        if !is_last {
            self.end_link_control(&lease);
        }
        // Other hosts know the addresses only of a session with endpoints.
        if is_last && endpoints.all().next().is_some() {
            self.device.answer_for(&mut self.engines, &lease, account);
        }
        self.decide_who_notifies(token);
        self.direct_if_alone();
        self.forget_user_page(account.uid);
        remove_stored(self.store.as_mut(), number)
    }

    /// Ends the server: the workers close the objects that applications can reach, as always. The
    /// store keeps the sessions that the next server resumes.
    pub(crate) fn end_all(&mut self) {
        // The workers free the memory before this thread closes what keeps the pages in place.
        let mut kept = Vec::new();
        for token in self.connections.of_all() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let (worker, owner) = (connection.application.worker, connection.application.owner());
            let number = connection.number;
            let (prepared, apertures) = match std::mem::replace(&mut connection.state, State::Ended)
            {
                State::New | State::Ended => (None, None),
                State::Attaching(one) => (Some(one.prepared), one.session.apertures),
                State::Mapped(one) => {
                    let MappedSession { session, pins, returned, .. } = *one;
                    kept.push((pins, returned));
                    (None, session.apertures)
                }
            };
            let mut files = match self.server_run.leaves() {
                true => Vec::new(),
                false => remove_stored(self.store.as_mut(), number),
            };
            if let Some(prepared) = prepared {
                files.append(&mut prepared.into_descriptors());
            }
            if let Some(apertures) = apertures {
                files.append(&mut self.close_memories(*apertures));
            }
            // Applications may still take packets from their queues, so the workers wipe nothing.
            let dispose = Packet::new(command::DISPOSE, 0, 0).with(files);
            self.workers.tell(worker, owner, dispose);
        }
        self.workers.end(self.server_run.leaves());
        drop(kept);
    }
}

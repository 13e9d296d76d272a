//! Reports of workers on connections, and the end of connections and sessions.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use towpath_device::Filter;
use towpath_protocol::message::{ErrorBody, MAX_REQUEST_BYTES, Message, MessageError, Refusal};
use towpath_queue::Violation;
use tracing::{info, warn};

use crate::addresses::Holder;
use crate::connection::{Ending, Progress, Refused};
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::relays::Relay;
use crate::engine::session::{Mappings, Session};
use crate::engines::Reply;
use crate::prepare::{self, Mapped, remove_stored};
use crate::slow::Job;
use crate::worker::link::{Packet, Report};
use crate::worker::wire::{command, report};
use crate::worker::workers::Owner;

impl Control {
    /// Handles one report of a worker.
    pub(crate) fn hear(&mut self, worker: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.workers.flush(worker);
        }
        match self.workers.receive(worker) {
            Some(Report::Heard { token, wrong, body }) => self.heard(token, wrong, &body),
            Some(Report::Ended { token }) => self.connection_ended(token),
            Some(Report::MemoryReady { token, outcome, is_unfreeable }) => {
                self.connections.prepared(token, is_unfreeable);
                self.memory_ready(token, outcome);
            }
            Some(Report::Allocated { token, outcome }) => self.memory_allocated(token, outcome),
            Some(Report::Exited) => {
                if let Some(Owner::Pair(_)) = self.workers.owner(worker) {
                    self.disposal_reported(worker, true);
                }
                if let Some(user) = self.workers.owner(worker).and_then(Owner::user)
                    && !self.connections.of_worker(worker).is_empty()
                    && self.log.allows(user)
                {
                    warn!(
                        uid = user.number(),
                        "sessions closed: this user's worker process has ended"
                    );
                }
                self.workers.remove(worker);
                self.worker_ended(worker);
            }
            Some(Report::Handled) => {
                if let Some(Owner::Pair(_)) = self.workers.owner(worker) {
                    self.disposal_reported(worker, false);
                }
            }
            None => {}
        }
    }

    /// Ends the connections of users whose workers hang. Connections of other users continue.
    pub(crate) fn give_up_workers(&mut self) {
        while let Some(worker) = self.workers.declare_one_hung() {
            let owner = self.workers.owner(worker);
            if let Some(Owner::Pair(_)) = owner {
                self.disposal_hangs(worker);
            }
            if let Some(user) = owner.and_then(Owner::user)
                && self.log.allows(user)
            {
                warn!(
                    uid = user.number(),
                    "sessions closed: an application of this user blocks the user's worker process"
                );
            }
            self.worker_ended(worker);
        }
    }

    /// Ends connections whose packets did not reach their workers.
    pub(crate) fn end_failed_connections(&mut self) {
        for (token, kind) in self.workers.take_failed() {
            if kind == command::PREPARE_OLDER {
                // The worker allocates nothing.
                self.connections.prepared(token, false);
            }
            self.tell_worker(token, Packet::new(command::CLOSE_CONNECTION, token, 0));
            self.connection_ended(token);
        }
        self.connections.forget_preparations(|worker| self.workers.owner(worker).is_some());
    }

    fn worker_ended(&mut self, worker: u64) {
        self.copy_areas.lose(worker);
        for token in self.connections.of_worker(worker) {
            self.connection_ended(token);
        }
    }

    /// Handles a message of a connection.
    fn heard(&mut self, token: u64, wrong: u64, body: &[u8]) {
        let malformed = |text: String| Err((Refusal::Malformed, text));
        let message = match wrong {
            report::VALID => Message::decode_any(body).map_err(|error| {
                let refusal = match error {
                    MessageError::Version(_) => Refusal::Version,
                    _ => Refusal::Malformed,
                };
                (refusal, format!("control connection: {error}"))
            }),
            report::DESCRIPTORS => malformed(
                "control connection: a message with descriptors; this server takes none".into(),
            ),
            _ => malformed(format!(
                "control connection: a message too long; at most {MAX_REQUEST_BYTES} bytes"
            )),
        };
        match message {
            Ok((message, version)) => {
                if let Some(connection) = self.connections.get_mut(token) {
                    connection.version = version;
                }
                self.asked(token, message);
            }
            Err(refused) => self.cut_off(token, &refused),
        }
    }

    /// Answers a request; the worker then reads the connection's next message.
    pub(crate) fn answer(&mut self, token: u64, message: &Message) {
        self.answer_with(token, message, Vec::new(), 0);
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, token: u64, refused: &Refused) {
        self.answer(token, &error(refused));
    }

    /// Refuses a request and ends the connection.
    fn cut_off(&mut self, token: u64, refused: &Refused) {
        self.answer_with(token, &error(refused), Vec::new(), command::LAST);
    }

    /// Sends an answer with descriptors.
    pub(crate) fn answer_with(
        &mut self,
        token: u64,
        message: &Message,
        descriptors: Vec<OwnedFd>,
        flags: u64,
    ) {
        let Some(connection) = self.connections.get(token) else { return };
        let attaches = matches!(connection.progress, Progress::New | Progress::Given(_));
        let flags = flags | if attaches { command::TIMED } else { 0 };
        let answer = Packet::new(command::ANSWER, token, flags)
            .with(descriptors)
            .saying(message.encode_for(connection.version));
        self.tell_worker(token, answer);
    }

    pub(crate) fn tell_worker(&mut self, token: u64, packet: Packet) {
        let Some(connection) = self.connections.get(token) else { return };
        self.workers.tell(connection.worker, Owner::of(connection.account), packet);
    }

    /// Handles the end of a connection that its worker has closed. Its session, if it has one,
    /// ends, too.
    pub(crate) fn connection_ended(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.gone = true;
        let (number, account) = (connection.number, connection.account);
        match std::mem::replace(&mut connection.progress, Progress::Over) {
            Progress::New => {}
            Progress::Given(prepared) | Progress::Preparing(prepared) => {
                let mut left = prepared.into_descriptors();
                left.append(&mut self.forget_session(token));
                self.workers.dispose(Owner::of(account), left);
            }
            // The control thread unmaps the memory slice by slice before it forgets the connection.
            Progress::Populating if self.slow.give_up(token) => return,
            Progress::Lives => {
                if self.log.allows(account.user()) {
                    let name = self.connections.get(token).map_or("", |one| &one.name);
                    info!(session = number, name, "detached");
                }
                return self.end_session(token, 0, Ending::AfterPackets);
            }
            Progress::Unclaimed => return self.end_session(token, 0, Ending::AtOnce),
            Progress::Populating | Progress::Over => {}
        }
        self.drop_connection(token);
    }

    /// Has all engines end a session, unless they already have the command. A second command can end a draining session
    /// at once. The application reads the reason, 0 for none.
    pub(crate) fn end_session(&mut self, token: u64, reason: u32, ending: Ending) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if connection.ending >= ending {
            return;
        }
        connection.ending = ending;
        if let Some(process) = &connection.peer.process {
            // Of an unclaimed session.
            let _ = epoll::delete(&*self.epoll, process);
        }
        if let Some(record) = &mut connection.record {
            record.end();
        }
        let number = connection.number;
        let at_once = ending == Ending::AtOnce;
        self.command(Command::RemoveSession { number, reason, at_once }, Reply::Nothing);
    }

    /// Has all engines end a session that one engine closed without a command: the application broke the protocol.
    fn end_in_other_lanes(&mut self, token: u64) {
        if self.connections.get(token).is_some_and(|one| one.ending == Ending::None) {
            self.end_session(token, 0, Ending::AtOnce);
        }
    }

    /// Forgets a connection of which nothing is left, neither in its worker nor in the engine.
    fn drop_connection(&mut self, token: u64) {
        if self.connections.get(token).is_some_and(|one| one.gone && one.number == 0)
            && let Some(connection) = self.connections.remove(token)
        {
            self.workers.count(connection.worker, false);
            self.forget_user_page(connection.account.uid);
        }
    }

    /// Maps a session's memory, which the worker has sealed and allocated.
    pub(crate) fn memory_ready(&mut self, token: u64, outcome: Result<Vec<OwnedFd>, i32>) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let progress = std::mem::replace(&mut connection.progress, Progress::Over);
        let Progress::Preparing(prepared) = progress else {
            connection.progress = progress;
            return;
        };
        let (number, worker, user) =
            (connection.number, connection.worker, connection.account.user());
        let outcome = outcome.map_err(std::io::Error::from_raw_os_error).and_then(|pins| {
            for pin in &pins {
                prepare::store(self.parts.store.as_mut(), number, prepare::PINS, pin.as_fd())?;
            }
            let relay = self.workers.notified(worker).zip(connection.counter);
            let ended = || std::io::Error::other("the worker process has ended");
            Ok((pins, relay.ok_or_else(ended)?))
        });
        let (pins, (worker, counter)) = match outcome {
            Ok(ready) => ready,
            Err(error) => return self.memory_failed(token, &error, prepared.into_descriptors()),
        };
        let relay = Relay { number: counter, worker, trusted: connection.is_administrators() };
        let mapped = match prepared.map(number, relay) {
            Ok(mapped) => mapped,
            Err((error, left)) => return self.memory_failed(token, &error, left),
        };
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.progress = Progress::Populating;
        connection.pins = pins;
        connection.mappings = Some(mapped.mappings.clone());
        self.slow.push(user, Job::Populate { token, mapped });
    }

    fn memory_failed(&mut self, token: u64, error: &std::io::Error, mut left: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get(token) else { return };
        let owner = Owner::of(connection.account);
        left.append(&mut self.forget_session(token));
        self.workers.dispose(owner, left);
        let refused = if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) {
            let text = "mapped: the application has left pages of its memory unallocated; it has to write \
                        each page, or to populate its mappings (MADV_POPULATE_WRITE), before this message";
            (Refusal::State, text.to_owned())
        } else {
            let text = format!(
                "mapped: the server could not seal, allocate or map the session's memory: {error}"
            );
            (Refusal::Limit, text)
        };
        self.refuse(token, &refused);
    }

    /// Executes a slice of a long job.
    pub(crate) fn go_on_slowly(&mut self) {
        match self.slow.go_on() {
            None => {}
            Some(Job::Populate { token, mut mapped }) => {
                self.lock(&mapped.mappings);
                self.register(&mut mapped.sessions);
                if let Some(mapped) = self.ask_for_queue(token, mapped) {
                    self.begin_session(token, mapped);
                }
            }
            Some(Job::PopulateMemory { token, .. }) => self.memory_populated(token),
            Some(Job::Release { token, mappings, sessions }) => {
                self.released(token, sessions);
                drop(mappings);
            }
        }
    }

    /// Hands a session over to the engine.
    pub(crate) fn begin_session(&mut self, token: u64, mut mapped: Mapped) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.apply_terms(&mut mapped.sessions);
        connection.progress = Progress::Lives;
        if let Some(record) = &mut connection.record {
            record.begin();
        }
        if self.log_allows_for(token)
            && let Some(connection) = self.connections.get(token)
        {
            info!(
                session = connection.number,
                name = connection.name,
                uid = connection.account.uid,
                pid = connection.peer.pid,
                trusted = connection.trusted,
                administrator = connection.is_administrators(),
                "attached"
            );
        }
        self.decide_who_notifies(token);
        let parts = mapped.sessions.into_iter().map(Box::new).map(Command::AddSession).collect();
        self.parts.engines.command_each(parts, Reply::Done(token));
    }

    /// Locks the memory if there is a swap device, so that the engine need not wait for it.
    pub(crate) fn lock(&mut self, mappings: &Mappings) {
        if !self.slow.populates_all {
            return;
        }
        let mut all = mappings.all.iter().chain(&mappings.armed);
        let outcome = all.try_for_each(|mapping| mapping.lock());
        if let Err(error) = outcome {
            self.cannot_lock(&error);
        }
    }

    /// Logs once that memory is not locked.
    pub(crate) fn cannot_lock(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.says_it_cannot_lock, true) {
            warn!(
                "sessions' memory may be paged out, and the engine then waits for the swap device: \
                 {error}; raise the limit of locked memory (LimitMEMLOCK, ulimit -l)"
            );
        }
    }

    /// Handles the end of a session in one engine: it ends in all of them. The worker of the
    /// application's user closes the doorbell once no engine has it any more.
    pub(crate) fn lane_closed(&mut self, number: u32, doorbell: Arc<OwnedFd>) {
        let token = self.connections.token_of(number);
        if let Some(token) = token {
            self.end_in_other_lanes(token);
        }
        if let Some(doorbell) = Arc::into_inner(doorbell) {
            self.close_doorbell(number, doorbell);
        }
    }

    /// Unmaps a session, slice by slice, once no engine holds anything of it any more.
    pub(crate) fn session_ended(&mut self, mut session: Box<Session>) {
        // Nothing is in flight any more, and the engine has dropped its clone.
        session.registration = None;
        let Some(session) = self.close_own_queue(session) else { return };
        let Some(token) = self.connections.token_of(session.number) else { return };
        let lanes = self.parts.engines.lanes();
        self.end_in_other_lanes(token);
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.progress = Progress::Over;
        connection.returned.push(*session);
        if connection.returned.len() < lanes {
            return;
        }
        let Some(mappings) = connection.mappings.take() else { return };
        let (user, sessions) =
            (connection.account.user(), std::mem::take(&mut connection.returned));
        self.slow.push(user, Job::Release { token, mappings, sessions });
    }

    /// Disposes of a session whose memory is unmapped.
    fn released(&mut self, token: u64, sessions: Vec<Session>) {
        let (mut left, mut doorbell) = (Vec::with_capacity(sessions.len()), None);
        for session in sessions {
            let (wake, last) = session.into_closed();
            left.extend(wake);
            doorbell = doorbell.or(last);
        }
        if let (Some(number), Some(doorbell)) =
            (self.connections.get(token).map(|one| one.number), doorbell)
        {
            self.close_doorbell(number, doorbell);
        }
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.mappings = None;
        let (worker, owner) = (connection.worker, Owner::of(connection.account));
        let pins = std::mem::take(&mut connection.pins);
        // The server pages come first.
        self.dispose_of_memories(token);
        let mut files = self.forget_session(token);
        files.append(&mut left);
        let left = files;
        // If the server ended the session, its application may still read the reason.
        let dispose = Packet::new(command::DISPOSE, token, command::WIPE).with(left);
        self.workers.tell(worker, owner, dispose);
        // The kernel frees the memory only without them.
        let pins = Packet::new(command::DISPOSE, 0, 0).with(pins);
        self.workers.tell(worker, owner, pins);
        self.drop_connection(token);
    }

    /// Has the worker close the doorbell, which ends the session for its application.
    pub(crate) fn close_doorbell(&mut self, number: u32, doorbell: OwnedFd) {
        let Some(token) = self.connections.token_of(number) else { return };
        let Some(connection) = self.connections.get_mut(token) else { return };
        let counter = connection.counter.take();
        let (worker, owner) = (connection.worker, Owner::of(connection.account));
        let value = counter.map_or(u64::MAX, u64::from);
        let mute = Packet::new(command::CLOSE_DOORBELL, token, value).with(vec![doorbell]);
        self.workers.tell(worker, owner, mute);
        self.free_counters.extend(counter);
    }

    /// Releases the control thread's resources for a session. Returns its memory files, for
    /// disposal.
    #[must_use]
    fn forget_session(&mut self, token: u64) -> Vec<OwnedFd> {
        let number = self.connections.take_number(token);
        let Some(connection) = self.connections.get_mut(token) else { return Vec::new() };
        let endpoints = std::mem::take(&mut connection.endpoints);
        let lease = connection.lease.take();
        // Other hosts know the addresses only of a session with endpoints.
        let was_known = endpoints.iter().any(Option::is_some);
        if let Some(hardware) = connection.own_queue.take() {
            self.own_queues.release(hardware);
        }
        let account = connection.account;
        let holder = Holder { uid: connection.peer.uid, name: connection.name.clone() };
        self.free_counters.extend(connection.counter.take());
        for (opened, endpoint) in endpoints.iter().zip(0..) {
            let Some(opened) = opened else { continue };
            self.forget_rule(opened);
            if !opened.revoked {
                self.release_port(opened);
            }
            if let Some(host) = self.parts.host.as_mut().filter(|_| opened.is_for_neighbours) {
                host.forget_endpoint((number, endpoint));
            }
        }
        if let Some(lease) = lease {
            self.release(&[Filter::Address(lease.mac)]);
            self.parts.pool.release(&lease, holder);
            if was_known {
                self.answer_for(&lease, account);
            }
        }
        self.decide_who_notifies(token);
        self.direct_if_alone();
        self.forget_user_page(account.uid);
        remove_stored(self.parts.store.as_mut(), number)
    }

    pub(crate) fn log_violation(&mut self, session: u32, violation: Violation) {
        let Some(token) = self.connections.token_of(session) else { return };
        let Some(connection) = self.connections.get(token) else { return };
        if self.log.allows(connection.account.user()) {
            let name = &connection.name;
            warn!(session, name, %violation, "closed: its application broke the protocol");
        }
        // One lane's engine closed it. An unclaimed session has no doorbell that would tell.
        self.end_unclaimed(token, "its memory breaks the protocol");
        self.end_session(token, 0, Ending::AtOnce);
    }

    /// Ends the server: the workers close the objects that applications can reach, as always. The
    /// store goes on to hold the sessions that the next server is to resume.
    pub(crate) fn end_all(&mut self) {
        for token in self.connections.of_all() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            connection.mappings = None;
            let (worker, owner) = (connection.worker, Owner::of(connection.account));
            let (number, apertures) = (connection.number, connection.apertures.take());
            let progress = std::mem::replace(&mut connection.progress, Progress::Over);
            let mut files = match self.leaves {
                true => Vec::new(),
                false => remove_stored(self.parts.store.as_mut(), number),
            };
            if let Progress::Given(prepared) | Progress::Preparing(prepared) = progress {
                files.append(&mut prepared.into_descriptors());
            }
            if let Some(apertures) = apertures {
                files.append(&mut self.close_memories(*apertures));
            }
            // Applications may still take packets from their queues, so the workers wipe nothing.
            let dispose = Packet::new(command::DISPOSE, 0, 0).with(files);
            self.workers.tell(worker, owner, dispose);
        }
        self.workers.end(self.leaves);
    }
}

fn error((refusal, text): &Refused) -> Message {
    Message::Error(Box::new(ErrorBody::new(*refusal, text)))
}

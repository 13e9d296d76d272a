//! The start of a successor: every session of the earlier server again, without its application.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_device::Filter;
use towpath_engine::commands::Command;
use towpath_engine::session::Session;
use towpath_protocol::layout::{
    CLOSED_ADDRESS_GONE, CLOSED_AFTER_CRASHES, CLOSED_BY_POLICY, SessionShape,
};
use towpath_protocol::peer::{Peer, has_ended};
use tracing::{debug, info, warn};

use super::left::{Left, LeftSession};
use super::record::{MOST_CRASHES, Record, Recorded, RecordedEndpoint};
use crate::addresses::{Holder, Lease};
use crate::apertures::left::LeftApertures;
use crate::apertures::tables::ApertureTables;
use crate::application::Application;
use crate::connection::{Connection, State, WithSession};
use crate::connections::SessionMemory;
use crate::control::Control;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::{ControlSession, Ending, MappedSession, SessionPhase};
use crate::engines::Reply;
use crate::host::port_protocol;
use crate::open::read_open;
use crate::prepare::{Files, remove_stored, session_bytes, unfreeable_bytes};
use crate::requests::endpoints::enter_endpoint;
use crate::resumed_request::ResumedRequest;
use crate::worker::owner::Owner;
use towpath_protocol::position::{Phase, Position};

/// Why a session is not resumed.
type NotResumed = String;

fn because(what: &str) -> impl Fn(&dyn Display) -> NotResumed {
    move |error| format!("{what}: {error}")
}

/// Returns the reason of a session that too many servers served at their end.
fn crashed(servers: u64) -> NotResumed {
    format!("{servers} servers crashed or hung while they served it")
}

/// Closes a session that too many servers served at their end. Returns the reason.
fn close_after_crashes(
    files: Files,
    shape: &SessionShape,
    lanes: usize,
    crashes: u64,
    unused: &mut Vec<OwnedFd>,
) -> NotResumed {
    let closed = files.close(shape, lanes, CLOSED_AFTER_CRASHES);
    unused.append(&mut files.into_descriptors());
    match closed {
        Ok(()) => crashed(crashes),
        Err(error) => because("its memory")(&error),
    }
}

/// Adopts the apertures of a session.
fn adopt_apertures(
    number: u32,
    shape: &SessionShape,
    left: &mut LeftApertures,
    armed: io::Result<Option<OwnedFd>>,
) -> Result<Option<Box<ApertureTables>>, NotResumed> {
    armed
        .and_then(|armed| ApertureTables::adopt(number, shape, left, armed))
        .map_err(|error| because("the record of its apertures")(&error))
}

/// Reads what an earlier server noted of a session for a server with so many lanes: the record, and the application's
/// process. `None`: there is nothing to resume.
fn read_record(
    number: u32,
    left: &LeftSession,
    lanes: usize,
) -> Result<Option<(Recorded, OwnedFd)>, NotResumed> {
    let (Some(file), Some(process)) = (&left.record, &left.process) else { return Ok(None) };
    let failed = because("its record");
    let recorded = Recorded::read(file.as_fd()).map_err(|error| failed(&error))?;
    let Some(recorded) = recorded else { return Ok(None) };
    let failed = because("its process");
    let process = process.try_clone().map_err(|error| failed(&error))?;
    if has_ended(&process).map_err(|error| failed(&error))? {
        return Ok(None);
    }
    if recorded.number != number || recorded.lanes != lanes {
        return Err(format!(
            "its record is of session {} and {} lanes; this server has {lanes}",
            recorded.number, recorded.lanes
        ));
    }
    Ok(Some((recorded, process)))
}

impl Control {
    /// Makes the sessions of an earlier server anew, before the engines run. Closes what is of no
    /// use. `position`: where this thread records its position.
    pub(crate) fn restore(&mut self, left: Left, mut position: Position) {
        let Left { sessions, user_states, mut ports, rest, mut released, copies, .. } = left;
        self.shared.adopt_copy_areas(copies);
        let mut unused: Vec<OwnedFd> = Vec::new();
        for (name, object) in rest {
            unused.extend(self.store.remove(&name));
            unused.push(object);
        }
        let without_page = self.restore_user_pages(user_states);
        let mut restored = 0;
        position.start();
        position.begin(Phase::Restore);
        for (number, mut session) in sessions {
            position.serve(number);
            self.connections.numbers_mut().skip_session(number);
            let has_page = session.recorded().is_none_or(|one| !without_page.contains(&one.uid));
            let outcome = if has_page {
                self.restore_session(number, &mut session, &mut ports, &mut unused)
            } else {
                Err("the state page of its user is lost".to_owned())
            };
            let recorded = session.recorded();
            let of = recorded.as_ref().map(|one| (one.uid, one.shape));
            unused.append(&mut self.sort_memories(
                number,
                &mut session.apertures,
                of,
                &mut released,
            ));
            match outcome {
                Ok(true) => restored += 1,
                // Its application had not finished attaching or has ended, or the session was closed.
                Ok(false) => {
                    match recorded {
                        Some(Recorded { name, uid, pid, .. }) if session.has_ended() => info!(
                            session = number,
                            name,
                            uid,
                            pid,
                            "a session ends: its application ended while no server ran"
                        ),
                        _ => debug!(session = number, "left behind, and not resumed"),
                    }
                    unused.append(&mut remove_stored(self.store.as_mut(), number));
                }
                Err(why) => {
                    let named = recorded.map(|one| (one.name, one.uid, one.pid));
                    let (name, uid, pid) = named.unwrap_or_default();
                    warn!(session = number, name, uid, pid, "not resumed: {why}");
                    unused.append(&mut remove_stored(self.store.as_mut(), number));
                }
            }
            unused.append(&mut session.into_descriptors());
        }
        self.pages.users().into_iter().for_each(|uid| self.forget_user_page(uid));
        self.restore_imports();
        self.end_link_controls();
        unused.append(&mut self.restore_released(released));
        position.begin(Phase::None);
        for (name, socket) in ports {
            // No session has this port any more.
            unused.extend(self.store.remove(&name));
            unused.push(socket);
        }
        if restored > 0 {
            info!(sessions = restored, "resumed what an earlier server left");
        }
        self.workers.close(unused);
    }

    /// Makes a session anew. Returns `false` if there is nothing to resume.
    fn restore_session(
        &mut self,
        number: u32,
        left: &mut LeftSession,
        ports: &mut HashMap<String, OwnedFd>,
        unused: &mut Vec<OwnedFd>,
    ) -> Result<bool, NotResumed> {
        let lanes = self.engines.lanes();
        let Some((recorded, process)) = read_record(number, left, lanes)? else {
            return Ok(false);
        };
        let shape = recorded.shape;
        let armed = left.apertures.armed.take();
        let files = Files::adopt(std::mem::take(&mut left.files), armed, &shape, lanes);
        let files = files.map_err(|error| because("its memory")(&error))?;
        if recorded.crashes >= MOST_CRASHES {
            return Err(close_after_crashes(files, &shape, lanes, recorded.crashes, unused));
        }
        let mapped = files.map_unclaimed(number, shape, lanes);
        let armed = files.readable_armed();
        // The application can prolong the close of these.
        unused.append(&mut files.into_descriptors());
        let mut mapped = mapped.map_err(|error| because("mapping its memory")(&error))?;
        if mapped.sessions.iter().any(Session::is_closed) {
            return Ok(false);
        }
        let (application, lease) = match self.unclaimed_application(&recorded, process) {
            Ok(made) => made,
            Err((reason, why)) => {
                // The application reads the reason in its memory.
                mapped.sessions.iter_mut().for_each(|one| drop(one.close(reason)));
                return Err(why);
            }
        };
        let apertures = adopt_apertures(number, &shape, &mut left.apertures, armed);
        let apertures = apertures.inspect_err(|_| self.give_back(&recorded, &lease))?;
        let record = left.record.as_ref().map(|file| Record::adopt(file.as_fd())).transpose();
        let record = record.map_err(|error| because("its record")(&error));
        let record = record.inspect_err(|_| self.give_back(&recorded, &lease))?;
        let name = recorded.name.clone();
        let mut session = ControlSession::new(number, name, lease, shape, None, record, apertures);
        session.hands_over = recorded.hands_over;
        let (mappings, pins) = (mapped.mappings.clone(), std::mem::take(&mut left.pins));
        let unclaimed = MappedSession::new(session, SessionPhase::Unclaimed, mappings, pins, None);
        let token = self.connections.numbers_mut().take_token();
        application.apply_terms(&mut mapped.sessions);
        if let Some(process) = &application.peer.process {
            self.wakeups.watch_process(process, token);
        }
        self.workers.count(application.worker, true);
        let unfreeable = unfreeable_bytes(application.account, &shape, lanes);
        let mut connection = Connection::new(application);
        connection.state = State::Mapped(Box::new(unclaimed));
        (connection.gone, connection.is_unfreeable) = (true, true);
        self.connections.insert(token, connection);
        let memory = SessionMemory { bytes: session_bytes(&shape, lanes), unfreeable };
        self.connections.give_number(token, number, memory);
        self.mapping_jobs.lock(mapped.mappings.all.iter().chain(&mapped.mappings.armed));
        self.register(&mut mapped.sessions);
        let parts = mapped.sessions.into_iter().map(Box::new).map(Command::AddSession).collect();
        self.engines.command_each(parts, Reply::Nothing);
        self.restore_endpoints(token, &recorded, ports);
        self.restore_exports(token);
        self.connections.unclaimed_mut().push(token);
        Ok(true)
    }

    /// Makes the application of a session, which has yet to connect, and finds the session's lease. An error has the
    /// reason that the application reads, too.
    fn unclaimed_application(
        &mut self,
        recorded: &Recorded,
        process: OwnedFd,
    ) -> Result<(Application, Lease), (u32, NotResumed)> {
        let Recorded { uid, gid, pid, entrance, .. } = *recorded;
        let peer = Peer { uid, gid, pid, groups: recorded.groups.clone(), process: Some(process) };
        let admission = self.access.admit(&peer, entrance);
        let admission = admission.map_err(|(_, text)| (CLOSED_BY_POLICY, text))?;
        let account = admission.account(uid);
        let holder = Holder { uid, name: recorded.name.clone() };
        let earlier = self.shared_lease(&holder, recorded.addresses.host_number);
        let (recorded_addresses, terms) = (&recorded.addresses, &admission.terms);
        let lease =
            self.addresses.lease_again(recorded_addresses, &holder, terms, earlier.as_ref());
        let lost = if recorded.addresses.shared { CLOSED_ADDRESS_GONE } else { 0 };
        let lease = lease.map_err(|why| (lost, why))?;
        let address = [Filter::Address(lease.mac)];
        if let Err((_, text)) = self.device.claim(&mut self.engines, "resume", &address) {
            self.addresses.release(&lease, holder);
            return Err((0, text));
        }
        let Some(worker) = self.worker_of(Owner::of(account)) else {
            self.device.release(&address);
            self.addresses.release(&lease, holder);
            return Err((0, "the server cannot start a worker for its user".to_owned()));
        };
        let trusted = self.access.may_administer(uid);
        Ok((Application::new(worker, peer, entrance, admission, trusted), lease))
    }

    /// Releases the addresses of a session that this server does not resume.
    fn give_back(&mut self, recorded: &Recorded, lease: &Lease) {
        self.device.release(&[Filter::Address(lease.mac)]);
        let holder = Holder { uid: recorded.uid, name: recorded.name.clone() };
        self.addresses.release(lease, holder);
    }

    /// Opens the endpoints of a session as they were. One that is not possible any more counts as
    /// closed by the policy.
    fn restore_endpoints(
        &mut self,
        token: u64,
        recorded: &Recorded,
        ports: &mut HashMap<String, OwnedFd>,
    ) {
        for number in 0..recorded.shape.endpoints {
            let Some(endpoint) = recorded.endpoint(number) else { continue };
            let session = recorded.number;
            match self.restore_endpoint(token, number, &endpoint, ports) {
                Ok(()) => {}
                Err(why) => {
                    warn!(session, endpoint = number, "an endpoint is not resumed: {why}");
                    self.restore_revoked(token, number, &endpoint);
                }
            }
        }
        if let Some(session) = self.connections.session_mut(token) {
            session.endpoints.find_free();
            session.resumed_request = ResumedRequest::of(&session.endpoints);
        }
    }

    fn restore_endpoint(
        &mut self,
        token: u64,
        number: u32,
        endpoint: &RecordedEndpoint,
        ports: &mut HashMap<String, OwnedFd>,
    ) -> Result<(), NotResumed> {
        let text = |(_, text)| text;
        let of = self.connections.with_session(token).ok_or("its session has ended")?;
        let WithSession { application, session, .. } = &of;
        let opened = read_open(&endpoint.request, application, session, &self.addresses);
        let mut opened = opened.map_err(text)?;
        if endpoint.revoked {
            return Err("the earlier server had closed it".to_owned());
        }
        let rules = self.addresses.rules();
        opened.settings = endpoint.settings.clone();
        opened.granted_priority = endpoint.granted_priority;
        let (account, is_shared) = (application.account, session.lease.shared);
        if opened.has_rule() && rules.owner_of(&opened.rule).is_some() {
            return Err("another session has its flow rule".to_owned());
        }
        let (lease, own_queue) = (session.lease, session.own_queue);
        rules.check_oob(&opened, &lease).map_err(text)?;
        if is_shared
            && let Some(host) = self.addresses.host_mut().filter(|_| opened.has_rule())
            && port_protocol(&opened.rule).is_some()
        {
            let name = host.hold_again(&opened.rule, account, ports)?;
            // The port is free only once no copy of its socket is left.
            self.store.forget(&name);
        }
        let claimed = self.device.claim_endpoint(&mut self.engines, &opened, own_queue);
        claimed.map_err(|(_, text)| {
            self.addresses.release_port(&opened);
            text
        })?;
        let (addresses, engines) = (&mut self.addresses, &mut self.engines);
        enter_endpoint(of, (number, None), opened, addresses, engines, Reply::Nothing);
        Ok(())
    }

    /// Enters an endpoint that is closed for its application.
    fn restore_revoked(&mut self, token: u64, number: u32, endpoint: &RecordedEndpoint) {
        let Some(session) = self.connections.session_mut(token) else { return };
        let ControlSession { number: session, endpoints, record, .. } = session;
        let session = *session;
        if let Some(record) = record {
            record.revoke(number);
        }
        endpoints.enter(number, revoked(endpoint));
        // The earlier server may have been killed before it told the application.
        self.command(Command::TellRevoked { session, number }, Reply::Nothing);
    }

    /// Ends a session whose application has ended, or has not come in time.
    pub(crate) fn end_unclaimed(&mut self, token: u64, why: &str) {
        let mapped = self.connections.get_mut(token).and_then(Connection::mapped_mut);
        let unclaimed = mapped.filter(|one| one.phase == SessionPhase::Unclaimed);
        let Some(mapped) = unclaimed else { return };
        mapped.phase = SessionPhase::Over;
        let ControlSession { number, name, .. } = &mapped.session;
        info!(session = number, name, "an unclaimed session ends: {why}");
        self.end_session(token, 0, Ending::AtOnce);
    }

    /// Ends the sessions that no application has claimed in time.
    pub(crate) fn expire_unclaimed(&mut self) {
        while let Some(token) = self.connections.unclaimed_mut().take_expired() {
            self.end_unclaimed(token, "its application did not come");
        }
    }
}

/// Returns an endpoint of an earlier server that is closed for its application.
fn revoked(recorded: &RecordedEndpoint) -> ControlEndpoint {
    ControlEndpoint {
        queue_pair: recorded.request.queue_pair,
        revoked: true,
        sequence: recorded.request.sequence,
        settings: recorded.settings.clone(),
        granted_priority: recorded.granted_priority,
        ..ControlEndpoint::default()
    }
}

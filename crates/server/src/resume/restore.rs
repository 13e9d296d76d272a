//! The start of a successor: every session of the earlier server again, without its application.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;
use towpath_device::Filter;
use towpath_protocol::layout::{
    CLOSED_ADDRESS_GONE, CLOSED_AFTER_CRASHES, CLOSED_BY_POLICY, SessionShape,
};
use towpath_protocol::peer::{Peer, has_ended};
use tracing::{debug, info, warn};

use super::left::{Left, LeftSession};
use super::record::{MOST_CRASHES, Record, Recorded, RecordedAddresses, RecordedEndpoint};
use crate::account::may_administer;
use crate::addresses::{Holder, Lease};
use crate::apertures::left::LeftApertures;
use crate::apertures::tables::ApertureTables;
use crate::connection::{Connection, Ending, Opened, Progress};
use crate::control::{Control, UNCLAIMED};
use crate::engine::commands::Command;
use crate::engine::demux::Rule;
use crate::engine::session::Session;
use crate::engines::Reply;
use crate::host::port_protocol;
use crate::open::read_open;
use crate::policy::Roles;
use crate::position::Phase;
use crate::prepare::{Files, remove_stored, session_bytes, unfreeable_bytes};
use crate::worker::workers::Owner;

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
    (shape, lanes): (&SessionShape, usize),
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

impl Control {
    /// Makes the sessions of an earlier server anew, before the engines run. Closes what is of no
    /// use.
    pub(crate) fn restore(&mut self, left: Left) {
        let Left { sessions, user_states, mut ports, rest, mut released, copies, .. } = left;
        self.copy_areas.adopt(copies);
        let mut unused: Vec<OwnedFd> = Vec::new();
        for (name, object) in rest {
            unused.extend(self.parts.store.remove(&name));
            unused.push(object);
        }
        let without_page = self.restore_user_pages(user_states);
        let mut restored = 0;
        self.parts.position.start();
        self.parts.position.begin(Phase::Restore);
        for (number, mut session) in sessions {
            self.parts.position.serve(number);
            self.next_number = self.next_number.max(number.wrapping_add(1)).max(1);
            let has_page =
                session.identity().is_none_or(|(_, uid, _)| !without_page.contains(&uid));
            let outcome = if has_page {
                self.restore_session(number, &mut session, &mut ports, &mut unused)
            } else {
                Err("the state page of its user is lost".to_owned())
            };
            let of = session.owner_and_shape();
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
                    match session.identity() {
                        Some((name, uid, pid)) if session.has_ended() => info!(
                            session = number,
                            name,
                            uid,
                            pid,
                            "a session ends: its application ended while no server ran"
                        ),
                        _ => debug!(session = number, "left behind, and not resumed"),
                    }
                    unused.append(&mut remove_stored(self.parts.store.as_mut(), number));
                }
                Err(why) => {
                    let (name, uid, pid) = session.identity().unwrap_or_default();
                    warn!(session = number, name, uid, pid, "not resumed: {why}");
                    unused.append(&mut remove_stored(self.parts.store.as_mut(), number));
                }
            }
            unused.append(&mut session.into_descriptors());
        }
        self.forget_unused_pages();
        self.restore_imports();
        unused.append(&mut self.restore_released(released));
        self.parts.position.begin(Phase::None);
        for (name, socket) in ports {
            // No session has this port any more.
            unused.extend(self.parts.store.remove(&name));
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
        let (Some(file), Some(process)) = (&left.record, &left.process) else { return Ok(false) };
        let failed = because("its record");
        let recorded = Recorded::read(file.as_fd()).map_err(|error| failed(&error))?;
        let Some(recorded) = recorded else { return Ok(false) };
        let process = process.try_clone().map_err(|error| because("its process")(&error))?;
        if has_ended(&process).map_err(|error| because("its process")(&error))? {
            return Ok(false);
        }
        let (shape, lanes) = (recorded.shape, self.parts.engines.lanes());
        if recorded.number != number || recorded.lanes != lanes {
            return Err(format!(
                "its record is of session {} and {} lanes; this server has {lanes}",
                recorded.number, recorded.lanes
            ));
        }
        let armed = left.apertures.armed.take();
        let files = Files::adopt(std::mem::take(&mut left.files), armed, &shape, lanes);
        let files = files.map_err(|error| because("its memory")(&error))?;
        if recorded.crashes >= MOST_CRASHES {
            return Err(close_after_crashes(files, (&shape, lanes), recorded.crashes, unused));
        }
        let mapped = files.map_unclaimed(number, shape, lanes);
        let armed = files.readable_armed();
        // The application can prolong the close of these.
        unused.append(&mut files.into_descriptors());
        let mut mapped = mapped.map_err(|error| because("mapping its memory")(&error))?;
        if mapped.sessions.iter().any(Session::is_closed) {
            return Ok(false);
        }
        let mut connection = match self.unclaimed_connection(&recorded, process) {
            Ok(connection) => connection,
            Err((reason, why)) => {
                // The application reads the reason in its memory.
                mapped.sessions.iter_mut().for_each(|one| drop(one.close(reason)));
                return Err(why);
            }
        };
        let apertures = adopt_apertures(number, &shape, &mut left.apertures, armed);
        connection.apertures = apertures.inspect_err(|_| self.give_back(&connection))?;
        connection.shape = Some(shape);
        connection.mappings = Some(mapped.mappings.clone());
        connection.pins = std::mem::take(&mut left.pins);
        connection.endpoints = vec![None; shape.endpoints as usize];
        let record = Record::adopt(file.as_fd()).map_err(|error| because("its record")(&error));
        connection.record = Some(record.inspect_err(|_| self.give_back(&connection))?);
        let token = self.next_token;
        self.next_token += 1;
        self.watch_process(token, &connection);
        self.workers.count(connection.worker, true);
        self.connections.insert(token, connection);
        self.connections.give_number(token, number, session_bytes(&shape, lanes));
        self.lock(&mapped.mappings);
        self.register(&mut mapped.sessions);
        if let Some(connection) = self.connections.get(token) {
            connection.apply_terms(&mut mapped.sessions);
        }
        let parts = mapped.sessions.into_iter().map(Box::new).map(Command::AddSession).collect();
        self.parts.engines.command_each(parts, Reply::Nothing);
        self.restore_endpoints(token, &recorded, ports);
        self.restore_exports(token);
        self.unclaimed.push_back((Instant::now() + self.parts.claim_timeout, token));
        Ok(true)
    }

    /// Makes the connection of a session whose application has yet to come. An error has the reason
    /// that the application reads, too.
    fn unclaimed_connection(
        &mut self,
        recorded: &Recorded,
        process: OwnedFd,
    ) -> Result<Connection, (u32, NotResumed)> {
        let Recorded { uid, gid, pid, entrance, .. } = *recorded;
        let peer = Peer { uid, gid, pid, groups: recorded.groups.clone(), process: Some(process) };
        let policy = &self.parts.policy;
        let admission = policy.standing(&peer, entrance, self.own_uid, self.all_users_known);
        let admission = admission.map_err(|(_, text)| (CLOSED_BY_POLICY, text))?;
        let account = admission.account(uid);
        let holder = Holder { uid, name: recorded.name.clone() };
        let lease = self.lease_again(&recorded.addresses, &holder, &admission.terms);
        let lost = if recorded.addresses.shared { CLOSED_ADDRESS_GONE } else { 0 };
        let lease = lease.map_err(|why| (lost, why))?;
        let address = [Filter::Address(lease.mac)];
        if let Err((_, text)) = self.claim("resume", &address) {
            self.parts.pool.release(&lease, holder);
            return Err((0, text));
        }
        let Some(worker) = self.worker_of(Owner::of(account)) else {
            self.release(&address);
            self.parts.pool.release(&lease, holder);
            return Err((0, "the server cannot start a worker for its user".to_owned()));
        };
        let trusted = may_administer(uid, self.own_uid);
        let mut connection = Connection::new(worker, (peer, entrance), admission, trusted);
        connection.gone = true;
        connection.name.clone_from(&recorded.name);
        connection.lease = Some(lease);
        connection.progress = Progress::Unclaimed;
        connection.unfreeable_bytes = unfreeable_bytes(account, &recorded.shape, recorded.lanes);
        connection.is_unfreeable = true;
        Ok(connection)
    }

    /// Releases the addresses of a session that this server does not resume.
    fn give_back(&mut self, connection: &Connection) {
        let Some(lease) = connection.lease else { return };
        self.release(&[Filter::Address(lease.mac)]);
        let holder = Holder { uid: connection.peer.uid, name: connection.name.clone() };
        self.parts.pool.release(&lease, holder);
    }

    /// Returns the addresses that a session had.
    fn lease_again(
        &mut self,
        recorded: &RecordedAddresses,
        holder: &Holder,
        terms: &crate::policy::Terms,
    ) -> Result<Lease, NotResumed> {
        let lease = match &self.parts.host {
            Some(host) if recorded.shared => host.lease(terms).map_err(|(_, text)| text)?,
            None if recorded.shared => {
                return Err("this server does not share the host's addresses".to_owned());
            }
            _ => {
                let lease = self.parts.pool.lease_again(recorded.host_number, terms);
                lease.map_err(|error| error.to_string())?
            }
        };
        if RecordedAddresses::of(&lease) == *recorded {
            return Ok(lease);
        }
        self.parts.pool.release(&lease, holder.clone());
        Err("its addresses are not those of this server".to_owned())
    }

    fn watch_process(&self, token: u64, connection: &Connection) {
        let Some(process) = &connection.peer.process else { return };
        let data = epoll::EventData::new_u64(UNCLAIMED | token);
        // Once: the keeper's copies of the descriptor keep the entry alive after this process has
        // closed its own. Without this, the session ends when the time to claim it is over.
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let _ = epoll::add(&*self.epoll, process, data, once);
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
        if let Some(connection) = self.connections.get_mut(token) {
            connection.find_free_endpoints();
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
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let mut opened =
            read_open(&endpoint.request, connection, self.parts.free_addresses).map_err(text)?;
        if endpoint.revoked {
            return Err("the policy does not grant it".to_owned());
        }
        if let Some(lease) = connection.lease.filter(|_| self.parts.rdma.is_some()) {
            opened.allow_other_hosts(&lease, &connection.terms);
        }
        opened.settings = endpoint.settings.clone();
        opened.granted_priority = endpoint.granted_priority;
        let (account, is_shared) =
            (connection.account, connection.lease.is_some_and(|lease| lease.shared));
        if opened.has_rule() && self.rules.contains_key(&opened.rule) {
            return Err("another session has its flow rule".to_owned());
        }
        self.check_oob_addresses(token, &opened).map_err(text)?;
        if is_shared
            && let Some(host) = self.parts.host.as_mut().filter(|_| opened.has_rule())
            && port_protocol(&opened.rule).is_some()
        {
            let name = host.hold_again(&opened.rule, account, ports)?;
            // The port is free only once no copy of its socket is left.
            self.parts.store.forget(&name);
        }
        self.claim_endpoint(token, &opened).map_err(text)?;
        self.enter_endpoint(token, number, opened, Reply::Nothing);
        Ok(())
    }

    /// Enters an endpoint that is closed for its application.
    fn restore_revoked(&mut self, token: u64, number: u32, endpoint: &RecordedEndpoint) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if let Some(record) = &mut connection.record {
            record.revoke(number);
        }
        let session = connection.number;
        connection.endpoints[number as usize] = Some(revoked(endpoint));
        // The earlier server may have been killed before it told the application.
        self.command(Command::TellRevoked { session, number }, Reply::Nothing);
    }

    /// Ends a session whose application has ended, or has not come in time.
    pub(crate) fn end_unclaimed(&mut self, token: u64, why: &str) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if !matches!(connection.progress, Progress::Unclaimed) {
            return;
        }
        connection.progress = Progress::Over;
        let (number, name) = (connection.number, connection.name.clone());
        info!(session = number, name, "an unclaimed session ends: {why}");
        self.end_session(token, 0, Ending::AtOnce);
    }

    /// Ends the sessions that no application has claimed in time.
    pub(crate) fn expire_unclaimed(&mut self) {
        while let Some((deadline, token)) = self.unclaimed.front().copied()
            && deadline <= Instant::now()
        {
            self.unclaimed.pop_front();
            self.end_unclaimed(token, "its application did not come");
        }
    }
}

/// Returns an endpoint of an earlier server that is closed for its application.
fn revoked(recorded: &RecordedEndpoint) -> Opened {
    Opened {
        rule: Rule::default(),
        listening: None,
        is_for_neighbours: false,
        group: false,
        offload: false,
        within_vlan: false,
        queue_pair: recorded.request.queue_pair,
        sends: false,
        roles: (Roles::NONE, false),
        out_of_band: false,
        oob: Vec::new(),
        reachable: Vec::new(),
        revoked: true,
        sequence: recorded.request.sequence,
        settings: recorded.settings.clone(),
        granted_priority: recorded.granted_priority,
    }
}

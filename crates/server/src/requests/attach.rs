//! A session: what is granted to an application that attaches, and the memory that it gets.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use towpath_device::Filter;
use towpath_protocol::layout::{ALLOCATES_SINCE, SessionShape};
use towpath_protocol::message::{self, Attached, Message, Refusal};

use crate::addresses::{Holder, Lease, PoolError};
use crate::apertures::tables::ApertureTables;
use crate::connection::{Connection, Progress, Refused, read_attach};
use crate::control::{Control, Parts};
use crate::engine::wake_data;
use crate::policy::{Entrance, Limits};
use crate::prepare::{self, Prepared, remove_stored, session_bytes, unfreeable_bytes};
use crate::resume::record::Record;
use crate::user_page::page_for;
use crate::worker::link::Packet;
use crate::worker::wire::command;

/// The memory of a session.
struct Made {
    prepared: Prepared,
    /// The descriptors for its application.
    handed: Vec<OwnedFd>,
    /// The record for a successor; `None` if none can resume the session.
    record: Option<Record>,
    apertures: Option<Box<ApertureTables>>,
}

impl Control {
    pub(super) fn attach(&mut self, token: u64, attach: &message::Attach) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        check_new(connection)?;
        let lanes = self.parts.engines.lanes();
        let (shape, wanted, name) = read_attach(attach, connection.version, lanes)?;
        let policy = &self.parts.policy;
        let terms = connection.terms.clone();
        let limits = policy.limits(&terms);
        let (uid, account, standing) =
            (connection.peer.uid, connection.account, connection.standing);
        let bytes = bytes_within(&limits, &shape, lanes)?;
        let unfreeable = unfreeable_bytes(account, &shape, lanes);
        connection.unfreeable_bytes = unfreeable;
        let shared = self.shares_host_addresses(attach.flags, wanted)?;
        let hardware = self.choose_own_queue(attach.flags, standing, &terms, &shape)?;
        // Sessions that share addresses use none up.
        let addresses = if shared { usize::MAX } else { self.parts.pool.size() };
        let (limits, size) = ((policy, &limits), (bytes, unfreeable));
        if let Some(text) = self.connections.is_full(limits, account, size, addresses) {
            return Err((Refusal::Limit, format!("attach: {text}")));
        }
        let holder = Holder { uid, name: name.clone() };
        let lease = match self.parts.host.as_ref().filter(|_| shared) {
            Some(host) => host.lease(&terms)?,
            None => {
                let lease = self.parts.pool.lease(&holder, wanted, &terms);
                lease.map_err(|error| (refusal_of(&error), format!("attach: {error}")))?
            }
        };
        // Another session's memory gets no packet for this one.
        self.direct(None);
        let address = [Filter::Address(lease.mac)];
        if let Err(refused) = self.claim("attach", &address) {
            self.parts.pool.release(&lease, holder);
            self.direct_if_alone();
            return Err(refused);
        }
        let number = self.next_number;
        let outcome = self.make_session(token, number, (&shape, lanes), (&name, &lease), hardware);
        let Made { prepared, handed, record, apertures } = match outcome {
            Ok(made) => made,
            Err(error) => {
                self.release(&address);
                self.parts.pool.release(&lease, holder);
                remove_stored(self.parts.store.as_mut(), number);
                self.direct_if_alone();
                return Err((Refusal::Limit, format!("attach: memory for the session: {error}")));
            }
        };
        self.next_number = self.next_number.wrapping_add(1).max(1);
        self.connections.give_number(token, number, bytes);
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        connection.own_queue = hardware;
        connection.record = record;
        if let Some(hardware) = hardware {
            self.own_queues.reserve(hardware);
        }
        connection.name = name;
        connection.lease = Some(lease);
        connection.shape = Some(shape);
        connection.endpoints = vec![None; shape.endpoints as usize];
        connection.apertures = apertures;
        connection.progress = Progress::Given(Box::new(prepared));
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let attached = self.attached(connection, &lease);
        self.answer_with(token, &Message::Attached(attached), handed, 0);
        Ok(())
    }

    /// Makes the memory of a session.
    fn make_session(
        &mut self,
        token: u64,
        number: u32,
        (shape, lanes): (&SessionShape, usize),
        (name, lease): (&str, &Lease),
        hardware: Option<u32>,
    ) -> io::Result<Made> {
        self.stop_answering_for(lease.mac);
        let account = self.connections.get(token).map(|connection| connection.account);
        let account = account.ok_or(io::ErrorKind::NotConnected)?;
        self.make_user_page(account)?;
        // No duplicate here: the application's user can make its close slow.
        let state = page_for(&self.state, &self.user_pages, account);
        let store = self.parts.store.as_mut();
        let (mut prepared, handed) = Prepared::new(number, (*shape, lanes), state, store)?;
        if let Some(headers) = self.own_queues.headers().filter(|_| hardware.is_some()) {
            prepared.join(headers)?;
        }
        let connection = self.connections.get(token);
        let peer = connection.map(|connection| (&connection.peer, connection.entrance));
        let process = peer.and_then(|peer| Some((peer, peer.0.process.as_ref()?)));
        let process = process.filter(|_| hardware.is_none() && store.outlives_server());
        let mut made = None;
        if let Some((peer, process)) = process {
            let (record, file) = Record::create(number, (shape, lanes), peer, name, lease)?;
            prepare::store(store, number, prepare::RECORD, file.as_fd())?;
            prepare::store(store, number, prepare::PROCESS, process.as_fd())?;
            made = Some(record);
        }
        let apertures = self.make_apertures(number, shape, made.is_some(), &prepared)?;
        Ok(Made { prepared, handed, record: made, apertures })
    }

    /// Returns the reply to a granted session.
    pub(crate) fn attached(&self, connection: &Connection, lease: &Lease) -> Attached {
        let by_port = lease.shared || !connection.terms.allow_every_flow();
        let has_queue = connection.own_queue.is_some();
        let attached = attached(
            &self.parts,
            connection.number,
            (connection.trusted, by_port, has_queue),
            lease,
        );
        let is_resumable = connection.record.is_some();
        let flags = attached.flags | if is_resumable { message::RESUMABLE } else { 0 };
        Attached { flags, ..attached }
    }

    /// Returns `true` if a session shares the host's addresses, by the flags of its request and the
    /// address that it asks for.
    ///
    /// # Errors
    /// Fails if the server does not give addresses of the requested kind.
    fn shares_host_addresses(&self, flags: u32, wanted: Option<Ipv4Addr>) -> Result<bool, Refused> {
        let (own, shared) = (flags & message::ATTACH_OWN != 0, flags & message::ATTACH_SHARED != 0);
        let name = &self.parts.info.name;
        match (own || wanted.is_some(), shared) {
            (true, true) => {
                let text = "attach: a session has addresses of its own or shares the host's; ask for one kind";
                Err((Refusal::Malformed, text.to_owned()))
            }
            (true, false) if !self.parts.gives_addresses => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} gives no addresses of an application's own; \
                     ask for the host's (Addresses::Shared), or have the server give some (serve --lease)"
                ),
            )),
            (false, true) if self.parts.host.is_none() => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} does not share the host's addresses; ask for \
                     addresses of its own (Addresses::Own), or have the server share them (serve \
                     --share-host)"
                ),
            )),
            _ => Ok(shared || !self.parts.gives_addresses),
        }
    }

    pub(super) fn mapped(&mut self, token: u64) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let prepared = match std::mem::replace(&mut connection.progress, Progress::Over) {
            Progress::Given(prepared) => prepared,
            other => {
                connection.progress = other;
                return Err((Refusal::State, "mapped: nothing was given to be mapped".into()));
            }
        };
        let data = wake_data(connection.number);
        let counter = self.free_counters.pop();
        connection.counter = counter;
        let descriptors = prepared.files_to_prepare().and_then(|files| {
            let (doorbell, armed) = (prepared.doorbell()?, prepared.armed()?);
            Ok((files, doorbell, armed))
        });
        // Not the version of this message, which may differ.
        let shape = connection.shape.as_ref();
        let is_older = shape.is_some_and(|shape| shape.version() < ALLOCATES_SINCE);
        connection.progress = Progress::Preparing(prepared);
        let (Ok((files, doorbell, armed)), Some(counter)) = (descriptors, counter) else {
            self.memory_ready(token, Err(Errno::MFILE.raw_os_error()));
            return Ok(());
        };
        self.connections.begin_preparing(token);
        let doorbell =
            Packet::new(command::OPEN_DOORBELL, token, u64::from(counter)).with(vec![doorbell]);
        self.tell_worker(token, doorbell);
        if let Some(armed) = armed {
            self.tell_worker(token, Packet::new(command::SEAL, token, 0).with(vec![armed]));
        }
        let kind = if is_older { command::PREPARE_OLDER } else { command::PREPARE_MEMORY };
        self.tell_worker(token, Packet::new(kind, token, data).with(files));
        Ok(())
    }
}

/// Checks that a connection may ask for a new session.
fn check_new(connection: &Connection) -> Result<(), Refused> {
    if !matches!(connection.progress, Progress::New) {
        return Err((Refusal::State, "attach: this connection has a session already".into()));
    }
    if connection.entrance == Entrance::Earlier {
        let text = "attach: this process may resume its session of an earlier server, and no more; ask the \
                    administrator for a grant";
        return Err((Refusal::Permission, text.into()));
    }
    Ok(())
}

/// Returns the size of a session in bytes, if the policy allows such a session.
fn bytes_within(limits: &Limits, shape: &SessionShape, lanes: usize) -> Result<usize, Refused> {
    let bytes = session_bytes(shape, lanes);
    let most = limits.session_bytes;
    if bytes > most {
        let text = format!(
            "attach: the session needs {bytes} bytes, at most {most} are allowed; ask for fewer \
             or smaller queues and buffers"
        );
        return Err((Refusal::Limit, text));
    }
    let most = limits.endpoints_per_session;
    if shape.endpoints > most {
        let text = format!(
            "attach: {} endpoints; at most {most} are allowed; ask for fewer",
            shape.endpoints
        );
        return Err((Refusal::Limit, text));
    }
    Ok(bytes)
}

/// Returns the kind of refusal for a session without addresses.
fn refusal_of(error: &PoolError) -> Refusal {
    match error {
        PoolError::InUse(_) | PoolError::Lately(_) => Refusal::InUse,
        PoolError::Outside(_) => Refusal::NotFound,
        PoolError::NotGranted(_) | PoolError::Reserved(_) => Refusal::Permission,
        _ => Refusal::Limit,
    }
}

/// Returns the reply to a granted session.
fn attached(
    parts: &Parts,
    session: u32,
    (trusted, by_port, has_queue): (bool, bool, bool),
    lease: &Lease,
) -> Attached {
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    Attached {
        epoch: parts.epoch,
        session,
        mtu: parts.info.mtu.min(usize::from(u16::MAX)) as u16,
        lanes: parts.engines.lanes() as u16,
        // For packets that its own queue sends in place, the session does the work itself.
        capabilities: flag(!has_queue, message::CAN_CHECKSUM | message::CAN_SEGMENT),
        flags: flag(trusted, message::TRUSTED)
            | flag(lease.shared, message::SHARED)
            | flag(by_port, message::BY_PORT)
            | flag(has_queue, message::OWN_QUEUE),
        mac: lease.mac,
        ipv4_prefix: lease.ipv4.map_or(0, |(_, prefix)| prefix),
        ipv6_prefix: lease.ipv6.map_or(0, |(_, prefix)| prefix),
        ipv4: lease.ipv4.map_or([0; 4], |(ip, _)| ip.octets()),
        ipv4_gateway: lease.ipv4_gateway.map_or([0; 4], |ip| ip.octets()),
        ipv6: lease.ipv6.map_or([0; 16], |(ip, _)| ip.octets()),
        ipv6_gateway: lease.ipv6_gateway.map_or([0; 16], |ip| ip.octets()),
        device: message::fixed_name(&parts.info.name),
    }
}

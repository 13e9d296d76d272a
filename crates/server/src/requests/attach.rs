//! A session: what is granted to an application that attaches, and the memory that it gets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use towpath_device::{Filter, Info};
use towpath_engine::wake_data;
use towpath_protocol::layout::{ALLOCATES_SINCE, SessionShape};
use towpath_protocol::message::{self, Attached, Message, Refusal};

use crate::addresses::{Holder, Lease};
use crate::apertures::tables::ApertureTables;
use crate::application::Application;
use crate::connection::read_attach;
use crate::connections::SessionMemory;
use crate::control::Control;
use crate::control_session::{Attaching, ControlSession};
use crate::policy::{Entrance, Limits};
use crate::prepare::{self, Prepared, remove_stored, session_bytes, unfreeable_bytes};
use crate::refusal::Refused;
use crate::resume::record::Record;
use crate::worker::link::Packet;
use crate::worker::wire::command;

/// A session that is granted, and whose memory the control thread has yet to make.
struct Granted {
    number: u32,
    name: String,
    lease: Lease,
    shape: SessionShape,
    own_queue: Option<u32>,
}

/// The memory of a session.
struct SessionParts {
    prepared: Prepared,
    /// The descriptors for its application.
    handed: Vec<OwnedFd>,
    /// The record for a successor; `None` if none can resume the session.
    record: Option<Record>,
    apertures: Option<Box<ApertureTables>>,
}

impl Control {
    pub(super) fn attach(&mut self, token: u64, attach: &message::Attach) -> Result<(), Refused> {
        let application = self.connections.without_session(token, "attach")?;
        check_entrance(application)?;
        let lanes = self.engines.lanes();
        let (shape, wanted, name) = read_attach(attach, application.version, lanes)?;
        let policy = self.access.policy();
        let terms = application.terms.clone();
        let limits = policy.limits(&terms);
        let account = application.account;
        let bytes = bytes_within(&limits, &shape, lanes)?;
        let memory = SessionMemory { bytes, unfreeable: unfreeable_bytes(account, &shape, lanes) };
        let shared = self.addresses.are_shared(attach.flags, wanted, self.device.name())?;
        let (standing, is_alone) =
            (application.standing, self.connections.sessions().next().is_none());
        let own_queue =
            self.device.choose_own_queue(attach.flags, standing, &terms, &shape, is_alone)?;
        let holder = Holder { uid: application.peer.uid, name: name.clone() };
        let replaces = attach.flags & message::ATTACH_REPLACE != 0 && !shared;
        let earlier = if replaces { self.replaced_session(&holder, wanted)? } else { None };
        let takes_none = shared || earlier.is_some();
        let (usage, addresses) =
            (self.connections.usage(), self.addresses.most_sessions(takes_none));
        if let Some(text) = usage.is_full(policy, &limits, account, memory, addresses) {
            return Err((Refusal::Limit, format!("attach: {text}")));
        }
        let lease = match earlier {
            Some(earlier) => self.addresses.share(&earlier, &holder, &terms)?,
            None => self.addresses.lease(shared, &holder, wanted, &terms)?,
        };
        // The memory of another session gets no packet for this session.
        self.device.direct(None);
        let address = [Filter::Address(lease.mac)];
        if let Err(refused) = self.device.claim(&mut self.engines, "attach", &address) {
            self.addresses.release(&lease, holder);
            self.direct_if_alone();
            return Err(refused);
        }
        let number = self.connections.numbers_mut().next_session();
        let granted = Granted { number, name, lease, shape, own_queue };
        let SessionParts { prepared, handed, record, apertures } =
            match self.make_parts(token, &granted) {
                Ok(parts) => parts,
                Err(error) => {
                    self.device.release(&address);
                    self.addresses.release(&lease, holder);
                    remove_stored(self.store.as_mut(), number);
                    self.direct_if_alone();
                    let text = format!("attach: memory for the session: {error}");
                    return Err((Refusal::Limit, text));
                }
            };
        self.connections.numbers_mut().take_session();
        if let Some(hardware) = own_queue {
            self.device.own_queues_mut().reserve(hardware);
        }
        let Granted { name, .. } = granted;
        let session = ControlSession::new(number, name, lease, shape, own_queue, record, apertures);
        let attaching = Attaching { session, prepared: Box::new(prepared), counter: None };
        self.connections.begin_attaching(token, memory, attaching);
        self.answer_attached(token, handed);
        Ok(())
    }

    /// Makes the memory of a session.
    fn make_parts(&mut self, token: u64, granted: &Granted) -> io::Result<SessionParts> {
        let Granted { number, ref name, ref lease, ref shape, own_queue } = *granted;
        let application = self.connections.get(token).map(|one| &one.application);
        let account = application.ok_or(io::ErrorKind::NotConnected)?.account;
        self.device.stop_answering_for(&mut self.engines, lease.mac);
        self.make_user_page(account)?;
        let lanes = self.engines.lanes();
        // No duplicate here: the application's user can make its close slow.
        let state = self.pages.page_for(account);
        let store = self.store.as_mut();
        let (mut prepared, handed) = Prepared::new(number, (*shape, lanes), state, store)?;
        if let Some(bounce) = self.device.own_queues().bounce_file().filter(|_| own_queue.is_some())
        {
            prepared.join(bounce)?;
        }
        let application = self.connections.get(token).map(|one| &one.application);
        let Application { peer, entrance, .. } = application.ok_or(io::ErrorKind::NotConnected)?;
        let is_resumable = own_queue.is_none() && store.outlives_server();
        let mut record = None;
        if let Some(process) = peer.process.as_ref().filter(|_| is_resumable) {
            let (made, file) = Record::create(number, shape, lanes, peer, *entrance, name, lease)?;
            prepare::store(store, number, prepare::RECORD, file.as_fd())?;
            prepare::store(store, number, prepare::PROCESS, process.as_fd())?;
            record = Some(made);
        }
        let apertures = self.make_apertures(number, shape, record.is_some(), &prepared)?;
        Ok(SessionParts { prepared, handed, record, apertures })
    }

    /// Answers an application that has a session, with the session's descriptors.
    pub(crate) fn answer_attached(&mut self, token: u64, handed: Vec<OwnedFd>) {
        let (epoch, info, lanes) =
            (self.server_run.epoch(), self.device.info(), self.engines.lanes());
        let connection = self.connections.get(token);
        let attached = connection
            .and_then(|one| Some(attached(&one.application, one.session()?, epoch, info, lanes)));
        if let Some(mut attached) = attached {
            if self.has_companion(token) {
                attached.flags |= message::REPLACES;
            }
            self.answer_with(token, &Message::Attached(attached), handed, 0);
        }
    }

    /// Has the worker seal and allocate the memory that the application has mapped.
    pub(super) fn mapped(&mut self, token: u64) -> Result<(), Refused> {
        let attaching = self
            .connections
            .begin_mapping(token)
            .ok_or_else(|| (Refusal::State, "mapped: nothing was given to be mapped".to_owned()))?;
        let Attaching { session, prepared, counter } = attaching;
        let (counter, data) = (*counter, wake_data(session.number));
        let descriptors = prepared.files_to_prepare().and_then(|files| {
            let (doorbell, armed) = (prepared.doorbell()?, prepared.armed()?);
            Ok((files, doorbell, armed))
        });
        // The version of the attach message counts, not that of this message.
        let is_older = session.shape.version() < ALLOCATES_SINCE;
        let (Ok((files, doorbell, armed)), Some(counter)) = (descriptors, counter) else {
            if let Some((account, attaching)) = self.connections.take_attaching(token) {
                let Attaching { session, prepared, counter } = attaching;
                let (left, error) = (prepared.into_descriptors(), Errno::MFILE.into());
                self.memory_failed(token, account, session, counter, left, &error);
            }
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

/// Checks that an application may ask for a new session.
fn check_entrance(application: &Application) -> Result<(), Refused> {
    if application.entrance == Entrance::Earlier {
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

/// Returns the answer to an application that has a session.
fn attached(
    application: &Application,
    session: &ControlSession,
    epoch: u64,
    info: &Info,
    lanes: usize,
) -> Attached {
    let ControlSession { number, lease, own_queue, record, .. } = session;
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let by_port = lease.shared || !application.terms.allow_every_flow();
    let has_queue = own_queue.is_some();
    Attached {
        epoch,
        session: *number,
        mtu: info.mtu.min(usize::from(u16::MAX)) as u16,
        lanes: lanes as u16,
        // A session with an own queue completes checksums and segments itself, because the queue sends in place.
        capabilities: flag(!has_queue, message::CAN_CHECKSUM | message::CAN_SEGMENT),
        flags: flag(application.trusted, message::TRUSTED)
            | flag(lease.shared, message::SHARED)
            | flag(by_port, message::BY_PORT)
            | flag(has_queue, message::OWN_QUEUE)
            | flag(record.is_some(), message::RESUMABLE),
        mac: lease.mac,
        ipv4_prefix: lease.ipv4.map_or(0, |(_, prefix)| prefix),
        ipv6_prefix: lease.ipv6.map_or(0, |(_, prefix)| prefix),
        ipv4: lease.ipv4.map_or([0; 4], |(ip, _)| ip.octets()),
        ipv4_gateway: lease.ipv4_gateway.map_or([0; 4], |ip| ip.octets()),
        ipv6: lease.ipv6.map_or([0; 16], |(ip, _)| ip.octets()),
        ipv6_gateway: lease.ipv6_gateway.map_or([0; 16], |ip| ip.octets()),
        device: message::fixed_name(&info.name),
    }
}

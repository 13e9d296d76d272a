//! A session, as the control thread knows it.

use std::os::fd::OwnedFd;

use towpath_engine::session::Session;
use towpath_engine::session::memories::Mappings;
use towpath_protocol::layout::SessionShape;

use crate::addresses::Lease;
use crate::apertures::tables::ApertureTables;
use crate::control_endpoint::ControlEndpoint;
use crate::numbered::Numbered;
use crate::prepare::Prepared;
use crate::resume::record::Record;
use crate::resumed_request::ResumedRequest;

/// The data that a session has from its request on.
#[derive(Debug)]
pub(crate) struct ControlSession {
    /// The session's number.
    pub(crate) number: u32,
    /// The name that the application gave itself.
    pub(crate) name: String,
    /// The session's addresses.
    pub(crate) lease: Lease,
    /// The sizes of the session's parts.
    pub(crate) shape: SessionShape,
    /// The hardware queue that the session has to itself, or is about to have.
    pub(crate) own_queue: Option<u32>,
    /// The session's record for a successor; `None` if none can resume the session.
    pub(crate) record: Option<Record>,
    /// The session's endpoints.
    pub(crate) endpoints: Numbered<ControlEndpoint>,
    /// `true` if the application lets a session of the same user and name have the addresses too, and take over the flow
    /// rules.
    pub(crate) hands_over: bool,
    /// `true` if the other session with the addresses ended before this one opened an endpoint for link control.
    pub(crate) is_alone: bool,
    /// The last request for an endpoint that an earlier server carried out.
    pub(crate) resumed_request: ResumedRequest,
    /// The session's memories, apertures and tripwires; `None` if it can have none.
    pub(crate) apertures: Option<Box<ApertureTables>>,
}

impl ControlSession {
    /// Makes a session without endpoints.
    pub(crate) fn new(
        number: u32,
        name: String,
        lease: Lease,
        shape: SessionShape,
        own_queue: Option<u32>,
        record: Option<Record>,
        apertures: Option<Box<ApertureTables>>,
    ) -> ControlSession {
        let (endpoints, resumed_request) =
            (Numbered::new(shape.endpoints), ResumedRequest::default());
        ControlSession {
            number,
            name,
            lease,
            shape,
            own_queue,
            record,
            endpoints,
            hands_over: false,
            is_alone: false,
            resumed_request,
            apertures,
        }
    }
}

/// A session whose memory the server has yet to map.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(crate) session: ControlSession,
    /// The memory and descriptors of the session.
    pub(crate) prepared: Box<Prepared>,
    /// The session's notification counter, while the worker seals and allocates the session's memory; `None`
    /// while the peer has yet to map the memory.
    pub(crate) counter: Option<u32>,
}

/// A session whose memory the server has mapped, or maps.
#[derive(Debug)]
pub(crate) struct MappedSession {
    pub(crate) session: ControlSession,
    /// The session's phase.
    pub(crate) phase: SessionPhase,
    /// The session's memories, for reading counters and for unmapping.
    pub(crate) mappings: Mappings,
    /// Descriptors that keep the pages of the session's memory in place while the engine uses them.
    pub(crate) pins: Vec<OwnedFd>,
    /// The session's notification counter, while its application has a doorbell.
    pub(crate) counter: Option<u32>,
    /// The command to end the session that the engines have.
    pub(crate) ending: Ending,
    /// The parts of the session that engines have returned, until all have.
    pub(crate) returned: Vec<Session>,
}

/// The phase of a session whose memory the server has mapped, or maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPhase {
    /// The server maps the session's memory.
    Populating,
    /// The engine has its session.
    Live,
    /// The engine has a session of an earlier server, whose application has yet to come.
    Unclaimed,
    /// The session is over; the engine may still hold a part of it.
    Over,
}

/// The command to end a session that the control thread has given to the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    None,
    /// The engines first send the session's last packets.
    AfterPackets,
    /// The engines send nothing more.
    AtOnce,
}

impl MappedSession {
    /// Makes a session in a phase, whose memory is mapped, and which no engine has been told to end.
    pub(crate) fn new(
        session: ControlSession,
        phase: SessionPhase,
        mappings: Mappings,
        pins: Vec<OwnedFd>,
        counter: Option<u32>,
    ) -> MappedSession {
        let (ending, returned) = (Ending::None, Vec::new());
        MappedSession { session, phase, mappings, pins, counter, ending, returned }
    }
}

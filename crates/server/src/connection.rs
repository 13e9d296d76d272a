//! One control connection, and its state.

use std::net::Ipv4Addr;

use towpath_protocol::layout::{OOB_SINCE, SessionShape};
use towpath_protocol::message::{self, Attach, Refusal};

use crate::apertures::tables::ApertureTables;
use crate::application::Application;
use crate::control_session::{Attaching, ControlSession, Ending, MappedSession, SessionPhase};
use crate::refusal::Refused;

/// The state of a connection.
#[derive(Debug)]
pub(crate) enum State {
    /// The peer has not asked for a session.
    New,
    /// The peer has the memory of its session, which the server has yet to map.
    Attaching(Box<Attaching>),
    /// The server has mapped the session's memory, or maps it.
    Mapped(Box<MappedSession>),
    /// The session is over, and nothing of it is left.
    Ended,
}

/// A connection, and its session if there is one. The worker holds the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The application, and its rights.
    pub(crate) application: Application,
    /// The connection's state.
    pub(crate) state: State,
    /// `true` if the connection has ended and its worker has closed it.
    pub(crate) gone: bool,
    /// The size of the session, in bytes.
    pub(crate) bytes: usize,
    /// The part of `bytes` that an older application lets its worker allocate, and that no process
    /// can free then.
    pub(crate) unfreeable_bytes: usize,
    /// `true` if `unfreeable_bytes` stay the user's after the session's end: the worker has allocated
    /// this memory, or may have.
    pub(crate) is_unfreeable: bool,
    /// The session's number; 0 without one.
    pub(crate) number: u32,
}

/// An application and its session, for changes of the session.
#[derive(Debug)]
pub(crate) struct WithSession<'a> {
    pub(crate) application: &'a Application,
    /// `true` if the application has yet to claim its session of an earlier server.
    pub(crate) is_unclaimed: bool,
    pub(crate) session: &'a mut ControlSession,
}

impl Connection {
    /// Makes a connection without a session.
    pub(crate) fn new(application: Application) -> Connection {
        Connection {
            application,
            state: State::New,
            gone: false,
            bytes: 0,
            unfreeable_bytes: 0,
            is_unfreeable: false,
            number: 0,
        }
    }

    /// Returns the session, if there is one.
    pub(crate) fn session(&self) -> Option<&ControlSession> {
        match &self.state {
            State::New | State::Ended => None,
            State::Attaching(attaching) => Some(&attaching.session),
            State::Mapped(mapped) => Some(&mapped.session),
        }
    }

    /// Returns the session for changes, if there is one.
    pub(crate) fn session_mut(&mut self) -> Option<&mut ControlSession> {
        self.with_session().map(|one| one.session)
    }

    /// Returns the application and its session for changes, if there is one.
    pub(crate) fn with_session(&mut self) -> Option<WithSession<'_>> {
        let is_unclaimed = self.is_unclaimed();
        let Connection { application, state, .. } = self;
        let session = match state {
            State::New | State::Ended => return None,
            State::Attaching(attaching) => &mut attaching.session,
            State::Mapped(mapped) => &mut mapped.session,
        };
        Some(WithSession { application, is_unclaimed, session })
    }

    /// Returns the session if the server has mapped its memory, or maps it.
    pub(crate) fn mapped(&self) -> Option<&MappedSession> {
        match &self.state {
            State::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// Returns the session as [`Connection::mapped`] does, for changes.
    pub(crate) fn mapped_mut(&mut self) -> Option<&mut MappedSession> {
        match &mut self.state {
            State::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// Returns the session if its application uses it.
    pub(crate) fn live(&self) -> Option<&ControlSession> {
        self.mapped().filter(|one| one.phase == SessionPhase::Live).map(|one| &one.session)
    }

    /// Returns `true` if the connection stands for an application that has yet to claim its session of an
    /// earlier server.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.mapped().is_some_and(|one| one.phase == SessionPhase::Unclaimed)
    }

    /// Takes the session whose memory the server has yet to map, if there is one.
    pub(crate) fn take_attaching(&mut self) -> Option<Attaching> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Attaching(attaching) => Some(*attaching),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes the session whose memory the server has mapped, if there is one.
    pub(crate) fn take_mapped(&mut self) -> Option<MappedSession> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Mapped(mapped) => Some(*mapped),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Returns the command to end the session that the engines have.
    pub(crate) fn ending(&self) -> Ending {
        self.mapped().map_or(Ending::None, |one| one.ending)
    }

    /// Returns the memories, apertures and tripwires of the session, if it can have some.
    pub(crate) fn apertures(&self) -> Option<&ApertureTables> {
        self.session()?.apertures.as_deref()
    }

    /// Returns the memories, apertures and tripwires for changes.
    pub(crate) fn apertures_mut(&mut self) -> Option<&mut ApertureTables> {
        self.session_mut()?.apertures.as_deref_mut()
    }
}

/// Reads the numbers of an attach message.
///
/// # Errors
/// Fails with the line that the server sends to the peer.
pub(crate) fn read_attach(
    attach: &Attach,
    version: u16,
    lanes: usize,
) -> Result<(SessionShape, Option<Ipv4Addr>, String), Refused> {
    let malformed = |text: String| (Refusal::Malformed, text);
    let oob = attach.flags >> message::ATTACH_OOB_SHIFT;
    let known = if version >= OOB_SINCE { (1 << message::ATTACH_OOB_SHIFT) - 1 } else { u32::MAX };
    if attach.flags & known & !message::ATTACH_ALL != 0 {
        return Err(malformed(format!("attach: unknown flags {:#x}", attach.flags)));
    }
    let shape = SessionShape::new(
        attach.queue_pairs,
        attach.endpoints,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_buffer_bytes,
        attach.receive_buffer_bytes,
    )
    .and_then(|shape| shape.with_oob(oob))
    .and_then(|shape| shape.with_apertures(attach.apertures, attach.tripwires))
    .map_err(|error| malformed(format!("attach: {error}")))?
    .of_version(version);
    shape
        .check_lanes(lanes)
        .map_err(|error| (Refusal::Limit, format!("attach: with {lanes} lanes: {error}")))?;
    let wanted = Ipv4Addr::from(attach.ipv4);
    let name = message::shown_name(&attach.name);
    Ok((shape, (!wanted.is_unspecified()).then_some(wanted), name))
}

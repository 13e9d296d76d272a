//! Finds the tables and objects that a request names, or refuses the request.

use towpath_engine::account::Account;
use towpath_protocol::message::Refusal;

use super::objects::{Entry, ObjectKind};
use super::tables::ApertureTables;
use crate::connection::WithSession;
use crate::connections::Connections;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::ControlSession;
use crate::numbered::Numbered;
use crate::refusal::Refused;

/// A number for an object that a session asks for, and the parts of the session.
pub(super) struct NewObject<'a> {
    pub(super) number: u32,
    pub(super) account: Account,
    pub(super) endpoints: &'a Numbered<ControlEndpoint>,
    pub(super) apertures: &'a mut ApertureTables,
}

impl Connections {
    /// Returns the tables of a live session that may have apertures. `what`: the name of the request.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(super) fn apertures(
        &mut self,
        token: u64,
        what: &str,
    ) -> Result<&mut ApertureTables, Refused> {
        let session = self.live(token).ok_or_else(|| no_session(what))?.session;
        session.apertures.as_deref_mut().ok_or_else(|| no_apertures(what))
    }

    /// Returns the number for a new object of a live session, and the session's parts.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(super) fn new_object(
        &mut self,
        token: u64,
        kind: ObjectKind,
        what: &str,
    ) -> Result<NewObject<'_>, Refused> {
        let WithSession { application, session, .. } =
            self.live(token).ok_or_else(|| no_session(what))?;
        let ControlSession { endpoints, apertures, .. } = session;
        let apertures = apertures.as_deref_mut().ok_or_else(|| no_apertures(what))?;
        let number = apertures.objects.free(kind).ok_or_else(|| {
            let text = format!("{what}: the session has as many as it asked for; release one (an aperture that has ended counts until it is revoked or released)");
            (Refusal::Limit, text)
        })?;
        Ok(NewObject { number, account: application.account, endpoints, apertures })
    }
}

fn no_session(what: &str) -> Refused {
    (Refusal::State, format!("{what}: there is no session on this connection"))
}

fn no_apertures(what: &str) -> Refused {
    let text = format!(
        "{what}: the session has no apertures; attach with Options::apertures, and with \
         Options::tripwires for tripwires"
    );
    (Refusal::State, text)
}

impl ApertureTables {
    /// Returns a memory of the session.
    pub(super) fn memory(&self, number: u32, what: &str) -> Result<Entry, Refused> {
        self.objects.get(ObjectKind::Memory, number).ok_or_else(|| {
            (Refusal::NotFound, format!("{what}: the session has no memory {number}"))
        })
    }
}

pub(super) fn refused(refusal: Refusal, text: impl std::fmt::Display) -> Refused {
    (refusal, text.to_string())
}

pub(super) fn outside(what: &str, offset: u64, len: u64, memory: &Entry) -> Refused {
    let bytes = memory.len;
    let text = format!(
        "{what}: {len} bytes from byte {offset} on; the memory has {bytes} bytes, and a range must not be empty"
    );
    (Refusal::Malformed, text)
}

//! Finds the tables and objects that a request names, or refuses the request.

use towpath_protocol::message::Refusal;

use super::objects::{Entry, What};
use super::tables::ApertureTables;
use crate::connection::{Progress, Refused};
use crate::control::Control;

impl Control {
    /// Returns the tables of a live session that may have apertures.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(super) fn apertures(
        &mut self,
        token: u64,
        what: &str,
    ) -> Result<&mut ApertureTables, Refused> {
        let connection = self.connections.get_mut(token);
        let lives = connection.filter(|one| matches!(one.progress, Progress::Lives));
        let Some(connection) = lives else {
            let text = format!("{what}: there is no session on this connection");
            return Err((Refusal::State, text));
        };
        connection.apertures.as_deref_mut().ok_or_else(|| {
            let text = format!(
                "{what}: the session has no apertures; attach with Options::apertures, and with \
                 Options::tripwires for tripwires"
            );
            (Refusal::State, text)
        })
    }

    /// Returns the number for a new object of a session, and its tables.
    pub(super) fn number_for(
        &mut self,
        token: u64,
        kind: What,
        what: &str,
    ) -> Result<(u32, &mut ApertureTables), Refused> {
        let apertures = self.apertures(token, what)?;
        let number = apertures.objects.free(kind).ok_or_else(|| {
            let text = format!("{what}: the session has as many as it asked for; release one (an aperture that has ended counts until it is revoked or released)");
            (Refusal::Limit, text)
        })?;
        Ok((number, apertures))
    }
}

impl ApertureTables {
    /// Returns a memory of the session.
    pub(super) fn memory(&self, number: u32, what: &str) -> Result<Entry, Refused> {
        self.objects.get(What::Memory, number).ok_or_else(|| {
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

//! The memory that a connection with another host works on: what the peer reads and writes is in
//! apertures of the endpoint here, and what its own requests move is in memories of its session.

use std::collections::VecDeque;

use towpath_protocol::apertures::Access as Right;
use towpath_protocol::oob::{Kind, OTHER_HOST_UID, OobAddress, OobMessage};
use towpath_protocol::requests::LocalRange;
use towpath_rdma::{Access, Delivery, Host, NotCopied, NotReady, PROBE, Psn, Range, Refused};

use super::copies::{RemoteCopies, checked};
use super::ledger::{Acknowledged, RemoteLedger};
use super::pending::{Pending, Work};
use super::table::RemoteTable;
use crate::apertures::memory::Place;
use crate::apertures::requests::{Allowed, Asked, allowed, local_parts, touch_tripwires};
use crate::demux::Destination;
use crate::oob::OobParts;
use crate::oob::connection::{Connection, EndpointName};

/// The session of such an endpoint, as messages name it: this, and the QPN. No
/// session of this server has so high a number.
const SESSION: u32 = 0xff00_0000;

/// Returns the number that stands for a connection where a session's is expected.
pub(super) fn session_number(qpn: u32) -> u32 {
    SESSION | qpn
}

/// Makes a message of an endpoint of another host.
pub(super) fn message(
    kind: Kind,
    qpn: u32,
    from: OobAddress,
    payload: &[u8],
) -> Option<OobMessage> {
    let message = OobMessage::new(kind, from, payload)?;
    Some(message.from_sender(from, OTHER_HOST_UID, session_number(qpn)))
}

/// Whether the endpoint of a connection is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attendance {
    /// It has the connection.
    Present,
    /// It has left, and may have another connection.
    Left,
    /// It is removed, and another endpoint may have its number.
    Removed,
}

impl Attendance {
    /// `true` if the endpoint learns what becomes of its requests.
    pub(super) fn records(self, owner: EndpointName, parts: &mut OobParts<'_>) -> bool {
        match self {
            Attendance::Present => true,
            Attendance::Removed => false,
            Attendance::Left => {
                let Some(key) = parts.sessions.key(owner.session) else { return false };
                let at = Destination { session: key, endpoint: owner.endpoint };
                parts.open_queue(at).is_some_and(|queue| queue.connection() == Connection::None)
            }
        }
    }
}

/// The memory of a connection.
pub(super) struct ConnectionHost<'a, 'b> {
    pub(super) owner: EndpointName,
    pub(super) qpn: u32,
    pub(super) peer: OobAddress,
    pub(super) pending: &'a mut VecDeque<Pending>,
    /// The slot behind the last one that is acknowledged.
    pub(super) done: &'a mut Option<u32>,
    /// Its place in the ledger.
    pub(super) place: Option<u32>,
    pub(super) attendance: Attendance,
    pub(super) copies: &'a mut RemoteCopies,
    pub(super) parts: &'a mut OobParts<'b>,
}

impl ConnectionHost<'_, '_> {
    fn allowed(&mut self, range: Range, access: Right) -> Result<Allowed, Refused> {
        let asked = Asked { key: range.key, first: range.address, len: range.len };
        allowed(&asked, access, &EndpointName::of_other_host(self.qpn), self.parts)
            .map_err(|_| Refused)
    }

    /// Returns the parts of a request's local ranges from its byte `offset` on, and the key of its session; `None`
    /// if the request or the session is gone.
    fn local_parts(&self, id: u64, offset: u64, bytes: usize) -> Option<(Vec<LocalRange>, u32)> {
        let pending = self.pending.iter().find(|one| one.id == id)?;
        let Work::Request { request, checked, .. } = &pending.work else { return None };
        let key = self.parts.sessions.key(self.owner.session)?;
        let parts = local_parts(&request.local[..checked.local], offset, bytes as u64).collect();
        Some((parts, key))
    }
}

impl Host for ConnectionHost<'_, '_> {
    fn check(&mut self, range: Range, access: Access) -> Result<(), Refused> {
        let access = if access == Access::Read { Right::Read } else { Right::Write };
        self.allowed(range, access).map(|_| ())
    }

    fn place(&mut self, range: Range, bytes: &[u8]) -> Result<(), NotCopied> {
        let allowed = self.allowed(range, Right::Write)?;
        let memory = allowed.memory(self.parts.sessions).ok_or(Refused)?;
        let place = Place { memory, offset: allowed.offset() as usize };
        checked(self.copies.received.write(place, bytes))?;
        self.parts.remote.touched += touch_tripwires(&allowed, Right::Write, self.parts);
        Ok(())
    }

    fn fetch(&mut self, range: Range, to: &mut [u8]) -> Result<(), NotCopied> {
        let allowed = self.allowed(range, Right::Read)?;
        let memory = allowed.memory(self.parts.sessions).ok_or(Refused)?;
        let place = Place { memory, offset: allowed.offset() as usize };
        checked(self.copies.sent.read(place, to))?;
        self.parts.remote.touched += touch_tripwires(&allowed, Right::Read, self.parts);
        Ok(())
    }

    fn deliver(&mut self, psn: Psn, delivery: Delivery<'_>) -> Result<(), NotReady> {
        let words;
        let (kind, payload) = match delivery {
            Delivery::Message(payload) => (Kind::Plain, payload),
            Delivery::Value(value, bytes) => {
                words = [value.to_le_bytes(), bytes.to_le_bytes()].concat();
                (Kind::Value, &words[..])
            }
        };
        let message = message(kind, self.qpn, self.peer, payload).ok_or(NotReady)?;
        let key = self.parts.sessions.key(self.owner.session).ok_or(NotReady)?;
        let at = Destination { session: key, endpoint: self.owner.endpoint };
        let (place, number) = (self.place, session_number(self.qpn));
        let record = |remote: &mut RemoteTable, index| {
            remote.record(place, |ledger, place| ledger.deliver(place, psn, index));
        };
        self.parts.push_remote(at, number, &message, record).map_err(|_| NotReady)
    }

    fn load(&mut self, id: u64, offset: u64, to: &mut [u8]) -> Result<(), NotCopied> {
        let message = self.pending.iter().find(|one| one.id == id).and_then(Pending::message);
        if let Some(message) = message {
            to.copy_from_slice(message.get(..to.len()).ok_or(Refused)?);
            return Ok(());
        }
        let (parts, key) = self.local_parts(id, offset, to.len()).ok_or(Refused)?;
        let session = self.parts.sessions.get(key).ok_or(Refused)?;
        self.copies.load(&session.extras.apertures, id, offset, &parts, to)
    }

    fn store(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), NotCopied> {
        if self.attendance != Attendance::Present {
            // The application may use the memory for something else.
            return Ok(());
        }
        let (parts, key) = self.local_parts(id, offset, bytes.len()).ok_or(Refused)?;
        let session = self.parts.sessions.get(key).ok_or(Refused)?;
        self.copies.store(&session.extras.apertures, id, offset, &parts, bytes)
    }

    fn complete(&mut self, id: u64, next: Psn) {
        // The record comes first: the next server does not send a request again that it finds as
        // acknowledged.
        let last = self.pending.iter().rfind(|one| id != PROBE && one.id <= id);
        if let Some(last) = last {
            *self.done = Some(last.place().1.wrapping_add(1));
        }
        let to = Acknowledged { slot: *self.done, next };
        self.parts.remote.record(self.place, |ledger, place| ledger.acknowledge(place, &to));
        if id == PROBE {
            self.parts.remote.record(self.place, RemoteLedger::clear_probe);
            return;
        }
        while self.pending.front().is_some_and(|one| one.id <= id)
            && let Some(one) = self.pending.pop_front()
        {
            if self.attendance.records(self.owner, self.parts) {
                one.complete(self.owner, self.parts);
            } else {
                one.forget(self.owner, self.parts);
            }
        }
    }
}

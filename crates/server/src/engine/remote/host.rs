//! The memory that a connection with another host works on: what the peer reads and writes is in
//! apertures of the endpoint here, and what its own requests move is in memories of its session.

use std::collections::VecDeque;

use towpath_protocol::apertures::Access as Right;
use towpath_protocol::oob::{Kind, OTHER_HOST_UID, OobAddress, OobMessage};
use towpath_rdma::{Access, Delivery, Host, NotReady, PROBE, Psn, Range, Refused};

use super::ledger::{Acknowledged, Ledger};
use super::pending::{Pending, Work};
use super::table::RemoteTable;
use crate::engine::apertures::requests::{Allowed, Asked, allowed, local_parts, touch_tripwires};
use crate::engine::demux::Destination;
use crate::engine::oob::Parts;
use crate::engine::oob::connection::{Connection, EndpointName};

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
    pub(super) fn records(self, owner: EndpointName, parts: &mut Parts<'_>) -> bool {
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
    pub(super) parts: &'a mut Parts<'b>,
}

impl ConnectionHost<'_, '_> {
    fn allowed(&mut self, range: Range, access: Right) -> Result<Allowed, Refused> {
        let asked = Asked { key: range.key, first: range.address, len: range.len };
        allowed(&asked, access, &EndpointName::of_other_host(self.qpn), self.parts)
            .map_err(|_| Refused)
    }

    /// Calls `copy` with each part of a request's local ranges from its byte `offset` on: the memory, the
    /// offset there, and the range of the caller's bytes. Returns `false` if a memory is gone.
    fn each_part(
        &self,
        id: u64,
        offset: u64,
        bytes: usize,
        mut copy: impl FnMut(&towpath_memory::CommonMemory, usize, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let Some(pending) = self.pending.iter().find(|one| one.id == id) else { return false };
        let Work::Request { request, checked, .. } = &pending.work else { return false };
        let session = self.parts.sessions.key(self.owner.session);
        let Some(session) = session.and_then(|key| self.parts.sessions.get(key)) else {
            return false;
        };
        let mut done = 0;
        for part in local_parts(&request.local[..checked.local], offset, bytes as u64) {
            let range = done..done + part.len as usize;
            let memory = session.apertures.memory(part.memory);
            if !memory.is_some_and(|memory| copy(memory, part.offset as usize, range.clone())) {
                return false;
            }
            done = range.end;
        }
        done == bytes
    }
}

impl Host for ConnectionHost<'_, '_> {
    fn check(&mut self, range: Range, access: Access) -> Result<(), Refused> {
        let access = if access == Access::Read { Right::Read } else { Right::Write };
        self.allowed(range, access).map(|_| ())
    }

    fn place(&mut self, range: Range, bytes: &[u8]) -> Result<(), Refused> {
        let allowed = self.allowed(range, Right::Write)?;
        let memory = allowed.memory(self.parts.sessions).ok_or(Refused)?;
        if !memory.write(allowed.offset() as usize, bytes) {
            return Err(Refused);
        }
        self.parts.remote.touched += touch_tripwires(&allowed, Right::Write, self.parts);
        Ok(())
    }

    fn fetch(&mut self, range: Range, to: &mut [u8]) -> Result<(), Refused> {
        let allowed = self.allowed(range, Right::Read)?;
        let memory = allowed.memory(self.parts.sessions).ok_or(Refused)?;
        if !memory.read(allowed.offset() as usize, to) {
            return Err(Refused);
        }
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

    fn load(&mut self, id: u64, offset: u64, to: &mut [u8]) -> bool {
        let message = self.pending.iter().find(|one| one.id == id).and_then(Pending::message);
        if let Some(message) = message {
            return message.get(..to.len()).map(|from| to.copy_from_slice(from)).is_some();
        }
        self.each_part(id, offset, to.len(), |memory, at, part| memory.read(at, &mut to[part]))
    }

    fn store(&mut self, id: u64, offset: u64, bytes: &[u8]) -> bool {
        if self.attendance != Attendance::Present {
            // The application may use the memory for something else.
            return true;
        }
        self.each_part(id, offset, bytes.len(), |memory, at, part| memory.write(at, &bytes[part]))
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
            self.parts.remote.record(self.place, Ledger::clear_probe);
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

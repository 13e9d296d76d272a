//! The requests of an endpoint here to one of another host. The scheduler decides when a request, or
//! a piece of it, may go; then the connection sends it, and its slot in the transmit queue is free
//! once the other host has acknowledged it.

use towpath_protocol::requests::{RequestFault, RequestKind};
use towpath_rdma::requester::{WINDOW_BYTES, Work as Wanted, WorkKind};

use super::pending::{Pending, Work, length};
use super::table::{Remote, State};
use crate::engine::apertures::requests::{Outcome, Requesting, TRANSFER_BYTES, check_local, fail};
use crate::engine::oob::connection::EndpointName;
use crate::engine::oob::{Parts, Sender};
use crate::engine::session::Session;

/// The most requests of a connection that are not acknowledged.
const MOST_PENDING: usize = 64;
/// Bytes that may be sent and are not acknowledged, from which on a request waits: as many as the
/// connection sends.
const MOST_BYTES: u64 = WINDOW_BYTES as u64;
/// The longest time until a request that waits is looked at again, in nanoseconds; the progress of
/// its connection ends the wait.
const WAIT_NS: u64 = 100_000_000;

impl Pending {
    /// Records that it is complete, and frees its slot.
    pub(super) fn complete(self, owner: EndpointName, parts: &mut Parts<'_>) {
        self.end(owner, parts, |session, sequence| {
            session.apertures.complete(owner.endpoint, sequence);
        });
    }

    /// Records that it failed, and frees its slot.
    pub(super) fn fail(self, fault: RequestFault, owner: EndpointName, parts: &mut Parts<'_>) {
        self.end(owner, parts, |session, sequence| {
            session.apertures.fail(owner.endpoint, sequence, fault);
        });
    }

    /// Frees its slot, and records nothing: its endpoint has left the connection.
    pub(super) fn forget(self, owner: EndpointName, parts: &mut Parts<'_>) {
        let (queue_pair, slot) = self.place();
        if self.is_taken() {
            free_slot(owner, queue_pair, slot, parts);
        }
    }

    fn end(
        self,
        owner: EndpointName,
        parts: &mut Parts<'_>,
        record: impl FnOnce(&mut Session, u32),
    ) {
        let Some(key) = parts.sessions.key(owner.session) else { return };
        let Some(session) = parts.sessions.get_mut(key) else { return };
        if let Work::Request { request, .. } = &self.work {
            record(session, request.sequence);
            parts.notifier.touch_oob(session, key, owner.endpoint);
        }
        self.forget(owner, parts);
    }
}

/// Gives the buffer of a request back to its application.
fn free_slot(owner: EndpointName, queue_pair: u32, slot: u32, parts: &mut Parts<'_>) {
    let Some(key) = parts.sessions.key(owner.session) else { return };
    let Some(session) = parts.sessions.get_mut(key).filter(|one| !one.closing) else { return };
    let Some(set) = session.queue_pairs.get_mut(queue_pair as usize) else { return };
    set.transmit.complete(&mut session.transmit_ledger, slot, 1);
    parts.notifier.touch(session, key, queue_pair);
}

/// Lets a request, or its next piece, go out on a connection. Returns what became of it, and its cost
/// as a number of bytes moved.
pub(crate) fn admit(one: &Requesting<'_>, qpn: u32, parts: &mut Parts<'_>) -> (Outcome, u64) {
    let now = parts.remote.now;
    let Some(mut remote) = parts.remote.take(qpn) else {
        fail(one, RequestFault::Closed, parts);
        return (Outcome::Ended, 0);
    };
    let admitted = admit_to(&mut remote, one, parts, now);
    if let Ok((Outcome::NotReady(_), _)) = admitted {
        remote.waiting = Some(one.sender.queue_pair);
    }
    parts.remote.put(qpn, remote);
    parts.remote.make_ready(qpn);
    admitted.unwrap_or_else(|fault| {
        fail(one, fault, parts);
        (Outcome::Ended, 0)
    })
}

fn admit_to(
    remote: &mut Remote,
    one: &Requesting<'_>,
    parts: &mut Parts<'_>,
    now: u64,
) -> Result<(Outcome, u64), RequestFault> {
    let Requesting { sender, request, checked } = one;
    if !matches!(remote.state, State::Open | State::Answered(_)) || remote.leaves_at.is_some() {
        return Err(RequestFault::Closed);
    }
    if remote.is_done(sender.slot, capacity(sender, parts)) {
        if let Some(session) = parts.sessions.get_mut(sender.from.session) {
            session.apertures.complete(sender.from.endpoint, request.sequence);
            parts.notifier.touch_oob(session, sender.from.session, sender.from.endpoint);
        }
        return Ok((Outcome::Ended, 0));
    }
    let is_begun =
        remote.pending.back().is_some_and(|last| last.is_of((sender.queue_pair, sender.slot)));
    if let Err(fault) = check_local(request, checked, sender.from.session, parts.sessions) {
        // It ends the connection: those before it are done first.
        let others = remote.pending.len() - usize::from(is_begun);
        return if others > 0 { Ok((Outcome::NotReady(now + WAIT_NS), 0)) } else { Err(fault) };
    }
    let wire = remote.wire.as_mut().ok_or(RequestFault::Closed)?;
    let is_full = !is_begun && remote.pending.len() >= MOST_PENDING;
    if is_full || wire.requester().unacknowledged() >= MOST_BYTES {
        return Ok((Outcome::NotReady(now + WAIT_NS), 0));
    }
    let bytes = length(request, checked);
    if !is_begun {
        let id = remote.next_id;
        remote.next_id += 1;
        let work = Work::Request {
            queue_pair: sender.queue_pair,
            slot: sender.slot,
            request: Box::new(**request),
            checked: *checked,
            released: 0,
        };
        remote.pending.push_back(Pending { id, work });
        let kind = match checked.kind {
            RequestKind::Write => WorkKind::Write,
            RequestKind::WriteWithValue => WorkKind::WriteWithValue(request.value),
            RequestKind::Read => WorkKind::Read,
            RequestKind::Send => WorkKind::Send,
        };
        let wanted = Wanted { id, kind, bytes, key: request.key, address: request.remote };
        wire.push(wanted, 0, now);
    }
    let Some(Pending { work: Work::Request { released, .. }, .. }) = remote.pending.back_mut()
    else {
        return Err(RequestFault::Closed);
    };
    let before = *released;
    *released = (before + TRANSFER_BYTES).min(bytes);
    wire.release(*released);
    let outcome = if *released < bytes { Outcome::More } else { Outcome::Sent };
    Ok((outcome, *released - before))
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Its slot is free once the other host has it.
    Sent,
    /// The other host has it already.
    Done,
    /// There is no room for it.
    Dropped,
}

/// Sends an out-of-band message to the peer of an endpoint.
pub(crate) fn send_message(
    sender: &Sender,
    qpn: u32,
    payload: &[u8],
    parts: &mut Parts<'_>,
) -> Message {
    let (now, capacity) = (parts.remote.now, capacity(sender, parts));
    let Some(remote) = parts.remote.connections.get_mut(&qpn) else {
        return Message::Dropped;
    };
    if remote.is_done(sender.slot, capacity) {
        return Message::Done;
    }
    let Some(wire) = remote.wire.as_mut() else { return Message::Dropped };
    let is_open =
        matches!(remote.state, State::Open | State::Answered(_)) && remote.leaves_at.is_none();
    if !is_open || remote.pending.len() >= MOST_PENDING {
        return Message::Dropped;
    }
    let id = remote.next_id;
    remote.next_id += 1;
    let (from, slot) = (sender.queue_pair, sender.slot);
    let work = Work::Message { queue_pair: from, slot, payload: payload.to_vec() };
    remote.pending.push_back(Pending { id, work });
    let bytes = payload.len() as u64;
    wire.push(Wanted { id, kind: WorkKind::Send, bytes, key: 0, address: 0 }, bytes, now);
    parts.remote.make_ready(qpn);
    Message::Sent
}

/// Returns the slots of a sender's transmit queue.
fn capacity(sender: &Sender, parts: &Parts<'_>) -> u32 {
    let session = parts.sessions.get(sender.from.session);
    session.map_or(0, |session| session.shape.queues.transmit())
}

impl Remote {
    /// `true` if what is in a slot was acknowledged, before the server was killed that had taken it.
    fn is_done(&self, slot: u32, capacity: u32) -> bool {
        self.done.is_some_and(|done| (1..=capacity).contains(&done.wrapping_sub(slot)))
    }
}

/// `true` if a connection takes a further request.
pub(super) fn has_room(one: &Remote) -> bool {
    let unacknowledged = one.wire.as_ref().map_or(0, |wire| wire.requester().unacknowledged());
    one.pending.len() < MOST_PENDING && unacknowledged < MOST_BYTES / 2
}

//! The requests of an endpoint here to one of another host. The scheduler decides when a request, or
//! a piece of it, may go; then the connection sends it, and its slot in the transmit queue is free
//! once the other host has acknowledged it.

use towpath_protocol::requests::{RequestFault, RequestKind};
use towpath_rdma::Connection as Wire;
use towpath_rdma::requester::{Work as Wanted, WorkKind};

use super::connection::{Remote, State};
use super::pending::{Pending, Waiting, Work, length};
use crate::apertures::requests::{Outcome, Requesting, TRANSFER_BYTES, check_local, fail};
use crate::oob::connection::EndpointName;
use crate::oob::{OobParts, Sender};
use crate::session::Session;

/// The most requests of a connection that are not acknowledged.
const MOST_PENDING: usize = 64;
/// Even for a connection with a small window, so many bytes may be released without an acknowledgement.
const LEAST_RELEASED_BYTES: u64 = 2 * TRANSFER_BYTES;
/// The longest time until a request that waits is looked at again, in nanoseconds; the progress of
/// its connection ends the wait.
const WAIT_NS: u64 = 100_000_000;

impl Pending {
    /// Records that it is complete, and frees its slot.
    pub(super) fn complete(self, owner: EndpointName, parts: &mut OobParts<'_>) {
        self.end(owner, parts, |session, sequence| {
            session.extras.apertures.complete(owner.endpoint, sequence);
        });
    }

    /// Records that it failed, and frees its slot.
    pub(super) fn fail(self, fault: RequestFault, owner: EndpointName, parts: &mut OobParts<'_>) {
        self.end(owner, parts, |session, sequence| {
            session.extras.apertures.fail(owner.endpoint, sequence, fault);
        });
    }

    /// Frees its slot, and records nothing: its endpoint has left the connection.
    pub(super) fn forget(self, owner: EndpointName, parts: &mut OobParts<'_>) {
        let (queue_pair, slot) = self.place();
        if self.is_taken() {
            free_slot(owner, queue_pair, slot, parts);
        }
    }

    fn end(
        self,
        owner: EndpointName,
        parts: &mut OobParts<'_>,
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

/// Completes the slot of a request.
fn free_slot(owner: EndpointName, queue_pair: u32, slot: u32, parts: &mut OobParts<'_>) {
    let Some(key) = parts.sessions.key(owner.session) else { return };
    let Some(session) = parts.sessions.get_mut(key).filter(|one| !one.is_closing()) else { return };
    if session.transmit.get(queue_pair).is_none() {
        return;
    }
    session.transmit.complete(queue_pair, slot, 1);
    parts.notifier.touch(&mut session.receive, key, queue_pair);
}

/// Lets a request, or its next piece, go out on a connection. Returns what became of it, and its cost
/// as a number of bytes moved.
pub(crate) fn admit(one: &Requesting<'_>, qpn: u32, parts: &mut OobParts<'_>) -> (Outcome, u64) {
    let now = parts.remote.now;
    let Some(mut remote) = parts.remote.take(qpn) else {
        fail(one, RequestFault::Closed, parts);
        return (Outcome::Ended, 0);
    };
    let admitted = admit_to(&mut remote, one, parts, now);
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
    parts: &mut OobParts<'_>,
    now: u64,
) -> Result<(Outcome, u64), RequestFault> {
    let Requesting { sender, request, checked } = one;
    if !matches!(remote.state, State::Open | State::Answered(_)) || remote.leaves_at.is_some() {
        return Err(RequestFault::Closed);
    }
    if remote.is_done(sender.slot, capacity(sender, parts)) {
        if let Some(session) = parts.sessions.get_mut(sender.from.session) {
            session.extras.apertures.complete(sender.from.endpoint, request.sequence);
            parts.notifier.touch_oob(session, sender.from.session, sender.from.endpoint);
        }
        return Ok((Outcome::Ended, 0));
    }
    let is_begun =
        remote.pending.back().is_some_and(|last| last.is_of(sender.queue_pair, sender.slot));
    if let Err(fault) = check_local(request, checked, sender.from.session, parts.sessions) {
        // It ends the connection: those before it are done first.
        let others = remote.pending.len() - usize::from(is_begun);
        if others == 0 {
            return Err(fault);
        }
        return Ok(remote.wait(sender.queue_pair, usize::from(is_begun), now));
    }
    let wire = remote.wire.as_mut().ok_or(RequestFault::Closed)?;
    let is_full = !is_begun && remote.pending.len() >= MOST_PENDING;
    if is_full || wire.requester().unacknowledged() >= most_released(wire) {
        return Ok(remote.wait(sender.queue_pair, MOST_PENDING - 1, now));
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
    /// The connection is not open, or has no room for it.
    Dropped,
}

/// Sends an out-of-band message to the peer of an endpoint.
pub(crate) fn send_message(
    sender: &Sender,
    qpn: u32,
    payload: &[u8],
    parts: &mut OobParts<'_>,
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
fn capacity(sender: &Sender, parts: &OobParts<'_>) -> u32 {
    let session = parts.sessions.get(sender.from.session);
    session.map_or(0, |session| session.shape().queues.transmit())
}

impl Remote {
    /// `true` if what is in a slot was acknowledged, before the server was killed that had taken it.
    fn is_done(&self, slot: u32, capacity: u32) -> bool {
        self.done.is_some_and(|done| (1..=capacity).contains(&done.wrapping_sub(slot)))
    }
}

/// Returns the released bytes without an acknowledgement from which on a request waits.
fn most_released(wire: &Wire) -> u64 {
    wire.window_bytes().max(LEAST_RELEASED_BYTES)
}

impl Remote {
    /// Lets a queue pair wait until there are only `most_pending` requests, and half of the bytes are
    /// acknowledged.
    fn wait(&mut self, queue_pair: u32, most_pending: usize, now: u64) -> (Outcome, u64) {
        self.waiting = Some(Waiting { queue_pair, most_pending });
        (Outcome::NotReady(now + WAIT_NS), 0)
    }

    /// Returns the queue pair that waits, once it may go on.
    pub(super) fn take_ready_waiting(&mut self) -> Option<u32> {
        let waiting = self.waiting?;
        let has_room = self.wire.as_ref().is_none_or(|wire| {
            // It would wait again at once, if it went on from the limit on.
            wire.requester().unacknowledged() < most_released(wire) / 2
        });
        if self.pending.len() > waiting.most_pending || !has_room {
            return None;
        }
        self.waiting = None;
        Some(waiting.queue_pair)
    }
}

#[cfg(test)]
mod tests {
    use towpath_rdma::responder::Progress;
    use towpath_rdma::{Psn, Timing};

    use super::*;

    fn wire(remote: &Remote, mtu: u32) -> Box<Wire> {
        let timing = Timing { quiet: 1 << 40, dead: 1 << 40, not_ready: 1 << 40 };
        let progress = Progress { expected: Psn::new(0), messages: 0, writing: None };
        Box::new(Wire::new((remote.path, 9), mtu, (Psn::new(5), 1), progress, timing, 0))
    }

    fn pending(id: u64) -> Pending {
        Pending { id, work: Work::Message { queue_pair: 0, slot: id as u32, payload: Vec::new() } }
    }

    fn write(remote: &mut Remote, bytes: u64) {
        let id = remote.pending.len() as u64;
        remote.pending.push_back(pending(id));
        let wanted = Wanted { id, kind: WorkKind::Write, bytes, key: 1, address: 0 };
        remote.wire.as_mut().unwrap().push(wanted, bytes, 0);
    }

    #[test]
    fn as_many_bytes_are_released_as_may_be_under_way() {
        let remote = Remote::for_tests();
        let most = |mtu| most_released(&wire(&remote, mtu));
        assert_eq!([256, 1024, 4096].map(most), [128 << 10, 256 << 10, 1 << 20]);
    }

    #[test]
    fn a_queue_pair_waits_until_half_of_the_bytes_are_acknowledged() {
        for (bytes, goes_on) in [((512 << 10) - 1, Some(3)), (512 << 10, None)] {
            let mut remote = Remote::for_tests();
            remote.wire = Some(wire(&remote, 4096));
            write(&mut remote, bytes);
            assert_eq!(remote.wait(3, MOST_PENDING - 1, 7), (Outcome::NotReady(7 + WAIT_NS), 0));
            assert_eq!(remote.take_ready_waiting(), goes_on);
            assert_eq!(remote.waiting.is_some(), goes_on.is_none());
        }
    }

    /// Otherwise it would be looked at in each poll iteration, and the engine would not sleep.
    #[test]
    fn a_request_that_is_to_fail_waits_for_those_before_it() {
        let mut remote = Remote::for_tests();
        remote.wire = Some(wire(&remote, 4096));
        write(&mut remote, 8);
        remote.wait(3, 0, 7);
        assert_eq!(remote.take_ready_waiting(), None);
        remote.pending.clear();
        assert_eq!(remote.take_ready_waiting(), Some(3));
    }
}

//! Requests: the engine moves bytes between memory of the requesting session and an aperture of its
//! endpoint's peer, piece by piece.
//!
//! How far a request is stands in the ledger, so a successor places at most the last piece again.
//! The number of the last request that is complete is stored before the request leaves its queue,
//! and is the same if a successor stores it once more. A value or a message for the peer goes as an
//! out-of-band message does, which arrives exactly once.

use towpath_protocol::apertures::{Access, is_inside};
use towpath_protocol::oob::Kind;
use towpath_protocol::requests::{Checked, LocalRange, Request, RequestFault, RequestKind};

use super::memory::{Copied, Copying, EngineMemory, Place};
use super::table::Granted;
use crate::clock::clock_ns;
use crate::oob::connection::EndpointName;
use crate::oob::{NotReady, OobParts, Sender};
use crate::sessions::SessionTable;

/// The most bytes that the engine moves at once for a request; the others then wait their turn
/// again (Riddoch and Pope, section 3.2: a maximum transfer size).
pub(crate) const TRANSFER_BYTES: u64 = 64 << 10;

/// How long a request waits for room in the queue at the other end, in nanoseconds, before it
/// fails.
const NOT_READY_NS: u64 = 1_000_000_000;
/// The time between two looks for that room, in nanoseconds: as long as the request has waited,
/// within these limits.
const LEAST_RETRY_NS: u64 = 100_000;
const MOST_RETRY_NS: u64 = 10_000_000;
/// What a look at one tripwire costs, as a number of bytes moved.
const TRIPWIRE_BYTES: u64 = 64;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is complete, or failed.
    Ended,
    /// There is more to move.
    More,
    /// It is for another host, by the connection with this QPN.
    OtherHost(u32),
    /// It goes out to another host, which has yet to acknowledge it.
    Sent,
    /// The queue at the other end has no room: look again at this time, in nanoseconds.
    NotReady(u64),
}

/// A request that the engine took from a queue.
pub(crate) struct Requesting<'a> {
    pub(crate) sender: Sender,
    pub(crate) request: &'a Request,
    pub(crate) checked: Checked,
}

/// Carries out a request, or a piece of it. Returns what became of it, and its cost as a number of
/// bytes moved.
pub(crate) fn carry_out(one: &Requesting<'_>, parts: &mut OobParts<'_>) -> (Outcome, u64) {
    let Sender { from, queue_pair, .. } = one.sender;
    let key = from.session;
    let Some(session) = parts.sessions.get_mut(key) else { return (Outcome::Ended, 0) };
    // A predecessor sent the application that it is complete, and was killed before it left the queue.
    if session.extras.apertures.is_complete(from.endpoint, one.request.sequence) {
        return (Outcome::Ended, 0);
    }
    // A worker that still copies for the request might write its memory after it has failed.
    let mut copying = session.extras.apertures.take_copying(queue_pair);
    let outcome = if copying.is_idle() {
        step(one, &mut copying, parts)
    } else {
        (Outcome::NotReady(copying.next_look(clock_ns())), 0)
    };
    if let (Outcome::NotReady(_) | Outcome::More, Some(session)) =
        (outcome.0, parts.sessions.get_mut(key))
    {
        session.extras.apertures.put_copying(queue_pair, copying);
    }
    outcome
}

/// Goes on with a request for which no worker copies. Returns what [`carry_out`] does.
fn step(one: &Requesting<'_>, copying: &mut Copying, parts: &mut OobParts<'_>) -> (Outcome, u64) {
    let Sender { from, queue_pair, slot, .. } = one.sender;
    let key = from.session;
    let Some(session) = parts.sessions.get_mut(key) else { return (Outcome::Ended, 0) };
    let has_failed = session.extras.apertures.has_failed(from.endpoint);
    let peer = if has_failed { None } else { parts.begin_request(from) };
    let Some(peer) = peer else {
        fail(one, RequestFault::Closed, parts);
        return (Outcome::Ended, 0);
    };
    if let Some(qpn) = peer.qpn() {
        return (Outcome::OtherHost(qpn), 0);
    }
    let mut moved = 0;
    if one.checked.kind != RequestKind::Send {
        let Some(session) = parts.sessions.get_mut(key) else { return (Outcome::Ended, 0) };
        let done = session.extras.apertures.progress(queue_pair, slot).min(one.checked.bytes);
        let len = match move_piece(one, done, copying, parts) {
            Ok(Piece::Moved { bytes, cost }) => {
                moved = bytes + cost;
                bytes
            }
            Ok(Piece::Waits) => return (Outcome::NotReady(copying.next_look(clock_ns())), 0),
            Err(fault) => {
                fail(one, fault, parts);
                return (Outcome::Ended, 0);
            }
        };
        let done = done + len;
        if let Some(session) = parts.sessions.get_mut(key) {
            session.extras.apertures.set_progress(queue_pair, slot, done);
        }
        if done < one.checked.bytes {
            return (Outcome::More, moved);
        }
    }
    let sent = match one.checked.kind {
        RequestKind::WriteWithValue => {
            let (value, bytes) = (one.request.value, one.checked.bytes as u32);
            let payload = [value.to_le_bytes(), bytes.to_le_bytes()].concat();
            parts.send_to_peer(&one.sender, Kind::Value, &payload)
        }
        RequestKind::Send => parts.send_to_peer(&one.sender, Kind::Plain, one.request.payload()),
        RequestKind::Write | RequestKind::Read => Ok(()),
    };
    let Some(session) = parts.sessions.get_mut(key) else { return (Outcome::Ended, moved) };
    match sent {
        Ok(()) => {}
        Err(NotReady::Closed) => {
            fail(one, RequestFault::Closed, parts);
            return (Outcome::Ended, moved);
        }
        Err(NotReady::NoRoom) => {
            let now = clock_ns();
            let since = session.extras.apertures.waits_since(queue_pair, slot, now);
            if now < since + NOT_READY_NS {
                let pause = (now - since).clamp(LEAST_RETRY_NS, MOST_RETRY_NS);
                return (Outcome::NotReady(now + pause), moved);
            }
            fail(one, RequestFault::NotReady, parts);
            return (Outcome::Ended, moved);
        }
    }
    session.extras.apertures.complete(from.endpoint, one.request.sequence);
    parts.notifier.touch_oob(session, key, from.endpoint);
    (Outcome::Ended, moved)
}

/// Records that a request failed, and closes the connection: the requests behind it fail, too.
pub(crate) fn fail(one: &Requesting<'_>, fault: RequestFault, parts: &mut OobParts<'_>) {
    let from = one.sender.from;
    let Some(session) = parts.sessions.get_mut(from.session) else { return };
    session.extras.apertures.fail(from.endpoint, one.request.sequence, fault);
    parts.notifier.touch_oob(session, from.session, from.endpoint);
    parts.close_failed(from);
}

/// What became of a request's piece.
enum Piece {
    /// `cost`: that of what else was done, as a number of bytes moved.
    Moved { bytes: u64, cost: u64 },
    /// A worker has yet to copy.
    Waits,
}

/// Checks a request, and moves its next piece, if there is one.
fn move_piece(
    one: &Requesting<'_>,
    done: u64,
    copying: &mut Copying,
    parts: &mut OobParts<'_>,
) -> Result<Piece, RequestFault> {
    let Requesting { sender, request, checked, .. } = one;
    let access = if checked.kind == RequestKind::Read { Access::Read } else { Access::Write };
    let asked = Asked { key: request.key, first: request.remote, len: checked.bytes };
    let whole = allowed(&asked, access, &sender.name(), parts)?;
    check_local(request, checked, sender.from.session, parts.sessions)?;
    let len = piece_bytes(one, done, &whole, parts.sessions);
    let range = Allowed { first: request.remote + done, len, ..whole };
    match copy(one, done, &range, access, copying, parts.sessions)? {
        Copied::Yes => {
            Ok(Piece::Moved { bytes: len, cost: touch_tripwires(&range, access, parts) })
        }
        Copied::Later => Ok(Piece::Waits),
        Copied::No => Err(RequestFault::Range),
        Copied::TooLate => Err(RequestFault::NotReady),
        Copied::Refused => Err(RequestFault::Rights),
    }
}

/// Returns the bytes of a request's next piece. A piece that a worker copies lies in one of the local ranges.
fn piece_bytes(one: &Requesting<'_>, done: u64, whole: &Allowed, sessions: &SessionTable) -> u64 {
    let left = one.checked.bytes - done;
    let by_engine = TRANSFER_BYTES.min(left);
    let local = sessions.get(one.sender.from.session);
    let (Some(local), Some(remote)) = (local, whole.memory(sessions)) else { return by_engine };
    let ranges = &one.request.local[..one.checked.local];
    let most =
        |range: &LocalRange| local.extras.apertures.memory(range.memory)?.most_by_worker(remote);
    if ranges.iter().all(|range| most(range).is_none()) {
        return by_engine;
    }
    let first = local_parts(ranges, done, left).next();
    first.map_or(by_engine, |part| {
        u64::from(part.len).min(most(&part).map_or(TRANSFER_BYTES, |most| most as u64))
    })
}

/// A range of an aperture that a peer asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) key: u32,
    /// Where it begins in the aperture, and its length, in bytes.
    pub(crate) first: u64,
    pub(crate) len: u64,
}

/// Returns the range of an aperture that an endpoint may access.
///
/// # Errors
/// The reason why it may not.
pub(crate) fn allowed(
    asked: &Asked,
    access: Access,
    by: &EndpointName,
    parts: &mut OobParts<'_>,
) -> Result<Allowed, RequestFault> {
    let granted = parts.apertures.granted(asked.key, by).ok_or(RequestFault::Key)?;
    if !granted.access.meets(access) {
        return Err(RequestFault::Rights);
    }
    if !is_inside(asked.first, asked.len, granted.len) {
        return Err(RequestFault::Range);
    }
    // If the server crashes over this memory, its owner's session counts, too.
    let owner = parts.sessions.key(granted.owner).ok_or(RequestFault::Key)?;
    parts.sessions.receiver(owner).ok_or(RequestFault::Key)?;
    Ok(Allowed { granted, first: asked.first, len: asked.len })
}

/// Checks that the local ranges of a request are in memories of its session, by the session's key.
pub(crate) fn check_local(
    request: &Request,
    checked: &Checked,
    session: u32,
    sessions: &SessionTable,
) -> Result<(), RequestFault> {
    let local = sessions.get(session).ok_or(RequestFault::Closed)?;
    let is_good = |range: &LocalRange| {
        let memory = local.extras.apertures.memory(range.memory);
        let (offset, len) = (range.offset, u64::from(range.len));
        memory.is_some_and(|memory| is_inside(offset, len, memory.len() as u64))
    };
    if request.local[..checked.local].iter().all(is_good) {
        Ok(())
    } else {
        Err(RequestFault::Local)
    }
}

/// The part of an aperture that a piece touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    granted: Granted,
    /// Where it begins in the aperture, and its length, in bytes.
    first: u64,
    len: u64,
}

impl Allowed {
    /// Returns where the range begins in its memory, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.granted.offset + self.first
    }

    /// Returns the memory that the range is in.
    pub(crate) fn memory<'a>(&self, sessions: &'a SessionTable) -> Option<&'a EngineMemory> {
        let owner = sessions.key(self.granted.owner).and_then(|key| sessions.get(key))?;
        owner.extras.apertures.memory(self.granted.memory)
    }
}

/// Copies between the local ranges, from their byte `done` on, and a range of an aperture. The
/// caller has checked them.
fn copy(
    one: &Requesting<'_>,
    done: u64,
    range: &Allowed,
    access: Access,
    copying: &mut Copying,
    sessions: &SessionTable,
) -> Result<Copied, RequestFault> {
    let local = sessions.get(one.sender.from.session).ok_or(RequestFault::Closed)?;
    let remote = range.memory(sessions).ok_or(RequestFault::Key)?;
    let mut at = range.offset();
    for part in local_parts(&one.request.local[..one.checked.local], done, range.len) {
        let own = local.extras.apertures.memory(part.memory).ok_or(RequestFault::Local)?;
        let own = Place { memory: own, offset: part.offset as usize };
        let other = Place { memory: remote, offset: at as usize };
        let (to, from) = if access == Access::Read { (own, other) } else { (other, own) };
        match copying.transfer(to, from, part.len as usize) {
            Copied::Yes => at += u64::from(part.len),
            other => return Ok(other),
        }
    }
    Ok(Copied::Yes)
}

/// Returns the parts of a request's local ranges that have its bytes from `skip` on, `bytes` of them.
pub(crate) fn local_parts(
    ranges: &[LocalRange],
    mut skip: u64,
    mut bytes: u64,
) -> impl Iterator<Item = LocalRange> {
    ranges.iter().filter_map(move |range| {
        let before = skip.min(u64::from(range.len));
        skip -= before;
        let len = (u64::from(range.len) - before).min(bytes);
        bytes -= len;
        let part = LocalRange { offset: range.offset + before, len: len as u32, ..*range };
        (len > 0).then_some(part)
    })
}

/// Fires the armed tripwires that an access touched. Returns its cost as a number of bytes moved.
pub(crate) fn touch_tripwires(range: &Allowed, access: Access, parts: &mut OobParts<'_>) -> u64 {
    let Some(key) = parts.sessions.key(range.granted.owner) else { return 0 };
    let Some(owner) = parts.sessions.get_mut(key).filter(|one| !one.is_closing()) else { return 0 };
    if range.len == 0 {
        return 0;
    }
    let accessed = (range.offset(), range.len);
    let notifier = &mut *parts.notifier;
    let mut fires = false;
    let memory = range.granted.memory;
    let touched = owner.extras.apertures.fire_touched(memory, accessed, access, |number| {
        notifier.add_fired(key, number);
        fires = true;
    });
    if fires {
        notifier.touch(&mut owner.receive, key, 0);
    }
    touched * TRIPWIRE_BYTES
}

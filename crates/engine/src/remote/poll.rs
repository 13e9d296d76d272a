//! A poll iteration's work for connections with other hosts: what arrived, what is due, and what is
//! sent, within budgets.

use towpath_device::DeviceError;
use towpath_packet::headers::Headers;
use towpath_packet::mld::Query;
use towpath_packet::roce::cm::reason;
use towpath_packet::roce::{
    DEFAULT_PKEY, GENERAL_SERVICES_QP, Opcode, Received, RoceError, read_frame,
};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::oob::{PeerState, Refused};
use towpath_protocol::requests::RequestFault;
use towpath_rdma::Ended;

use super::connection::{ASKED_NS, Remote, State};
use super::copies::MOST_WAITING;
use super::ending::{disconnect_owner, end, told};
use super::inbox::FRAME_BYTES;
use super::inbox::Inbox;
use super::{manager, setup};
use crate::device_counters::DeviceCounters;
use crate::oob::{OobParts, OobTable};

/// Packets that a connection sends before the next one has its turn.
const PACKETS_PER_TURN: usize = 16;
/// Packets and bytes that all of them send per poll iteration.
const PACKETS: usize = 128;
const BYTES: usize = 512 << 10;
/// What tripwires that other hosts touch may cost per poll iteration, as a number of bytes moved.
const MOST_TOUCHED: u64 = 1 << 20;

/// A partition key without the bit that tells full members from limited ones.
const PKEY_MASK: u16 = 0x7fff;

/// Sends the engine's own packets.
pub(crate) trait PacketOutput {
    /// Returns `true` if there is room for a packet.
    fn has_room(&self) -> bool;

    /// Sends a frame, for which there is room.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    fn send(&mut self, frame: &[u8]) -> Result<(), DeviceError>;

    /// Makes a queue pair due again that waited for room in a connection. `session`: the session's key.
    fn recheck(&mut self, session: u32, queue_pair: u32, parts: &mut OobParts<'_>);
}

/// Does a poll iteration's work. Returns the number of packets received and sent.
///
/// # Errors
/// Fails if the device as a whole fails.
pub(crate) fn poll(
    inbox: &mut Inbox,
    oob: &OobTable,
    parts: &mut OobParts<'_>,
    output: &mut impl PacketOutput,
    counters: &mut DeviceCounters,
) -> Result<usize, DeviceError> {
    let mut work = 0;
    parts.remote.touched = 0;
    for frame in inbox.frames() {
        work += 1;
        receive(frame, oob, parts, counters);
    }
    inbox.clear();
    let dropped = inbox.take_dropped() + std::mem::take(&mut parts.remote.dropped);
    counters.add(Count::RdmaOverBudget, dropped);
    parts.remote.wake_due();
    parts.remote.report_groups();
    let (mut packets, mut bytes) = (0, 0);
    while output.has_room()
        && let Some(frame) = parts.remote.outgoing.pop_front()
    {
        output.send(&frame)?;
        work += 1;
    }
    let mut frame = std::mem::take(&mut parts.remote.scratch);
    frame.resize(FRAME_BYTES, 0);
    while packets < PACKETS
        && bytes < BYTES
        && parts.remote.touched < MOST_TOUCHED
        && output.has_room()
        && let Some(qpn) = parts.remote.next_ready()
    {
        let turn = serve(qpn, &mut frame, parts, output)?;
        counters.add(Count::RdmaRetransmitted, turn.again);
        packets += turn.packets;
        bytes += turn.bytes;
        if turn.more {
            parts.remote.make_ready(qpn);
        }
    }
    parts.remote.scratch = frame;
    counters.add(Count::RdmaTxPackets, packets as u64);
    Ok(work + packets)
}

/// What a connection did in its turn.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    packets: usize,
    bytes: usize,
    /// Packets that it sent again.
    again: u64,
    /// `true` if it has more to send.
    more: bool,
}

/// Handles a frame.
fn receive(frame: &[u8], oob: &OobTable, parts: &mut OobParts<'_>, counters: &mut DeviceCounters) {
    match read_frame(frame) {
        Ok(received) if received.segment.bth.destination == GENERAL_SERVICES_QP => {
            if let Err(count) = manager::receive(&received, oob, parts) {
                counters.add(count, 1);
            }
        }
        Ok(received) => {
            counters.add(Count::RdmaRxPackets, 1);
            if !receive_packet(frame, &received, parts, counters) {
                counters.add(Count::RdmaNoConnection, 1);
            }
        }
        Err(RoceError::Protocol(_) | RoceError::Ethertype(_)) => {
            if let Some(query) = Query::of_frame(frame) {
                return parts.remote.handle_query(&query);
            }
            let headers = Headers::parse(frame, frame.len());
            let headers = headers.ok().filter(|headers| headers.malformed.is_none());
            if let Some(headers) = headers {
                parts.remote.neighbour_frame(&headers);
            }
        }
        Err(_) => counters.add(Count::RdmaMalformed, 1),
    }
}

/// Handles a packet of a connection. Returns `false` if there is no such connection.
fn receive_packet(
    frame: &[u8],
    received: &Received<'_>,
    parts: &mut OobParts<'_>,
    counters: &mut DeviceCounters,
) -> bool {
    let qpn = received.segment.bth.destination;
    let Some(one) = parts.remote.connections.get(&qpn) else { return false };
    let (own, theirs) = (one.path, received.path);
    let is_theirs = own.source == theirs.destination
        && own.destination == theirs.source
        && own.source_mac == theirs.destination_mac;
    let has_key = received.segment.bth.pkey & PKEY_MASK == DEFAULT_PKEY & PKEY_MASK;
    if !is_theirs || !has_key || one.wire.is_none() {
        return false;
    }
    let Some(mut one) = parts.remote.take(qpn) else { return false };
    if matches!(one.state, State::Answered(_)) {
        // The other host has the answer, or it would send nothing.
        one.state = State::Open;
        one.wire.iter_mut().for_each(|wire| wire.set_ready());
    }
    let is_answer = is_answer(received.segment.bth.opcode);
    let is_costly = parts.remote.touched >= MOST_TOUCHED;
    if !is_answer && (one.leaves_at.is_some() || is_costly) {
        // Either the endpoint here has left, or the budget is spent: the other host sends it again.
        let count = if is_costly { Count::RdmaOverBudget } else { Count::RdmaNoConnection };
        counters.add(count, 1);
        parts.remote.put(qpn, one);
        parts.remote.make_ready(qpn);
        return true;
    }
    let waits = !one.copies.waiting.is_empty();
    if waits || !one.handle(qpn, received, received.congestion, parts) {
        one.copies.is_first_tried |= !waits;
        if one.copies.waiting.len() < MOST_WAITING {
            one.copies.waiting.push_back(frame.to_vec());
        } else {
            counters.add(Count::RdmaOverBudget, 1);
        }
    }
    one.copies.set_next_look(parts.remote.now);
    if let Some(ended) = one.has_ended() {
        // Before the other host's message that the connection is over.
        end_by(qpn, one, ended, parts);
        return true;
    }
    parts.remote.put(qpn, one);
    parts.remote.make_ready(qpn);
    true
}

impl Remote {
    /// Handles a packet. Returns `false` if a worker has yet to copy for it.
    /// `is_marked`: the network has marked it as congested, and that is not known yet.
    fn handle(
        &mut self,
        qpn: u32,
        received: &Received<'_>,
        is_marked: bool,
        parts: &mut OobParts<'_>,
    ) -> bool {
        let (now, mut is_handled) = (parts.remote.now, true);
        self.with_wire(qpn, parts, |wire, host| {
            is_handled = wire.receive(&received.segment, is_marked, host, now);
        });
        is_handled
    }

    /// Handles the packets that waited for workers, as far as these have copied.
    fn handle_waiting(&mut self, qpn: u32, parts: &mut OobParts<'_>) {
        while parts.remote.touched < MOST_TOUCHED
            && let Some(frame) = self.copies.waiting.pop_front()
        {
            let was_tried = std::mem::take(&mut self.copies.is_first_tried);
            // The connection has read the frame before.
            let Ok(received) = read_frame(&frame) else { continue };
            if self.leaves_at.is_some() && !is_answer(received.segment.bth.opcode) {
                continue;
            }
            if !self.handle(qpn, &received, received.congestion && !was_tried, parts) {
                self.copies.waiting.push_front(frame);
                self.copies.is_first_tried = true;
                return;
            }
        }
    }

    /// Returns why the connection has ended, if it has, and no worker copies for it any more.
    fn has_ended(&self) -> Option<Ended> {
        let ended = self.wire.as_ref().and_then(|wire| wire.ended());
        ended.filter(|_| !self.copies.is_placing())
    }
}

/// `true` if a packet answers requests of this side.
fn is_answer(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::Acknowledge
            | O::ReadResponseFirst
            | O::ReadResponseMiddle
            | O::ReadResponseLast
            | O::ReadResponseOnly
            | O::CongestionNotification
    )
}

/// Gives a connection its turn.
fn serve(
    qpn: u32,
    frame: &mut [u8],
    parts: &mut OobParts<'_>,
    output: &mut impl PacketOutput,
) -> Result<Turn, DeviceError> {
    let mut turn = Turn::default();
    let Some(mut one) = parts.remote.take(qpn) else { return Ok(turn) };
    let now = parts.remote.now;
    if !parts.remote.attempt(&mut one) {
        give_up(qpn, one, parts);
        return Ok(turn);
    }
    if matches!(one.state, State::Asked { since, .. } if now >= since + ASKED_NS) {
        setup::reject_taken(qpn, &one, reason::TIMEOUT, &[], parts);
        return Ok(turn);
    }
    let finished = one.copies.begin_turn();
    one.handle_waiting(qpn, parts);
    turn.more = one.wire.is_some();
    let sent_again =
        |one: &Remote| one.wire.as_ref().map_or(0, |wire| wire.requester().retransmitted());
    let before = sent_again(&one);
    while turn.more
        && turn.packets < PACKETS_PER_TURN
        && parts.remote.touched < MOST_TOUCHED
        && output.has_room()
    {
        let mut len = None;
        one.with_wire(qpn, parts, |wire, host| len = wire.transmit(host, now, frame));
        let Some(len) = len else {
            turn.more = false;
            break;
        };
        output.send(&frame[..len])?;
        turn.packets += 1;
        turn.bytes += len;
    }
    turn.again = sent_again(&one) - before;
    one.copies.end_turn(finished, now);
    if let Some(ended) = one.has_ended() {
        end_by(qpn, one, ended, parts);
        turn.more = false;
        return Ok(turn);
    }
    if one.may_leave(now) {
        one.fail_pending(RequestFault::Closed, parts);
        one.leave(now);
        turn.more = true;
    }
    if let Some(waiting) = one.take_ready_waiting() {
        let session = one.owner.and_then(|owner| parts.sessions.key(owner.session));
        if let Some(session) = session {
            output.recheck(session, waiting, parts);
        }
    }
    parts.remote.put(qpn, one);
    Ok(turn)
}

/// Ends a connection whose other host does not answer.
fn give_up(qpn: u32, one: Box<Remote>, parts: &mut OobParts<'_>) {
    let state = match one.state {
        State::Asking(_) => {
            parts.remote.take_back(&one);
            PeerState::Refused(Refused::Unreachable)
        }
        _ => PeerState::Gone,
    };
    end(qpn, one, state, parts);
}

/// Ends a connection that failed.
fn end_by(qpn: u32, mut one: Box<Remote>, ended: Ended, parts: &mut OobParts<'_>) {
    let (fault, state) = told(ended);
    one.fail_pending(fault, parts);
    disconnect_owner(qpn, &one, state, parts);
    let now = parts.remote.now;
    one.leave(now);
    parts.remote.put(qpn, one);
    parts.remote.make_ready(qpn);
}

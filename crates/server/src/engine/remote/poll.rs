//! A poll iteration's work for connections with other hosts: what arrived, what is due, and what is
//! sent, within budgets.

use towpath_device::DeviceError;
use towpath_packet::headers::Headers;
use towpath_packet::roce::cm::reason;
use towpath_packet::roce::{GENERAL_SERVICES_QP, Opcode, Received, RoceError, read_frame};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::oob::{PeerState, Refused};
use towpath_protocol::requests::RequestFault;
use towpath_rdma::Ended;
use towpath_rdma::requester::Fault;

use super::host::ConnectionHost;
use super::inbox::Inbox;
use super::table::{Remote, State};
use super::{FRAME_BYTES, remote_name, requests, setup};
use crate::engine::demux::Destination;
use crate::engine::device_counters::DeviceCounters;
use crate::engine::oob::connection::Connection;
use crate::engine::oob::{OobTable, Parts};

/// Packets that a connection sends before the next one has its turn.
const PACKETS_PER_TURN: usize = 16;
/// Packets and bytes that all of them send per poll iteration.
const PACKETS: usize = 128;
const BYTES: usize = 512 << 10;
/// What tripwires that other hosts touch may cost per poll iteration, as a number of bytes moved.
const MOST_TOUCHED: u64 = 1 << 20;

/// The way out for packets of connections.
pub(crate) trait Way {
    /// `true` if there is room for a packet.
    fn has_room(&self) -> bool;

    /// Sends a frame, for which there is room.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    fn send(&mut self, frame: &[u8]) -> Result<(), DeviceError>;

    /// Lets a queue pair go on, by the session's key, that waited for room in a connection.
    fn go_on(&mut self, session: u32, queue_pair: u32, parts: &mut Parts<'_>);
}

/// Does a poll iteration's work. Returns the number of packets received and sent.
///
/// # Errors
/// Fails if the device as a whole fails.
pub(crate) fn poll(
    inbox: &mut Inbox,
    oob: &OobTable,
    parts: &mut Parts<'_>,
    way: &mut impl Way,
    counters: &mut DeviceCounters,
) -> Result<usize, DeviceError> {
    let mut work = 0;
    parts.remote.touched = 0;
    for frame in inbox.frames() {
        work += 1;
        if parts.remote.touched >= MOST_TOUCHED {
            // The other hosts send it again.
            counters.add(Count::RdmaOverBudget, 1);
            continue;
        }
        receive(frame, oob, parts, counters);
    }
    inbox.clear();
    counters.add(Count::RdmaOverBudget, inbox.take_dropped());
    parts.remote.wake_due();
    let (mut packets, mut bytes) = (0, 0);
    while way.has_room()
        && let Some(frame) = parts.remote.outgoing.pop_front()
    {
        way.send(&frame)?;
        work += 1;
    }
    let mut frame = std::mem::take(&mut parts.remote.scratch);
    frame.resize(FRAME_BYTES, 0);
    while packets < PACKETS
        && bytes < BYTES
        && way.has_room()
        && let Some(qpn) = parts.remote.next_ready()
    {
        let again = retransmitted(qpn, parts);
        let (more, sent) = serve(qpn, &mut frame, parts, way)?;
        let again = retransmitted(qpn, parts).saturating_sub(again);
        counters.add(Count::RdmaRetransmitted, again);
        packets += sent.0;
        bytes += sent.1;
        if more {
            parts.remote.make_ready(qpn);
        }
    }
    parts.remote.scratch = frame;
    counters.add(Count::RdmaTxPackets, packets as u64);
    Ok(work + packets)
}

/// Returns the packets that a connection has sent again.
fn retransmitted(qpn: u32, parts: &Parts<'_>) -> u64 {
    let one = parts.remote.connections.get(&qpn).and_then(|one| one.wire.as_ref());
    one.map_or(0, |wire| wire.requester().retransmitted())
}

/// Handles a frame.
fn receive(frame: &[u8], oob: &OobTable, parts: &mut Parts<'_>, counters: &mut DeviceCounters) {
    match read_frame(frame) {
        Ok(received) if received.segment.bth.destination == GENERAL_SERVICES_QP => {
            setup::receive(&received, oob, parts);
        }
        Ok(received) => {
            counters.add(Count::RdmaRxPackets, 1);
            if !receive_packet(&received, parts) {
                counters.add(Count::RdmaNoConnection, 1);
            }
        }
        Err(RoceError::Protocol(_) | RoceError::Ethertype(_)) => {
            let headers = Headers::parse(frame, frame.len());
            let headers = headers.ok().filter(|headers| headers.malformed.is_none());
            headers.map(|headers| parts.remote.neighbour_frame(&headers));
        }
        Err(_) => counters.add(Count::RdmaMalformed, 1),
    }
}

/// Handles a packet of a connection. Returns `false` if there is no such connection.
fn receive_packet(received: &Received<'_>, parts: &mut Parts<'_>) -> bool {
    let qpn = received.segment.bth.destination;
    let Some(one) = parts.remote.connections.get(&qpn) else { return false };
    let (own, theirs) = (one.path, received.path);
    let is_theirs = own.source == theirs.destination
        && own.destination == theirs.source
        && own.source_mac == theirs.destination_mac;
    if !is_theirs || one.wire.is_none() {
        return false;
    }
    if matches!(one.state, State::Leaving(_)) && !is_answer(received.segment.bth.opcode) {
        return true;
    }
    let Some(mut one) = parts.remote.take(qpn) else { return false };
    if matches!(one.state, State::Answered(_)) {
        // The other host has the answer, or it would send nothing.
        one.state = State::Open;
    }
    let now = parts.remote.now;
    one.with_wire(qpn, parts, |wire, host| {
        wire.receive(&received.segment, received.congestion, host, now);
    });
    if let Some(ended) = one.wire.as_ref().and_then(|wire| wire.ended()) {
        // Before the other host's message that the connection is over.
        end_by(qpn, one, ended, parts);
        return true;
    }
    parts.remote.put(qpn, one);
    parts.remote.make_ready(qpn);
    true
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

/// Gives a connection its turn. Returns whether it has more to send, and the packets and bytes that
/// it sent.
fn serve(
    qpn: u32,
    frame: &mut [u8],
    parts: &mut Parts<'_>,
    way: &mut impl Way,
) -> Result<(bool, (usize, usize)), DeviceError> {
    let nothing = Ok((false, (0, 0)));
    let Some(mut one) = parts.remote.take(qpn) else { return nothing };
    let now = parts.remote.now;
    if !parts.remote.attempt(&mut one) {
        give_up(qpn, one, parts);
        return nothing;
    }
    if matches!(one.state, State::Asked { since, .. } if now >= since + setup::ASKED_NS) {
        setup::reject_taken(qpn, &one, reason::TIMEOUT, &[], parts);
        return nothing;
    }
    let (mut packets, mut bytes) = (0, 0);
    let mut sends = one.wire.is_some();
    while sends && packets < PACKETS_PER_TURN && way.has_room() {
        let mut len = None;
        one.with_wire(qpn, parts, |wire, host| len = wire.transmit(host, now, frame));
        let Some(len) = len else {
            sends = false;
            break;
        };
        way.send(&frame[..len])?;
        packets += 1;
        bytes += len;
    }
    if let Some(ended) = one.wire.as_ref().and_then(|wire| wire.ended()) {
        end_by(qpn, one, ended, parts);
        return Ok((false, (packets, bytes)));
    }
    let is_over = one.wire.as_ref().is_none_or(|wire| wire.requester().is_empty());
    if matches!(one.state, State::Leaving(until) if is_over || now >= until) {
        one.fail_pending(RequestFault::Closed, parts);
        one.leave(now);
        sends = true;
    }
    if let Some(waiting) = one.waiting
        && requests::has_room(&one)
    {
        one.waiting = None;
        let session = one.owner.and_then(|owner| parts.sessions.key(owner.session));
        if let Some(session) = session {
            way.go_on(session, waiting, parts);
        }
    }
    parts.remote.put(qpn, one);
    Ok((sends, (packets, bytes)))
}

/// Ends a connection whose other host does not answer.
fn give_up(qpn: u32, one: Box<Remote>, parts: &mut Parts<'_>) {
    let state = match one.state {
        State::Asking(_) => {
            parts.remote.take_back(&one);
            PeerState::Refused(Refused::Unreachable)
        }
        _ => PeerState::Gone,
    };
    end(qpn, one, state, parts);
}

/// Returns why the oldest request fails, and what the endpoint is told.
fn told(ended: Ended) -> (RequestFault, PeerState) {
    match ended {
        Ended::Failed(Fault::Access | Fault::Peer) => (RequestFault::Peer, PeerState::Closed),
        Ended::Failed(Fault::NotReady) => (RequestFault::NotReady, PeerState::Closed),
        Ended::Failed(Fault::Local) => (RequestFault::Local, PeerState::Closed),
        Ended::Refused => (RequestFault::Closed, PeerState::Closed),
        Ended::Dead => (RequestFault::Closed, PeerState::Gone),
    }
}

/// Ends a connection that failed.
fn end_by(qpn: u32, mut one: Box<Remote>, ended: Ended, parts: &mut Parts<'_>) {
    let (fault, state) = told(ended);
    one.fail_pending(fault, parts);
    disconnect_owner(qpn, &one, state, parts);
    let now = parts.remote.now;
    one.leave(now);
    parts.remote.put(qpn, one);
    parts.remote.make_ready(qpn);
}

/// Ends and forgets a connection that was taken out of the table. `state`: what its endpoint is told.
pub(super) fn end(qpn: u32, mut one: Box<Remote>, state: PeerState, parts: &mut Parts<'_>) {
    parts.remote.drop_taken(qpn, &one);
    one.fail_pending(one.fault(), parts);
    disconnect_owner(qpn, &one, state, parts);
}

/// Tells the endpoint of a connection that it has ended, unless it has left already.
fn disconnect_owner(qpn: u32, one: &Remote, state: PeerState, parts: &mut Parts<'_>) {
    let Some(owner) = one.owner else { return };
    let Some(key) = parts.sessions.key(owner.session) else { return };
    let at = Destination { session: key, endpoint: owner.endpoint };
    let name = remote_name(qpn);
    let is_its = parts.open_queue(at).is_some_and(|queue| {
        [Connection::Connected(name), Connection::Requested(name)].contains(&queue.connection())
    });
    if is_its {
        parts.end(at, state);
    }
}

impl Remote {
    /// Lets both sides of the connection work on the memory of its endpoint.
    fn with_wire(
        &mut self,
        qpn: u32,
        parts: &mut Parts<'_>,
        work: impl FnOnce(&mut towpath_rdma::Connection, &mut ConnectionHost<'_, '_>),
    ) {
        let (Some(wire), Some(owner)) = (&mut self.wire, self.owner) else { return };
        let (peer, place, pending, done) =
            (self.peer, self.place, &mut self.pending, &mut self.done);
        let (probed, has_left) = (wire.probe(), self.has_left);
        work(wire, &mut ConnectionHost { owner, qpn, peer, pending, done, place, has_left, parts });
        // Before a packet leaves that depends on it.
        let (progress, probe) = (wire.progress(), wire.probe());
        if self.recorded != Some(progress) {
            self.recorded = Some(progress);
            parts.remote.record(place, |ledger, place| ledger.set_progress(place, &progress));
        }
        if let Some(psn) = probe.filter(|_| probe != probed) {
            parts.remote.record(place, |ledger, place| ledger.set_probe(place, psn));
        }
    }

    /// Returns why the oldest request fails if the connection ends now. The peer's refusal of it may have come
    /// together with the message that ends the connection.
    fn fault(&self) -> RequestFault {
        let ended = self.wire.as_ref().and_then(|wire| wire.why_ended());
        ended.map_or(RequestFault::Closed, |ended| told(ended).0)
    }

    /// Fails the requests that are not acknowledged: the first for this reason.
    fn fail_pending(&mut self, fault: RequestFault, parts: &mut Parts<'_>) {
        let Some(owner) = self.owner else { return };
        for one in self.pending.drain(..) {
            if self.has_left {
                one.forget(owner, parts);
            } else {
                one.fail(fault, owner, parts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use towpath_packet::roce::{Aeth, Bth, Extension, NakCode, Opcode, Path, Segment, Syndrome};
    use towpath_protocol::oob::OobAddress;
    use towpath_rdma::requester::{Work, WorkKind};
    use towpath_rdma::responder::Progress;
    use towpath_rdma::{
        Access, Connection, Delivery, Host, NotReady, Psn, Remote as Range, Timing,
    };

    use super::*;

    /// A host without memory, whose requests have bytes.
    struct Bare;

    impl Host for Bare {
        fn check(&mut self, _: Range, _: Access) -> Result<(), towpath_rdma::Refused> {
            Err(towpath_rdma::Refused)
        }

        fn place(&mut self, _: Range, _: &[u8]) -> Result<(), towpath_rdma::Refused> {
            Err(towpath_rdma::Refused)
        }

        fn fetch(&mut self, _: Range, _: &mut [u8]) -> Result<(), towpath_rdma::Refused> {
            Err(towpath_rdma::Refused)
        }

        fn deliver(&mut self, _: Psn, _: Delivery<'_>) -> Result<(), NotReady> {
            Err(NotReady)
        }

        fn load(&mut self, _: u64, _: u64, _: &mut [u8]) -> bool {
            true
        }

        fn store(&mut self, _: u64, _: u64, _: &[u8]) -> bool {
            true
        }

        fn complete(&mut self, _: u64, _: Psn) {}
    }

    /// The other host refuses a request, and ends the connection at once.
    #[test]
    fn a_request_that_was_refused_before_the_end_fails_for_that_reason() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (source_mac, destination_mac, source_port) = ([2; 6], [4; 6], 0xc000);
        let path = Path {
            source_mac,
            destination_mac,
            source: ip,
            destination: ip,
            source_port,
            ecn: false,
        };
        let peer = OobAddress { ip, protocol: 6, port: 7 };
        let mut one = Remote::new(peer, State::Open, path);
        assert_eq!(one.fault(), RequestFault::Closed);
        let timing = Timing { quiet: 1 << 40, dead: 1 << 40, not_ready: 1 << 40 };
        let progress = Progress { expected: Psn::new(0), messages: 0, writing: None };
        let mut wire = Connection::new((path, 9), 256, (Psn::new(5), 1), progress, timing, 0);
        wire.set_ready();
        let (id, kind, bytes, key, address) = (0, WorkKind::Write, 8, 1, 0);
        wire.push(Work { id, kind, bytes, key, address }, bytes, 0);
        assert!(wire.transmit(&mut Bare, 0, &mut [0; FRAME_BYTES]).is_some());
        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0 };
        let bth = Bth::new(Opcode::Acknowledge, 9, 5);
        let extension = Extension { aeth: Some(aeth), ..Extension::default() };
        wire.receive(&Segment { bth, extension, payload: &[] }, false, &mut Bare, 1);
        one.wire = Some(Box::new(wire));
        assert_eq!(one.fault(), RequestFault::Peer);
    }
}

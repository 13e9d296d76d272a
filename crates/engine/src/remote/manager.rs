//! The messages of the communication manager that another host sent; see `setup.rs`.

use towpath_packet::roce;
use towpath_packet::roce::cm::{self, CmMessage, IpHeader, Mad, reason};
use towpath_packet::roce::{GENERAL_SERVICES_QKEY, Opcode, Path, Received};
use towpath_protocol::counters::{Device as Count, OutOfBand};
use towpath_protocol::oob::{
    Kind, OobAddress, OobMessage, PAYLOAD_BYTES, PeerState, REQUEST_BYTES, Refused,
};

use super::connection::{ASKED_NS, Remote, State};
use super::ending::end;
use super::host::{message, session_number};
use super::setup::{ANSWER_TIMEOUT, is_peer, reject};
use crate::demux::Destination;
use crate::oob::connection::EndpointName;
use crate::oob::{OobParts, OobTable};

/// Handles a message of the communication manager.
///
/// # Errors
/// The counter of the reason why the engine drops it.
pub(super) fn receive(
    received: &Received<'_>,
    oob: &OobTable,
    parts: &mut OobParts<'_>,
) -> Result<(), Count> {
    let deth = received.segment.extension.deth;
    let is_for_manager = received.segment.bth.opcode == Opcode::DatagramSendOnly
        && deth.is_some_and(|deth| deth.qkey == GENERAL_SERVICES_QKEY);
    let Path { destination: ip, destination_mac: mac, .. } = received.path;
    let (source, source_mac) = (received.path.source, received.path.source_mac);
    let is_host = is_peer(source) && source_mac[0] & 1 == 0 && source != ip;
    if !is_for_manager {
        return Err(Count::RdmaMalformed);
    }
    if !is_host || !parts.remote.is_own(ip, mac) {
        return Err(Count::RdmaNoConnection);
    }
    let mad = Mad::read(received.segment.payload).map_err(|_| Count::RdmaMalformed)?;
    let path = reversed(&received.path);
    match mad.message {
        CmMessage::Request(request) => asked(&path, mad.transaction, request, oob, parts),
        CmMessage::Reply(reply) => replied(&path, mad.transaction, &reply, parts),
        CmMessage::ReadyToUse(ready) => {
            with(&path, ready.remote_id, ready.local_id, parts, |one, _| {
                if matches!(one.state, State::Answered(_)) {
                    one.state = State::Open;
                    one.wire.iter_mut().for_each(|wire| wire.set_ready());
                }
            });
        }
        CmMessage::Reject(reject) => rejected(&path, &reject, parts),
        CmMessage::Receipt(receipt) => {
            // The application there takes its time: it has up to `ASKED_NS` in all.
            with(&path, receipt.remote_id, receipt.local_id, parts, |one, parts| {
                if let State::Asking(attempt) = &mut one.state {
                    let exponent = u32::from(receipt.service_timeout.min(23));
                    let until = parts.remote.now + (4_096 << exponent);
                    let most = attempt.since.unwrap_or(parts.remote.now) + ASKED_NS;
                    (attempt.tries, attempt.at) = (1, until.min(most));
                }
            });
        }
        CmMessage::Disconnect(request) => disconnected(&path, mad.transaction, &request, parts),
        CmMessage::Disconnected(answer) => {
            let qpn = find(&path, answer.remote_id, answer.local_id, parts);
            if let Some(qpn) = qpn
                && matches!(parts.remote.connections.get(&qpn), Some(one) if one.is_left())
                && let Some(one) = parts.remote.take(qpn)
            {
                parts.remote.drop_taken(qpn, &one);
            }
        }
    }
    Ok(())
}

fn reversed(path: &Path) -> Path {
    Path {
        source_mac: path.destination_mac,
        destination_mac: path.source_mac,
        source: path.destination,
        destination: path.source,
        source_port: roce::UDP_PORT,
        ecn: false,
    }
}

/// Returns the QPN of a message for this side's number `local_id`, if it comes from the
/// connection's other side.
fn find(path: &Path, local_id: u32, remote_id: u32, parts: &OobParts<'_>) -> Option<u32> {
    let qpn = *parts.remote.by_local_id.get(&local_id)?;
    let one = parts.remote.connections.get(&qpn)?;
    let is_theirs = one.path.destination == path.destination && one.path.source == path.source;
    (is_theirs && (one.remote_id == remote_id || one.remote_id == 0)).then_some(qpn)
}

/// Changes the connection that a message is for.
fn with(
    path: &Path,
    local_id: u32,
    remote_id: u32,
    parts: &mut OobParts<'_>,
    change: impl FnOnce(&mut Remote, &mut OobParts<'_>),
) {
    let Some(qpn) = find(path, local_id, remote_id, parts) else { return };
    let Some(mut one) = parts.remote.take(qpn) else { return };
    change(&mut one, parts);
    parts.remote.put(qpn, one);
    parts.remote.make_ready(qpn);
}

/// Handles a request for a connection: puts it into the queue of the endpoint that it is for.
fn asked(
    path: &Path,
    transaction: u64,
    request: Box<cm::Request>,
    oob: &OobTable,
    parts: &mut OobParts<'_>,
) {
    if let Some(qpn) = parts.remote.by_remote_id.get(&(path.destination, request.local_id)) {
        // It comes again: an answer that was given is sent once more, and otherwise the other host
        // is told to wait.
        let qpn = *qpn;
        return asked_again(path, transaction, qpn, request.local_id, parts);
    }
    let remote_id = request.local_id;
    if let Err(why) = ask(path, transaction, request, oob, parts) {
        reject(path, transaction, remote_id, why, &[], parts);
    }
}

fn asked_again(path: &Path, transaction: u64, qpn: u32, remote_id: u32, parts: &mut OobParts<'_>) {
    let now = parts.remote.now;
    let Some(one) = parts.remote.connections.get_mut(&qpn) else { return };
    match &mut one.state {
        State::Answered(attempt) => {
            // Its turn notes when it is due again.
            attempt.at = now;
            parts.remote.make_ready(qpn);
        }
        State::Asked { .. } => {
            let local_id = one.local_id;
            let receipt =
                cm::Receipt { local_id, remote_id, message: 0, service_timeout: ANSWER_TIMEOUT };
            let mad = Mad { transaction, message: CmMessage::Receipt(receipt) };
            parts.remote.send_mad(path, &mad);
        }
        _ => {}
    }
}

/// Enters a request for a connection.
///
/// # Errors
/// The reason of the rejection.
fn ask(
    path: &Path,
    transaction: u64,
    request: Box<cm::Request>,
    oob: &OobTable,
    parts: &mut OobParts<'_>,
) -> Result<(), u16> {
    let header = IpHeader::read(&request.private).ok_or(reason::UNSUPPORTED)?;
    let (header, private) = (header.0, header.1.to_vec());
    if header.source != path.destination || header.destination != path.source {
        return Err(reason::INVALID_GID);
    }
    if !request.reliable {
        return Err(reason::INVALID_TRANSPORT_TYPE);
    }
    let path_mtu = parts.remote.path_mtu().ok_or(reason::INVALID_MTU)?;
    if request.path_mtu.bytes() > path_mtu.bytes() {
        return Err(reason::INVALID_MTU);
    }
    let (protocol, port) =
        cm::port_of_service(request.service).ok_or(reason::INVALID_SERVICE_ID)?;
    let address = OobAddress { ip: path.source, protocol, port };
    let to = oob.at(&address).ok_or(reason::INVALID_SERVICE_ID)?;
    let listener = parts.sessions.get(to.session).ok_or(reason::INVALID_SERVICE_ID)?;
    if !listener.receive.endpoints.is_reachable(to.endpoint) {
        return Err(reason::INVALID_SERVICE_ID);
    }
    let name = EndpointName { session: listener.number(), endpoint: to.endpoint };
    let account = listener.extras.oob.account;
    let from = OobAddress { ip: path.destination, protocol, port: header.source_port };
    // The endpoint there asks anew.
    for qpn in parts.remote.waiting_requests(|other, theirs| other == name && theirs == from) {
        if let Some(one) = parts.remote.take(qpn) {
            parts.remote.drop_taken(qpn, &one);
        }
    }
    if !parts.remote.has_half_open_room(path.destination, name, account) {
        return Err(reason::NO_RESOURCES);
    }
    let qpn = parts.remote.new_qpn().ok_or(reason::NO_QP)?;
    let text = message(Kind::Request, 0, from, private.get(..REQUEST_BYTES).unwrap_or(&private));
    let text = text.ok_or(reason::UNSUPPORTED)?;
    // All hosts together have a quarter of a queue, as one session has.
    let sender = session_number(0);
    parts.push_remote(to, sender, &text, |_, _| {}).map_err(|_| reason::NO_RESOURCES)?;
    let (remote_id, destination) = (request.local_id, request.local_qpn);
    let state = State::Asked { listener: name, request, from, since: parts.remote.now };
    let mut one = Box::new(Remote::new(from, state, *path));
    one.path.source_port = 0xc000 | (parts.remote.random() & 0x3fff) as u16;
    one.path.ecn = true;
    one.account = Some(account);
    one.local_id = parts.remote.new_local_id(qpn);
    (one.remote_id, one.destination, one.transaction) = (remote_id, destination, transaction);
    parts.remote.by_remote_id.insert((path.destination, remote_id), qpn);
    parts.remote.put(qpn, one);
    Ok(())
}

/// Handles the answer that accepts a request of an endpoint here.
fn replied(path: &Path, transaction: u64, reply: &cm::Reply, parts: &mut OobParts<'_>) {
    let ready = cm::Ready { local_id: reply.remote_id, remote_id: reply.local_id };
    let ready = Mad { transaction, message: CmMessage::ReadyToUse(ready) };
    let qpn = find(path, reply.remote_id, reply.local_id, parts);
    let Some(qpn) = qpn else {
        // A connection that is forgotten here: the other host must not keep it.
        let reject = cm::Reject {
            local_id: reply.remote_id,
            remote_id: reply.local_id,
            rejected: 1,
            reason: reason::INVALID_COMM_ID,
            private: [0; 148],
        };
        let mad = Mad { transaction, message: CmMessage::Reject(reject) };
        return parts.remote.send_mad(path, &mad);
    };
    let Some(mut one) = parts.remote.take(qpn) else { return };
    let is_first = matches!(one.state, State::Asking(_));
    let takes = is_first || matches!(one.state, State::Open);
    let (path, peer) = (one.path, one.peer);
    if takes {
        parts.remote.send_mad(&path, &ready);
    }
    if is_first {
        (one.remote_id, one.destination) = (reply.local_id, reply.local_qpn);
        parts.remote.by_remote_id.insert((path.destination, reply.local_id), qpn);
        let reads = reply.responder_resources;
        one.open(qpn, reply.starting_psn, None, reads, parts.remote);
        one.wire.iter_mut().for_each(|wire| wire.set_ready());
        one.state = State::Open;
    }
    let owner = one.owner;
    parts.remote.put(qpn, one);
    if is_first && let Some(owner) = owner {
        parts.remote_accepted(owner, qpn, peer, &reply.private[..PAYLOAD_BYTES]);
    }
}

/// Handles the answer that rejects a request, or says that a connection is not known.
fn rejected(path: &Path, reject: &cm::Reject, parts: &mut OobParts<'_>) {
    if reject.remote_id == 0 && reject.reason == reason::TIMEOUT {
        // The endpoint there takes its request back.
        let theirs = (path.destination, reject.local_id);
        if let Some(qpn) = parts.remote.by_remote_id.get(&theirs).copied()
            && let Some(one) = parts.remote.take(qpn)
        {
            match one.state {
                State::Asked { .. } => parts.remote.drop_taken(qpn, &one),
                State::Answered(_) => end(qpn, one, PeerState::Closed, parts),
                _ => parts.remote.put(qpn, one),
            }
        }
        return;
    }
    let qpn = find(path, reject.remote_id, reject.local_id, parts);
    let Some(qpn) = qpn else { return };
    let Some(one) = parts.remote.take(qpn) else { return };
    let (owner, peer) = (one.owner, one.peer);
    let is_asking = matches!(one.state, State::Asking(_));
    if !is_asking && !matches!(one.state, State::Answered(_)) {
        parts.remote.put(qpn, one);
        return;
    }
    let state = match reject.reason {
        reason::CONSUMER_DEFINED => PeerState::Refused(Refused::Rejected),
        reason::INVALID_SERVICE_ID => PeerState::Refused(Refused::NoEndpoint),
        reason::NO_RESOURCES | reason::NO_QP => PeerState::Refused(Refused::Full),
        reason::INVALID_MTU => PeerState::Refused(Refused::Mtu),
        _ if is_asking => PeerState::Refused(Refused::State),
        _ => PeerState::Closed,
    };
    if is_asking
        && reject.reason == reason::CONSUMER_DEFINED
        && let Some(owner) = owner
        && let Some(key) = parts.sessions.key(owner.session)
        && let Some(text) = message(Kind::Reject, qpn, peer, &reject.private[..PAYLOAD_BYTES])
    {
        let at = Destination { session: key, endpoint: owner.endpoint };
        // The state says all that matters; the payload comes along if there is room.
        parts.deliver_answer(at, &text);
    }
    end(qpn, one, state, parts);
}

/// Handles the end of a connection by the other host.
fn disconnected(path: &Path, transaction: u64, request: &cm::Disconnect, parts: &mut OobParts<'_>) {
    let qpn = find(path, request.remote_id, request.local_id, parts);
    let one = qpn.and_then(|qpn| parts.remote.connections.get(&qpn));
    if one.is_some_and(|one| one.copies.is_placing()) {
        // The application would take the end for the end of the copy. The other host sends its message again.
        return;
    }
    let answer = cm::Disconnected { local_id: request.remote_id, remote_id: request.local_id };
    let answer = Mad { transaction, message: CmMessage::Disconnected(answer) };
    parts.remote.send_mad(path, &answer);
    let Some(qpn) = qpn.filter(|number| *number == request.remote_qpn) else {
        return;
    };
    if let Some(one) = parts.remote.take(qpn) {
        end(qpn, one, PeerState::Closed, parts);
    }
}

impl OobParts<'_> {
    /// Puts the payload of an answer into the queue of an endpoint, or drops and counts it.
    fn deliver_answer(&mut self, at: Destination, text: &OobMessage) {
        if self.push_answer(at, text).is_err() {
            self.count(at, OutOfBand::DroppedFull);
        }
    }

    /// Connects an endpoint whose request another host accepted.
    fn remote_accepted(&mut self, owner: EndpointName, qpn: u32, peer: OobAddress, payload: &[u8]) {
        let Some(key) = self.sessions.key(owner.session) else { return };
        let at = Destination { session: key, endpoint: owner.endpoint };
        self.set_connected(at, EndpointName::of_other_host(qpn));
        if let Some(text) = message(Kind::Accept, qpn, peer, payload) {
            self.deliver_answer(at, &text);
        }
        self.set_state(at, PeerState::Connected);
    }
}

//! The messages by which connections begin and end, between the servers of two hosts: those of the
//! InfiniBand communication manager (Linux, `drivers/infiniband/core/cm.c`), with the addresses of the
//! RDMA IP service (`cma.c`). They go to QPN 1.

use std::net::IpAddr;

use towpath_packet::roce;
use towpath_packet::roce::cm::{self, CmMessage, IpHeader, Mad, PathMtu, reason};
use towpath_packet::roce::{
    Bth, Deth, Extension, GENERAL_SERVICES_QKEY, GENERAL_SERVICES_QP, Opcode, Path, Received, seal,
    write_headers,
};
use towpath_protocol::counters::{Device as Count, OutOfBand};
use towpath_protocol::oob::{
    Kind, OobAddress, OobMessage, PAYLOAD_BYTES, PeerState, REQUEST_BYTES, Refused,
};
use towpath_rdma::responder::Progress;
use towpath_rdma::{Connection as Wire, Psn, Timing};

use super::ending::end;
use super::host::{message, session_number};
use super::table::{ASKED_NS, Attempt, Remote, RemoteTable, State};
use crate::account::Account;
use crate::engine::demux::Destination;
use crate::engine::oob::connection::EndpointName;
use crate::engine::oob::{OobTable, Parts};

/// The time until a message is sent again at first, in nanoseconds; it doubles each time.
const RETRY_NS: u64 = 250_000_000;
/// How often a message is sent: for 8 s in all.
const MOST_TRIES: u32 = 5;
/// How often the server sends the end of a connection: for 4 s in all.
const MOST_DISCONNECT_TRIES: u32 = 4;
/// How long a peer may leave packets without an answer, and when it is asked whether it is there.
pub(super) const TIMING: Timing =
    Timing { quiet: 2_500_000_000, dead: 7_000_000_000, not_ready: 1_000_000_000 };
/// The read requests that either side answers at once.
pub(super) const READS: u8 = 16;
/// The read requests of this side under way, even if the other host answers more at once. The next server asks
/// again for a read from its first byte that is missing, and soft-RoCE answers only the last ones of those that it
/// answers at once a second time.
const READS_UNDER_WAY: u8 = READS / 2;
/// Bytes of headers that an IP packet needs beside its payload, as Linux counts them for soft-RoCE
/// (`RXE_MAX_HDR_LENGTH`, `drivers/infiniband/sw/rxe/rxe_hdr.h`).
const HEADER_BYTES: usize = 80;
/// Exponents of 4.096 us: an acknowledgement within 67 ms, an answer of an application within 4.3 s.
const ACK_TIMEOUT: u8 = 14;
const ANSWER_TIMEOUT: u8 = 20;

impl RemoteTable {
    /// Returns the most bytes of payload per packet.
    pub(super) fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::of_bytes(self.device_mtu.saturating_sub(HEADER_BYTES))
    }

    /// Sends a message of the communication manager.
    pub(super) fn send_mad(&mut self, path: &Path, mad: &Mad) {
        let psn = self.random();
        let bth = Bth::new(Opcode::DatagramSendOnly, GENERAL_SERVICES_QP, psn & 0xff_ffff);
        let deth = Deth { qkey: GENERAL_SERVICES_QKEY, source: GENERAL_SERVICES_QP };
        let extension = Extension { deth: Some(deth), ..Extension::default() };
        let bytes = mad.to_bytes();
        let mut frame = vec![0; roce::frame_bytes(path, bth.opcode, bytes.len())];
        let headers = write_headers(path, &bth, &extension, bytes.len(), &mut frame);
        let Some(headers) = headers else { return };
        frame[headers..headers + bytes.len()].copy_from_slice(&bytes);
        if seal(&mut frame) {
            self.send_frame(frame);
        }
    }

    /// Makes the request of an endpoint here. Its first attempt is due at once.
    pub(super) fn request(
        &mut self,
        (owner, account): (EndpointName, Account),
        (own, peer): (OobAddress, OobAddress),
        private: &[u8],
    ) -> Option<u32> {
        let (address, _) = *self.own.get(&own.ip)?;
        let path_mtu = self.path_mtu()?;
        let has_room = self.has_room_for(account);
        let qpn = self.new_qpn().filter(|_| has_room)?;
        let path = Path {
            source_mac: address.mac,
            destination_mac: [0; 6],
            source: own.ip,
            destination: peer.ip,
            source_port: 0xc000 | (self.random() & 0x3fff) as u16,
            ecn: true,
        };
        let header = IpHeader { source: own.ip, destination: peer.ip, source_port: own.port };
        let (transaction, expected_psn) = (self.new_transaction(), self.random() & 0xff_ffff);
        let local_id = self.new_local_id(qpn);
        let request = cm::Request {
            local_id,
            service: cm::service_of(peer.protocol, peer.port),
            local_guid: guid(address.mac),
            local_qpn: qpn,
            responder_resources: READS,
            initiator_depth: READS,
            remote_response_timeout: ANSWER_TIMEOUT,
            local_response_timeout: ANSWER_TIMEOUT,
            starting_psn: expected_psn,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu,
            max_retries: MOST_TRIES as u8,
            pkey: roce::DEFAULT_PKEY,
            local_gid: cm::gid_of(own.ip),
            remote_gid: cm::gid_of(peer.ip),
            ack_timeout: ACK_TIMEOUT,
            reliable: true,
            private: header.write(private)?,
        };
        let mad = Mad { transaction, message: CmMessage::Request(Box::new(request)) };
        let attempt = Attempt::new(mad, self.now);
        let mut one = Box::new(Remote::new(peer, State::Asking(attempt), path));
        (one.owner, one.account) = (Some(owner), Some(account));
        (one.local_id, one.transaction, one.expected_psn) = (local_id, transaction, expected_psn);
        self.put(qpn, one);
        self.make_ready(qpn);
        Some(qpn)
    }

    /// Tells the other host that the endpoint here takes its request back.
    pub(super) fn take_back(&mut self, one: &Remote) {
        let is_sent = one.path.destination_mac != [0; 6];
        if matches!(one.state, State::Asking(_)) && is_sent {
            let reject = cm::Reject {
                local_id: one.local_id,
                remote_id: 0,
                rejected: 0,
                reason: reason::TIMEOUT,
                private: [0; 148],
            };
            let mad = Mad { transaction: one.transaction, message: CmMessage::Reject(reject) };
            self.send_mad(&one.path, &mad);
        }
    }

    fn new_transaction(&mut self) -> u64 {
        u64::from(self.random()) << 32 | u64::from(self.random())
    }

    /// Sends a connection's message again if it is time. Returns `false` once it was sent too often.
    pub(super) fn attempt(&mut self, one: &mut Remote) -> bool {
        let now = self.now;
        let most =
            if matches!(one.state, State::Left(_)) { MOST_DISCONNECT_TRIES } else { MOST_TRIES };
        let asks = matches!(one.state, State::Asking(_));
        let (State::Asking(attempt) | State::Answered(attempt) | State::Left(attempt)) =
            &mut one.state
        else {
            return true;
        };
        if asks && one.path.destination_mac == [0; 6] {
            // Each attempt begins with the link address.
            let Some(mac) = self.link_address(one.path.source, one.path.destination) else {
                if attempt.at > now {
                    return true;
                }
                attempt.at = now + (RETRY_NS << attempt.tries.min(8));
                attempt.tries += 1;
                return attempt.tries <= most;
            };
            (one.path.destination_mac, attempt.at) = (mac, now);
        }
        if attempt.at > now {
            return true;
        }
        let since = *attempt.since.get_or_insert(now);
        if attempt.tries >= most || asks && now >= since + ASKED_NS {
            return false;
        }
        attempt.at = now + (RETRY_NS << attempt.tries.min(8));
        attempt.tries += 1;
        let (path, mad) = (one.path, attempt.message.clone());
        self.send_mad(&path, &mad);
        true
    }
}

/// Returns an identifier of this side (EUI-64) from its link address.
pub(super) fn guid(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Handles a message of the communication manager.
///
/// # Errors
/// The counter of the reason why the engine drops it.
pub(super) fn receive(
    received: &Received<'_>,
    oob: &OobTable,
    parts: &mut Parts<'_>,
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
fn find(path: &Path, local_id: u32, remote_id: u32, parts: &Parts<'_>) -> Option<u32> {
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
    parts: &mut Parts<'_>,
    change: impl FnOnce(&mut Remote, &mut Parts<'_>),
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
    parts: &mut Parts<'_>,
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

fn asked_again(path: &Path, transaction: u64, qpn: u32, remote_id: u32, parts: &mut Parts<'_>) {
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
    parts: &mut Parts<'_>,
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
    if !listener.is_reachable(to.endpoint) {
        return Err(reason::INVALID_SERVICE_ID);
    }
    let name = EndpointName { session: listener.number, endpoint: to.endpoint };
    let account = listener.oob.account;
    let from = OobAddress { ip: path.destination, protocol, port: header.source_port };
    // The endpoint there asks anew.
    for qpn in parts.remote.waiting_requests(|other, theirs| other == name && theirs == from) {
        if let Some(one) = parts.remote.take(qpn) {
            parts.remote.drop_taken(qpn, &one);
        }
    }
    if !parts.remote.has_half_open_room(path.destination, (name, account)) {
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

/// Rejects a request of another host that was taken out of the table, and forgets it.
pub(super) fn reject_taken(
    qpn: u32,
    one: &Remote,
    reason: u16,
    payload: &[u8],
    parts: &mut Parts<'_>,
) {
    parts.remote.drop_taken(qpn, one);
    reject(&one.path, one.transaction, one.remote_id, reason, payload, parts);
}

/// Rejects a request for a connection.
fn reject(
    path: &Path,
    transaction: u64,
    remote_id: u32,
    reason: u16,
    payload: &[u8],
    parts: &mut Parts<'_>,
) {
    let mut private = [0; 148];
    private[..payload.len()].copy_from_slice(payload);
    let reject = cm::Reject { local_id: 0, remote_id, rejected: 0, reason, private };
    let mad = Mad { transaction, message: CmMessage::Reject(reject) };
    parts.remote.send_mad(path, &mad);
}

/// Handles the answer that accepts a request of an endpoint here.
fn replied(path: &Path, transaction: u64, reply: &cm::Reply, parts: &mut Parts<'_>) {
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
        one.open(qpn, (reply.starting_psn, None), reads, parts.remote);
        one.wire.iter_mut().for_each(|wire| wire.set_ready());
        one.state = State::Open;
    }
    let owner = one.owner;
    parts.remote.put(qpn, one);
    if is_first && let Some(owner) = owner {
        parts.remote_accepted(owner, qpn, (peer, &reply.private[..PAYLOAD_BYTES]));
    }
}

impl Remote {
    /// Makes both sides of a connection. `psn`: the number that the other host named for this side's
    /// first packet; `path_mtu`: that of the other host's request, `None` for that of the own one;
    /// `reads`: the reads that the other host answers at once.
    pub(super) fn open(
        &mut self,
        qpn: u32,
        (psn, path_mtu): (u32, Option<PathMtu>),
        reads: u8,
        table: &mut RemoteTable,
    ) {
        let own = match &self.state {
            State::Asking(attempt) => match &attempt.message.message {
                CmMessage::Request(request) => Some(request.path_mtu),
                _ => None,
            },
            _ => None,
        };
        let Some(path_mtu) = path_mtu.or(own) else { return };
        // Each side names the number with which the other one begins.
        let expected = Psn::new(self.expected_psn);
        let progress = Progress { expected, messages: 0, writing: None };
        let (to, mtu) = ((self.path, self.destination), path_mtu.bytes() as u32);
        let side = (Psn::new(psn), u32::from(reads.min(READS_UNDER_WAY)));
        let wire = Wire::new(to, mtu, side, progress, TIMING, table.now);
        let reads = wire.requester().most_reads();
        self.recorded = Some(wire.progress());
        self.wire = Some(Box::new(wire));
        let record = self.to_record(qpn, mtu, reads);
        self.place = record.and_then(|record| table.add_to_ledger(&record));
    }

    /// Begins to tell the other host that the connection has ended.
    pub(super) fn leave(&mut self, now: u64) {
        let disconnect = cm::Disconnect {
            local_id: self.local_id,
            remote_id: self.remote_id,
            remote_qpn: self.destination,
        };
        let message = CmMessage::Disconnect(disconnect);
        let mad = Mad { transaction: self.transaction, message };
        self.state = State::Left(Attempt::new(mad, now));
        self.wire = None;
    }
}

/// Handles the answer that rejects a request, or says that a connection is not known.
fn rejected(path: &Path, reject: &cm::Reject, parts: &mut Parts<'_>) {
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
fn disconnected(path: &Path, transaction: u64, request: &cm::Disconnect, parts: &mut Parts<'_>) {
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

impl Parts<'_> {
    /// Puts the payload of an answer into the queue of an endpoint, or drops and counts it.
    fn deliver_answer(&mut self, at: Destination, text: &OobMessage) {
        if self.push_answer(at, text).is_err() {
            self.count(at, OutOfBand::DroppedFull);
        }
    }

    /// Connects an endpoint whose request another host accepted.
    fn remote_accepted(
        &mut self,
        owner: EndpointName,
        qpn: u32,
        (peer, payload): (OobAddress, &[u8]),
    ) {
        let Some(key) = self.sessions.key(owner.session) else { return };
        let at = Destination { session: key, endpoint: owner.endpoint };
        self.set_connected(at, EndpointName::of_other_host(qpn));
        if let Some(text) = message(Kind::Accept, qpn, peer, payload) {
            self.deliver_answer(at, &text);
        }
        self.set_state(at, PeerState::Connected);
    }
}

/// Returns `true` if an address of another host can be a peer's.
pub(super) fn is_peer(ip: IpAddr) -> bool {
    let is_mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && !is_mapped
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::ledger::LEDGER_BYTES;
    use super::super::own_address::OwnAddress;
    use super::*;

    /// As soft-RoCE has it: what a side sends begins with the number in the other side's message.
    #[test]
    fn each_side_begins_with_the_number_that_the_other_one_named() {
        let mut one = Remote::for_tests();
        one.expected_psn = 5;
        let table = &mut RemoteTable::new(None, 1_500);
        one.open(7, (9, PathMtu::of_bytes(1024)), 1, table);
        let wire = one.wire.unwrap();
        assert_eq!(wire.requester().first(), Psn::new(9));
        assert_eq!(wire.progress().expected, Psn::new(5));
    }

    #[test]
    fn only_half_of_the_reads_that_soft_roce_answers_again_are_under_way() {
        for (theirs, most) in [(1, 1), (4, 4), (8, 8), (16, 8), (255, 8)] {
            let mut one = Remote::for_tests();
            let table = &mut RemoteTable::new(None, 1_500);
            one.open(7, (9, PathMtu::of_bytes(1024)), theirs, table);
            assert_eq!(one.wire.unwrap().requester().most_reads(), most, "of {theirs}");
        }
    }

    /// However long the engine was idle before: the time of a request begins when it is sent.
    #[test]
    fn the_first_request_after_a_long_time_is_sent() {
        let ip = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let address = |last| OobAddress { ip: ip(last), protocol: 6, port: 7 };
        let ledger = towpath_memory::Region::private(LEDGER_BYTES).unwrap();
        let mut table = RemoteTable::new(Some(ledger), 1_500);
        table.add_addresses(&[(ip(1), OwnAddress { mac: [2; 6], bits: 24, gateway: None })]);
        let owner = EndpointName { session: 1, endpoint: 0 };
        let account = Account { uid: 0, group: None, is_limited: false };
        let qpn = table.request((owner, account), (address(1), address(2)), b"").unwrap();
        table.now += 10 * ASKED_NS;
        let mut one = table.take(qpn).unwrap();
        assert!(table.attempt(&mut one), "it asks for the link address");
        one.path.destination_mac = [4; 6];
        table.now += RETRY_NS;
        table.outgoing.clear();
        assert!(table.attempt(&mut one));
        assert_eq!(table.outgoing.len(), 1);
        // And it ends, whatever the other host says meanwhile.
        for _ in 0..3 {
            table.now += ASKED_NS / 2;
            let State::Asking(attempt) = &mut one.state else { panic!("it asks") };
            (attempt.tries, attempt.at) = (1, table.now);
            if !table.attempt(&mut one) {
                return;
            }
        }
        panic!("it asks for ever");
    }
}

//! The messages by which this side begins and ends connections with other hosts: those of the
//! InfiniBand communication manager (Linux, `drivers/infiniband/core/cm.c`), with the addresses of the
//! RDMA IP service (`cma.c`). They go to QPN 1.

use std::net::IpAddr;

use towpath_packet::roce;
use towpath_packet::roce::cm::{self, CmMessage, IpHeader, Mad, PathMtu, reason};
use towpath_packet::roce::{
    Bth, Deth, Extension, GENERAL_SERVICES_QKEY, GENERAL_SERVICES_QP, Opcode, Path, seal,
    write_headers,
};
use towpath_protocol::oob::OobAddress;
use towpath_rdma::responder::Progress;
use towpath_rdma::{Connection as Wire, Psn, Timing};

use super::connection::{ASKED_NS, Attempt, Remote, State};
use super::ledger::{Acknowledged, Recorded};
use super::table::RemoteTable;
use crate::account::Account;
use crate::oob::OobParts;
use crate::oob::connection::EndpointName;

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
pub(super) const ANSWER_TIMEOUT: u8 = 20;

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
        owner: EndpointName,
        account: Account,
        own: OobAddress,
        peer: OobAddress,
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

/// Rejects a request of another host that was taken out of the table, and forgets it.
pub(super) fn reject_taken(
    qpn: u32,
    one: &Remote,
    reason: u16,
    payload: &[u8],
    parts: &mut OobParts<'_>,
) {
    parts.remote.drop_taken(qpn, one);
    reject(&one.path, one.transaction, one.remote_id, reason, payload, parts);
}

/// Rejects a request for a connection.
pub(super) fn reject(
    path: &Path,
    transaction: u64,
    remote_id: u32,
    reason: u16,
    payload: &[u8],
    parts: &mut OobParts<'_>,
) {
    let mut private = [0; 148];
    private[..payload.len()].copy_from_slice(payload);
    let reject = cm::Reject { local_id: 0, remote_id, rejected: 0, reason, private };
    let mad = Mad { transaction, message: CmMessage::Reject(reject) };
    parts.remote.send_mad(path, &mad);
}

impl Remote {
    /// Makes both sides of a connection. `psn`: the number that the other host named for this side's
    /// first packet; `path_mtu`: that of the other host's request, `None` for that of the own one;
    /// `reads`: the reads that the other host answers at once.
    pub(super) fn open(
        &mut self,
        qpn: u32,
        psn: u32,
        path_mtu: Option<PathMtu>,
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

    /// Returns what the ledger holds of a connection that has just become open.
    fn to_record(&self, qpn: u32, mtu: u32, reads: u32) -> Option<Recorded> {
        let wire = self.wire.as_ref()?;
        Some(Recorded {
            qpn,
            owner: self.owner?,
            peer: self.peer,
            path: self.path,
            destination: self.destination,
            mtu,
            reads,
            local_id: self.local_id,
            remote_id: self.remote_id,
            transaction: self.transaction,
            acknowledged: Acknowledged { slot: None, next: wire.requester().first() },
            probe: None,
            progress: wire.progress(),
            delivery: None,
        })
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
        one.open(7, 9, PathMtu::of_bytes(1024), 1, table);
        let wire = one.wire.unwrap();
        assert_eq!(wire.requester().first(), Psn::new(9));
        assert_eq!(wire.progress().expected, Psn::new(5));
    }

    #[test]
    fn only_half_of_the_reads_that_soft_roce_answers_again_are_under_way() {
        for (theirs, most) in [(1, 1), (4, 4), (8, 8), (16, 8), (255, 8)] {
            let mut one = Remote::for_tests();
            let table = &mut RemoteTable::new(None, 1_500);
            one.open(7, 9, PathMtu::of_bytes(1024), theirs, table);
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
        let qpn = table.request(owner, account, address(1), address(2), b"").unwrap();
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

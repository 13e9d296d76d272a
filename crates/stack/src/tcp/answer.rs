//! Replies that the stack makes without a connection, and ICMP errors about connections.

use std::net::SocketAddr;

use super::connection::State;
use super::options::Written;
use super::segment::{self, ACK, Header, RST, Segment};
use super::sequence::{Seq, timestamp};
use super::table::Tcp;
use super::tuple::Tuple;
use crate::host::Host;
use crate::icmp::{Problem, Quoted};
use crate::{Instant, SocketError, ip};

/// The longest header.
const MAX_HEADER_BYTES: usize = 60;

/// The fields of a segment without data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) sequence: Seq,
    pub(super) acknowledgement: Seq,
    pub(super) flags: u8,
    pub(super) window: u16,
}

impl Reply {
    /// Returns a segment without a window.
    pub(super) fn closed(sequence: Seq, acknowledgement: Seq, flags: u8) -> Reply {
        Reply { sequence, acknowledgement, flags, window: 0 }
    }
}

impl Tcp {
    /// Handles an ICMP error about a segment of ours. Returns `true` if the segment belongs to a
    /// connection.
    pub(crate) fn problem(
        &mut self,
        now: Instant,
        host: &mut Host,
        problem: Problem,
        quoted: &Quoted,
    ) -> bool {
        let tuple = Tuple {
            local: SocketAddr::new(quoted.src, quoted.src_port),
            remote: SocketAddr::new(quoted.dst, quoted.dst_port),
        };
        let Some(index) = self.find(&tuple) else { return false };
        let Some(connection) = self.at(index) else { return false };
        if !connection.in_flight(Seq(quoted.sequence)) {
            return false;
        }
        match problem {
            Problem::TooBig(_) => {
                let mtu = host.paths.mtu(now, quoted.dst);
                connection.set_path_mss(mtu - ip::header_len(quoted.dst) - segment::HEADER_BYTES);
                self.mark(index);
            }
            // Once the connection is established, these errors are hints that may soon be wrong
            // (RFC 1122, 4.2.3.9).
            Problem::Refused | Problem::Unreachable if connection.state == State::SynSent => {
                let refused = problem == Problem::Refused;
                let error = if refused { SocketError::Refused } else { SocketError::Unreachable };
                self.fail(now, host, index, error);
            }
            Problem::Refused | Problem::Unreachable => {}
        }
        true
    }

    /// Answers a segment without a connection with a reset (RFC 9293, 3.10.7.1).
    pub(super) fn refuse(&mut self, now: Instant, host: &mut Host, tuple: &Tuple, seg: &Segment) {
        if !host.may_refuse(now) {
            return;
        }
        host.counters.tcp_resets_sent += 1;
        if seg.has(ACK) {
            let reply = Reply::closed(seg.acknowledgement, Seq(0), RST);
            self.send_reply(now, host, tuple, reply, None);
        } else {
            let reply = Reply::closed(Seq(0), seg.end(), RST | ACK);
            self.send_reply(now, host, tuple, reply, None);
        }
    }

    /// Sends a segment without data. `stamps`: the origin of our clock and the value to echo.
    pub(super) fn send_reply(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        reply: Reply,
        stamps: Option<(u32, u32)>,
    ) {
        let mut options = Written::default();
        if let Some((origin, echo)) = stamps {
            options.timestamps(timestamp(now, origin), echo);
        }
        self.send_reply_with(now, host, tuple, reply, &options);
    }

    /// Sends a segment without data, with these options.
    pub(super) fn send_reply_with(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        reply: Reply,
        options: &Written,
    ) {
        let Some(route) = host.route(tuple.remote.ip()) else {
            host.counters.no_route += 1;
            return;
        };
        let ports = (tuple.local.port(), tuple.remote.port());
        let Reply { sequence, acknowledgement, flags, window } = reply;
        let header = Header { ports, sequence, acknowledgement, flags, window, urgent: 0 };
        let mut bytes = [0; MAX_HEADER_BYTES];
        let len = segment::HEADER_BYTES + options.as_slice().len();
        header.write(&mut bytes, options.as_slice());
        let ip_header = ip::Header {
            src: tuple.local.ip(),
            dst: tuple.remote.ip(),
            protocol: ip::TCP,
            hop_limit: ip::HOP_LIMIT,
            traffic_class: 0,
            payload_bytes: len,
            fragment: None,
        };
        host.counters.tcp_sent += 1;
        let sum_at = segment::CHECKSUM_AT;
        host.send(now, ip_header, route.to, &mut bytes[..len], &[], sum_at);
    }
}

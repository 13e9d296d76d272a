//! Answers segments without a connection, and handles ICMP errors about connections.

use std::net::SocketAddr;

use smoltcp::socket::tcp::State;

use super::connection::Tuple;
use super::segment::{self, ACK, RST, Segment};
use super::table::Tcp;
use crate::host::Host;
use crate::icmp::{Problem, Quoted};
use crate::ip::{self, Header};
use crate::{Instant, SocketError};

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
        let Some(&index) = self.by_tuple.get(&tuple) else { return false };
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return false };
        if !connection.in_flight(quoted.sequence, &host.config.tcp) {
            return false;
        }
        match problem {
            Problem::TooBig(_) => {
                let mtu = host.paths.mtu(now, quoted.dst);
                let mss = mtu - ip::header_len(quoted.dst) - segment::HEADER_BYTES;
                connection.path.mss = connection.path.mss.min(mss);
            }
            // Once the connection is established, these errors are hints that may soon be wrong
            // (RFC 1122, 4.2.3.9).
            Problem::Refused | Problem::Unreachable if connection.state() == State::SynSent => {
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
        if !host.errors.take(now) {
            host.counters.errors_limited += 1;
            return;
        }
        host.counters.tcp_resets_sent += 1;
        if seg.has(ACK) {
            self.say(now, host, tuple, (seg.acknowledgement, 0), RST);
        } else {
            let next = seg.sequence.wrapping_add(seg.len());
            self.say(now, host, tuple, (0, next), RST | ACK);
        }
    }

    /// Sends a segment without data; `at` is its sequence number and acknowledgement.
    pub(super) fn say(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        at: (u32, u32),
        flags: u8,
    ) {
        let Some(route) = host.route(tuple.remote.ip()) else {
            host.counters.no_route += 1;
            return;
        };
        let ports = (tuple.local.port(), tuple.remote.port());
        let mut bare = segment::bare(ports, at.0, at.1, flags, 0);
        let header = Header {
            src: tuple.local.ip(),
            dst: tuple.remote.ip(),
            protocol: ip::TCP,
            hop_limit: ip::HOP_LIMIT,
            payload_bytes: bare.len(),
            fragment: None,
        };
        host.counters.tcp_sent += 1;
        host.send(now, header, route.to, &mut bare, &[], segment::CHECKSUM_AT);
    }
}

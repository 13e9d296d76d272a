//! The path of a received segment to its connection, or to what is there without one.

use std::net::SocketAddr;

use super::answer::Reply;
use super::segment::{ACK, FIN, RST, SYN, Segment};
use super::table::Tcp;
use super::time_wait::Remains;
use super::tuple::Tuple;
use crate::Instant;
use crate::checksum::Sum;
use crate::host::Host;
use crate::ip::{self, Packet};

impl Tcp {
    /// Processes a received segment for one of our addresses.
    pub(crate) fn dispatch(
        &mut self,
        now: Instant,
        host: &mut Host,
        packet: &Packet<'_>,
        verify: bool,
    ) {
        host.counters.tcp_received += 1;
        let Some(mut seg) = Segment::parse(packet.payload) else {
            host.counters.tcp_malformed += 1;
            return;
        };
        seg.congested = packet.is_congested();
        if verify {
            let pseudo = Sum::pseudo(packet.src, packet.dst, ip::TCP, packet.payload.len());
            if pseudo.add(packet.payload).folded() != 0xffff {
                host.counters.rx_checksum += 1;
                return;
            }
        }
        let tuple = Tuple {
            local: SocketAddr::new(packet.dst, seg.dst_port),
            remote: SocketAddr::new(packet.src, seg.src_port),
        };
        let data = &packet.payload[packet.payload.len() - seg.payload_bytes..];
        if seg.is_contradictory() {
            return self.drop_contradictory(now, host, &tuple, &seg);
        }
        if let Some(index) = self.find(&tuple) {
            return self.process(now, host, index, &seg, data);
        }
        if self.half_open.get(&tuple).is_some() {
            return self.answer_half_open(now, host, tuple, &seg, data);
        }
        let kind = seg.flags & (SYN | ACK | RST);
        let remains = self.time_wait.get(now, &tuple);
        if let Some(remains) = remains
            && !(kind == SYN && remains.is_older_than(&seg))
        {
            return self.answer_time_wait(now, host, &tuple, &remains, &seg);
        }
        let after = remains.map(|remains| remains.send_next);
        if kind == SYN && self.open_passive(now, host, tuple, &seg, after)
            || kind == ACK && self.open_by_cookie(now, host, tuple, &seg, data)
        {
            return;
        }
        host.counters.tcp_no_connection += 1;
        // A listener drops what neither opens nor acknowledges (RFC 9293, 3.10.7.2).
        let is_ignored = kind == 0 && self.listeners.find(&host.random, &tuple).is_some();
        if !seg.has(RST) && !is_ignored {
            self.refuse(now, host, &tuple, &seg);
        }
    }

    /// Drops a segment whose flags contradict each other. A closed port answers it as any other segment but a reset.
    fn drop_contradictory(&mut self, now: Instant, host: &mut Host, tuple: &Tuple, seg: &Segment) {
        let is_open = self.find(tuple).is_some()
            || self.half_open.get(tuple).is_some()
            || self.time_wait.get(now, tuple).is_some()
            || self.listeners.find(&host.random, tuple).is_some();
        if is_open || seg.has(RST) {
            host.counters.tcp_malformed += 1;
            return;
        }
        host.counters.tcp_no_connection += 1;
        self.refuse(now, host, tuple, seg);
    }

    /// Answers a segment for a TIME-WAIT entry. The peer repeats its FIN or an old segment: it has
    /// not received our last segment. The stack accepts a reset only at exactly the next sequence
    /// number (RFC 1337, RFC 5961 3.2). A peer that reopens the connection with an older number
    /// answers our last segment with such a reset.
    fn answer_time_wait(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        remains: &Remains,
        seg: &Segment,
    ) {
        let is_next = seg.sequence == remains.receive_next;
        if seg.has(RST) {
            if is_next {
                self.time_wait.remove(tuple, &mut self.ports);
            } else {
                host.counters.tcp_resets_ignored += 1;
            }
            return;
        }
        // Another such entry may be at the other side, and would answer the answer.
        if seg.len() == 0 && is_next {
            return;
        }
        if !self.time_wait.may_answer(now, tuple) {
            host.counters.tcp_challenges_limited += 1;
        } else {
            if seg.has(FIN) && seg.end() == remains.receive_next {
                self.time_wait.restart(now, tuple);
            }
            let reply = Reply::closed(remains.send_next, remains.receive_next, ACK);
            host.counters.tcp_ignored += 1;
            self.send_reply(now, host, tuple, reply, remains.stamps);
        }
    }
}

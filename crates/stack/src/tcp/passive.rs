//! Passive opens: answers to SYNs, half-open connections, SYN cookies, and the connections that
//! result.

use super::answer::Reply;
use super::connection::{Connection, Ecn, Owner};
use super::cookie;
use super::half_open::{Agreement, HalfOpen};
use super::options::{Options, Written};
use super::segment::{ACK, CWR, ECE, RST, SYN, Segment};
use super::sequence::{self, Seq};
use super::table::Tcp;
use super::tuple::Tuple;
use crate::host::Host;
use crate::{Instant, ListenerId};

/// The minimum limit of half-open connections, even if the accept queue is shorter: they are no
/// load on the application.
const LEAST_HALF_OPEN: usize = 128;
/// The distance from the last number of a connection in TIME-WAIT to the first of the next one.
const REOPENED_AHEAD: u32 = 65_535;

impl Tcp {
    /// Handles a SYN that belongs to no connection. `after`: the next number of a TIME-WAIT entry
    /// that the SYN ends. Returns `false` if no socket listens.
    pub(super) fn open_passive(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: Tuple,
        seg: &Segment,
        after: Option<Seq>,
    ) -> bool {
        let Some((id, listener)) = self.listeners.find(&host.random, &tuple) else { return false };
        if listener.revoked {
            return false;
        }
        // No route leads back to the sender.
        if host.route(tuple.remote.ip()).is_none() {
            host.counters.no_route += 1;
            return true;
        }
        // While the accept queue is full, the peer has to repeat its SYN.
        if listener.accept.len() >= listener.backlog {
            host.counters.tcp_accept_overflow += 1;
            return true;
        }
        if self.live >= host.config.limits.connections {
            host.counters.tcp_connection_limit += 1;
            return true;
        }
        let is_full = listener.half_open >= listener.backlog.max(LEAST_HALF_OPEN)
            || self.half_open.len() >= host.config.limits.half_open
            || self.live + self.half_open.len() >= host.config.limits.connections;
        // A cookie could not keep its number above those of the connection before: the peer has to
        // repeat its SYN.
        if is_full && after.is_some() {
            host.counters.tcp_accept_overflow += 1;
            return true;
        }
        let options = &seg.options;
        let mut agreement = agree(seg, sequence::initial(now, &host.random, &tuple));
        if let Some(after) = after {
            // RFC 9293, 3.6.1: above all numbers of the connection before.
            agreement.ours = agreement.ours.max(after + REOPENED_AHEAD);
            self.time_wait.remove(&tuple, &mut self.ports);
            host.counters.tcp_time_wait_reused += 1;
        }
        let mut clock = own_clock(now, host, &tuple);
        if is_full {
            let theirs = seg.sequence;
            let random = &host.random;
            agreement.ours = self.cookies.make(now, random, &tuple, theirs, options.mss);
            if agreement.clock.is_some() {
                clock = cookie::stamp(clock, &agreement);
            } else {
                agreement = Agreement { shift: None, selective: false, ecn: false, ..agreement };
            }
            host.counters.tcp_cookies_sent += 1;
        } else {
            listener.half_open += 1;
            let entry = HalfOpen::new(id, agreement, now);
            self.half_open.insert(now, tuple, entry);
            self.ports.add(tuple.local);
        }
        self.answer_syn(now, host, &tuple, &agreement, clock);
        true
    }

    /// Answers a SYN. `clock`: the value of our clock.
    pub(super) fn answer_syn(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        agreement: &Agreement,
        clock: u32,
    ) {
        let mut options = Written::default();
        let local = self.sizes(now, host, tuple.remote.ip()).local;
        options.mss(local as u16);
        if agreement.selective {
            options.sack_permitted();
        }
        if let Some(echo) = agreement.clock {
            options.timestamps(clock, echo);
        }
        let most = host.config.tcp.receive_buffer_bytes;
        if agreement.shift.is_some() {
            options.window_scale(super::connection::offered_shift(most));
        }
        let flags = if agreement.ecn { SYN | ACK | ECE } else { SYN | ACK };
        let window = super::receiving::first_window(most);
        let (sequence, acknowledgement) = (agreement.ours, agreement.theirs + 1);
        let reply = Reply { sequence, acknowledgement, flags, window };
        self.send_reply_with(now, host, tuple, reply, &options);
    }

    /// Handles a segment for a half-open connection (RFC 9293, 3.10.7.4, SYN-RECEIVED).
    pub(super) fn answer_half_open(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: Tuple,
        seg: &Segment,
        data: &[u8],
    ) {
        let Some(entry) = self.half_open.get(&tuple).copied() else { return };
        let agreement = entry.agreement;
        let (theirs, ours) = (agreement.theirs, agreement.ours);
        let origin = sequence::timestamp_origin(&host.random, &tuple);
        let stamps = agreement.clock.map(|clock| (origin, clock));
        if seg.has(SYN) && !seg.has(RST) {
            if seg.sequence == theirs && !seg.has(ACK) {
                // The peer has not received our answer.
                let clock = own_clock(now, host, &tuple);
                self.answer_syn(now, host, &tuple, &agreement, clock);
            } else {
                self.challenge_half_open(now, host, &tuple, &agreement, stamps);
            }
            return;
        }
        if !is_timely(&agreement, seg) {
            host.counters.tcp_paws_dropped += 1;
            return self.challenge_half_open(now, host, &tuple, &agreement, stamps);
        }
        let most = host.config.tcp.receive_buffer_bytes;
        let window = u32::from(super::receiving::first_window(most));
        let is_within = seg.sequence.since(theirs + 1) < window;
        let is_next = seg.sequence == theirs + 1;
        if !is_within || seg.has(RST) && !is_next {
            if is_within || !seg.has(RST) {
                self.challenge_half_open(now, host, &tuple, &agreement, stamps);
            } else {
                host.counters.tcp_resets_ignored += 1;
            }
            return;
        }
        if seg.has(RST) {
            host.counters.tcp_resets_received += 1;
            self.end_half_open(host, &tuple);
            return;
        }
        if !seg.has(ACK) {
            host.counters.tcp_ignored += 1;
            return;
        }
        if seg.acknowledgement != ours + 1 {
            // The peer may answer a cookie of an earlier repetition of its SYN.
            if self.open_by_cookie(now, host, tuple, seg, data) {
                return;
            }
            host.counters.tcp_no_connection += 1;
            return self.refuse(now, host, &tuple, seg);
        }
        // The stack ignores the handshake's last segment while the listener is full. The peer, or
        // our repeated answer, triggers another one.
        if self.listeners.is_full(entry.listener) {
            host.counters.tcp_accept_overflow += 1;
            return;
        }
        self.end_half_open(host, &tuple);
        let measured = (entry.repeats == 0).then_some(entry.since);
        self.accept_peer(now, host, (tuple, entry.listener), &agreement, measured, (seg, data));
    }

    /// Acknowledges a segment that may be forged, at a limited rate (RFC 5961, 3.2 and 4.2).
    fn challenge_half_open(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: &Tuple,
        agreement: &Agreement,
        stamps: Option<(u32, u32)>,
    ) {
        if self.half_open.may_challenge(now, tuple) {
            host.counters.tcp_challenges += 1;
            let (sequence, acknowledgement) = (agreement.ours + 1, agreement.theirs + 1);
            let most = host.config.tcp.receive_buffer_bytes;
            let shift = agreement.shift.map_or(0, |_| super::connection::offered_shift(most));
            let window = super::receiving::first_window(most) >> shift;
            let reply = Reply { sequence, acknowledgement, flags: ACK, window };
            self.send_reply(now, host, tuple, reply, stamps);
        } else {
            host.counters.tcp_challenges_limited += 1;
        }
    }

    fn end_half_open(&mut self, host: &mut Host, tuple: &Tuple) {
        if let Some(entry) = self.half_open.remove(tuple) {
            self.listeners.half_open_ended(host, entry.listener);
            self.ports.remove(tuple.local);
        }
    }

    /// Handles an acknowledgement without a connection, which may answer a SYN cookie. Returns
    /// `false` if it does not.
    pub(super) fn open_by_cookie(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: Tuple,
        seg: &Segment,
        data: &[u8],
    ) -> bool {
        let Some((id, listener)) = self.listeners.find(&host.random, &tuple) else { return false };
        if listener.revoked {
            return false;
        }
        let is_full = listener.accept.len() >= listener.backlog;
        let (theirs, ours) = (seg.sequence - 1, seg.acknowledgement - 1);
        let stamps = seg.options.timestamps;
        let read = self.cookies.read(now, &host.random, &tuple, theirs, ours, stamps);
        let Some(agreement) = read else {
            host.counters.tcp_cookies_refused += u64::from(self.cookies.are_in_use(now));
            return false;
        };
        if is_full {
            host.counters.tcp_accept_overflow += 1;
        } else if self.live >= host.config.limits.connections {
            host.counters.tcp_connection_limit += 1;
        } else {
            host.counters.tcp_cookies_accepted += 1;
            self.end_half_open(host, &tuple);
            self.accept_peer(now, host, (tuple, id), &agreement, None, (seg, data));
        }
        true
    }

    /// Makes a connection out of a completed handshake. `measured`: the time of our answer, if it
    /// was sent once.
    fn accept_peer(
        &mut self,
        now: Instant,
        host: &mut Host,
        (tuple, listener): (Tuple, ListenerId),
        agreement: &Agreement,
        measured: Option<Instant>,
        (seg, data): (&Segment, &[u8]),
    ) {
        let sizes = self.sizes(now, host, tuple.remote.ip());
        let config = &host.config.tcp;
        let ours = agreement.ours;
        let owner = Owner::Listener(listener);
        let mut connection = Connection::new(tuple, owner, sizes, config, ours, now);
        connection.origin = sequence::timestamp_origin(&host.random, &tuple);
        let id = self.insert(connection);
        let Some((connection, env)) = self.connection_and_env(now, host, id.index) else { return };
        let options = Options {
            mss: agreement.mss,
            window_shift: agreement.shift,
            sack_permitted: agreement.selective,
            timestamps: agreement.clock.map(|clock| (clock, 0)),
            ..Options::default()
        };
        connection.syn_due = false;
        connection.negotiate(&env, agreement.theirs, &options);
        // The peer knows the window of our answer.
        connection.receiving.advertise_first();
        connection.ecn = if agreement.ecn { Ecn::On } else { Ecn::Off };
        connection.sending.nxt = ours + 1;
        connection.syn_at = measured.unwrap_or(now);
        if measured.is_none() {
            connection.sending.rtt.back_off();
        }
        connection.establish(&env, ours + 1);
        let window = u32::from(seg.window) << connection.sending.shift;
        connection.sending.take_first_window(seg.sequence, seg.acknowledgement, window);
        connection.sending.max_window = window.max(agreement.window.into());
        self.listeners.established(host, listener, id);
        self.process(now, host, id.index, seg, data);
    }
}

/// Returns what a SYN and our answer with the number `ours` agree upon.
fn agree(syn: &Segment, ours: Seq) -> Agreement {
    let options = &syn.options;
    Agreement {
        theirs: syn.sequence,
        ours,
        mss: options.mss,
        shift: options.window_shift,
        selective: options.sack_permitted,
        clock: options.timestamps.map(|(clock, _)| clock),
        ecn: syn.flags & (ECE | CWR) == ECE | CWR,
        window: syn.window,
    }
}

/// Returns `false` for a segment with an older timestamp than the SYN's (PAWS; RFC 7323, 5.3).
fn is_timely(agreement: &Agreement, seg: &Segment) -> bool {
    match (agreement.clock, seg.options.timestamps) {
        (Some(recent), Some((clock, _))) => clock.wrapping_sub(recent) as i32 >= 0 || seg.has(RST),
        (Some(_), None) | (None, _) => true,
    }
}

/// Returns the value of our clock toward a peer.
pub(super) fn own_clock(now: Instant, host: &Host, tuple: &Tuple) -> u32 {
    sequence::timestamp(now, sequence::timestamp_origin(&host.random, tuple))
}

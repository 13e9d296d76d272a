//! The arrival of a segment (RFC 9293, 3.10.7).

use std::time::Duration;

use super::connection::{Connection, Ecn, Env, Owner, State};
use super::options::{Options, TIMESTAMP_BYTES};
use super::receiving::{AckDue, Receiving};
use super::recovery::Acknowledgement;
use super::segment::{ACK, CWR, ECE, FIN, RST, SYN, Segment, URG};
use super::sequence::Seq;
use crate::SocketError;

/// The age from which the stack ignores a stored timestamp (RFC 7323, 5.5: 24 days).
const TIMESTAMP_LASTS: std::time::Duration = std::time::Duration::from_secs(24 * 86_400);
/// The least time between two challenge acknowledgements of one connection (RFC 5961, 7).
const CHALLENGE_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

/// The least time between two answers to segments without data that do not fit.
const ANSWER_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// The maximum number of doublings of [`ANSWER_PAUSE`]: 100 ms becomes 51 s.
const MAX_DOUBLINGS: u8 = 9;

/// The consequence of a segment beyond the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    None,
    /// The segment is answered with a reset at this number.
    Refuse(Seq),
    /// The peer ended the connection.
    Failed(SocketError),
}

impl Connection {
    /// Handles a segment.
    pub(super) fn process_segment(
        &mut self,
        env: &mut Env<'_>,
        seg: &Segment,
        data: &[u8],
    ) -> Verdict {
        match self.state {
            State::Closed => {
                env.counters.tcp_ignored += 1;
                Verdict::None
            }
            State::SynSent => self.process_syn_sent(env, seg),
            _ => self.process_synchronized(env, seg, data),
        }
    }

    /// Handles a segment in SYN-SENT (RFC 9293, 3.10.7.3).
    fn process_syn_sent(&mut self, env: &mut Env<'_>, seg: &Segment) -> Verdict {
        let sending = &mut self.sending;
        let acceptable = seg.acknowledgement == sending.nxt && sending.nxt != sending.una;
        if seg.has(ACK) && !acceptable && !seg.has(RST) {
            // The peer still has a connection of this tuple, such as one of a program that was killed, and
            // challenges the SYN (RFC 5961, 4.2). The reset ends that connection, so the SYN follows at once, as
            // on Linux. This happens once per connection. Otherwise each forged segment would trigger another SYN.
            if !self.syn_hastened && sending.rtt.backoff() == 0 {
                self.syn_hastened = true;
                self.syn_due = true;
            }
            return Verdict::Refuse(seg.acknowledgement);
        }
        if seg.has(RST) {
            if seg.has(ACK) && acceptable {
                return Verdict::Failed(SocketError::Refused);
            }
            env.counters.tcp_resets_ignored += 1;
            return Verdict::None;
        }
        if !seg.has(SYN) {
            env.counters.tcp_ignored += 1;
            return Verdict::None;
        }
        self.last_received = env.now;
        self.syn_due = false;
        self.negotiate(env, seg.sequence, &seg.options);
        let answered = seg.has(ACK);
        // Both flags in a SYN ask for ECN, one in its answer agrees (RFC 3168, 6.1.1).
        let agrees = match answered {
            true => self.ecn == Ecn::Asked && seg.flags & (ECE | CWR) == ECE,
            false => self.ecn != Ecn::Off && seg.flags & (ECE | CWR) == ECE | CWR,
        };
        self.ecn = if agrees { Ecn::On } else { Ecn::Off };
        let window = u32::from(seg.window);
        self.sending.take_first_window(seg.sequence, seg.acknowledgement, window);
        if answered {
            // The peer knows the window of our SYN.
            self.receiving.advertise_first();
            self.establish(env, seg.acknowledgement);
            self.receiving.acknowledge_now();
        } else {
            // Both sides opened at once.
            self.state = State::SynReceived;
            self.syn_due = true;
        }
        Verdict::None
    }

    /// Takes over what the peer's SYN offers.
    pub(super) fn negotiate(&mut self, env: &Env<'_>, initial: Seq, options: &Options) {
        self.sizes.take_offer(options.mss);
        let shift = self.receiving.shift;
        let mut full = self.sizes.local;
        if let Some((clock, _)) = options.timestamps {
            self.timestamps = true;
            full -= TIMESTAMP_BYTES;
            self.receiving.begin(Receiving::new(initial, env.config, shift, full as u32));
            self.receiving.recent = clock;
            self.receiving.recent_at = env.now;
        } else {
            self.receiving.begin(Receiving::new(initial, env.config, shift, full as u32));
        }
        // A shift counts only if both offer one (RFC 7323, 2.2).
        match options.window_shift {
            Some(shift) => self.sending.shift = shift,
            None => self.receiving.shift = 0,
        }
        self.sending.recovery.selective = options.sack_permitted;
        self.resize();
    }

    /// Enters ESTABLISHED: the peer has acknowledged our SYN.
    pub(super) fn establish(&mut self, env: &Env<'_>, acknowledgement: Seq) {
        self.state = State::Established;
        self.sending.una = acknowledgement;
        self.give_up_at = None;
        match self.sending.rtt.backoff() {
            // Which of two SYNs is acknowledged is not known (RFC 6298, 3).
            0 if self.syn_hastened => {}
            0 => self.sending.rtt.measure(env.now, env.now.since(self.syn_at)),
            // A lost SYN: the path is slower than expected, or congested (RFC 6298, 5.7; RFC 6928,
            // 2, where Linux allows one loss).
            lost => {
                self.sending.rtt.be_careful();
                if lost > 1 {
                    self.sending.congestion.begin_small();
                }
            }
        }
        self.sending.rtt.progress();
    }

    /// Sends an acknowledgement that challenges a segment which may be forged, at a limited rate
    /// (RFC 5961, 3 to 5 and 7).
    pub(super) fn challenge(&mut self, env: &mut Env<'_>) {
        // The limit is the connection's own: a common one would tell others by its use of forged
        // segments (Cao et al., "Off-path TCP exploits", 2016).
        if self.challenged.is_some_and(|at| env.now.since(at) < CHALLENGE_PAUSE) {
            env.counters.tcp_challenges_limited += 1;
            return;
        }
        self.challenged = Some(env.now);
        env.counters.tcp_challenges += 1;
        self.receiving.acknowledge_now();
    }

    /// Handles a segment in the other states (RFC 9293, 3.10.7.4).
    fn process_synchronized(&mut self, env: &mut Env<'_>, seg: &Segment, data: &[u8]) -> Verdict {
        if !self.is_timely(env, seg) {
            return Verdict::None;
        }
        if seg.has(RST) {
            return self.process_reset(env, seg);
        }
        // In SYN-RECEIVED after both sides opened at once, the peer answers our SYN. Any other SYN
        // is challenged, wherever it lies (RFC 5961, 4.2).
        let answers = self.state == State::SynReceived && seg.sequence + 1 == self.receiving.nxt;
        if seg.has(SYN) && !answers {
            self.challenge(env);
            return Verdict::None;
        }
        if !self.is_acceptable(env, seg) {
            return Verdict::None;
        }
        if !seg.has(ACK) {
            env.counters.tcp_ignored += 1;
            return Verdict::None;
        }
        if self.state == State::SynReceived {
            if seg.acknowledgement != self.sending.nxt {
                return Verdict::Refuse(seg.acknowledgement);
            }
            self.establish(env, seg.acknowledgement);
            let window = u32::from(seg.window) << self.scaled(seg);
            self.sending.take_first_window(seg.sequence, seg.acknowledgement, window);
        }
        if !self.take_acknowledgement(env, seg, data) {
            return Verdict::None;
        }
        self.last_received = env.now;
        self.probes = 0;
        self.take_timestamp(env, seg);
        if self.ecn == Ecn::On {
            self.receiving.echo_mark &= !seg.has(CWR);
            self.receiving.echo_mark |= seg.congested;
        }
        if self.state.receives() {
            self.take_data(env, seg, data);
            if self.owner == Owner::None && self.receiving.discard(env.pool) > 0 {
                // The application will never read it, and the peer must know (RFC 2525, 2.17).
                self.abort(env.pool);
                return Verdict::None;
            }
        } else if seg.len() > 0 {
            env.counters.tcp_ignored += u64::from(!data.is_empty());
            self.receiving.acknowledge_now();
        }
        self.advance();
        Verdict::None
    }

    /// Returns the shift of the window in a segment.
    fn scaled(&self, seg: &Segment) -> u8 {
        if seg.has(SYN) { 0 } else { self.sending.shift }
    }

    /// Demands the acknowledgement of a segment that does not fit, at a limited rate if it has no
    /// data: the other side may answer with such a segment.
    fn answer_unacceptable(&mut self, env: &mut Env<'_>, seg: &Segment) {
        // The pause doubles until a segment fits again, but for keep-alives and probes of a closed
        // window.
        let probes = seg.sequence + 1 == self.receiving.nxt;
        let doublings = if probes { 0 } else { self.unacceptable_answers.min(MAX_DOUBLINGS) };
        let pause = ANSWER_PAUSE * (1 << doublings);
        let early = self.answered.is_some_and(|at| env.now.since(at) < pause);
        if seg.len() == 0 && early {
            env.counters.tcp_challenges_limited += 1;
            return;
        }
        self.unacceptable_answers =
            self.unacceptable_answers.saturating_add(u8::from(seg.len() == 0 && !probes));
        self.answered = Some(env.now);
        self.receiving.acknowledge_now();
    }

    /// Takes a segment's timestamp over, if the next acknowledgement covers the segment (RFC 7323,
    /// 4.3).
    fn take_timestamp(&mut self, env: &Env<'_>, seg: &Segment) {
        let Some((clock, _)) = seg.options.timestamps.filter(|_| self.timestamps) else {
            return;
        };
        let receiving = &mut self.receiving;
        let last = receiving.acknowledged;
        let covers = !seg.sequence.after(last) && !seg.end().before(last);
        let is_newer = clock.wrapping_sub(receiving.recent) as i32 >= 0;
        if covers && (is_newer || env.now.since(receiving.recent_at) >= TIMESTAMP_LASTS) {
            receiving.recent = clock;
            receiving.recent_at = env.now;
        }
    }

    /// Returns `false` for a segment whose timestamp is older than the last one: it is an old
    /// duplicate (PAWS; RFC 7323, 5.3).
    ///
    /// A segment without timestamps is accepted, although both sides agreed on them. RFC 7323, 3.2, recommends to drop
    /// it; but some middleboxes and peers leave the option out, and a connection with such a peer would hang. So
    /// does Linux.
    fn is_timely(&mut self, env: &mut Env<'_>, seg: &Segment) -> bool {
        if !self.timestamps {
            return true;
        }
        let Some((clock, _)) = seg.options.timestamps else { return true };
        let receiving = &self.receiving;
        let is_old = (clock.wrapping_sub(receiving.recent) as i32) < 0;
        if is_old && !seg.has(RST) && env.now.since(receiving.recent_at) < TIMESTAMP_LASTS {
            env.counters.tcp_paws_dropped += 1;
            self.answer_unacceptable(env, seg);
            return false;
        }
        true
    }

    /// Returns `true` if the segment lies in the window, or before it by at most a window (RFC 9293,
    /// 3.4 and 3.10.7.4). The data of an old segment is old, but its acknowledgement may be new. Both
    /// sides may send old segments at once, when their probes cross. The stack acknowledges each
    /// segment that is not wholly in the window, so that the peer learns where the window is.
    fn is_acceptable(&mut self, env: &mut Env<'_>, seg: &Segment) -> bool {
        let (start, end) = (seg.sequence, seg.end());
        let nxt = self.receiving.nxt;
        let edge = self.receiving.furthest();
        let is_old = end.before(nxt) || end == nxt && seg.len() > 0;
        if !start.after(edge) && !is_old {
            self.unacceptable_answers = 0;
            return true;
        }
        env.counters.tcp_unacceptable += 1;
        self.answer_unacceptable(env, seg);
        is_old && nxt.since(end) <= self.receiving.limit()
    }

    /// Handles a reset: only one at exactly the expected number is believed, one elsewhere in the
    /// window is challenged, and others are ignored (RFC 5961, 3.2).
    fn process_reset(&mut self, env: &mut Env<'_>, seg: &Segment) -> Verdict {
        let receiving = &self.receiving;
        if seg.sequence == receiving.nxt {
            return Verdict::Failed(match self.state {
                State::SynReceived => SocketError::Refused,
                // As on Linux (`tcp_reset`): the peer takes no data after its end of the stream.
                State::CloseWait => SocketError::Broken,
                _ => SocketError::Reset,
            });
        }
        if seg.sequence.since(receiving.nxt) < receiving.window() {
            self.challenge(env);
        } else {
            env.counters.tcp_resets_ignored += 1;
        }
        Verdict::None
    }

    /// Handles the acknowledgement and the window. Returns `false` if the acknowledgement is beyond
    /// what can be true, so that the segment is dropped (RFC 5961, 5.2).
    fn take_acknowledgement(&mut self, env: &mut Env<'_>, seg: &Segment, data: &[u8]) -> bool {
        let clock = self.clock(env.now);
        let window = u32::from(seg.window) << self.scaled(seg);
        let sending = &mut self.sending;
        let number = seg.acknowledgement;
        if number.after(sending.nxt) || number.before(sending.una - sending.max_window) {
            self.challenge(env);
            return false;
        }
        if number.before(sending.una) {
            // Old, but its data counts.
            return true;
        }
        let is_bare = data.is_empty()
            && seg.flags & (SYN | FIN) == 0
            && window == sending.window
            && window > 0;
        let opened = sending.take_window(seg.sequence, number, window);
        let ack = Acknowledgement {
            number,
            blocks: seg.options.sack.as_slice(),
            is_bare,
            echo: seg.options.timestamps.filter(|_| self.timestamps).map(|(_, echo)| echo),
            clock,
            ece: self.ecn == Ecn::On && seg.has(ECE),
        };
        if number.after(sending.una) && self.owner == Owner::None && self.linger.is_none() {
            // The peer still takes what a dropped connection has to send.
            self.give_up_at = Some(env.now + env.config.orphan_timeout);
        }
        sending.acknowledged(env.now, env.pool, env.counters, &ack);
        if opened {
            sending.opened(env.now);
        }
        true
    }

    /// Takes data, urgent pointer and FIN of a segment.
    fn take_data(&mut self, env: &mut Env<'_>, seg: &Segment, data: &[u8]) {
        let start = seg.sequence + u32::from(seg.has(SYN));
        if seg.has(URG) && seg.urgent > 0 {
            // RFC 6093, 3.1: the pointer is to the byte after the urgent data, as all systems have
            // it.
            let end = start + u32::from(seg.urgent);
            let receiving = &mut self.receiving;
            if end.after(receiving.nxt) && receiving.urgent.is_none_or(|urgent| end.after(urgent)) {
                receiving.urgent = Some(end);
            }
        }
        if !data.is_empty() {
            let counts = !self.sending.recovery.selective;
            let delay = match self.acknowledges_at_once {
                true => Duration::ZERO,
                false => env.config.ack_delay,
            };
            let time = (env.now, delay);
            self.receiving.take(time, env.pool, env.counters, (start, data), counts);
        }
        if seg.has(FIN) {
            self.receiving.take_finish(start + data.len() as u32, env.counters);
        } else {
            self.receiving.take_waiting_finish();
        }
        if seg.congested && self.ecn == Ecn::On && self.receiving.due != AckDue::No {
            self.receiving.acknowledge_now();
        }
    }

    /// Follows the transitions that the peer's FIN and the acknowledgement of ours cause.
    fn advance(&mut self) {
        let (ended, finished) = (self.receiving.finished, self.sending.is_finished());
        self.state = match self.state {
            State::Established if ended => State::CloseWait,
            State::FinWait1 if ended && finished => State::TimeWait,
            State::FinWait1 if finished => State::FinWait2,
            State::FinWait1 if ended => State::Closing,
            State::FinWait2 if ended => State::TimeWait,
            State::Closing if finished => State::TimeWait,
            State::LastAck if finished => State::Closed,
            state => state,
        };
    }
}

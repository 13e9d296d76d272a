//! The next segment of a connection, decided before the link is asked, and recorded once the link
//! has taken it: a segment that the link refuses is not lost.

use super::connection::{Connection, Ecn, State};
use super::options::{Block, Written};
use super::receiving::AckDue;
use super::recovery::Forced;
use super::segment::{ACK, CWR, ECE, FIN, Header, PSH, RST, SYN, URG};
use super::sequence::Seq;
use crate::{Counters, Instant};

/// The largest segments of the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// The bytes of a packet that the link segments, without Ethernet and IP headers; 0 if it does
    /// not segment.
    pub(super) large: usize,
    /// The number of segments of such a packet, and their least size.
    pub(super) most_segments: usize,
    pub(super) least_segment: usize,
    /// `true` if memory for buffers is short.
    pub(super) under_pressure: bool,
}

/// The inputs of one plan.
struct Inputs<'a> {
    now: Instant,
    capacity: &'a Capacity,
    /// The options of a segment after the handshake.
    options: Written,
}

/// The kind of a segment, by what is recorded of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    Reset,
    /// Data or a FIN for the first time, or again.
    New(Block),
    Retransmission(Block),
    /// An acknowledgement alone.
    Bare,
    KeepAlive,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) header: Header,
    pub(super) options: Written,
    /// The payload: its offset in the send buffer, and its length.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The payload of a full segment, by which the link segments a larger one.
    pub(super) segment: usize,
    pub(super) kind: Kind,
    /// The end of the window that the segment tells the peer.
    edge: Seq,
    /// `true` if routers may mark the packet instead of dropping it (ECT(0)).
    pub(super) markable: bool,
}

impl Connection {
    /// Returns the next segment to send, if any is due.
    pub(super) fn plan(&mut self, now: Instant, capacity: &Capacity) -> Option<Plan> {
        let inputs = Inputs { now, capacity, options: self.options(now) };
        if self.reset_due {
            return Some(self.segment(&inputs, self.number(), RST | ACK, Kind::Reset));
        }
        match self.state {
            State::Closed => None,
            State::SynSent | State::SynReceived => self.syn_due.then(|| self.plan_syn(now)),
            State::TimeWait => self.plan_bare(&inputs),
            _ => self.plan_synchronized(&inputs),
        }
    }

    fn plan_synchronized(&mut self, inputs: &Inputs<'_>) -> Option<Plan> {
        // A peer without selective acknowledgements counts those without data.
        if self.receiving.duplicates > 0 && !self.sending.recovery.selective {
            return self.plan_bare(inputs);
        }
        let data = match self.sending.recovery.forced {
            Forced::TailLossProbe => self.plan_tail_loss_probe(inputs),
            Forced::WindowProbe => self.plan_window_probe(inputs),
            Forced::None | Forced::Lost if self.sending.scoreboard.has_lost() => {
                self.plan_retransmission(inputs)
            }
            Forced::None | Forced::Lost => {
                self.sending.recovery.forced = Forced::None;
                self.plan_new(inputs, false)
            }
        };
        data.or_else(|| self.plan_keep_alive(inputs)).or_else(|| self.plan_bare(inputs))
    }

    /// Returns the options of a segment after the handshake.
    fn options(&self, now: Instant) -> Written {
        let mut options = Written::default();
        if self.timestamps {
            options.timestamps(self.clock(now), self.receiving.recent);
        }
        if self.sending.recovery.selective {
            options.sack(self.receiving.out_of_order.blocks().as_slice());
        }
        options
    }

    /// Returns a segment without payload.
    fn segment(&self, inputs: &Inputs<'_>, sequence: Seq, flags: u8, kind: Kind) -> Plan {
        let (window, edge) = self.receiving.offer(false, inputs.capacity.under_pressure);
        let mut flags = flags;
        if self.receiving.echo_mark && self.ecn == Ecn::On {
            flags |= ECE;
        }
        let ports = (self.tuple.local.port(), self.tuple.remote.port());
        let options = if flags & RST != 0 { Written::default() } else { inputs.options };
        let header = Header {
            ports,
            sequence,
            acknowledgement: self.receiving.nxt,
            flags,
            window,
            urgent: 0,
        };
        let segment = self.sizes.mss().saturating_sub(options.as_slice().len()).max(1);
        Plan { header, options, offset: 0, len: 0, segment, kind, edge, markable: false }
    }

    /// Returns our SYN, or its repetition in SYN-RECEIVED.
    fn plan_syn(&self, now: Instant) -> Plan {
        let (window, edge) = self.receiving.offer(true, false);
        let answers = self.state == State::SynReceived;
        let mut options = Written::default();
        options.mss(self.sizes.local as u16);
        if !answers || self.sending.recovery.selective {
            options.sack_permitted();
        }
        if !answers || self.timestamps {
            options.timestamps(self.clock(now), self.receiving.recent);
        }
        if !answers || self.receiving.shift > 0 || self.sending.shift > 0 {
            options.window_scale(self.receiving.shift);
        }
        let flags = match (answers, self.ecn) {
            (true, Ecn::On) => SYN | ACK | ECE,
            (true, _) => SYN | ACK,
            // A SYN that was lost may have been dropped for its ECN flags (RFC 3168, 6.1.1.1).
            (false, Ecn::Asked) if self.sending.rtt.backoff() == 0 => SYN | ECE | CWR,
            (false, _) => SYN,
        };
        let header = Header {
            ports: (self.tuple.local.port(), self.tuple.remote.port()),
            sequence: self.sending.una,
            acknowledgement: if answers { self.receiving.nxt } else { Seq(0) },
            flags,
            window,
            urgent: 0,
        };
        let (segment, kind) = (self.sizes.mss(), Kind::Syn);
        Plan { header, options, offset: 0, len: 0, segment, kind, edge, markable: false }
    }

    /// Returns a segment with the data of a block, and the FIN if the block includes it.
    fn with_data(&self, inputs: &Inputs<'_>, block: Block, kind: Kind) -> Plan {
        let (start, end) = block;
        let data_end = self.sending.data_end();
        let len = end.min(data_end).since(start.min(data_end)) as usize;
        let mut flags = ACK;
        if end.after(data_end) {
            flags |= FIN;
        }
        if len > 0 && !end.before(data_end) {
            flags |= PSH;
        }
        let mut plan = self.segment(inputs, start, flags, kind);
        plan.offset = start.since(self.sending.base) as usize;
        plan.len = len;
        if let Some(urgent) = self.sending.urgent
            && urgent.after(start)
        {
            plan.header.flags |= URG;
            plan.header.urgent = urgent.since(start).min(0xffff) as u16;
        }
        if let Kind::New(_) = kind
            && self.ecn == Ecn::On
            && len > 0
        {
            plan.markable = true;
            if self.sending.recovery.tell_reduced {
                plan.header.flags |= CWR;
            }
        }
        plan
    }

    /// Returns the payload of a full segment, and of the largest packet.
    fn most(&self, inputs: &Inputs<'_>) -> (u32, u32) {
        let (options, capacity) = (inputs.options.as_slice().len(), inputs.capacity);
        let full = self.sizes.mss().saturating_sub(options).max(1);
        let headers = super::segment::HEADER_BYTES + options;
        let large = capacity.large.saturating_sub(headers).min(full * capacity.most_segments);
        // The link would repeat one urgent pointer in each segment.
        let is_single = full < capacity.least_segment || self.sending.urgent.is_some();
        let large = if is_single { full } else { large.max(full) };
        (full as u32, large as u32)
    }

    /// Returns a segment with data not sent before, if windows and Nagle's algorithm allow one.
    /// `probe`: the congestion window does not count.
    fn plan_new(&mut self, inputs: &Inputs<'_>, probe: bool) -> Option<Plan> {
        if !self.sending.has_unsent() || self.sending.scoreboard.is_full() {
            return None;
        }
        self.sending.note_pause(inputs.now);
        let (full, large) = self.most(inputs);
        let sending = &mut self.sending;
        let unsent = sending.data_end().since(sending.nxt.min(sending.data_end()));
        let usable = sending.usable();
        let window = match probe {
            true => full,
            false => sending.congestion.window().saturating_sub(sending.in_flight()),
        };
        if window < unsent.min(full) || window < unsent && window <= usable {
            sending.limited = Some(sending.nxt);
        }
        if unsent == 0 {
            // The FIN alone.
            let fin = (sending.nxt, sending.nxt + 1);
            return (usable > 0).then(|| self.with_data(inputs, fin, Kind::New(fin)));
        }
        let room = usable.min(window).min(if probe { full } else { large });
        let mut len = unsent.min(room);
        if len > full && len < unsent {
            len -= len % full;
        }
        let tail = len % full;
        let is_all = len == unsent;
        // Nagle's algorithm (RFC 9293, 3.7.4, as Minshall refined it): one small segment at a time.
        let may_end_small = is_all && tail > 0 && (probe || sending.may_send_small(inputs.now));
        let is_half_window = len > 0 && len >= sending.max_window / 2;
        if tail > 0 && !may_end_small && !(len < full && is_half_window) {
            len -= tail;
        }
        if len == 0 {
            return None;
        }
        let fin = is_all && len == unsent && sending.finish;
        let block = (sending.nxt, sending.nxt + len + u32::from(fin));
        Some(self.with_data(inputs, block, Kind::New(block)))
    }

    /// Returns lost data, if the congestion window allows it.
    fn plan_retransmission(&mut self, inputs: &Inputs<'_>) -> Option<Plan> {
        let (full, large) = self.most(inputs);
        let sending = &self.sending;
        // A closed window is probed with one segment per timeout.
        if sending.is_closed() && sending.recovery.forced != Forced::Lost {
            return None;
        }
        let mut room = sending.congestion.window().saturating_sub(sending.in_flight()).min(large);
        if sending.recovery.forced == Forced::Lost {
            room = room.max(full);
        }
        if room > full {
            room -= room % full;
        }
        let (start, mut end) = sending.scoreboard.first_lost(large)?;
        if room < end.since(start).min(full) {
            return None;
        }
        end = end.min(start + room);
        let block = (start, end);
        Some(self.with_data(inputs, block, Kind::Retransmission(block)))
    }

    /// Returns a tail loss probe: new data, or else the last segment again (RFC 8985, 7.3).
    fn plan_tail_loss_probe(&mut self, inputs: &Inputs<'_>) -> Option<Plan> {
        if let Some(plan) = self.plan_new(inputs, true) {
            return Some(plan);
        }
        let (full, _) = self.most(inputs);
        let Some(block) = self.sending.scoreboard.last(full) else {
            self.sending.recovery.forced = Forced::None;
            return None;
        };
        Some(self.with_data(inputs, block, Kind::Retransmission(block)))
    }

    /// Returns a zero-window probe: as much as it has room for, at least one byte
    /// (RFC 9293, 3.8.6.1).
    fn plan_window_probe(&mut self, inputs: &Inputs<'_>) -> Option<Plan> {
        let (full, _) = self.most(inputs);
        let sending = &mut self.sending;
        if !sending.has_unsent() {
            sending.recovery.forced = Forced::None;
            return None;
        }
        let left = sending.end().since(sending.nxt);
        let len = left.min(sending.usable().clamp(1, full));
        let block = (sending.nxt, sending.nxt + len);
        let mut plan = self.with_data(inputs, block, Kind::New(block));
        // RFC 3168, 6.1.6: a probe's loss would go unnoticed.
        plan.markable = false;
        plan.header.flags &= !CWR;
        Some(plan)
    }

    /// Returns a keep-alive: a number that the peer has acknowledged, so that it answers
    /// (RFC 9293, 3.8.4).
    fn plan_keep_alive(&self, inputs: &Inputs<'_>) -> Option<Plan> {
        let before = self.sending.una - 1;
        self.probe_due.then(|| self.segment(inputs, before, ACK, Kind::KeepAlive))
    }

    /// Returns an acknowledgement, if one is due.
    fn plan_bare(&self, inputs: &Inputs<'_>) -> Option<Plan> {
        let due = match self.receiving.due {
            AckDue::Now => true,
            AckDue::At(at) => at <= inputs.now,
            AckDue::No => false,
        };
        if !due {
            return None;
        }
        Some(self.segment(inputs, self.number(), ACK, Kind::Bare))
    }

    /// Returns the number of a segment without data: SND.NXT, but not beyond the peer's window,
    /// where a probe may lie, since the peer would not accept it.
    fn number(&self) -> Seq {
        let sending = &self.sending;
        sending.nxt.min(sending.una + sending.window)
    }

    /// Records that the link took the segment.
    pub(super) fn sent(&mut self, now: Instant, plan: &Plan, counters: &mut Counters) {
        counters.tcp_sent += 1;
        self.receiving.advertised(plan.edge);
        if plan.header.flags & ACK != 0 {
            self.receiving.note_acknowledged();
        }
        if let Kind::New((start, _)) | Kind::Retransmission((start, _)) = plan.kind
            && plan.len >= plan.segment
        {
            self.note_full(start + plan.segment as u32);
        }
        match plan.kind {
            Kind::Syn => {
                self.syn_due = false;
                if self.sending.is_outstanding() {
                    counters.tcp_retransmitted += 1;
                } else {
                    self.syn_at = now;
                }
                self.sending.nxt = self.sending.una + 1;
                self.sending.last_sent = now;
            }
            Kind::Reset => {
                counters.tcp_resets_sent += 1;
                self.reset_due = false;
            }
            Kind::New((start, end)) => {
                if plan.header.flags & CWR != 0 {
                    self.sending.recovery.tell_reduced = false;
                }
                let probes = self.sending.recovery.forced == Forced::WindowProbe;
                if !plan.len.is_multiple_of(plan.segment) && !probes {
                    self.sending.small = Some(end);
                }
                // What waited longest has left.
                self.sending.cork_again();
                self.sending.note_sent(now, start, end);
            }
            Kind::Retransmission(block) => {
                counters.tcp_retransmitted += 1;
                let clock = self.clock(now);
                self.sending.note_retransmission(now, block, clock);
            }
            Kind::Bare => {}
            Kind::KeepAlive => self.probe_due = false,
        }
    }
}

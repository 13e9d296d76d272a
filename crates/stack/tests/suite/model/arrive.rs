//! The oracle's transitions for segments: RFC 9293, 3.10.7, with the challenges of RFC 5961 and the
//! timestamps of RFC 7323.

use towpath_stack::SocketError;

use crate::model::oracle::State::{
    CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent,
    TimeWait,
};
use crate::model::oracle::{Answer, Choices, Oracle, at_least};
use crate::wire::{ACK, FIN, RST, SYN, Segment, TcpOption};

impl Oracle {
    /// The arrival of a segment, 3.10.7.
    pub fn arrive(&self, now: u64, segment: &Segment, old_stamp: bool) -> Choices {
        match self.state {
            Closed => self.arrive_closed(now, segment),
            SynSent => self.arrive_syn_sent(segment),
            TimeWait => self.arrive_time_wait(now, segment),
            SynReceived => {
                let mut choices = self.arrive_synchronized(now, segment, old_stamp);
                // 3.5.2, group 2, does not ask for the sequence number.
                let flags = segment.flags & (RST | ACK);
                if flags == ACK && segment.acknowledgement != self.nxt {
                    choices.push((self.clone(), Answer::Reset(segment.acknowledgement, None)));
                }
                choices
            }
            _ => self.arrive_synchronized(now, segment, old_stamp),
        }
    }

    /// 3.10.7.1 and 3.10.7.2: without a connection.
    fn arrive_closed(&self, now: u64, segment: &Segment) -> Choices {
        let same = self.clone();
        if segment.has(RST) {
            return vec![(same, Answer::Nothing)];
        }
        if segment.has(ACK) {
            return vec![(same, Answer::Reset(segment.acknowledgement, None))];
        }
        if self.listening && segment.has(SYN) && !self.held {
            return vec![(self.accept_syn(now, segment), Answer::Syn)];
        }
        if self.listening && !segment.has(SYN) {
            return vec![(same, Answer::Nothing)];
        }
        vec![(same, Answer::Reset(0, Some(segment.end())))]
    }

    /// Returns the connection that a SYN to a listener begins.
    fn accept_syn(&self, now: u64, segment: &Segment) -> Oracle {
        let mut next = Oracle::new(true);
        next.state = SynReceived;
        next.since = now;
        next.receive_syn(segment);
        next
    }

    fn receive_syn(&mut self, segment: &Segment) {
        self.irs = segment.sequence;
        self.rcv_nxt = segment.sequence.wrapping_add(1);
        self.rcv_edge = self.rcv_nxt.wrapping_add(self.first_window.into());
        self.wl1 = self.irs;
        self.told = self.rcv_nxt;
        self.stamps = segment.timestamps().is_some();
        self.max_window = u32::from(segment.window);
        self.shrunk = segment.window == 0;
        let shift = segment.options.iter().find_map(|option| match option {
            TcpOption::WindowScale(shift) => Some(*shift),
            _ => None,
        });
        self.shifts = shift.map_or((0, 0), |shift| (shift, self.shifts.1));
    }

    /// 3.10.7.3.
    fn arrive_syn_sent(&self, segment: &Segment) -> Choices {
        let same = self.clone();
        let acceptable = segment.acknowledgement == self.nxt;
        if segment.has(ACK) && !acceptable {
            let reset = Answer::Reset(segment.acknowledgement, None);
            return vec![(same, if segment.has(RST) { Answer::Nothing } else { reset })];
        }
        if segment.has(RST) {
            if !segment.has(ACK) {
                return vec![(same, Answer::Nothing)];
            }
            return vec![(same.with(|o| o.end(Some(SocketError::Refused))), Answer::Nothing)];
        }
        if !segment.has(SYN) {
            return vec![(same, Answer::Nothing)];
        }
        let mut next = same;
        next.receive_syn(segment);
        if segment.has(ACK) {
            next.state = Established;
            next.una = segment.acknowledgement;
            next.edge = next.una.wrapping_add(segment.window.into());
            return vec![(next, Answer::MustAck)];
        }
        next.state = SynReceived;
        next.edge = next.nxt.wrapping_add(segment.window.into());
        vec![(next, Answer::Syn)]
    }

    /// 3.10.7.4 in TIME-WAIT, where only the peer's FIN should arrive.
    fn arrive_time_wait(&self, now: u64, segment: &Segment) -> Choices {
        let same = self.clone();
        if segment.has(RST) {
            // RFC 1337, 3: a stack may ignore resets in TIME-WAIT.
            let mut choices = vec![(same.clone(), Answer::Nothing)];
            if segment.sequence == self.rcv_nxt {
                choices.push((same.with(|o| o.end(None)), Answer::Nothing));
            }
            return choices;
        }
        if segment.has(SYN) {
            return self.receive_late_syn(now, segment);
        }
        if segment.has(FIN) && segment.end() == self.rcv_nxt {
            let again = same.clone().with(|o| o.since = now);
            return vec![(again, Answer::Challenge), (same, Answer::Challenge)];
        }
        // Whether any other segment restarts the time does not matter to the peer.
        let again = same.clone().with(|o| o.since = now);
        vec![(same, Answer::MayAck), (again, Answer::MayAck)]
    }

    /// 3.10.7.4, first: returns `true` if the segment is acceptable.
    pub fn acceptable(&self, segment: &Segment) -> bool {
        let window = self.rcv_edge.wrapping_sub(self.rcv_nxt);
        let len = segment.end().wrapping_sub(segment.sequence);
        let within = |number: u32| number.wrapping_sub(self.rcv_nxt) < window;
        match (len, window) {
            (0, 0) => segment.sequence == self.rcv_nxt,
            (0, _) => within(segment.sequence),
            (_, 0) => false,
            _ => within(segment.sequence) || within(segment.end().wrapping_sub(1)),
        }
    }

    /// 3.10.7.4.
    fn arrive_synchronized(&self, now: u64, segment: &Segment, old_stamp: bool) -> Choices {
        let same = self.clone();
        let exact = segment.sequence == self.rcv_nxt;
        // RFC 7323, 5.3 R1: before the check of the sequence number.
        if self.stamps && !segment.has(RST) && old_stamp {
            return vec![(same, Answer::Challenge)];
        }
        if segment.has(SYN) && !segment.has(RST) {
            return self.receive_late_syn(now, segment);
        }
        if !self.acceptable(segment) {
            return self.receive_unacceptable(now, segment);
        }
        if segment.has(RST) {
            return self.receive_reset(exact);
        }
        if !segment.has(ACK) {
            return vec![(same, Answer::Nothing)];
        }
        let mut choices = self.receive_acknowledgement(now, segment);
        // No sender puts data under the number of its SYN.
        if self.state == SynReceived && !at_least(segment.sequence, self.rcv_nxt) {
            choices.push((same, Answer::Challenge));
        }
        choices
    }

    /// First: a segment that is not acceptable.
    fn receive_unacceptable(&self, now: u64, segment: &Segment) -> Choices {
        let same = self.clone();
        if segment.has(RST) {
            return vec![(same, Answer::Nothing)];
        }
        let empty = segment.end() == segment.sequence;
        let limited = empty || self.state == SynReceived;
        let answer = if limited { Answer::Challenge } else { Answer::MustAck };
        let mut choices = vec![(same, answer)];
        if !segment.has(ACK) {
            return choices;
        }
        // The acknowledgement may count if the data is old, or if it comes after a full window.
        let edge = segment.sequence == self.rcv_edge;
        if edge || at_least(self.rcv_nxt, segment.end()) {
            let mut bare = segment.clone();
            bare.payload.clear();
            bare.flags &= !FIN;
            for (next, usual) in self.receive_acknowledgement(now, &bare) {
                let optional = usual == Answer::MayAck && empty && edge;
                let refused = matches!(usual, Answer::Challenge | Answer::Reset(..));
                let keeps = optional || refused || next.state == Closed;
                choices.push((next, if keeps { usual } else { answer }));
            }
        }
        choices
    }

    /// Second: the RST bit, of an acceptable segment.
    fn receive_reset(&self, exact: bool) -> Choices {
        let same = self.clone();
        if !exact {
            return vec![(same, Answer::Challenge)];
        }
        // As on Linux: after the peer's end of the stream, only a write can fail.
        let error = match self.state {
            CloseWait => SocketError::Broken,
            _ => SocketError::Reset,
        };
        let reset = same.clone().with(|o| o.end(Some(error)));
        match self.state {
            SynReceived if self.active => {
                vec![(same.with(|o| o.end(Some(SocketError::Refused))), Answer::Nothing)]
            }
            // All data has arrived: the connection is closed rather than reset.
            Closing | LastAck => {
                vec![(same.with(|o| o.end(None)), Answer::Nothing), (reset, Answer::Nothing)]
            }
            _ => vec![(reset, Answer::Nothing)],
        }
    }

    /// Fourth: the SYN bit.
    fn receive_late_syn(&self, now: u64, segment: &Segment) -> Choices {
        let same = self.clone();
        match self.state {
            // A repeated SYN gets a repeated answer; another one may begin anew (3.10.7.4, fourth).
            SynReceived => {
                let mut choices = vec![(same.clone(), Answer::MaySyn)];
                if !self.active && !segment.has(ACK) && segment.sequence != self.irs {
                    choices.push((self.accept_syn(now, segment), Answer::Syn));
                }
                // The acknowledgement of a simultaneous open may come with the SYN again.
                if self.active && segment.has(ACK) && segment.acknowledgement == self.nxt {
                    let mut next = same;
                    next.establish(segment);
                    choices.push((next, Answer::MayAck));
                }
                choices
            }
            // RFC 9293, MAY-2 and RFC 6191: a newer SYN may begin a new connection.
            TimeWait => {
                let newer = at_least(segment.sequence, self.rcv_nxt) || self.stamps;
                let mut choices = vec![(same, Answer::Challenge)];
                if newer && !segment.has(ACK) && !self.held {
                    choices.push(match self.listening {
                        true => (self.accept_syn(now, segment), Answer::Syn),
                        // Or it is refused, as without the old connection.
                        false => (self.clone(), Answer::Reset(0, Some(segment.end()))),
                    });
                }
                choices
            }
            _ => vec![(same, Answer::Challenge)],
        }
    }

    fn establish(&mut self, segment: &Segment) {
        self.state = if self.finishing { FinWait1 } else { Established };
        self.una = segment.acknowledgement;
        self.wl1 = segment.sequence;
        self.note_window(segment);
    }

    fn note_window(&mut self, segment: &Segment) {
        let shift = if segment.has(SYN) { 0 } else { self.shifts.0 };
        let window = u32::from(segment.window) << shift;
        // An old segment moves the window and does not change it.
        let is_old = !at_least(segment.sequence, self.wl1);
        self.wl1 = if is_old { self.wl1 } else { segment.sequence };
        let open = if is_old { self.max_window } else { window };
        self.max_window = self.max_window.max(open);
        let edge = segment.acknowledgement.wrapping_add(open);
        self.shrunk |= !at_least(edge, self.edge) || window == 0;
        if at_least(edge, self.edge) || self.state == SynReceived {
            self.edge = edge;
        }
    }

    /// Fifth: the ACK bit.
    fn receive_acknowledgement(&self, now: u64, segment: &Segment) -> Choices {
        let mut next = self.clone();
        let acknowledged = segment.acknowledgement;
        if self.state == SynReceived {
            if acknowledged != self.nxt {
                return vec![(next, Answer::Reset(acknowledged, None))];
            }
            next.edge = acknowledged;
            next.establish(segment);
            return next.receive_data(now, segment);
        }
        // RFC 5961, 5.2.
        let oldest = self.una.wrapping_sub(self.max_window);
        if !at_least(acknowledged, oldest) || !at_least(self.nxt, acknowledged) {
            return vec![(next, Answer::Challenge)];
        }
        if at_least(acknowledged, next.una) {
            // Only such an acknowledgement tells a window (RFC 9293, 3.10.7.4).
            next.note_window(segment);
            // The peer still takes what a dropped connection has to send.
            if acknowledged != next.una {
                next.dropped = next.dropped.map(|_| now);
            }
            next.una = acknowledged;
        }
        if next.fin_acknowledged() {
            match next.state {
                FinWait1 => next.state = FinWait2,
                Closing => {
                    next.state = TimeWait;
                    next.since = now;
                }
                LastAck => {
                    next.end(None);
                    return vec![(next, Answer::Nothing)];
                }
                _ => {}
            }
        }
        next.receive_data(now, segment)
    }
}

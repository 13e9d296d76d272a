//! The oracle's streams: received data and FIN (RFC 9293, 3.10.7.4, sixth to eighth), and the
//! application's calls (3.10.1 to 3.10.5).

use towpath_stack::{Shutdown, SocketError};

use crate::model::oracle::{Answer, Choices, Oracle, State, at_least};
use crate::wire::{FIN, Segment};

/// The most bytes that the stack holds of written data.
pub const SEND_BUFFER_BYTES: u32 = 16 * 1024;

impl Oracle {
    /// Returns `true` if the connection takes data of the peer.
    pub fn receives(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Takes the data and the FIN of an acceptable segment.
    pub fn receive_data(self, now: u64, segment: &Segment) -> Choices {
        let data_end = segment.sequence.wrapping_add(segment.payload.len() as u32);
        if segment.payload.is_empty() && !segment.has(FIN) {
            return vec![(self, Answer::MayAck)];
        }
        if !self.receives() {
            return vec![(self, Answer::MayAck)];
        }
        // RFC 1122, 4.2.2.13: data after the application's close should be answered with a reset.
        let is_new = !at_least(self.rcv_nxt, data_end);
        let mut choices = Vec::new();
        if self.dropped.is_some() && is_new && !segment.payload.is_empty() {
            choices.push((self.clone().with(|o| o.end(None)), Answer::Abort));
        }
        let late = !at_least(self.rcv_nxt, segment.sequence);
        let answer = if late { Answer::MustAck } else { Answer::MayAck };
        let trimmed = !at_least(self.rcv_edge, data_end);
        let mut next = self;
        next.keep(segment.sequence, if trimmed { next.rcv_edge } else { data_end });
        if segment.has(FIN) && !trimmed {
            // The FIN itself may be just outside of the window.
            if data_end == next.rcv_edge {
                choices.push((next.clone().advanced(now), answer));
            }
            next.fin_at = Some(data_end);
        }
        choices.push((next.advanced(now), answer));
        choices
    }

    fn keep(&mut self, from: u32, to: u32) {
        if !at_least(self.rcv_nxt, to) {
            self.ahead.push((from, to));
        }
    }

    /// Moves data out of `ahead` once no gap is before it.
    fn advanced(mut self, now: u64) -> Oracle {
        let before = self.rcv_nxt;
        while let Some(&(_, to)) = self
            .ahead
            .iter()
            .find(|(from, to)| at_least(self.rcv_nxt, *from) && !at_least(self.rcv_nxt, *to))
        {
            self.rcv_nxt = to;
        }
        let nxt = self.rcv_nxt;
        self.ahead.retain(|(_, to)| !at_least(nxt, *to));
        if self.dropped.is_none() && !self.read_shut {
            self.unread += nxt.wrapping_sub(before);
        }
        if self.fin_at == Some(nxt) {
            self.fin_at = None;
            self.ended = true;
            self.rcv_nxt = nxt.wrapping_add(1);
            if at_least(self.rcv_nxt, self.rcv_edge) {
                self.rcv_edge = self.rcv_nxt;
            }
            self.since = now;
            self.state = match self.state {
                State::Established => State::CloseWait,
                State::FinWait1 => State::Closing,
                State::FinWait2 => State::TimeWait,
                state => state,
            };
        }
        if self.rcv_nxt != before {
            self.owed.get_or_insert(now);
        }
        self
    }

    /// 3.10.1: OPEN.
    pub fn connect(&self, now: u64) -> (Result<(), SocketError>, Choices) {
        if self.listening || self.state != State::Closed {
            let kept = vec![(self.clone(), Answer::Nothing)];
            return (Err(SocketError::AddressInUse), kept);
        }
        let mut next = Oracle::new(self.listening);
        next.state = State::SynSent;
        next.active = true;
        next.held = true;
        next.since = now;
        (Ok(()), vec![(next, Answer::Syn)])
    }

    /// 3.10.2: SEND. Returns the bytes that the stack takes at most.
    pub fn send(&mut self, len: usize) -> Result<usize, SocketError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.state {
            State::SynSent | State::SynReceived => Err(SocketError::WouldBlock),
            State::Established | State::CloseWait => {
                let start = self.iss.unwrap_or(0).wrapping_add(1);
                let held = self.written.wrapping_sub(self.una.wrapping_sub(start));
                match len.min((SEND_BUFFER_BYTES - held) as usize) {
                    0 => Err(SocketError::WouldBlock),
                    most => Ok(most),
                }
            }
            _ => Err(SocketError::Closed),
        }
    }

    /// 3.10.3: RECEIVE.
    pub fn receive(&mut self, len: usize) -> Result<usize, SocketError> {
        // Once the peer has ended the stream, an error concerns sending.
        let ended = self.ended;
        if self.read_shut {
            let error = self.error.take_if(|_| !ended);
            return error.map_or(Ok(0), Err);
        }
        if self.unread > 0 {
            return Ok(len.min(self.unread as usize));
        }
        if ended {
            return Ok(0);
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.state {
            State::SynSent | State::SynReceived => Err(SocketError::WouldBlock),
            _ if self.receives() => Err(SocketError::WouldBlock),
            _ => Ok(0),
        }
    }

    fn finish(&mut self) {
        self.finishing |= matches!(self.state, State::Established | State::CloseWait);
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            state => state,
        };
    }

    /// 3.10.4: CLOSE of one direction, or both, which had this result. Returns no choice if the
    /// result is wrong.
    pub fn shutdown(&self, how: Shutdown, found: Result<(), SocketError>) -> Choices {
        let mut next = self.clone();
        let refuses = matches!(self.state, State::SynReceived | State::TimeWait | State::Closed);
        match found {
            Err(SocketError::NotConnected) if refuses => return vec![(next, Answer::Nothing)],
            Ok(()) if self.state == State::SynSent => {
                return vec![(next.with(|o| o.end(Some(SocketError::Reset))), Answer::Nothing)];
            }
            Ok(()) if !refuses => {}
            _ => return Vec::new(),
        }
        if how != Shutdown::Read {
            next.finish();
        }
        if how != Shutdown::Write {
            next.read_shut = true;
            next.unread = 0;
        }
        vec![(next, Answer::MayAck)]
    }

    /// 3.10.4: the application drops the connection.
    pub fn close(&self, now: u64) -> Choices {
        let mut next = self.clone();
        next.held = false;
        next.error = None;
        let unread = std::mem::take(&mut next.unread) > 0;
        match self.state {
            State::Closed => vec![(next, Answer::Nothing)],
            State::SynSent => vec![(next.with(|o| o.end(None)), Answer::Nothing)],
            State::TimeWait => {
                next.dropped = Some(now);
                vec![(next, Answer::MayAck)]
            }
            // RFC 1122, 4.2.2.13: the peer learns that data was lost.
            _ if unread || self.state == State::SynReceived => {
                vec![(next.with(|o| o.end(None)), Answer::Abort)]
            }
            _ => {
                next.finish();
                next.dropped = Some(now);
                vec![(next, Answer::MayAck)]
            }
        }
    }

    /// 3.10.5: ABORT.
    pub fn abort(&self) -> Choices {
        let error = self.error.or(Some(SocketError::Aborted));
        let aborted = self.clone().with(|o| o.end(error));
        let lost = aborted.clone().with(|o| o.unread = 0);
        match self.state {
            // Before the reset of the first abort is sent, a second one may count.
            State::Closed => vec![(self.clone(), Answer::Nothing), (aborted, Answer::Nothing)],
            State::SynSent => vec![(aborted, Answer::Nothing)],
            // The connection is over: there is nothing to abort.
            State::TimeWait => {
                let ended = self.clone().with(|o| o.end(None));
                let same = (self.clone(), Answer::Nothing);
                vec![same, (ended, Answer::Nothing), (aborted, Answer::Nothing)]
            }
            State::Closing | State::LastAck => {
                vec![
                    (aborted.clone(), Answer::Nothing),
                    (aborted, Answer::Abort),
                    (lost, Answer::Abort),
                ]
            }
            _ => vec![(aborted, Answer::Abort), (lost, Answer::Abort)],
        }
    }

    /// The passing of time: the oracles after the time limits that may, or must, be over. A full
    /// link may hold timers up.
    pub fn pass(&self, now: u64, limits: &Limits, is_full: bool) -> Choices {
        let mut choices = Vec::new();
        let mut stays = true;
        let mut over = |since: u64, limit: u64| {
            let passed = now.saturating_sub(since);
            stays &= passed <= limit + limits.slack;
            passed >= limit
        };
        let timed_out = Some(SocketError::TimedOut);
        let ended = match self.state {
            State::SynSent => over(self.since, limits.connect),
            State::SynReceived if self.active => over(self.since, limits.connect),
            State::SynReceived => over(self.since, limits.half_open),
            State::TimeWait => over(self.since, limits.time_wait),
            _ => self.dropped.is_some_and(|since| over(since, limits.orphan)),
        };
        if ended {
            let error = timed_out.filter(|_| self.state != State::TimeWait);
            let next = self.clone().with(|o| o.end(error));
            choices.push((next.clone(), Answer::MayAck));
            choices.push((next, Answer::Abort));
        }
        if stays || is_full {
            choices.push((self.clone(), Answer::MaySyn));
        }
        choices
    }
}

/// The time limits of the stack, in microseconds.
pub struct Limits {
    pub connect: u64,
    pub half_open: u64,
    pub time_wait: u64,
    pub orphan: u64,
    /// The time by which each may be exceeded.
    pub slack: u64,
}

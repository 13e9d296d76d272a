//! What the stack does against what an oracle allows.

use towpath_stack::TcpState;

use crate::model::oracle::{Answer, Oracle, State, at_least};
use crate::wire::{ACK, FIN, RST, SYN, Segment, TcpOption};

/// The time by which data must be acknowledged (RFC 9293, MUST-40), in microseconds.
const ACKNOWLEDGEMENT_US: u64 = 500_000;
/// The time within which a second challenge may be missing, in microseconds.
const CHALLENGE_US: u64 = 500_000;

/// What an event made the stack do.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub now: u64,
    pub sent: Vec<Segment>,
    /// Connections and TIME-WAIT entries.
    pub sizes: (usize, usize),
    /// Of the connection that the application holds.
    pub state: Option<TcpState>,
    pub unread: Option<usize>,
    /// `true` if the stack counted answers that it did not send.
    pub limited: bool,
    /// `true` if the link has no room, so that answers come later.
    pub blocked: bool,
    /// `true` if the link had none before the event: answers to earlier events may come now.
    pub late: bool,
}

/// Returns the byte of the stack's stream at this offset, and of the peer's at this number.
pub fn byte(at: u32) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

fn ensure(right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(what()) }
}

/// Compares an observation with an oracle after an event, and lets the oracle learn from it.
pub fn compare(oracle: &mut Oracle, answer: Answer, seen: &Observation) -> Result<(), String> {
    let mut counts = Counts::default();
    for segment in &seen.sent {
        oracle.check(segment, answer, seen, &mut counts)?;
    }
    // After both sides opened at once, the stack repeats its SYN instead of a challenge, at its time.
    let both_opened = oracle.active && oracle.state == State::SynReceived;
    if !seen.blocked && !seen.late {
        let just = oracle.challenged.is_some_and(|at| seen.now < at + CHALLENGE_US) || both_opened;
        // An acknowledgement that is due goes with any event.
        if oracle.owed.is_some() && matches!(answer, Answer::Nothing | Answer::Reset(..)) {
            counts.pure = 0;
        }
        // A SYN may go again after the reset that ends the peer's older connection.
        if oracle.state == State::SynSent && matches!(answer, Answer::Reset(..)) {
            counts.syns = counts.syns.saturating_sub(1);
        }
        counts.compare(answer, seen, just)?;
    }
    let counts = matches!(answer, Answer::Challenge | Answer::MustAck | Answer::MaySyn);
    if (counts || both_opened || oracle.state == State::TimeWait)
        && (seen.blocked || both_opened || !seen.sent.is_empty())
    {
        oracle.challenged = Some(seen.now);
    }
    // What ends keeps its place until its last segment is sent.
    ensure(seen.blocked || seen.sizes == oracle.sizes(), || {
        format!("{:?} connections and TIME-WAIT entries, not {:?}", seen.sizes, oracle.sizes())
    })?;
    if oracle.held {
        let class = Some(oracle.class());
        ensure(seen.state == class, || format!("the state is {:?}, not {class:?}", seen.state))?;
        let unread = Some(oracle.unread as usize);
        ensure(seen.unread == unread, || format!("{:?} bytes, not {unread:?}", seen.unread))?;
    }
    if oracle.told == oracle.rcv_nxt {
        oracle.owed = None;
    }
    if let Some(since) = oracle.owed
        && oracle.is_synchronized()
    {
        let late = seen.now > since + ACKNOWLEDGEMENT_US && !seen.blocked;
        ensure(!late, || "an acknowledgement is late".to_string())?;
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    resets: usize,
    syns: usize,
    pure: usize,
    data: usize,
}

impl Counts {
    /// Compares the number of segments of each kind with the answer.
    fn compare(&self, answer: Answer, seen: &Observation, just: bool) -> Result<(), String> {
        let Counts { resets, syns, pure, data } = *self;
        let total = resets + syns + pure + data;
        let right = match answer {
            Answer::Nothing => total == 0,
            Answer::MayAck => resets + syns == 0,
            Answer::MustAck => resets + syns == 0 && pure + data > 0,
            Answer::Challenge => resets + syns == 0 && (pure + data > 0 || just),
            Answer::Reset(..) => {
                (resets == 1 || (resets == 0 && seen.limited)) && syns + pure + data == 0
            }
            Answer::Abort => resets == 1 && syns == 0,
            Answer::Syn => syns == 1 && resets + data == 0,
            Answer::MaySyn => resets == 0,
        };
        ensure(right, || {
            format!("{answer:?}, and {resets} RST, {syns} SYN, {pure} without and {data} with data")
        })
    }
}

impl Oracle {
    /// Checks a segment that the stack sent.
    fn check(
        &mut self,
        segment: &Segment,
        answer: Answer,
        seen: &Observation,
        counts: &mut Counts,
    ) -> Result<(), String> {
        if segment.has(RST) {
            counts.resets += 1;
            return self.check_reset(segment, answer, seen);
        }
        if segment.has(SYN) {
            counts.syns += 1;
            // It may have waited for room in the link.
            let ended = seen.late && !matches!(self.state, State::SynSent | State::SynReceived);
            return if ended { Ok(()) } else { self.check_syn(segment) };
        }
        if segment.payload.is_empty() && !segment.has(FIN) {
            counts.pure += 1;
        } else {
            counts.data += 1;
        }
        if seen.late && matches!(self.state, State::Closed | State::TimeWait) {
            self.told = segment.acknowledgement;
            return Ok(());
        }
        // A connection that ended with this event may have sent before.
        ensure(self.is_synchronized() || answer == Answer::Abort || seen.late, || {
            "a segment without a connection".to_string()
        })?;
        ensure(segment.has(ACK), || "a segment without ACK".to_string())?;
        let acknowledged = segment.acknowledgement;
        let right = acknowledged == self.rcv_nxt
            || (seen.late && at_least(self.rcv_nxt, acknowledged))
            || answer == Answer::Abort;
        ensure(right, || format!("acknowledges {acknowledged}, not {}", self.rcv_nxt))?;
        self.told = acknowledged;
        let window = u32::from(segment.window) << self.shifts.1;
        let edge = acknowledged.wrapping_add(window);
        let rounded = edge.wrapping_add((1 << self.shifts.1) - 1);
        let right = self.state == State::TimeWait || at_least(rounded, self.rcv_edge);
        ensure(right, || format!("the window's end goes back from {} to {edge}", self.rcv_edge))?;
        if at_least(edge, self.rcv_edge) {
            self.rcv_edge = edge;
        }
        ensure(segment.timestamps().is_some() == self.stamps, || "timestamps".to_string())?;
        self.check_data(segment, seen)
    }

    /// Returns `true` if a segment without data may have this number.
    fn may_begin_at(&self, sequence: u32) -> bool {
        let within = at_least(self.nxt, sequence) && at_least(sequence, self.una);
        sequence == self.nxt || within && self.shrunk
    }

    fn check_data(&mut self, segment: &Segment, seen: &Observation) -> Result<(), String> {
        let Some(iss) = self.iss else { return Err("data before a SYN".to_string()) };
        let at = segment.sequence.wrapping_sub(iss.wrapping_add(1));
        let len = segment.payload.len() as u32;
        if len == 0 && !segment.has(FIN) {
            let right = self.may_begin_at(segment.sequence)
                || (seen.late && at_least(self.nxt, segment.sequence));
            return ensure(right, || {
                format!("the number of an acknowledgement is {at}, not {}", self.nxt)
            });
        }
        ensure(at.checked_add(len).is_some_and(|end| end <= self.written), || {
            format!("data up to {at} + {len} of {}", self.written)
        })?;
        let content = segment.payload.iter().zip(at..).all(|(found, at)| *found == byte(at));
        ensure(content, || format!("wrong data from {at}"))?;
        if segment.has(FIN) {
            ensure(self.finishing && at + len == self.written, || {
                format!("a FIN at {at} + {len}")
            })?;
        }
        let end = segment.end();
        ensure(!at_least(self.una, end), || format!("data up to {at} + {len} is acknowledged"))?;
        // A probe of a closed window has one byte, or what the stack has sent before.
        let fits = at_least(self.edge, end) || at_least(self.nxt, end);
        let probes = end.wrapping_sub(segment.sequence) == 1;
        self.shrunk |= !fits;
        ensure(fits || probes, || {
            format!("{at} + {len} is beyond the window, which ends at {}", self.edge)
        })?;
        if at_least(end, self.nxt) {
            self.nxt = end;
        }
        Ok(())
    }

    fn check_syn(&mut self, segment: &Segment) -> Result<(), String> {
        let answers = segment.has(ACK);
        let right = if answers { State::SynReceived } else { State::SynSent };
        ensure(self.state == right, || format!("a SYN in {:?}", self.state))?;
        ensure(!answers || segment.acknowledgement == self.rcv_nxt, || {
            format!("acknowledges {}, not {}", segment.acknowledgement, self.rcv_nxt)
        })?;
        let first = *self.iss.get_or_insert(segment.sequence);
        ensure(first == segment.sequence, || "another initial number".to_string())?;
        self.una = first;
        self.nxt = first.wrapping_add(1);
        self.first_window = segment.window;
        if answers {
            ensure(segment.timestamps().is_some() == self.stamps, || "timestamps".to_string())?;
            let edge = self.rcv_nxt.wrapping_add(segment.window.into());
            if at_least(edge, self.rcv_edge) {
                self.rcv_edge = edge;
            }
        }
        for option in &segment.options {
            if let TcpOption::WindowScale(shift) = option {
                self.shifts.1 = *shift;
            }
        }
        Ok(())
    }

    fn check_reset(
        &self,
        segment: &Segment,
        answer: Answer,
        seen: &Observation,
    ) -> Result<(), String> {
        let numbers = (segment.sequence, segment.has(ACK).then_some(segment.acknowledgement));
        match answer {
            _ if seen.late => Ok(()),
            Answer::Reset(sequence, acknowledged) => {
                ensure(numbers == (sequence, acknowledged), || format!("RST with {numbers:?}"))
            }
            Answer::Abort => ensure(self.may_begin_at(segment.sequence), || {
                format!("RST with {numbers:?}, not {}", self.nxt)
            }),
            _ => Err(format!("a RST in {:?}", self.state)),
        }
    }
}

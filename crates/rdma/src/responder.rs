//! The answering side: carries out the peer's requests, each once and in their order.
//!
//! A request packet that comes again is acknowledged, and not carried out; a read that comes again is
//! answered again. Where packets are missing, the peer is told once to go back.

use std::collections::VecDeque;

use towpath_packet::roce::{Aeth, NakCode, Opcode, Reth, Segment, Syndrome};

use crate::requester::MOST_READS;
use crate::{Access, Delivery, Host, NotCopied, NotReady, Psn, Range, Refused};

/// The longest message, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 64;
/// How long a peer waits before it sends again what the queue had no room for: 1.28 ms.
const NOT_READY_TIMER: u8 = 14;
/// The number of messages that a peer may send beyond an acknowledgement: not limited.
const UNLIMITED_CREDITS: u8 = 31;
/// The most bytes that a request names.
const MOST_BYTES: u32 = 1 << 31;

/// A write whose last packet has yet to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// What it names.
    pub range: Range,
    /// Its first packet.
    pub first: Psn,
}

/// How far the peer's requests are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The next packet of the peer.
    pub expected: Psn,
    /// The number of requests that are complete, 24 bits.
    pub messages: u32,
    /// The write that is under way.
    pub writing: Option<Writing>,
}

/// An answer to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Acknowledge {
        psn: Psn,
        aeth: Aeth,
    },
    /// A read, from its next packet on.
    Read {
        psn: Psn,
        range: Range,
        is_first: bool,
        messages: u32,
    },
}

impl Answer {
    /// Returns the number of its next packet.
    fn psn(&self) -> Psn {
        match self {
            Answer::Acknowledge { psn, .. } | Answer::Read { psn, .. } => *psn,
        }
    }
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its sequence number.
    pub psn: Psn,
    /// Its opcode.
    pub opcode: Opcode,
    /// The acknowledgement, if it has one.
    pub aeth: Option<Aeth>,
    /// The bytes that it carries.
    pub range: Range,
}

/// What a request of the peer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The connection goes on.
    Good,
    /// The host has yet to copy. Nothing has changed.
    Later,
    /// The peer did what it may not: the connection ends once the answers are sent.
    Refused(NakCode),
}

/// The answering side.
#[derive(Debug)]
pub struct Responder {
    progress: Progress,
    mtu: u32,
    answers: VecDeque<Answer>,
    /// `true` once the peer was told to go back, until the missing packet comes.
    told: bool,
    /// The peer is refused: it is answered no more.
    refused: bool,
}

impl Responder {
    /// Creates the side of a connection with packets of up to `mtu` bytes of payload. `progress`: how
    /// far the peer's requests are carried out.
    #[must_use]
    pub fn new(progress: Progress, mtu: u32) -> Responder {
        Responder { progress, mtu, answers: VecDeque::new(), told: false, refused: false }
    }

    /// Returns how far the peer's requests are carried out. What the next server needs of it is
    /// recorded before the answers are sent.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns `true` if there is something to send.
    #[must_use]
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Carries out a packet of a request.
    pub fn receive(&mut self, segment: &Segment<'_>, host: &mut impl Host) -> Served {
        if self.refused {
            return Served::Good;
        }
        let psn = Psn::new(segment.bth.psn);
        match self.progress.expected.to(psn) {
            0 => self.told = false,
            ..0 => return self.repeat(psn, segment),
            _ => {
                if !std::mem::replace(&mut self.told, true) {
                    self.answer(self.progress.expected, Syndrome::Nak(NakCode::SequenceError));
                }
                return Served::Good;
            }
        }
        match self.carry_out(psn, segment, host) {
            Ok(()) => Served::Good,
            Err(Stop::Later) => Served::Later,
            Err(Stop::NotReady) => {
                self.answer(psn, Syndrome::ReceiverNotReady { timer: NOT_READY_TIMER });
                Served::Good
            }
            Err(Stop::Refused(code)) => {
                self.refused = true;
                self.answer(psn, Syndrome::Nak(code));
                Served::Refused(code)
            }
        }
    }

    /// Answers a packet that was carried out already.
    fn repeat(&mut self, psn: Psn, segment: &Segment<'_>) -> Served {
        match (segment.bth.opcode, segment.extension.reth) {
            (Opcode::ReadRequest, Some(reth)) => {
                let packets = self.packets(reth.len);
                // Only what was asked for before.
                if psn.plus(packets).to(self.progress.expected) >= 0 && reth.len <= MOST_BYTES {
                    self.go_back(psn);
                    self.push_read(psn, &reth);
                }
            }
            _ => self.acknowledge(self.progress.expected.before()),
        }
        Served::Good
    }

    /// Drops the answers from a packet on: the peer has gone back to it, and asks again for all behind it. They would
    /// take the room of the new answers, and a further read would find none.
    fn go_back(&mut self, to: Psn) {
        self.answers.retain(|one| one.psn().to(to) > 0);
        self.told = false;
    }

    fn carry_out(
        &mut self,
        psn: Psn,
        segment: &Segment<'_>,
        host: &mut impl Host,
    ) -> Result<(), Stop> {
        use Opcode::{
            ReadRequest, SendOnly, WriteFirst, WriteLast, WriteLastImmediate, WriteMiddle,
            WriteOnly, WriteOnlyImmediate,
        };
        let (opcode, reth) = (segment.bth.opcode, segment.extension.reth);
        let goes_on = matches!(opcode, WriteMiddle | WriteLast | WriteLastImmediate);
        if goes_on != self.progress.writing.is_some() {
            return Err(INVALID);
        }
        match opcode {
            SendOnly if segment.payload.len() <= MOST_MESSAGE_BYTES => {
                host.deliver(psn, Delivery::Message(segment.payload))?;
                self.finish(psn);
            }
            ReadRequest => self.read(psn, &reth.ok_or(INVALID)?, host)?,
            WriteFirst | WriteOnly | WriteOnlyImmediate => {
                let range = write_range(&reth.ok_or(INVALID)?)?;
                let is_long = range.len > u64::from(self.mtu);
                if is_long != (opcode == WriteFirst) {
                    return Err(INVALID);
                }
                if range.len > 0 {
                    host.check(range, Access::Write)?;
                }
                self.write(psn, &Writing { range, first: psn }, segment, host)?;
            }
            WriteMiddle | WriteLast | WriteLastImmediate => {
                let writing = self.progress.writing.ok_or(INVALID)?;
                self.write(psn, &writing, segment, host)?;
            }
            _ => return Err(INVALID),
        }
        Ok(())
    }

    /// Places the bytes of a write's packet.
    fn write(
        &mut self,
        psn: Psn,
        writing: &Writing,
        segment: &Segment<'_>,
        host: &mut impl Host,
    ) -> Result<(), Stop> {
        let Writing { range, first } = *writing;
        let mtu = u64::from(self.mtu);
        let done = u64::from(first.to(psn).unsigned_abs()) * mtu;
        let left = range.len.saturating_sub(done);
        let len = segment.payload.len() as u64;
        let ends = !matches!(segment.bth.opcode, Opcode::WriteFirst | Opcode::WriteMiddle);
        if len != left.min(mtu) || ends != (left <= mtu) {
            return Err(INVALID);
        }
        if len > 0 {
            let place = Range { address: range.address.wrapping_add(done), len, ..range };
            host.place(place, segment.payload)?;
        }
        if !ends {
            self.progress.writing = Some(*writing);
            self.progress.expected = psn.plus(1);
            if segment.bth.ack_request {
                self.acknowledge(psn);
            }
            return Ok(());
        }
        if let Some(value) = segment.extension.immediate {
            host.deliver(psn, Delivery::Value(value, range.len as u32))?;
        }
        self.progress.writing = None;
        self.finish(psn);
        Ok(())
    }

    fn read(&mut self, psn: Psn, reth: &Reth, host: &mut impl Host) -> Result<(), Stop> {
        let reads = self.answers.iter().filter(|one| matches!(one, Answer::Read { .. })).count();
        if reads >= MOST_READS as usize || reth.len > MOST_BYTES {
            return Err(Stop::Refused(NakCode::InvalidRequest));
        }
        let range = range_of(reth);
        if range.len > 0 {
            host.check(range, Access::Read)?;
        }
        self.count_message();
        self.push_read(psn, reth);
        self.progress.expected = psn.plus(self.packets(reth.len));
        Ok(())
    }

    fn push_read(&mut self, psn: Psn, reth: &Reth) {
        let reads = self.answers.iter().filter(|one| matches!(one, Answer::Read { .. })).count();
        if reads < MOST_READS as usize {
            let (range, messages) = (range_of(reth), self.progress.messages);
            self.answers.push_back(Answer::Read { psn, range, is_first: true, messages });
        }
    }

    /// Returns the packets of a read's answer.
    fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.mtu).max(1)
    }

    fn finish(&mut self, psn: Psn) {
        self.count_message();
        self.progress.expected = psn.plus(1);
        self.acknowledge(psn);
    }

    fn count_message(&mut self) {
        self.progress.messages = (self.progress.messages + 1) & 0xff_ffff;
    }

    fn acknowledge(&mut self, psn: Psn) {
        self.answer(psn, Syndrome::Ack { credits: UNLIMITED_CREDITS });
    }

    /// Queues an acknowledgement behind the reads before it. It takes the place of one that nothing
    /// separates from it.
    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: self.progress.messages };
        let is_good = |aeth: &Aeth| matches!(aeth.syndrome, Syndrome::Ack { .. });
        let is_full = self.answers.len() > 2 * MOST_READS as usize;
        match self.answers.back_mut() {
            Some(Answer::Acknowledge { psn: last, aeth: before }) if is_good(before) => {
                (*last, *before) = (psn, aeth);
            }
            // The peer sends again what it did not get an answer for.
            _ if is_full => {}
            _ => self.answers.push_back(Answer::Acknowledge { psn, aeth }),
        }
    }

    /// Returns the next answer. The caller copies the bytes of its range, and calls
    /// [`Responder::refuse_read`] if it may not.
    pub(crate) fn next_reply(&mut self) -> Option<Reply> {
        let front = self.answers.front_mut()?;
        let (psn, range, is_first, messages) = match front {
            Answer::Acknowledge { psn, aeth } => {
                let (psn, aeth) = (*psn, Some(*aeth));
                self.answers.pop_front();
                let opcode = Opcode::Acknowledge;
                return Some(Reply { psn, opcode, aeth, range: Range::default() });
            }
            Answer::Read { psn, range, is_first, messages } => (psn, range, is_first, *messages),
        };
        let len = range.len.min(u64::from(self.mtu));
        let (now, first) = (Range { len, ..*range }, *is_first);
        let is_last = len == range.len;
        let number = *psn;
        (*psn, *is_first) = (psn.plus(1), false);
        (range.address, range.len) = (range.address.wrapping_add(len), range.len - len);
        if is_last {
            self.answers.pop_front();
        }
        let opcode = match (first, is_last) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, true) => Opcode::ReadResponseLast,
            (false, false) => Opcode::ReadResponseMiddle,
        };
        let syndrome = Syndrome::Ack { credits: UNLIMITED_CREDITS };
        let aeth = (first || is_last).then_some(Aeth { syndrome, msn: messages });
        Some(Reply { psn: number, opcode, aeth, range: now })
    }

    /// Returns the next answer as it is now, for [`Responder::put_back`].
    pub(crate) fn front(&self) -> Option<Answer> {
        self.answers.front().copied()
    }

    /// Puts back a reply that was not sent. `before`: the next answer before the reply.
    pub(crate) fn put_back(&mut self, before: Option<Answer>, reply: &Reply) {
        let Some(before) = before else { return };
        if matches!(reply.opcode, Opcode::ReadResponseLast | Opcode::ReadResponseOnly) {
            self.answers.push_front(before);
        } else if let Some(front) = self.answers.front_mut() {
            *front = before;
        }
    }

    /// Refuses a read whose bytes may not be read any more. The connection ends once the answers are
    /// sent.
    pub(crate) fn refuse_read(&mut self, psn: Psn) {
        self.refused = true;
        self.answers.clear();
        self.answer(psn, Syndrome::Nak(NakCode::RemoteAccess));
    }
}

/// Why a packet is not carried out.
enum Stop {
    NotReady,
    Later,
    Refused(NakCode),
}

const INVALID: Stop = Stop::Refused(NakCode::InvalidRequest);

impl From<NotReady> for Stop {
    fn from(_: NotReady) -> Stop {
        Stop::NotReady
    }
}

impl From<Refused> for Stop {
    fn from(_: Refused) -> Stop {
        Stop::Refused(NakCode::RemoteAccess)
    }
}

impl From<NotCopied> for Stop {
    fn from(reason: NotCopied) -> Stop {
        match reason {
            NotCopied::Refused => Refused.into(),
            NotCopied::Later => Stop::Later,
        }
    }
}

fn range_of(reth: &Reth) -> Range {
    Range { key: reth.key, address: reth.address, len: u64::from(reth.len) }
}

fn write_range(reth: &Reth) -> Result<Range, Stop> {
    if reth.len > MOST_BYTES { Err(INVALID) } else { Ok(range_of(reth)) }
}

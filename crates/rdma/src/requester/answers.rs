//! The peer's answers: acknowledgements, and the bytes of reads.

use towpath_packet::roce::{Aeth, NakCode, Syndrome};

use super::{Answered, Entry, Fault, Requester};
use crate::{NotCopied, Psn};

impl Requester {
    /// Handles an acknowledgement. `complete` gets the numbers of complete requests.
    pub fn acknowledged(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        now: u64,
        complete: impl FnMut(u64, Psn),
    ) -> Answered {
        let to = match aeth.syndrome {
            Syndrome::Ack { .. } => psn.plus(1),
            Syndrome::Nak(NakCode::SequenceError) => psn,
            // The answer is for a packet that is acknowledged already, or that this side has not
            // sent: it changes nothing.
            _ if self.oldest.to(psn) < 0 || psn.to(self.highest) <= 0 => {
                return Answered::default();
            }
            _ => psn,
        };
        let Some(to) = self.known(to) else { return Answered::default() };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge_to(to, now, complete);
                // The peer answers in order: the answer of a read before it is lost.
                let misses_read = self.oldest.to(to) > 0;
                Answered { lost: misses_read && self.go_back(now), ..Answered::default() }
            }
            Syndrome::ReceiverNotReady { timer } => {
                self.acknowledge_to(psn, now, complete);
                self.next = self.oldest;
                self.since = now;
                self.timed = None;
                self.not_ready_since.get_or_insert(now);
                self.not_ready_until = Some(now + not_ready_ns(timer));
                Answered::default()
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.acknowledge_to(to, now, complete);
                Answered { lost: self.go_back(now), ..Answered::default() }
            }
            Syndrome::Nak(code) => {
                self.acknowledge_to(psn, now, complete);
                let is_access = code == NakCode::RemoteAccess;
                let fault = if is_access { Fault::Access } else { Fault::Peer };
                Answered { fault: Some(fault), ..Answered::default() }
            }
            Syndrome::Other(_) => Answered::default(),
        }
    }

    /// Returns up to where an answer acknowledges packets, of those that this side has; `None` if it
    /// says nothing.
    fn known(&mut self, to: Psn) -> Option<Psn> {
        if self.oldest.to(to) < 0 {
            return None;
        }
        if to.to(self.highest) >= 0 {
            self.resumed = false;
            return Some(to);
        }
        // The peer has what an earlier server sent, and this one has not sent again.
        let is_here = to.to(self.end) >= 0;
        self.resumed.then_some(if is_here { to } else { self.end })
    }

    /// Handles a packet of a read's answer, with the bytes for `store`. `complete` gets the numbers of complete
    /// requests. If `store` cannot place the bytes yet, the caller handles the packet again.
    pub(crate) fn read_answered(
        &mut self,
        psn: Psn,
        bytes: &[u8],
        now: u64,
        mut store: impl FnMut(u64, u64, &[u8]) -> Result<(), NotCopied>,
        mut complete: impl FnMut(u64, Psn),
    ) -> Answered {
        let Some(index) = self.index_of(psn).filter(|index| self.queue[*index].is_read()) else {
            return Answered::default();
        };
        if psn.to(self.highest) <= 0 {
            return Answered::default();
        }
        let entry = self.queue[index];
        let is_behind_read = self.queue.iter().take(index).any(Entry::is_read);
        if !is_behind_read && self.oldest.to(entry.first) > 0 {
            // The peer answers in order: it has what came before the read.
            self.acknowledge_to(entry.first, now, &mut complete);
        }
        match self.oldest.to(psn) {
            0 => {}
            // It is here already.
            ..0 => return Answered::default(),
            // A part before it is lost.
            _ => return Answered { lost: self.go_back(now), ..Answered::default() },
        }
        let index = entry.first.to(psn).unsigned_abs();
        let offset = u64::from(index) * u64::from(self.mtu);
        let expected = u64::from(self.mtu).min(entry.work.bytes - offset);
        if bytes.len() as u64 != expected {
            return Answered { fault: Some(Fault::Peer), ..Answered::default() };
        }
        match store(entry.work.id, offset, bytes) {
            Ok(()) => {}
            Err(NotCopied::Later) => return Answered { later: true, ..Answered::default() },
            Err(NotCopied::Refused) => {
                return Answered { fault: Some(Fault::Local), ..Answered::default() };
            }
        }
        self.progress(psn.plus(1), now);
        self.remove_complete(&mut complete);
        Answered::default()
    }

    /// Records that the peer has all packets before `to`, but for reads without their answer.
    fn acknowledge_to(&mut self, to: Psn, now: u64, mut complete: impl FnMut(u64, Psn)) {
        let read = self.queue.iter().find(|one| one.is_read());
        let limit = read.map_or(to, |one| if one.first.to(to) > 0 { one.first } else { to });
        if self.oldest.to(limit) > 0 {
            self.progress(limit, now);
            self.remove_complete(&mut complete);
        }
    }

    fn progress(&mut self, to: Psn, now: u64) {
        if let Some((timed, at)) = self.timed
            && timed.to(to) > 0
        {
            self.measure(now.saturating_sub(at));
            self.timed = None;
        }
        self.oldest = to;
        for other in [&mut self.next, &mut self.highest] {
            if other.to(to) > 0 {
                *other = to;
            }
        }
        self.since = now;
        self.goes_back = false;
        self.not_ready_since = None;
        self.timeout = self.usual_timeout();
    }

    fn remove_complete(&mut self, complete: &mut impl FnMut(u64, Psn)) {
        while let Some(first) = self.queue.front().filter(|one| one.end().to(self.oldest) >= 0) {
            complete(first.work.id, first.end());
            self.queue.pop_front();
        }
    }
}

/// Returns the time that a code of "receiver not ready" stands for, in nanoseconds (InfiniBand; as
/// Linux, `rnrnak_usec` of `drivers/infiniband/sw/rxe/rxe_comp.c`, has it).
fn not_ready_ns(timer: u8) -> u64 {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560,
        3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_410, 81_920, 122_880,
        163_840, 245_760, 327_680, 491_520,
    ];
    MICROSECONDS[usize::from(timer & 31)] * 1_000
}

//! The outcomes of sending: that of one entry of a transmit queue, that of a batch, and that of a unit's turn.

use towpath_queue::Violation;

use crate::schedule::Stop;

/// The outcome of one entry of a transmit queue: a packet, an out-of-band message or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryOutcome {
    /// The engine is done with the entry: it delivered the entry on this host, carried it out, or dropped it. Its
    /// slots are complete.
    Done,
    /// The device, the backlog or a connection with another host has the entry. Its slots are complete later.
    HandedOff,
    /// The device has no room for the entry, which goes back into its queue.
    NoRoom,
    /// The entry is a request that continues in a later turn ([`crate::tx::TxPath`] has the time), and goes back into
    /// its queue. Without the time, an outcome fits in a register.
    Unfinished,
    /// No correct application sends such an entry. The engine closes its session.
    Violation(Violation),
}

/// The reason for which the engine takes or sends no more entries of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// The queue is empty.
    Empty,
    /// The batch is full, or the next packet belongs in another one.
    Full,
    /// The next packet belongs in another line: expedited packets have their own.
    OtherLine,
    /// The unit has used up its share, or the next entry has to wait or is of another class.
    Stop(Stop),
    /// The device has no room for the next packet.
    NoRoom,
    /// The client violated the protocol. The engine closes the session.
    Violation(Violation),
}

impl From<Violation> for BatchEnd {
    fn from(violation: Violation) -> BatchEnd {
        BatchEnd::Violation(violation)
    }
}

/// The part of a batch that the engine sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSent {
    /// The entries that are done or handed off, the first ones of the batch. An entry with a violation counts.
    pub(super) count: usize,
    /// The reason for which the engine sent no more; `None` if it sent all.
    pub(super) end: Option<BatchEnd>,
}

impl BatchSent {
    /// Returns the reason for the end of the batch; `taking_end`: the reason for which it took no more.
    /// A violation precedes all other reasons.
    pub(super) fn end_with(self, taking_end: BatchEnd) -> BatchEnd {
        match (self.end, taking_end) {
            (Some(end @ BatchEnd::Violation(_)), _) => end,
            (_, BatchEnd::Violation(_)) | (None, _) => taking_end,
            (Some(end), _) => end,
        }
    }
}

/// The way in which a unit's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The unit has nothing more to send.
    Idle,
    /// The unit has more to send.
    More {
        /// The reason for the turn's end.
        stop: Stop,
        /// The bytes sent so far of the current message; 0 if the scheduler need not keep it together.
        message_bytes: u64,
    },
    /// The unit's next packet belongs in another line.
    OtherLine,
    /// The unit's session is gone or about to end.
    Gone,
}

impl TurnEnd {
    /// Returns the end of a turn outside of a message.
    pub(super) fn stop(stop: Stop) -> TurnEnd {
        TurnEnd::More { stop, message_bytes: 0 }
    }
}

/// The result of a unit's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnOutcome {
    /// Entries taken and not put back.
    pub(super) taken: usize,
    /// The same, plus each entry's copies beyond the first.
    pub(super) used: usize,
    pub(super) end: TurnEnd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_precedes_the_other_reasons_for_the_end_of_a_batch() {
        let (sent, taken) =
            (BatchEnd::Violation(Violation::Flags), BatchEnd::Violation(Violation::Index));
        let end = |end, taking_end| BatchSent { count: 1, end }.end_with(taking_end);
        assert_eq!(end(None, BatchEnd::Empty), BatchEnd::Empty);
        assert_eq!(end(Some(BatchEnd::NoRoom), BatchEnd::Empty), BatchEnd::NoRoom);
        assert_eq!(end(Some(BatchEnd::NoRoom), taken), taken);
        assert_eq!(end(Some(sent), taken), sent);
        assert_eq!(end(None, taken), taken);
    }
}

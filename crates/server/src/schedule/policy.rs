//! What a policy is: how those that stand in one line share the device.

use std::fmt::Debug;

/// What a unit has sent more or less than its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Bytes that it may still send; below 0: that it owes.
    pub bytes: i64,
    /// It has got what this round gives.
    pub in_turn: bool,
}

/// How units of one level share.
pub(crate) trait Policy: Debug + Send {
    /// The most packets of one turn.
    fn packets(&self) -> usize;
    /// A unit is first. Answers how many bytes it may send; 0 or less: none in this round.
    fn begin(&self, account: &mut Account, weight: u16) -> i64;
    /// It sent so many bytes.
    fn charge(&self, account: &mut Account, bytes: u64);
    /// It has more to send. Whether it stays first; `blocked_at_once`: there was no room for any.
    fn goes_on(&self, account: &Account, blocked_at_once: bool) -> bool;
    /// How many rounds it has to wait until it may send.
    fn rounds(&self, account: &Account, weight: u16) -> i64;
    /// So many rounds have passed at once: nobody could send in them.
    fn skip(&self, account: &mut Account, weight: u16, rounds: i64);
}

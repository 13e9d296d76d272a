//! A policy: the rule by which the units of one line share the device.

use std::fmt::Debug;

/// The difference between a unit's share and the bytes that it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Bytes that the unit may still send; a negative value is a debt.
    pub bytes: i64,
    /// `true` if the unit has received this round's credit.
    pub in_turn: bool,
}

/// The way in which units of one level share.
pub(crate) trait Policy: Debug + Send {
    /// Returns the maximum number of packets per turn.
    fn packets(&self) -> usize;
    /// Begins the turn of a unit at the head of its line. Returns the bytes that it may send; 0 or
    /// less: none in this round.
    fn begin(&self, account: &mut Account, weight: u16) -> i64;
    /// Charges a unit for the bytes that it sent.
    fn charge(&self, account: &mut Account, bytes: u64);
    /// Returns `true` if a unit with more to send stays first; `blocked_at_once`: there was no room
    /// for any packet.
    fn stays_first(&self, account: &Account, blocked_at_once: bool) -> bool;
    /// Returns the number of rounds that the unit has to wait until it may send.
    fn rounds(&self, account: &Account, weight: u16) -> i64;
    /// Credits a unit for rounds that passed at once because no unit could send in them.
    fn skip(&self, account: &mut Account, weight: u16, rounds: i64);
}

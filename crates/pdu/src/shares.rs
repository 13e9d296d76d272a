//! The order in which queued PDUs are delivered: each channel's share of the delivered bytes is
//! proportional to its weight (start-time fair queueing: Goyal, Vin, Cheng, "Start-time Fair
//! Queueing: A Scheduling Algorithm for Integrated Services Packet Switching Networks").

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::format::OVERHEAD_BYTES;

/// The largest weight.
pub(crate) const MAX_WEIGHT: u32 = 1000;
/// Parts of a byte in virtual time, so that a division by a weight loses little.
const PARTS: u128 = 1 << 20;

/// A channel's place in the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    weight: u32,
    /// The virtual time at which its next PDU begins.
    next: u128,
    /// `true` if the order lists it: at most once.
    listed: bool,
}

impl Share {
    /// Creates a share; a weight out of range becomes the nearest in range.
    pub(crate) fn new(weight: u32) -> Share {
        Share { weight: weight.clamp(1, MAX_WEIGHT), next: 0, listed: false }
    }
}

/// The channels with queued PDUs, by the virtual time of their next PDU.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The virtual time: that of the last delivery. A channel that comes back begins here, and
    /// keeps no claim from the time when it had nothing.
    now: u128,
    order: BinaryHeap<Reverse<(u128, u32)>>,
}

impl Shares {
    /// Allocates room for this many channels.
    pub(crate) fn reserve(&mut self, channels: usize) {
        self.order.reserve(channels.saturating_sub(self.order.len()));
    }

    /// Lists a channel that has a queued PDU.
    pub(crate) fn list(&mut self, channel: u32, share: &mut Share) {
        if !share.listed {
            share.listed = true;
            share.next = share.next.max(self.now);
            self.order.push(Reverse((share.next, channel)));
        }
    }

    /// Removes and returns the channel whose turn it is.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let Reverse((next, channel)) = self.order.pop()?;
        self.now = next;
        Some(channel)
    }

    /// Charges a channel, which [`Shares::next`] returned, for a PDU of `len` bytes; `None` if it
    /// had none. A PDU costs its headers too, so that empty PDUs are not free.
    pub(crate) fn charge(share: &mut Share, len: Option<usize>) {
        share.listed = false;
        if let Some(len) = len {
            share.next += (len + OVERHEAD_BYTES) as u128 * PARTS / u128::from(share.weight);
        }
    }

    /// Removes a channel.
    pub(crate) fn remove(&mut self, channel: u32) {
        self.order.retain(|Reverse((_, one))| *one != channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers PDUs of the given lengths, all channels always waiting. Returns the bytes of each.
    fn delivered(weights: &[u32], lens: &[usize], count: usize) -> Vec<usize> {
        let (mut order, mut bytes) = (Shares::default(), vec![0; weights.len()]);
        let mut shares: Vec<Share> = weights.iter().map(|weight| Share::new(*weight)).collect();
        for (channel, share) in shares.iter_mut().enumerate() {
            order.list(channel as u32, share);
        }
        for _ in 0..count {
            let channel = order.next().unwrap() as usize;
            Shares::charge(&mut shares[channel], Some(lens[channel]));
            order.list(channel as u32, &mut shares[channel]);
            bytes[channel] += lens[channel] + OVERHEAD_BYTES;
        }
        bytes
    }

    #[test]
    fn bytes_are_in_proportion_to_weights_whatever_the_lengths() {
        for (weights, lens) in [
            ([1, 1, 1], [48, 4800, 48_000]),
            ([1, 2, 5], [65_536, 0, 1000]),
            ([1000, 1, 10], [100, 100, 100]),
        ] {
            let bytes = delivered(&weights, &lens, 20_000);
            let most = lens.iter().max().unwrap() + OVERHEAD_BYTES;
            for (a, b) in [(0, 1), (1, 2), (0, 2)] {
                let each = |place: usize| bytes[place] as f64 / f64::from(weights[place]);
                // The bound of the algorithm: one PDU of each.
                let bound =
                    most as f64 / f64::from(weights[a]) + most as f64 / f64::from(weights[b]);
                assert!(
                    (each(a) - each(b)).abs() <= bound + 1.0,
                    "{weights:?} {lens:?}: {bytes:?}"
                );
            }
        }
    }

    #[test]
    fn a_channel_that_had_nothing_claims_nothing() {
        let mut order = Shares::default();
        let (mut busy, mut back) = (Share::new(1), Share::new(1));
        order.list(1, &mut busy);
        for _ in 0..100 {
            assert_eq!(order.next(), Some(1));
            Shares::charge(&mut busy, Some(1000));
            order.list(1, &mut busy);
        }
        order.list(2, &mut back);
        let mut turns = Vec::new();
        for _ in 0..6 {
            let channel = order.next().unwrap();
            let share = if channel == 1 { &mut busy } else { &mut back };
            Shares::charge(share, Some(1000));
            order.list(channel, share);
            turns.push(channel);
        }
        turns.sort_unstable();
        assert_eq!(turns, [1, 1, 1, 2, 2, 2]);
        order.remove(1);
        assert_eq!((order.next(), order.next()), (Some(2), None));
    }
}

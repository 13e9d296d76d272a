//! An exact rate limit: a token bucket in integers.
//!
//! Instead of tokens, the bucket keeps the time at which it will be full again. This is the
//! "theoretical arrival time" of ITU-T I.371's generic cell rate algorithm, which describes the
//! same bucket. The bucket carries the remainder of a division over to the next packet, so that a
//! million packets lose nothing.

/// The least default burst of a bucket, in bytes.
pub(crate) const LEAST_BURST_BYTES: u64 = 16 * 1024;
/// The default burst is the amount that the rate gives in this time, in nanoseconds. An engine that
/// sleeps and wakes late thereby still keeps the rate.
pub(crate) const BURST_NS: u64 = 4_000_000;
/// The most time by which a paced endpoint may catch up after late service, in nanoseconds.
pub(crate) const PACING_SLACK_NS: u64 = 1_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// One rate of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Units per second.
    rate: u64,
    /// The cost of a unit, in nanoseconds times `rate`.
    unit_cost: u64,
    /// Units of a full bucket; 0 means pacing: each packet waits for the one before.
    burst: u64,
    /// The time in which an empty bucket fills, in nanoseconds.
    burst_ns: u64,
    /// The time at which the bucket is full again, in nanoseconds.
    full_at: u64,
    /// The remainder, in nanoseconds times `rate`; less than `rate`.
    over: u64,
}

impl Bucket {
    /// Creates a bucket of bits per second (not 0), for packets measured in bytes. `burst_bytes` 0
    /// means [`BURST_NS`] of the rate, and at least [`LEAST_BURST_BYTES`].
    #[must_use]
    pub(crate) fn bits(rate_bps: u64, burst_bytes: u64, pacing: bool) -> Bucket {
        let given = if burst_bytes == 0 {
            LEAST_BURST_BYTES.max(mul_div(rate_bps, BURST_NS, 8 * SECOND_NS))
        } else {
            burst_bytes
        };
        Bucket::new(rate_bps, 8 * SECOND_NS, if pacing { 0 } else { given })
    }

    /// Creates a bucket of packets per second (not 0). `burst_packets` 0 means [`BURST_NS`] of the
    /// rate, and at least one packet.
    #[must_use]
    pub(crate) fn frames(rate_pps: u64, burst_packets: u64, pacing: bool) -> Bucket {
        let given = if burst_packets == 0 {
            mul_div(rate_pps, BURST_NS, SECOND_NS).max(1)
        } else {
            burst_packets
        };
        Bucket::new(rate_pps, SECOND_NS, if pacing { 0 } else { given })
    }

    fn new(rate: u64, unit_cost: u64, burst: u64) -> Bucket {
        let rate = rate.max(1);
        let burst_ns = mul_div(burst, unit_cost, rate);
        Bucket { rate, unit_cost, burst, burst_ns, full_at: 0, over: 0 }
    }

    /// Continues from another bucket's state, so that a change of settings forgives nothing. The
    /// inherited wait is limited to the cost of `units` here, and a full bucket.
    #[must_use]
    pub(crate) fn instead_of(mut self, other: &Bucket, units: u64, now: u64) -> Bucket {
        let owed = mul_div(units, self.unit_cost, self.rate).saturating_add(self.burst_ns);
        self.full_at = other.full_at.min(now.saturating_add(owed));
        self
    }

    /// Returns the time at which a packet of `units` may go, in nanoseconds; a past time means now.
    /// A packet that is larger than the bucket goes when the bucket is full.
    #[inline]
    #[must_use]
    pub(crate) fn eligible(&self, units: u64) -> u64 {
        let needed = mul_div(units.min(self.burst), self.unit_cost, self.rate);
        self.full_at.saturating_sub(self.burst_ns - needed.min(self.burst_ns))
    }

    /// Charges a packet of `units` that goes at `now`; the queue has had something to send since
    /// `since`. Charges the whole packet, even if it goes before its time.
    #[inline]
    pub(crate) fn charge(&mut self, units: u64, now: u64, since: u64) {
        // Unused credit is lost, but not credit that was only used late.
        let lost =
            if self.burst > 0 { now } else { since.max(now.saturating_sub(PACING_SLACK_NS)) };
        if self.full_at < lost {
            (self.full_at, self.over) = (lost, 0);
        }
        let cost = u128::from(units) * u128::from(self.unit_cost) + u128::from(self.over);
        self.full_at = self.full_at.saturating_add((cost / u128::from(self.rate)) as u64);
        self.over = (cost % u128::from(self.rate)) as u64;
    }
}

fn mul_div(by: u64, number: u64, divisor: u64) -> u64 {
    u64::try_from(u128::from(by) * u128::from(number) / u128::from(divisor)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends as early as allowed until `end`, and returns the time of each packet.
    fn greedy(bucket: &mut Bucket, from: u64, end: u64, units: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut now, mut went) = (from, Vec::new());
        loop {
            let units = units(went.len() as u64);
            now = now.max(bucket.eligible(units));
            if now >= end {
                return went;
            }
            bucket.charge(units, now, from);
            went.push(now);
        }
    }

    #[test]
    fn a_bucket_at_ten_megabits_sends_rate_and_burst() {
        // 1 250 000 bytes and a burst of 16 384 are 833 packets and 10.9 more.
        let went = greedy(&mut Bucket::bits(10_000_000, 0, false), 5, SECOND_NS + 5, |_| 1500);
        assert_eq!(went.len(), 844);
        // With pacing, one packet goes each 1.2 ms, from the first on.
        let went = greedy(&mut Bucket::bits(10_000_000, 0, true), 5, SECOND_NS + 5, |_| 1500);
        assert_eq!(went.len(), 834);
        assert!(went.windows(2).all(|pair| pair[1] - pair[0] == 1_200_000), "{went:?}");
    }

    #[test]
    fn a_rate_that_divides_nothing_does_not_drift() {
        // The bucket sends 7 packets per second for 1000 seconds, the first at once.
        let went = greedy(&mut Bucket::frames(7, 0, false), 0, 1000 * SECOND_NS, |_| 1);
        assert_eq!(went.len(), 7000);
        // The bucket sends a burst of packets, and then follows the rate.
        let went = greedy(&mut Bucket::frames(100, 20, false), 0, SECOND_NS, |_| 1);
        assert_eq!((went.len(), went[19], went[20]), (119, 0, 10_000_000));
        let went = greedy(&mut Bucket::bits(999_999_937, 0, true), 0, 10 * SECOND_NS, |_| 1500);
        // 9 999 999 370 bits are 833 333.28 packets; the one at the start is the last but one.
        assert_eq!(went.len(), 833_334);
    }

    #[test]
    fn a_packet_larger_than_the_bucket_goes_and_is_charged() {
        let mut bucket = Bucket::bits(8_000_000, 1000, false);
        let went = greedy(&mut bucket, 0, SECOND_NS, |_| 50_000);
        // The rate is a megabyte per second: each packet waits until the one before is paid.
        assert_eq!(went.len(), 20);
    }

    #[test]
    fn late_service_is_made_up_for_and_idleness_is_not() {
        let mut bucket = Bucket::bits(12_000_000, 0, true);
        // The rate is one packet per millisecond, and the engine serves each 0.4 ms late.
        let mut now = 0;
        for _ in 0..100 {
            now = now.max(bucket.eligible(1500)) + 400_000;
            bucket.charge(1500, now, 0);
        }
        assert!((99_000_000..100_500_000).contains(&now), "{now}");
        // A second without packets earns nothing: the packet after the next is not early.
        let since = now + SECOND_NS;
        bucket.charge(1500, since, since);
        assert_eq!(bucket.eligible(1500), since + 1_000_000);
    }

    proptest! {
        /// No window holds more than the rate gives in it, plus one burst or one packet that is
        /// larger.
        #[test]
        fn no_window_holds_more_than_rate_and_burst(
            rate in 1_000u64..100_000_000_000,
            burst in 0u64..200_000,
            sizes in prop::collection::vec(60u64..65_000, 1..40),
            gaps in prop::collection::vec(0u64..20_000_000, 1..40),
            pacing: bool,
        ) {
            let mut bucket = Bucket::bits(rate, burst, pacing);
            let full = bucket.burst;
            let (mut now, mut since, mut went) = (1_000, 1_000, Vec::new());
            for step in 0..200usize {
                let len = sizes[step % sizes.len()];
                if step % 7 == 0 {
                    now += gaps[step % gaps.len()];
                    since = now;
                }
                now = now.max(bucket.eligible(len));
                bucket.charge(len, now, since);
                went.push((now, len));
            }
            let longest = went.iter().map(|(_, len)| *len).max().unwrap();
            for from in (0..went.len()).step_by(13) {
                let mut bits = 0u128;
                for (at, len) in &went[from..] {
                    bits += u128::from(*len) * 8;
                    let window = u128::from(at - went[from].0 + PACING_SLACK_NS * u64::from(pacing));
                    // Times are whole nanoseconds, at both ends of the window.
                    let given = ((window + 2) * u128::from(rate)).div_ceil(u128::from(SECOND_NS));
                    let most = given + u128::from(full.max(longest)) * 8;
                    prop_assert!(bits <= most, "{bits} bits in {window} ns at {rate}");
                }
            }
        }
    }
}

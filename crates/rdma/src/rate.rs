//! The rate at which a connection sends: not limited until packets are lost or marked.
//!
//! A loss halves the rate. A congestion notification lowers it by up to half, by how often they come (alpha).
//! It then rises again, first half way back to where it was, five times, and then by steps; as DCQCN
//! does (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3).

/// The least rate, in bytes per second.
const LEAST: u64 = 1 << 20;
/// The time between two rises, in nanoseconds.
const RISE_NS: u64 = 500_000;
/// Rises half way back (fast recovery), before those by steps (additive increase).
const FAST_RECOVERY_RISES: u32 = 5;
/// A step, in bytes per second.
const STEP: u64 = 2 << 20;
/// Rises without a cut after which the rate is not limited any more.
const MOST_RISES: u32 = 2_000;
/// The shortest time between two cuts, in nanoseconds.
const CUT_NS: u64 = 50_000;
/// Alpha, the estimate of congestion, is a mean over 16 intervals of this length, in nanoseconds.
const ALPHA_NS: u64 = 100_000;
/// An alpha of 1: a notification in each interval.
const ALPHA_ONE: u64 = 1 << 16;
/// Bytes that may be sent at once.
const BURST_BYTES: u64 = 16 << 10;
/// The time over which the rate is measured while there is no limit, in nanoseconds.
const MEASURED_NS: u64 = 1_000_000;

/// The rate of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// In bytes per second; `None` if not limited.
    limit: Option<u64>,
    /// What the limit rises to.
    target: u64,
    /// The bytes of the time that is being measured, since when, and what the last one gave.
    bytes: u64,
    since: u64,
    measured: u64,
    /// When the next packet may be sent.
    next: u64,
    cut_at: Option<u64>,
    rise_at: u64,
    rises: u32,
    /// Alpha, and when it was last updated.
    alpha: u64,
    alpha_at: u64,
}

impl Rate {
    /// Returns the limit in bytes per second, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns `true` if a packet may be sent now.
    #[must_use]
    pub fn may_send(&self, now: u64) -> bool {
        self.limit.is_none() || now >= self.next
    }

    /// Returns when the next packet may be sent, if there is a limit.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.limit.map(|_| self.next)
    }

    /// Records that a packet is sent.
    pub fn sent(&mut self, bytes: u64, now: u64) {
        self.bytes += bytes;
        if now.saturating_sub(self.since) >= MEASURED_NS {
            // After a pause the time says nothing.
            let time = now - self.since;
            if time < 10 * MEASURED_NS {
                self.measured = self.bytes * 1_000_000_000 / time;
            }
            (self.since, self.bytes) = (now, 0);
        }
        let Some(limit) = self.limit else { return };
        let burst = BURST_BYTES * 1_000_000_000 / limit;
        let from = self.next.max(now.saturating_sub(burst));
        self.next = from + bytes * 1_000_000_000 / limit;
        self.rise(limit, now);
    }

    fn rise(&mut self, limit: u64, now: u64) {
        if now < self.rise_at {
            return;
        }
        self.rise_at = now + RISE_NS;
        self.rises += 1;
        if self.rises > FAST_RECOVERY_RISES {
            self.target += STEP;
        }
        self.limit = (self.rises < MOST_RISES).then_some(limit.midpoint(self.target));
    }

    /// Halves the rate: packets were lost. `round_trip`: the time until a cut shows, in nanoseconds.
    pub fn lost(&mut self, round_trip: u64, now: u64) {
        self.cut(ALPHA_ONE, round_trip, now);
    }

    /// Lowers the rate: the peer tells that packets were marked on their way.
    pub fn marked(&mut self, round_trip: u64, now: u64) {
        if self.limit.is_none() {
            (self.alpha, self.alpha_at) = (ALPHA_ONE, now);
        }
        let quiet = now.saturating_sub(self.alpha_at) / ALPHA_NS;
        for _ in 0..quiet.min(256) {
            self.alpha -= self.alpha / 16;
        }
        self.alpha += (ALPHA_ONE - self.alpha) / 16;
        self.alpha_at = now;
        self.cut(self.alpha, round_trip, now);
    }

    /// Lowers the rate by half of `alpha`.
    fn cut(&mut self, alpha: u64, round_trip: u64, now: u64) {
        if self.cut_at.is_some_and(|at| now < at + round_trip.max(CUT_NS)) {
            return;
        }
        self.cut_at = Some(now);
        let current = self.limit.unwrap_or(self.measured).max(LEAST);
        self.target = current;
        let by = u128::from(current) * u128::from(alpha) / u128::from(2 * ALPHA_ONE);
        self.limit = Some((current - by as u64).max(LEAST));
        (self.rise_at, self.rises) = (now + RISE_NS, 0);
        self.next = self.next.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets of 1 000 bytes for a time whenever the rate allows it. Returns how many.
    fn send(rate: &mut Rate, from: u64, time: u64) -> u64 {
        let mut sent = 0;
        let mut now = from;
        while now < from + time {
            if rate.may_send(now) {
                rate.sent(1_000, now);
                sent += 1;
            }
            now += 10_000;
        }
        sent
    }

    #[test]
    fn a_cut_halves_the_rate_and_it_comes_back() {
        let mut rate = Rate::default();
        // 100 MB/s, as much as the loop can.
        assert_eq!(send(&mut rate, 1, 20_000_000), 2_000);
        rate.lost(0, 20_000_001);
        let limit = rate.limit().unwrap();
        assert!((45_000_000..55_000_000).contains(&limit), "{limit}");
        rate.lost(0, 20_000_002);
        assert_eq!(rate.limit(), Some(limit), "one cut for what happens at once");
        let sent = send(&mut rate, 20_000_001, 400_000);
        assert!((15..40).contains(&sent), "{sent}, with the burst");
        send(&mut rate, 21_000_000, 10_000_000);
        assert!(rate.limit().unwrap() > limit * 19 / 10, "half way back, five times");
        send(&mut rate, 31_000_000, 2_000_000_000);
        assert_eq!(rate.limit(), None);
    }

    #[test]
    fn cuts_end_at_the_least_rate() {
        let mut rate = Rate::default();
        (0..100).for_each(|at| rate.lost(0, at * 1_000_000));
        assert_eq!(rate.limit(), Some(LEAST));
        rate.sent(4_096, 200_000_000);
        assert!(rate.next_due().unwrap() < 210_000_000);
    }
}

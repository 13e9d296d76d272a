//! The sending limits of one endpoint: its settings and its current state.

use towpath_memory::copying::TRANSFER_BYTES;

use crate::schedule::bucket::Bucket;

/// The number of priorities; the highest number goes first.
pub(crate) const LEVELS: u8 = 8;
/// The most that is charged at once: a piece of a request that a worker moves. The longest packet is shorter.
const MOST_OWED_BYTES: u64 = TRANSFER_BYTES as u64;
/// The maximum number of packets in a message of the longest run.
const MOST_OWED_PACKETS: u64 = 1 << 15;

/// The settings of an endpoint. The defaults shape nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shaping {
    /// Strict priority, 0 to 7: the scheduler serves a lower one only while no unit of a higher one
    /// can be served.
    pub priority: u8,
    /// The endpoint's share among those of the same priority, in bytes, 1 to 10 000.
    pub weight: u16,
    /// Bits per second, counted from the Ethernet header to the end of the payload; 0: no limit.
    pub rate_bps: u64,
    /// Packets per second; 0: no limit.
    pub rate_pps: u64,
    /// The burst after a pause, in bytes; 0: see [`Bucket::bits`].
    pub burst_bytes: u32,
    /// The burst after a pause in packets, beyond `rate_pps`; 0: see [`Bucket::frames`].
    pub burst_packets: u32,
    /// `true` if the scheduler spaces the endpoint's packets evenly at their rate, instead of in
    /// bursts.
    pub pacing: bool,
    /// The longest wait of a packet for its turn, in microseconds; 0: no limit. The engine drops a
    /// packet that has waited this long, or would have to.
    pub max_delay_us: u32,
    /// The part of a message that the scheduler keeps together, in bytes; 0: nothing.
    pub max_message_bytes: u32,
    /// Packets per tick; 0: no limit.
    pub quota: u32,
    /// The endpoint sends in one of this many ticks: in the first tick at or after each multiple of
    /// this number.
    pub tick_multiple: u32,
}

impl Default for Shaping {
    fn default() -> Shaping {
        Shaping {
            priority: 3,
            weight: 100,
            rate_bps: 0,
            rate_pps: 0,
            burst_bytes: 0,
            burst_packets: 0,
            pacing: false,
            max_delay_us: 0,
            max_message_bytes: 65_536,
            quota: 0,
            tick_multiple: 1,
        }
    }
}

impl Shaping {
    /// Returns the line and the share of the endpoint.
    #[must_use]
    pub(crate) fn class(&self) -> Class {
        Class { level: self.priority.min(LEVELS - 1), weight: self.weight.max(1) }
    }

    fn takes_time(&self) -> bool {
        self.rate_bps > 0 || self.rate_pps > 0 || self.max_delay_us > 0
    }
}

/// The line and the share of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// Strict priority.
    pub level: u8,
    /// Share among those of the same level.
    pub weight: u16,
}

impl Default for Class {
    fn default() -> Class {
        Shaping::default().class()
    }
}

/// The decision on the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The packet may go.
    Open,
    /// The packet is too late, and the engine drops it.
    Late,
    /// The packet may not go before this time, in nanoseconds.
    Until(u64),
    /// The packet may not go before this tick.
    Tick(u64),
}

/// The time at which the engine checks a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    /// The monotonic clock, in nanoseconds; 0 if no setting needs it.
    pub now: u64,
    /// The tick.
    pub tick: u64,
    /// The time since which the packet's queue has had something to send, in nanoseconds.
    pub since: u64,
    /// The packet's arrival time, in nanoseconds.
    pub came: u64,
    /// `true` if the packet continues a message that has begun.
    pub continues_message: bool,
}

/// An endpoint's settings and its current state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The settings.
    pub set: Shaping,
    bits: Option<Bucket>,
    frames: Option<Bucket>,
    /// The tick of the last packet sent, and the number of packets sent in it.
    tick: u64,
    used: u32,
}

impl Shape {
    /// Returns the shape of an endpoint that has sent nothing yet.
    #[must_use]
    pub(crate) fn new(set: Shaping) -> Shape {
        let bits = |rate| Bucket::bits(rate, u64::from(set.burst_bytes), set.pacing);
        let frames = |rate| Bucket::frames(rate, u64::from(set.burst_packets), set.pacing);
        Shape {
            set,
            bits: (set.rate_bps > 0).then(|| bits(set.rate_bps)),
            frames: (set.rate_pps > 0).then(|| frames(set.rate_pps)),
            tick: 0,
            used: 0,
        }
    }

    /// Returns the shape with other settings. Packets already sent stay charged: a change of
    /// settings gives no full bucket and no new quota.
    #[must_use]
    pub(crate) fn changed(&self, set: Shaping, now: u64) -> Shape {
        let mut new = Shape::new(set);
        let (bytes, packets) =
            (MOST_OWED_BYTES + u64::from(set.max_message_bytes), MOST_OWED_PACKETS);
        if let (Some(new), Some(old)) = (&mut new.bits, &self.bits) {
            *new = new.instead_of(old, bytes, now);
        }
        if let (Some(new), Some(old)) = (&mut new.frames, &self.frames) {
            *new = new.instead_of(old, packets, now);
        }
        (new.tick, new.used) = (self.tick, self.used);
        new
    }

    /// Returns `true` if the shape needs the clock.
    #[must_use]
    pub(crate) fn takes_time(&self) -> bool {
        self.set.takes_time()
    }

    /// Decides whether a packet of `len` bytes may go.
    #[must_use]
    pub(crate) fn gate(&self, len: u32, at: &Moment) -> Gate {
        let multiple = u64::from(self.set.tick_multiple.max(1));
        // Ticks may be missed, and the endpoint's turn may come late. The endpoint sends in the
        // first tick since its multiple, until that tick ends.
        if self.tick != at.tick && self.tick / multiple == at.tick / multiple {
            return Gate::Tick((at.tick + 1).next_multiple_of(multiple));
        }
        if self.set.quota > 0 && self.tick == at.tick && self.used >= self.set.quota {
            return Gate::Tick((at.tick + 1).next_multiple_of(multiple));
        }
        let bits = self.bits.map_or(0, |bucket| bucket.eligible(u64::from(len)));
        let eligible = bits.max(self.frames.map_or(0, |bucket| bucket.eligible(1)));
        // A message that has begun continues and pays later.
        let leaves = if at.continues_message { at.now } else { at.now.max(eligible) };
        if self.set.max_delay_us > 0
            && leaves.saturating_sub(at.came) > u64::from(self.set.max_delay_us) * 1000
        {
            return Gate::Late;
        }
        if leaves > at.now { Gate::Until(leaves) } else { Gate::Open }
    }

    /// Charges the endpoint for bytes beyond those of its packets.
    pub(crate) fn charge_bytes(&mut self, bytes: u64, at: &Moment) {
        if let Some(bucket) = &mut self.bits {
            bucket.charge(bytes, at.now, at.since);
        }
    }

    /// Charges the endpoint for a packet of `len` bytes.
    pub(crate) fn charge(&mut self, len: u32, at: &Moment) {
        if self.tick != at.tick {
            (self.tick, self.used) = (at.tick, 0);
        }
        self.used = self.used.saturating_add(1);
        if let Some(bucket) = &mut self.bits {
            bucket.charge(u64::from(len), at.now, at.since);
        }
        if let Some(bucket) = &mut self.frames {
            bucket.charge(1, at.now, at.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_us: u64, tick: u64) -> Moment {
        Moment {
            now: now_us * 1000,
            tick,
            since: now_us * 1000,
            came: now_us * 1000,
            continues_message: false,
        }
    }

    #[test]
    fn a_quota_is_for_one_tick_and_a_multiple_for_each_third() {
        let mut shape = Shape::new(Shaping { quota: 2, tick_multiple: 3, ..Shaping::default() });
        let mut sent = [0; 12];
        for tick in 1..12 {
            loop {
                match shape.gate(60, &at(0, tick)) {
                    Gate::Open => {
                        shape.charge(60, &at(0, tick));
                        sent[tick as usize] += 1;
                    }
                    Gate::Tick(next) => {
                        assert!(next > tick && next.is_multiple_of(3) && next - tick <= 3);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(sent, [0, 0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn a_multiple_that_was_missed_is_made_up_for_once() {
        let mut shape = Shape::new(Shaping { tick_multiple: 10, ..Shaping::default() });
        let mut sent = Vec::new();
        // The test misses every multiple, some by more than others.
        for tick in [1, 9, 11, 12, 19, 21, 23, 48, 49, 51, 52, 99, 101, 1_000_001, 1_000_002] {
            for _ in 0..2 {
                match shape.gate(60, &at(0, tick)) {
                    Gate::Open => {
                        shape.charge(60, &at(0, tick));
                        sent.push(tick);
                    }
                    Gate::Tick(next) => assert!(next > tick && next - tick < 10, "{tick} {next}"),
                    other => panic!("{other:?}"),
                }
            }
        }
        let open = [11, 21, 48, 51, 99, 101, 1_000_001];
        assert_eq!(sent, open.map(|tick| [tick, tick]).concat());
        // If no multiple is missed, the endpoint keeps to them.
        let kept = (1_000_003..1_000_100).filter(|tick| {
            let open = shape.gate(60, &at(0, *tick)) == Gate::Open;
            if open {
                shape.charge(60, &at(0, *tick));
            }
            open
        });
        assert!(kept.collect::<Vec<_>>().iter().all(|tick| tick.is_multiple_of(10)));
    }

    #[test]
    fn a_packet_beyond_its_delay_is_late_and_not_charged() {
        let set = Shaping {
            rate_bps: 12_000_000,
            pacing: true,
            max_delay_us: 2500,
            ..Shaping::default()
        };
        let mut shape = Shape::new(set);
        let first = at(1000, 0);
        assert_eq!(shape.gate(1500, &first), Gate::Open);
        shape.charge(1500, &first);
        // The rate is one packet per millisecond: a packet that came with the first waits one, two,
        // three.
        assert_eq!(shape.gate(1500, &first), Gate::Until(2_000_000));
        let later = |now_us: u64| Moment { now: now_us * 1000, ..first };
        shape.charge(1500, &later(2000));
        shape.charge(1500, &later(3000));
        assert_eq!(shape.gate(1500, &later(3000)), Gate::Late);
        assert_eq!(shape.gate(1500, &at(3000, 0)), Gate::Until(4_000_000));
        // A packet can also be late without a rate, because others kept it waiting.
        let shape = Shape::new(Shaping { max_delay_us: 500, ..Shaping::default() });
        assert_eq!(shape.gate(60, &later(1500)), Gate::Open);
        assert_eq!(shape.gate(60, &later(1501)), Gate::Late);
    }

    #[test]
    fn a_change_of_settings_fills_no_bucket() {
        let set = Shaping { rate_bps: 12_000_000, burst_bytes: 3000, ..Shaping::default() };
        let mut shape = Shape::new(set);
        let first = at(10_000, 0);
        let mut sent = 0;
        for round in 0..100 {
            while shape.gate(1500, &first) == Gate::Open {
                shape.charge(1500, &first);
                sent += 1;
            }
            shape = shape.changed(Shaping { pacing: round % 2 == 0, ..set }, first.now);
        }
        assert_eq!(sent, 2, "3000 bytes of burst");
        // After a change from a very low rate to a high one, the endpoint does not wait for the low
        // rate's debt.
        let low = Shaping { rate_bps: 1000, ..Shaping::default() };
        let mut shape = Shape::new(low);
        shape.charge(60_000, &first);
        let Gate::Until(long) = shape.gate(60_000, &first) else { panic!("open") };
        let shape = shape.changed(Shaping { rate_bps: 1_000_000_000, ..low }, first.now);
        let Gate::Until(short) = shape.gate(60_000, &first) else { panic!("open") };
        assert!(long > 400_000_000_000 && short < first.now + 10_000_000, "{long} {short}");
    }

    #[test]
    fn a_message_that_has_begun_goes_on_and_is_paid_later() {
        let set = Shaping { rate_pps: 1000, pacing: true, ..Shaping::default() };
        let mut shape = Shape::new(set);
        let first = at(1000, 0);
        shape.charge(60, &first);
        for _ in 0..9 {
            let next = Moment { continues_message: true, ..first };
            assert_eq!(shape.gate(60, &next), Gate::Open);
            shape.charge(60, &next);
        }
        assert_eq!(shape.gate(60, &first), Gate::Until(11_000_000));
    }
}

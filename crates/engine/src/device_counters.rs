//! The state page, which tools and applications read: the engine's epoch and heartbeat, and the
//! counters of the device and its engine.

use towpath_memory::{Region, own_words};
use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::layout::{
    DEVICE_COUNTERS, STATE_COUNTERS_WORD, STATE_EPOCH_WORD, STATE_HEARTBEAT_WORD, STATE_SLEEP_WORD,
};
use towpath_queue::OwnWords;
use towpath_queue::word::LINE_WORDS;

/// The epoch, the heartbeat and the counters in the state page.
#[derive(Debug)]
pub(crate) struct DeviceCounters {
    header: OwnWords,
    words: OwnWords,
    /// The counters when the engine started: those of earlier servers.
    earlier: Vec<u64>,
}

impl DeviceCounters {
    /// Takes over the state page, and publishes the epoch. Also returns the words of the engine's
    /// sleep flag.
    pub(crate) fn new(state: Region, epoch: u64) -> (DeviceCounters, OwnWords) {
        let mut words = own_words(state);
        let mut header = words.split_off_front(LINE_WORDS);
        let flag = words.split_off_front(STATE_COUNTERS_WORD - STATE_SLEEP_WORD);
        let words = words.split_off_front(DEVICE_COUNTERS);
        header.publish(STATE_EPOCH_WORD, epoch);
        let earlier = (0..words.len()).map(|word| words.get(word)).collect();
        (DeviceCounters { header, words, earlier }, flag)
    }

    /// Shows that the engine works.
    #[inline]
    pub(crate) fn beat(&mut self, iteration: u64) {
        self.header.store(STATE_HEARTBEAT_WORD, iteration);
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn add(&mut self, count: Count, by: u64) {
        counters::add(&mut self.words, count as usize, by);
    }

    /// Sets a counter that another part of this engine keeps, which goes on from that of the engine
    /// before.
    pub(crate) fn set(&mut self, count: Count, value: u64) {
        let earlier = self.earlier[count as usize];
        let all = match count {
            Count::TickLatestNs => earlier.max(value),
            _ => earlier.wrapping_add(value),
        };
        self.words.store(count as usize, all);
    }

    /// Returns a counter's value.
    #[cfg(test)]
    pub(crate) fn get(&self, count: Count) -> u64 {
        self.words.get(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use towpath_device::{Device, Meta};
    use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
    use towpath_device_testing::loopback::{self, Reception};
    use towpath_protocol::settings::Values;

    use super::*;
    use crate::WaitStrategy;
    use crate::wiring::{BUDGETS, Wired};

    /// The most poll iterations until a new engine publishes a drop. A killed server loses the drops that it has not
    /// published, and the next server may be killed as well.
    const SOON: usize = 64;
    const DATA_BYTES: usize = 64;

    #[test]
    fn an_engine_that_does_not_sleep_publishes_the_drivers_drops_soon_after_its_start() {
        let reception = Reception { data_bytes: Some(DATA_BYTES), ..Reception::default() };
        let config = loopback::Config { reception, mtu: 9000, ..loopback::Config::default() };
        let (mut near, far) = loopback::pair(&config).unwrap();
        let too_long = (near.info().limits.rx_packet_buffers + 1) * DATA_BYTES;
        let values = Values::from(WaitStrategy::Poll);
        let mut engine = Wired::new(&mut near, &values, BUDGETS).unwrap().engine;
        let mut far = DeviceFarEnd::new(Box::new(far));
        for drops in 1..=2 {
            assert!(far.send(&vec![7; too_long], Meta::FULL));
            for _ in 0..SOON {
                engine.poll_once().unwrap();
            }
            assert_eq!(engine.counters().get(Count::RxDriver), drops);
        }
    }
}

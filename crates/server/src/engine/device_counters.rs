//! Counters of the device and its engine that other parts keep: the driver, the hand-off, the
//! waiter, the flow table. The engine copies them into the state page before each sleep and
//! periodically.

use towpath_protocol::counters::Device as Count;

use crate::engine::Engine;
use crate::engine::demux::Direction;

impl Engine {
    /// Publishes the counts that are kept outside the state page.
    pub(crate) fn publish_device_counters(&mut self) {
        let (driver, handed) = (self.device.counters(), self.handoff.counts);
        let waited = self.counted.and(self.waiter.counted());
        let flows = self.flows.counts(Direction::Received) + self.flows.counts(Direction::Sent);
        for (count, value) in [
            (Count::RxDriver, driver.rx_dropped),
            (Count::TxDriver, driver.tx_dropped),
            (Count::DriverCalls, driver.system_calls),
            (Count::TxPackets, handed.taken),
            (Count::TxBytes, handed.taken_bytes),
            (Count::Backlogged, handed.backlogged),
            (Count::TxDirect, handed.direct),
            (Count::TxQueued, handed.queued),
            (Count::TxDrained, handed.drained),
            (Count::TxFull, handed.full),
            (Count::TxExpedited, handed.expedited),
            (Count::SessionPolls, self.active.counts.polls),
            (Count::SessionsParked, self.active.counts.parks),
            (Count::DoorbellPolls, self.active.counts.asked),
            (Count::Ticks, waited.ticks),
            (Count::TicksMissed, waited.missed),
            (Count::TicksLateNs, waited.late_ns),
            (Count::TickLatestNs, waited.latest_ns),
            (Count::WaitSwitches, waited.switches),
            (Count::LatePackets, waited.late_packets),
            (Count::SpinsPreempted, waited.preempted),
            (Count::Throttled, waited.throttled),
            (Count::TicksAwake, waited.awake),
            (Count::FlowLookups, flows.lookups),
            (Count::FlowCompared, flows.compared),
            (Count::FlowHits, flows.hits),
            (Count::FlowSwitches, flows.switches),
            (Count::WatchdogArms, self.watchdog.counts.arms),
            (Count::WatchdogChecks, self.watchdog.counts.checks),
            (Count::DeviceStalls, self.watchdog.counts.stalls),
            (Count::DeviceResets, self.watchdog.counts.resets),
        ] {
            self.counters.store(count as usize, value);
        }
    }
}

//! The counts of the engine's parts, as the state page shows them.

use towpath_protocol::counters::Device as Count;

use super::Engine;

impl Engine {
    /// Publishes the counts of other parts in the state page: before each sleep, and periodically.
    pub(super) fn publish_counts(&mut self) {
        let (driver, device) = (self.port.driver_counters(), self.port.counts());
        let (handed, waited) = (self.tx.handoff_counts(), self.wait.counts());
        let (flows, classes, cached) = self.flows.summary();
        let (sessions, dog) = (self.sessions.counts(), self.port.watchdog_counts());
        for (count, value) in [
            (Count::RxDriver, driver.rx_dropped),
            (Count::TxDriver, driver.tx_dropped),
            (Count::DriverCalls, driver.system_calls),
            (Count::RxSoftwareOffloads, self.software.packets),
            (Count::TxPackets, device.taken),
            (Count::TxBytes, device.taken_bytes),
            (Count::Backlogged, handed.backlogged),
            (Count::TxDirect, handed.direct),
            (Count::TxQueued, handed.queued),
            (Count::TxDrained, handed.drained),
            (Count::TxFull, handed.full),
            (Count::TxExpedited, handed.expedited),
            (Count::SessionPolls, sessions.polls),
            (Count::SessionsParked, sessions.parks),
            (Count::DoorbellPolls, sessions.asked),
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
            (Count::FlowClasses, classes),
            (Count::FlowCacheClasses, cached),
            (Count::WatchdogArms, dog.arms),
            (Count::WatchdogStops, dog.stops),
            (Count::WatchdogChecks, dog.checks),
            (Count::DeviceStalls, dog.stalls),
            (Count::DeviceResets, dog.resets),
        ] {
            self.counters.set(count, value);
        }
    }
}

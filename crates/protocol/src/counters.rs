//! What is counted, and where.
//!
//! Counters are words of shared memory with one writer, the engine. An endpoint's stand in its
//! session's server pages, so that the application reads them without asking; the device's stand
//! in the state page, which every session may read. Every drop has a counter, on the endpoint that
//! it concerns where there is one.

use towpath_queue::{OwnWords, PeerWords};

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Endpoint {
    /// Packets delivered to the application.
    RxPackets,
    /// Their bytes.
    RxBytes,
    /// Packets sent: to the device, or to another endpoint.
    TxPackets,
    /// Their bytes.
    TxBytes,
    /// Dropped on receive: the application had provided too few frames.
    RxNoFrames,
    /// Dropped on receive: packets, or segments of large ones, over the endpoint's budget for one turn.
    RxOverBudget,
    /// Dropped on receive: metadata that contradict the packet, or a packet that cannot be cut.
    RxUnusable,
    /// Not sent: mangled headers, or metadata that contradict them; a large packet of another length than
    /// its IP header states, or for a group.
    TxMalformed,
    /// Not sent: a source MAC address, or one claimed in ARP or neighbour discovery, that is not the
    /// endpoint's.
    TxSourceMac,
    /// Not sent: a source IP address, or an address claimed in ARP or neighbour discovery, that is
    /// not the endpoint's.
    TxSourceAddress,
    /// Not sent: a VLAN, ethertype, protocol or port that is not the endpoint's, or what only routers, DHCP
    /// servers, queriers and switches send.
    TxOutsideRule,
    /// Not sent: longer than the MTU allows, or cut into more than 128 segments.
    TxTooLong,
    /// Copies made on receive, one a packet.
    RxCopies,
    /// Copies made on transmit: headers, or whole packets.
    TxCopies,
    /// Not sent: it waited longer for its turn than the endpoint's maximum delay.
    TxLate,
}

impl Endpoint {
    /// All, in the order of their words, with the names that reports use.
    pub const ALL: [(Endpoint, &'static str); 15] = [
        (Endpoint::RxPackets, "rx_packets"),
        (Endpoint::RxBytes, "rx_bytes"),
        (Endpoint::TxPackets, "tx_packets"),
        (Endpoint::TxBytes, "tx_bytes"),
        (Endpoint::RxNoFrames, "rx_dropped_no_frames"),
        (Endpoint::RxOverBudget, "rx_dropped_over_budget"),
        (Endpoint::RxUnusable, "rx_dropped_unusable"),
        (Endpoint::TxMalformed, "tx_dropped_malformed"),
        (Endpoint::TxSourceMac, "tx_dropped_source_mac"),
        (Endpoint::TxSourceAddress, "tx_dropped_source_address"),
        (Endpoint::TxOutsideRule, "tx_dropped_outside_rule"),
        (Endpoint::TxTooLong, "tx_dropped_too_long"),
        (Endpoint::RxCopies, "rx_copies"),
        (Endpoint::TxCopies, "tx_copies"),
        (Endpoint::TxLate, "tx_dropped_late"),
    ];
}

const _: () = assert!(Endpoint::ALL.len() <= crate::layout::ENDPOINT_COUNTERS);

/// Counters of the device and its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Device {
    /// Packets that came from the device.
    RxPackets,
    /// Their bytes.
    RxBytes,
    /// Packets that the device took, each as often as it was given it: see [`Device::TxAgain`].
    TxPackets,
    /// Their bytes.
    TxBytes,
    /// Received, and nobody had asked for them.
    RxNobody,
    /// Received, and mangled.
    RxMalformed,
    /// Dropped by the driver on receive.
    RxDriver,
    /// Dropped by the driver on transmit.
    TxDriver,
    /// Delivered from endpoint to endpoint without the device.
    LocalPackets,
    /// The device had no room: packets waited in the backlog.
    Backlogged,
    /// Turns of the engine that found something to do.
    BusyTurns,
    /// Times that the engine went to sleep.
    Sleeps,
    /// Sessions woken.
    Rings,
    /// Sessions closed for a violation.
    Violations,
    /// System calls of the driver.
    DriverCalls,
    /// Packets to the device that the engine had to finish or cut in software.
    TxSoftware,
    /// Dropped on transmit: they waited for the device when their session ended.
    TxEnded,
    /// Sessions with news that were not rung: they were awake, or look by the clock.
    RingsSaved,
    /// Rings that were put off or not repeated: one ring served several turns.
    RingsMerged,
    /// Ticks of the clock that were kept.
    Ticks,
    /// Ticks that passed while there was work, or that sleep took too long for.
    TicksMissed,
    /// How much too late ticks were, all together, in nanoseconds.
    TicksLateNs,
    /// How much too late the latest tick was, in nanoseconds.
    TickLatestNs,
    /// Changes that mode=auto made between its ways of waiting.
    ModeSwitches,
    /// Packets, received or to be sent, that mode=auto found later than its bound, at the worst.
    LatePackets,
    /// Times that mode=auto waited for its bound on processor time.
    Throttled,
    /// Flow lookups: packets received, and packets sent that may be for an endpoint of this host.
    FlowLookups,
    /// Of these, compared with the last flow. By compared minus hits, it is the mean length of a
    /// train.
    FlowCompared,
    /// Of those compared, the last flow's again: answered by the cache.
    FlowHits,
    /// Times that the last-flow cache was put to use, or to rest.
    FlowSwitches,
    /// Given to the device as they were checked, with nothing waiting before them.
    TxDirect,
    /// Put into the backlog.
    TxQueued,
    /// Taken out of the backlog by the device.
    TxDrained,
    /// Times that the device took fewer packets than it was offered.
    TxFull,
    /// Small packets that went past the others to the device.
    TxSmall,
    /// Sessions looked at for something to send, in turns and before sleeps.
    SessionLooks,
    /// Sessions that the engine looks at no more until they ring.
    SessionRests,
    /// Times that an awake engine asked who had rung.
    RingsAsked,
    /// Times that the watchdog set a deadline, or scheduled a check when none was.
    WatchdogArms,
    /// Times that the watchdog looked whether the device gave anything back.
    WatchdogChecks,
    /// Stalls of the device: it gave back nothing for the watchdog's window.
    DeviceStalls,
    /// Resets of a stalled device: one for each window of a stall.
    DeviceResets,
    /// Packets that a stalled device had kept, and that were given to it again.
    TxAgain,
    /// Times that the kernel took the processor from the spinning engine, for somebody else: it
    /// does not spin for a while then.
    SpinsPutAside,
    /// Rings to applications half of whose frames were used.
    RingsHalf,
    /// Of the ticks kept, those that the engine stayed awake for: `clock_hz` is more than sleep holds.
    TicksAwake,
    /// Of the rings made, those left to the worker of the application's user.
    RingsRelayed,
}

impl Device {
    /// All, in the order of their words, with the names that reports use.
    pub const ALL: [(Device, &'static str); 47] = [
        (Device::RxPackets, "rx_packets"),
        (Device::RxBytes, "rx_bytes"),
        (Device::TxPackets, "tx_packets"),
        (Device::TxBytes, "tx_bytes"),
        (Device::RxNobody, "rx_dropped_nobody"),
        (Device::RxMalformed, "rx_dropped_malformed"),
        (Device::RxDriver, "rx_dropped_driver"),
        (Device::TxDriver, "tx_dropped_driver"),
        (Device::LocalPackets, "local_packets"),
        (Device::Backlogged, "tx_backlogged"),
        (Device::BusyTurns, "busy_turns"),
        (Device::Sleeps, "sleeps"),
        (Device::Rings, "rings"),
        (Device::Violations, "violations"),
        (Device::DriverCalls, "driver_calls"),
        (Device::TxSoftware, "tx_finished_in_software"),
        (Device::TxEnded, "tx_dropped_session_ended"),
        (Device::RingsSaved, "rings_saved"),
        (Device::RingsMerged, "rings_merged"),
        (Device::Ticks, "ticks"),
        (Device::TicksMissed, "ticks_missed"),
        (Device::TicksLateNs, "ticks_late_ns"),
        (Device::TickLatestNs, "tick_latest_ns"),
        (Device::ModeSwitches, "mode_switches"),
        (Device::LatePackets, "late_packets"),
        (Device::Throttled, "throttled"),
        (Device::FlowLookups, "flow_lookups"),
        (Device::FlowCompared, "flow_compared"),
        (Device::FlowHits, "flow_cache_hits"),
        (Device::FlowSwitches, "flow_cache_switches"),
        (Device::TxDirect, "tx_direct"),
        (Device::TxQueued, "tx_queued"),
        (Device::TxDrained, "tx_drained"),
        (Device::TxFull, "tx_full"),
        (Device::TxSmall, "tx_small"),
        (Device::SessionLooks, "session_looks"),
        (Device::SessionRests, "session_rests"),
        (Device::RingsAsked, "rings_asked"),
        (Device::WatchdogArms, "watchdog_arms"),
        (Device::WatchdogChecks, "watchdog_checks"),
        (Device::DeviceStalls, "device_stalls"),
        (Device::DeviceResets, "device_resets"),
        (Device::TxAgain, "tx_sent_again"),
        (Device::SpinsPutAside, "spins_put_aside"),
        (Device::RingsHalf, "rings_half"),
        (Device::TicksAwake, "ticks_awake"),
        (Device::RingsRelayed, "rings_relayed"),
    ];
}

const _: () = assert!(Device::ALL.len() <= crate::layout::DEVICE_COUNTERS);

/// Adds to a counter.
#[inline]
pub fn add(words: &mut OwnWords, index: usize, by: u64) {
    let value = words.get(index).wrapping_add(by);
    words.store(index, value);
}

/// Reads counters, from whichever side.
#[must_use]
pub fn read<const N: usize, T: Copy>(
    words: &PeerWords,
    start: usize,
    all: &[(T, &'static str); N],
) -> Vec<(&'static str, u64)> {
    all.iter().enumerate().map(|(place, (_, name))| (*name, words.fetch(start + place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_order() {
        assert!(Endpoint::ALL.iter().enumerate().all(|(place, (c, _))| *c as usize == place));
        assert!(Device::ALL.iter().enumerate().all(|(place, (c, _))| *c as usize == place));
    }
}

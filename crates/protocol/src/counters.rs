//! The counters, and their location.
//!
//! Counters are words of shared memory with one writer, the engine. An endpoint's counters are in
//! its session's server pages, so that the application reads them without a request. The device's
//! counters are in the state page, which sessions of administrators may read. Each drop counts on the endpoint
//! concerned if there is one, else on the device.
//!
//! `docs/counters.md` shows each counter's name and its description from here; a test compares
//! them.

use towpath_queue::oob::COUNTER_WORDS;
use towpath_queue::{OwnWords, PeerWords};

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Endpoint {
    // The engine counts the first three, and the next three, with one call per packet.
    /// Packets delivered to the application.
    RxPackets,
    /// Bytes of the packets delivered to the application.
    RxBytes,
    /// Copies made on receive: one per packet, and none for a packet that the device put into the
    /// session's own buffer.
    RxCopies,
    /// Packets sent: to the device, or to another endpoint.
    TxPackets,
    /// Bytes of the packets sent.
    TxBytes,
    /// Copies made on transmit: headers, or whole packets.
    TxCopies,
    /// Dropped on receive, because the application had provided too few buffers.
    RxNoBuffers,
    /// Dropped on receive: packets, or segments of large packets, over the endpoint's budget for
    /// one poll iteration (`--receive-budget`).
    RxOverBudget,
    /// Dropped on receive: metadata that contradict the packet, a packet that the engine cannot
    /// segment, or one that needs more than 48 of the endpoint's buffers.
    RxUnusable,
    /// Not sent: malformed headers, or metadata that contradict them; or a large packet that is not
    /// as long as its IP header states, or that is broadcast or multicast.
    TxMalformed,
    /// Not sent: a source MAC address, or one claimed in ARP or neighbour discovery, that is not
    /// the endpoint's.
    TxSourceMac,
    /// Not sent: a source IP address, or an address claimed in ARP or neighbour discovery, that is
    /// not the endpoint's.
    TxSourceAddress,
    /// Not sent: a VLAN, ethertype, protocol or port that is not the endpoint's, or a packet that
    /// only routers, DHCP servers, queriers and switches send; or the endpoint is closed, or is
    /// only a capture.
    TxOutsideRule,
    /// Not sent: longer than the MTU allows, or to be segmented into more than 128 segments.
    TxTooLong,
    /// Not sent: the packet waited in its queue longer than the endpoint's maximum delay.
    TxLate,
}

impl Endpoint {
    /// All counters, in the order of their words, with the names that reports use.
    pub const ALL: [(Endpoint, &'static str); 15] = [
        (Endpoint::RxPackets, "rx_packets"),
        (Endpoint::RxBytes, "rx_bytes"),
        (Endpoint::RxCopies, "rx_copies"),
        (Endpoint::TxPackets, "tx_packets"),
        (Endpoint::TxBytes, "tx_bytes"),
        (Endpoint::TxCopies, "tx_copies"),
        (Endpoint::RxNoBuffers, "rx_dropped_no_buffers"),
        (Endpoint::RxOverBudget, "rx_dropped_over_budget"),
        (Endpoint::RxUnusable, "rx_dropped_unusable"),
        (Endpoint::TxMalformed, "tx_dropped_malformed"),
        (Endpoint::TxSourceMac, "tx_dropped_source_mac"),
        (Endpoint::TxSourceAddress, "tx_dropped_source_address"),
        (Endpoint::TxOutsideRule, "tx_dropped_outside_rule"),
        (Endpoint::TxTooLong, "tx_dropped_too_long"),
        (Endpoint::TxLate, "tx_dropped_late"),
    ];
}

const _: () = assert!(Endpoint::ALL.len() <= crate::layout::ENDPOINT_REVOKED_WORD);

/// Counters of an endpoint's out-of-band messages. They are beside its queue, so only a session with
/// such queues has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum OutOfBand {
    /// Out-of-band messages put into the endpoint's queue.
    Received,
    /// Out-of-band messages for the endpoint that the engine dropped, because its queue was full.
    DroppedFull,
    /// Out-of-band messages for the endpoint that the engine dropped, because the queue had as many
    /// messages or requests of the sender's session as it may have: a quarter.
    DroppedShare,
    /// Out-of-band messages that the endpoint sent, and the engine put into another queue.
    Sent,
    /// Out-of-band messages that the endpoint sent, and the engine dropped, because no endpoint of
    /// this server takes messages at their address.
    DroppedNoEndpoint,
    /// Out-of-band messages that the endpoint sent, and the engine dropped, because the policy lets
    /// the two users exchange none.
    DroppedPolicy,
    /// Out-of-band messages that the endpoint sent, and the engine dropped, because they do not fit
    /// the state of a connection.
    DroppedState,
}

impl OutOfBand {
    /// All counters, in the order of their words, with the names that reports use.
    pub const ALL: [(OutOfBand, &'static str); 7] = [
        (OutOfBand::Received, "oob_received"),
        (OutOfBand::DroppedFull, "oob_dropped_full"),
        (OutOfBand::DroppedShare, "oob_dropped_share"),
        (OutOfBand::Sent, "oob_sent"),
        (OutOfBand::DroppedNoEndpoint, "oob_dropped_no_endpoint"),
        (OutOfBand::DroppedPolicy, "oob_dropped_policy"),
        (OutOfBand::DroppedState, "oob_dropped_state"),
    ];
}

const _: () = assert!(OutOfBand::ALL.len() <= COUNTER_WORDS);

/// Counters of the device and its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Device {
    /// Packets that the engine took from the device.
    RxPackets,
    /// Bytes of the packets that the engine took from the device.
    RxBytes,
    /// Packets that the device took; the count includes each resubmission: see
    /// [`Device::TxResubmitted`].
    TxPackets,
    /// Bytes of the packets that the device took.
    TxBytes,
    /// Dropped on receive, because no endpoint's flow rule matched.
    RxNoMatch,
    /// Dropped on receive: headers that contradict themselves or the packet's length.
    RxMalformed,
    /// Packets that the driver dropped on receive, such as those longer than a buffer, or with
    /// impossible metadata; with AF_XDP and packet sockets also those for which the kernel had no
    /// room in the driver's rings; with AF_XDP also those that matched a rule on a hardware queue
    /// without a socket, or on the hardware queue of another session; with an Intel 82574L also
    /// those for which the card had no buffer.
    RxDriver,
    /// Packets that the driver dropped on transmit, such as those that the kernel refused, that the
    /// interface's queue (qdisc) dropped, or for which a session's own hardware queue had no room.
    TxDriver,
    /// Packets that the engine delivered from endpoint to endpoint, without the device.
    LocalPackets,
    /// Packets that waited in the backlog because the device had no room; each counts once.
    Backlogged,
    /// Poll iterations with work.
    BusyIterations,
    /// Times that the engine went to sleep.
    Sleeps,
    /// Notifications to applications.
    Notifications,
    /// Sessions that the server closed for a violation.
    Violations,
    /// System calls of the driver.
    DriverCalls,
    /// Packets to the device whose checksum or segments the engine had to make in software.
    TxSoftwareOffloads,
    /// Dropped on transmit, because their session ended while they waited for the device. Of packets that the engine
    /// had not taken from the session's transmit queues, it counts each buffer.
    TxEnded,
    /// Suppressed notifications: the session had news, and its application was awake or
    /// timer-driven.
    NotificationsSuppressed,
    /// Merged notifications: the engine deferred them, or did not repeat one that the application
    /// had not taken yet. So one notification served several poll iterations.
    NotificationsMerged,
    /// Ticks at which the engine polled.
    Ticks,
    /// Ticks that the engine missed, because it worked or its sleep took too long.
    TicksMissed,
    /// Total delay of the ticks at which the engine polled, in nanoseconds.
    TicksLateNs,
    /// The largest delay of a tick, in nanoseconds.
    TickLatestNs,
    /// Changes of wait strategy that wait=auto made.
    WaitSwitches,
    /// Packets, received or to be sent, that the engine may have found later than `latency_us`
    /// and an eighth of it (wait=auto).
    LatePackets,
    /// Times that the engine slept because it had used up `cpu_percent` (wait=auto).
    Throttled,
    /// Flow lookups: of received packets, and of sent packets that may be for an endpoint of this
    /// host.
    FlowLookups,
    /// Of the flow lookups, those that compared the packet with the last flow of its class. The mean
    /// length of a train is compared / (compared - hits).
    FlowCompared,
    /// Of the flow lookups that compared, those that found the last flow again.
    FlowHits,
    /// Times that the engine switched the last-flow cache of a class of traffic on or off.
    FlowSwitches,
    /// Packets that the device took without the backlog (handoff=direct).
    TxDirect,
    /// Packets put into the backlog.
    TxQueued,
    /// Packets of the backlog that the device took.
    TxDrained,
    /// Times that the device took fewer packets than the engine offered.
    TxFull,
    /// Expedited packets sent ahead of the others to the device.
    TxExpedited,
    /// Polls of active sessions for packets to send, in poll iterations and before sleeps.
    SessionPolls,
    /// Times that the engine parked a session: it polls a parked session only after a notification.
    SessionsParked,
    /// Times that an awake engine checked which sessions had sent a notification.
    DoorbellPolls,
    /// Times that the watchdog started its timer, or scheduled a check when none was scheduled.
    WatchdogArms,
    /// Times that the watchdog compared the clock with its timer, or made a check.
    WatchdogChecks,
    /// Stalls of the device: it completed none of its packets for `watchdog_ms`.
    DeviceStalls,
    /// Resets of a stalled device: one for each `watchdog_ms` of a stall.
    DeviceResets,
    /// Packets that a stalled device had kept, and that the engine resubmitted.
    TxResubmitted,
    /// Times that a poll of the spinning engine took so long that another thread must have had its
    /// processor. The engine then does not spin for a while.
    SpinsPreempted,
    /// Notifications that the engine sent early, because half of the application's buffers were
    /// used.
    NotificationsEarly,
    /// Of the ticks at which the engine polled, those before which it stayed awake: at this
    /// `tick_hz`, ticks are too close for a sleep.
    TicksAwake,
    /// Of the notifications, those that the worker of the application's user sent.
    NotificationsRelayed,
    /// Dropped on transmit, because the device's link was down and the backlog full
    /// (link_down=drop).
    TxLinkDown,
    /// Dropped on receive: a packet in more than 49 of the device's buffers.
    RxTooManyBuffers,
    /// Requests for link addresses that the engine dropped, because 64 of the same endpoint waited
    /// for answers, or 64 came in one poll iteration.
    TxNeighbourRequests,
    /// Received packets with a partial checksum, which their sender left to the receiver. With
    /// AF_XDP these are TCP and UDP packets whose checksum equals the sum of the pseudo-header.
    RxPartial,
    /// Deliveries to endpoints that take no offloads, for which the engine completed the checksum
    /// or made the segments in software; also between endpoints of this host.
    RxSoftwareOffloads,
    /// Times that the watchdog stopped its timer for a completed packet (watchdog=eager).
    WatchdogStops,
    /// Classes of traffic (ethertype, IP version and protocol, by a hash with 16 values) that had flow
    /// lookups, each direction apart.
    FlowClasses,
    /// Of the classes of traffic with flow lookups, those whose last flow the engine uses now.
    FlowCacheClasses,
    /// Received packets to a multicast or the broadcast address (I/G bit set, IEEE 802), with or without a
    /// receiver.
    RxGroup,
    /// Packets to a multicast or the broadcast address that sessions sent. Each counts once, for the device and
    /// the endpoints of this host together.
    TxGroup,
    /// Received packets of connections with other hosts (RoCEv2).
    RdmaRxPackets,
    /// Sent packets of connections with other hosts, those sent again included, but not the messages that make and end
    /// connections.
    RdmaTxPackets,
    /// Of `rdma_tx_packets`, those sent again, since the other host had not acknowledged them.
    RdmaRetransmitted,
    /// Dropped packets to UDP port 4791 that are malformed, or whose check value is wrong.
    RdmaMalformed,
    /// Dropped packets of connections with other hosts that do not exist here, or not with their
    /// sender or partition key, or whose endpoint has left.
    RdmaNoConnection,
    /// Dropped packets for connections with other hosts, and of ARP and neighbour discovery, because too
    /// many came or went in one poll iteration, because one was longer than any of a connection, or because
    /// tripwires had used the budget.
    RdmaOverBudget,
    /// Answers that the engine sent for the addresses of ended sessions: resets, "port unreachable", and link
    /// addresses.
    FreedAnswers,
}

impl Device {
    /// All counters, in the order of their words, with the names that reports use.
    pub const ALL: [(Device, &'static str); 64] = [
        (Device::RxPackets, "rx_packets"),
        (Device::RxBytes, "rx_bytes"),
        (Device::TxPackets, "tx_packets"),
        (Device::TxBytes, "tx_bytes"),
        (Device::RxNoMatch, "rx_dropped_no_match"),
        (Device::RxMalformed, "rx_dropped_malformed"),
        (Device::RxDriver, "rx_dropped_driver"),
        (Device::TxDriver, "tx_dropped_driver"),
        (Device::LocalPackets, "local_packets"),
        (Device::Backlogged, "tx_backlogged"),
        (Device::BusyIterations, "busy_iterations"),
        (Device::Sleeps, "sleeps"),
        (Device::Notifications, "notifications"),
        (Device::Violations, "violations"),
        (Device::DriverCalls, "driver_calls"),
        (Device::TxSoftwareOffloads, "tx_software_offloads"),
        (Device::TxEnded, "tx_dropped_session_ended"),
        (Device::NotificationsSuppressed, "notifications_suppressed"),
        (Device::NotificationsMerged, "notifications_merged"),
        (Device::Ticks, "ticks"),
        (Device::TicksMissed, "ticks_missed"),
        (Device::TicksLateNs, "ticks_late_ns"),
        (Device::TickLatestNs, "tick_latest_ns"),
        (Device::WaitSwitches, "wait_switches"),
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
        (Device::TxExpedited, "tx_expedited"),
        (Device::SessionPolls, "session_polls"),
        (Device::SessionsParked, "sessions_parked"),
        (Device::DoorbellPolls, "doorbell_polls"),
        (Device::WatchdogArms, "watchdog_arms"),
        (Device::WatchdogChecks, "watchdog_checks"),
        (Device::DeviceStalls, "device_stalls"),
        (Device::DeviceResets, "device_resets"),
        (Device::TxResubmitted, "tx_resubmitted"),
        (Device::SpinsPreempted, "spins_preempted"),
        (Device::NotificationsEarly, "notifications_early"),
        (Device::TicksAwake, "ticks_awake"),
        (Device::NotificationsRelayed, "notifications_relayed"),
        (Device::TxLinkDown, "tx_dropped_link_down"),
        (Device::RxTooManyBuffers, "rx_dropped_too_many_buffers"),
        (Device::TxNeighbourRequests, "tx_dropped_neighbour_requests"),
        (Device::RxPartial, "rx_partial"),
        (Device::RxSoftwareOffloads, "rx_software_offloads"),
        (Device::WatchdogStops, "watchdog_stops"),
        (Device::FlowClasses, "flow_classes"),
        (Device::FlowCacheClasses, "flow_cache_classes"),
        (Device::RxGroup, "rx_group"),
        (Device::TxGroup, "tx_group"),
        (Device::RdmaRxPackets, "rdma_rx_packets"),
        (Device::RdmaTxPackets, "rdma_tx_packets"),
        (Device::RdmaRetransmitted, "rdma_retransmitted"),
        (Device::RdmaMalformed, "rdma_dropped_malformed"),
        (Device::RdmaNoConnection, "rdma_dropped_no_connection"),
        (Device::RdmaOverBudget, "rdma_dropped_over_budget"),
        (Device::FreedAnswers, "freed_answers"),
    ];
}

const _: () = assert!(Device::ALL.len() <= crate::layout::DEVICE_COUNTERS);

/// Adds `by` to a counter.
#[inline]
pub fn add(words: &mut OwnWords, index: usize, by: u64) {
    let value = words.get(index).wrapping_add(by);
    words.store(index, value);
}

/// Reads counters, from either side.
#[must_use]
pub fn read<const N: usize, T: Copy>(
    words: &PeerWords,
    start: usize,
    all: &[(T, &'static str); N],
) -> Vec<(&'static str, u64)> {
    all.iter().enumerate().map(|(place, (_, name))| (*name, words.fetch(start + place))).collect()
}

/// Adds another lane's counters, read by [`read`], to these. For the longest delay of a tick, the
/// larger one counts.
pub fn add_lane(all: &mut [(&'static str, u64)], lane: &[(&'static str, u64)]) {
    let longest = Device::ALL[Device::TickLatestNs as usize].1;
    for ((name, sum), (_, value)) in all.iter_mut().zip(lane) {
        *sum = if *name == longest { (*sum).max(*value) } else { sum.wrapping_add(*value) };
    }
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

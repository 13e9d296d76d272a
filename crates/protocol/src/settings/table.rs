//! All settings, with their units, ranges, defaults and help texts.

use super::{Audience, Kind, OFF_ON, Scope, Setting, Spec};

impl Setting {
    /// All settings, in the order of their numbers.
    pub const ALL: &'static [(Setting, Spec)] = &[
        (
            Setting::Wait,
            Spec {
                name: "wait",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Word(&["poll", "block", "spin-then-block", "timer-driven", "auto"]),
                default: 2,
                help: "how the engine waits for work: poll never sleeps, block sleeps until a \
                       notification, spin-then-block spins a while first, timer-driven sleeps from \
                       tick to tick, auto chooses the cheapest within latency_us and cpu_percent",
            },
        ),
        (
            Setting::TickHz,
            Spec {
                name: "tick_hz",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 100_000, unit: "Hz" },
                default: 1000,
                help: "ticks per second of wait=timer-driven; where ticks are too close for a \
                       sleep, the engine spins between them, logs a warning and counts ticks_awake",
            },
        ),
        (
            Setting::LatencyUs,
            Spec {
                name: "latency_us",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 1_000_000, unit: "us" },
                default: 1000,
                help: "upper bound of wait=auto on the latency that waiting adds, for 99 packets \
                       in 100",
            },
        ),
        (
            Setting::CpuPercent,
            Spec {
                name: "cpu_percent",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 100, unit: "percent of one processor" },
                default: 100,
                help: "upper bound of wait=auto on the engine's processor time; it holds even \
                       while packets wait and applications notify",
            },
        ),
        (
            Setting::TimerSlackUs,
            Spec {
                name: "timer_slack_us",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 100_000, unit: "us" },
                default: 5,
                help: "time by which the engine's timers may be late and its deferred \
                       notifications early, so that one sleep serves near deadlines; 0: as exact as the \
                       kernel can",
            },
        ),
        (
            Setting::RxBatch,
            Spec {
                name: "rx_batch",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 1024, unit: "packets" },
                default: 64,
                help: "packets that the engine takes from the device per poll iteration; at most \
                       the value of towpath serve --batch",
            },
        ),
        (
            Setting::NotificationSuppression,
            Spec {
                name: "notification_suppression",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: OFF_ON,
                default: 1,
                help: "on: the engine notifies only applications that sleep, once per sleep; off: \
                       it notifies for every batch",
            },
        ),
        (
            Setting::RxFrames,
            Spec {
                name: "rx_frames",
                audience: Audience::Operators,
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 65_535, unit: "packets" },
                default: 0,
                help: "number of packets after which the engine ends the deferral of rx_usecs \
                       early; 0: no such number",
            },
        ),
        (
            Setting::RxUsecs,
            Spec {
                name: "rx_usecs",
                audience: Audience::Operators,
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 1_000_000, unit: "us" },
                default: 0,
                help: "time for which the engine defers a notification, to merge it with later \
                       ones; rx_frames ends the deferral early, and so do receive buffers of which half \
                       are used; 0: no deferral",
            },
        ),
        (
            Setting::FlowCache,
            Spec {
                name: "flow_cache",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: Kind::Word(&["off", "on", "auto"]),
                default: 2,
                help: "whether the engine first compares a packet with the previous one of its \
                       ethertype and protocol when it looks up the flow; auto: only while \
                       consecutive packets of these are often of one flow",
            },
        ),
        (
            Setting::Scheduler,
            Spec {
                name: "scheduler",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: Kind::Word(&["round-robin", "drr"]),
                default: 1,
                help: "how queue pairs of the same priority share the device: drr by bytes and \
                       weight, round-robin by packets, whatever their weight",
            },
        ),
        (
            Setting::Handoff,
            Spec {
                name: "handoff",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Word(&["direct", "queued"]),
                default: 0,
                help: "how the engine submits packets to the device: direct places them in its \
                       ring as it checks them, with one kick per poll iteration; queued collects \
                       them in the backlog, with a kick per batch",
            },
        ),
        (
            Setting::Expedited,
            Spec {
                name: "expedited",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 32, unit: "packets per poll iteration" },
                default: 8,
                help: "expedited packets of all applications together that the engine sends before \
                       the others; 0: none",
            },
        ),
        (
            Setting::Priority,
            Spec {
                name: "priority",
                audience: Audience::Operators,
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 7, unit: "(the highest goes first)" },
                default: 3,
                help: "strict priority: 0 goes last, 7 first; an application may lower that of its endpoints, and raise \
                       it again to the priority that an administrator granted",
            },
        ),
        (
            Setting::Weight,
            Spec {
                name: "weight",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 1, most: 10_000, unit: "parts" },
                default: 100,
                help: "the endpoint's share in bytes among those of the same priority",
            },
        ),
        (
            Setting::RateBps,
            Spec {
                name: "rate_bps",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 1_000_000_000_000, unit: "bits per second" },
                default: 0,
                help: "upper limit of the sending rate; the bits from the Ethernet header to the \
                       end of the payload count; 0: no limit",
            },
        ),
        (
            Setting::RatePps,
            Spec {
                name: "rate_pps",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 1_000_000_000, unit: "packets per second" },
                default: 0,
                help: "upper limit of the packets that the endpoint sends per second; 0: no limit",
            },
        ),
        (
            Setting::BurstBytes,
            Spec {
                name: "burst_bytes",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 1 << 30, unit: "bytes" },
                default: 0,
                help: "bytes that the endpoint may send at once after a pause, beyond rate_bps; 0: 4 ms \
                       of rate_bps, at least 16384",
            },
        ),
        (
            Setting::Pacing,
            Spec {
                name: "pacing",
                audience: Audience::Operators,
                scope: Scope::OwnEndpoint,
                kind: OFF_ON,
                default: 0,
                help: "on: the engine spaces the endpoint's packets evenly at its rate; off: it \
                       sends bursts of up to burst_bytes and burst_packets",
            },
        ),
        (
            Setting::MaxDelayUs,
            Spec {
                name: "max_delay_us",
                audience: Audience::Operators,
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 60_000_000, unit: "us" },
                default: 0,
                help: "longest time that a packet may wait in its queue; the engine drops a later \
                       one, and counts it in tx_dropped_late; 0: no limit",
            },
        ),
        (
            Setting::MaxMessageBytes,
            Spec {
                name: "max_message_bytes",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 1 << 20, unit: "bytes" },
                default: 65_536,
                help: "bytes of a message of several packets that the engine keeps together; 0: \
                       none",
            },
        ),
        (
            Setting::Quota,
            Spec {
                name: "quota",
                audience: Audience::Experimenters,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 65_535, unit: "packets per tick" },
                default: 0,
                help: "packets that the endpoint may send per tick; a tick is one of the clock \
                       with wait=timer-driven, else a poll iteration; 0: no limit",
            },
        ),
        (
            Setting::TickMultiple,
            Spec {
                name: "tick_multiple",
                audience: Audience::Experimenters,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 1, most: 65_535, unit: "ticks" },
                default: 1,
                help: "the endpoint sends in one tick out of this many: from each multiple of this \
                       number on, the first tick in which the endpoint has a packet",
            },
        ),
        (
            Setting::Watchdog,
            Spec {
                name: "watchdog",
                audience: Audience::OperatorsExcept {
                    values: &["eager", "timestamp"],
                    help: "eager by a timer started and stopped for each packet, timestamp by the time, compared \
                           for each packet; both also count from the last packet that the device took; \
                           timestamp may take twice as long to notice",
                },
                scope: Scope::Device,
                kind: Kind::Word(&["off", "lazy", "eager", "timestamp"]),
                default: 1,
                help: "how the engine notices a stalled device, which it then resets: off never, \
                       lazy by a check per watchdog_ms",
            },
        ),
        (
            Setting::WatchdogMs,
            Spec {
                name: "watchdog_ms",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 60_000, unit: "ms" },
                default: 5000,
                help: "a device has stalled if it completes none of its packets in flight for this \
                       time; lazy may take twice as long to notice; 0: off",
            },
        ),
        (
            Setting::BurstPackets,
            Spec {
                name: "burst_packets",
                audience: Audience::Operators,
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 65_535, unit: "packets" },
                default: 0,
                help: "packets that the endpoint may send at once after a pause, beyond rate_pps; 0: \
                       4 ms of rate_pps, at least 1",
            },
        ),
        (
            Setting::EarlyNotification,
            Spec {
                name: "early_notification",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: OFF_ON,
                default: 1,
                help: "on: the engine notifies an application early once half of the application's \
                       receive buffers are used, even if rx_usecs defers the notification or the \
                       application is timer-driven; off: the engine waits for the end of the \
                       deferral, and the application for its tick",
            },
        ),
        (
            Setting::Notify,
            Spec {
                name: "notify",
                audience: Audience::Experimenters,
                scope: Scope::Device,
                kind: Kind::Word(&["auto", "worker"]),
                default: 0,
                help: "which process notifies applications, and copies from and to memories for \
                       apertures; worker: always the worker of the application's user; auto: \
                       the engine does both for administrators' applications, and for those of \
                       a granted user while no other user has sessions and no other granted \
                       user has had any; otherwise the worker",
            },
        ),
        (
            Setting::LinkDown,
            Spec {
                name: "link_down",
                audience: Audience::Operators,
                scope: Scope::Device,
                kind: Kind::Word(&["drop", "wait"]),
                default: 0,
                help: "what becomes of packets to the device while its link is down and the \
                       backlog is full; drop: the engine drops and counts them; wait: they wait \
                       in their queues, and the application sees back pressure",
            },
        ),
    ];
}

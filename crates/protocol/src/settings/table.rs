//! All settings, with their units, ranges and defaults.

use super::{Kind, OFF_ON, Scope, Setting, Spec};

impl Setting {
    /// All settings, in the order of their numbers.
    pub const ALL: &'static [(Setting, Spec)] = &[
        (
            Setting::Wait,
            Spec {
                name: "wait",
                scope: Scope::Device,
                kind: Kind::Word(&["poll", "block", "spin-then-block", "timer-driven", "auto"]),
                default: 1,
                help: "how the engine waits: without end, asleep, spinning a while first, by the clock, or as costs least",
            },
        ),
        (
            Setting::TickHz,
            Spec {
                name: "tick_hz",
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 100_000, unit: "Hz" },
                default: 1000,
                help: "ticks a second of wait=timer-driven; above what sleep holds it spins between ticks, logs that and counts ticks_awake",
            },
        ),
        (
            Setting::LatencyUs,
            Spec {
                name: "latency_us",
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 1_000_000, unit: "us" },
                default: 1000,
                help: "what waiting may add to the way of 99 packets in 100, for wait=auto",
            },
        ),
        (
            Setting::CpuPercent,
            Spec {
                name: "cpu_percent",
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 100, unit: "hundredths of a processor" },
                default: 100,
                help: "processor time that the engine may take, for wait=auto; it is kept to, whatever waits and whoever rings",
            },
        ),
        (
            Setting::TimerSlackUs,
            Spec {
                name: "timer_slack_us",
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 100_000, unit: "us" },
                default: 5,
                help: "how much late a timer may be, so that near ones end one sleep together",
            },
        ),
        (
            Setting::RxBatch,
            Spec {
                name: "rx_batch",
                scope: Scope::Device,
                kind: Kind::Number { least: 1, most: 1024, unit: "packets" },
                default: 64,
                help: "packets taken from the device before their applications are rung; no more than the server was started with",
            },
        ),
        (
            Setting::NotificationSuppression,
            Spec {
                name: "notification_suppression",
                scope: Scope::Device,
                kind: OFF_ON,
                default: 1,
                help: "applications are rung only when they sleep, and once for each sleep; off: for every batch",
            },
        ),
        (
            Setting::RxFrames,
            Spec {
                name: "rx_frames",
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 65_535, unit: "packets" },
                default: 0,
                help: "where rings are put off by rx_usecs, the application is rung after so many packets before that; 0: however many",
            },
        ),
        (
            Setting::RxUsecs,
            Spec {
                name: "rx_usecs",
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 1_000_000, unit: "us" },
                default: 0,
                help: "how long a ring is put off, for more packets; 0: not at all. It is made before when rx_frames have come, or by early_notification",
            },
        ),
        (
            Setting::FlowCache,
            Spec {
                name: "flow_cache",
                scope: Scope::Device,
                kind: Kind::Word(&["off", "on", "auto"]),
                default: 2,
                help: "whether lookups remember the last flow; auto: while trains are long",
            },
        ),
        (
            Setting::Scheduler,
            Spec {
                name: "scheduler",
                scope: Scope::Device,
                kind: Kind::Word(&["round-robin", "drr"]),
                default: 1,
                help: "how those of one priority share: drr by weight in bytes, round-robin by packets",
            },
        ),
        (
            Setting::Handoff,
            Spec {
                name: "handoff",
                scope: Scope::Device,
                kind: Kind::Word(&["direct", "queued"]),
                default: 1,
                help: "how packets reach the device: direct one by one while nothing waits, queued a batch together",
            },
        ),
        (
            Setting::Expedited,
            Spec {
                name: "small",
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 32, unit: "packets a turn" },
                default: 8,
                help: "small packets that go past the others; 0: none does",
            },
        ),
        (
            Setting::Priority,
            Spec {
                name: "priority",
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 7, unit: "(7 goes first)" },
                default: 3,
                help: "strict priority; an application may lower its own, and raise it to what it was given",
            },
        ),
        (
            Setting::Weight,
            Spec {
                name: "weight",
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 1, most: 10_000, unit: "parts" },
                default: 100,
                help: "share in bytes among endpoints of the same priority",
            },
        ),
        (
            Setting::RateBps,
            Spec {
                name: "rate_bps",
                scope: Scope::Endpoint,
                kind: Kind::Number {
                    least: 0,
                    most: 1_000_000_000_000,
                    unit: "bits a second (0: no limit)",
                },
                default: 0,
                help: "the most that is sent, from Ethernet header to payload",
            },
        ),
        (
            Setting::RatePps,
            Spec {
                name: "rate_pps",
                scope: Scope::Endpoint,
                kind: Kind::Number {
                    least: 0,
                    most: 1_000_000_000,
                    unit: "packets a second (0: no limit)",
                },
                default: 0,
                help: "the most packets that are sent",
            },
        ),
        (
            Setting::BurstBytes,
            Spec {
                name: "burst_bytes",
                scope: Scope::Endpoint,
                kind: Kind::Number {
                    least: 0,
                    most: 1 << 30,
                    unit: "bytes (0: 4 ms of the rate, at least 16384)",
                },
                default: 0,
                help: "what may be sent at once after a pause, beyond rate_bps",
            },
        ),
        (
            Setting::Pacing,
            Spec {
                name: "pacing",
                scope: Scope::OwnEndpoint,
                kind: OFF_ON,
                default: 0,
                help: "packets are spread evenly over the time that the rate gives them",
            },
        ),
        (
            Setting::MaxDelayUs,
            Spec {
                name: "max_delay_us",
                scope: Scope::OwnEndpoint,
                kind: Kind::Number { least: 0, most: 60_000_000, unit: "us (0: none)" },
                default: 0,
                help: "a packet that waits longer for its turn is dropped and counted",
            },
        ),
        (
            Setting::MaxMessageBytes,
            Spec {
                name: "max_message_bytes",
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 1 << 20, unit: "bytes" },
                default: 65_536,
                help: "how much of a message of several packets is kept together",
            },
        ),
        (
            Setting::Quota,
            Spec {
                name: "quota",
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 0, most: 65_535, unit: "packets a tick (0: no limit)" },
                default: 0,
                help: "packets that are sent in one tick of the clock, or turn of the engine without one",
            },
        ),
        (
            Setting::TickMultiple,
            Spec {
                name: "tick_multiple",
                scope: Scope::Endpoint,
                kind: Kind::Number { least: 1, most: 65_535, unit: "ticks" },
                default: 1,
                help: "packets are sent in one tick of so many: the first at a multiple of this, or after one that was missed",
            },
        ),
        (
            Setting::Watchdog,
            Spec {
                name: "watchdog",
                scope: Scope::Device,
                kind: Kind::Word(&["off", "lazy", "eager"]),
                default: 1,
                help: "how a stalled device is noticed, to be reset: by a check each watchdog_ms, or by a deadline for what was sent",
            },
        ),
        (
            Setting::WatchdogMs,
            Spec {
                name: "watchdog_ms",
                scope: Scope::Device,
                kind: Kind::Number { least: 0, most: 60_000, unit: "ms" },
                default: 5000,
                help: "a device that gives back nothing of what it sends for so long has stalled; watchdog=lazy may take twice as long to notice; 0: off",
            },
        ),
        (
            Setting::BurstPackets,
            Spec {
                name: "burst_packets",
                scope: Scope::Endpoint,
                kind: Kind::Number {
                    least: 0,
                    most: 65_535,
                    unit: "packets (0: 4 ms of the rate, at least 1)",
                },
                default: 0,
                help: "what may be sent at once after a pause, beyond rate_pps",
            },
        ),
        (
            Setting::EarlyNotification,
            Spec {
                name: "early_notification",
                scope: Scope::Device,
                kind: OFF_ON,
                default: 1,
                help: "applications whose ring is put off, or who look by the clock, are rung when half of their frames are used; off: not before their time",
            },
        ),
        (
            Setting::Notify,
            Spec {
                name: "notify",
                scope: Scope::Device,
                kind: Kind::Word(&["auto", "worker"]),
                default: 0,
                help: "which process notifies applications: auto: the engine for trusted users and while one user alone has had sessions, else the user's worker; worker: always the worker",
            },
        ),
    ];
}

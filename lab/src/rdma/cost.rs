//! How fast bytes move, and what processor time they cost.

use std::time::{Duration, Instant};

use towpath_testkit::{process_cpu_time, softirq_time};

/// A rate, and the processor time for each packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// Payload, in Gbit/s.
    pub(super) gbps: f64,
    /// Processor time of the processes, in microseconds per packet, with the soft interrupts that the
    /// kernel accounts to them: those within their system calls, without `CONFIG_IRQ_TIME_ACCOUNTING`.
    pub(super) us_per_packet: f64,
    /// That of all soft interrupts of the machine; most of it is also in `us_per_packet`.
    pub(super) softirq_us_per_packet: f64,
}

impl Moved {
    /// Measures `work`, which returns Gbit/s and leaves the processes idle. A packet has `path_mtu` bytes
    /// of payload.
    pub(super) fn by(
        processes: &[u32],
        path_mtu: u32,
        work: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Moved> {
        let times = || -> anyhow::Result<[Duration; 2]> {
            let own = processes.iter().map(|pid| process_cpu_time(*pid));
            Ok([own.sum::<std::io::Result<Duration>>()?, softirq_time()?])
        };
        let (before, start) = (times()?, Instant::now());
        let gbps = work()?;
        let (after, took) = (times()?, start.elapsed());
        let packets = gbps * 1e9 / 8.0 * took.as_secs_f64() / f64::from(path_mtu);
        let per_packet = |time: Duration| time.as_secs_f64() * 1e6 / packets;
        let [own, softirq] = [0, 1].map(|of| after[of].saturating_sub(before[of]));
        Ok(Moved {
            gbps,
            us_per_packet: per_packet(own),
            softirq_us_per_packet: per_packet(softirq),
        })
    }
}

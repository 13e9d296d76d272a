//! Towpath's side of the throughput: two sessions of a server, and the work of its engine.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_testkit::process_cpu_time;

use crate::process::Process;
use crate::switch::Load;
use crate::trip::{PATIENCE, in_thread};

/// The time to fill queues and caches after a pause.
const SETTLE: Duration = Duration::from_millis(10);
/// The time in which an engine without traffic counts its poll iterations.
const CALIBRATES: Duration = Duration::from_millis(20);
/// Sessions of a [`Load`]. The engine polls each in each poll iteration, as there are few.
const SESSIONS: f64 = 2.0;

/// Two sessions of a server that polls, and is stopped while others are measured.
pub(super) struct Ours {
    server: Process,
    load: Load,
    cpu: usize,
    /// The processor time of a poll iteration without work.
    idle_iteration_s: f64,
}

/// Counts of the engine, up to a moment.
struct EngineCounts {
    cpu_s: f64,
    iterations: f64,
    busy_iterations: f64,
    packets: f64,
}

impl EngineCounts {
    fn read(server: &Process) -> anyhow::Result<EngineCounts> {
        let cpu_s = process_cpu_time(server.pid())?.as_secs_f64();
        let counters = server.counters()?;
        let count = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
        Ok(EngineCounts {
            cpu_s,
            iterations: count("session_polls") / SESSIONS,
            busy_iterations: count("busy_iterations"),
            packets: count("local_packets"),
        })
    }

    fn since(self, before: &EngineCounts) -> EngineCounts {
        EngineCounts {
            cpu_s: self.cpu_s - before.cpu_s,
            iterations: self.iterations - before.iterations,
            busy_iterations: self.busy_iterations - before.busy_iterations,
            packets: self.packets - before.packets,
        }
    }

    /// Returns the share of processor time in poll iterations with work.
    fn busy_share(&self, idle_iteration_s: f64) -> f64 {
        let idle = (self.iterations - self.busy_iterations).max(0.0);
        (1.0 - idle * idle_iteration_s / self.cpu_s).max(0.0)
    }
}

impl Ours {
    /// The server is paused when this returns.
    pub(super) fn new(
        cores: (usize, usize),
        packet_bytes: usize,
        in_flight: u64,
    ) -> anyhow::Result<Ours> {
        let server = Process::start_switch(cores.0)?;
        let load = Load::with_in_flight(&server.socket(), packet_bytes, in_flight)?;
        let before = EngineCounts::read(&server)?;
        let start = Instant::now();
        // An engine publishes its counts every few thousand iterations, and needs a core for them.
        let idle = loop {
            thread::sleep(CALIBRATES);
            let idle = EngineCounts::read(&server)?.since(&before);
            if idle.iterations > 0.0 {
                break idle;
            }
            ensure!(start.elapsed() < PATIENCE, "the engine did not run for {PATIENCE:?}");
        };
        server.pause()?;
        let idle_iteration_s = idle.cpu_s / idle.iterations;
        Ok(Ours { server, load, cpu: cores.1, idle_iteration_s })
    }

    /// Returns millions of packets per second.
    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        Ok(self.observed(window)?.mpps)
    }

    pub(super) fn observed(&mut self, window: Duration) -> anyhow::Result<Observed> {
        let Ours { server, load, cpu, idle_iteration_s } = self;
        server.resume()?;
        let observed = in_thread(Some(*cpu), || {
            load.run(SETTLE)?;
            let before = EngineCounts::read(server)?;
            let mpps = load.run(window)?;
            let engine = EngineCounts::read(server)?.since(&before);
            Ok(Observed {
                mpps,
                client_busy: load.busy.as_secs_f64() / window.as_secs_f64(),
                engine_busy: engine.busy_share(*idle_iteration_s),
                packets_per_iteration: engine.packets / engine.busy_iterations,
            })
        });
        server.pause()?;
        observed
    }

    /// Waits for all packets in flight, and checks that none was dropped. Returns their number.
    pub(super) fn finish(&mut self) -> anyhow::Result<u64> {
        self.server.resume()?;
        self.load.check()
    }
}

/// One window of Towpath.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    pub(super) mpps: f64,
    /// The share of time in rounds that sent or received a packet.
    pub(super) client_busy: f64,
    /// The share of processor time in poll iterations with work.
    pub(super) engine_busy: f64,
    pub(super) packets_per_iteration: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_busy_in_all_time_but_that_of_idle_iterations() {
        let counts = |cpu_s, iterations, busy_iterations| EngineCounts {
            cpu_s,
            iterations,
            busy_iterations,
            packets: 0.0,
        };
        let window = counts(3.0, 2_500_000.0, 1_500_000.0).since(&counts(2.0, 0.0, 0.0));
        assert!((window.busy_share(25e-9) - 0.975).abs() < 1e-9);
        // Counts are published now and then, and may be behind the busy ones.
        assert_eq!(counts(1.0, 90.0, 100.0).busy_share(25e-9), 1.0);
    }
}

//! Lookups in one table, with each setting of the last-flow cache in turn.

use std::hint::black_box;
use std::time::Duration;

use anyhow::ensure;
use towpath_engine::demux::{Direction, FlowCache, FlowCounts, FlowTable, REST, WINDOW};
use towpath_packet::plain::Plain;
use towpath_testkit::this_thread_cpu_time;

/// Flows, each with its own endpoint.
pub(super) const FLOWS: u16 = 64;
/// Their address.
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The lowest speed of the automatic cache where it cannot gain: its samples cost time.
pub(super) const AT_LEAST_INTERLEAVED: f64 = 0.97;

/// The settings, in the order of the report.
pub(super) const CACHES: [FlowCache; 3] = [FlowCache::Auto, FlowCache::Off, FlowCache::On];
/// Lookups with one setting before the next. The automatic cache samples as large a part of them as
/// in a long run.
pub(super) const CHUNK: usize = 4 * (WINDOW + REST) as usize;

pub(super) struct InTurn {
    /// Nanoseconds per lookup with each setting.
    pub(super) ns: [f64; 3],
    /// The counts of the automatic cache.
    pub(super) auto: FlowCounts,
}

/// Looks up in one table, with each setting in turn. So the table's addresses and other load affect
/// all settings alike.
pub(super) fn in_turn(
    table: &mut FlowTable,
    packets: &[(Plain, u32)],
    lookups: usize,
) -> anyhow::Result<InTurn> {
    let rounds = lookups.div_ceil(CHUNK);
    let mut times = [Duration::ZERO; 3];
    let mut auto = FlowCounts::default();
    for round in 0..rounds {
        for place in 0..CACHES.len() {
            let place = if round % 2 == 0 { place } else { CACHES.len() - 1 - place };
            table.set_cache(CACHES[place]);
            let before = table.counts(Direction::Received);
            times[place] += run(table, packets, CHUNK)?;
            if CACHES[place] == FlowCache::Auto {
                auto = auto + since(table.counts(Direction::Received), before);
            }
        }
    }
    let ns = times.map(|time| time.as_nanos() as f64 / (rounds * CHUNK) as f64);
    Ok(InTurn { ns, auto })
}

/// Returns what was counted since `before`.
pub(super) fn since(now: FlowCounts, before: FlowCounts) -> FlowCounts {
    FlowCounts {
        lookups: now.lookups - before.lookups,
        compared: now.compared - before.compared,
        hits: now.hits - before.hits,
        switches: now.switches - before.switches,
    }
}

/// Returns the processor time of lookups.
pub(super) fn run(
    table: &mut FlowTable,
    packets: &[(Plain, u32)],
    lookups: usize,
) -> anyhow::Result<Duration> {
    let start = this_thread_cpu_time()?;
    let mut wrong = 0;
    for (plain, endpoint) in packets.iter().cycle().take(lookups) {
        let found = table.lookup_plain(Direction::Received, black_box(plain));
        wrong += usize::from(found.is_none_or(|found| found.endpoint != *endpoint));
    }
    let took = this_thread_cpu_time()?.saturating_sub(start);
    ensure!(wrong == 0, "{wrong} lookups found another endpoint");
    Ok(took)
}

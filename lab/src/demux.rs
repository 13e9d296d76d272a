//! Flow lookups with and without the last-flow cache, for packets in trains and for interleaved
//! ones; and the members that a broadcast frame is for.
//!
//! One thread looks up the headers of packets as the engine does. The comparison is the same table
//! with the cache off: the setting changes after a few thousand lookups. The experiment measures
//! processor time, not wall-clock time, as other processes may use the machine.

mod classes;
mod lookups;

use std::hint::black_box;

use anyhow::ensure;
use towpath_engine::demux::{Destination, FlowCache, FlowCounts, FlowTable};
use towpath_engine::solo::{Solo, Traffic, without_and_with_captures};
use towpath_packet::build::Flow;
use towpath_packet::headers::Headers;
use towpath_packet::plain::{self, Plain};
use towpath_packet::{FlowRule, FlowVlan};
use towpath_server::Values;
use towpath_testkit::{pin, this_thread_cpu_time};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary, ratios};
use lookups::{AT_LEAST_INTERLEAVED, CHUNK, FLOWS, MAC, in_turn};

/// Rules of other MAC addresses in the same table.
const OTHERS: u16 = 1000;
/// Lengths of trains. With 1, flows are interleaved: no two successive packets are of one flow.
const TRAINS: [usize; 5] = [1, 2, 4, 16, 64];
/// The lowest gain in long trains, with one table to search,
const AT_LEAST_IN_TRAINS: f64 = 1.2;
/// and with several.
const AT_LEAST_IN_TRAINS_MORE_SETS: f64 = 2.0;
/// The lowest speed beside group endpoints that a frame is not for: they may cost cache misses
/// only.
const AT_LEAST_BESIDE_OTHERS: f64 = 0.5;
/// Code without support for captures is no slower than code with it,
const AT_LEAST_WITHOUT_CAPTURES: f64 = 1.0;
/// except on the path to the device, where it first tries the fast path for plain packets in vain.
const AT_LEAST_WITHOUT_CAPTURES_TO_DEVICE: f64 = 0.93;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let lookups = if settings.quick { 200_000 } else { 2_000_000 };
    let mut outcome = Outcome {
        how: format!(
            "one thread on core {}; {FLOWS} flows, each with a rule of its own, and {OTHERS} rules \
             of other addresses; sets 1: all rules give the same fields; sets 4: the flows' rules \
             are the least specific of four sets that a lookup of their address tries; each \
             setting has {CHUNK} lookups in turn. Two classes: TCP packets in trains, and between \
             any two of them a UDP packet of another flow than the last. For a group: one endpoint that a broadcast frame is for, \
             beside others of other ports that take broadcast, too. Routines without and with the \
             checks for captures and promiscuous endpoints, none of which is open: 64 bytes \
             through an engine with an in-memory device, in batches",
            cores.0
        ),
        ..Outcome::default()
    };
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores.0)?;
            let mut figure = Figure::new(
                "trains",
                "A lookup by how many packets of a flow come one after the other",
                Axis::log("packets of a train", ""),
                Axis::linear("a lookup", "ns"),
            );
            for sets in [1, 4] {
                let mut curves = [Vec::new(), Vec::new(), Vec::new()];
                for train in TRAINS {
                    let lookup = case(settings, &mut outcome, sets, train, lookups)?;
                    for (curve, ns) in curves.iter_mut().zip(lookup) {
                        curve.push([train as f64, ns]);
                    }
                }
                for (cache, curve) in ["automatic", "off", "on"].into_iter().zip(curves) {
                    let name =
                        format!("cache {cache}, {sets} set{}", if sets > 1 { "s" } else { "" });
                    figure.series.push(Series::line(&name, curve));
                }
            }
            outcome.figures.push(figure);
            classes::measure(settings, &mut outcome, lookups)?;
            for others in [1, 100, 10_000] {
                group(settings, &mut outcome, others, lookups)?;
            }
            taps(settings, &mut outcome, lookups)?;
            Ok(())
        });
        measured.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
    })?;
    Ok(outcome)
}

/// Returns the limit of a case. In between, the ratio is near 1, and the machine decides on which
/// side.
fn limit(sets: usize, train: usize) -> Option<f64> {
    match train {
        1 => Some(AT_LEAST_INTERLEAVED),
        16.. if sets > 1 => Some(AT_LEAST_IN_TRAINS_MORE_SETS),
        16.. => Some(AT_LEAST_IN_TRAINS),
        _ => None,
    }
}

/// Returns the nanoseconds per lookup with the cache automatic, off and on.
fn case(
    settings: Settings,
    outcome: &mut Outcome,
    sets: usize,
    train: usize,
    lookups: usize,
) -> anyhow::Result<[f64; 3]> {
    let parameters = [("sets", sets as f64), ("train", train as f64)];
    let mut table = table(sets)?;
    let packets = packets(train)?;
    // The first round warms the caches.
    in_turn(&mut table, &packets, lookups)?;
    let (mut all, mut counts) = ([Vec::new(), Vec::new(), Vec::new()], FlowCounts::default());
    for _ in 0..settings.pairs() {
        let one = in_turn(&mut table, &packets, lookups)?;
        for (all, ns) in all.iter_mut().zip(one.ns) {
            all.push(ns);
        }
        counts = counts + one.auto;
    }
    let [auto, off, on] = &all;
    let row = Row::new("auto to off, speed", &parameters, "ratio", &ratios(off, auto));
    outcome.rows.push(match limit(sets, train) {
        Some(limit) => row.at_least(limit),
        None => row,
    });
    outcome.context.push(Row::new("a lookup, auto", &parameters, "ns", auto));
    outcome.context.push(Row::new("a lookup, off", &parameters, "ns", off));
    outcome.context.push(Row::new("on to off, speed", &parameters, "ratio", &ratios(off, on)));
    let hits = counts.hits as f64 / counts.lookups as f64;
    outcome.context.push(Row::new("auto: from the cache", &parameters, "of all", &[hits]));
    let mean = counts.mean_train().unwrap_or(f64::NAN);
    outcome.context.push(Row::new("auto: mean train", &parameters, "packets", &[mean]));
    let switches = [counts.switches as f64 / (counts.lookups as f64 / CHUNK as f64)];
    outcome.context.push(Row::new("auto: switches", &parameters, "per poll iteration", &switches));
    Ok(all.map(|values| Summary::of(&values).median))
}

fn table(sets: usize) -> anyhow::Result<FlowTable> {
    let mut table = FlowTable::new(1, FlowCache::Off);
    let to = |endpoint| Destination { session: 0, endpoint };
    let udp = FlowRule { vlan: FlowVlan::Untagged, protocol: Some(17), ..FlowRule::default() };
    for number in 0..FLOWS {
        let rule = FlowRule { mac: Some(MAC), port: Some(number), ..udp };
        ensure!(table.insert(&rule, false, to(u32::from(number))), "a unique rule");
    }
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        let rule = FlowRule { mac: Some([2, 1, 0, 0, high, low]), port: Some(1), ..udp };
        ensure!(table.insert(&rule, false, to(u32::from(FLOWS + number))), "a unique rule");
    }
    // More specific rules, which no packet matches.
    let mut closer = FlowRule { mac: Some(MAC), port: Some(9999), ..udp };
    for set in 1..sets {
        match set {
            1 => closer.ethertype = Some(0x800),
            2 => closer.remote_port = Some(1),
            _ => closer.ip = Some(Flow::v4().destination),
        }
        ensure!(table.insert(&closer, false, to(u32::MAX)), "a unique rule");
    }
    Ok(table)
}

/// Finds the member that a broadcast frame is for, beside members of other ports and alone.
fn group(
    settings: Settings,
    outcome: &mut Outcome,
    others: u16,
    lookups: usize,
) -> anyhow::Result<()> {
    let (alone, beside) = (members(0)?, members(others)?);
    let frame = Flow::v4().macs([2, 0, 0, 0, 0, 1], [0xff; 6]).ports(1000, 0).udp(b"x");
    let headers = Headers::parse(&frame, frame.len())?;
    let run = |table: &FlowTable| {
        let mut found = Vec::new();
        let start = this_thread_cpu_time()?;
        for _ in 0..lookups {
            found.clear();
            table.members(black_box(&headers), &mut found);
            ensure!(found.len() == 1, "members {found:?} for one frame");
        }
        let took = this_thread_cpu_time()?.saturating_sub(start);
        Ok(took.as_nanos() as f64 / lookups as f64)
    };
    let pairs = Pairs::measure(settings.pairs(), || run(&beside), || run(&alone))?;
    let parameters = [("others", f64::from(others))];
    let row = Row::new(
        "for a group, beside others to alone, speed",
        &parameters,
        "ratio",
        &ratios(&pairs.base, &pairs.ours),
    );
    outcome.rows.push(row.at_least(AT_LEAST_BESIDE_OTHERS));
    outcome.context.push(Row::new("for a group", &parameters, "ns", &pairs.ours));
    Ok(())
}

/// Measures a packet's path through the engine, with the code without captures and with the code
/// for them. No capture is open.
fn taps(settings: Settings, outcome: &mut Outcome, packets: usize) -> anyhow::Result<()> {
    let mut solo = Solo::new(&Values::default()).map_err(anyhow::Error::from_boxed)?;
    for way in Traffic::ALL {
        let mut all = [Vec::new(), Vec::new()];
        // The first round warms the caches.
        without_and_with_captures(&mut solo, way, packets / 10)
            .map_err(anyhow::Error::from_boxed)?;
        for _ in 0..settings.pairs() {
            let ns = without_and_with_captures(&mut solo, way, packets / 10)
                .map_err(anyhow::Error::from_boxed)?;
            for (all, ns) in all.iter_mut().zip(ns) {
                all.push(ns);
            }
        }
        let [without, with] = &all;
        let name = format!("{}: without captures' routines to with, speed", way.name());
        let row = Row::new(&name, &[], "ratio", &ratios(with, without));
        outcome.rows.push(row.at_least(match way {
            Traffic::Receive | Traffic::Local => AT_LEAST_WITHOUT_CAPTURES,
            Traffic::Send => AT_LEAST_WITHOUT_CAPTURES_TO_DEVICE,
        }));
        let name = |which: &str| format!("{}: a packet, {which}", way.name());
        outcome.context.push(Row::new(&name("without captures' routines"), &[], "ns", without));
        outcome.context.push(Row::new(&name("with them"), &[], "ns", with));
    }
    Ok(())
}

/// Makes a table with the member that the frame is for, and others.
fn members(others: u16) -> anyhow::Result<FlowTable> {
    let mut table = FlowTable::new(1, FlowCache::Auto);
    for port in 0..=others {
        let rule = FlowRule {
            mac: Some(MAC),
            protocol: Some(17),
            port: Some(port),
            ..FlowRule::default()
        };
        let to = Destination { session: 0, endpoint: u32::from(port) };
        ensure!(table.insert(&rule, true, to), "a unique rule");
    }
    Ok(table)
}

/// Makes one round of packets of all flows, in trains.
fn packets(train: usize) -> anyhow::Result<Vec<(Plain, u32)>> {
    let mut packets = Vec::new();
    for number in 0..FLOWS {
        let flow = Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC).ports(1000, number);
        let frame = flow.udp(b"x");
        let Some(plain) = plain::read(&frame, frame.len()) else {
            anyhow::bail!("not a plain packet");
        };
        packets.extend(std::iter::repeat_n((plain, u32::from(number)), train));
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use towpath_engine::demux::Direction;

    use super::lookups::run;
    use super::*;

    #[test]
    fn every_lookup_finds_its_endpoint_and_trains_are_hit() {
        for sets in [1, 4] {
            for train in TRAINS {
                let packets = packets(train).unwrap();
                let lookups = 100 * usize::from(FLOWS) * train;
                for cache in [FlowCache::Off, FlowCache::On, FlowCache::Auto] {
                    let mut table = table(sets).unwrap();
                    table.set_cache(cache);
                    run(&mut table, &packets, lookups).unwrap();
                    let counts = table.counts(Direction::Received);
                    assert_eq!(counts.lookups, lookups as u64);
                    let trains = (lookups / train) as u64;
                    let hits = match cache {
                        FlowCache::Off => 0,
                        FlowCache::On => lookups as u64 - trains,
                        FlowCache::Auto if train == 1 => 0,
                        FlowCache::Auto => continue,
                    };
                    assert_eq!(counts.hits, hits, "{cache:?}, {sets}, {train}");
                }
            }
        }
    }
}

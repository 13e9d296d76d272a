//! Flow lookups with and without the last-flow cache, for packets that come in trains and for
//! interleaved ones.
//!
//! One thread looks up the headers of packets as the engine does. What is compared with is the same
//! table with the cache off, measured in turn.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use towpath_packet::build::Flow;
use towpath_packet::plain::{self, Plain};
use towpath_rig::pin;
use towpath_server::FlowCache;
use towpath_server::demux::{Destination, FlowTable, Rule, Vlan, Way};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};

/// Flows, each with an endpoint of its own.
const FLOWS: u16 = 64;
/// Rules of other MAC addresses beside them.
const OTHERS: u16 = 1000;
/// Lengths of trains; 1: interleaved, no two packets in succession are of one flow.
const TRAINS: [usize; 5] = [1, 2, 4, 16, 64];
/// Automatic may cost this much where it cannot gain: by its samples.
const AT_LEAST_INTERLEAVED: f64 = 0.9;
/// And must gain where trains are long.
const AT_LEAST_IN_TRAINS: f64 = 1.0;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let lookups = if settings.quick { 200_000 } else { 2_000_000 };
    let mut outcome = Outcome {
        how: format!(
            "one thread on core {}; {FLOWS} flows, each with a rule of its own, and {OTHERS} rules \
             of other addresses; sets 1: all rules give the same fields; sets 4: the flows' rules \
             are the least specific of four sets that are asked for their address",
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
            Ok(())
        });
        measured.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
    })?;
    Ok(outcome)
}

/// Answers nanoseconds of a lookup with the cache automatic, off and on.
fn case(
    settings: Settings,
    outcome: &mut Outcome,
    sets: usize,
    train: usize,
    lookups: usize,
) -> anyhow::Result<[f64; 3]> {
    let parameters = [("sets", sets as f64), ("train", train as f64)];
    let table = |cache| table(cache, sets);
    let (mut off, mut on, mut auto) =
        (table(FlowCache::Off)?, table(FlowCache::On)?, table(FlowCache::Auto)?);
    let packets = packets(train)?;
    let pairs = Pairs::measure(
        settings.pairs(),
        || run(&mut auto, &packets, lookups),
        || run(&mut off, &packets, lookups),
    )?;
    let speed = |ratios: Vec<f64>| ratios.iter().map(|ratio| 1.0 / ratio).collect::<Vec<_>>();
    let limit = if train == 1 { AT_LEAST_INTERLEAVED } else { AT_LEAST_IN_TRAINS };
    let row = Row::new("auto to off, speed", &parameters, "ratio", &speed(pairs.ratios()));
    // In between it is near one, and which side is the machine's affair.
    outcome.rows.push(if train == 1 || train >= 16 { row.at_least(limit) } else { row });
    outcome.context.push(Row::new("a lookup, auto", &parameters, "ns", &pairs.ours));
    outcome.context.push(Row::new("a lookup, off", &parameters, "ns", &pairs.base));
    let [auto_ns, off_ns] = [&pairs.ours, &pairs.base].map(|values| Summary::of(values).median);
    let pairs = Pairs::measure(
        settings.pairs(),
        || run(&mut on, &packets, lookups),
        || run(&mut off, &packets, lookups),
    )?;
    let row = Row::new("on to off, speed", &parameters, "ratio", &speed(pairs.ratios()));
    outcome.context.push(row);
    let counts = auto.counts(Way::Received);
    let hits = counts.hits as f64 / counts.lookups as f64;
    outcome.context.push(Row::new("auto: from the cache", &parameters, "of all", &[hits]));
    let mean = counts.mean_train().unwrap_or(f64::NAN);
    outcome.context.push(Row::new("auto: mean train", &parameters, "packets", &[mean]));
    let switches = [counts.switches as f64];
    outcome.context.push(Row::new("auto: switches", &parameters, "times", &switches));
    Ok([auto_ns, off_ns, Summary::of(&pairs.ours).median])
}

fn table(cache: FlowCache, sets: usize) -> anyhow::Result<FlowTable> {
    let mut table = FlowTable::new(1, cache);
    let to = |endpoint| Destination { session: 0, endpoint };
    let udp = Rule { vlan: Vlan::Untagged, protocol: Some(17), ..Rule::default() };
    for number in 0..FLOWS {
        let rule = Rule { mac: Some(MAC), port: Some(number), ..udp };
        ensure!(table.insert(&rule, false, to(u32::from(number))), "a rule of its own");
    }
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        let rule = Rule { mac: Some([2, 1, 0, 0, high, low]), port: Some(1), ..udp };
        ensure!(table.insert(&rule, false, to(u32::from(FLOWS + number))), "a rule of its own");
    }
    // More specific rules, which no packet matches.
    let mut closer = Rule { mac: Some(MAC), port: Some(9999), ..udp };
    for set in 1..sets {
        match set {
            1 => closer.ethertype = Some(0x800),
            2 => closer.remote_port = Some(1),
            _ => closer.ip = Some(Flow::v4().destination),
        }
        ensure!(table.insert(&closer, false, to(u32::MAX)), "a rule of its own");
    }
    Ok(table)
}

/// One round of packets of all flows, in trains.
fn packets(train: usize) -> anyhow::Result<Vec<(Plain, u32)>> {
    let mut packets = Vec::new();
    for number in 0..FLOWS {
        let flow = Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC).ports(1000, number);
        let frame = flow.udp(b"x");
        let Some(plain) = plain::read(&frame, frame.len()) else {
            anyhow::bail!("a plain packet");
        };
        packets.extend(std::iter::repeat_n((plain, u32::from(number)), train));
    }
    Ok(packets)
}

/// Nanoseconds a lookup.
fn run(table: &mut FlowTable, packets: &[(Plain, u32)], lookups: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut wrong = 0;
    for (plain, endpoint) in packets.iter().cycle().take(lookups) {
        let found = table.lookup_plain(Way::Received, black_box(plain));
        wrong += usize::from(found.is_none_or(|found| found.endpoint != *endpoint));
    }
    let took = start.elapsed();
    ensure!(wrong == 0, "{wrong} lookups found another endpoint");
    Ok(took.as_nanos() as f64 / lookups as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lookup_finds_its_endpoint_and_trains_are_hit() {
        for sets in [1, 4] {
            for train in TRAINS {
                let packets = packets(train).unwrap();
                let lookups = 100 * usize::from(FLOWS) * train;
                for cache in [FlowCache::Off, FlowCache::On, FlowCache::Auto] {
                    let mut table = table(cache, sets).unwrap();
                    run(&mut table, &packets, lookups).unwrap();
                    let counts = table.counts(Way::Received);
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

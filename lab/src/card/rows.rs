//! The rows of the report.

use std::collections::BTreeMap;

use super::trial::{Load, Shape, Trial, Way};
use crate::card_log::Accesses;
use crate::report::{Outcome, Row};
use crate::statistics::ratios;

/// The lower limits of Towpath's rates, to those of an AF_PACKET socket and of testpmd.
const TO_KERNEL_AT_LEAST: f64 = 1.0;
const TO_TESTPMD_AT_LEAST: f64 = 0.8;
/// The upper limits of processor time per packet, to the kernel's driver: saturated, and by packets
/// per second.
const SATURATED_AT_MOST: f64 = 0.8;
/// The upper limit of the rates of the older ways whose packets each wait for an answer, to that of
/// Towpath's server.
const ANSWERED_AT_MOST: f64 = 0.5;
const PACED_AT_MOST: [(u32, f64); 2] = [(10_000, 1.0), (1_000, 1.3)];

/// What a way cost in the rounds of a shape, per packet.
#[derive(Clone, Debug, Default)]
struct Costs {
    instructions: Vec<f64>,
    reads: Vec<f64>,
    writes: Vec<f64>,
    interrupts: Vec<f64>,
    wake_ups: Vec<f64>,
    /// Of ways whose programs count their messages and notifications.
    ipcs: Vec<f64>,
    /// The share of the sent packets.
    received: Vec<f64>,
}

/// Adds all rows.
pub(super) fn add(outcome: &mut Outcome, trials: &[(Trial, Accesses)]) {
    let mut shapes: Vec<Shape> = trials.iter().map(|(trial, _)| trial.shape).collect();
    shapes.dedup();
    for shape in shapes {
        let of_shape = trials.iter().filter(|(trial, _)| trial.shape == shape);
        let costs = costs(of_shape);
        outcome.rows.extend(headline(shape, &costs));
        outcome.rows.extend(older(shape, &costs));
        for (way, costs) in &costs {
            outcome.context.extend(context(shape, *way, costs));
        }
    }
}

/// Returns the costs of each way. The trial without a receiver, of the same round, has the costs of
/// the sender and of the idle system.
fn costs<'a>(trials: impl Iterator<Item = &'a (Trial, Accesses)> + Clone) -> BTreeMap<Way, Costs> {
    let alone = trials.clone().filter(|(trial, _)| trial.way == Way::Alone);
    let alone: BTreeMap<usize, _> = alone.map(|one| (one.0.round, one)).collect();
    let mut all: BTreeMap<Way, Costs> = BTreeMap::new();
    for (trial, accesses) in trials.filter(|(trial, _)| trial.way != Way::Alone) {
        let Some((base, base_accesses)) = alone.get(&trial.round) else { continue };
        // A way with fewer bursts had the sender's costs of as many.
        let part = trial.sent as f64 / base.sent as f64;
        let packets = trial.received as f64;
        let net = |own: u64, base: u64| (own as f64 - part * base as f64) / packets;
        let without_sender =
            |trial: &Trial| trial.instructions.saturating_sub(trial.own_instructions);
        let writes =
            |trial: &Trial, accesses: &Accesses| accesses.writes.saturating_sub(trial.own_writes);
        let costs = all.entry(trial.way).or_default();
        costs.instructions.push(match trial.busy_instructions {
            Some(busy) => busy as f64 / packets,
            None => net(without_sender(trial), without_sender(base)),
        });
        costs.reads.push(net(accesses.reads, base_accesses.reads));
        costs.writes.push(net(writes(trial, accesses), writes(base, base_accesses)));
        costs.interrupts.push(net(accesses.interrupts, base_accesses.interrupts));
        costs.wake_ups.push(trial.wake_ups as f64 / packets);
        costs.ipcs.extend(trial.ipcs.map(|ipcs| ipcs as f64 / packets));
        costs.received.push(packets / trial.sent as f64);
    }
    all
}

fn direction(shape: Shape) -> &'static str {
    if shape.is_back { "forwarded" } else { "received" }
}

fn parameters(shape: Shape) -> Vec<(&'static str, f64)> {
    let mut parameters = vec![("packet_bytes", shape.bytes as f64)];
    if let Load::PerSecond(rate) = shape.load {
        parameters.push(("packets_per_s", f64::from(rate)));
    }
    parameters
}

/// Returns the ratios of a shape, with their limits.
fn headline(shape: Shape, costs: &BTreeMap<Way, Costs>) -> Vec<Row> {
    let mut rows = Vec::new();
    for ours in [Way::Linked, Way::Served, Way::ServedAuto] {
        let Some(own) = costs.get(&ours) else { continue };
        let row = |what: &str, base: Way, values: &[f64]| {
            let name = format!("{}: {} to {}: {what}", direction(shape), ours.name(), base.name());
            Row::new(&name, &parameters(shape), "ratio", values)
        };
        for (base, limit) in
            [(Way::Kernel, TO_KERNEL_AT_LEAST), (Way::Testpmd, TO_TESTPMD_AT_LEAST)]
        {
            let Some(other) = costs.get(&base) else { continue };
            if shape.load == Load::Saturated {
                // The inverse of instructions per packet, times the share of the packets.
                let rates = ratios(&rates(own), &rates(other));
                let row = row("packets/s", base, &rates);
                rows.push(if is_limited(ours) { row.at_least(limit) } else { row });
            }
            if base == Way::Kernel {
                let ratios = ratios(&own.instructions, &other.instructions);
                let row = row("processor time per packet", base, &ratios);
                let limit = time_limit(shape.load).filter(|_| is_limited(ours));
                rows.push(Row { at_most: limit, ..row });
            }
        }
    }
    rows
}

/// Returns the ratios of the older ways of a shape, to those of the server.
fn older(shape: Shape, costs: &BTreeMap<Way, Costs>) -> Vec<Row> {
    let mut rows = Vec::new();
    let Some(server) = costs.get(&Way::Served) else { return rows };
    for (way, own) in costs.iter().filter(|(way, _)| matches!(way, Way::Older(_))) {
        let row = |what: &str, values: &[f64]| {
            let base = Way::Served.name();
            let name = format!("{}: {} to {base}: {what}", direction(shape), way.name());
            Row::new(&name, &parameters(shape), "ratio", values)
        };
        if shape.load == Load::Saturated {
            let row = row("packets/s", &ratios(&rates(own), &rates(server)));
            let limit = way.is_unbatched().then_some(ANSWERED_AT_MOST);
            rows.push(Row { at_most: limit, ..row });
        }
        let time = ratios(&own.instructions, &server.instructions);
        rows.push(row("processor time per packet", &time));
        rows.push(row("wake-ups per packet", &ratios(&own.wake_ups, &server.wake_ups)));
    }
    rows
}

/// `true` if limits hold for a way: those that wake the program at each interrupt, as the kernel's does.
/// `wait=auto` delays packets up to a bound of its own.
fn is_limited(way: Way) -> bool {
    way != Way::ServedAuto
}

/// Returns packets per second of a processor that executes an instruction per nanosecond.
fn rates(costs: &Costs) -> Vec<f64> {
    costs.instructions.iter().map(|instructions| 1e9 / instructions).collect()
}

fn time_limit(load: Load) -> Option<f64> {
    match load {
        Load::Saturated => Some(SATURATED_AT_MOST),
        Load::PerSecond(rate) => {
            PACED_AT_MOST.into_iter().find(|(of, _)| *of == rate).map(|(_, limit)| limit)
        }
    }
}

/// Returns the counts of a way.
fn context(shape: Shape, way: Way, costs: &Costs) -> Vec<Row> {
    let row = |what: &str, unit: &str, values: &[f64]| {
        let name = format!("{}: {}: {what}", direction(shape), way.name());
        Row::new(&name, &parameters(shape), unit, values)
    };
    let mut rows = Vec::new();
    if shape.load == Load::Saturated {
        let mpps: Vec<f64> = rates(costs).iter().map(|rate| rate / 1e6).collect();
        rows.push(row("packets at one instruction per ns", "Mpps", &mpps));
    }
    rows.extend([
        row("instructions per packet", "instructions", &costs.instructions),
        row("register reads per packet", "reads", &costs.reads),
        row("register writes per packet", "writes", &costs.writes),
        row("interrupts per packet", "interrupts", &costs.interrupts),
        row("wake-ups per packet", "wake-ups", &costs.wake_ups),
        row("packets that arrived", "share", &costs.received),
    ]);
    if !costs.ipcs.is_empty() {
        rows.push(row("messages and notifications per packet", "IPCs", &costs.ipcs));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::styles::Style;
    use super::*;

    #[test]
    fn the_senders_part_of_a_trial_is_subtracted() {
        let shape = Shape { is_back: false, bytes: 64, load: Load::Saturated };
        let trial = |way, sent, instructions, wake_ups| Trial {
            way,
            shape,
            round: 1,
            sent,
            received: if way == Way::Alone { 0 } else { sent },
            instructions,
            own_instructions: 0,
            own_writes: sent,
            ipcs: way.counts_ipcs().then_some(2 * sent),
            wake_ups,
            busy_instructions: None,
        };
        let accesses = |writes, interrupts| Accesses { reads: 0, writes, interrupts };
        let slow = Way::Older(Style::Message);
        // The sender takes 10 instructions for a packet, the receivers 90 and 490.
        let trials = [
            (trial(Way::Alone, 800, 8_000, 0), accesses(800, 80)),
            (trial(Way::Served, 800, 80_000, 8), accesses(816, 160)),
            (trial(slow, 100, 50_000, 100), accesses(110, 20)),
        ];
        let costs = costs(trials.iter());
        let of = |way: &Way| {
            let one = &costs[way];
            [&one.instructions, &one.writes, &one.interrupts, &one.wake_ups, &one.ipcs]
                .map(|values| values[0])
        };
        assert_eq!(of(&Way::Served), [90.0, 0.02, 0.1, 0.01, 2.0]);
        assert_eq!(of(&slow), [490.0, 0.1, 0.1, 1.0, 2.0]);
        let rows = older(shape, &costs);
        assert_eq!(rows.len(), 3);
        assert!((rows[0].value - 90.0 / 490.0).abs() < 1e-9 && rows[0].holds(), "{rows:?}");
    }
}

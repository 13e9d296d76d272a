//! The rows of the report.

use std::collections::BTreeMap;

use super::log::Accesses;
use super::trial::{Load, Shape, Trial, Way};
use crate::report::{Outcome, Row};
use crate::statistics::ratios;

/// The lower limits of Towpath's rates, to those of an AF_PACKET socket and of testpmd.
const TO_KERNEL_AT_LEAST: f64 = 1.0;
const TO_TESTPMD_AT_LEAST: f64 = 0.8;
/// The upper limits of processor time per packet, to the kernel's driver: saturated, and by packets
/// per second.
const SATURATED_AT_MOST: f64 = 0.8;
const PACED_AT_MOST: [(u32, f64); 2] = [(10_000, 1.0), (1_000, 1.3)];

/// What a way cost in the rounds of a shape, per packet.
#[derive(Clone, Debug, Default)]
struct Costs {
    instructions: Vec<f64>,
    reads: Vec<f64>,
    writes: Vec<f64>,
    interrupts: Vec<f64>,
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
        let net = |trial: &Trial| trial.instructions.saturating_sub(trial.own_instructions) as f64;
        let instructions = match trial.busy_instructions {
            Some(busy) => busy as f64,
            None => net(trial) - net(base),
        };
        let packets = trial.received as f64;
        let writes = |trial: &Trial, accesses: &Accesses| {
            accesses.writes.saturating_sub(trial.own_writes) as f64
        };
        let costs = all.entry(trial.way).or_default();
        costs.instructions.push(instructions / packets);
        costs.reads.push((accesses.reads as f64 - base_accesses.reads as f64) / packets);
        let own = writes(base, base_accesses);
        costs.writes.push((writes(trial, accesses) - own) / packets);
        let interrupts = accesses.interrupts as f64 - base_accesses.interrupts as f64;
        costs.interrupts.push(interrupts / packets);
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
        row("packets that arrived", "share", &costs.received),
    ]);
    rows
}

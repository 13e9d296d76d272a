//! Two classes of traffic, packet by packet in turn: one comes in long trains, one never twice from
//! the same flow.

use anyhow::ensure;
use towpath_engine::demux::{Destination, Direction, FlowCache, FlowTable};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::plain::{self, Plain};
use towpath_packet::{FlowRule, FlowVlan};

use super::lookups::{AT_LEAST_INTERLEAVED, CHUNK, FLOWS, MAC, in_turn, run, since};
use crate::Settings;
use crate::report::{Outcome, Row};
use crate::statistics::ratios;

/// Packets of a train.
const TRAIN: usize = 16;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Adds the speed of the automatic cache, and what it finds of each class.
pub(super) fn measure(
    settings: Settings,
    outcome: &mut Outcome,
    lookups: usize,
) -> anyhow::Result<()> {
    let (mut table, packets) = (table()?, packets()?);
    in_turn(&mut table, &packets, lookups)?;
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..settings.pairs() {
        for (all, ns) in all.iter_mut().zip(in_turn(&mut table, &packets, lookups)?.ns) {
            all.push(ns);
        }
    }
    let [auto, off, _] = &all;
    let parameters = [("train", TRAIN as f64)];
    let name = "trains and interleaved packets of two classes, auto to off, speed";
    let row = Row::new(name, &parameters, "ratio", &ratios(off, auto));
    outcome.rows.push(row.at_least(AT_LEAST_INTERLEAVED));
    for (class, hits) in ["in trains", "interleaved"].into_iter().zip(hits(&mut table, &packets)?) {
        let name = format!("two classes, auto: the one {class}, from the cache");
        outcome.context.push(Row::new(&name, &parameters, "of all", &[hits]));
    }
    Ok(())
}

/// Returns the part of the lookups of each class that the automatic cache answers.
fn hits(table: &mut FlowTable, packets: &[(Plain, u32)]) -> anyhow::Result<[f64; 2]> {
    // The first packets are one of each class.
    let counts = |table: &FlowTable| {
        [0, 1].map(|place| table.class_counts(Direction::Received, &packets[place].0))
    };
    table.set_cache(FlowCache::Auto);
    let before = counts(table);
    run(table, packets, CHUNK)?;
    let now = counts(table);
    Ok([0, 1].map(|class| {
        let counts = since(now[class], before[class]);
        counts.hits as f64 / counts.lookups as f64
    }))
}

fn table() -> anyhow::Result<FlowTable> {
    let mut table = FlowTable::new(1, FlowCache::Off);
    for port in 0..FLOWS {
        for (protocol, first) in [(TCP, 0), (UDP, FLOWS)] {
            let vlan = FlowVlan::Untagged;
            let rule =
                FlowRule { mac: Some(MAC), vlan, protocol: Some(protocol), ..FlowRule::default() };
            let to = Destination { session: 0, endpoint: u32::from(first + port) };
            let rule = FlowRule { port: Some(port), ..rule };
            ensure!(table.insert(&rule, false, to), "a unique rule");
        }
    }
    Ok(table)
}

/// Makes one round of packets of all flows.
fn packets() -> anyhow::Result<Vec<(Plain, u32)>> {
    let packet = |port: u16, protocol: u8| {
        let flow = Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC).ports(1000, port);
        let (frame, first) = match protocol {
            TCP => (flow.tcp(&Tcp::default(), b"x"), 0),
            _ => (flow.udp(b"x"), FLOWS),
        };
        let plain = plain::read(&frame, frame.len());
        let plain = plain.ok_or_else(|| anyhow::anyhow!("not a plain packet"))?;
        anyhow::Ok((plain, u32::from(first + port)))
    };
    let mut packets = Vec::new();
    for number in 0..usize::from(FLOWS) * TRAIN {
        packets.push(packet((number / TRAIN) as u16, TCP)?);
        packets.push(packet((number % usize::from(FLOWS)) as u16, UDP)?);
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_in_trains_keeps_its_cache() {
        let (mut table, packets) = (table().unwrap(), packets().unwrap());
        let [trains, interleaved] = hits(&mut table, &packets).unwrap();
        assert!((0.93..0.94).contains(&trains), "15 of 16: {trains}");
        assert_eq!(interleaved, 0.0);
    }
}

//! The paper's section 3.1.2: the memory that another process can read during a transfer of PDUs,
//! on the same processor.
//!
//! The scheduler divides a shared processor, so the reader's gigabytes per second depend on how
//! busy the network keeps it, whatever the network does to memory. The experiment reports two
//! figures. One is the reader's rate in wall-clock time, while the network carries the paper's 135
//! Mbit/s and no more. The other is its rate in a second of its own processor time: the caches and
//! memory that the network leaves to it.

use std::cell::RefCell;
use std::time::Duration;

use super::carriers::{Carriers, LINK_BITS_PER_S, PDUS};
use super::others::{Seen, Striding};
use crate::Settings;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

pub(super) fn measure(
    settings: Settings,
    cpu: usize,
    carriers: &RefCell<Carriers<'_>>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 40 } else { 400 });
    let striding = RefCell::new(Striding::start(cpu)?);
    for pdu_bytes in PDUS {
        for (who, ours) in [("Towpath", true), ("read() and write()", false)] {
            let seen = RefCell::new([Vec::<Seen>::new(), Vec::new()]);
            let beside = |side: usize, other: &dyn Fn() -> anyhow::Result<()>| {
                let one = striding.borrow_mut().beside(window, other)?;
                seen.borrow_mut()[side].push(one);
                Ok(one.gb_per_s)
            };
            let carry = || {
                let mut carriers = carriers.borrow_mut();
                carriers.carry(ours, pdu_bytes, window, Some(LINK_BITS_PER_S)).map(drop)
            };
            // This thread, too, runs on that processor.
            let sleep = || {
                std::thread::sleep(window);
                Ok(())
            };
            let pairs =
                Pairs::measure(settings.pairs(), || beside(0, &carry), || beside(1, &sleep))?;
            // The first of each is dropped: it warms the caches.
            let of_own_time = |side: &[Seen]| -> Vec<f64> {
                side.iter().skip(1).map(|seen| seen.gb_per_cpu_s).collect()
            };
            let [with, without] = seen.into_inner();
            let by_cpu = Pairs { ours: of_own_time(&with), base: of_own_time(&without) };
            let parameters =
                [("pdu_bytes", pdu_bytes as f64), ("mbit_per_s", LINK_BITS_PER_S / 1e6)];
            let row =
                |name: String, unit, values: &[f64]| Row::new(&name, &parameters, unit, values);
            let name = format!("memory bandwidth left beside {who}, to all of it");
            outcome.rows.push(row(name, "ratio", &pairs.ratios()));
            let name =
                format!("memory read in a reader's own processor time beside {who}, to alone");
            outcome.rows.push(row(name, "ratio", &by_cpu.ratios()));
            let name = format!("memory bandwidth beside {who}");
            outcome.context.push(row(name, "GB/s", &pairs.ours));
            outcome.context.push(row("memory bandwidth alone".into(), "GB/s", &pairs.base));
            let name = format!("memory read beside {who}");
            outcome.context.push(row(name, "GB in a CPU second", &by_cpu.ours));
        }
    }
    Ok(())
}

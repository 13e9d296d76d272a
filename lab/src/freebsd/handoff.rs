//! The two ways to hand packets to the device, measured in turn; and a device slower than the
//! processor.

use std::cell::RefCell;

use anyhow::{Context, ensure};
use towpath_client::Setting;

use crate::process::{Process, Serving, Wire};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// The time that a slow device takes per packet, in microseconds.
pub(super) const PACKET_US: u64 = 50;
/// Packets that a slow device has room for.
pub(super) const PLACES: usize = 2;

/// The ways to hand packets to the device, if the server has a choice: the setting, and its values
/// for directly and for through a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handoff {
    pub(super) setting: Setting,
    pub(super) direct: u64,
    pub(super) queued: u64,
}

impl Handoff {
    pub(super) fn find() -> Option<Handoff> {
        let setting = Setting::named("handoff").ok()?;
        let value = |word| setting.parse(word).ok();
        Some(Handoff { setting, direct: value("direct")?, queued: value("queued")? })
    }
}

/// The names of the rows of the two ways.
pub(super) const IN_TWO_WAYS: &str = "handed over directly, to through a queue";
pub(super) const TWO_WAYS: [&str; 2] = ["directly", "through a queue"];

/// The result of a run: packets or files per second, in thousands, and the processor time of each,
/// in microseconds.
pub(super) type Run = (f64, f64);

impl Handoff {
    /// Runs with packets handed over in one of the two ways. With `refused`, the device is slow,
    /// and must have refused some.
    pub(super) fn run(
        self,
        process: &Process,
        way: u64,
        refused: Option<&Refused>,
        run: impl Fn() -> anyhow::Result<Run>,
    ) -> anyhow::Result<Run> {
        process.set(self.setting, way)?;
        let before = Counted::of(process)?;
        let outcome = run()?;
        let after = Counted::of(process)?;
        if let Some(refused) = refused {
            refused.add(way == self.direct, &before, &after)?;
        }
        Ok(outcome)
    }
}

/// The server's counters of its device.
pub(super) struct Counted {
    pub(super) full: u64,
    pub(super) taken: u64,
}

impl Counted {
    pub(super) fn of(process: &Process) -> anyhow::Result<Counted> {
        let counters = process.counters()?;
        let read = |name| counters.get(name).copied().with_context(|| format!("no {name}"));
        Ok(Counted { full: read("tx_full")?, taken: read("tx_packets")? })
    }
}

/// The refusals of a slow device per packet that it took: directly, and through a queue.
#[derive(Default)]
pub(super) struct Refused(pub(super) [RefCell<Vec<f64>>; 2]);

impl Refused {
    pub(super) fn add(
        &self,
        direct: bool,
        before: &Counted,
        after: &Counted,
    ) -> anyhow::Result<()> {
        let (full, taken) = (after.full - before.full, after.taken - before.taken);
        ensure!(full > 0, "a slow device had room for all of {taken} packets");
        self.0[usize::from(!direct)].borrow_mut().push(full as f64 / taken.max(1) as f64);
        Ok(())
    }

    pub(super) fn rows(self, what: &str, parameters: &[(&str, f64)], outcome: &mut Outcome) {
        for (way, values) in TWO_WAYS.into_iter().zip(self.0) {
            let values = values.into_inner();
            if !values.is_empty() {
                let name = format!("{what}, {way}, device without room");
                outcome.context.push(Row::new(&name, parameters, "a packet taken", &values));
            }
        }
    }
}

/// Returns the serving on a TAP of this name that is far slower than the processor, and has few
/// slots.
pub(super) fn slow(name: &str, serving: Serving) -> Serving {
    let wire = Wire::SlowTap { name: name.to_owned(), packet_us: PACKET_US, places: PLACES };
    Serving { wire, ..serving }
}

/// Measures two sides in turn, by both figures.
pub(super) fn both(
    count: usize,
    ours: impl Fn() -> anyhow::Result<Run>,
    base: impl Fn() -> anyhow::Result<Run>,
) -> anyhow::Result<(Pairs, Pairs)> {
    let cpu = RefCell::new(Pairs::default());
    let rates = Pairs::measure(
        count,
        || {
            let (rate, each) = ours()?;
            cpu.borrow_mut().ours.push(each);
            Ok(rate)
        },
        || {
            let (rate, each) = base()?;
            cpu.borrow_mut().base.push(each);
            Ok(rate)
        },
    )?;
    let mut cpu = cpu.into_inner();
    // The first pair finds caches cold, and does not count.
    cpu.ours.remove(0);
    cpu.base.remove(0);
    Ok((rates, cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_handoff_modes_differ_if_available() {
        let named = Setting::ALL.iter().any(|(_, spec)| spec.name == "handoff");
        let found = Handoff::find();
        assert_eq!(found.is_some(), named, "a setting of that name has these two words");
        assert!(found.is_none_or(|handoff| handoff.direct != handoff.queued));
    }
}

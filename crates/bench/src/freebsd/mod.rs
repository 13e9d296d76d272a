//! Watson, "Changes in the network interface queueing handoff model": empty UDP packets a second and
//! files of 1 KB over HTTP, with packets handed to the device directly and through a queue, on one
//! core and on two; and, which the paper leaves open, with a device slower than the processor. His
//! gain is that of four lock operations less a packet: what is locked, and what is executed, is
//! counted here, instruction by instruction.

mod counted;
mod files;
mod packets;

use towpath_client::Setting;

use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::report::Outcome;

pub(crate) use counted::counted;

/// How packets can be handed to the device, where that can be chosen: the setting, and its value
/// for directly and for through a queue.
#[derive(Clone, Copy, Debug)]
struct Handoff {
    setting: Setting,
    direct: u64,
    queued: u64,
}

impl Handoff {
    fn find() -> Option<Handoff> {
        let setting = Setting::named("handoff").ok()?;
        let value = |word| setting.parse(word).ok();
        Some(Handoff { setting, direct: value("direct")?, queued: value("queued")? })
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let wire = KernelWire::new("tpbsd", 1500)?;
    let mut outcome = Outcome {
        how: format!(
            "over a TAP to the kernel, beside the kernel's own sockets across a veth pair; two \
             cores: engine on core {}, polls, application on core {}; one core: both on core {}, \
             asleep when idle",
            cores.0, cores.1, cores.1
        ),
        ..Outcome::default()
    };
    let handoff = Handoff::find();
    packets::measure(settings, cores, &wire, handoff, &mut outcome)?;
    files::measure(settings, cores, &wire, handoff, &mut outcome)?;
    counted::measure(settings, handoff, &mut outcome)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ways_differ_where_they_can_be_chosen() {
        let named = Setting::ALL.iter().any(|(_, spec)| spec.name == "handoff");
        let found = Handoff::find();
        assert_eq!(found.is_some(), named, "a setting of that name has these two words");
        assert!(found.is_none_or(|handoff| handoff.direct != handoff.queued));
    }
}

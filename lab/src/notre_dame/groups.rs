//! The variants that are measured: both sides beside the kernel's, and each technique on and off.

use towpath_testkit::Namespace;

use super::rounds::{Compared, Group, Part};
use super::variant::Variant;
use crate::process::Serving;
use crate::techniques::{Technique, Waits, Way, all};

/// The prefix of this experiment's interfaces.
const PREFIX: &str = "tpnd";

/// Starts the variants of all groups.
pub(super) fn start(
    engine_cpu: usize,
    here: &Namespace,
    there: &Namespace,
) -> anyhow::Result<Vec<Group>> {
    let mut groups = beside_kernel(engine_cpu, [here, there])?;
    for technique in all(PREFIX, engine_cpu) {
        groups.push(switched(&technique)?);
    }
    Ok(groups)
}

/// Starts Towpath beside AF_PACKET sockets at both ends of a veth pair.
fn beside_kernel(engine_cpu: usize, namespaces: [&Namespace; 2]) -> anyhow::Result<Vec<Group>> {
    [
        ("all poll", Waits::Polls, None),
        ("all sleep", Waits::Blocks, None),
        ("all sleep, sent back by a process", Waits::Blocks, Some(engine_cpu)),
    ]
    .into_iter()
    .enumerate()
    .map(|(number, (what, waits, echo_cpu))| {
        let serving = Serving::tap(&format!("{PREFIX}k{number}")).on(engine_cpu);
        let way = match waits {
            Waits::Polls => Way::new(serving.polling(), waits),
            Waits::Blocks | Waits::Spins => Way::new(serving, waits),
        };
        let ours = Variant::served(&format!("Towpath, {what}"), &way, echo_cpu)?;
        let (name, veth) = (format!("AF_PACKET, {what}"), format!("{PREFIX}v{number}"));
        let base = Variant::kernel(&name, &veth, namespaces, waits, echo_cpu)?;
        let base_name = format!("AF_PACKET on both sides, {what}");
        let compared = vec![Compared::of("Towpath", &base_name, 0, 1)];
        Ok(Group { part: Part::Waits, variants: vec![ours, base], compared })
    })
    .collect()
}

/// Starts a technique on and off.
fn switched(Technique { name, on, off, echo_cpu }: &Technique) -> anyhow::Result<Group> {
    let waits = ["sleep", "block", "rx_usecs", "timer-driven"].iter().any(|it| name.contains(it));
    let variants = vec![
        Variant::served(&format!("on: {name}"), on, *echo_cpu)?,
        Variant::served(&format!("off: {name}"), off, *echo_cpu)?,
    ];
    let compared = vec![Compared::of("on", &format!("off: {name}"), 0, 1)];
    let part = if waits { Part::Waits } else { Part::Techniques };
    Ok(Group { part, variants, compared })
}

//! The variants that are measured: both sides beside the kernel's, each technique on and off, the
//! paper's versions of a driver, and buffers that move from one owner to another.

use towpath_testkit::{Move, Namespace};

use super::driver::{Driven, Switches};
use super::pass::{LONGEST, Pass};
use super::receive_queue::Protection;
use super::rounds::{Compared, Group, Part};
use super::variant::Variant;
use crate::echo::FRAME_BYTES;
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
    groups.push(versions(engine_cpu)?);
    for bytes in [FRAME_BYTES, LONGEST] {
        groups.push(moves(engine_cpu, bytes)?);
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

/// The paper's figure 2: each version has one more modification than the one before.
pub(super) const VERSIONS: [(&str, Switches); 4] = [
    (
        "version 0: mutexes, adapter mapped per packet",
        Switches {
            write: Protection::Mutex,
            read: Protection::Mutex,
            pass: Pass::Adapter { reserved: false },
        },
    ),
    (
        "version 1: and an optimistic write path",
        Switches {
            write: Protection::Optimistic,
            read: Protection::Mutex,
            pass: Pass::Adapter { reserved: false },
        },
    ),
    (
        "version 2: and an optimistic read path",
        Switches {
            write: Protection::Optimistic,
            read: Protection::Optimistic,
            pass: Pass::Adapter { reserved: false },
        },
    ),
    (
        "version 3: and the adapter mapped once",
        Switches {
            write: Protection::Optimistic,
            read: Protection::Optimistic,
            pass: Pass::Adapter { reserved: true },
        },
    ),
];

fn versions(cpu: usize) -> anyhow::Result<Group> {
    let variants = VERSIONS.iter().enumerate().map(|(number, (name, switches))| {
        let driven = Driven::start(&format!("{PREFIX}d{number}"), *switches, cpu)?;
        Variant::driven(name, driven, FRAME_BYTES)
    });
    let variants = variants.collect::<anyhow::Result<_>>()?;
    let compared = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)].map(|(on, off)| {
        Compared::of(&format!("version {on}"), &format!("version {off}"), on, off)
    });
    let compared = compared.into();
    Ok(Group { part: Part::Versions, variants, compared })
}

/// The ways of giving a packet to the driver and back; the first is the base.
const MOVES: [(&str, Pass); 4] = [
    ("copied", Pass::Buffer(Move::Copy)),
    ("moved by page protection (mprotect)", Pass::Buffer(Move::Protect)),
    ("moved by mapping elsewhere (mremap)", Pass::Buffer(Move::Remap)),
    ("through an adapter that is mapped per packet", Pass::Adapter { reserved: false }),
];

fn moves(cpu: usize, bytes: usize) -> anyhow::Result<Group> {
    let variants = MOVES.iter().enumerate().map(|(number, (name, pass))| {
        let (write, read) = (Protection::Optimistic, Protection::Optimistic);
        let interface = format!("{PREFIX}m{bytes}x{number}");
        let driven = Driven::start(&interface, Switches { write, read, pass: *pass }, cpu)?;
        Variant::driven(&format!("buffers {name}"), driven, bytes)
    });
    let variants = variants.collect::<anyhow::Result<_>>()?;
    let compared = (1..MOVES.len())
        .map(|on| Compared::of(&format!("buffers {}", MOVES[on].0), "copied", on, 0));
    Ok(Group { part: Part::Moves, variants, compared: compared.collect() })
}

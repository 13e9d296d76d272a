//! Tracey and Banerji, "Device Driver Issues in High-Performance Networking", section 4: the double
//! round trip of a small packet, with each technique on and off.
//!
//! A packet of 60 bytes goes from an application through the server and its TAP to an AF_PACKET
//! socket on the kernel's side, which sends it back; twice, and only the second round trip counts.
//! The initiator's thread sends packets back while it waits, so that the other core does only the
//! measured work. With all sides asleep, a separate process sends them back in further rows, as
//! another host would.
//!
//! All [variants](groups) exist at the same time, and at most one of them runs. A
//! [round](rounds) has one trial of each; trials that are compared follow each other directly. So a
//! [difference](paired) is one of pairs. At the paper's length, each variant rests for half a
//! second between its trials while the others have theirs, and a [state](state) lets an interrupted
//! run continue.

mod driver;
mod groups;
mod moves;
mod paired;
mod pass;
mod receive_queue;
mod rounds;
mod show;
mod state;
mod variant;

use towpath_testkit::{Namespace, pin};

use crate::Settings;
use crate::echo::FRAME_BYTES;
use crate::figure::MOST_POINTS;
use crate::interval::{CONFIDENCE, RESAMPLES, block};
use crate::kernel_wire::raise_file_limit;
use crate::latency::lowest;
use crate::machine::{Machine, two_cores};
use crate::report::Outcome;

use rounds::{Plan, SEED};
use state::{Origin, State};

/// Returns the description of the experiment.
fn how(plan: Plan, rounds: usize, engine_cpu: usize, own_cpu: usize) -> String {
    format!(
        "packets of {FRAME_BYTES} bytes from an application on core {own_cpu} through a server, its \
         engine on core {engine_cpu}, and its TAP to an AF_PACKET socket; the application's thread \
         sends them back; each trial is two round trips, and the second counts. {rounds} rounds \
         with one trial of each variant, those that are compared one after the other in a random \
         order (seed {SEED:#x}); all other variants rest meanwhile. A variant's trials are at least \
         {} ms apart. A pair of trials counts if both are among the lowest {} of {rounds} of their \
         variant, as large a part as the paper's lowest 4000 of 5120; ratios and differences are of \
         the means over these pairs. Their spreads, and those of p99, are intervals of {} % \
         confidence: a circular block bootstrap, {RESAMPLES} resamples of blocks of {} rounds. The \
         spread of a lowest trial's ratio is over ten parts of the run. Versions and buffers: a \
         driver in the application's process, with its bottom half on core {engine_cpu}. Version 0 \
         has mutexes on both paths and an adapter that is mapped for each packet; 1 adds an \
         optimistic write path, 2 an optimistic read path, 3 an adapter that is mapped once. Curves \
         are drawn through {MOST_POINTS} trials",
        plan.apart.as_millis(),
        lowest(rounds),
        CONFIDENCE * 100.0,
        block(rounds),
    )
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (engine_cpu, own_cpu) = two_cores()?;
    let plan = Plan::of(settings);
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    // The kernel's own messages on a new interface would add frames.
    let _ = here.silence();
    let _ = there.silence();
    // Each variant has some descriptors.
    raise_file_limit();
    // A pinned thread would describe a machine of one core.
    let machine = Machine::this()?;
    pin(own_cpu)?;
    let mut groups = groups::start(engine_cpu, &here, &there)?;
    let names = groups.iter().flat_map(|group| &group.variants).map(|one| one.name.clone());
    let mut state = if settings.full {
        Some(State::open(state::path()?, &Origin::of(machine, SEED, names.collect())?)?)
    } else {
        None
    };
    let trials = rounds::run(&mut groups, plan, state.as_mut())?;
    let rounds = trials.first().map_or(0, Vec::len);
    let mut outcome = Outcome { how: how(plan, rounds, engine_cpu, own_cpu), ..Outcome::default() };
    show::show(&mut outcome, &groups, &trials)?;
    drop(groups);
    moves::measure(settings, &mut outcome)?;
    if let Some(state) = state {
        state.remove()?;
    }
    Ok(outcome)
}

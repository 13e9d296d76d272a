//! Applications on one host that share memory (Riddoch and Pope, sections 2 and 4): channels beside
//! other ways for two applications to send messages to each other; the bandwidth of stores into the
//! other one's memory and of requests; requests that a worker and that the engine carries out; many idle channels; the
//! overhead of a message.

mod bandwidth;
mod copying;
mod ends;
mod idle;
mod overhead;
mod spinning;

pub(crate) use copying::Requester;
pub(crate) use ends::connect;

use crate::Settings;
use crate::machine::two_cores;
use crate::process::{Process, Serving};
use crate::report::Outcome;
use spinning::Spinning;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let mut outcome = Outcome {
        how: format!(
            "two sessions of one process, each in a thread, with a channel; or two processes of testpmd; \
             or two threads with Aeron IPC: one side on core {}, where messages are received, the other \
             one on core {}",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    // First, because the others pin this thread, and processes inherit that.
    copying::measure(settings, &mut outcome)?;
    let process = Process::start(&Serving::memory(1500), None)?;
    let mut channel = Spinning::new(&process.socket(), cores)?;
    let mut outcome = crate::peers::beside_channels(settings, cores, outcome, &mut channel)?;
    spinning::to_a_line(settings, cores, &mut channel, &mut outcome)?;
    drop((channel, process));
    bandwidth::measure(settings, cores, &mut outcome)?;
    idle::measure(settings, cores, &mut outcome)?;
    overhead::measure(settings, cores, &mut outcome)?;
    Ok(outcome)
}

//! Applications on one host that share memory (Riddoch and Pope, sections 2 and 4): channels beside
//! other ways for two applications to send messages to each other; the bandwidth of stores into the
//! other one's memory and of requests; many idle channels; the overhead of a message.

mod bandwidth;
mod ends;
mod idle;
mod overhead;
mod spinning;

pub(crate) use ends::connect;

use crate::Settings;
use crate::machine::two_cores;
use crate::process::{Process, Serving};
use crate::report::Outcome;
use spinning::Spinning;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let outcome = Outcome {
        how: format!(
            "two sessions of one process, each in a thread, with a channel; or two processes of testpmd; \
             or two threads with Aeron IPC: one side on core {}, where messages are received, the other \
             one on core {}",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
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

//! Watson, "Changes in the network interface queueing handoff model": empty UDP packets per second
//! and files of 1 KB over HTTP, with packets handed to the device directly and through a queue, on
//! one core and on two. Beyond the paper, a device slower than the processor, and a device with a
//! descriptor ring, by the cost of a kick. Watson's gain is that of four fewer lock operations per
//! packet. An application and its engine share no lock, so this experiment counts instructions, and
//! the locked ones among them, one by one. Threads of one program can share locks, so there a queue
//! and a driver with a mutex each stand beside direct hand-off.

mod counted;
mod files;
mod handoff;
mod kicks;
mod locks;
mod packets;
mod threads;

use crate::Settings;
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::report::Outcome;
use handoff::{Handoff, PACKET_US, PLACES};

pub(crate) use counted::{Counted, batches, step_through};
pub(crate) use locks::TwoLocks;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let wire = KernelWire::new("tpbsd", 1500)?;
    let mut outcome = Outcome {
        how: format!(
            "over a TAP to the kernel, beside the kernel's own sockets across a veth pair; two \
             cores: the engine polls on core {}, application on core {}; one core: both on core {}, \
             asleep when idle; slow device: on two \
             cores, asleep when idle, and the TAP takes a packet in {PACKET_US} us and refuses more \
             than {PLACES}; ring device: an engine alone over the in-memory device, on core {}, \
             whose kicks take a given time; threads of one program: one on core {}, a second on \
             core {}, without a server, over the same device",
            cores.0, cores.1, cores.1, cores.0, cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let handoff = Handoff::find();
    packets::measure(settings, cores, &wire, handoff, &mut outcome)?;
    files::measure(settings, cores, &wire, handoff, &mut outcome)?;
    kicks::measure(settings, cores.0, &mut outcome)?;
    threads::measure(settings, cores, &mut outcome)?;
    counted::measure(settings, handoff, &mut outcome)?;
    Ok(outcome)
}

//! A network card: Towpath's driver beside the kernel's and DPDK's.
//!
//! Beside these are older ways from a driver to an application, of another process (Hennrich).
//!
//! A small guest has an emulated e1000e card for each way from a card to a program, all on one hub,
//! and one for the sender. QEMU executes one instruction of the guest per nanosecond of the guest's
//! clock, so the guest's times are exact counts of instructions. QEMU's log counts accesses of the
//! cards' registers and interrupts, alike for all drivers.

mod count;
mod guest;
mod packet;
mod port;
mod receivers;
mod rows;
mod sender;
mod styles;
mod trial;
mod trials;

use crate::Settings;
use crate::report::Outcome;

use guest::RX_USECS;
pub(crate) use styles::Order;
pub(crate) use trial::{Plan, Receiver};

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let mut outcome =
        Outcome { how: format!("{}; {}", how(), crate::handoff::how()), ..Outcome::default() };
    let testpmd = outcome.needs(guest::testpmd());
    let (left, handoff) = if settings.quick {
        // The first machine counts the same instructions beside others.
        std::thread::scope(|scope| {
            let handoff = scope.spawn(|| crate::handoff::run(settings));
            let left = guest::run(settings, testpmd);
            let handoff = handoff.join().map_err(|_| anyhow::anyhow!("a thread panicked"));
            (left, handoff.flatten())
        })
    } else {
        let left = guest::run(settings, testpmd);
        (left, crate::handoff::run(settings))
    };
    let left = left?;
    rows::add(&mut outcome, &left.trials);
    handoff?.add_rows(&mut outcome)?;
    outcome.missing.extend(left.missing);
    Ok(outcome)
}

fn how() -> String {
    format!(
        "a virtual machine with one processor and ten e1000e cards on one hub, emulated by QEMU, \
         which counts instructions; rx-usecs {RX_USECS} for all drivers; the sender runs before \
         all others, drives a card of its own by polling, and its instructions are subtracted; the \
         kernel's receiver, the linked program, the server's engine and its application sleep while \
         there are no packets, except that the engine chooses with wait=auto; testpmd polls, and counts its instructions while it has packets; \
         saturated: bursts that wait for the receiver"
    )
}

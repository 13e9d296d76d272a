//! Older ways from a driver's process to an application, of those that Hennrich surveys: one process
//! drives the card, and another one takes the packets.
//!
//! | way | of | a packet crosses |
//! |---|---|---|
//! | one message per packet | Mach's TCP in user space | in a message, which the sender waits to have answered |
//! | 16 packets per message | the same, optimised | with others in such a message |
//! | shared rings, a notification per packet | U-Net; Sawmill | not at all: its buffer is shared, and its number is in a ring |
//! | pages moved, one message per packet | I/O-oriented IPC | with its page, which the giver cannot reach any more |
//!
//! All of them share the card's driver, the application's task and the start of both processes. The
//! application trusts its driver, and the driver has one application.

mod driver;
mod ends;
mod messages;
mod moves;
mod rings;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use towpath_packet::MacAddr;

use super::count::Count;
use crate::child::Child;

use ends::Ends;

/// Packets of a message that carries several.
const PACKETS_PER_MESSAGE: usize = 16;

/// An older way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Style {
    Message,
    Batched,
    Rings,
    Moves,
}

impl Style {
    /// Returns the words of a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Style::Message => "one message per packet",
            Style::Batched => "16 packets per message",
            Style::Rings => "shared rings, a notification per packet",
            Style::Moves => "pages moved, one message per packet",
        }
    }

    /// `true` if each packet waits for an answer of its own, however many there are.
    pub(super) fn answers_each(self) -> bool {
        matches!(self, Style::Message | Style::Moves)
    }
}

/// Drives a card in a guest for an application, in an older way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    style: Style,
    /// The abstract name of the socket that gives the process its descriptors.
    name: String,
    /// The card.
    address: String,
    rx_usecs: u32,
}

/// One round of a program: it takes what has come, and sleeps if nothing has.
pub(super) type Round = Box<dyn FnMut() -> anyhow::Result<()> + Send>;

/// Starts a driver's process. Returns the card's address, and one round of its application.
pub(super) fn application(
    style: Style,
    address: &str,
    rx_usecs: u32,
    count: Count,
) -> anyhow::Result<([u8; 6], Round)> {
    let (ends, mut driver) = Ends::create(|name| {
        let address = address.to_owned();
        Child::start(&Order { style, name, address, rx_usecs })
    })?;
    let said = driver.read_line()?;
    let mac: MacAddr = said.parse().with_context(|| format!("no address: {said}"))?;
    let mut round: Round = match style {
        Style::Message | Style::Batched => Box::new(messages::application(ends, count)),
        Style::Rings => Box::new(rings::application(ends, count)?),
        Style::Moves => Box::new(moves::application(ends, count)?),
    };
    // The driver ends with its application.
    let round = move || {
        let _ = &driver;
        round()
    };
    Ok((mac.octets(), Box::new(round)))
}

//! The process that drives the card.

use towpath_memory::PAGE_BYTES;
use towpath_packet::MacAddr;

use super::ends::Ends;
use super::{Order, PACKETS_PER_MESSAGE, Style, messages, moves, rings};
use crate::card::port::Port;
use crate::child::{Role, tell, wait_for_end};

impl Role for Order {
    const NAME: &'static str = "CardDriver";

    fn act(self) -> anyhow::Result<()> {
        drive(&self)
    }
}

/// Drives a card until the application is gone.
fn drive(order: &Order) -> anyhow::Result<()> {
    let ends = Ends::receive(&order.name)?;
    let memory = ends.packets.map_writable()?;
    // A page for each buffer, so that a packet's page can move alone.
    let port = Port::over(&order.address, order.rx_usecs, memory, PAGE_BYTES)?;
    tell(&MacAddr::new(port.mac()).to_string())?;
    std::thread::spawn(|| {
        let ended = wait_for_end();
        std::process::exit(i32::from(ended.is_err()))
    });
    let mut round: Box<dyn FnMut() -> anyhow::Result<()>> = match order.style {
        Style::Message => Box::new(messages::driver(ends, port, 1)),
        Style::Batched => Box::new(messages::driver(ends, port, PACKETS_PER_MESSAGE)),
        Style::Rings => Box::new(rings::driver(ends, port)?),
        Style::Moves => Box::new(moves::driver(ends, port)?),
    };
    loop {
        round()?;
    }
}

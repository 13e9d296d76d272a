//! A packet's page moves to the process that gets the packet, and back: the giver makes the page unreachable
//! for itself, and names it in a message; the taker makes it reachable. No byte is copied.
//!
//! The card goes on reaching all pages. The driver's process has a second mapping of them, which VFIO needs to
//! register memory, and which the driver's program does not use.

use std::os::fd::AsFd;

use anyhow::{Context, bail, ensure};
use towpath_memory::PAGE_BYTES;
use towpath_testkit::HeldPages;

use super::ends::{Ends, MESSAGE_BYTES};
use super::messages::{DONE, RECEIVED, SEND, send_and_wait};
use crate::card::count::Count;
use crate::card::packet::{goes_back, swap};
use crate::card::port::{BATCH, Port};

/// Returns a message that moves a page.
fn moves(kind: u8, buffer: u32) -> [u8; 5] {
    let [a, b, c, d] = buffer.to_ne_bytes();
    [kind, a, b, c, d]
}

/// Returns the buffer of a message that moves a page, and the page's number.
fn moved(body: &[u8]) -> anyhow::Result<(u32, usize)> {
    let buffer = u32::from_ne_bytes(body.try_into().context("a message without a page")?);
    Ok((buffer, buffer as usize / PAGE_BYTES))
}

/// Returns one round of the driver.
pub(super) fn driver(
    ends: Ends,
    mut port: Port,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<()>> {
    let mut pages = HeldPages::map(ends.packets.as_fd(), true)?;
    let (mut taken, mut answer) = (Vec::with_capacity(BATCH), vec![0; MESSAGE_BYTES]);
    Ok(move || {
        let packets = port.take(&mut taken)?;
        for &(buffer, len) in &taken {
            let page = buffer as usize / PAGE_BYTES;
            pages.give(page)?;
            ends.send(&moves(RECEIVED, buffer))?;
            match ends.wait(&mut answer)? {
                (DONE, _) => {
                    pages.take(page)?;
                    port.complete(buffer);
                }
                (SEND, body) => {
                    ensure!(moved(body)? == (buffer, page), "the page of another packet");
                    pages.take(page)?;
                    port.send_from(&[(buffer, len)])?;
                    send_and_wait(&ends, &[DONE], &mut answer)?;
                }
                (kind, _) => bail!("a message of kind {kind}"),
            }
        }
        port.refill_in_batches()?;
        if packets == 0 { port.sleep() } else { Ok(()) }
    })
}

/// Returns one round of the application.
pub(super) fn application(
    ends: Ends,
    count: Count,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<()>> {
    let mut pages = HeldPages::map(ends.packets.as_fd(), false)?;
    let (mut message, mut answer) = ([0; 5], [0; 1]);
    Ok(move || {
        let (kind, body) = ends.wait(&mut message)?;
        ensure!(kind == RECEIVED, "a message of kind {kind}");
        let (buffer, page) = moved(body)?;
        pages.take(page)?;
        let mut head = pages.head(page).context("a page that was not moved")?;
        let sends = goes_back(&head) && swap(&mut head) && pages.set_head(page, head);
        pages.give(page)?;
        if sends {
            send_and_wait(&ends, &moves(SEND, buffer), &mut answer)?;
        }
        count.add_packets(1);
        count.add_ipcs(if sends { 4 } else { 2 });
        ends.send(&[DONE])
    })
}

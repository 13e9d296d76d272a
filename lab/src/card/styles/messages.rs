//! Packets in messages (`SOCK_SEQPACKET`), one or several in each. The receiver of a message answers it,
//! and its sender waits for the answer, as with the synchronous IPC of a microkernel.

use anyhow::{Context, bail, ensure};

use super::ends::{Ends, MESSAGE_BYTES};
use crate::card::count::Count;
use crate::card::packet::{goes_back, swap};
use crate::card::port::{BATCH, Port};

/// The kinds of messages: received packets, packets to send, and the answer to either. The application sends
/// packets before it answers: the driver waits for no other message.
pub(super) const RECEIVED: u8 = 0;
pub(super) const SEND: u8 = 1;
pub(super) const DONE: u8 = 2;

/// The bytes of a packet's length.
const LEN_BYTES: usize = 2;

/// Appends a packet of `len` bytes to a message. Returns its bytes.
fn append(message: &mut Vec<u8>, len: usize) -> &mut [u8] {
    message.extend_from_slice(&(len as u16).to_ne_bytes());
    let start = message.len();
    message.resize(start + len, 0);
    &mut message[start..]
}

/// Splits the first packet off the body of a message.
fn split(body: &mut [u8]) -> anyhow::Result<(&mut [u8], &mut [u8])> {
    let parts = body.split_first_chunk_mut::<LEN_BYTES>();
    let parts = parts
        .and_then(|(len, rest)| rest.split_at_mut_checked(usize::from(u16::from_ne_bytes(*len))));
    parts.context("a message that ends within a packet")
}

/// Sends packets, and waits for the answer.
pub(super) fn send_and_wait(ends: &Ends, message: &[u8], into: &mut [u8]) -> anyhow::Result<()> {
    ends.send(message)?;
    let (kind, _) = ends.wait(into)?;
    ensure!(kind == DONE, "a message of kind {kind} in place of an answer");
    Ok(())
}

/// Returns one round of the driver, with at most so many packets per message.
pub(super) fn driver(
    ends: Ends,
    mut port: Port,
    most: usize,
) -> impl FnMut() -> anyhow::Result<()> {
    let (mut taken, mut message) = (Vec::with_capacity(BATCH), Vec::with_capacity(MESSAGE_BYTES));
    let (mut answer, mut back) = (vec![0; MESSAGE_BYTES], Vec::with_capacity(BATCH));
    move || {
        let packets = port.take(&mut taken)?;
        for together in taken.chunks(most) {
            message.clear();
            message.push(RECEIVED);
            for (buffer, len) in together {
                port.copy_out(*buffer, append(&mut message, *len as usize))?;
                port.complete(*buffer);
            }
            ends.send(&message)?;
            loop {
                match ends.wait(&mut answer)? {
                    (DONE, _) => break,
                    (SEND, body) => send_copies(&mut port, body, &mut back)?,
                    (kind, _) => bail!("a message of kind {kind}"),
                }
                ends.send(&[DONE])?;
            }
        }
        port.refill_in_batches()?;
        if packets == 0 { port.sleep() } else { Ok(()) }
    }
}

/// Sends the packets of a message.
fn send_copies(
    port: &mut Port,
    mut body: &mut [u8],
    back: &mut Vec<(u32, u32)>,
) -> anyhow::Result<()> {
    back.clear();
    while !body.is_empty() {
        let (packet, rest) = split(body)?;
        // Without a free buffer, the driver drops the packet.
        back.extend(port.copy_in(packet)?.map(|buffer| (buffer, packet.len() as u32)));
        body = rest;
    }
    back.chunks(BATCH).try_for_each(|batch| port.send_from(batch))
}

/// Returns one round of the application.
pub(super) fn application(ends: Ends, count: Count) -> impl FnMut() -> anyhow::Result<()> {
    let (mut message, mut answer) = (vec![0; MESSAGE_BYTES], [0; 1]);
    let mut back = Vec::with_capacity(MESSAGE_BYTES);
    move || {
        let (kind, mut body) = ends.wait(&mut message)?;
        ensure!(kind == RECEIVED, "a message of kind {kind}");
        back.clear();
        back.push(SEND);
        let mut packets = 0;
        while !body.is_empty() {
            let (packet, rest) = split(body)?;
            if goes_back(packet) {
                swap(packet);
                append(&mut back, packet.len()).copy_from_slice(packet);
            }
            packets += 1;
            body = rest;
        }
        let sends = back.len() > 1;
        if sends {
            send_and_wait(&ends, &back, &mut answer)?;
        }
        count.add_packets(packets);
        count.add_ipcs(if sends { 4 } else { 2 });
        ends.send(&[DONE])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_taken_from_a_message_as_they_were_put() {
        let mut message = Vec::new();
        append(&mut message, 3).copy_from_slice(&[1, 2, 3]);
        append(&mut message, 0);
        append(&mut message, 1).copy_from_slice(&[4]);
        let (first, rest) = split(&mut message).unwrap();
        assert_eq!(first, [1, 2, 3]);
        let (second, rest) = split(rest).unwrap();
        assert!(second.is_empty());
        let (third, rest) = split(rest).unwrap();
        assert_eq!((&*third, rest.len()), (&[4][..], 0));
        message.pop();
        for cut in [&mut message[5..], &mut [1][..]] {
            let (_, rest) = split(cut).map_or((&mut [][..], &mut [][..]), |parts| parts);
            assert!(split(rest).is_err());
        }
    }
}

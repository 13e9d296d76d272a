//! The protocol of `rping`, which comes with librdmacm.
//!
//! The side that connects sends the address, the key and the length of a buffer with a text, in 16 bytes. The other
//! side reads it, sends 16 bytes so that it goes on, gets the range of a second buffer in the same way, writes the text
//! there up to its zero, and sends 16 bytes again.

use anyhow::{Context, ensure};
use towpath_client::{ApertureKey, Memory, OobKind, Request};

use crate::link::{Link, range};

/// The length of a message.
const MESSAGE: usize = 16;
/// The length of a text with its zero, and the longest one.
const TEXT: usize = 64;
const LONGEST: usize = 4096;

/// Returns the message about a buffer of `TEXT` bytes at an address.
fn message(key: ApertureKey, address: u64) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..8].copy_from_slice(&address.to_be_bytes());
    message[8..12].copy_from_slice(&key.0.to_be_bytes());
    message[12..].copy_from_slice(&(TEXT as u32).to_be_bytes());
    message
}

/// Takes a message about a buffer. Returns its key, its address and its length; `None` if the connection has ended.
fn buffer(link: &mut Link) -> anyhow::Result<Option<((ApertureKey, u64), usize)>> {
    let Some(message) = link.next("a buffer")? else { return Ok(None) };
    let (kind, bytes) = (message.kind(), message.payload());
    ensure!(
        kind == OobKind::Message && bytes.len() == MESSAGE,
        "{kind:?} of {} bytes",
        bytes.len()
    );
    let (address, rest) = bytes.split_first_chunk().context("an address")?;
    let (key, rest) = rest.split_first_chunk().context("a key")?;
    let len = u32::from_be_bytes(*rest.first_chunk().context("a length")?) as usize;
    ensure!((1..=LONGEST).contains(&len), "a buffer of {len} bytes");
    Ok(Some((range(*key, *address), len)))
}

/// Serves a connection.
pub(crate) fn serve(mut link: Link) -> anyhow::Result<()> {
    let memory = link.memory(LONGEST)?;
    let mut count = 0;
    while let Some(((key, address), len)) = buffer(&mut link)? {
        link.carry_out(&Request::read(key, address).local(&memory, 0..len), "the read")?;
        link.carry_out(&Request::send(&[0; MESSAGE]), "the go-ahead")?;
        let mut text = vec![0; len];
        memory.read(0, &mut text)?;
        let end = text.iter().position(|byte| *byte == 0).context("a text without an end")?;
        println!("server ping data: {}", String::from_utf8_lossy(&text[..end]));
        let ((key, address), room) = buffer(&mut link)?.context("no second buffer")?;
        ensure!(room > end, "a second buffer of {room} bytes");
        link.carry_out(&Request::write(key, address).local(&memory, 0..end + 1), "the write")?;
        link.carry_out(&Request::send(&[0; MESSAGE]), "the second go-ahead")?;
        count += 1;
    }
    println!("{count} exchanges");
    ensure!(count > 0, "no exchange");
    Ok(())
}

/// Returns the text of an exchange, with its zero.
fn text(number: u32) -> [u8; TEXT] {
    let mut text = [0; TEXT];
    let name = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number as usize);
    let bytes = name.bytes().chain(letters);
    text[..TEXT - 1].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    text
}

/// Connects and has `count` exchanges.
pub(crate) fn connect(mut link: Link, count: u32) -> anyhow::Result<()> {
    // The text, and from the second page on what the other side writes.
    let memory: Memory = link.memory(2 * LONGEST)?;
    let key = link.export(&memory, 2 * LONGEST)?.key();
    for number in 0..count {
        let (text, mut back) = (text(number), [0; TEXT]);
        memory.write(0, &text)?;
        memory.write(LONGEST, &back)?;
        for address in [0, LONGEST as u64] {
            link.carry_out(&Request::send(&message(key, address)), "a buffer")?;
            link.next_send(MESSAGE, "the go-ahead")?;
        }
        memory.read(LONGEST, &mut back)?;
        ensure!(back == text, "the other side wrote {back:x?}, not {text:x?}");
        println!("ping data: {}", String::from_utf8_lossy(&text[..TEXT - 1]));
    }
    link.disconnect()
}

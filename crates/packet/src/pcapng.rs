//! Capture files for Wireshark and tcpdump: pcapng (draft-ietf-opsawg-pcapng).
//!
//! A capture has one section, little-endian, with Ethernet, time in nanoseconds since 1970, and the
//! direction of each packet. The writer allocates nothing per packet and has no buffer: pass it a
//! [`BufWriter`](std::io::BufWriter) for a real file.

use std::io::{self, Write};

/// The maximum bytes of a packet in the file, for any snap length of an interface (Wireshark's own
/// limit).
pub const MAX_SNAP_BYTES: u32 = 262_144;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;

/// The direction of a packet, seen from the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Inbound,
    /// It was sent.
    Outbound,
}

/// Identifies an interface of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// Writes a capture.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Each interface's snap length.
    snap_bytes: Vec<u32>,
    /// `true` after a failed write: the file may end in the middle of a block, and further blocks
    /// would be unreadable.
    failed: bool,
}

/// Returns the length of an option: its number, and a value padded to 4 bytes.
fn option_bytes(len: usize) -> usize {
    4 + len.next_multiple_of(4)
}

/// Returns the length of an option that holds a name.
fn name_bytes(name: &str) -> io::Result<usize> {
    if name.len() > 0xffff {
        return Err(invalid("a name of over 65 535 bytes"));
    }
    Ok(option_bytes(name.len()))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl<W: Write> Writer<W> {
    /// Starts a capture. `application` names the program that writes it, in at most 65 535 bytes.
    ///
    /// # Errors
    /// The writer's error; `InvalidInput` for a name too long.
    pub fn new(out: W, application: &str) -> io::Result<Writer<W>> {
        let mut writer = Writer { out, snap_bytes: Vec::new(), failed: false };
        let total = (28 + name_bytes(application)? + 4) as u32;
        writer.block(|out| {
            put32(out, SECTION_HEADER)?;
            put32(out, total)?;
            put32(out, 0x1a2b_3c4d)?;
            out.write_all(&[1, 0, 0, 0])?;
            out.write_all(&[0xff; 8])?;
            put_option(out, 4, application.as_bytes())?;
            put32(out, 0)?;
            put32(out, total)
        })?;
        Ok(writer)
    }

    /// Adds an interface. `snap_bytes`: the maximum bytes of a packet in the file; 0 for
    /// [`MAX_SNAP_BYTES`].
    ///
    /// # Errors
    /// The writer's error; `InvalidInput` for a name of over 65 535 bytes.
    pub fn interface(&mut self, name: &str, snap_bytes: u32) -> io::Result<InterfaceId> {
        let snap = if snap_bytes == 0 { MAX_SNAP_BYTES } else { snap_bytes.min(MAX_SNAP_BYTES) };
        let total = (20 + name_bytes(name)? + option_bytes(1) + 4) as u32;
        self.block(|out| {
            put32(out, INTERFACE_DESCRIPTION)?;
            put32(out, total)?;
            put16(out, LINKTYPE_ETHERNET)?;
            put16(out, 0)?;
            put32(out, snap)?;
            put_option(out, 2, name.as_bytes())?;
            put_option(out, 9, &[9])?; // if_tsresol: 10^-9 seconds
            put32(out, 0)?;
            put32(out, total)
        })?;
        self.snap_bytes.push(snap);
        Ok(InterfaceId(self.snap_bytes.len() as u32 - 1))
    }

    /// Adds a packet, in any number of parts. `time_ns`: since 1970. `original_len`: the packet's
    /// length, if the parts are only its first bytes.
    ///
    /// # Errors
    /// The writer's error (a full disk); `InvalidInput` for an interface of another capture.
    pub fn packet(
        &mut self,
        interface: InterfaceId,
        time_ns: u64,
        direction: Direction,
        parts: &[&[u8]],
        original_len: usize,
    ) -> io::Result<()> {
        let snap = *self
            .snap_bytes
            .get(interface.0 as usize)
            .ok_or_else(|| invalid("an interface of another capture"))?;
        let given: usize = parts.iter().map(|part| part.len()).sum();
        let captured = given.min(snap as usize);
        let original = u32::try_from(original_len.max(captured)).unwrap_or(u32::MAX);
        let padding = captured.next_multiple_of(4) - captured;
        let total = (28 + captured + padding + option_bytes(4) + 4 + 4) as u32;
        self.block(|out| {
            let mut head = [0; 28];
            for (place, word) in head.as_chunks_mut::<4>().0.iter_mut().zip([
                ENHANCED_PACKET,
                total,
                interface.0,
                (time_ns >> 32) as u32,
                time_ns as u32,
                captured as u32,
                original,
            ]) {
                *place = word.to_le_bytes();
            }
            out.write_all(&head)?;
            let mut left = captured;
            for part in parts {
                let taken = left.min(part.len());
                out.write_all(&part[..taken])?;
                left -= taken;
            }
            out.write_all(&[0; 3][..padding])?;
            let flags: u32 = match direction {
                Direction::Inbound => 1,
                Direction::Outbound => 2,
            };
            put_option(out, 2, &flags.to_le_bytes())?;
            put32(out, 0)?;
            put32(out, total)
        })
    }

    /// Adds an interface's counters: the packets seen, and how many of them the capture dropped.
    ///
    /// # Errors
    /// As [`Writer::packet`].
    pub fn statistics(
        &mut self,
        interface: InterfaceId,
        time_ns: u64,
        seen: u64,
        dropped: u64,
    ) -> io::Result<()> {
        if interface.0 as usize >= self.snap_bytes.len() {
            return Err(invalid("an interface of another capture"));
        }
        let total = (20 + 2 * option_bytes(8) + 4 + 4) as u32;
        self.block(|out| {
            put32(out, INTERFACE_STATISTICS)?;
            put32(out, total)?;
            put32(out, interface.0)?;
            put32(out, (time_ns >> 32) as u32)?;
            put32(out, time_ns as u32)?;
            put_option(out, 4, &seen.to_le_bytes())?;
            put_option(out, 5, &dropped.to_le_bytes())?;
            put32(out, 0)?;
            put32(out, total)
        })
    }

    /// Flushes the underlying writer.
    ///
    /// # Errors
    /// The writer's error.
    pub fn flush(&mut self) -> io::Result<()> {
        self.block(|out| out.flush())
    }

    /// Returns the underlying writer. The caller must keep all blocks there whole.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Ends the capture without flushing.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn block(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier error ended the capture"));
        }
        let done = write(&mut self.out);
        self.failed = done.is_err();
        done
    }
}

/// Returns the type and the length of the first block; `None` if it is not one of [`Writer`].
fn first_block(blocks: &[u8]) -> Option<(u32, usize)> {
    let (kind, rest) = blocks.split_first_chunk()?;
    let len = u32::from_le_bytes(*rest.first_chunk()?) as usize;
    (12..=blocks.len()).contains(&len).then(|| (u32::from_le_bytes(*kind), len))
}

/// Returns the number of packets in whole blocks of a [`Writer`] that do not lie within the first `bytes` bytes.
///
/// ```
/// use towpath_packet::pcapng::{Direction, Writer, packets_beyond};
///
/// # fn main() -> std::io::Result<()> {
/// let mut writer = Writer::new(Vec::new(), "example")?;
/// let interface = writer.interface("tap0", 0)?;
/// writer.packet(interface, 0, Direction::Inbound, &[b"abcd"], 4)?;
/// let blocks = writer.into_inner();
/// assert_eq!(packets_beyond(&blocks, 0), 1);
/// assert_eq!(packets_beyond(&blocks, blocks.len() - 1), 1);
/// assert_eq!(packets_beyond(&blocks, blocks.len()), 0);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn packets_beyond(mut blocks: &[u8], mut bytes: usize) -> u64 {
    let mut packets = 0;
    while let Some((kind, len)) = first_block(blocks) {
        packets += u64::from(kind == ENHANCED_PACKET && bytes < len);
        bytes = bytes.saturating_sub(len);
        blocks = &blocks[len..];
    }
    packets
}

/// Returns the length of the first whole blocks of a [`Writer`] that have together at most `most` bytes, or the length
/// of the first block if it is longer.
#[must_use]
pub fn whole_blocks(blocks: &[u8], most: usize) -> usize {
    let mut end = 0;
    while let Some((_, len)) = first_block(&blocks[end..])
        && (end == 0 || end + len <= most)
    {
        end += len;
    }
    end
}

fn put16(out: &mut impl Write, value: u16) -> io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

fn put32(out: &mut impl Write, value: u32) -> io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

/// Writes an option. Its value has at most 65 535 bytes.
fn put_option(out: &mut impl Write, number: u16, value: &[u8]) -> io::Result<()> {
    put16(out, number)?;
    put16(out, value.len() as u16)?;
    out.write_all(value)?;
    out.write_all(&[0; 3][..value.len().next_multiple_of(4) - value.len()])
}

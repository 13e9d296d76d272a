//! A PDU under construction, in the transmit buffers.

use std::io;

use towpath_client::{Lost, MacAddr};

use crate::format::{Fragment, OVERHEAD_BYTES};
use crate::sender::{Sender, Waiting};
use crate::turns::Part;

/// A PDU of a given length, which the application writes once, directly into transmit buffers. The
/// writer sees its separate chunks as one. Each chunk fills its buffer's room after the headers.
///
/// The application writes it in order, in place ([`Message::next_chunk`]) or through [`io::Write`];
/// unwritten bytes are zero. [`Message::send`] sends it. Dropping an unsent message releases its
/// buffers.
#[derive(Debug)]
pub struct Message<'a> {
    sender: &'a mut Sender,
    to: MacAddr,
    channel: u32,
    len: usize,
    written: usize,
}

impl<'a> Message<'a> {
    /// Creates a message over the buffers that the sender has reserved.
    pub(crate) fn new(
        sender: &'a mut Sender,
        to: MacAddr,
        channel: u32,
        len: usize,
    ) -> Message<'a> {
        Message { sender, to, channel, len, written: 0 }
    }

    /// Returns the length of the PDU, in bytes.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use towpath_pdu::PduEndpoint;
    /// # fn example(pdus: &mut PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 5)?;
    /// assert_eq!(message.len(), 5);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the PDU has no bytes.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use towpath_pdu::PduEndpoint;
    /// # fn example(pdus: &mut PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// // A PDU may have no bytes.
    /// let empty = pdus.message([2, 0, 0, 0, 0, 9], 7, 0)?;
    /// assert!(empty.is_empty());
    /// empty.send()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that are not written yet.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use towpath_pdu::PduEndpoint;
    /// # fn example(pdus: &mut PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 5)?;
    /// message.write_all(b"hel")?;
    /// assert_eq!(message.remaining(), 2);
    /// // Unwritten bytes are sent as zeros.
    /// message.send()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.len - self.written
    }

    /// Returns the next chunk, or the rest of it, for writing in place; `None` at the end. The
    /// chunk then counts as written.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use towpath_pdu::PduEndpoint;
    /// # fn example(pdus: &mut PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 5)?;
    /// while let Some(chunk) = message.next_chunk() {
    ///     // A program may read from a file into the chunk.
    ///     chunk.fill(0x5a);
    /// }
    /// message.send()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_chunk(&mut self) -> Option<&mut [u8]> {
        if self.written == self.len {
            return None;
        }
        let chunk_bytes = self.sender.chunk_bytes;
        let (number, from) = (self.written / chunk_bytes, self.written % chunk_bytes);
        let chunk_len = chunk_bytes.min(self.len - number * chunk_bytes);
        self.written += chunk_len - from;
        let buffer = self.sender.filling.get_mut(number)?;
        buffer.bytes_mut().ok()?.get_mut(OVERHEAD_BYTES + from..OVERHEAD_BYTES + chunk_len)
    }

    /// Queues the PDU for sending, one fragment per buffer, and writes the headers. The next
    /// [`PduEndpoint::flush`](crate::PduEndpoint::flush) sends it, in turn with other channels.
    /// Returns the PDU's number.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use towpath_pdu::PduEndpoint;
    /// # fn example(pdus: &mut PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 5)?;
    /// message.write_all(b"hello")?;
    /// let id = message.send()?;
    /// // Sends it, together with other PDUs.
    /// pdus.flush()?;
    /// println!("sent PDU {id}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn send(mut self) -> Result<u32, Lost> {
        // Fails if the session is over, since its buffers cannot be written then.
        if let Some(lost) = self.sender.session.lost() {
            return Err(lost);
        }
        while let Some(rest) = self.next_chunk() {
            rest.fill(0);
        }
        let (len, chunk_bytes) = (self.len, self.sender.chunk_bytes);
        let Sender { filling, turns, next_id, sent, mac, .. } = &mut *self.sender;
        let chunk_len = |number: usize| chunk_bytes.min(len - number * chunk_bytes);
        let mut crc = 0;
        for (number, buffer) in filling.iter_mut().enumerate() {
            let bytes = buffer.bytes_mut()?;
            crc = crc32c::crc32c_append(crc, &bytes[OVERHEAD_BYTES..][..chunk_len(number)]);
        }
        let id = *next_id;
        *next_id = id.wrapping_add(1);
        for (number, buffer) in filling.iter_mut().enumerate() {
            let fragment = Fragment {
                destination: self.to,
                source: *mac,
                channel: self.channel,
                id,
                total: len as u32,
                offset: (number * chunk_bytes) as u32,
                len: chunk_len(number) as u16,
                crc,
            };
            if let Some(headers) = buffer.bytes_mut()?.first_chunk_mut() {
                fragment.write(headers);
            }
        }
        sent.pdus += 1;
        sent.fragments += filling.len() as u64;
        let count = filling.len();
        for (number, buffer) in filling.drain(..).enumerate() {
            let buffer_bytes = OVERHEAD_BYTES + chunk_len(number);
            let waiting = Waiting { buffer: Some(buffer), buffer_bytes };
            turns.push(self.channel, Part::of(number, count), waiting);
        }
        Ok(id)
    }
}

impl io::Write for Message<'_> {
    /// Copies into the current chunk. Returns 0 if the PDU has no room for more.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = self.written;
        let Some(chunk) = self.next_chunk() else { return Ok(0) };
        let count = chunk.len().min(bytes.len());
        chunk[..count].copy_from_slice(&bytes[..count]);
        self.written = before + count;
        self.sender.sent.copied_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // Empty after a send.
        self.sender.release_filling();
    }
}

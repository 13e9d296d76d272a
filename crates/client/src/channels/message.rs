//! The messages of a channel: the application writes and reads them piece by piece, or as a whole.

use super::channel::Channel;
use super::error::ChannelError;
use crate::error::AccessError;

/// Room for a message that the application writes piece by piece. Dropping it sends nothing.
#[derive(Debug)]
pub struct ReservedMessage<'a> {
    channel: &'a mut Channel,
    len: usize,
}

/// A received message. Dropping it consumes the message.
#[derive(Debug)]
pub struct ReceivedMessage<'a> {
    channel: &'a mut Channel,
    len: usize,
}

impl Channel {
    /// Sends a message, by one copy into the peer's memory. The peer sees it after the next
    /// [`Channel::flush`], or earlier.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.send(b"hello")?;
    /// channel.flush(session)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Channel::reserve`].
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let reserved = self.reserve(message.len())?;
        reserved.channel.ring.write(0, message);
        reserved.send();
        Ok(())
    }

    /// Reserves room for a message of `len` bytes. Bytes that the application does not write are
    /// arbitrary.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut message = channel.reserve(8)?;
    /// message.write(0, &7_u64.to_le_bytes())?;
    /// message.send();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ChannelError::Full`], after which a wait of this channel ends when there is room for this
    /// message; `TooLong`; `Finished`, after [`Channel::finish`]; `Closed`, `Gone`; `Violated`;
    /// `Forked`.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<ReservedMessage<'_>, ChannelError> {
        if let Some(end) = self.find_end()? {
            return Err(end);
        }
        if self.has_finished || self.violation.is_some() {
            return Err(self.violation.map_or(ChannelError::Finished, ChannelError::Violated));
        }
        match self.ring.find_room(len) {
            Ok(true) => Ok(ReservedMessage { channel: self, len }),
            Ok(false) => Err(self.no_room(len)),
            Err(violation) => Err(self.violated(violation)),
        }
    }

    #[cold]
    fn no_room(&self, len: usize) -> ChannelError {
        let max = self.ring.max_message();
        if len > max { ChannelError::TooLong { len, max } } else { ChannelError::Full }
    }

    /// Returns the next message; `None` if there is none yet.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(message) = channel.receive()? {
    ///     println!("{} bytes", message.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ChannelError::Finished`], `Closed` or `Gone`, after the messages that the peer published
    /// before; `Violated`; `Forked`.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<ReceivedMessage<'_>>, ChannelError> {
        Ok(self.next_len()?.map(|len| ReceivedMessage { len: len - self.taken, channel: self }))
    }

    /// Copies the next message to a vector, which then has its length. Returns `false` if there is
    /// none yet, and leaves the vector as it was.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut message = Vec::new();
    /// while channel.receive_into(&mut message)? {
    ///     println!("{message:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Channel::receive`].
    #[inline]
    pub fn receive_into(&mut self, message: &mut Vec<u8>) -> Result<bool, ChannelError> {
        let Some(received) = self.receive()? else { return Ok(false) };
        message.resize(received.len, 0);
        received.channel.ring.read(received.channel.taken, message);
        Ok(true)
    }
}

impl ReservedMessage<'_> {
    /// Returns the length in bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(channel.reserve(8)?.len(), 8);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the message has no bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(channel.reserve(0)?.is_empty());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes into the message, from its byte `at` on.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut message = channel.reserve(12)?;
    /// message.write(0, b"header: ")?;
    /// message.write(8, b"body")?;
    /// message.send();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), AccessError> {
        check_inside(at, bytes.len(), self.len)?;
        self.channel.check_parent()?;
        self.channel.ring.write(at, bytes);
        Ok(())
    }

    /// Sends the message, as [`Channel::send`] does. Sends nothing in a child made by `fork`.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.reserve(0)?.send();
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn send(self) {
        if self.channel.is_parents() {
            self.channel.ring.append(self.len);
        }
    }
}

impl ReceivedMessage<'_> {
    /// Returns the length in bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let longest = channel.receive()?.map_or(0, |message| message.len());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the message has no bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let is_marker = channel.receive()?.is_some_and(|message| message.is_empty());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes of the message, from its byte `at` on. A hostile peer can change them until
    /// the copy is made, so a program decides only by its copy.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(message) = channel.receive()? {
    ///     let mut header = [0; 8];
    ///     message.read(0, &mut header)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), AccessError> {
        check_inside(at, to.len(), self.len)?;
        self.channel.check_parent()?;
        self.channel.ring.read(self.channel.taken + at, to);
        Ok(())
    }

    /// Returns a copy of the message. In a child made by `fork`, the copy is all zeros.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let message = channel.receive()?.map(|message| message.to_vec());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut message = vec![0; self.len];
        if self.channel.is_parents() {
            self.channel.ring.read(self.channel.taken, &mut message);
        }
        message
    }
}

impl Drop for ReceivedMessage<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.channel.is_parents() {
            return;
        }
        let taken = std::mem::take(&mut self.channel.taken);
        self.channel.ring.consume(taken + self.len);
    }
}

#[inline]
fn check_inside(offset: usize, len: usize, bytes: usize) -> Result<(), AccessError> {
    if offset <= bytes && len <= bytes - offset {
        Ok(())
    } else {
        Err(AccessError::Range { offset, len, bytes })
    }
}

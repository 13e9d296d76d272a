//! A channel as a stream of bytes.

use std::io::{self, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::error::ChannelError;
use super::waiting::Awaited;
use crate::clock;
use crate::session::Session;

/// A write waits until this part of the longest message has room, or all of its bytes have.
const MIN_ROOM_DIVISOR: usize = 4;

/// A view of a channel as a stream of bytes ([`Channel::stream`]): reads ignore where messages end,
/// and what is written becomes messages of any length. Calls wait for the peer.
///
/// A read returns 0 once the peer has finished ([`Channel::finish`]) and all of its bytes are read.
/// If the peer has closed the channel or ended without that, the read fails with
/// [`io::ErrorKind::ConnectionReset`]: the bytes may be incomplete. A call that waits longer than the
/// timeout fails with [`io::ErrorKind::TimedOut`], and after the session's end with
/// [`io::ErrorKind::NotConnected`]. Each write wakes a peer that sleeps; a [`std::io::BufWriter`]
/// makes few long ones of many short ones.
#[derive(Debug)]
pub struct ChannelStream<'a> {
    channel: &'a mut Channel,
    session: &'a mut Session,
    timeout: Option<Duration>,
}

impl Channel {
    /// Returns a view of the channel as a stream of bytes. `timeout` limits each wait for the peer;
    /// with `None`, a call waits without limit.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Write;
    ///
    /// writeln!(channel.stream(session, None), "hello")?;
    /// # Ok(()) }
    /// ```
    pub fn stream<'a>(
        &'a mut self,
        session: &'a mut Session,
        timeout: Option<Duration>,
    ) -> ChannelStream<'a> {
        ChannelStream { channel: self, session, timeout }
    }
}

impl ChannelStream<'_> {
    /// Tells the peer that no more bytes follow, as [`Channel::finish`] does; waits for room.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut stream = channel.stream(session, None);
    /// std::io::Write::write_all(&mut stream, b"the last bytes")?;
    /// stream.finish()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As a write.
    pub fn finish(&mut self) -> io::Result<()> {
        let deadline = self.deadline();
        loop {
            match self.channel.finish() {
                Ok(()) => return self.flush(),
                Err(ChannelError::Full) => self.wait(Awaited::Room, deadline)?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Returns when a call that begins now has waited too long; `None`: never.
    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| clock::now().checked_add(timeout))
    }

    /// Waits for messages or for room.
    fn wait(&mut self, awaited: Awaited, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|at| at.saturating_duration_since(clock::now()));
        match self.channel.wait_in(self.session, awaited, left) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::TimedOut.into()),
            Err(lost) => Err(io::Error::new(io::ErrorKind::NotConnected, lost)),
        }
    }

    /// Waits until there is room for some of `len` bytes. Returns for how many.
    fn room(&mut self, len: usize) -> io::Result<usize> {
        let deadline = self.deadline();
        let least = len.min(self.channel.max_message() / MIN_ROOM_DIVISOR);
        loop {
            match self.channel.reserve(least) {
                Ok(_) => break,
                Err(ChannelError::Full) => self.wait(Awaited::Room, deadline)?,
                Err(other) => return Err(other.into()),
            }
        }
        match self.channel.ring.room() {
            Ok(room) => Ok(room.unwrap_or(0).min(len)),
            Err(violation) => Err(self.channel.violated(violation).into()),
        }
    }

    fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = parts.iter().fold(0_usize, |all, part| all.saturating_add(part.len()));
        if len == 0 {
            return Ok(0);
        }
        let room = self.room(len)?;
        let mut written = 0;
        for part in parts {
            let part = &part[..part.len().min(room - written)];
            self.channel.ring.write(written, part);
            written += part.len();
        }
        self.channel.ring.append(room);
        self.flush()?;
        Ok(room)
    }

    /// Takes bytes of the next message. Returns how many; 0 if it is empty, and `None` if there is
    /// none.
    fn take(&mut self, to: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        let Some(len) = self.channel.next_len()? else { return Ok(None) };
        let taken = self.channel.taken;
        let count = to.len().min(len - taken);
        self.channel.ring.read(taken, &mut to[..count]);
        self.channel.taken += count;
        if self.channel.taken == len {
            self.channel.taken = 0;
            self.channel.ring.consume(len);
        }
        Ok(Some(count))
    }
}

impl Read for ChannelStream<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let deadline = self.deadline();
        loop {
            match self.take(to) {
                // A peer that sends empty messages does not extend the time.
                Ok(Some(0)) if deadline.is_some_and(|at| clock::now() >= at) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Ok(Some(0)) => {}
                Ok(Some(count)) => return Ok(count),
                Ok(None) => self.wait(Awaited::Messages, deadline)?,
                Err(ChannelError::Finished) => return Ok(0),
                Err(other) => return Err(other.into()),
            }
        }
    }
}

impl Write for ChannelStream<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_parts(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_parts(from)
    }

    /// Wakes the peer if it sleeps. Each write does so, too.
    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.channel.flush(self.session);
        flushed.map_err(|lost| io::Error::new(io::ErrorKind::NotConnected, lost))
    }
}

//! A side of a channel: it sends, receives and waits.

use towpath_memory::CommonMemory;
use towpath_protocol::oob::PeerState;
use towpath_queue::Violation;
use towpath_queue::ring::{Next, RingEnd};

use super::error::ChannelError;
use super::own_part::OwnPart;
use crate::error::{AccessError, Lost, OpenError};
use crate::memory::Aperture;
use crate::options::Endpoint;
use crate::session::Session;
use crate::tripwire_table::{ImportedTripwire, Tripwire};

/// One side of a channel between two applications: each sends messages to the other.
///
/// A message is copied into memory that the receiver owns and the sender maps, and from there to
/// where the receiver wants it. Sending and receiving make no system call. [`Channel::flush`] shows
/// the peer what was sent, and wakes it if it sleeps.
///
/// ```no_run
/// use std::error::Error;
/// use std::time::Duration;
///
/// use towpath_client::{Channel, ChannelError, Endpoint, Session};
///
/// /// Returns each message to its sender, in a channel of a connected endpoint.
/// fn echo(mut session: Session, endpoint: Endpoint) -> Result<(), Box<dyn Error>> {
///     let patience = Some(Duration::from_secs(10));
///     let mut channel = Channel::open(&mut session, endpoint, 1 << 16, patience)?;
///     let mut message = Vec::new();
///     loop {
///         match channel.receive_into(&mut message) {
///             Ok(true) => answer(&mut channel, &mut session, &message)?,
///             Ok(false) => channel.wait(&mut session, None).map(|_| ())?,
///             Err(ChannelError::Finished) => return Ok(channel.close(&mut session)?),
///             Err(other) => return Err(other.into()),
///         }
///     }
/// }
///
/// /// Sends a message. If the channel is full, waits for room: the peer must receive meanwhile.
/// fn answer(
///     channel: &mut Channel,
///     session: &mut Session,
///     message: &[u8],
/// ) -> Result<(), Box<dyn Error>> {
///     loop {
///         match channel.send(message) {
///             Err(ChannelError::Full) => channel.wait_for_room(session, None)?,
///             sent => return Ok(sent?),
///         };
///     }
/// }
/// ```
///
/// The endpoint is connected by [`Oob::request_connection`](crate::Oob::request_connection) and
/// [`Oob::accept_connection`](crate::Oob::accept_connection). All calls take the session that opened the channel.
///
/// Dropping a channel releases nothing, and tells the peer nothing, until the session ends: see
/// [`Channel::close`].
///
/// The peer can write anything into this side's memory. An impossible header or index is
/// [`ChannelError::Violated`], and garbage is a message of garbage. docs/channels.md says what a
/// hostile peer can do.
#[derive(Debug)]
pub struct Channel {
    endpoint: Endpoint,
    pub(super) ring: RingEnd<CommonMemory, CommonMemory>,
    own: OwnPart,
    peers_aperture: Aperture,
    peers_tripwire: ImportedTripwire,
    /// How many bytes of the next message a stream has taken.
    pub(super) taken: usize,
    /// `true` if this side has finished.
    has_finished: bool,
    /// `true` if this side has received the peer's end.
    peer_has_finished: bool,
    violation: Option<Violation>,
    /// How the connection ended, once this side knows.
    end: Option<ChannelError>,
}

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
    pub(super) fn new(
        endpoint: Endpoint,
        ring: RingEnd<CommonMemory, CommonMemory>,
        own: OwnPart,
        peers_aperture: Aperture,
        peers_tripwire: ImportedTripwire,
    ) -> Channel {
        let (has_finished, peer_has_finished) = (false, false);
        Channel {
            endpoint,
            ring,
            own,
            peers_aperture,
            peers_tripwire,
            taken: 0,
            has_finished,
            peer_has_finished,
            violation: None,
            end: None,
        }
    }

    /// Returns the length in bytes of the longest message that this side can send.
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.ring.max_message()
    }

    /// Returns the tripwire that fires when this side sleeps and the channel has news. A program
    /// with several channels finds the channel by it ([`Tripwires::ready`](crate::Tripwires::ready)).
    #[must_use]
    pub fn tripwire(&self) -> Tripwire {
        self.own.tripwire
    }

    /// Sends a message, by one copy into the peer's memory. The peer sees it after the next
    /// [`Channel::flush`], or earlier.
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
    /// # Errors
    /// As [`Channel::receive`].
    #[inline]
    pub fn receive_into(&mut self, message: &mut Vec<u8>) -> Result<bool, ChannelError> {
        let Some(received) = self.receive()? else { return Ok(false) };
        message.resize(received.len, 0);
        received.channel.ring.read(received.channel.taken, message);
        Ok(true)
    }

    /// Returns the length of the next message in bytes, with the part that a stream has taken; `None`
    /// if there is none.
    #[inline]
    pub(super) fn next_len(&mut self) -> Result<Option<usize>, ChannelError> {
        let end = self.find_end()?;
        if self.violation.is_some() || self.peer_has_finished {
            return Err(self.violation.map_or(ChannelError::Finished, ChannelError::Violated));
        }
        // Whatever the peer published before the end is there by now.
        match self.ring.peek() {
            Ok(Next::Message(len)) if len >= self.taken => Ok(Some(len)),
            Ok(Next::Nothing) => end.map_or(Ok(None), Err),
            other => Err(self.end_or_violation(other)),
        }
    }

    /// Returns how the channel ended, if it has. From then on, this side stores nothing into the
    /// peer's memory: another channel may have the place.
    #[inline]
    fn find_end(&mut self) -> Result<Option<ChannelError>, ChannelError> {
        match self.peers_aperture.check_valid() {
            Ok(()) => Ok(self.end),
            Err(AccessError::Forked) => Err(ChannelError::Forked),
            Err(reason) => {
                self.ring.mute();
                Ok(Some(ended(reason)))
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_or_violation(&mut self, next: Result<Next, Violation>) -> ChannelError {
        match next {
            Ok(Next::End) => {
                self.ring.consume(0);
                self.peer_has_finished = true;
                ChannelError::Finished
            }
            Err(violation) => self.violated(violation),
            // The peer has changed the header of a message of which a stream has taken a part.
            Ok(_) => self.violated(Violation::Range),
        }
    }

    /// Returns `true` if a message may be there. What a peer writes behind its end is none.
    #[inline]
    pub(super) fn has_message(&self) -> bool {
        !self.peer_has_finished && self.ring.has_message()
    }

    /// Returns `true` once if the room is there for which this side waits, or the peer broke the
    /// protocol.
    #[inline]
    pub(super) fn has_wanted_room(&mut self) -> bool {
        match self.ring.has_wanted_room() {
            Ok(has_room) => has_room,
            Err(violation) => {
                self.violation = Some(violation);
                true
            }
        }
    }

    /// Returns `true` if nothing more can come, or be sent.
    #[inline]
    pub(super) fn has_ended(&mut self, session: &Session) -> bool {
        if self.peers_aperture.check_valid().is_err() || self.violation.is_some() {
            return true;
        }
        // The engine ends the connection first, and its apertures some poll iterations later.
        match session.peer_state(self.endpoint) {
            PeerState::Connected => return false,
            PeerState::Gone => self.end = Some(ChannelError::Gone),
            _ => self.end = Some(ChannelError::Closed),
        }
        true
    }

    /// Shows the peer what this side sent, consumed and waits for, and wakes it if it sleeps.
    pub(super) fn prepare_sleep(&mut self, session: &mut Session) -> Result<(), Lost> {
        session.status.check()?;
        self.find_end().map_err(|_| Lost::Forked)?;
        self.ring.prepare_sleep();
        self.flush(session)
    }

    /// Shows the peer all messages that were sent. Wakes the peer if it sleeps, and there are such
    /// messages, or the room that it waits for. The application calls this after it has sent or
    /// received what there was, and before it does something else; [`Channel::wait`] does so by
    /// itself. If the peer is awake, this costs at most four stores to shared words, a barrier, and
    /// loads; if there is nothing to show, loads alone. Once the channel has ended, it shows nothing.
    ///
    /// # Errors
    /// [`Lost`].
    #[inline]
    pub fn flush(&mut self, session: &mut Session) -> Result<(), Lost> {
        session.status.check()?;
        self.find_end().map_err(|_| Lost::Forked)?;
        match self.ring.flush() {
            Some(fenced) => {
                session.tripwires().trip_fenced(self.peers_tripwire, fenced).map(|_| ())
            }
            None => Ok(()),
        }
    }

    /// Ends this side's messages. The peer sees the end after the next [`Channel::flush`], or earlier;
    /// its [`Channel::receive`] then returns [`ChannelError::Finished`].
    ///
    /// # Errors
    /// [`ChannelError::Full`]: wait, and call again. Else as [`Channel::reserve`].
    pub fn finish(&mut self) -> Result<(), ChannelError> {
        self.reserve(0)?;
        self.ring.append_end();
        self.has_finished = true;
        Ok(())
    }

    /// Closes the channel. The peer gets the messages that were sent, and then
    /// [`ChannelError::Closed`]. The connection stays.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn close(mut self, session: &mut Session) -> Result<(), OpenError> {
        self.prepare_sleep(session)?;
        session.memories().release_imported_tripwire(self.peers_tripwire)?;
        session.memories().release_aperture(self.peers_aperture)?;
        self.own.release(session)
    }

    /// `true` if this process opened the channel.
    #[inline]
    fn is_parents(&self) -> bool {
        self.peers_aperture.guard.is_parent()
    }

    #[inline]
    fn check_parent(&self) -> Result<(), AccessError> {
        if self.is_parents() { Ok(()) } else { Err(AccessError::Forked) }
    }

    #[cold]
    pub(super) fn violated(&mut self, violation: Violation) -> ChannelError {
        self.violation = Some(violation);
        ChannelError::Violated(violation)
    }
}

impl ReservedMessage<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes into the message, from its byte `at` on.
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
    #[inline]
    pub fn send(self) {
        if self.channel.is_parents() {
            self.channel.ring.append(self.len);
        }
    }
}

impl ReceivedMessage<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes of the message, from its byte `at` on. A hostile peer can change them until
    /// the copy is made, so a program decides by its copy alone.
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

/// Returns how the channel ended, of which the peer's aperture tells.
#[cold]
fn ended(reason: AccessError) -> ChannelError {
    match reason {
        AccessError::Gone => ChannelError::Gone,
        AccessError::Forked => ChannelError::Forked,
        _ => ChannelError::Closed,
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

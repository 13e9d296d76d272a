//! A side of a channel: it sends, receives and waits.

use towpath_memory::CommonMemory;
use towpath_queue::Violation;
use towpath_queue::ring::{Next, RingEnd};

use super::error::ChannelError;
use super::own_part::OwnPart;
use crate::error::AccessError;
use crate::memory::Aperture;
use crate::options::Endpoint;
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
    pub(super) endpoint: Endpoint,
    pub(super) ring: RingEnd<CommonMemory, CommonMemory>,
    pub(super) own: OwnPart,
    pub(super) peers_aperture: Aperture,
    pub(super) peers_tripwire: ImportedTripwire,
    /// How many bytes of the next message a stream has taken.
    pub(super) taken: usize,
    /// `true` if this side has finished.
    pub(super) has_finished: bool,
    /// `true` if this side has received the peer's end.
    pub(super) peer_has_finished: bool,
    pub(super) violation: Option<Violation>,
    /// How the connection ended, once this side knows.
    pub(super) end: Option<ChannelError>,
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
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let message = vec![7; channel.max_message()];
    /// channel.send(&message)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.ring.max_message()
    }

    /// Returns the tripwire that fires when this side sleeps and the channel has news. A program
    /// with several channels finds the channel by it ([`Tripwires::ready`](crate::Tripwires::ready)).
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// if session.tripwires().ready()? == Some(channel.tripwire()) {
    ///     println!("this channel has news");
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn tripwire(&self) -> Tripwire {
        self.own.tripwire
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
    pub(super) fn find_end(&mut self) -> Result<Option<ChannelError>, ChannelError> {
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

    /// `true` if this process opened the channel.
    #[inline]
    pub(super) fn is_parents(&self) -> bool {
        self.peers_aperture.guard.is_parent()
    }

    #[inline]
    pub(super) fn check_parent(&self) -> Result<(), AccessError> {
        if self.is_parents() { Ok(()) } else { Err(AccessError::Forked) }
    }

    #[cold]
    pub(super) fn violated(&mut self, violation: Violation) -> ChannelError {
        self.violation = Some(violation);
        ChannelError::Violated(violation)
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

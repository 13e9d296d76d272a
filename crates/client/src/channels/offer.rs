//! How a channel begins: each side offers memory to the other one.

use std::time::Duration;

use towpath_memory::CommonMemory;
use towpath_protocol::apertures::{Access, Sharing};
use towpath_protocol::oob::PeerState;
use towpath_queue::ring::{RingEnd, RingShape};

use super::channel::Channel;
use super::error::OpenChannelError;
use super::own_part::OwnPart;
use crate::clock;
use crate::error::{Lost, OpenError, Refusal, RequestError};
use crate::memory::{Aperture, ApertureKey, Memory};
use crate::news::NewsSource;
use crate::oob_queues::{OobKind, ReceivedOob};
use crate::options::Endpoint;
use crate::requests::Request;
use crate::session::Session;

/// The first bytes of the message of an offer.
const MARK: [u8; 4] = *b"ring";
/// Where an offer's memory may begin: the words of each side are in cache lines of their own.
const ALIGNMENT: usize = 128;

/// This side's half of a channel, while it waits for the peer's.
///
/// Both sides of a connection make an offer, which sends a message to the other one
/// ([`ChannelOffer::new`]). With the peer's message, the offer becomes a channel
/// ([`ChannelOffer::complete`]). If two sides open several channels in one connection, both make
/// the offers in the same order. [`Channel::open`] does all of it for one channel.
///
/// An offer that is dropped stays until the session ends: see [`ChannelOffer::withdraw`]. A place in
/// a memory is free for another channel once both sides have closed the one that was there.
#[derive(Debug)]
pub struct ChannelOffer {
    endpoint: Endpoint,
    near: CommonMemory,
    shape: RingShape,
    /// `None` once the channel has it.
    own: Option<OwnPart>,
}

impl ChannelOffer {
    /// Returns how many bytes of memory a ring of `ring_bytes` takes with its words, up to where
    /// another one may begin; `None` if no ring has that length.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(ChannelOffer::memory_bytes(1000), None);
    /// let bytes = ChannelOffer::memory_bytes(1024).ok_or("no ring")?;
    /// assert!(bytes > 1024 && bytes.is_multiple_of(128));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn memory_bytes(ring_bytes: usize) -> Option<usize> {
        match RingShape::new(ring_bytes) {
            Some(shape) => Some(shape.memory_bytes().next_multiple_of(ALIGNMENT)),
            None => None,
        }
    }

    /// Offers the peer of a connected endpoint a ring for its messages to this side: `ring_bytes`
    /// bytes, a power of two from 64 to 2^29, of which the longest message has 16 less. The ring
    /// takes [`ChannelOffer::memory_bytes`] of a memory with [`Sharing::MapWrite`], from the byte
    /// `offset` on, a multiple of 128. Many channels to one session can share a memory, which the
    /// peer then maps once.
    ///
    /// The next [`Sender::flush`](crate::Sender::flush) sends the message.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = ChannelOffer::memory_bytes(1 << 16).ok_or("no ring")?;
    /// let memory = session.memories().create(bytes, Sharing::MapWrite)?;
    /// let offer = ChannelOffer::new(session, endpoint, (&memory, 0), 1 << 16)?;
    /// session.sender().flush()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenChannelError`]; then nothing was offered.
    pub fn new(
        session: &mut Session,
        endpoint: Endpoint,
        (memory, offset): (&Memory, usize),
        ring_bytes: usize,
    ) -> Result<ChannelOffer, OpenChannelError> {
        let shape = RingShape::new(ring_bytes).ok_or(OpenChannelError::RingBytes(ring_bytes))?;
        if memory.sharing() != Sharing::MapWrite {
            return Err(OpenChannelError::Sharing);
        }
        let len = shape.memory_bytes();
        let near = memory.common.part(offset, len).filter(|_| offset.is_multiple_of(ALIGNMENT));
        let near = near.ok_or(OpenChannelError::Place { offset, len, bytes: memory.len() })?;
        let range = offset..offset + len;
        let tripwire = session.memories().set_tripwire(memory, range.clone(), Access::Write)?;
        let export = match session.memories().export(endpoint, memory, range, Access::Write) {
            Ok(export) => export,
            Err(error) => {
                session.memories().release_tripwire(tripwire)?;
                return Err(error.into());
            }
        };
        // The peer does not know the key yet.
        for word in RingShape::zeros() {
            let _ = near.store(word, 0);
        }
        let own = OwnPart { export, tripwire, memory: None };
        let numbers = [export.key().0, tripwire.number()].map(u32::to_le_bytes);
        let message = [MARK, numbers[0], numbers[1]];
        let sent = session.requests().queue(endpoint, &Request::send(message.as_flattened()));
        if let Err(error) = sent {
            own.release(session)?;
            return Err(match error {
                RequestError::Lost(lost) => lost.into(),
                RequestError::Full => OpenChannelError::Full,
                _ => OpenChannelError::Closed,
            });
        }
        Ok(ChannelOffer { endpoint, near, shape, own: Some(own) })
    }

    /// Completes the channel, if a message of the endpoint is the peer's offer. Returns `None` for
    /// any other message, also for an offer of an application that is not the endpoint's peer.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, offer: &mut ChannelOffer) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(message) = session.oob().receive(endpoint)? {
    ///     if let Some(channel) = offer.complete(session, &message)? {
    ///         println!("messages of up to {} bytes", channel.max_message());
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenChannelError`]; the offer is then as before.
    pub fn complete(
        &mut self,
        session: &mut Session,
        message: &ReceivedOob,
    ) -> Result<Option<Channel>, OpenChannelError> {
        let ([MARK, key, tripwire], []) = message.payload().as_chunks::<4>() else {
            return Ok(None);
        };
        if message.kind() != OobKind::Message || self.own.is_none() {
            return Ok(None);
        }
        if message.is_from_other_host() {
            // An earlier peer may have left its message in the queue.
            let is_from_peer = session.connected_with(self.endpoint) == Some(message.from());
            return if is_from_peer { Err(OpenChannelError::OtherHost) } else { Ok(None) };
        }
        let far =
            match session.memories().import(self.endpoint, ApertureKey(u32::from_le_bytes(*key))) {
                Ok(far) => far,
                // Any application that may reach the endpoint can send a message that looks like an
                // offer.
                Err(OpenError::Refused { refusal: Refusal::NotFound, .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        let imported = far_ring(&far).ok_or(OpenChannelError::Offer).and_then(|ring| {
            Ok((ring, session.memories().import_tripwire(&far, u32::from_le_bytes(*tripwire))?))
        });
        let (far_ring, peers_tripwire) = match imported {
            Ok(imported) => imported,
            Err(error) => {
                session.memories().release_aperture(far)?;
                return Err(error);
            }
        };
        let ring = RingEnd::new((self.near.clone(), self.shape), far_ring);
        let own = self.own.take();
        Ok(own.map(|own| Channel::new(self.endpoint, ring, own, far, peers_tripwire)))
    }

    /// Takes the offer back, unless it is complete.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, offer: ChannelOffer) -> Result<(), Box<dyn std::error::Error>> {
    /// offer.withdraw(session)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn withdraw(self, session: &mut Session) -> Result<(), OpenError> {
        self.own.map_or(Ok(()), |own| own.release(session))
    }
}

/// Returns the ring in an aperture, if there is one that this side can write.
fn far_ring(far: &Aperture) -> Option<(CommonMemory, RingShape)> {
    let shape = RingShape::in_memory(far.len())?;
    let memory = far.mapped.clone().filter(|memory| memory.is_writable())?;
    // The ring's words are aligned if the first one is.
    memory.load(0)?;
    Some((memory, shape))
}

impl Channel {
    /// Opens a channel with the peer of a connected endpoint. The peer opens its side with the same
    /// call. Waits for the peer's offer, and drops other messages of the endpoint meanwhile; with a
    /// timeout of `None` without limit. The peer's messages to this side go through a ring of
    /// `ring_bytes` bytes: a power of two from 64 to 2^29, of which the longest message has 16 less.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let patience = std::time::Duration::from_secs(10);
    /// let mut channel = Channel::open(session, endpoint, 1 << 16, Some(patience))?;
    /// channel.send(b"hello")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenChannelError`].
    pub fn open(
        session: &mut Session,
        endpoint: Endpoint,
        ring_bytes: usize,
        timeout: Option<Duration>,
    ) -> Result<Channel, OpenChannelError> {
        let bytes = ChannelOffer::memory_bytes(ring_bytes);
        let bytes = bytes.ok_or(OpenChannelError::RingBytes(ring_bytes))?;
        let memory = session.memories().create(bytes, Sharing::MapWrite)?;
        let mut offer = match ChannelOffer::new(session, endpoint, (&memory, 0), ring_bytes) {
            Ok(offer) => offer,
            Err(error) => {
                session.memories().release(&memory)?;
                return Err(error);
            }
        };
        if let Some(own) = &mut offer.own {
            own.memory = Some(memory);
        }
        let opened = wait_for_offer(session, &mut offer, timeout);
        if opened.is_err() {
            offer.withdraw(session)?;
        }
        opened
    }
}

/// Waits for the peer's offer.
fn wait_for_offer(
    session: &mut Session,
    offer: &mut ChannelOffer,
    timeout: Option<Duration>,
) -> Result<Channel, OpenChannelError> {
    let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
    let mut messages = Messages { endpoint: offer.endpoint, message: None };
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(clock::now()));
        if !session.wait_for(&mut messages, left)? {
            return Err(OpenChannelError::TimedOut);
        }
        let Some(message) = messages.message.take() else {
            return Err(OpenChannelError::Closed);
        };
        if let Some(channel) = offer.complete(session, &message)? {
            return Ok(channel);
        }
        // Others that send messages do not extend the time.
        if deadline.is_some_and(|at| clock::now() >= at) {
            return Err(OpenChannelError::TimedOut);
        }
    }
}

/// The messages of an endpoint, and the end of its connection.
struct Messages {
    endpoint: Endpoint,
    message: Option<ReceivedOob>,
}

impl NewsSource for Messages {
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost> {
        if self.message.is_none() {
            self.message = session.oob().receive(self.endpoint)?;
        }
        Ok(self.message.is_some() || session.peer_state(self.endpoint) != PeerState::Connected)
    }

    // Messages end a sleep by themselves.
    fn prepare_sleep(&mut self, _: &mut Session) -> Result<(), Lost> {
        Ok(())
    }

    fn end_sleep(&mut self, _: &mut Session) {}
}

//! Out-of-band messages: small messages from endpoint to endpoint, and connections between
//! endpoints.

use towpath_protocol::oob::{Kind, OobAddress, OobMessage, PeerState};
use towpath_queue::descriptor::{Descriptor, MESSAGE_BYTES, OUT_OF_BAND};
use zerocopy::IntoBytes;

use crate::error::{Lost, SendError};
use crate::oob_queues::{Queue, ReceivedOob};
use crate::options::Endpoint;
use crate::session::Session;

impl Session {
    /// Queues an out-of-band message of at most 64 bytes to an endpoint's address. The next
    /// [`Session::flush`], or [`Session::wait`], sends it. The engine serves it in its turn, as a
    /// packet. docs/messages.md lists the reasons for which the engine drops a message; each has a
    /// counter on one of the two endpoints ([`Session::counters`]).
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_oob(
        &mut self,
        endpoint: Endpoint,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.put_oob(endpoint, Kind::Plain, to, payload)
    }

    /// Queues a request for a connection with the endpoint at an address, with at most 56 bytes of
    /// payload. It has no time limit: [`Session::disconnect`] takes it back.
    /// [`Session::peer_state`] tells of the answer: [`PeerState::Connected`], or
    /// [`PeerState::Refused`] with the reason.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn request_connection(
        &mut self,
        endpoint: Endpoint,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.connect(endpoint, Kind::Request, to, payload)
    }

    /// Queues the acceptance of a request from an address. `endpoint` becomes the other end of the
    /// connection: one of this session, without a peer, such as one opened for this purpose.
    /// [`Session::peer_state`] tells whether the requester is still there.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn accept_connection(
        &mut self,
        endpoint: Endpoint,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.connect(endpoint, Kind::Accept, to, payload)
    }

    /// Queues the rejection of a request from an address. The requester learns of it even if its
    /// queue has no room for the payload.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn reject_connection(
        &mut self,
        endpoint: Endpoint,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.put_oob(endpoint, Kind::Reject, to, payload)
    }

    /// Queues the end of an endpoint's connection, or takes its request back. The peer learns of it
    /// behind all messages sent before.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn disconnect(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        let nowhere = OobAddress { ip: [0, 0, 0, 0].into(), protocol: 0, port: 0 };
        self.put_oob(endpoint, Kind::Close, nowhere, &[])?;
        self.expect(endpoint, PeerState::None);
        Ok(())
    }

    /// Returns what an endpoint's peer does: one load of a word that the server writes. So before
    /// it sends, an application can tell whether the peer has closed or died.
    #[inline]
    #[must_use]
    pub fn peer_state(&self, endpoint: Endpoint) -> PeerState {
        let queue = self.oob.as_ref().and_then(|oob| oob.queues.get(endpoint.number as usize));
        let queue = queue.filter(|_| self.is_parents());
        queue.map_or(PeerState::None, Queue::state)
    }

    /// Takes the oldest out-of-band message of an endpoint; `None` if none waits. A message that is
    /// not taken stays, and keeps its room in the queue.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive_oob(&mut self, endpoint: Endpoint) -> Result<Option<ReceivedOob>, Lost> {
        self.check()?;
        let queue = self.oob.as_mut().and_then(|oob| oob.queues.get_mut(endpoint.number as usize));
        let Some(queue) = queue else { return Ok(None) };
        let message = match queue.consumer.take() {
            Ok(Some(words)) => ReceivedOob::new(OobMessage::from_words(words)).map(Some),
            Ok(None) => Ok(None),
            Err(violation) => Err(violation),
        };
        match message {
            Ok(None) if self.hung_up && !self.start_resuming() => Err(self.over()),
            Ok(message) => Ok(message),
            Err(violation) => Err(self.wrong(violation)),
        }
    }

    /// Returns the number of an endpoint that has out-of-band messages, which is the same until the
    /// application has taken them; or a new [`Session::peer_state`], or a request that is complete
    /// or failed ([`Session::request_state`]), which are reported once. Only [`Session::wait`] and
    /// [`Session::poll`] take events.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready_oob(&mut self) -> Result<Option<u32>, Lost> {
        self.check()?;
        let first = self.oob.as_mut().map_or(Ok(None), |oob| oob.first_ready(false));
        first.map_err(|violation| self.wrong(violation))
    }

    /// Returns `true` if out-of-band messages or states are news for a wait.
    pub(crate) fn has_oob_news(&mut self) -> Result<bool, Lost> {
        let first = self.oob.as_mut().map_or(Ok(None), |oob| oob.first_ready(true));
        first.map(|first| first.is_some()).map_err(|violation| self.wrong(violation))
    }

    /// Begins with an endpoint that the server opened.
    pub(crate) fn begin_oob(&mut self, endpoint: Endpoint) {
        if let Some(oob) = self.oob.as_mut().filter(|_| endpoint.oob) {
            oob.begin(endpoint.number);
        }
        if let Some(apertures) = &mut self.apertures {
            apertures.requests.begin(endpoint.number);
        }
    }

    /// Discards the messages of an endpoint that the server closed.
    pub(crate) fn discard_oob(&mut self, endpoint: Endpoint) -> Result<(), Lost> {
        let outcome = self.oob.as_mut().map_or(Ok(()), |oob| oob.discard(endpoint.number));
        outcome.map_err(|violation| self.wrong(violation))
    }

    /// Adds the counters of an endpoint's out-of-band messages, if the session has any.
    pub(crate) fn add_oob_counters(&self, endpoint: Endpoint, all: &mut Vec<(&'static str, u64)>) {
        if let Some(oob) = &self.oob {
            all.extend(oob.counters(endpoint.number));
        }
    }

    /// Queues a message that is to connect an endpoint, which has no peer and waits for none.
    fn connect(
        &mut self,
        endpoint: Endpoint,
        kind: Kind,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        if matches!(self.peer_state(endpoint), PeerState::Requested | PeerState::Connected) {
            return Err(SendError::HasPeer);
        }
        self.put_oob(endpoint, kind, to, payload)?;
        if let Some(apertures) = &mut self.apertures {
            apertures.requests.connect(endpoint.number);
        }
        if let Some(queue) = self.expect(endpoint, PeerState::Requested) {
            queue.connected_with = Some(to);
        }
        Ok(())
    }

    /// Returns the address with which the application last connected an endpoint.
    pub(crate) fn connected_with(&self, endpoint: Endpoint) -> Option<OobAddress> {
        self.oob.as_ref()?.queues.get(endpoint.number as usize)?.connected_with
    }

    /// Records what an endpoint's peer state is until the server changes it. Returns the endpoint's
    /// queue.
    fn expect(&mut self, endpoint: Endpoint, state: PeerState) -> Option<&mut Queue> {
        let queue = self.oob.as_mut()?.queues.get_mut(endpoint.number as usize)?;
        queue.asked = Some((queue.consumer.state(), state));
        Some(queue)
    }

    fn put_oob(
        &mut self,
        endpoint: Endpoint,
        kind: Kind,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.check()?;
        if !endpoint.oob || self.oob.is_none() {
            return Err(SendError::NotOutOfBand);
        }
        self.update_revoked();
        if self.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        let (len, max) = (payload.len(), kind.most_bytes());
        let message = OobMessage::new(kind, to, payload).ok_or(SendError::Payload { len, max })?;
        let unit = self.unit(endpoint.queue_pair, 0)?;
        let len = MESSAGE_BYTES as usize;
        if !self.has_room_in(endpoint.queue_pair, len) {
            return Err(SendError::Full);
        }
        let Some(buffer) = self.transmit_free.take() else { return Err(SendError::Full) };
        let descriptor = self.transmit_pool.write_one(buffer, len, endpoint.number, |parts| {
            if let [part] = parts {
                part.copy_from_slice(message.as_bytes());
            }
        });
        let pushed = self.push(unit, &[Descriptor { flags: OUT_OF_BAND, ..descriptor }]);
        debug_assert!(pushed, "there was room");
        Ok(())
    }
}

//! Out-of-band messages: small messages from endpoint to endpoint, and connections between
//! endpoints.

use towpath_protocol::oob::{Kind, OobAddress, OobMessage, PeerState};
use towpath_queue::descriptor::{MESSAGE_BYTES, OUT_OF_BAND};
use zerocopy::IntoBytes;

use crate::aperture_table::Apertures;
use crate::error::{Lost, SendError};
use crate::ids::EndpointId;
use crate::oob_queues::{OobQueues, Queue, ReceivedOob};
use crate::options::Endpoint;
use crate::status::Status;
use crate::transmit::Transmit;

/// The part of a session for out-of-band messages and connections
/// ([`Session::oob`](crate::Session::oob)), in a session with
/// [`Options::oob_slots`](crate::Options::oob_slots).
///
/// Messages leave with the next [`Sender::flush`](crate::Sender::flush) or
/// [`Session::wait`](crate::Session::wait).
pub struct Oob<'a> {
    transmit: &'a mut Transmit,
    status: &'a Status,
    queues: Option<&'a mut OobQueues>,
    apertures: Option<&'a mut Apertures>,
}

impl std::fmt::Debug for Oob<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oob").finish_non_exhaustive()
    }
}

impl<'a> Oob<'a> {
    pub(crate) fn new(
        transmit: &'a mut Transmit,
        status: &'a Status,
        queues: Option<&'a mut OobQueues>,
        apertures: Option<&'a mut Apertures>,
    ) -> Oob<'a> {
        Oob { transmit, status, queues, apertures }
    }

    /// Queues an out-of-band message of at most 64 bytes to an endpoint's address. The next
    /// [`Sender::flush`](crate::Sender::flush), or [`Session::wait`](crate::Session::wait), sends it. The engine serves it in its turn, as a
    /// packet. docs/messages.md lists the reasons for which the engine drops a message; each has a
    /// counter on one of the two endpoints ([`Session::counters`](crate::Session::counters)).
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, peer: OobAddress) -> Result<(), Box<dyn std::error::Error>> {
    /// session.oob().send(endpoint, peer, b"hello")?;
    /// session.sender().flush()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send(
        &mut self,
        endpoint: Endpoint,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.put_oob(endpoint, Kind::Plain, to, payload)
    }

    /// Queues a request for a connection with the endpoint at an address, with at most 56 bytes of
    /// payload. It has no time limit: [`Oob::disconnect`] takes it back.
    /// [`Session::peer_state`](crate::Session::peer_state) tells of the answer: [`PeerState::Connected`], or
    /// [`PeerState::Refused`] with the reason.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, peer: OobAddress) -> Result<(), Box<dyn std::error::Error>> {
    /// let endpoint = session.open(&Rule::new().udp(0).out_of_band())?;
    /// session.oob().request_connection(endpoint, peer, b"")?;
    /// while session.peer_state(endpoint) == PeerState::Requested {
    ///     session.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
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
    /// [`Session::peer_state`](crate::Session::peer_state) tells whether the requester is still there.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, listener: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(request) = session.oob().receive(listener)? {
    ///     let endpoint = session.open(&Rule::new().udp(0).out_of_band())?;
    ///     session.oob().accept_connection(endpoint, request.from(), b"")?;
    /// }
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, listener: Endpoint, request: &ReceivedOob) -> Result<(), Box<dyn std::error::Error>> {
    /// session.oob().reject_connection(listener, request.from(), b"busy")?;
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.oob().disconnect(endpoint)?;
    /// session.sender().flush()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn disconnect(&mut self, endpoint: Endpoint) -> Result<(), SendError> {
        let nowhere = OobAddress { ip: [0, 0, 0, 0].into(), protocol: 0, port: 0 };
        self.put_oob(endpoint, Kind::Close, nowhere, &[])?;
        self.expect(endpoint, PeerState::None);
        Ok(())
    }

    /// Takes the oldest out-of-band message of an endpoint; `None` if none waits. A message that is
    /// not taken stays, and keeps its room in the queue.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(message) = session.oob().receive(endpoint)? {
    ///     println!("{}: {:?}", message.from(), message.payload());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive(&mut self, endpoint: Endpoint) -> Result<Option<ReceivedOob>, Lost> {
        self.status.check()?;
        let queues = self.queues.as_mut().map(|all| &mut all.queues);
        let queue = queues.and_then(|queues| queues.get_mut(endpoint.number as usize));
        let Some(queue) = queue else { return Ok(None) };
        let message = match queue.consumer.take() {
            Ok(Some(words)) => ReceivedOob::new(OobMessage::from_words(words)).map(Some),
            Ok(None) => Ok(None),
            Err(violation) => Err(violation),
        };
        match message {
            Ok(None) => self.status.check_more_comes().map(|()| None),
            Ok(message) => Ok(message),
            Err(violation) => Err(self.status.wrong(violation)),
        }
    }

    /// Returns an endpoint that has out-of-band messages, which is the same until the
    /// application has taken them; or a new [`Session::peer_state`](crate::Session::peer_state), or a request that is complete
    /// or failed ([`Requests::state`](crate::Requests::state)), which are reported once. Only
    /// [`Session::wait`](crate::Session::wait) and [`Session::poll`](crate::Session::poll) take events.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// session.wait(None)?;
    /// while let Some(id) = session.oob().ready()? {
    ///     println!("endpoint {id} has news");
    ///     # break;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready(&mut self) -> Result<Option<EndpointId>, Lost> {
        self.status.check()?;
        let first = self.queues.as_mut().map_or(Ok(None), |queues| queues.first_ready(false));
        let first = first.map_err(|violation| self.status.wrong(violation))?;
        Ok(first.map(EndpointId::new))
    }

    /// Queues a message that is to connect an endpoint, which has no peer and waits for none.
    fn connect(
        &mut self,
        endpoint: Endpoint,
        kind: Kind,
        to: OobAddress,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let queues = self.queues.as_deref().filter(|_| self.status.is_parents());
        let state = queues.map_or(PeerState::None, |queues| queues.peer_state(endpoint.number));
        if matches!(state, PeerState::Requested | PeerState::Connected) {
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

    /// Records what an endpoint's peer state is until the server changes it. Returns the endpoint's
    /// queue.
    fn expect(&mut self, endpoint: Endpoint, state: PeerState) -> Option<&mut Queue> {
        let queue = self.queues.as_mut()?.queues.get_mut(endpoint.number as usize)?;
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
        self.status.check()?;
        if !endpoint.oob || self.queues.is_none() {
            return Err(SendError::NotOutOfBand);
        }
        self.status.update_revoked();
        if self.status.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        let (len, max) = (payload.len(), kind.most_bytes());
        let message = OobMessage::new(kind, to, payload).ok_or(SendError::Payload { len, max })?;
        let sizes = (MESSAGE_BYTES as usize, OUT_OF_BAND);
        let has_room = self.transmit.push_message(self.status, endpoint, sizes, |part| {
            part.copy_from_slice(message.as_bytes());
        })?;
        if has_room { Ok(()) } else { Err(SendError::Full) }
    }
}

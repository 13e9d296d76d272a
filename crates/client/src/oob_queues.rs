//! The client's side of the queues of out-of-band messages.

use std::collections::VecDeque;

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::layout::{REQUEST_WORDS, SessionShape};
use towpath_protocol::oob::{Kind, OTHER_HOST_UID, OobAddress, OobMessage, PeerState};
use towpath_queue::oob::OobConsumer;
use towpath_queue::{OwnWords, PeerWords, Violation};

/// What an endpoint received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OobKind {
    /// A message ([`crate::Oob::send`]).
    Message,
    /// A request for a connection ([`crate::Oob::request_connection`]): answer it with
    /// [`crate::Oob::accept_connection`] or [`crate::Oob::reject_connection`].
    Request,
    /// A peer accepted this endpoint's request.
    Accept,
    /// A peer rejected this endpoint's request.
    Reject,
    /// The peer wrote into an aperture with a value ([`ReceivedOob::value`]).
    Value,
}

/// An out-of-band message that an endpoint received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedOob {
    kind: OobKind,
    from: OobAddress,
    message: OobMessage,
}

impl ReceivedOob {
    pub(crate) fn new(message: OobMessage) -> Result<ReceivedOob, Violation> {
        let (kind, from) = message.check().ok_or(Violation::Flags)?;
        let kind = match kind {
            Kind::Plain => OobKind::Message,
            Kind::Request => OobKind::Request,
            Kind::Accept => OobKind::Accept,
            Kind::Reject => OobKind::Reject,
            Kind::Value => OobKind::Value,
            Kind::Close => return Err(Violation::Flags),
        };
        Ok(ReceivedOob { kind, from, message })
    }

    /// Returns the kind.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// if message.kind() == OobKind::Request {
    ///     println!("{} wants a connection", message.from());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> OobKind {
        self.kind
    }

    /// Returns the address of the endpoint that sent it. The server wrote it: no application can
    /// forge it.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, message: &ReceivedOob) -> Result<(), Box<dyn std::error::Error>> {
    /// session.oob().send(endpoint, message.from(), b"answer")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn from(&self) -> OobAddress {
        self.from
    }

    /// Returns the user ID of the sender, as the server knows it from the kernel; `u32::MAX` if the sender
    /// is on another host.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// let is_from_root = message.uid() == 0;
    /// # }
    /// ```
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.message.uid
    }

    /// Returns `true` if the sender is on another host, whose memory cannot be mapped here.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// let can_share_memory = !message.is_from_other_host();
    /// # }
    /// ```
    #[must_use]
    pub fn is_from_other_host(&self) -> bool {
        self.message.uid == OTHER_HOST_UID
    }

    /// Returns the number of the sender's session; if the sender is on another host, a number that stands
    /// for the connection and is of no session of this server.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// println!("from session {}", message.session());
    /// # }
    /// ```
    #[must_use]
    pub fn session(&self) -> u32 {
        self.message.session
    }

    /// Returns the value that came with a write into an aperture, and the number of bytes written;
    /// `None` for another kind of message.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// if let Some((value, bytes)) = message.value() {
    ///     println!("{bytes} bytes came with the value {value}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn value(&self) -> Option<(u32, u32)> {
        let payload = self.message.payload().first_chunk::<8>();
        let [a, b, c, d, e, f, g, h] = *payload.filter(|_| self.kind == OobKind::Value)?;
        Some((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
    }

    /// Returns the payload, at most 64 bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(message: &ReceivedOob) {
    /// println!("{:?}", message.payload());
    /// # }
    /// ```
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.message.payload()
    }
}

/// What the client knows of an endpoint's queue.
pub(crate) struct Queue {
    pub(crate) consumer: OobConsumer,
    /// The words of the endpoint's requests; `None` if the session can make none.
    requests: Option<PeerWords>,
    /// The news that the application knows of.
    reported: News,
    /// What the application asked for, and the state word before: the server has yet to answer.
    pub(crate) asked: Option<(u64, PeerState)>,
    /// The address with which the application last connected the endpoint.
    pub(crate) connected_with: Option<OobAddress>,
    /// `true` if the endpoint is in [`OobQueues::ready`].
    ready: bool,
    /// The news because of which a wait ended last.
    waited: News,
}

/// What the server writes beside the messages: the state of the peer, and what became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct News {
    state: u64,
    requests: [u64; REQUEST_WORDS],
}

/// The queues of all endpoints.
pub(crate) struct OobQueues {
    pub(crate) queues: Vec<Queue>,
    /// Endpoints with news.
    ready: VecDeque<u32>,
}

impl OobQueues {
    /// Makes the client's side of the queues; `None` if the session has none.
    pub(crate) fn new(
        shape: &SessionShape,
        own: Vec<OwnWords>,
        peer: &[PeerWords],
        requests: &PeerWords,
    ) -> Option<Box<OobQueues>> {
        let oob = shape.oob()?;
        let has_requests = !requests.is_empty();
        let of = |number: usize| requests.part(number * REQUEST_WORDS, REQUEST_WORDS);
        let queues = own.into_iter().zip(peer).enumerate().map(|(number, (own, peer))| Queue {
            consumer: OobConsumer::new(oob, own, peer),
            requests: has_requests.then(|| of(number)),
            reported: News::default(),
            asked: None,
            connected_with: None,
            ready: false,
            waited: News::default(),
        });
        let ready = VecDeque::with_capacity(shape.endpoints as usize);
        Some(Box::new(OobQueues { queues: queues.collect(), ready }))
    }

    /// Returns the number of queues.
    pub(crate) fn len(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Records an event of an endpoint's queue. Ignores an endpoint that the session cannot have.
    pub(crate) fn record_event(&mut self, endpoint: u32) {
        let Some(queue) = self.queues.get_mut(endpoint as usize) else { return };
        if !std::mem::replace(&mut queue.ready, true) {
            self.ready.push_back(endpoint);
        }
    }

    /// Enters all endpoints for a check.
    pub(crate) fn check_all(&mut self) {
        (0..self.len()).for_each(|endpoint| self.record_event(endpoint));
    }

    /// `true` if no endpoint may have news.
    pub(crate) fn has_no_news(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns the first endpoint with news. `is_wait`: a wait asks, which reports a new state, and
    /// what became of requests, once.
    pub(crate) fn first_ready(&mut self, is_wait: bool) -> Result<Option<u32>, Violation> {
        while let Some(endpoint) = self.ready.front().copied() {
            let queue = &mut self.queues[endpoint as usize];
            if queue.consumer.waiting()? > 0 {
                return Ok(Some(endpoint));
            }
            let news = queue.news();
            if news != queue.reported && !(is_wait && news == queue.waited) {
                if is_wait {
                    queue.waited = news;
                } else {
                    queue.reported = news;
                }
                return Ok(Some(endpoint));
            }
            (queue.reported, queue.ready) = (news, false);
            self.ready.pop_front();
        }
        Ok(None)
    }

    /// Returns what an endpoint's peer does, as far as the client knows.
    #[inline]
    pub(crate) fn peer_state(&self, endpoint: u32) -> PeerState {
        self.queues.get(endpoint as usize).map_or(PeerState::None, Queue::state)
    }

    /// Discards what is left of an endpoint that is closed.
    pub(crate) fn discard(&mut self, endpoint: u32) -> Result<(), Violation> {
        let Some(queue) = self.queues.get_mut(endpoint as usize) else { return Ok(()) };
        queue.asked = None;
        queue.consumer.discard()
    }

    /// Begins with an endpoint that was opened.
    pub(crate) fn begin(&mut self, endpoint: u32) {
        if let Some(queue) = self.queues.get_mut(endpoint as usize) {
            (queue.reported, queue.asked, queue.connected_with) = (queue.news(), None, None);
            queue.waited = queue.reported;
        }
    }

    /// Returns the counters of an endpoint.
    pub(crate) fn counters(&self, endpoint: u32) -> Vec<(&'static str, u64)> {
        let queue = self.queues.get(endpoint as usize);
        let value = |index| queue.map_or(0, |queue| queue.consumer.counter(index));
        Count::ALL.iter().enumerate().map(|(index, (_, name))| (*name, value(index))).collect()
    }
}

impl Queue {
    fn news(&self) -> News {
        let word = |index| self.requests.as_ref().map_or(0, |words| words.observe(index));
        News { state: self.consumer.state(), requests: std::array::from_fn(word) }
    }

    /// Returns what the peer does, as far as the client knows.
    #[inline]
    fn state(&self) -> PeerState {
        let word = self.consumer.state();
        match self.asked {
            Some((before, expected)) if before == word => expected,
            // A state of a later version is none of a connection.
            _ => PeerState::from_number(word as u32).unwrap_or(PeerState::Closed),
        }
    }
}

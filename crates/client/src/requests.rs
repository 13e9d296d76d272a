//! Requests: the server moves bytes between memory of this session and an aperture of an endpoint's
//! peer, or puts a message into the peer's queue, without the peer's doing.

use std::ops::Range;

use towpath_protocol::requests::{self, LocalRange, MAX_LOCAL_RANGES, RequestFault, RequestKind};
use towpath_queue::descriptor::{MESSAGE_BYTES, REQUEST, TOGETHER};
use zerocopy::IntoBytes;

use crate::error::{QueuePairError, RequestError};
use crate::memory::{ApertureKey, Memory};
use crate::options::Endpoint;
use crate::request_table::{RequestId, RequestState, RequestTable};
use crate::status::Status;
use crate::transmit::Transmit;

/// A request, for [`Requests::queue`].
#[derive(Clone, Copy, Debug)]
pub struct Request {
    kind: RequestKind,
    remote: (u32, u64),
    local: [LocalRange; MAX_LOCAL_RANGES],
    /// The number of local ranges, also of those for which there was no place; of a message, its
    /// bytes.
    count: usize,
    /// `true` if a local range is empty or not inside of its memory.
    is_outside: bool,
    value: u32,
    together: bool,
}

impl Request {
    fn new(kind: RequestKind, remote: (u32, u64)) -> Request {
        let local = [LocalRange::default(); MAX_LOCAL_RANGES];
        let (count, is_outside, value, together) = (0, false, 0, false);
        Request { kind, remote, local, count, is_outside, value, together }
    }

    /// Returns a request that writes from local memory into an aperture, from its byte `offset` on.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(key: ApertureKey, memory: &Memory) {
    /// let request = Request::write(key, 0).local(memory, 0..4096);
    /// # }
    /// ```
    #[must_use]
    pub fn write(key: ApertureKey, offset: u64) -> Request {
        Request::new(RequestKind::Write, (key.0, offset))
    }

    /// Returns a request that reads from an aperture, from its byte `offset` on, into local memory.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(key: ApertureKey, memory: &Memory) {
    /// let request = Request::read(key, 8192).local(memory, 0..4096);
    /// # }
    /// ```
    #[must_use]
    pub fn read(key: ApertureKey, offset: u64) -> Request {
        Request::new(RequestKind::Read, (key.0, offset))
    }

    /// Returns a request that puts a message of at most 64 bytes into the queue of the endpoint at
    /// the other end, which it takes as an out-of-band message. Unlike [`Oob::send`](crate::Oob::send), this
    /// waits for room there.
    ///
    /// ```
    /// let request = towpath_client::Request::send(b"hello");
    /// ```
    #[must_use]
    pub fn send(payload: &[u8]) -> Request {
        let mut request = Request::new(RequestKind::Send, (0, 0));
        request.count = payload.len();
        if let Some(message) = requests::Request::message(0, payload) {
            request.local = message.local;
        }
        request
    }

    /// Adds a range of a memory of this session, whose bytes the application leaves alone until the
    /// request is complete. A request has 1 to 6 of them, one behind the other in the aperture, and
    /// at most 1 GiB in all.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(key: ApertureKey, memory: &Memory) {
    /// let request = Request::write(key, 0).local(memory, 0..64).local(memory, 4096..8192);
    /// # }
    /// ```
    #[must_use]
    pub fn local(mut self, memory: &Memory, range: Range<usize>) -> Request {
        let len = range.end.saturating_sub(range.start);
        self.is_outside |= len == 0 || range.end > memory.len();
        if let Some(place) = self.local.get_mut(self.count) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            *place = LocalRange { offset: range.start as u64, len, memory: memory.number };
        }
        self.count += 1;
        self
    }

    /// Has the server send this value to the endpoint at the other end after the write
    /// ([`crate::OobKind::Value`]). Reads and messages ignore it.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(key: ApertureKey, memory: &Memory) {
    /// let request = Request::write(key, 0).local(memory, 0..4096).with_value(7);
    /// # }
    /// ```
    #[must_use]
    pub fn with_value(mut self, value: u32) -> Request {
        if self.kind == RequestKind::Write {
            self.kind = RequestKind::WriteWithValue;
        }
        self.value = value;
        self
    }

    /// Groups this request with the endpoint's next one: the server carries out nothing between
    /// them, up to a limit of its own.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.requests().queue(endpoint, &Request::send(b"first").together())?;
    /// session.requests().queue(endpoint, &Request::send(b"second"))?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn together(mut self) -> Request {
        self.together = true;
        self
    }

    fn to_message(self, sequence: u32) -> Result<requests::Request, RequestError> {
        if self.kind == RequestKind::Send {
            let bytes = self.local.as_bytes();
            let payload = bytes.get(..self.count);
            let message = payload.and_then(|all| requests::Request::message(sequence, all));
            return message.ok_or(RequestError::Message { len: self.count });
        }
        if self.is_outside {
            return Err(RequestError::Outside);
        }
        let local = self.local.get(..self.count);
        let made =
            local.and_then(|all| requests::Request::new(self.kind, sequence, self.remote, all));
        let made = made.ok_or(RequestError::Ranges { count: self.count })?;
        Ok(requests::Request { value: self.value, ..made })
    }
}

/// The part of a session for requests of its connected endpoints
/// ([`Session::requests`](crate::Session::requests)).
pub struct Requests<'a> {
    transmit: &'a mut Transmit,
    status: &'a Status,
    table: Option<&'a mut RequestTable>,
}

impl std::fmt::Debug for Requests<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl<'a> Requests<'a> {
    pub(crate) fn new(
        transmit: &'a mut Transmit,
        status: &'a Status,
        table: Option<&'a mut RequestTable>,
    ) -> Requests<'a> {
        Requests { transmit, status, table }
    }

    /// Queues a request of a connected endpoint. The next [`Sender::flush`](crate::Sender::flush), or
    /// [`Session::wait`](crate::Session::wait), sends it; the server carries out the requests of an
    /// endpoint in their order. A wait ends when one is complete or failed, and
    /// [`Oob::ready`](crate::Oob::ready) then returns the endpoint. docs/apertures.md says what may be
    /// relied on.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, key: ApertureKey, memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let request = Request::write(key, 0).local(memory, 0..4096);
    /// let id = session.requests().queue(endpoint, &request)?;
    /// while session.requests().state(id) == RequestState::Pending {
    ///     session.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`RequestError`]; then nothing was queued.
    pub fn queue(
        &mut self,
        endpoint: Endpoint,
        request: &Request,
    ) -> Result<RequestId, RequestError> {
        self.status.check()?;
        let number = endpoint.number;
        let table =
            self.table.as_mut().filter(|_| endpoint.oob).ok_or(RequestError::NotPossible)?;
        let one = table.endpoints.get_mut(number as usize).ok_or(RequestError::NotPossible)?;
        let sequence = one.last.wrapping_add(1);
        let message = request.to_message(sequence)?;
        self.status.update_revoked();
        if self.status.is_revoked(endpoint) {
            return Err(RequestError::Revoked);
        }
        let flags = REQUEST | if request.together { TOGETHER } else { 0 };
        let sizes = (MESSAGE_BYTES as usize, flags);
        let pushed = self.transmit.push_message(self.status, endpoint, sizes, |part| {
            part.copy_from_slice(&message.to_bytes());
        });
        match pushed {
            Ok(true) => {}
            Ok(false) => return Err(RequestError::Full),
            Err(QueuePairError::Lost(lost)) => return Err(lost.into()),
            Err(QueuePairError::NoQueuePair { .. }) => return Err(RequestError::NotPossible),
        }
        one.last = sequence;
        Ok(RequestId { endpoint: number, sequence })
    }

    /// Returns the outcome of a request: loads of two words that the server writes. If a request is
    /// complete, so are all earlier ones of the same connection. Ids of an endpoint that is closed,
    /// of connections before the last one that failed, and of more than two billion requests ago,
    /// have no meaning.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, id: RequestId) {
    /// if let RequestState::Failed(fault) = session.requests().state(id) {
    ///     println!("{fault:?}");
    /// }
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn state(&self, id: RequestId) -> RequestState {
        match &self.table {
            Some(table) if self.status.is_parents() => table.state(id),
            _ => RequestState::Failed(RequestFault::Closed),
        }
    }
}

//! The outcome of a session's requests.

use towpath_protocol::layout::REQUEST_WORDS;
use towpath_protocol::requests::RequestFault;
use towpath_queue::PeerWords;

/// A request that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(crate) endpoint: u32,
    pub(crate) sequence: u32,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestState {
    /// The server has yet to carry it out.
    Pending,
    /// All of it is done: bytes that it wrote are in the aperture, bytes that it read in local
    /// memory.
    Complete,
    /// It failed, and with it the endpoint's connection. Some of its bytes may be moved.
    Failed(RequestFault),
}

/// The requests of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointRequests {
    /// The number of the last request.
    pub(crate) last: u32,
    /// The requests that failed with an earlier connection: the first one with its fault, and the
    /// last.
    failed: Option<(u32, RequestFault, u32)>,
}

/// The requests of a session.
pub(crate) struct RequestTable {
    words: PeerWords,
    pub(crate) endpoints: Vec<EndpointRequests>,
}

/// Returns `true` if `one` is not behind `other`, among numbers that wrap.
fn is_upto(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) < 1 << 31
}

impl RequestTable {
    pub(crate) fn new(words: PeerWords, endpoints: u32) -> RequestTable {
        RequestTable { words, endpoints: vec![EndpointRequests::default(); endpoints as usize] }
    }

    /// Returns the request of an endpoint's connection that failed first.
    fn failed(&self, endpoint: u32) -> Option<(u32, RequestFault)> {
        let word = self.words.observe(endpoint as usize * REQUEST_WORDS + 1);
        // A fault of a later version has ended the connection, too.
        let fault =
            || RequestFault::from_number((word >> 32) as u32).unwrap_or(RequestFault::Closed);
        (word != 0).then(|| (word as u32, fault()))
    }

    /// Returns the number of the last request of an endpoint that is complete.
    fn completed(&self, endpoint: u32) -> u32 {
        self.words.observe(endpoint as usize * REQUEST_WORDS) as u32
    }

    /// Begins with a new connection of an endpoint, which has none: what is not complete has
    /// failed, or fails as soon as the server comes to it.
    pub(crate) fn connect(&mut self, endpoint: u32) {
        let (failed, completed) = (self.failed(endpoint), self.completed(endpoint));
        let Some(one) = self.endpoints.get_mut(endpoint as usize) else { return };
        let (first, fault) = failed.unwrap_or((completed.wrapping_add(1), RequestFault::Closed));
        if is_upto(first, one.last) {
            one.failed = Some((first, fault, one.last));
        }
    }

    /// Begins with a new endpoint.
    pub(crate) fn begin(&mut self, endpoint: u32) {
        if let Some(one) = self.endpoints.get_mut(endpoint as usize) {
            *one = EndpointRequests::default();
        }
    }

    pub(crate) fn state(&self, id: RequestId) -> RequestState {
        let Some(one) = self.endpoints.get(id.endpoint as usize) else {
            return RequestState::Failed(RequestFault::Closed);
        };
        let failed = |(first, fault): (u32, RequestFault)| {
            let fault = if id.sequence == first { fault } else { RequestFault::Flushed };
            RequestState::Failed(fault)
        };
        if let Some((first, fault, last)) = one.failed
            && is_upto(first, id.sequence)
            && is_upto(id.sequence, last)
        {
            return failed((first, fault));
        }
        // First: the server publishes a completion before a failure behind it.
        let now = self.failed(id.endpoint);
        if is_upto(id.sequence, self.completed(id.endpoint)) {
            return RequestState::Complete;
        }
        match now.filter(|(first, _)| is_upto(*first, id.sequence)) {
            Some(first) => failed(first),
            None => RequestState::Pending,
        }
    }
}

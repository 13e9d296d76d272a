//! Requests: an application has the server move bytes between memory of its own and an aperture.
//!
//! An application writes a [`Request`] into a transmit buffer, and sends it with the flag
//! `REQUEST`. The server carries requests out in their order. It tells the number of the last
//! request of an endpoint that is complete in a word of the server pages, and in another one why a
//! request failed.

use towpath_queue::descriptor::MESSAGE_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The most local ranges of a request.
pub const MAX_LOCAL_RANGES: usize = 6;
/// The most bytes that a request moves.
pub const MAX_MOVED_BYTES: u64 = 1 << 30;
/// The most bytes of a message that a request sends.
pub const SEND_BYTES: usize = 64;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// A [`RequestKind`].
    pub kind: u8,
    /// The number of local ranges, 1 to [`MAX_LOCAL_RANGES`]; of a message, its bytes, 0 to
    /// [`SEND_BYTES`].
    pub count: u8,
    /// Must be 0.
    pub reserved: u16,
    /// The application's number for the request, one more than that of the endpoint's request
    /// before.
    pub sequence: u32,
    /// The key of the aperture.
    pub key: u32,
    /// The value that the peer receives with a [`RequestKind::WriteWithValue`].
    pub value: u32,
    /// Where the range begins in the aperture, in bytes.
    pub remote: u64,
    /// The local ranges, in their order; or the message.
    pub local: [LocalRange; MAX_LOCAL_RANGES],
    /// Must be 0.
    pub reserved_too: u64,
}

/// A range of a memory that the requesting session created.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LocalRange {
    /// Where it begins in the memory, in bytes.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub len: u32,
    /// The memory's number in the session.
    pub memory: u32,
}

const _: () = assert!(size_of::<Request>() == MESSAGE_BYTES as usize);
const _: () = assert!(MAX_LOCAL_RANGES * size_of::<LocalRange>() >= SEND_BYTES);

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestKind {
    /// Writes the local ranges into the aperture.
    Write = 1,
    /// Writes as [`RequestKind::Write`] does, and then puts a value into the queue of the endpoint
    /// at the other end.
    WriteWithValue = 2,
    /// Reads from the aperture into the local ranges.
    Read = 3,
    /// Puts a message into the queue of the endpoint at the other end.
    Send = 4,
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum RequestFault {
    /// The endpoint has no connection, or it ended before the request was carried out.
    Closed = 1,
    /// No aperture of the connection has this key, or it was revoked.
    Key = 2,
    /// The range is not in the aperture.
    Range = 3,
    /// The aperture's rights do not include the access, or applications of two users could write to the memory.
    Rights = 4,
    /// A local range is not in a memory of the requesting session.
    Local = 5,
    /// The queue at the other end had no room for the value or message for a second, or the server's worker did not
    /// copy for 10 seconds.
    NotReady = 6,
    /// An earlier request of the connection failed.
    Flushed = 7,
    /// The peer is on another host, and refused the request: its key, its range or the access.
    Peer = 8,
}

impl RequestFault {
    /// Returns the fault of a number; `None` if there is no such fault.
    #[must_use]
    pub fn from_number(number: u32) -> Option<RequestFault> {
        RequestFault::try_read_from_bytes(number.as_bytes()).ok()
    }
}

impl std::fmt::Display for RequestFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RequestFault::Closed => {
                "the endpoint has no connection, or it ended; connect it again, and ask for a new key"
            }
            RequestFault::Key => {
                "the peer exports no aperture with this key for this connection, or revoked it; connect \
                 again, and ask for a new key"
            }
            RequestFault::Range => {
                "the range is not inside of the aperture; ask the owner for its length, and connect again"
            }
            RequestFault::Rights => {
                "the aperture is not exported for this access, or a memory is mapped for writing by another user; connect again, and \
                 ask for another key, or create another memory"
            }
            RequestFault::Local => {
                "a local range is not in a memory of this session; use one that was not released, and \
                 connect again"
            }
            RequestFault::NotReady => {
                "the peer took nothing from its queue for a second, or the server did not copy within 10 seconds; connect \
                 again"
            }
            RequestFault::Peer => {
                "the peer's host refused the request: its key, its range or the access; connect again, and \
                 ask for a new key"
            }
            RequestFault::Flushed => "a request before it failed, and closed the connection",
        })
    }
}

/// What a checked request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The kind.
    pub kind: RequestKind,
    /// The number of local ranges.
    pub local: usize,
    /// The bytes of all of them.
    pub bytes: u64,
}

impl Request {
    /// Makes a request for the local ranges; `None` if there are none, too many, or one is empty,
    /// or if they have too many bytes.
    #[must_use]
    pub fn new(
        kind: RequestKind,
        sequence: u32,
        (key, remote): (u32, u64),
        local: &[LocalRange],
    ) -> Option<Request> {
        let mut ranges = [LocalRange::default(); MAX_LOCAL_RANGES];
        ranges.get_mut(..local.len())?.copy_from_slice(local);
        let request = Request {
            kind: kind as u8,
            count: local.len() as u8,
            reserved: 0,
            sequence,
            key,
            value: 0,
            remote,
            local: ranges,
            reserved_too: 0,
        };
        (kind != RequestKind::Send && request.check().is_some()).then_some(request)
    }

    /// Makes a request that sends a message; `None` if it is too long.
    #[must_use]
    pub fn message(sequence: u32, payload: &[u8]) -> Option<Request> {
        let mut bytes = [0; MAX_LOCAL_RANGES * size_of::<LocalRange>()];
        if payload.len() > SEND_BYTES {
            return None;
        }
        bytes[..payload.len()].copy_from_slice(payload);
        Some(Request {
            kind: RequestKind::Send as u8,
            count: payload.len() as u8,
            reserved: 0,
            sequence,
            key: 0,
            value: 0,
            remote: 0,
            local: zerocopy::transmute!(bytes),
            reserved_too: 0,
        })
    }

    /// Reads a request that an application wrote; `None` unless it is [`MESSAGE_BYTES`] long.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Request> {
        Request::read_from_bytes(bytes).ok()
    }

    /// Returns the request as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES as usize] {
        zerocopy::transmute!(*self)
    }

    /// Returns the message of a request that sends one.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.local.as_bytes();
        bytes.get(..usize::from(self.count)).unwrap_or(bytes)
    }

    /// Returns what the request asks for; `None` if no correct application sends it.
    #[must_use]
    pub fn check(&self) -> Option<Checked> {
        use RequestKind::{Read, Send, Write, WriteWithValue};
        let kinds = [Write, WriteWithValue, Read, Send];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == self.kind)?;
        if self.reserved != 0 || self.reserved_too != 0 {
            return None;
        }
        let count = usize::from(self.count);
        if kind == Send {
            return (count <= SEND_BYTES).then_some(Checked { kind, local: 0, bytes: 0 });
        }
        let local = self.local.get(..count).filter(|all| !all.is_empty())?;
        if local.iter().any(|one| one.len == 0) {
            return None;
        }
        let bytes = local.iter().map(|one| u64::from(one.len)).sum();
        (bytes <= MAX_MOVED_BYTES).then_some(Checked { kind, local: count, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_that_make_no_sense_are_not_made() {
        let one = LocalRange { offset: 5, len: 7, memory: 1 };
        let made = |local: &[LocalRange]| Request::new(RequestKind::Write, 1, (2, 3), local);
        assert!(made(&[]).is_none() && made(&[one; MAX_LOCAL_RANGES + 1]).is_none());
        assert!(made(&[one, LocalRange { len: 0, ..one }]).is_none());
        assert!(made(&[LocalRange { len: u32::MAX, ..one }]).is_none());
        let checked = made(&[one; MAX_LOCAL_RANGES]).unwrap().check().unwrap();
        assert_eq!((checked.kind, checked.local, checked.bytes), (RequestKind::Write, 6, 42));
        assert!(Request::new(RequestKind::Send, 1, (2, 3), &[one]).is_none());
        for len in [0, 1, SEND_BYTES] {
            let payload: Vec<u8> = (0..len as u8).collect();
            let request = Request::message(1, &payload).unwrap();
            assert_eq!((request.payload(), request.check().unwrap().bytes), (&payload[..], 0));
        }
        assert!(Request::message(1, &[0; SEND_BYTES + 1]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(bytes in any::<[[u8; 32]; 4]>(), kind in 0..6u8) {
            let mut request = Request::read_from_bytes(bytes.as_bytes()).unwrap();
            (request.kind, request.reserved, request.reserved_too) = (kind, 0, 0);
            let _ = request.payload();
            if let Some(checked) = request.check() {
                prop_assert!(checked.bytes <= MAX_MOVED_BYTES && checked.local <= MAX_LOCAL_RANGES);
            }
        }
    }
}

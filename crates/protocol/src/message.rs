//! The control messages.
//!
//! A message is one packet of a `SOCK_SEQPACKET` socket: a [`Header`], then the body of its kind.
//! All numbers are in the machine's own byte order, since both sides are on one machine. The header
//! and [`ErrorBody`] never change, so that the server can refuse a peer of any version with a
//! reason.
//!
//! | kind | from | body | answer |
//! |---|---|---|---|
//! | attach | application | [`Attach`] | attached with six descriptors, one more if the session may have tripwires, and one for each lane; or error |
//! | attached | server | [`Attached`] | |
//! | resume | application | [`Resume`] | attached with the new doorbell and one descriptor for each lane, or error |
//! | mapped | application | none | done: the session exists |
//! | open | application | [`Open`] | opened, or error |
//! | opened | server | [`Opened`] | |
//! | close | application | [`Close`] | done, or error |
//! | report | administrator or granted user | [`Cursor`] | reported, or error |
//! | reported | server | [`Cursor`] of the next page, then JSON | |
//! | set | administrator; an application for its own endpoints | [`Set`] | done, or error |
//! | create memory | application | [`CreateMemory`] | created with the memory's descriptor, or error |
//! | created | server | [`Created`] | |
//! | export | application | [`Export`] | created, or error |
//! | import | application | [`Import`] | imported, with the memory's descriptor if it is mapped; or error |
//! | imported | server | [`Imported`] | |
//! | set tripwire | application | [`SetTripwire`] | created, or error |
//! | import tripwire | application | [`ImportTripwire`] | created with the descriptor of its owner's armed words, or error |
//! | release | application | [`Release`] | done, or error |
//! | hand over | application | none | done, or error |
//! | done | server | none | |
//! | error | server | [`ErrorBody`] | |

mod aperture;
mod endpoint;
mod header;
mod refusal;
mod report;
mod session;
mod setting;

use zerocopy::{FromBytes, IntoBytes};

pub use aperture::*;
pub use endpoint::*;
pub use header::*;
pub use refusal::*;
pub use report::*;
pub use session::*;
use session::{NEW_ATTACH_SINCE, OLD_ATTACH_BYTES};
pub use setting::*;

use crate::{OLDEST_VERSION, VERSION};

const _: () = {
    assert!(size_of::<Header>() == 8);
    assert!(size_of::<Attach>() == OLD_ATTACH_BYTES + 8);
    assert!(size_of::<Attached>() == 88);
    assert!(size_of::<Open>() == 64);
    assert!(size_of::<Resume>() == 16);
    assert!(size_of::<Set>() == 24);
    assert!(size_of::<Cursor>() == 16);
    assert!(size_of::<ErrorBody>() == 248);
    assert!(size_of::<CreateMemory>() == 16);
    assert!(size_of::<Created>() == 8);
    assert!(size_of::<Export>() == 32);
    assert!(size_of::<Import>() == 16);
    assert!(size_of::<Imported>() == 40);
    assert!(size_of::<SetTripwire>() == 32);
    assert!(size_of::<ImportTripwire>() == 16);
    assert!(size_of::<Release>() == 8);
};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table of the module describes each")]
pub enum Message {
    Attach(Attach),
    Attached(Attached),
    Mapped,
    Open(Open),
    Opened(Opened),
    Close(Close),
    Report(Cursor),
    Reported(Cursor, Vec<u8>),
    Set(Set),
    Done,
    Error(Box<ErrorBody>),
    Resume(Resume),
    CreateMemory(CreateMemory),
    Created(Created),
    Export(Export),
    Import(Import),
    Imported(Imported),
    SetTripwire(SetTripwire),
    ImportTripwire(ImportTripwire),
    Release(Release),
    HandOver,
}

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not of this protocol.
    #[error("not a Towpath message")]
    Magic,
    /// Of another version.
    #[error(
        "the peer speaks version {0} of the protocol, this side {VERSION}, and servers from {OLDEST_VERSION} on; update the older of the two"
    )]
    Version(u16),
    /// A kind that this version does not have.
    #[error("no message has kind {0}")]
    Kind(u16),
    /// Too short or too long for its kind.
    #[error("a message of kind {kind} has {len} bytes")]
    Length {
        /// The kind.
        kind: u16,
        /// Number of bytes received.
        len: usize,
    },
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Attach(_) => 1,
            Message::Attached(_) => 2,
            Message::Mapped => 3,
            Message::Open(_) => 4,
            Message::Opened(_) => 5,
            Message::Close(_) => 6,
            Message::Report(_) => 7,
            Message::Reported(..) => 8,
            Message::Set(_) => 9,
            Message::Done => 10,
            Message::Error(_) => 11,
            Message::Resume(_) => 12,
            Message::CreateMemory(_) => 13,
            Message::Created(_) => 14,
            Message::Export(_) => 15,
            Message::Import(_) => 16,
            Message::Imported(_) => 17,
            Message::SetTripwire(_) => 18,
            Message::ImportTripwire(_) => 19,
            Message::Release(_) => 20,
            Message::HandOver => 21,
        }
    }

    /// Returns the message as bytes, in this side's version.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_for(VERSION)
    }

    /// Returns the message as bytes, for a peer of this version.
    #[must_use]
    pub fn encode_for(&self, version: u16) -> Vec<u8> {
        let header = Header { magic: MAGIC, version, kind: self.kind() };
        let (body, text): (&[u8], &[u8]) = match self {
            Message::Attach(body) if version < NEW_ATTACH_SINCE => {
                (&body.as_bytes()[..OLD_ATTACH_BYTES], &[])
            }
            Message::Attach(body) => (body.as_bytes(), &[]),
            Message::Attached(body) => (body.as_bytes(), &[]),
            Message::Open(body) => (body.as_bytes(), &[]),
            Message::Opened(body) => (body.as_bytes(), &[]),
            Message::Close(body) => (body.as_bytes(), &[]),
            Message::Report(body) => (body.as_bytes(), &[]),
            Message::Reported(body, text) => (body.as_bytes(), text),
            Message::Set(body) => (body.as_bytes(), &[]),
            Message::Resume(body) => (body.as_bytes(), &[]),
            Message::Error(body) => (body.as_bytes(), &[]),
            Message::CreateMemory(body) => (body.as_bytes(), &[]),
            Message::Created(body) => (body.as_bytes(), &[]),
            Message::Export(body) => (body.as_bytes(), &[]),
            Message::Import(body) => (body.as_bytes(), &[]),
            Message::Imported(body) => (body.as_bytes(), &[]),
            Message::SetTripwire(body) => (body.as_bytes(), &[]),
            Message::ImportTripwire(body) => (body.as_bytes(), &[]),
            Message::Release(body) => (body.as_bytes(), &[]),
            Message::Mapped | Message::Done | Message::HandOver => (&[], &[]),
        };
        [header.as_bytes(), body, text].concat()
    }

    /// Reads a message of this side's version that a hostile peer may have written.
    ///
    /// # Errors
    /// [`MessageError`] names the fault.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        Message::decode_of(bytes, VERSION..=VERSION).map(|(message, _)| message)
    }

    /// Reads a message of any version that a server speaks. Also returns the version.
    ///
    /// # Errors
    /// [`MessageError`] names the fault.
    pub fn decode_any(bytes: &[u8]) -> Result<(Message, u16), MessageError> {
        Message::decode_of(bytes, OLDEST_VERSION..=VERSION)
    }

    fn decode_of(
        bytes: &[u8],
        versions: std::ops::RangeInclusive<u16>,
    ) -> Result<(Message, u16), MessageError> {
        let (header, body) = Header::read_from_prefix(bytes).map_err(|_| MessageError::Magic)?;
        if header.magic != MAGIC {
            return Err(MessageError::Magic);
        }
        let length = || MessageError::Length { kind: header.kind, len: bytes.len() };
        // The error message: the one kind that is the same in all versions.
        if header.kind == 11 {
            let body = ErrorBody::read_from_bytes(body).map_err(|_| length())?;
            return Ok((Message::Error(Box::new(body)), header.version));
        }
        if !versions.contains(&header.version) {
            return Err(MessageError::Version(header.version));
        }
        fn read<T: FromBytes>(body: &[u8], error: MessageError) -> Result<T, MessageError> {
            T::read_from_bytes(body).map_err(|_| error)
        }
        let empty = |message: Message| if body.is_empty() { Ok(message) } else { Err(length()) };
        let message = match header.kind {
            1 if header.version < NEW_ATTACH_SINCE => {
                let mut all = [0; size_of::<Attach>()];
                let old = <&[u8; OLD_ATTACH_BYTES]>::try_from(body).map_err(|_| length())?;
                all[..OLD_ATTACH_BYTES].copy_from_slice(old);
                Ok(Message::Attach(read(&all, length())?))
            }
            1 => Ok(Message::Attach(read(body, length())?)),
            2 => Ok(Message::Attached(read(body, length())?)),
            3 => empty(Message::Mapped),
            4 => Ok(Message::Open(read(body, length())?)),
            5 => Ok(Message::Opened(read(body, length())?)),
            6 => Ok(Message::Close(read(body, length())?)),
            7 => Ok(Message::Report(read(body, length())?)),
            8 => {
                let (next, text) = Cursor::read_from_prefix(body).map_err(|_| length())?;
                Ok(Message::Reported(next, text.to_vec()))
            }
            9 => Ok(Message::Set(read(body, length())?)),
            10 => empty(Message::Done),
            12 => Ok(Message::Resume(read(body, length())?)),
            13 => Ok(Message::CreateMemory(read(body, length())?)),
            14 => Ok(Message::Created(read(body, length())?)),
            15 => Ok(Message::Export(read(body, length())?)),
            16 => Ok(Message::Import(read(body, length())?)),
            17 => Ok(Message::Imported(read(body, length())?)),
            18 => Ok(Message::SetTripwire(read(body, length())?)),
            19 => Ok(Message::ImportTripwire(read(body, length())?)),
            20 => Ok(Message::Release(read(body, length())?)),
            21 => empty(Message::HandOver),
            kind => Err(MessageError::Kind(kind)),
        };
        Ok((message?, header.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn examples() -> Vec<Message> {
        vec![
            Message::Attach(Attach {
                queue_pairs: 1,
                endpoints: 2,
                transmit_slots: 8,
                receive_slots: 16,
                transmit_buffer_bytes: 2048,
                receive_buffer_bytes: 2048,
                name: fixed_name("wäb"),
                ipv4: [10, 0, 0, 1],
                flags: 0,
                apertures: 5,
                tripwires: 6,
            }),
            Message::Attached(Attached::new_zeroed()),
            Message::Mapped,
            Message::Open(Open::new_zeroed()),
            Message::Opened(Opened { endpoint: 3, port: 80 }),
            Message::Close(Close { endpoint: 3 }),
            Message::Report(Cursor { connection: 5, endpoint: 6, reserved: 0 }),
            Message::Reported(Cursor::END, b"{}".to_vec()),
            Message::Set(Set { setting: 1, session: 2, endpoint: 3, reserved: 0, value: 4 }),
            Message::Done,
            Message::Error(Box::new(ErrorBody::new(Refusal::Limit, "no"))),
            Message::CreateMemory(CreateMemory { bytes: 4096, sharing: 1, sequence: 2 }),
            Message::Created(Created { number: 1, key: 2 }),
            Message::Export(Export { len: 8, ..Export::new_zeroed() }),
            Message::Import(Import { key: 5, ..Import::new_zeroed() }),
            Message::Imported(Imported { number: 7, ..Imported::new_zeroed() }),
            Message::SetTripwire(SetTripwire { len: 8, ..SetTripwire::new_zeroed() }),
            Message::ImportTripwire(ImportTripwire { tripwire: 3, ..ImportTripwire::new_zeroed() }),
            Message::Release(Release { kind: RELEASE_MEMORY, number: 4 }),
            Message::HandOver,
        ]
    }

    use zerocopy::FromZeros;

    #[test]
    fn there_and_back() {
        for message in examples() {
            let mut bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            // The text of a page is as long as its message.
            let cut = bytes.len()
                - if let Message::Reported(_, text) = &message { text.len() } else { 0 };
            assert!(Message::decode(&bytes[..cut - 1]).is_err());
            bytes.push(0);
            assert!(matches!(message, Message::Reported(..)) || Message::decode(&bytes).is_err());
        }
    }

    #[test]
    fn an_attach_message_of_an_older_version_asks_for_no_apertures() {
        let older = NEW_ATTACH_SINCE - 1;
        let mut bytes = examples()[0].encode();
        bytes[4..6].copy_from_slice(&older.to_ne_bytes());
        assert!(matches!(Message::decode_any(&bytes), Err(MessageError::Length { .. })));
        bytes.truncate(bytes.len() - 8);
        assert_eq!(examples()[0].encode_for(older), bytes);
        let (message, version) = Message::decode_any(&bytes).unwrap();
        let Message::Attach(attach) = message else { panic!("{message:?}") };
        assert_eq!((attach.queue_pairs, attach.apertures, attach.tripwires), (1, 0, 0));
        assert_eq!(version, older);
    }

    #[test]
    fn another_protocol_version_is_reported() {
        for version in [0, VERSION + 1, u16::MAX] {
            let mut bytes = Message::Mapped.encode();
            bytes[4..6].copy_from_slice(&version.to_ne_bytes());
            assert_eq!(Message::decode(&bytes), Err(MessageError::Version(version)));
            // And a peer of another version understands the refusal.
            let refusal =
                Message::Error(Box::new(ErrorBody::new(Refusal::Version, "other version")));
            let mut bytes = refusal.encode();
            bytes[4..6].copy_from_slice(&version.to_ne_bytes());
            assert_eq!(Message::decode(&bytes), Ok(refusal));
        }
    }

    #[test]
    fn texts_are_truncated_between_characters() {
        let long = "ä".repeat(200);
        let body = ErrorBody::new(Refusal::Malformed, &long);
        assert_eq!(body.text(), "ä".repeat(120));
        assert_eq!(shown_name(&fixed_name::<4>("aää")), "aä");
        assert_eq!(shown_name(b"a\nb\0c"), "a?b");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_their_message_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..24u16, fix in any::<bool>()) {
            let mut bytes = bytes;
            if fix && bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
                bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
                bytes[6..8].copy_from_slice(&kind.to_ne_bytes());
            }
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(&message.encode()[8..], &bytes[8..]);
                if let Message::Error(body) = message {
                    let _ = (body.text(), body.refusal());
                }
            }
        }
    }
}

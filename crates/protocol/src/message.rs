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
//! | done | server | none | |
//! | error | server | [`ErrorBody`] | |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout::MAX_LANES;
use crate::{OLDEST_VERSION, VERSION};

/// "Towp", in each message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Towp");
/// The largest message: a page of a report.
pub const MAX_BYTES: usize = 32 << 10;
/// The largest message that an application sends. The largest message of a fixed size, an error,
/// has 256 bytes.
pub const MAX_REQUEST_BYTES: usize = 512;
/// The most descriptors with a message: the answer to attach carries up to this many, and no other
/// message more.
pub const MAX_DESCRIPTORS: usize = 7 + MAX_LANES;

/// The beginning of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// The sender's [`VERSION`].
    pub version: u16,
    /// The kind of the body that follows.
    pub kind: u16,
}

/// Asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attach {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Endpoints, at most.
    pub endpoints: u32,
    /// Slots of each transmit queue.
    pub transmit_slots: u32,
    /// Slots of each receive queue.
    pub receive_slots: u32,
    /// Data bytes of each transmit buffer.
    pub transmit_buffer_bytes: u32,
    /// Data bytes of each receive buffer.
    pub receive_buffer_bytes: u32,
    /// The application's own name, UTF-8, padded with zeros; `towpath ls` shows it.
    pub name: [u8; 32],
    /// The IPv4 address that the application asks for, or zeros for any.
    pub ipv4: [u8; 4],
    /// [`ATTACH_OWN`], [`ATTACH_SHARED`], or 0 for either; and [`ATTACH_OWN_QUEUE`]; and from
    /// [`ATTACH_OOB_SHIFT`] on the out-of-band messages that a queue holds.
    pub flags: u32,
    /// Apertures, at most. This field and the next are 0 from an application that speaks version 10
    /// or older, whose message ends before.
    pub apertures: u32,
    /// Tripwires, at most.
    pub tripwires: u32,
}

/// The bytes of [`Attach`] in version 10 and older.
const OLD_ATTACH_BYTES: usize = 64;
/// The version since which [`Attach`] has all its fields.
const NEW_ATTACH_SINCE: u16 = 11;

/// Asks for addresses of the session's own.
pub const ATTACH_OWN: u32 = 1;
/// Asks for the addresses of the host, which the session shares with the kernel and other sessions.
pub const ATTACH_SHARED: u32 = 2;

/// Asks for a hardware queue of the session's own.
pub const ATTACH_OWN_QUEUE: u32 = 4;
/// All `ATTACH_…` bits.
pub const ATTACH_ALL: u32 = 7;
/// The first bit of [`Attach::flags`] that belongs to the number of out-of-band messages which each
/// endpoint's queue holds, 0 for none.
pub const ATTACH_OOB_SHIFT: u32 = 16;

/// The server's grant to a session. Descriptors come with it, in this order: server pages, receive
/// pool, state page (these three read-only), application pages, transmit pool (both to be mapped
/// writable now and sealed afterwards), the session's doorbell (a socket: readable after a
/// notification, hung up at the session's end), the armed words if the session may have tripwires
/// (as the application pages), and for each lane the eventfd that notifies its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attached {
    /// The server's number; another server has another number.
    pub epoch: u64,
    /// The session's number.
    pub session: u32,
    /// The device's MTU, in bytes.
    pub mtu: u16,
    /// The server's lanes, 1 to [`MAX_LANES`]: parts of the session's memory.
    pub lanes: u16,
    /// Offloads that the application may leave to the device on transmit: [`CAN_CHECKSUM`],
    /// [`CAN_SEGMENT`].
    pub capabilities: u32,
    /// [`TRUSTED`], [`SHARED`], [`BY_PORT`], [`OWN_QUEUE`].
    pub flags: u32,
    /// The MAC address that the server gives the session.
    pub mac: [u8; 6],
    /// Prefix length of the IPv4 address; 0: the session has none.
    pub ipv4_prefix: u8,
    /// Prefix length of the IPv6 address; 0: the session has none.
    pub ipv6_prefix: u8,
    /// The session's IPv4 address.
    pub ipv4: [u8; 4],
    /// The IPv4 gateway, or zeros.
    pub ipv4_gateway: [u8; 4],
    /// The session's IPv6 address.
    pub ipv6: [u8; 16],
    /// The IPv6 gateway, or zeros.
    pub ipv6_gateway: [u8; 16],
    /// The device's name, padded with zeros.
    pub device: [u8; 16],
}

/// The device, or the server, completes partial checksums.
pub const CAN_CHECKSUM: u32 = 1;
/// The device, or the server, segments large TCP packets.
pub const CAN_SEGMENT: u32 = 2;
/// The application runs as root or as the server's user, so the server pages are not protected from
/// it.
pub const TRUSTED: u32 = 1;
/// The session's addresses are the host's own. They belong to the kernel, and to other sessions:
/// the session has the ports that it opens, and link addresses come from an endpoint with
/// [`OPEN_NEIGHBOURS`].
pub const SHARED: u32 = 2;
/// No endpoint can receive all packets: the addresses are shared, or the grant limits ports or
/// ethertypes.
pub const BY_PORT: u32 = 4;

/// The session has a hardware queue of its own. The server fills the receive buffers of its first
/// queue pair in any order, and data may start anywhere behind a buffer's headroom, or where the
/// packet continues without a gap from the previous buffer of the pool.
pub const OWN_QUEUE: u32 = 8;

/// [`Attached::flags`]: if the server is killed, the next one resumes the session.
pub const RESUMABLE: u32 = 16;

/// Asks a server for a session of an earlier server that was killed. The peer must be the process
/// that attached. It has restarted its event queues, and does not touch them until the answer
/// arrives. With the answer come the session's new doorbell, and for each lane the eventfd that
/// notifies its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Resume {
    /// The epoch of the last server that the application knows ([`Attached::epoch`]), for the log.
    pub epoch: u64,
    /// The session's number.
    pub session: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Asks for an endpoint.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Open {
    /// The fields below that count: `RULE_…`.
    pub given: u32,
    /// The session's queue pair that the endpoint uses.
    pub queue_pair: u32,
    /// `OPEN_…`.
    pub flags: u32,
    /// VLAN identifier, 1 to 4094; if not given, only packets without a tag match, or with
    /// [`RULE_ANY_VLAN`] all packets.
    pub vlan: u16,
    /// Ethertype, 0x0600 upward.
    pub ethertype: u16,
    /// Local MAC address; if not given, the session's own, or with [`RULE_ANY_MAC`] any.
    pub mac: [u8; 6],
    /// IP protocol: 6 TCP, 17 UDP, ...
    pub protocol: u8,
    /// 4 or 6: the version of the addresses.
    pub ip_version: u8,
    /// Local IP address; an IPv4 address in the first four bytes.
    pub ip: [u8; 16],
    /// Remote IP address, of the same version.
    pub remote_ip: [u8; 16],
    /// Local port; with [`RULE_PORT`], 0 asks the server to choose one.
    pub port: u16,
    /// Remote port.
    pub remote_port: u16,
    /// The number of the request among those of the session, from 1; 0 for none. If its predecessor
    /// carried the request out, a server that resumed the session answers with the endpoint that
    /// the request opened.
    pub sequence: u32,
}

/// [`Open::mac`] counts.
pub const RULE_MAC: u32 = 1;
/// [`Open::vlan`] counts.
pub const RULE_VLAN: u32 = 2;
/// [`Open::ethertype`] counts.
pub const RULE_ETHERTYPE: u32 = 4;
/// [`Open::ip`] counts.
pub const RULE_IP: u32 = 8;
/// [`Open::protocol`] counts.
pub const RULE_PROTOCOL: u32 = 16;
/// [`Open::port`] counts; without a protocol, for each protocol that has ports.
pub const RULE_PORT: u32 = 32;
/// [`Open::remote_ip`] counts.
pub const RULE_REMOTE_IP: u32 = 64;
/// [`Open::remote_port`] counts.
pub const RULE_REMOTE_PORT: u32 = 128;
/// Any MAC address, not only the session's own; needs the right to. Excludes [`RULE_MAC`].
pub const RULE_ANY_MAC: u32 = 256;
/// With a tag of any VLAN, or without. Excludes [`RULE_VLAN`].
pub const RULE_ANY_VLAN: u32 = 512;
/// All `RULE_…` bits.
pub const RULE_ALL: u32 = 1023;

/// Also receives broadcast and multicast that the rest of the rule matches.
pub const OPEN_GROUP: u32 = 1;
/// Takes large packets and partial checksums with their metadata.
pub const OPEN_OFFLOAD: u32 = 2;
/// Receives each packet of the device, for any destination; needs the right to.
pub const OPEN_PROMISCUOUS: u32 = 4;
/// Receives a copy of each packet, sent or received, and sends none; needs the right to.
pub const OPEN_CAPTURE: u32 = 8;
/// Asks the server for link addresses. The server answers the ARP requests and neighbour
/// solicitations that the endpoint sends; none of them reaches the device. For sessions that share
/// the host's addresses, at most one for each; excludes a flow rule.
pub const OPEN_NEIGHBOURS: u32 = 16;
/// Lies within the VLAN of the rule: the application receives and sends packets without the tag.
/// The server, or the device, removes and inserts it. Needs [`RULE_VLAN`].
pub const OPEN_WITHIN_VLAN: u32 = 32;
/// Takes and sends out-of-band messages ([`crate::oob`]). Needs [`RULE_PROTOCOL`] and
/// [`RULE_PORT`], without remote fields and VLAN.
pub const OPEN_OUT_OF_BAND: u32 = 64;
/// All `OPEN_…` bits.
pub const OPEN_ALL: u32 = 127;

/// The server opened an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opened {
    /// Its number in the session, which descriptors contain.
    pub endpoint: u32,
    /// Its local port, if its rule has one; else 0.
    pub port: u32,
}

/// Closes an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Close {
    /// Its number in the session.
    pub endpoint: u32,
}

/// Creates a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateMemory {
    /// Its length in bytes, which the server rounds up to pages.
    pub bytes: u64,
    /// A [`crate::apertures::Sharing`].
    pub sharing: u32,
    /// The number of the request, as [`Open::sequence`].
    pub sequence: u32,
}

/// The server created what the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Created {
    /// Its number in the session.
    pub number: u32,
    /// The key of an aperture; the session that set an imported tripwire; else 0.
    pub key: u32,
}

/// Exports a range of a memory as an aperture, for the connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Export {
    /// Where the range begins in the memory, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The endpoint's number in the session.
    pub endpoint: u32,
    /// The memory's number in the session.
    pub memory: u32,
    /// The rights of the importer: a [`crate::apertures::Access`].
    pub access: u32,
    /// The number of the request, as [`Open::sequence`].
    pub sequence: u32,
}

/// Imports an aperture of an endpoint's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Import {
    /// The endpoint's number in the session.
    pub endpoint: u32,
    /// The aperture's key.
    pub key: u32,
    /// The number of the request, as [`Open::sequence`].
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The server imported an aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Imported {
    /// Where the aperture begins in its memory, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A number of the memory that no other memory of this server has: apertures of one memory need
    /// one mapping.
    pub memory: u64,
    /// Its number in the session.
    pub number: u32,
    /// The importer's rights: a [`crate::apertures::Access`].
    pub access: u32,
    /// The memory's [`crate::apertures::Sharing`].
    pub sharing: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Sets a tripwire in a memory of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetTripwire {
    /// Where its place begins in the memory, in bytes.
    pub offset: u64,
    /// The length of its place, in bytes.
    pub len: u64,
    /// The memory's number in the session.
    pub memory: u32,
    /// The kinds of access of which it tells: a [`crate::apertures::Access`].
    pub access: u32,
    /// The number of the request, as [`Open::sequence`].
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Imports a tripwire in an aperture that the session has imported, so that the application can
/// have the server fire it after accesses of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ImportTripwire {
    /// The aperture's number in the session.
    pub aperture: u32,
    /// The tripwire's number in the session that set it.
    pub tripwire: u32,
    /// The number of the request, as [`Open::sequence`].
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Releases a memory, an aperture or a tripwire of the session. An aperture that the session
/// exported is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Release {
    /// [`RELEASE_MEMORY`], [`RELEASE_APERTURE`] or [`RELEASE_TRIPWIRE`].
    pub kind: u32,
    /// Its number in the session.
    pub number: u32,
}

/// The kind of a memory, of which no range is exported.
pub const RELEASE_MEMORY: u32 = 1;
/// The kind of an aperture.
pub const RELEASE_APERTURE: u32 = 2;
/// The kind of a tripwire.
pub const RELEASE_TRIPWIRE: u32 = 3;

/// Changes a setting of the device, or of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// A [`crate::settings::Setting`] by its number.
    pub setting: u32,
    /// The session of the endpoint; 0: the device.
    pub session: u32,
    /// The endpoint's number in the session; 0 for the device.
    pub endpoint: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The value.
    pub value: u64,
}

/// The position at which a page of a report begins; all zeros for the first page. The first page
/// also describes the device, and [`Cursor::END`] follows the last page. Endpoints of one session
/// may be on several pages.
///
/// A tool asks for each page, so the server keeps no state between two requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Cursor {
    /// The next connection, as the server counts them.
    pub connection: u64,
    /// The next endpoint of that connection.
    pub endpoint: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl Cursor {
    /// The cursor behind the last page.
    pub const END: Cursor = Cursor { connection: u64::MAX, endpoint: 0, reserved: 0 };
}

/// The most bytes of JSON on one page of a report.
pub const MAX_PAGE_BYTES: usize = MAX_BYTES - size_of::<Header>() - size_of::<Cursor>();

/// The reason why the server refused a request. This layout never changes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorBody {
    /// A [`Refusal`].
    pub code: u32,
    /// Number of bytes of the text that count.
    pub text_bytes: u32,
    /// One line of UTF-8 that names the thing and the remedy.
    pub text: [u8; 240],
}

impl std::fmt::Debug for ErrorBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorBody").field("code", &self.code).field("text", &self.text()).finish()
    }
}

impl ErrorBody {
    /// Creates a refusal with its text, truncated to at most 240 bytes.
    #[must_use]
    pub fn new(refusal: Refusal, text: &str) -> ErrorBody {
        let mut end = text.len().min(240);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut body = ErrorBody { code: refusal as u32, text_bytes: end as u32, text: [0; 240] };
        body.text[..end].copy_from_slice(&text.as_bytes()[..end]);
        body
    }

    /// Returns the text; bytes of a hostile peer that are not UTF-8 become replacement characters.
    #[must_use]
    pub fn text(&self) -> String {
        let len = (self.text_bytes as usize).min(self.text.len());
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }

    /// Returns the code's meaning.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        use Refusal::{Device, InUse, Limit, Malformed, NotFound, Permission, State, Version};
        [Malformed, Version, Permission, Limit, InUse, NotFound, State, Device]
            .into_iter()
            .find(|refusal| *refusal as u32 == self.code)
            .unwrap_or(Malformed)
    }
}

/// The reason why the server refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The message has no meaning, or a field is out of range.
    Malformed = 1,
    /// The peer speaks another version.
    Version = 2,
    /// The user lacks the permission.
    Permission = 3,
    /// A limit of sessions, endpoints, memory or addresses is reached.
    Limit = 4,
    /// The address, port or rule belongs to another session.
    InUse = 5,
    /// There is no such endpoint, queue pair or setting.
    NotFound = 6,
    /// The request does not fit the connection's current state.
    State = 7,
    /// The device failed.
    Device = 8,
}

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
            Message::Mapped | Message::Done => (&[], &[]),
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
            kind => Err(MessageError::Kind(kind)),
        };
        Ok((message?, header.version))
    }
}

/// Returns a name as messages carry it: truncated between characters, padded with zeros.
#[must_use]
pub fn fixed_name<const N: usize>(name: &str) -> [u8; N] {
    let mut end = name.len().min(N);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut fixed = [0; N];
    fixed[..end].copy_from_slice(&name.as_bytes()[..end]);
    fixed
}

/// Returns the name in a message that a hostile peer may have written: printable characters alone.
#[must_use]
pub fn shown_name(fixed: &[u8]) -> String {
    let end = fixed.iter().position(|byte| *byte == 0).unwrap_or(fixed.len());
    String::from_utf8_lossy(&fixed[..end])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
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
        fn any_bytes_decode_to_their_message_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..23u16, fix in any::<bool>()) {
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

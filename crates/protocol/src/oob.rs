//! Out-of-band messages: their layout, and the states of an endpoint's peer.
//!
//! An application writes an [`OobMessage`] into a transmit buffer, with the address of the endpoint
//! that it is for, and sends it with the flag `OUT_OF_BAND`. The server puts it into the queue of
//! that endpoint, with the address of the endpoint that sent it. Both are of [`MESSAGE_BYTES`]
//! bytes, of which [`PAYLOAD_BYTES`] are the application's.

use std::net::IpAddr;

use towpath_queue::descriptor::MESSAGE_BYTES;
use towpath_queue::oob::Message;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, transmute};

/// The most bytes of payload.
pub const PAYLOAD_BYTES: usize = 64;
/// The most bytes of payload of a request for a connection: as many as the private data of a
/// request of the RDMA IP CM service of InfiniBand leaves to its user (Linux, `struct cma_hdr` of
/// `drivers/infiniband/core/cma.c`: 92 bytes without its 36).
pub const REQUEST_BYTES: usize = 56;
/// The user of a sender on another host, which is not known here. The kernel gives no user this number.
pub const OTHER_HOST_UID: u32 = u32::MAX;

/// An out-of-band message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OobMessage {
    /// A [`Kind`].
    pub kind: u8,
    /// 4 or 6: the version of the address.
    pub ip_version: u8,
    /// The IP protocol of the port: 6 TCP, 17 UDP.
    pub protocol: u8,
    /// The bytes of payload, 0 to 64.
    pub len: u8,
    /// The port, in the machine's byte order.
    pub port: u16,
    /// Must be 0.
    pub reserved: u16,
    /// The IP address; an IPv4 address in the first four bytes.
    pub ip: [u8; 16],
    /// The sender's user, as the server knows it from the kernel; 0 from the application.
    pub uid: u32,
    /// The sender's session; 0 from the application.
    pub session: u32,
    /// Must be 0.
    pub reserved_too: [u8; 32],
    /// The payload, padded with zeros.
    pub payload: [u8; PAYLOAD_BYTES],
}

const _: () = assert!(size_of::<OobMessage>() == MESSAGE_BYTES as usize);
const _: () = assert!(size_of::<OobMessage>() == size_of::<Message>());

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Kind {
    /// A message.
    Plain = 1,
    /// Asks for a connection with the endpoint that sends it.
    Request = 2,
    /// Accepts a request: the endpoint that sends it is the other end of the connection.
    Accept = 3,
    /// Rejects a request.
    Reject = 4,
    /// Closes the connection of the endpoint that sends it, or takes its request back. Only to the
    /// server; its address does not count.
    Close = 5,
    /// The value of a request that wrote with one
    /// ([`crate::requests::RequestKind::WriteWithValue`]): 4 bytes, and the number of bytes
    /// written, 4 bytes. Only from the server.
    Value = 6,
}

impl Kind {
    /// Returns the kind of a number; `None` if there is no such kind.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::try_read_from_bytes(&[number]).ok()
    }

    /// Returns the most bytes of payload.
    #[must_use]
    pub fn most_bytes(self) -> usize {
        match self {
            Kind::Request => REQUEST_BYTES,
            Kind::Close => 0,
            Kind::Value => 8,
            _ => PAYLOAD_BYTES,
        }
    }
}

/// The address of an endpoint for out-of-band messages: the local side of its flow rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OobAddress {
    /// The IP address.
    pub ip: IpAddr,
    /// The IP protocol of the port: 6 TCP, 17 UDP.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for OobAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let socket = std::net::SocketAddr::new(self.ip, self.port);
        match self.protocol {
            6 => write!(f, "tcp:{socket}"),
            17 => write!(f, "udp:{socket}"),
            other => write!(f, "{other}:{socket}"),
        }
    }
}

impl OobMessage {
    /// Makes a message with an address. Returns `None` if the payload is too long for its kind.
    #[must_use]
    pub fn new(kind: Kind, address: OobAddress, payload: &[u8]) -> Option<OobMessage> {
        if payload.len() > kind.most_bytes() {
            return None;
        }
        let mut message = OobMessage {
            kind: kind as u8,
            ip_version: 0,
            protocol: address.protocol,
            len: payload.len() as u8,
            port: address.port,
            reserved: 0,
            ip: [0; 16],
            uid: 0,
            session: 0,
            reserved_too: [0; 32],
            payload: [0; PAYLOAD_BYTES],
        };
        message.payload[..payload.len()].copy_from_slice(payload);
        message.set_ip(address.ip);
        Some(message)
    }

    fn set_ip(&mut self, ip: IpAddr) {
        self.ip = [0; 16];
        match ip {
            IpAddr::V4(ip) => {
                self.ip_version = 4;
                self.ip[..4].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.ip_version = 6;
                self.ip = ip.octets();
            }
        }
    }

    /// Returns the message as words of a queue.
    #[must_use]
    pub fn to_words(self) -> Message {
        transmute!(self)
    }

    /// Returns the message that words of a queue hold.
    #[must_use]
    pub fn from_words(words: Message) -> OobMessage {
        transmute!(words)
    }

    /// Checks a message that a hostile peer may have written. Returns its kind and its address;
    /// `None` if it has no meaning.
    #[must_use]
    pub fn check(&self) -> Option<(Kind, OobAddress)> {
        let kind = Kind::from_number(self.kind)?;
        let is_padded = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if usize::from(self.len) > kind.most_bytes()
            || self.reserved != 0
            || !is_padded(&self.reserved_too)
            || !is_padded(&self.payload[usize::from(self.len)..])
        {
            return None;
        }
        let ip = match self.ip_version {
            4 if is_padded(&self.ip[4..]) => {
                let [a, b, c, d, ..] = self.ip;
                IpAddr::from([a, b, c, d])
            }
            6 => IpAddr::from(self.ip),
            _ => return None,
        };
        Some((kind, OobAddress { ip, protocol: self.protocol, port: self.port }))
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload[..usize::from(self.len).min(PAYLOAD_BYTES)]
    }

    /// Returns the message as the receiver gets it: with the sender's address instead of its own.
    #[must_use]
    pub fn from_sender(self, address: OobAddress, uid: u32, session: u32) -> OobMessage {
        let mut message =
            OobMessage { protocol: address.protocol, port: address.port, uid, session, ..self };
        message.set_ip(address.ip);
        message
    }
}

/// What an endpoint's peer does: the state word beside the queue, whose upper half counts the
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// There is no peer.
    None,
    /// A request or its acceptance was queued, and the peer or the server has yet to answer.
    Requested,
    /// The peer is there.
    Connected,
    /// The request was refused.
    Refused(Refused),
    /// The peer closed the connection, or its endpoint.
    Closed,
    /// The peer's session is over: its application closed it, or died. Or the peer's host does not
    /// answer any more.
    Gone,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The peer rejected the request.
    Rejected,
    /// No endpoint takes messages at the address, or it was closed before it answered. Another host is
    /// reached only by a server that was started with the setting rdma.
    NoEndpoint,
    /// The policy lets the two exchange no messages: on one host, the grants of both need
    /// `out-of-band = "all"`; for another host, that of the requester needs `rdma = true`, and its session
    /// an address of its own.
    Policy,
    /// The peer's queue is full, or has as many requests or messages of the sender as it may; or this
    /// server has as many connections with other hosts as it may.
    Full,
    /// The endpoint has a peer or names itself, or the requester does not wait any more.
    State,
    /// The address is one of another host, which does not answer.
    Unreachable,
    /// The other host's interface has a lower MTU than this one's, or this one's is too low for
    /// connections with other hosts.
    Mtu,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refused::Rejected => "the peer rejected the request",
            Refused::NoEndpoint => "no endpoint takes messages at the address, or it was closed; another host is reached only with --rdma, of the servers of both",
            Refused::Policy => "the policy lets the two exchange no messages; on one host both grants need out-of-band = \"all\", and for another host yours needs rdma = true, and the session an address of its own",
            Refused::Full => "the peer has no room for the request or the answer, or this server for further connections of your user with other hosts; close some, or try again",
            Refused::State => "the endpoint has a peer or names itself, or the requester does not wait any more",
            Refused::Unreachable => "the other host does not answer; check the address, and that its server runs with --rdma (or that it is another host of RoCEv2, UDP port 4791)",
            Refused::Mtu => "the other host takes only smaller packets, or this one's MTU is below 336; give the interfaces of all hosts the same MTU",
        })
    }
}

impl std::fmt::Display for PeerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PeerState::None => "not connected",
            PeerState::Requested => "waits for an answer",
            PeerState::Connected => "connected",
            PeerState::Closed => "the peer closed the connection",
            PeerState::Gone => "the peer's session is over, or its host does not answer",
            PeerState::Refused(why) => return write!(f, "refused: {why}"),
        })
    }
}

impl PeerState {
    /// Returns the number of the state.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            PeerState::None => 0,
            PeerState::Requested => 1,
            PeerState::Connected => 2,
            PeerState::Closed => 3,
            PeerState::Gone => 4,
            PeerState::Refused(Refused::Rejected) => 16,
            PeerState::Refused(Refused::NoEndpoint) => 17,
            PeerState::Refused(Refused::Policy) => 18,
            PeerState::Refused(Refused::Full) => 19,
            PeerState::Refused(Refused::State) => 20,
            PeerState::Refused(Refused::Unreachable) => 21,
            PeerState::Refused(Refused::Mtu) => 22,
        }
    }

    /// Returns the state of a number; `None` for one of a later version.
    #[must_use]
    pub fn from_number(number: u32) -> Option<PeerState> {
        PeerState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// All states.
    pub const ALL: [PeerState; 12] = [
        PeerState::None,
        PeerState::Requested,
        PeerState::Connected,
        PeerState::Closed,
        PeerState::Gone,
        PeerState::Refused(Refused::Rejected),
        PeerState::Refused(Refused::NoEndpoint),
        PeerState::Refused(Refused::Policy),
        PeerState::Refused(Refused::Full),
        PeerState::Refused(Refused::State),
        PeerState::Refused(Refused::Unreachable),
        PeerState::Refused(Refused::Mtu),
    ];
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(ip: &str) -> OobAddress {
        OobAddress { ip: ip.parse().unwrap(), protocol: 6, port: 7000 }
    }

    #[test]
    fn messages_there_and_back() {
        for to in [address("192.0.2.7"), address("2001:db8::7")] {
            for kind in [Kind::Plain, Kind::Request, Kind::Accept, Kind::Reject, Kind::Close] {
                let payload = vec![7; kind.most_bytes()];
                let message = OobMessage::new(kind, to, &payload).unwrap();
                let back = OobMessage::from_words(message.to_words());
                assert_eq!((back.check(), back.payload()), (Some((kind, to)), &payload[..]));
                assert_eq!(OobMessage::new(kind, to, &[0; PAYLOAD_BYTES + 1]), None);
                let from = address("192.0.2.9");
                let received = message.from_sender(from, 1000, 5);
                assert_eq!(received.check(), Some((kind, from)));
                assert_eq!((received.uid, received.session), (1000, 5));
                assert_eq!(received.to_words()[towpath_queue::oob::SENDER_WORD] >> 32, 5);
            }
        }
        assert_eq!(OobMessage::new(Kind::Request, address("::1"), &[0; REQUEST_BYTES + 1]), None);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let valid = OobMessage::new(Kind::Request, address("192.0.2.7"), b"hello").unwrap();
        let mut wrong = [valid; 9];
        wrong[0].kind = 0;
        wrong[1].kind = 7;
        wrong[2].ip_version = 5;
        wrong[3].len = REQUEST_BYTES as u8 + 1;
        wrong[4].reserved = 1;
        wrong[5].reserved_too[31] = 1;
        wrong[6].payload[5] = 1;
        wrong[7].ip[4] = 1;
        wrong[8].len = 255;
        for (number, one) in wrong.iter().enumerate() {
            assert_eq!(one.check(), None, "{number}");
            assert!(one.payload().len() <= PAYLOAD_BYTES);
        }
    }

    #[test]
    fn states_have_numbers() {
        for state in PeerState::ALL {
            assert_eq!(PeerState::from_number(state.number()), Some(state));
        }
        assert_eq!(PeerState::from_number(99), None);
    }

    #[test]
    fn addresses_are_shown_with_their_protocol() {
        assert_eq!(address("192.0.2.7").to_string(), "tcp:192.0.2.7:7000");
        let udp = OobAddress { protocol: 17, ..address("::1") };
        assert_eq!(udp.to_string(), "udp:[::1]:7000");
    }

    proptest! {
        #[test]
        fn any_words_are_checked(words: [u64; 16]) {
            let message = OobMessage::from_words(words);
            if let Some((kind, address)) = message.check() {
                let again = OobMessage::new(kind, address, message.payload()).unwrap();
                prop_assert_eq!(OobMessage { uid: message.uid, session: message.session, ..again }, message);
            }
        }
    }
}

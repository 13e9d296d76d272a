//! Control messages of a peer. Decoding never panics, and accepts exactly the messages of the table
//! of kinds and lengths. The session that an attach requests stays within its limits, and both
//! sides find the same memory in it. Through a socket, with any number of descriptors, the result
//! is the same and no descriptor is left open.
//!
//! The input is one byte, the number of descriptors that go with the packet, then the packet.
#![no_main]

use std::cell::OnceCell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use towpath_memory::{Region, own_words, peer_words};
use towpath_protocol::VERSION;
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::layout::{
    MAX_ENDPOINTS, MAX_MEMORY_BYTES, MAX_QUEUE_PAIRS, SessionShape, ShapeError,
};
use towpath_protocol::message::{
    ATTACH_OOB_SHIFT, Attach, MAGIC, MAX_BYTES, MAX_DESCRIPTORS, Message, MessageError, Refusal,
    shown_name,
};

/// The length of a message of each kind, in bytes with its header; 0: no such kind. This repeats
/// the module's table, so that a change of either is detected.
const LENGTHS: [usize; 22] =
    [0, 80, 96, 8, 72, 16, 12, 24, 24, 32, 8, 256, 24, 24, 16, 40, 24, 48, 40, 24, 16, 8];
const ERROR: u16 = 11;
/// The only kind whose message may be longer: a page of text follows.
const REPORTED: u16 = 8;

/// More descriptors than any message has.
const MOST_DESCRIPTORS: usize = MAX_DESCRIPTORS + 2;

/// The largest session whose memories the target creates and splits, in words.
const MOST_WORDS: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&number, bytes)) = input.split_first() else { return };
    let decoded = Message::decode(bytes);
    assert_eq!(decoded, expected(bytes, &decoded));
    if let Ok(message) = &decoded {
        there_and_back(message, bytes);
        match message {
            Message::Attach(attach) => attached(attach),
            Message::Attached(body) => printable(&body.device),
            Message::Error(body) => {
                assert!(body.text().chars().count() <= body.text.len());
                let code = body.refusal() as u32;
                assert!(code == body.code || code == Refusal::Malformed as u32);
            }
            _ => {}
        }
    }
    SOCKETS.with(|sockets| {
        let sockets = sockets.get_or_init(Sockets::new);
        sockets.carry(bytes, usize::from(number) % (MOST_DESCRIPTORS + 1), &decoded);
    });
});

/// Returns the expected result; the message itself is that of `decoded`.
fn expected(
    bytes: &[u8],
    decoded: &Result<Message, MessageError>,
) -> Result<Message, MessageError> {
    let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    if bytes.len() < 8 || bytes[..4] != MAGIC.to_ne_bytes() {
        return Err(MessageError::Magic);
    }
    let (version, kind, len) = (number(4), number(6), bytes.len());
    if version != VERSION && kind != ERROR {
        return Err(MessageError::Version(version));
    }
    match LENGTHS.get(usize::from(kind)) {
        None | Some(0) => Err(MessageError::Kind(kind)),
        Some(right) if *right != len && (kind != REPORTED || *right > len) => {
            Err(MessageError::Length { kind, len })
        }
        Some(_) => {
            assert!(decoded.is_ok(), "{decoded:?}");
            decoded.clone()
        }
    }
}

fn there_and_back(message: &Message, bytes: &[u8]) {
    let again = message.encode();
    let again = again.as_slice();
    // Only the version may differ: a refusal is decoded in any version.
    assert_eq!((&again[..4], &again[6..]), (&bytes[..4], &bytes[6..]));
    assert_eq!(again[4..6], VERSION.to_ne_bytes());
    assert_eq!(Message::decode(again).as_ref(), Ok(message));
}

fn printable(name: &[u8]) {
    assert!(!shown_name(name).chars().any(char::is_control));
}

/// Checks a session that an application requests.
fn attached(attach: &Attach) {
    printable(&attach.name);
    let shape = SessionShape::new(
        attach.queue_pairs,
        attach.endpoints,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_buffer_bytes,
        attach.receive_buffer_bytes,
    )
    .and_then(|shape| shape.with_oob(attach.flags >> ATTACH_OOB_SHIFT))
    .and_then(|shape| shape.with_apertures(attach.apertures, attach.tripwires));
    let sets_fit = (1..=MAX_QUEUE_PAIRS).contains(&attach.queue_pairs);
    let endpoints_fit = (1..=MAX_ENDPOINTS).contains(&attach.endpoints);
    let shape = match shape {
        Ok(shape) => shape,
        Err(error) => {
            match error {
                ShapeError::QueuePairs(sets) => {
                    assert_eq!((sets, sets_fit), (attach.queue_pairs, false))
                }
                ShapeError::Endpoints(all) => {
                    assert_eq!((all, endpoints_fit), (attach.endpoints, false));
                }
                ShapeError::Memory(bytes) => assert!(bytes > MAX_MEMORY_BYTES),
                ShapeError::Oob(slots) => assert_eq!(slots, attach.flags >> ATTACH_OOB_SHIFT),
                ShapeError::Apertures(apertures, tripwires) => {
                    assert_eq!((apertures, tripwires), (attach.apertures, attach.tripwires));
                }
                ShapeError::Lanes(lanes) => panic!("a message names no lanes, and has {lanes}"),
                ShapeError::Queues(..) | ShapeError::Buffers(..) => {}
            }
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(sets_fit && endpoints_fit);
    for (pool, slots, data_bytes) in [
        (&shape.transmit_pool, attach.transmit_slots, attach.transmit_buffer_bytes),
        (&shape.receive_pool, attach.receive_slots, attach.receive_buffer_bytes),
    ] {
        assert!(slots.is_power_of_two());
        assert_eq!(u64::from(pool.buffers()), u64::from(slots) * u64::from(attach.queue_pairs));
        assert!(pool.data_bytes() >= data_bytes);
        assert!(pool.pool_bytes() <= MAX_MEMORY_BYTES);
        assert!(pool.buffer_offset(pool.buffers() - 1) < pool.pool_bytes());
    }
    let words = [shape.server_words(), shape.application_words(), shape.ledger_words()];
    assert!(words[..2].iter().all(|words| words * 8 <= MAX_MEMORY_BYTES));
    // One bit per buffer of each pool and per transmit slot, and partly used cache lines.
    let buffers =
        shape.transmit_pool.buffers() as usize * 2 + shape.receive_pool.buffers() as usize;
    // With out-of-band messages, a word for each queue pair and endpoint, and two lines.
    let oob = shape.oob().map_or(0, |_| shape.queue_pairs as usize + shape.endpoints as usize + 32);
    // With apertures, a word for each queue pair, and a line.
    let requests = if shape.apertures() > 0 { shape.queue_pairs as usize + 16 } else { 0 };
    assert!(words[2] <= buffers / 64 + 64 * (shape.queue_pairs as usize + 2) + oob + requests);
    if words.iter().sum::<usize>() <= MOST_WORDS {
        taken_apart(&shape);
    }
}

/// Checks that both sides find the same parts in the session's memories: one side reads the other's
/// writes at the end of the last part.
fn taken_apart(shape: &SessionShape) {
    let sets = shape.queue_pairs as usize;
    let server = Region::private(shape.server_words() * 8).expect("memory");
    let peer = shape.server_peer(&peer_words(server.mapping()));
    let mut own = shape.server_own(own_words(server));
    let last = shape.queues.server_words() - 1;
    own.queue_pairs[sets - 1].store(last, 1);
    own.header.store(0, 2);
    if let (Some(own), Some(peer)) = (own.oob.last_mut(), peer.oob.last()) {
        own.store(own.len() - 1, 5);
        assert_eq!(peer.fetch(peer.len() - 1), 5);
    }
    assert_eq!((peer.queue_pairs[sets - 1].fetch(last), peer.header.fetch(0)), (1, 2));
    assert_eq!((own.queue_pairs.len(), peer.queue_pairs.len()), (sets, sets));

    let application = Region::private(shape.application_words() * 8).expect("memory");
    let peer = shape.application_peer(&peer_words(application.mapping()));
    let mut own = shape.application_own(own_words(application));
    let last = shape.queues.application_words() - 1;
    own.queue_pairs[sets - 1].store(last, 3);
    own.header.store(0, 4);
    assert_eq!((peer.queue_pairs[sets - 1].fetch(last), peer.header.fetch(0)), (3, 4));
    assert_eq!((own.queue_pairs.len(), peer.queue_pairs.len()), (sets, sets));

    let ledger = Region::private(shape.ledger_words() * 8).expect("memory");
    assert_eq!(shape.ledger(own_words(ledger)).queue_pairs.len(), sets);
}

/// A peer's end of a socket pair, which may send anything, and ours.
struct Sockets {
    peer: OwnedFd,
    ours: Channel,
    reply: Channel,
}

thread_local! {
    static SOCKETS: OnceCell<Sockets> = const { OnceCell::new() };
}

impl Sockets {
    fn new() -> Sockets {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (peer, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        let reply = Channel::new(peer.try_clone().expect("a descriptor"));
        Sockets { peer, ours: Channel::new(ours), reply }
    }

    fn carry(&self, bytes: &[u8], number: usize, decoded: &Result<Message, MessageError>) {
        let lowest = self.lowest_free();
        let descriptors: [BorrowedFd<'_>; MOST_DESCRIPTORS] = [self.peer.as_fd(); _];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if number > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors[..number])));
        }
        sendmsg(&self.peer, &[IoSlice::new(bytes)], &mut control, SendFlags::empty())
            .expect("the queue is empty");
        match self.ours.receive() {
            // A closed connection looks like an empty packet, so an empty packet means the end.
            Ok(Incoming::End) => assert!(bytes.is_empty()),
            Ok(Incoming::Nothing) => panic!("a packet was sent"),
            Ok(Incoming::Message(message, came)) => {
                assert_eq!((Ok(&message), came.len()), (decoded.as_ref(), number));
                drop(came);
                self.ours.send(&message, &descriptors[..number]).expect("the queue is empty");
                let Ok(Incoming::Message(again, came)) = self.reply.receive() else {
                    panic!("{message:?} was not decoded");
                };
                assert_eq!((again, came.len()), (message, number));
            }
            Err(ChannelError::TooLong) => {
                assert!(bytes.len() > MAX_BYTES || number > MAX_DESCRIPTORS);
            }
            Err(ChannelError::Message(error)) => {
                assert!(bytes.len() <= MAX_BYTES && number <= MAX_DESCRIPTORS);
                assert_eq!(decoded.as_ref(), Err(&error));
            }
            Err(ChannelError::Socket(error)) => panic!("{error}"),
        }
        // Nothing is left that could be mistaken for the next message.
        assert!(matches!(self.ours.receive(), Ok(Incoming::Nothing)));
        assert_eq!(self.lowest_free(), lowest, "a descriptor was left open");
    }

    /// Returns the number that the next descriptor will have.
    fn lowest_free(&self) -> i32 {
        self.peer.try_clone().expect("a descriptor").as_raw_fd()
    }
}

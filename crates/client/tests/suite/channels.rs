//! Channels between two sessions of a server in this process: messages, streams, waits, and peers
//! that end or break the protocol.

use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::connections::{PATIENCE, PORT, World, becomes, connect, next, open, options, world};
use towpath_client::{
    Access, Channel, ChannelError, ChannelOffer, Endpoint, OobAddress, OpenChannelError, OpenError,
    Options, PeerState, Refusal, Request, Session, Sharing, Violation, WaitStrategy,
};

/// Two sessions, each with an endpoint, connected with each other.
struct Pair {
    world: World,
    one: Session,
    near: Endpoint,
    address: OobAddress,
    other: Session,
    far: Endpoint,
}

fn pair_with(options: &Options) -> Pair {
    let world = world(1);
    let mut one = world.attach_with(&Options { name: "one".into(), ..options.clone() });
    let mut other = world.attach_with(&Options { name: "other".into(), ..options.clone() });
    let (near, own) = open(&mut one, PORT);
    let (listener, address) = open(&mut other, PORT);
    let far = connect((&mut one, near, own), (&mut other, listener, address));
    Pair { world, one, near, address: own, other, far }
}

fn with_channels() -> Options {
    Options { apertures: 16, tripwires: 16, ..options("") }
}

fn pair() -> Pair {
    pair_with(&with_channels())
}

impl Pair {
    /// Opens a channel, each side with a ring of so many bytes.
    fn channel(&mut self, rings: [usize; 2]) -> (Channel, Channel) {
        let Pair { one, near, other, far, .. } = self;
        thread::scope(|scope| {
            let opened = scope.spawn(|| Channel::open(other, *far, rings[1], Some(PATIENCE)));
            let channel = Channel::open(one, *near, rings[0], Some(PATIENCE)).unwrap();
            (channel, opened.join().unwrap().unwrap())
        })
    }
}

fn received(channel: &mut Channel, session: &mut Session) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        if channel.receive_into(&mut message).unwrap() {
            return message;
        }
        assert!(channel.wait(session, Some(PATIENCE)).unwrap(), "no message");
    }
}

fn send(channel: &mut Channel, session: &mut Session, message: &[u8]) {
    while let Err(error) = channel.send(message) {
        assert_eq!(error, ChannelError::Full);
        assert!(channel.wait_for_room(session, Some(PATIENCE)).unwrap(), "no room");
    }
}

/// The bytes of the message with a number: each differs from those of its neighbours.
fn message(number: usize, max: usize) -> Vec<u8> {
    let len = number * 37 % (max + 1);
    (0..len).map(|place| (number * 7 + place * 13) as u8).collect()
}

/// Both sides send and receive all lengths, with every strategy.
#[test]
fn messages_arrive_whole_and_in_order() {
    for wait_strategy in [
        WaitStrategy::Block,
        WaitStrategy::Poll,
        WaitStrategy::SpinFor(Duration::from_micros(20)),
        WaitStrategy::TimerDriven(1000),
    ] {
        let count = if wait_strategy == WaitStrategy::TimerDriven(1000) { 100 } else { 3000 };
        let mut pair = pair_with(&Options { wait_strategy, ..with_channels() });
        let (mut one, mut other) = pair.channel([1024, 4096]);
        assert_eq!((one.max_message(), other.max_message()), (4080, 1008));
        let session = &mut pair.other;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    assert_eq!(received(&mut other, session), message(number, 4080));
                    send(&mut other, session, &message(number, 1008));
                }
                other.flush(session).unwrap();
            });
            for number in 0..count {
                send(&mut one, &mut pair.one, &message(number, 4080));
                assert_eq!(received(&mut one, &mut pair.one), message(number, 1008));
            }
        });
    }
}

/// A side that only sends waits for room, and one that only receives waits for messages.
#[test]
fn a_stream_of_messages_waits_for_room() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([64, 256]);
    let session = &mut pair.other;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..20_000 {
                send(&mut other, session, &message(number, 48));
            }
            other.flush(session).unwrap();
        });
        for number in 0..20_000 {
            assert_eq!(received(&mut one, &mut pair.one), message(number, 48));
        }
    });
}

#[test]
fn messages_can_be_written_and_read_in_place() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    // Without `send`, nothing is sent.
    one.reserve(10).unwrap().write(0, b"x").unwrap();
    let mut reserved = one.reserve(10).unwrap();
    reserved.write(5, b"world").unwrap();
    reserved.write(0, b"hello").unwrap();
    assert!(reserved.write(6, b"world").is_err() && reserved.write(usize::MAX, b"x").is_err());
    assert!(reserved.len() == 10 && !reserved.is_empty());
    reserved.send();
    one.flush(&mut pair.one).unwrap();
    assert_eq!(one.send(&[0; 241]), Err(ChannelError::TooLong { len: 241, max: 240 }));
    let got = other.receive().unwrap().unwrap();
    let mut bytes = [0; 7];
    got.read(3, &mut bytes).unwrap();
    assert_eq!((got.len(), &bytes), (10, b"loworld"));
    assert!(got.read(4, &mut bytes).is_err() && !got.is_empty());
    drop(got);
    assert!(other.receive().unwrap().is_none());
}

/// As long as both sides are awake, neither notifies the engine, and neither sleeps.
#[test]
fn without_sleep_there_are_no_notifications() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([1 << 16, 1 << 16]);
    let before = [pair.one.statistics(), pair.other.statistics()];
    let receive = |channel: &mut Channel, session: &mut Session, expected: &[u8]| {
        assert_eq!(channel.receive().unwrap().unwrap().to_vec(), expected);
        assert!(channel.receive().unwrap().is_none());
        channel.flush(session).unwrap();
    };
    for number in 0..10_000 {
        let message = message(number, 500);
        one.send(&message).unwrap();
        one.flush(&mut pair.one).unwrap();
        receive(&mut other, &mut pair.other, &message);
        other.send(&message).unwrap();
        other.flush(&mut pair.other).unwrap();
        receive(&mut one, &mut pair.one, &message);
    }
    assert_eq!([pair.one.statistics(), pair.other.statistics()], before);
}

/// A wait of a channel sleeps although the session has other news, which the next wait tells.
#[test]
fn other_news_is_left_for_another_wait() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    while pair.one.wait(Some(Duration::ZERO)).unwrap() {
        let _ = pair.one.oob().ready().unwrap();
    }
    pair.other.oob().send(pair.far, pair.address, b"news").unwrap();
    pair.other.sender().flush().unwrap();
    let sleeps = pair.one.statistics().sleeps;
    assert!(!one.wait(&mut pair.one, Some(Duration::from_millis(50))).unwrap());
    // It sleeps once, and once more when the event of the message has woken it.
    assert!(pair.one.statistics().sleeps - sleeps <= 3);
    assert!(pair.one.wait(Some(PATIENCE)).unwrap());
    assert_eq!(pair.one.oob().ready().unwrap(), Some(pair.near.id()));
    assert_eq!(next(&mut pair.one, pair.near).payload(), b"news");
    let session = &mut pair.other;
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            other.send(b"message").unwrap();
            other.flush(session).unwrap();
        });
        assert!(one.wait(&mut pair.one, Some(PATIENCE)).unwrap());
    });
    assert_eq!(one.receive().unwrap().unwrap().to_vec(), b"message");
}

/// One wait serves many channels, which share a memory and a connection.
#[test]
fn a_session_waits_for_many_channels() {
    const COUNT: usize = 40;
    let mut pair = pair_with(&Options { apertures: 80, tripwires: 80, ..with_channels() });
    let each = ChannelOffer::memory_bytes(256).unwrap();
    let ends = [(&mut pair.one, pair.near), (&mut pair.other, pair.far)];
    let [mut one, mut other] = thread::scope(|scope| {
        let open_all = |(session, endpoint): (&mut Session, Endpoint)| {
            let memory = session.memories().create(COUNT * each, Sharing::MapWrite).unwrap();
            let all = (0..COUNT).map(|number| {
                let place = (&memory, number * each);
                let mut offer = ChannelOffer::new(session, endpoint, place, 256).unwrap();
                session.sender().flush().unwrap();
                let message = next(session, endpoint);
                offer.complete(session, &message).unwrap().unwrap()
            });
            all.collect::<Vec<Channel>>()
        };
        let both = ends.map(|end| scope.spawn(move || open_all(end)));
        both.map(|one| one.join().unwrap())
    });
    let numbers: HashMap<_, _> =
        one.iter().enumerate().map(|(number, channel)| (channel.tripwire(), number)).collect();
    for sender in [3, 39, 0, 3, 20] {
        for channel in &mut one {
            assert!(!channel.arm(&mut pair.one).unwrap());
        }
        other[sender].send(&[sender as u8]).unwrap();
        other[sender].flush(&mut pair.other).unwrap();
        let until = Instant::now() + PATIENCE;
        let fired = loop {
            assert!(Instant::now() < until);
            pair.one.wait(Some(PATIENCE)).unwrap();
            let _ = pair.one.oob().ready().unwrap();
            if let Some(fired) = pair.one.tripwires().ready().unwrap() {
                break fired;
            }
        };
        assert_eq!(numbers[&fired], sender);
        assert_eq!(pair.one.tripwires().ready().unwrap(), None);
        let message = one[sender].receive().unwrap().unwrap().to_vec();
        assert_eq!(message, [sender as u8]);
    }
    // News that is there already is told at once.
    other[7].send(b"news").unwrap();
    other[7].flush(&mut pair.other).unwrap();
    assert!(one[7].arm(&mut pair.one).unwrap());
}

#[test]
fn streams_carry_bytes_both_ways() {
    const BYTES: usize = 3 << 20;
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([4096, 1 << 16]);
    let byte = |place: usize| (place * 31 + place / 4096) as u8;
    let session = &mut pair.other;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Returns what it reads.
            let mut stream = other.stream(session, Some(PATIENCE));
            let mut bytes = [0; 5000];
            loop {
                let count = stream.read(&mut bytes).unwrap();
                if count == 0 {
                    break;
                }
                stream.write_all(&bytes[..count]).unwrap();
            }
            while let Err(ChannelError::Full) = other.finish() {
                other.wait(session, Some(PATIENCE)).unwrap();
            }
            other.flush(session).unwrap();
        });
        let (mut sent, mut returned) = (0, 0);
        while returned < BYTES {
            // With more on the way, both sides could wait for room.
            if sent < BYTES && sent - returned < 1 << 15 {
                let mut stream = one.stream(&mut pair.one, Some(PATIENCE));
                let bytes: Vec<u8> = (sent..BYTES.min(sent + 3000)).map(byte).collect();
                let (first, rest) = bytes.split_at(bytes.len() / 2);
                sent += stream.write_vectored(&[IoSlice::new(first), IoSlice::new(rest)]).unwrap();
                if sent == BYTES {
                    while let Err(ChannelError::Full) = one.finish() {
                        one.wait(&mut pair.one, Some(PATIENCE)).unwrap();
                    }
                    assert_eq!(one.send(b"more"), Err(ChannelError::Finished));
                    one.flush(&mut pair.one).unwrap();
                }
            }
            let mut stream = one.stream(&mut pair.one, Some(PATIENCE));
            let mut bytes = [0; 2000];
            let count = stream.read(&mut bytes).unwrap();
            for got in &bytes[..count] {
                assert_eq!(*got, byte(returned), "byte {returned}");
                returned += 1;
            }
        }
        let mut stream = one.stream(&mut pair.one, Some(PATIENCE));
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    });
}

/// What a stream did not take of a message is the next message.
#[test]
fn a_stream_takes_part_of_a_message() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    other.send(b"").unwrap();
    other.send(b"hello world").unwrap();
    other.flush(&mut pair.other).unwrap();
    let mut stream = one.stream(&mut pair.one, Some(Duration::from_millis(20)));
    let mut bytes = [0; 6];
    assert_eq!(stream.read(&mut bytes).unwrap(), 6);
    assert_eq!(&bytes, b"hello ");
    let rest = one.receive().unwrap().unwrap();
    let mut last = [0];
    rest.read(4, &mut last).unwrap();
    assert_eq!((rest.len(), rest.to_vec().as_slice(), &last), (5, &b"world"[..], b"d"));
    drop(rest);
    let mut stream = one.stream(&mut pair.one, Some(Duration::from_millis(20)));
    assert_eq!(stream.read(&mut bytes).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(stream.read(&mut []).unwrap(), 0);
    assert_eq!(stream.write(&[]).unwrap(), 0);
    stream.write_all(&[1; 200]).unwrap();
    assert_eq!(stream.write_all(&[1; 200]).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn messages_before_a_close_arrive_and_then_the_close() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    other.send(b"last").unwrap();
    other.flush(&mut pair.other).unwrap();
    other.close(&mut pair.other).unwrap();
    assert_eq!(received(&mut one, &mut pair.one), b"last");
    assert!(one.wait(&mut pair.one, Some(PATIENCE)).unwrap());
    assert_eq!(one.receive().unwrap_err(), ChannelError::Closed);
    assert_eq!(one.send(b"x"), Err(ChannelError::Closed));
    let mut stream = one.stream(&mut pair.one, Some(PATIENCE));
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(stream.write(&[0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    one.close(&mut pair.one).unwrap();
    // All of it is free again: far more channels than a session has room for.
    for _ in 0..40 {
        let (one, other) = pair.channel([64, 64]);
        one.close(&mut pair.one).unwrap();
        other.close(&mut pair.other).unwrap();
    }
}

/// A side that sleeps learns that the other one closes the channel: one that waits for messages, one
/// that waits for room, and one that waits for any news.
#[test]
fn a_close_ends_a_wait() {
    for (waits_for_room, waits_for_all) in [(false, false), (true, false), (false, true)] {
        let mut pair = pair();
        let (mut one, other) = pair.channel([64, 64]);
        while waits_for_room && one.send(&[0; 40]).is_ok() {}
        let session = &mut pair.other;
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                other.close(session).unwrap();
            });
            let session = &mut pair.one;
            while session.wait(Some(Duration::ZERO)).unwrap()
                || session.oob().ready().unwrap().is_some()
            {}
            let woken = if waits_for_all {
                assert!(!one.arm(session).unwrap());
                session.wait(Some(PATIENCE)).unwrap()
            } else if waits_for_room {
                one.wait_for_room(session, Some(PATIENCE)).unwrap()
            } else {
                one.wait(session, Some(PATIENCE)).unwrap()
            };
            assert!(woken, "nothing ended the wait");
            let endpoint = if waits_for_all { Some(pair.near.id()) } else { None };
            assert!(!waits_for_all || session.oob().ready().unwrap() == endpoint);
        });
        assert_eq!(one.receive().unwrap_err(), ChannelError::Closed);
    }
}

#[test]
fn the_end_of_the_peer_ends_a_wait() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    other.send(b"last").unwrap();
    other.flush(&mut pair.other).unwrap();
    assert_eq!(received(&mut one, &mut pair.one), b"last");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            drop(pair.other);
        });
        assert!(one.wait(&mut pair.one, Some(PATIENCE)).unwrap());
    });
    assert_eq!(one.receive().unwrap_err(), ChannelError::Gone);
    assert_eq!(one.send(b"x"), Err(ChannelError::Gone));
    one.close(&mut pair.one).unwrap();
}

#[test]
fn a_disconnected_endpoint_closes_its_channels() {
    let mut pair = pair();
    let (mut one, _other) = pair.channel([256, 256]);
    pair.other.oob().disconnect(pair.far).unwrap();
    pair.other.sender().flush().unwrap();
    assert!(one.wait(&mut pair.one, Some(PATIENCE)).unwrap());
    assert_eq!(one.receive().unwrap_err(), ChannelError::Closed);
}

/// A side that waits for room waits for nothing else, and for no longer than it says.
#[test]
fn a_wait_for_room_ends_by_its_time() {
    let mut pair = pair();
    let (mut one, mut other) = pair.channel([256, 256]);
    other.send(b"news").unwrap();
    other.flush(&mut pair.other).unwrap();
    while one.send(&[0; 40]).is_ok() || one.send(&[]).is_ok() {}
    let soon = Some(Duration::from_millis(20));
    assert!(one.wait(&mut pair.one, soon).unwrap(), "there is a message");
    assert!(!one.wait_for_room(&mut pair.one, soon).unwrap());
    let mut stream = one.stream(&mut pair.one, soon);
    assert_eq!(stream.write(&[0; 200]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(stream.finish().unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 4);
    // The room for which nothing waits any more is no news of a reader.
    while other.receive().unwrap().is_some() {}
    other.flush(&mut pair.other).unwrap();
    let mut stream = one.stream(&mut pair.one, soon);
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(one.wait(&mut pair.one, soon).unwrap(), "the room, once");
    assert!(!one.wait(&mut pair.one, soon).unwrap());
}

/// A place that a new channel has is not written by the old one's peer.
#[test]
fn a_closed_channel_leaves_its_place_alone() {
    let mut pair = pair();
    let Pair { one, near, other, far, .. } = &mut pair;
    let memories = [&mut *one, &mut *other]
        .map(|session| session.memories().create(4096, Sharing::MapWrite).unwrap());
    let mut header = [1; 8];
    let mut open = |place: usize| {
        let mut first = ChannelOffer::new(one, *near, (&memories[0], place), 256).unwrap();
        let mut second = ChannelOffer::new(other, *far, (&memories[1], place), 256).unwrap();
        one.sender().flush().unwrap();
        other.sender().flush().unwrap();
        let offered = [next(one, *near), next(other, *far)];
        let first = first.complete(one, &offered[0]).unwrap().unwrap();
        (first, second.complete(other, &offered[1]).unwrap().unwrap())
    };
    let (mut old, mut old_peer) = open(0);
    old.send(b"message").unwrap();
    old_peer.send(b"late").unwrap();
    let (third, mut third_peer) = open(512);
    third_peer.send(b"late").unwrap();
    third.close(&mut pair.one).unwrap();
    old.close(&mut pair.one).unwrap();
    let Pair { one, near, .. } = &mut pair;
    let mut offer = ChannelOffer::new(one, *near, (&memories[0], 0), 256).unwrap();
    one.sender().flush().unwrap();
    let session = &mut pair.other;
    // A flush shows nothing, also of a side that has not received the end.
    third_peer.flush(session).unwrap();
    memories[0].read(512 + 256, &mut header).unwrap();
    assert_eq!(header, [0; 8]);
    assert_eq!(old_peer.receive().unwrap().unwrap().to_vec(), b"message");
    assert_eq!(old_peer.receive().unwrap_err(), ChannelError::Closed);
    old_peer.flush(session).unwrap();
    old_peer.close(session).unwrap();
    let mut peers = ChannelOffer::new(session, pair.far, (&memories[1], 1024), 256).unwrap();
    session.sender().flush().unwrap();
    let message = next(session, pair.far);
    let mut new_peer = peers.complete(session, &message).unwrap().unwrap();
    let message = next(&mut pair.one, pair.near);
    let mut new = offer.complete(&mut pair.one, &message).unwrap().unwrap();
    assert!(new.receive().unwrap().is_none());
    for number in 0..100 {
        send(&mut new, &mut pair.one, &[number]);
        new.flush(&mut pair.one).unwrap();
        assert_eq!(new_peer.receive().unwrap().unwrap().to_vec(), [number]);
        assert!(new_peer.receive().unwrap().is_none());
    }
}

/// A peer that writes into the ring what no sender writes.
#[test]
fn a_broken_ring_is_a_named_error() {
    for (offset, word, sends, violation) in [
        (256, 1 << 32 | 500, false, Violation::Range),
        (256, 77 << 32, false, Violation::Flags),
        (0, 1000, true, Violation::Index),
    ] {
        let mut pair = pair();
        let Pair { one, near, other, far, .. } = &mut pair;
        let memory = one.memories().create(4096, Sharing::MapWrite).unwrap();
        let mut offer = ChannelOffer::new(one, *near, (&memory, 1024), 256).unwrap();
        one.sender().flush().unwrap();
        let key = next(other, *far).payload()[4..8].try_into().map(u32::from_le_bytes).unwrap();
        let theirs = other.memories().import(*far, towpath_client::ApertureKey(key)).unwrap();
        let own = other.memories().create(4096, Sharing::MapWrite).unwrap();
        let _offer = ChannelOffer::new(other, *far, (&own, 0), 64).unwrap();
        other.sender().flush().unwrap();
        let message = next(one, *near);
        let mut channel = offer.complete(one, &message).unwrap().unwrap();
        assert!(channel.receive().unwrap().is_none());
        theirs.store(offset, word).unwrap();
        let error = if sends {
            channel.send(&[0; 32]).unwrap();
            channel.send(&[0; 32]).unwrap_err()
        } else {
            assert!(channel.wait(one, Some(PATIENCE)).unwrap());
            channel.receive().unwrap_err()
        };
        assert_eq!(error, ChannelError::Violated(violation));
        theirs.store(offset, 0).unwrap();
        assert_eq!(channel.receive().unwrap_err(), error, "for good");
        assert_eq!(channel.send(b"").unwrap_err(), error, "for good");
        channel.close(one).unwrap();
    }
}

/// What a peer writes behind its end is no news.
#[test]
fn nothing_comes_after_the_end() {
    let mut pair = pair();
    let Pair { one, near, other, far, .. } = &mut pair;
    let memory = one.memories().create(4096, Sharing::MapWrite).unwrap();
    let mut offer = ChannelOffer::new(one, *near, (&memory, 0), 256).unwrap();
    one.sender().flush().unwrap();
    let key = next(other, *far).payload()[4..8].try_into().map(u32::from_le_bytes).unwrap();
    let theirs = other.memories().import(*far, towpath_client::ApertureKey(key)).unwrap();
    let own = other.memories().create(4096, Sharing::MapWrite).unwrap();
    let _offer = ChannelOffer::new(other, *far, (&own, 0), 64).unwrap();
    other.sender().flush().unwrap();
    let message = next(one, *near);
    let mut channel = offer.complete(one, &message).unwrap().unwrap();
    theirs.store(256, 2 << 32).unwrap();
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Finished);
    theirs.store(264, 1 << 32).unwrap();
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Finished);
    assert!(!channel.wait(one, Some(Duration::from_millis(20))).unwrap(), "a message");
}

/// Messages that are no offers, or not by the peer, complete nothing.
#[test]
fn only_the_peers_offer_completes_a_channel() {
    let mut pair = pair();
    let mut stranger = pair.world.attach_with(&with_channels());
    let (from, _) = open(&mut stranger, 99);
    let Pair { one, near, address, other, far, .. } = &mut pair;
    let memory = one.memories().create(4096, Sharing::MapWrite).unwrap();
    let mut offer = ChannelOffer::new(one, *near, (&memory, 0), 256).unwrap();
    for message in [&b"ring"[..], b"ring1234567", b"ring12345678", b"ring123456789", b""] {
        stranger.oob().send(from, *address, message).unwrap();
        stranger.sender().flush().unwrap();
        let message = next(one, *near);
        assert!(offer.complete(one, &message).unwrap().is_none());
    }
    // Memory without a ring, and a ring that is not aligned.
    let own = other.memories().create(4096, Sharing::MapWrite).unwrap();
    let requests = other.memories().create(4096, Sharing::Requests).unwrap();
    for (memory, range) in [(&own, 0..300), (&own, 1004..1004 + 512), (&requests, 0..512)] {
        let tripwire = other.memories().set_tripwire(memory, range.clone(), Access::Write).unwrap();
        let export = other.memories().export(*far, memory, range, Access::Write).unwrap();
        let numbers = [export.key().0, tripwire.number()].map(u32::to_le_bytes);
        let message = [*b"ring", numbers[0], numbers[1]];
        other.requests().queue(*far, &Request::send(message.as_flattened())).unwrap();
        other.sender().flush().unwrap();
        let message = next(one, *near);
        let outcome = offer.complete(one, &message);
        assert!(matches!(outcome, Err(OpenChannelError::Offer)), "{outcome:?}");
    }
    // A ring without a tripwire.
    let export = other.memories().export(*far, &own, 2048..2048 + 512, Access::Write).unwrap();
    let numbers = [export.key().0, 15].map(u32::to_le_bytes);
    let message = [*b"ring", numbers[0], numbers[1]];
    other.requests().queue(*far, &Request::send(message.as_flattened())).unwrap();
    other.sender().flush().unwrap();
    let message = next(one, *near);
    let outcome = offer.complete(one, &message);
    let Err(OpenChannelError::Open(OpenError::Refused { refusal, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(refusal, Refusal::NotFound);
    // The offer is as before.
    let _peers = ChannelOffer::new(other, *far, (&own, 3072), 64).unwrap();
    other.sender().flush().unwrap();
    let message = next(one, *near);
    let channel = offer.complete(one, &message).unwrap().unwrap();
    assert!(offer.complete(one, &message).unwrap().is_none(), "once");
    offer.withdraw(one).unwrap();
    channel.close(one).unwrap();
    one.memories().release(&memory).unwrap();
}

#[test]
fn a_channel_that_cannot_be_opened_leaves_nothing() {
    let mut pair = pair();
    let Pair { one, near, other, far, .. } = &mut pair;
    let soon = Some(Duration::from_millis(20));
    let opened = Channel::open(one, *near, 100, soon);
    assert!(matches!(opened, Err(OpenChannelError::RingBytes(100))), "{opened:?}");
    // Far more often than a session has memories, apertures and tripwires.
    for _ in 0..70 {
        let opened = Channel::open(one, *near, 256, Some(Duration::ZERO));
        assert!(matches!(opened, Err(OpenChannelError::TimedOut)), "{opened:?}");
        // The engine takes the offer's message from the transmit queue.
        let until = Instant::now() + PATIENCE;
        while other.oob().receive(*far).unwrap().is_none() {
            assert!(Instant::now() < until);
        }
    }
    let memory = one.memories().create(4096, Sharing::MapWrite).unwrap();
    for offset in [64, 4096 - 512 + 128, usize::MAX - 127] {
        let offer = ChannelOffer::new(one, *near, (&memory, offset), 256);
        assert!(matches!(offer, Err(OpenChannelError::Place { .. })), "{offer:?}");
    }
    let requests = one.memories().create(4096, Sharing::Requests).unwrap();
    let offer = ChannelOffer::new(one, *near, (&requests, 0), 256);
    assert!(matches!(offer, Err(OpenChannelError::Sharing)), "{offer:?}");
    let unconnected = open(one, 0).0;
    let opened = Channel::open(one, unconnected, 256, soon);
    assert!(matches!(opened, Err(OpenChannelError::Open(_))), "{opened:?}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            other.oob().disconnect(*far).unwrap();
            other.sender().flush().unwrap();
        });
        let opened = Channel::open(one, *near, 256, Some(PATIENCE));
        assert!(matches!(opened, Err(OpenChannelError::Closed)), "{opened:?}");
    });
    becomes(one, *near, PeerState::Closed);
}

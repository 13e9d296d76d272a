//! Apertures and tripwires between the sessions of a server in this process: rights, limits, and
//! what each side learns of the other's end.

use std::time::{Duration, Instant};

use crate::connections::{
    PATIENCE, PORT, World, becomes, connect, eventually, next, open, options, world,
    world_of_workers,
};
use towpath_client::{
    Access, AccessError, Aperture, ApertureKey, ApertureState, Endpoint, Memory, OobAddress,
    OobKind, OpenError, Options, PeerState, Refusal, Request, RequestError, RequestFault,
    RequestId, RequestState, Session, Sharing, Tripwire,
};
use towpath_memory::PAGE_BYTES;

/// Two sessions, each with an endpoint, connected with each other.
struct Pair {
    world: World,
    owner: Session,
    from: Endpoint,
    importer: Session,
    to: Endpoint,
}

fn with_apertures(name: &str) -> Options {
    Options { apertures: 16, tripwires: 130, ..options(name) }
}

fn pair_on(lanes: usize) -> Pair {
    pair_in(world(lanes))
}

/// A pair whose memories only workers map.
fn pair_of_workers() -> Pair {
    pair_in(world_of_workers())
}

fn pair_in(world: World) -> Pair {
    let mut owner = world.attach_with(&with_apertures("owner"));
    let mut importer = world.attach_with(&with_apertures("importer"));
    let (from, own) = open(&mut owner, PORT);
    let (listener, address) = open(&mut importer, PORT);
    let to = connect((&mut owner, from, own), (&mut importer, listener, address));
    // What the connection left is no news for a wait any more.
    for session in [&mut owner, &mut importer] {
        while session.wait(Some(Duration::ZERO)).unwrap()
            || session.oob().ready().unwrap().is_some()
        {}
    }
    Pair { world, owner, from, importer, to }
}

fn pair() -> Pair {
    pair_on(1)
}

impl Pair {
    /// Creates memory, and exports and imports all of it.
    fn share(&mut self, bytes: usize, sharing: Sharing, access: Access) -> (Memory, Aperture) {
        let memory = self.owner.memories().create(bytes, sharing).unwrap();
        let key = self.export(&memory, 0..memory.len(), access);
        (memory, self.importer.memories().import(self.to, key).unwrap())
    }

    /// Returns `true` if a tripwire fires within a time in which an engine handles an event many
    /// times over.
    fn fires(&mut self, tripwire: Tripwire) -> bool {
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until && !self.owner.tripwires().has_fired(tripwire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.owner.tripwires().has_fired(tripwire)
    }

    fn export(
        &mut self,
        memory: &Memory,
        range: std::ops::Range<usize>,
        access: Access,
    ) -> ApertureKey {
        self.owner.memories().export(self.from, memory, range, access).unwrap().key()
    }
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, OpenError>, refusal: Refusal, says: &str) {
    let Err(OpenError::Refused { refusal: got, text }) = outcome else { panic!("{outcome:?}") };
    assert!(got == refusal && text.contains(says), "{got:?}: {text}");
}

#[test]
fn stores_of_one_side_are_loads_of_the_other() {
    for lanes in [1, 2] {
        let mut pair = pair_on(lanes);
        let (memory, aperture) = pair.share(5000, Sharing::MapWrite, Access::ReadWrite);
        assert_eq!((memory.len(), aperture.len()), (2 * PAGE_BYTES, 2 * PAGE_BYTES));
        aperture.write(4093, b"written").unwrap();
        let mut seen = [0; 7];
        memory.read(4093, &mut seen).unwrap();
        assert_eq!(&seen, b"written");
        memory.store(8, 77).unwrap();
        assert_eq!(aperture.load(8), Ok(77));
        aperture.store(16, 78).unwrap();
        assert_eq!(memory.load(16), Ok(78));
        memory.write(0, b"back").unwrap();
        aperture.read(0, &mut seen[..4]).unwrap();
        assert_eq!(&seen[..4], b"back");
        // A part of it, by another key and the same mapping.
        let key = pair.owner.memories().create(4096, Sharing::MapWrite).map(|memory| {
            let key = pair.owner.memories().export(pair.from, &memory, 64..128, Access::ReadWrite);
            (memory, key.unwrap().key())
        });
        let (memory, key) = key.unwrap();
        let part = pair.importer.memories().import(pair.to, key).unwrap();
        part.write(0, b"there").unwrap();
        memory.read(64, &mut seen[..5]).unwrap();
        assert_eq!(&seen[..5], b"there");
        let outside = part.write(60, b"12345");
        assert_eq!(outside, Err(AccessError::Range { offset: 60, len: 5, bytes: 64 }));
        assert!(part.write(usize::MAX, b"1").is_err() && part.load(1).is_err());
        assert!(part.store(64, 1).is_err() && memory.store(4096, 1).is_err());
    }
}

#[test]
fn rights_are_those_of_the_export() {
    let mut pair = pair();
    let (memory, readable) = pair.share(4096, Sharing::MapRead, Access::Read);
    memory.write(0, b"board").unwrap();
    let mut seen = [0; 5];
    readable.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"board");
    assert_eq!(readable.write(0, b"x"), Err(AccessError::Rights));
    let outcome = pair.owner.memories().export(pair.from, &memory, 0..8, Access::Write);
    refused(outcome, Refusal::State, "map it for reading");
    let (_memory, writable) = pair.share(4096, Sharing::MapWrite, Access::Write);
    assert_eq!(writable.read(0, &mut seen), Err(AccessError::Rights));
    assert_eq!(writable.load(0), Err(AccessError::Rights));
    writable.write(0, b"x").unwrap();
    let (_memory, requested) = pair.share(4096, Sharing::Requests, Access::ReadWrite);
    assert_eq!(requested.read(0, &mut seen), Err(AccessError::NotMapped));
    assert_eq!(requested.state(), ApertureState::Valid);
}

#[test]
fn ranges_outside_empty_or_overlapping_are_refused() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(4096, Sharing::MapWrite).unwrap();
    for range in [0..0, 4096..4097, 0..4097, 4000..4097, usize::MAX - 1..usize::MAX] {
        let outcome = pair.owner.memories().export(pair.from, &memory, range.clone(), Access::Read);
        refused(outcome, Refusal::Malformed, "the memory has 4096 bytes");
        let outcome = pair.owner.memories().set_tripwire(&memory, range, Access::Write);
        refused(outcome, Refusal::Malformed, "the memory has 4096 bytes");
    }
    pair.export(&memory, 0..64, Access::Read);
    pair.export(&memory, 0..128, Access::Read);
    for range in [0..1, 63..65, 100..200, 0..4096] {
        let outcome = pair.owner.memories().export(pair.from, &memory, range, Access::Write);
        refused(outcome, Refusal::InUse, "overlaps");
    }
    pair.export(&memory, 128..256, Access::ReadWrite);
    let outcome = pair.owner.memories().export(pair.from, &memory, 255..256, Access::Read);
    refused(outcome, Refusal::InUse, "overlaps");
    refused(pair.owner.memories().create(0, Sharing::Requests), Refusal::Malformed, "0 bytes");
    let outcome = pair.owner.memories().create((1 << 30) + 1, Sharing::Requests);
    refused(outcome, Refusal::Malformed, "1 to 1073741824");
}

#[test]
fn a_key_is_for_one_connection() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(4096, Sharing::MapWrite).unwrap();
    let key = pair.export(&memory, 0..64, Access::ReadWrite);
    // Another endpoint of the importer, the owner itself, another session, another key.
    let (other, _) = open(&mut pair.importer, 0);
    refused(
        pair.importer.memories().import(other, key),
        Refusal::NotFound,
        "no aperture has this key",
    );
    refused(
        pair.owner.memories().import(pair.from, key),
        Refusal::NotFound,
        "no aperture has this key",
    );
    let mut third = pair.world.attach_with(&with_apertures("third"));
    let (endpoint, own) = open(&mut third, PORT);
    refused(third.memories().import(endpoint, key), Refusal::NotFound, "no aperture has this key");
    let wrong = ApertureKey(key.0.wrapping_add(1));
    refused(
        pair.importer.memories().import(pair.to, wrong),
        Refusal::NotFound,
        "no aperture has this key",
    );
    let aperture = pair.importer.memories().import(pair.to, key).unwrap();
    refused(pair.importer.memories().import(pair.to, key), Refusal::InUse, "imported already");
    pair.importer.memories().release_aperture(aperture).unwrap();
    pair.importer.memories().import(pair.to, key).unwrap();
    // An endpoint that is not connected.
    let outcome = third.memories().create(4096, Sharing::Requests);
    let outcome = third.memories().export(endpoint, &outcome.unwrap(), 0..64, Access::Read);
    refused(outcome, Refusal::State, "not connected");
    // The memory may be written by the importer's session, and so by no other one.
    let (listener, address) = open(&mut pair.owner, 0);
    let accepted = connect((&mut third, endpoint, own), (&mut pair.owner, listener, address));
    let outcome = pair.owner.memories().export(accepted, &memory, 64..128, Access::ReadWrite);
    refused(outcome, Refusal::State, "create another memory");
    let board = pair.owner.memories().create(4096, Sharing::MapRead).unwrap();
    for (endpoint, session, theirs) in
        [(pair.from, &mut pair.importer, pair.to), (accepted, &mut third, endpoint)]
    {
        let key =
            pair.owner.memories().export(endpoint, &board, 0..64, Access::Read).unwrap().key();
        session.memories().import(theirs, key).unwrap();
    }
}

#[test]
fn revocation_ends_every_access() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(4096, Sharing::MapWrite).unwrap();
    let export =
        pair.owner.memories().export(pair.from, &memory, 0..64, Access::ReadWrite).unwrap();
    let aperture = pair.importer.memories().import(pair.to, export.key()).unwrap();
    aperture.write(0, b"before").unwrap();
    refused(pair.owner.memories().release(&memory), Refusal::State, "revoke them first");
    pair.owner.memories().revoke(export).unwrap();
    assert_eq!(aperture.write(0, b"after"), Err(AccessError::Revoked));
    assert_eq!(aperture.read(0, &mut [0]), Err(AccessError::Revoked));
    refused(pair.owner.memories().revoke(export), Refusal::NotFound, "no aperture");
    let outcome = pair.importer.memories().import(pair.to, export.key());
    refused(outcome, Refusal::NotFound, "no aperture has this key");
    pair.importer.memories().release_aperture(aperture).unwrap();
}

#[test]
fn an_aperture_ends_with_its_connection() {
    let mut pair = pair();
    let (memory, aperture) = pair.share(4096, Sharing::MapWrite, Access::ReadWrite);
    pair.owner.oob().disconnect(pair.from).unwrap();
    pair.owner.sender().flush().unwrap();
    becomes(&mut pair.importer, pair.to, PeerState::Closed);
    assert_eq!(aperture.write(0, b"x"), Err(AccessError::Closed));
    // The memory is still there for its owner, and another connection needs another aperture.
    memory.write(0, b"mine").unwrap();
    let outcome = pair.owner.memories().export(pair.from, &memory, 0..64, Access::Read);
    refused(outcome, Refusal::InUse, "overlaps");
    let another = pair.owner.memories().create(4096, Sharing::MapWrite).unwrap();
    let outcome = pair.owner.memories().export(pair.from, &another, 0..64, Access::Read);
    refused(outcome, Refusal::State, "not connected");
    pair.importer.memories().release_aperture(aperture).unwrap();
}

#[test]
fn the_death_of_either_side_is_a_named_error() {
    let mut pair = pair();
    let (memory, aperture) = pair.share(1 << 20, Sharing::MapWrite, Access::ReadWrite);
    aperture.write(0, b"kept").unwrap();
    let Pair { world, owner, mut importer, to, .. } = pair;
    drop(owner);
    becomes(&mut importer, to, PeerState::Gone);
    assert_eq!(aperture.read(0, &mut [0; 4]), Err(AccessError::Gone));
    // The owner's own mapping is still there: no signal.
    let mut seen = [0; 4];
    memory.read(0, &mut seen).unwrap();
    memory.write((1 << 20) - 1, b"x").unwrap();
    importer.memories().release_aperture(aperture).unwrap();
    drop((memory, importer, world));
    let mut pair = self::pair();
    let (memory, aperture) = pair.share(4096, Sharing::MapWrite, Access::ReadWrite);
    let Pair { mut owner, from, importer, .. } = pair;
    drop(importer);
    becomes(&mut owner, from, PeerState::Gone);
    memory.write(0, b"alone").unwrap();
    drop(aperture);
}

#[test]
fn bytes_count_against_the_owner_and_each_importer_that_maps_them() {
    let mut pair = pair();
    let reported = |pair: &Pair| {
        ["owner", "importer"].map(|who| {
            let session = if who == "owner" { &pair.owner } else { &pair.importer };
            pair.world.reported(session, "bytes")
        })
    };
    let [own, theirs] = reported(&pair);
    let memory = pair.owner.memories().create(1 << 20, Sharing::MapWrite).unwrap();
    assert_eq!(reported(&pair), [own + (1 << 20), theirs]);
    let first = pair.export(&memory, 0..64, Access::ReadWrite);
    let second = pair.export(&memory, 64..128, Access::ReadWrite);
    let [first, second] =
        [first, second].map(|key| pair.importer.memories().import(pair.to, key).unwrap());
    assert_eq!(reported(&pair), [own + (1 << 20), theirs + (1 << 20)], "once");
    pair.importer.memories().release_aperture(first).unwrap();
    assert_eq!(reported(&pair)[1], theirs + (1 << 20));
    pair.importer.memories().release_aperture(second).unwrap();
    assert_eq!(reported(&pair), [own + (1 << 20), theirs]);
    let (requested, _aperture) = pair.share(1 << 20, Sharing::Requests, Access::ReadWrite);
    assert_eq!(reported(&pair), [own + (2 << 20), theirs], "not mapped");
    // More than a session may have: 256 MiB.
    let outcome = pair.owner.memories().create(256 << 20, Sharing::Requests);
    refused(outcome, Refusal::Limit, "at most 268435456");
    assert_eq!(reported(&pair)[0], own + (2 << 20));
    drop(requested);
}

/// The owner and the importer could keep their mappings, so the server frees the memory itself.
#[test]
fn a_released_memory_is_freed_once_no_importer_maps_it() {
    for importer_ends in [false, true] {
        let mut pair = pair();
        let memory = pair.owner.memories().create(1 << 20, Sharing::MapWrite).unwrap();
        let export =
            pair.owner.memories().export(pair.from, &memory, 0..64, Access::ReadWrite).unwrap();
        let aperture = pair.importer.memories().import(pair.to, export.key()).unwrap();
        memory.store(0, 5).unwrap();
        let before = pair.world.reported(&pair.importer, "bytes");
        pair.owner.memories().revoke(export).unwrap();
        pair.owner.memories().release(&memory).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(memory.load(0), Ok(5), "the importer has it, and it counts against it");
        assert_eq!(pair.world.reported(&pair.importer, "bytes"), before);
        if importer_ends {
            drop((aperture, pair.importer));
        } else {
            pair.importer.memories().release_aperture(aperture).unwrap();
        }
        eventually(|| memory.load(0) == Ok(0));
    }
}

#[test]
fn a_user_has_a_limited_number_of_memories() {
    let world = world(1);
    let mut sessions: Vec<_> = (0..5).map(|_| world.attach_with(&with_apertures("many"))).collect();
    for session in &mut sessions[..4] {
        for _ in 0..64 {
            session.memories().create(1, Sharing::Requests).unwrap();
        }
    }
    let outcome = sessions[4].memories().create(1, Sharing::Requests);
    refused(outcome, Refusal::Limit, "has the most allowed, 256 memories");
    drop(sessions.remove(0));
    eventually(|| sessions[3].memories().create(1, Sharing::Requests).is_ok());
}

/// Requests that were queued when the peer closed the connection have failed, also if the endpoint
/// is connected again before the server came to them.
#[test]
fn requests_of_an_ended_connection_do_not_become_complete() {
    let mut pair = pair();
    let remote = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
    let key = pair.export(&remote, 0..64, Access::Write);
    let local = pair.importer.memories().create(4096, Sharing::Requests).unwrap();
    let write = Request::write(key, 0).local(&local, 0..8);
    let first = pair.importer.requests().queue(pair.to, &write).unwrap();
    assert_eq!(outcome(&mut pair.importer, first), RequestState::Complete);
    pair.owner.oob().disconnect(pair.from).unwrap();
    pair.owner.sender().flush().unwrap();
    becomes(&mut pair.importer, pair.to, PeerState::Closed);
    let late: Vec<_> =
        (0..3).map(|_| pair.importer.requests().queue(pair.to, &write).unwrap()).collect();
    let ip = std::net::IpAddr::V4(pair.owner.info().ipv4.unwrap().0);
    let (listener, address) = open(&mut pair.owner, 0);
    let ip_of_importer = std::net::IpAddr::V4(pair.importer.info().ipv4.unwrap().0);
    let own = OobAddress { ip: ip_of_importer, protocol: 6, port: pair.to.port() };
    assert_eq!(address.ip, ip);
    let accepted =
        connect((&mut pair.importer, pair.to, own), (&mut pair.owner, listener, address));
    let key =
        pair.owner.memories().export(accepted, &remote, 1024..1032, Access::Write).unwrap().key();
    let again = Request::write(key, 0).local(&local, 0..8);
    let id = pair.importer.requests().queue(pair.to, &again).unwrap();
    assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
    let states: Vec<_> = late.iter().map(|id| pair.importer.requests().state(*id)).collect();
    let failed = RequestState::Failed;
    let flushed = failed(RequestFault::Flushed);
    assert_eq!(states, [failed(RequestFault::Closed), flushed, flushed]);
    assert_eq!(pair.importer.requests().state(first), RequestState::Complete);
}

#[test]
fn a_session_has_as_many_as_it_asked_for() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
    let exports: Vec<_> = (0..16)
        .map(|at| {
            pair.owner.memories().export(pair.from, &memory, at..at + 1, Access::Write).unwrap()
        })
        .collect();
    let outcome = pair.owner.memories().export(pair.from, &memory, 20..21, Access::Write);
    refused(outcome, Refusal::Limit, "as many as it asked for");
    pair.owner.memories().revoke(exports[3]).unwrap();
    pair.owner.memories().export(pair.from, &memory, 20..21, Access::Write).unwrap();
    let mut plain = pair.world.attach("plain");
    refused(plain.memories().create(1, Sharing::Requests), Refusal::State, "Options::apertures");
    let memories: Vec<_> =
        (1..64).map(|_| pair.owner.memories().create(1, Sharing::Requests).unwrap()).collect();
    let outcome = pair.owner.memories().create(1, Sharing::Requests);
    refused(outcome, Refusal::Limit, "as many as it asked for");
    for memory in memories {
        pair.owner.memories().release(&memory).unwrap();
    }
    let tripwires: Vec<_> = (0..130)
        .map(|at| pair.owner.memories().set_tripwire(&memory, at..at + 1, Access::Write).unwrap())
        .collect();
    let outcome = pair.owner.memories().set_tripwire(&memory, 200..201, Access::Write);
    refused(outcome, Refusal::Limit, "as many as it asked for");
    refused(pair.owner.memories().release(&memory), Refusal::State, "first");
    for tripwire in tripwires {
        pair.owner.memories().release_tripwire(tripwire).unwrap();
    }
    let memory = pair.owner.memories().create(1, Sharing::Requests).unwrap();
    for _ in 0..8 {
        pair.owner.memories().set_tripwire(&memory, 0..64, Access::Write).unwrap();
    }
    let outcome = pair.owner.memories().set_tripwire(&memory, 63..65, Access::Write);
    refused(outcome, Refusal::Limit, "8 other tripwires overlap");
}

#[test]
fn a_tripwire_wakes_its_owner_once_per_arming() {
    let mut pair = pair();
    let (memory, aperture) = pair.share(4096, Sharing::MapWrite, Access::ReadWrite);
    let tripwire = pair.owner.memories().set_tripwire(&memory, 8..16, Access::Write).unwrap();
    let trip = pair.importer.memories().import_tripwire(&aperture, tripwire.number()).unwrap();
    aperture.store(8, 1).unwrap();
    assert_eq!(pair.importer.tripwires().trip(trip), Ok(false), "not armed");
    for value in 2..20 {
        pair.owner.tripwires().arm(tripwire);
        assert_eq!(memory.load(8), Ok(value - 1));
        assert_eq!(pair.owner.tripwires().ready(), Ok(None));
        aperture.store(8, value).unwrap();
        assert_eq!(pair.importer.tripwires().trip(trip), Ok(true));
        assert_eq!(pair.importer.tripwires().trip(trip), Ok(false), "told already");
        assert_eq!(pair.owner.wait(Some(PATIENCE)), Ok(true));
        assert!(pair.owner.tripwires().has_fired(tripwire));
        assert_eq!(pair.owner.tripwires().ready(), Ok(Some(tripwire)));
        assert_eq!(pair.owner.tripwires().ready(), Ok(None));
        assert!(!pair.owner.tripwires().has_fired(tripwire));
        assert_eq!(memory.load(8), Ok(value));
    }
    pair.owner.tripwires().arm(tripwire);
    pair.owner.tripwires().disarm(tripwire);
    assert_eq!(pair.importer.tripwires().trip(trip), Ok(false), "disarmed");
    // Released by its owner, and another one under its number: the importer has to ask again.
    pair.owner.memories().release_tripwire(tripwire).unwrap();
    let other = pair.owner.memories().set_tripwire(&memory, 100..101, Access::Write).unwrap();
    assert_eq!(other.number(), tripwire.number());
    pair.owner.tripwires().arm(other);
    assert_eq!(pair.importer.tripwires().trip(trip), Ok(true), "as far as the importer knows");
    assert!(!pair.fires(other));
}

#[test]
fn a_tripwire_is_imported_with_its_aperture_alone() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(4096, Sharing::MapWrite).unwrap();
    let export =
        pair.owner.memories().export(pair.from, &memory, 0..64, Access::ReadWrite).unwrap();
    let aperture = pair.importer.memories().import(pair.to, export.key()).unwrap();
    let [inside, across, behind] = [0..64, 60..68, 64..65].map(|range| {
        pair.owner.memories().set_tripwire(&memory, range, Access::Write).unwrap().number()
    });
    pair.importer.memories().import_tripwire(&aperture, inside).unwrap();
    for wrong in [across, behind, 99, u32::MAX] {
        let outcome = pair.importer.memories().import_tripwire(&aperture, wrong);
        refused(outcome, Refusal::NotFound, "contains no tripwire");
    }
    let tripwire = pair.owner.memories().set_tripwire(&memory, 0..8, Access::Write).unwrap();
    let trip = pair.importer.memories().import_tripwire(&aperture, tripwire.number()).unwrap();
    pair.owner.tripwires().arm(tripwire);
    pair.owner.memories().revoke(export).unwrap();
    pair.importer.tripwires().trip(trip).unwrap();
    assert!(!pair.fires(tripwire), "revoked");
    let outcome = pair.importer.memories().import_tripwire(&aperture, tripwire.number());
    refused(outcome, Refusal::NotFound, "contains no tripwire");
}

#[test]
fn many_tripwires_are_polled_by_the_word() {
    let mut pair = pair();
    let (memory, aperture) = pair.share(4096, Sharing::MapWrite, Access::ReadWrite);
    let both: Vec<_> = (0..65)
        .map(|at| {
            let tripwire =
                pair.owner.memories().set_tripwire(&memory, at..at + 1, Access::Write).unwrap();
            let trip =
                pair.importer.memories().import_tripwire(&aperture, tripwire.number()).unwrap();
            pair.owner.tripwires().arm(tripwire);
            (tripwire, trip)
        })
        .collect();
    let polled = |owner: &mut Session| {
        let mut fired = Vec::new();
        owner.tripwires().for_each_fired(|one| fired.push(one));
        fired
    };
    assert!(polled(&mut pair.owner).is_empty());
    for (_, trip) in [both[64], both[0], both[63]] {
        assert_eq!(pair.importer.tripwires().trip(trip), Ok(true));
    }
    eventually(|| polled(&mut pair.owner).len() == 3);
    assert_eq!(polled(&mut pair.owner), [both[0].0, both[63].0, both[64].0]);
    // The events of all three, in any order.
    let mut ready = Vec::new();
    while ready.len() < 3 {
        assert_eq!(pair.owner.wait(Some(PATIENCE)), Ok(true));
        ready.extend(pair.owner.tripwires().ready().unwrap());
    }
    assert!(polled(&mut pair.owner).is_empty());
    assert_eq!(pair.owner.wait(Some(Duration::ZERO)), Ok(false));
}

/// The owner sleeps, and the importer's engine has to be woken for it.
#[test]
fn two_sides_wait_for_each_other() {
    let mut pair = pair();
    let (mine, theirs) = pair.share(4096, Sharing::MapWrite, Access::ReadWrite);
    let ping = pair.owner.memories().set_tripwire(&mine, 0..8, Access::Write).unwrap();
    let trip = pair.importer.memories().import_tripwire(&theirs, ping.number()).unwrap();
    let back = pair.importer.memories().create(4096, Sharing::MapWrite).unwrap();
    let key =
        pair.importer.memories().export(pair.to, &back, 0..4096, Access::ReadWrite).unwrap().key();
    let reply = pair.owner.memories().import(pair.from, key).unwrap();
    let pong = pair.importer.memories().set_tripwire(&back, 0..8, Access::Write).unwrap();
    let reply_trip = pair.owner.memories().import_tripwire(&reply, pong.number()).unwrap();
    const ROUNDS: u64 = 500;
    let mut owner = pair.owner;
    let far = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            while mine.load(0) != Ok(round) {
                owner.tripwires().arm(ping);
                if mine.load(0) == Ok(round) {
                    break;
                }
                assert_eq!(owner.wait(Some(PATIENCE)), Ok(true));
                while owner.tripwires().ready().unwrap().is_some() {}
            }
            reply.store(0, round).unwrap();
            owner.tripwires().trip(reply_trip).unwrap();
        }
        owner
    });
    let mut importer = pair.importer;
    for round in 1..=ROUNDS {
        theirs.store(0, round).unwrap();
        importer.tripwires().trip(trip).unwrap();
        while back.load(0) != Ok(round) {
            importer.tripwires().arm(pong);
            if back.load(0) == Ok(round) {
                break;
            }
            assert_eq!(importer.wait(Some(PATIENCE)), Ok(true));
            while importer.tripwires().ready().unwrap().is_some() {}
        }
    }
    far.join().unwrap();
}

/// Waits until a request is not pending any more.
fn outcome(session: &mut Session, id: RequestId) -> RequestState {
    let until = Instant::now() + PATIENCE;
    loop {
        match session.requests().state(id) {
            RequestState::Pending => {}
            state => return state,
        }
        assert!(Instant::now() < until, "the request is still pending");
        session.wait(Some(Duration::from_secs(1))).unwrap();
        while session.oob().ready().unwrap().is_some() {}
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|place| ((place + seed) * 31 % 251) as u8).collect()
}

#[test]
fn requests_move_bytes_both_ways() {
    for mut pair in [pair(), pair_on(2), pair_of_workers()] {
        let remote = pair.owner.memories().create(1 << 20, Sharing::Requests).unwrap();
        let key = pair.export(&remote, 4096..1 << 20, Access::ReadWrite);
        let local = pair.importer.memories().create(1 << 20, Sharing::Requests).unwrap();
        // Of one byte, of odd places, and of several transfers.
        for (at, len) in [(0, 1), (3, 77), (8, 64), (4095, 4097), (1, 300_000)] {
            let data = bytes(at, len);
            local.write(5, &data).unwrap();
            let write = Request::write(key, at as u64).local(&local, 5..5 + len);
            let id = pair.importer.requests().queue(pair.to, &write).unwrap();
            assert_eq!(pair.importer.requests().state(id), RequestState::Pending);
            assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
            let mut placed = vec![0; len + 2];
            remote.read(4096 + at - 1, &mut placed).unwrap();
            assert_eq!(placed[1..=len], data, "{len} bytes at {at}");
            let read = Request::read(key, at as u64).local(&local, 600_000..600_000 + len);
            let id = pair.importer.requests().queue(pair.to, &read).unwrap();
            assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
            let mut back = vec![0; len];
            local.read(600_000, &mut back).unwrap();
            assert_eq!(back, data);
            remote.write(4096 + at, &vec![0; len]).unwrap();
        }
        // From several places, and into several.
        let data = bytes(9, 3000);
        local.write(0, &data).unwrap();
        let write = Request::write(key, 7)
            .local(&local, 2000..3000)
            .local(&local, 0..1)
            .local(&local, 1..2000);
        let first = pair.importer.requests().queue(pair.to, &write).unwrap();
        let read = Request::read(key, 7).local(&local, 10_000..10_500).local(&local, 5000..7500);
        let second = pair.importer.requests().queue(pair.to, &read).unwrap();
        assert_eq!(outcome(&mut pair.importer, second), RequestState::Complete);
        assert_eq!(pair.importer.requests().state(first), RequestState::Complete);
        let (mut one, mut other) = (vec![0; 500], vec![0; 2500]);
        local.read(10_000, &mut one).unwrap();
        local.read(5000, &mut other).unwrap();
        let expected = [&data[2000..], &data[..2000]].concat();
        assert_eq!([one, other].concat(), expected, "a read sees earlier writes");
    }
}

#[test]
fn a_value_or_message_comes_behind_the_bytes() {
    [pair(), pair_of_workers()].into_iter().for_each(values_come_behind_the_bytes);
}

fn values_come_behind_the_bytes(mut pair: Pair) {
    let remote = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
    let key = pair.export(&remote, 0..4096, Access::Write);
    let local = pair.importer.memories().create(4096, Sharing::Requests).unwrap();
    for round in 0..50_u32 {
        local.store(0, u64::from(round) + 1).unwrap();
        let write = Request::write(key, 8).local(&local, 0..8).with_value(round);
        let id = pair.importer.requests().queue(pair.to, &write).unwrap();
        pair.importer.requests().queue(pair.to, &Request::send(&round.to_le_bytes())).unwrap();
        pair.importer.sender().flush().unwrap();
        let value = next(&mut pair.owner, pair.from);
        assert_eq!((value.kind(), value.value()), (OobKind::Value, Some((round, 8))));
        assert_eq!(remote.load(8), Ok(u64::from(round) + 1));
        let message = next(&mut pair.owner, pair.from);
        assert_eq!(
            (message.kind(), message.payload()),
            (OobKind::Message, &round.to_le_bytes()[..])
        );
        assert_eq!(message.value(), None);
        assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
    }
}

/// A queue without room delays values and messages, and loses none.
#[test]
fn values_wait_for_room() {
    let mut pair = pair();
    let remote = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
    let key = pair.export(&remote, 0..4096, Access::Write);
    let local = pair.importer.memories().create(4096, Sharing::Requests).unwrap();
    let write = |value| Request::write(key, 0).local(&local, 0..8).with_value(value);
    let mut last = None;
    for value in 0..40 {
        last = Some(pair.importer.requests().queue(pair.to, &write(value)).unwrap());
    }
    pair.importer.sender().flush().unwrap();
    for value in 0..40 {
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(next(&mut pair.owner, pair.from).value(), Some((value, 8)));
    }
    assert_eq!(outcome(&mut pair.importer, last.unwrap()), RequestState::Complete);
    // A receiver that takes nothing for a second.
    let mut ids = Vec::new();
    for value in 0..10 {
        ids.push(pair.importer.requests().queue(pair.to, &write(value)).unwrap());
    }
    let state = outcome(&mut pair.importer, ids[9]);
    assert_eq!(state, RequestState::Failed(RequestFault::Flushed));
    let states: Vec<_> = ids.iter().map(|id| pair.importer.requests().state(*id)).collect();
    let complete = states.iter().take_while(|one| **one == RequestState::Complete).count();
    assert_eq!(complete, 4, "a quarter of the queue: {states:?}");
    assert_eq!(states[complete], RequestState::Failed(RequestFault::NotReady));
    becomes(&mut pair.owner, pair.from, PeerState::Closed);
}

#[test]
fn a_request_that_fails_closes_its_connection() {
    type Wrong = fn(&mut Pair, ApertureKey, &Memory) -> (Request, RequestFault);
    let wrongs: [Wrong; 7] = [
        |_, key, local| {
            let key = ApertureKey(key.0 ^ 1);
            (Request::write(key, 0).local(local, 0..8), RequestFault::Key)
        },
        |_, key, local| (Request::write(key, 57).local(local, 0..8), RequestFault::Range),
        |_, key, local| (Request::write(key, u64::MAX).local(local, 0..8), RequestFault::Range),
        |pair, _, local| {
            let memory = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
            let key = pair.export(&memory, 0..64, Access::Read);
            (Request::write(key, 0).local(local, 0..8), RequestFault::Rights)
        },
        |pair, _, local| {
            let memory = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
            let key = pair.export(&memory, 0..64, Access::Write);
            (Request::read(key, 0).local(local, 0..8), RequestFault::Rights)
        },
        |pair, key, _| {
            let memory = pair.importer.memories().create(8192, Sharing::Requests).unwrap();
            pair.importer.memories().release(&memory).unwrap();
            (Request::write(key, 0).local(&memory, 0..8), RequestFault::Local)
        },
        |pair, _, local| {
            let memory = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
            let export =
                pair.owner.memories().export(pair.from, &memory, 0..64, Access::Write).unwrap();
            pair.owner.memories().revoke(export).unwrap();
            (Request::write(export.key(), 0).local(local, 0..8), RequestFault::Key)
        },
    ];
    for (wrong, mut pair) in
        wrongs.into_iter().flat_map(|wrong| [(wrong, pair()), (wrong, pair_of_workers())])
    {
        let remote = pair.owner.memories().create(4096, Sharing::Requests).unwrap();
        let key = pair.export(&remote, 64..128, Access::ReadWrite);
        let local = pair.importer.memories().create(4096, Sharing::Requests).unwrap();
        local.write(0, &[9; 64]).unwrap();
        let (wrong, fault) = wrong(&mut pair, key, &local);
        let good = Request::write(key, 0).local(&local, 0..64);
        let ids =
            [&good, &wrong, &good].map(|one| pair.importer.requests().queue(pair.to, one).unwrap());
        assert_eq!(
            outcome(&mut pair.importer, ids[2]),
            RequestState::Failed(RequestFault::Flushed)
        );
        let states = ids.map(|id| pair.importer.requests().state(id));
        assert_eq!(states[..2], [RequestState::Complete, RequestState::Failed(fault)]);
        becomes(&mut pair.importer, pair.to, PeerState::Closed);
        becomes(&mut pair.owner, pair.from, PeerState::Closed);
        let mut all = [0; 4096];
        remote.read(0, &mut all).unwrap();
        assert!(all[..64].iter().chain(&all[128..]).all(|byte| *byte == 0), "{fault:?}");
        // Until there is another connection, there are no requests; what failed stays failed.
        let late = pair.importer.requests().queue(pair.to, &good).unwrap();
        assert!(matches!(outcome(&mut pair.importer, late), RequestState::Failed(_)));
        let ip = std::net::IpAddr::V4(pair.owner.info().ipv4.unwrap().0);
        let own = OobAddress { ip, protocol: 6, port: pair.from.port() };
        let (listener, address) = open(&mut pair.importer, 0);
        let to =
            connect((&mut pair.owner, pair.from, own), (&mut pair.importer, listener, address));
        let key = pair.export(&remote, 1024..1088, Access::ReadWrite);
        let again = Request::write(key, 0).local(&local, 0..64);
        let id = pair.importer.requests().queue(to, &again).unwrap();
        assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
        assert_eq!(pair.importer.requests().state(ids[1]), RequestState::Failed(fault));
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_by_the_client() {
    let mut pair = pair();
    let local = pair.importer.memories().create(4096, Sharing::Requests).unwrap();
    let key = ApertureKey(1);
    let mut refused =
        |request: Request| pair.importer.requests().queue(pair.to, &request).unwrap_err();
    assert_eq!(refused(Request::write(key, 0)), RequestError::Ranges { count: 0 });
    let many = (0..7).fold(Request::read(key, 0), |one, _| one.local(&local, 0..1));
    assert_eq!(refused(many), RequestError::Ranges { count: 7 });
    for range in [0..0, 4096..4097, 0..4097] {
        assert_eq!(refused(Request::write(key, 0).local(&local, range)), RequestError::Outside);
    }
    assert_eq!(refused(Request::send(&[0; 65])), RequestError::Message { len: 65 });
    let mut plain = pair.world.attach("plain");
    let (endpoint, _) = open(&mut plain, 0);
    let outcome = plain.requests().queue(endpoint, &Request::send(b"x"));
    assert_eq!(outcome.unwrap_err(), RequestError::NotPossible);
    let full =
        (0..).find_map(|_| pair.importer.requests().queue(pair.to, &Request::send(b"")).err());
    assert_eq!(full, Some(RequestError::Full));
}

/// A tripwire tells of requested accesses of its kind to its place alone.
#[test]
fn requests_fire_tripwires() {
    let mut pair = pair();
    let memory = pair.owner.memories().create(8192, Sharing::Requests).unwrap();
    let key = pair.export(&memory, 0..8192, Access::ReadWrite);
    let local = pair.importer.memories().create(8192, Sharing::Requests).unwrap();
    let kinds = [
        (0..8192, Access::ReadWrite),
        (100..108, Access::Write),
        (104..112, Access::Read),
        (4096..4097, Access::Write),
    ];
    let set = kinds
        .map(|(range, access)| pair.owner.memories().set_tripwire(&memory, range, access).unwrap());
    let write = |range: std::ops::Range<usize>| {
        Request::write(key, range.start as u64).local(&local, range)
    };
    let read =
        |range: std::ops::Range<usize>| Request::read(key, range.start as u64).local(&local, range);
    let cases = [
        (write(0..8), vec![0]),
        (write(99..101), vec![0, 1]),
        (write(108..200), vec![0]),
        (read(100..104), vec![0]),
        (read(111..112), vec![0, 2]),
        (write(0..8192), vec![0, 1, 3]),
        (read(0..8192), vec![0, 2]),
    ];
    for (number, (request, expected)) in cases.into_iter().enumerate() {
        set.iter().for_each(|one| pair.owner.tripwires().arm(*one));
        let id = pair.importer.requests().queue(pair.to, &request).unwrap();
        assert_eq!(outcome(&mut pair.importer, id), RequestState::Complete);
        let mut fired = Vec::new();
        while fired.len() < expected.len() {
            assert_eq!(pair.owner.wait(Some(PATIENCE)), Ok(true));
            while let Some(one) = pair.owner.tripwires().ready().unwrap() {
                fired.push(set.iter().position(|other| *other == one).unwrap());
            }
        }
        fired.sort_unstable();
        assert_eq!(fired, expected, "case {number}");
        assert!(set.iter().all(|one| !pair.owner.tripwires().has_fired(*one)));
    }
}

//! Hostile importers and exporters on one host: requests, imports and notifications with random keys
//! and ranges, while apertures are revoked and applications end. No byte outside of an aperture
//! changes, nor one of a revoked aperture by a request, and nothing hangs.
//!
//! `TOWPATH_HOSTILE_SECONDS` makes them go on for longer than a test should take.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::connections::{HostileTime, PATIENCE, PORT, World, connect, next, open, options, world};
use fastrand::Rng;
use towpath_client::{
    Access, Aperture, ApertureKey, Endpoint, Export, Memory, OobAddress, Options, PeerState,
    Request, RequestError, RequestId, RequestState, Session, Sharing,
};

const BYTES: usize = 64 << 10;
/// The aperture, and the part of an honest importer's memory that requests name.
const GRANTED: Range<usize> = 16_384..32_768;
const CANARY: u8 = 0xa5;
/// Applications that attack one server, one after the other.
const ROUNDS: usize = 150;
/// What an application does before it ends.
const STEPS: u64 = 60;

fn wanted(name: &str) -> Options {
    Options { apertures: 32, tripwires: 8, ..options(name) }
}

/// An application whose memory others must not reach.
struct Honest {
    session: Session,
    listener: Endpoint,
    address: OobAddress,
    memory: Memory,
}

fn canaries(session: &mut Session, sharing: Sharing) -> Memory {
    let memory = session.memories().create(BYTES, sharing).unwrap();
    memory.write(0, &[CANARY; BYTES]).unwrap();
    memory
}

impl Honest {
    fn new(world: &World, sharing: Sharing) -> Honest {
        let mut session = world.attach_with(&wanted("honest"));
        let (listener, address) = open(&mut session, PORT);
        let memory = canaries(&mut session, sharing);
        Honest { session, listener, address, memory }
    }

    /// Takes another memory: only one session may ever map it for writing.
    fn replace_memory(&mut self) {
        let memory = canaries(&mut self.session, self.memory.sharing());
        let before = std::mem::replace(&mut self.memory, memory);
        self.session.memories().release(&before).unwrap();
    }

    /// Lets an endpoint of another application connect. Returns the endpoint here.
    fn connect(&mut self, other: &mut Session) -> (Endpoint, Endpoint) {
        let (theirs, own) = open(other, 0);
        let here = (&mut self.session, self.listener, self.address);
        (theirs, connect((other, theirs, own), here))
    }

    /// Takes what arrived, so that no queue is full.
    fn drain(&mut self, endpoint: Endpoint) {
        while self.session.oob().receive(endpoint).unwrap().is_some() {}
        while self.session.oob().ready().unwrap().is_some() {}
    }

    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.memory.read(range.start, &mut bytes).unwrap();
        bytes
    }

    /// Checks that nothing outside of the range has changed.
    fn check(&self, seed: u64) {
        for range in [0..GRANTED.start, GRANTED.end..BYTES] {
            assert!(self.bytes(range.clone()).iter().all(|byte| *byte == CANARY), "seed {seed}");
        }
    }
}

/// An application that has a connection with the honest one, and attacks it.
struct Hostile {
    session: Session,
    endpoint: Endpoint,
    memory: Memory,
    mapped: Option<Aperture>,
}

impl Hostile {
    /// Does one thing at random. `keys`: the latest ones that the honest application gave to any peer.
    fn attack(&mut self, keys: &[ApertureKey], random: &mut Rng) -> Option<RequestId> {
        let key = match random.u64(..32) {
            0 => ApertureKey(random.u32(..)),
            1 => keys[random.usize(..keys.len())],
            _ => *keys.last()?,
        };
        let offset = match random.u64(..32) {
            0 => random.u64(..),
            1 => (GRANTED.len() as u64).wrapping_sub(random.u64(..16)),
            _ => random.u64(..GRANTED.len() as u64 - 9_000),
        };
        let from = random.usize(..4_096);
        let range = from..from + [1, 8, 64, 1_000, 9_000][random.usize(..5)];
        let request = match random.u64(..16) {
            0 => {
                self.mapped = self.session.memories().import(self.endpoint, key).ok();
                return None;
            }
            1 => {
                // What the mapping is for: any store within it.
                if let Some(aperture) = &self.mapped {
                    let at = random.usize(..2 * BYTES);
                    let _ = aperture.write(at, &[random.u8(..); 64]);
                    let _ = aperture.load(at);
                }
                return None;
            }
            2 => Request::send(&random.u64(..).to_ne_bytes()),
            3..6 => Request::read(key, offset).local(&self.memory, range),
            6..9 => {
                let write = Request::write(key, offset).local(&self.memory, range);
                write.with_value(random.u32(..))
            }
            9 => Request::write(key, offset).local(&self.memory, range).together(),
            _ => Request::write(key, offset).local(&self.memory, range),
        };
        self.session.requests().queue(self.endpoint, &request).ok()
    }

    /// Has the server look at what is queued.
    fn hand_over(&mut self) {
        let _ = self.session.sender().flush();
        let _ = self.session.wait(Some(Duration::ZERO));
        while matches!(self.session.oob().ready(), Ok(Some(_))) {}
    }
}

/// Waits until none of the requests is pending. Returns how many are complete.
fn settle(session: &mut Session, ids: &[RequestId], mut meanwhile: impl FnMut()) -> usize {
    let until = Instant::now() + PATIENCE;
    while ids.iter().any(|id| session.requests().state(*id) == RequestState::Pending) {
        assert!(Instant::now() < until, "a request hangs");
        meanwhile();
        session.wait(Some(Duration::from_millis(1))).unwrap();
        while session.oob().ready().unwrap().is_some() {}
    }
    ids.iter().filter(|id| session.requests().state(**id) == RequestState::Complete).count()
}

/// Attacks with one application. Returns `true` if a request changed what the aperture has.
fn import(
    world: &World,
    honest: &mut Honest,
    keys: &mut Vec<ApertureKey>,
    random: &mut Rng,
) -> bool {
    let mut session = world.attach_with(&wanted("hostile"));
    let (endpoint, accepted) = honest.connect(&mut session);
    let memory = session.memories().create(BYTES, Sharing::Requests).unwrap();
    memory.write(0, &[random.u8(..); BYTES]).unwrap();
    let mut hostile = Hostile { session, endpoint, memory, mapped: None };
    let access = [Access::Read, Access::ReadWrite][random.usize(..2)];
    let export =
        honest.session.memories().export(accepted, &honest.memory, GRANTED, access).unwrap();
    keys.push(export.key());
    let mut export = Some(export);
    let (before, revoked_at) = (honest.bytes(GRANTED), random.u64(..2 * STEPS));
    let (mut fixed, mut ids) = (None, Vec::new());
    for step in 0..STEPS {
        ids.extend(hostile.attack(keys, random));
        if random.u64(..8) == 0 {
            hostile.hand_over();
            honest.drain(accepted);
        }
        if step == revoked_at
            && let Some(export) = export.take()
        {
            honest.session.memories().revoke(export).unwrap();
            // A store into a mapping of it is still possible.
            let is_final = honest.memory.sharing() == Sharing::Requests;
            fixed = is_final.then(|| honest.bytes(GRANTED));
        }
    }
    match random.u64(..3) {
        // It dies, with whatever is queued.
        0 => drop(hostile),
        1 => {
            hostile.hand_over();
            let _ = hostile.session.close(hostile.endpoint);
        }
        _ => {
            let _ = hostile.session.sender().flush();
            settle(&mut hostile.session, &ids, || honest.drain(accepted));
        }
    }
    honest.drain(accepted);
    if let Some(export) = export {
        honest.session.memories().revoke(export).unwrap();
    }
    // The engine has answered, so it carries out no request of this connection any more.
    honest.session.close(accepted).unwrap();
    let after = honest.bytes(GRANTED);
    if let Some(fixed) = fixed {
        assert_eq!(fixed, after, "a request after the aperture was revoked");
    }
    if access == Access::Read {
        assert_eq!(before, after, "a write without the right to it");
    }
    after != before
}

#[test]
fn hostile_importers_reach_nothing_but_their_apertures() {
    let time = HostileTime::start();
    for seed in time.seeds(2) {
        let sharing = [Sharing::Requests, Sharing::MapWrite][seed as usize % 2];
        let (world, mut random) = (world(1), Rng::with_seed(seed));
        let mut honest = Honest::new(&world, sharing);
        let (mut keys, mut changed) = (vec![ApertureKey(1)], 0);
        for _ in 0..ROUNDS {
            changed += usize::from(import(&world, &mut honest, &mut keys, &mut random));
            honest.check(seed);
            honest.replace_memory();
            keys.drain(..keys.len().saturating_sub(20));
        }
        assert!(changed > 0, "not one write of {ROUNDS} applications was right");
    }
}

/// What an exporter does at a random moment.
fn betray(hostile: Session, export: Export, memory: Memory, how: u64) -> Option<(Session, Memory)> {
    let mut session = hostile;
    match how {
        0 => drop(session.memories().revoke(export)),
        1 => drop(session.memories().release(&memory)),
        // It dies, and the memory with it.
        2 => return None,
        _ => {}
    }
    Some((session, memory))
}

/// Uses an aperture of one hostile application. Returns how many requests were complete, of how many.
fn use_exported(world: &World, honest: &mut Honest, random: &mut Rng) -> (usize, usize) {
    let mut hostile = world.attach_with(&wanted("hostile"));
    let (theirs, endpoint) = honest.connect(&mut hostile);
    let sharing = [Sharing::Requests, Sharing::MapWrite][random.usize(..2)];
    let memory = hostile.memories().create(BYTES, sharing).unwrap();
    let export = hostile.memories().export(theirs, &memory, 0..BYTES, Access::ReadWrite).unwrap();
    let key = export.key();
    let mapped = (sharing == Sharing::MapWrite)
        .then(|| honest.session.memories().import(endpoint, key).unwrap());
    let (mut ids, betrayed_at) = (Vec::new(), random.u64(..STEPS));
    let (mut hostile, mut export) = (Some((hostile, memory)), Some(export));
    for step in 0..STEPS {
        let from = GRANTED.start + random.usize(..GRANTED.len() - 9_000);
        let range = from..from + [8, 1_000, 9_000][random.usize(..3)];
        let at = random.u64(..BYTES as u64 - 9_000);
        let request = match random.u64(..2) {
            0 => Request::read(key, at).local(&honest.memory, range),
            _ => Request::write(key, at).local(&honest.memory, range),
        };
        match honest.session.requests().queue(endpoint, &request) {
            Ok(id) => ids.push(id),
            Err(RequestError::Full | RequestError::Revoked) => {}
            Err(error) => panic!("{error}"),
        }
        if random.u64(..4) == 0 {
            honest.session.sender().flush().unwrap();
        }
        if let Some(aperture) = &mapped {
            // An error, or memory that is there: never a signal.
            let _ = aperture.write(at as usize, &[7; 64]);
            let _ = aperture.load(at as usize & !7);
        }
        if step == betrayed_at
            && let (Some((session, memory)), Some(export)) = (hostile.take(), export.take())
        {
            hostile = betray(session, export, memory, random.u64(..4));
        }
    }
    honest.session.sender().flush().unwrap();
    let complete = settle(&mut honest.session, &ids, || {});
    if let Some(aperture) = mapped {
        let _ = honest.session.memories().release_aperture(aperture);
    }
    honest.drain(endpoint);
    honest.session.close(endpoint).unwrap();
    (complete, ids.len())
}

#[test]
fn hostile_exporters_take_nothing_from_their_importers() {
    for seed in HostileTime::start().seeds(1) {
        let (world, mut random) = (world(1), Rng::with_seed(seed));
        let mut honest = Honest::new(&world, Sharing::Requests);
        let (mut complete, mut all) = (0, 0);
        for _ in 0..ROUNDS {
            let (done, asked) = use_exported(&world, &mut honest, &mut random);
            (complete, all) = (complete + done, all + asked);
            honest.check(seed);
        }
        assert!(complete > 0 && complete < all, "{complete} of {all} requests are complete");
        // After all of them, the honest application still serves another one.
        let mut session = world.attach_with(&wanted("last"));
        let (endpoint, accepted) = honest.connect(&mut session);
        let id = honest.session.requests().queue(accepted, &Request::send(b"still here")).unwrap();
        honest.session.sender().flush().unwrap();
        assert_eq!(&next(&mut session, endpoint).payload()[..10], b"still here");
        assert_eq!(settle(&mut honest.session, &[id], || {}), 1);
        assert_eq!(session.peer_state(endpoint), PeerState::Connected);
    }
}

//! Apertures, tripwires and channels of applications whose server is killed and upgraded.

use std::net::IpAddr;
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{
    Access, AccessError, Aperture, Channel, ChannelError, Endpoint, ImportedTripwire, Memory,
    OobAddress, Options, PeerState, Request, RequestState, Rule, Session, Sharing, Tripwire,
};

use crate::running::*;

const ARGUMENTS: [&str; 4] = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
const KILLS: usize = 8;
/// What a side says last.
const LAST: u64 = u64::MAX;

/// One of two sides: what it writes, and what the other side writes to it.
struct Side {
    session: Session,
    endpoint: Endpoint,
    mine: Memory,
    tripwire: Tripwire,
    theirs: Aperture,
    trip: ImportedTripwire,
}

fn attach(server: &Running, name: &str) -> (Session, Endpoint, OobAddress) {
    let options = Options {
        name: name.into(),
        oob_slots: 8,
        apertures: 8,
        tripwires: 8,
        ..Options::default()
    };
    let mut session = Session::attach(&server.socket, &options).unwrap();
    let endpoint = session.open(&Rule::new().udp(0).out_of_band()).unwrap();
    let ip = IpAddr::V4(session.info().ipv4.unwrap().0);
    (session, endpoint, OobAddress { ip, protocol: 17, port: endpoint.port() })
}

/// Kills the server this many times, each time after some work. Returns once another one serves.
fn kill(server: &Running, times: usize) {
    let before = log_count(server);
    for killed in 1..=times {
        std::thread::sleep(Duration::from_millis(20));
        server.kill_server();
        until("another server", || log_count(server) == before + killed);
    }
}

fn message(session: &mut Session, endpoint: Endpoint) -> Vec<u8> {
    loop {
        if let Some(message) = session.oob().receive(endpoint).unwrap() {
            return message.payload().to_vec();
        }
        session.wait(Some(LIMIT)).unwrap();
        let _ = session.oob().ready().unwrap();
    }
}

/// Connects two sessions.
fn connected(server: &Running) -> [(Session, Endpoint); 2] {
    let (mut one, from, own) = attach(server, "one");
    let (mut other, to, address) = attach(server, "other");
    one.oob().request_connection(from, address, b"").unwrap();
    one.sender().flush().unwrap();
    message(&mut other, to);
    other.oob().accept_connection(to, own, b"").unwrap();
    other.sender().flush().unwrap();
    message(&mut one, from);
    while other.peer_state(to) != PeerState::Connected {
        other.wait(Some(Duration::from_millis(1))).unwrap();
    }
    [(one, from), (other, to)]
}

/// Connects two sessions, and gives each memory of the other.
fn sharing(server: &Running) -> [Side; 2] {
    let [(mut one, from), (mut other, to)] = connected(server);
    let [mine, theirs] = [(&mut one, from), (&mut other, to)].map(|(session, endpoint)| {
        let memory = session.memories().create(4096, Sharing::MapWrite).unwrap();
        let export =
            session.memories().export(endpoint, &memory, 0..64, Access::ReadWrite).unwrap();
        let tripwire = session.memories().set_tripwire(&memory, 0..8, Access::Write).unwrap();
        (memory, tripwire, export.key())
    });
    let to_other = one.memories().import(from, theirs.2).unwrap();
    let to_one = other.memories().import(to, mine.2).unwrap();
    let other_trip = one.memories().import_tripwire(&to_other, theirs.1.number()).unwrap();
    let one_trip = other.memories().import_tripwire(&to_one, mine.1.number()).unwrap();
    [
        Side {
            session: one,
            endpoint: from,
            mine: mine.0,
            tripwire: mine.1,
            theirs: to_other,
            trip: other_trip,
        },
        Side {
            session: other,
            endpoint: to,
            mine: theirs.0,
            tripwire: theirs.1,
            theirs: to_one,
            trip: one_trip,
        },
    ]
}

impl Side {
    fn say(&mut self, value: u64) {
        self.theirs.store(0, value).unwrap();
        self.session.tripwires().trip(self.trip).unwrap();
    }

    /// Waits until another server has resumed the session: one that neither waits nor asks for
    /// anything does not notice.
    fn resume(&mut self) {
        let before = self.session.statistics().resumptions;
        while self.session.statistics().resumptions == before {
            self.session.wait(Some(LIMIT)).unwrap();
            while self.session.tripwires().ready().unwrap().is_some() {}
            while self.session.oob().ready().unwrap().is_some() {}
            while self.session.ready().unwrap().is_some() {}
        }
    }

    /// Waits, asleep, until the other side has said a value, or its last one. Returns which.
    fn receive(&mut self, value: u64) -> u64 {
        loop {
            self.session.tripwires().arm(self.tripwire);
            let said = self.mine.load(0).unwrap();
            if said == value || said == LAST {
                return said;
            }
            assert!(self.session.wait(Some(LIMIT)).unwrap(), "value {value} never came");
            while self.session.tripwires().ready().unwrap().is_some() {}
            while self.session.oob().ready().unwrap().is_some() {}
        }
    }
}

#[test]
fn apertures_and_tripwires_outlive_their_servers() {
    towpath_testkit::isolated!(|| {
        if !tun("apertures::apertures_and_tripwires_outlive_their_servers") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        let [mut one, mut other] = sharing(&server);
        let over = std::sync::atomic::AtomicBool::new(false);
        let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            let (first, second) = (&mut one, &mut other);
            scope.spawn(move || {
                let mut round = 0;
                while round == 0 || !is_over() {
                    round += 1;
                    first.say(round);
                    first.receive(round);
                }
                first.say(LAST);
            });
            scope.spawn(move || {
                for round in 1.. {
                    if second.receive(round) == LAST {
                        return;
                    }
                    second.say(round);
                }
            });
            kill(&server, KILLS);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let log = server.log();
        assert!(!log.contains("not resumed"), "{log}");
        // What the next server knows: the rights, the ranges, the keys, and the free numbers.
        let memory = one.session.memories().create(8192, Sharing::MapRead).unwrap();
        let outcome = one.session.memories().export(one.endpoint, &one.mine, 0..1, Access::Read);
        assert!(outcome.unwrap_err().to_string().contains("overlaps"));
        let export =
            one.session.memories().export(one.endpoint, &memory, 0..100, Access::Read).unwrap();
        let board = other.session.memories().import(other.endpoint, export.key()).unwrap();
        memory.write(0, b"board").unwrap();
        server.kill_server();
        until("another server", || log_count(&server) == KILLS + 2);
        let mut seen = [0; 5];
        board.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"board");
        one.session.memories().revoke(export).unwrap();
        assert_eq!(board.read(0, &mut seen), Err(AccessError::Revoked));
        server.kill_server();
        until("another server", || log_count(&server) == KILLS + 3);
        one.resume();
        other.resume();
        assert!(board.read(0, &mut seen).is_err());
        one.session.memories().release(&memory).unwrap();
        // The connection, and with it the apertures, ends under another server than it began.
        drop(other.session);
        while one.session.peer_state(one.endpoint) != PeerState::Gone {
            one.session.wait(Some(LIMIT)).unwrap();
            let _ = one.session.oob().ready().unwrap();
        }
        assert_eq!(one.theirs.load(0), Err(AccessError::Gone));
        assert!(server.stop(Signal::TERM).success());
    });
}

/// Requests whose memories only workers map. Each request is carried out once, whichever server it began under.
#[test]
fn copies_by_workers_outlive_their_servers() {
    const BYTES: usize = 300_000;
    towpath_testkit::isolated!(|| {
        if !tun("apertures::copies_by_workers_outlive_their_servers") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        let [(mut one, from), (mut other, to)] = connected(&server);
        let remote = other.memories().create(BYTES, Sharing::Requests).unwrap();
        let key = other.memories().export(to, &remote, 0..BYTES, Access::ReadWrite).unwrap().key();
        let local = one.memories().create(2 * BYTES, Sharing::Requests).unwrap();
        let maps = || {
            let pid = server.server().unwrap().as_raw_nonzero();
            std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
        };
        assert!(maps().contains("memfd:towpath-memory"), "the engine maps those of one user");
        prints(&mut server.subcommand("set", &["notify=worker"]));
        until("no mapping of the memories", || !maps().contains("memfd:towpath-memory"));
        let over = std::sync::atomic::AtomicBool::new(false);
        let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1.. {
                    local.write(0, &[round; BYTES]).unwrap();
                    let write = Request::write(key, 0).local(&local, 0..BYTES);
                    let read = Request::read(key, 0).local(&local, BYTES..2 * BYTES);
                    for request in [write, read] {
                        let id = one.requests().queue(from, &request).unwrap();
                        one.sender().flush().unwrap();
                        while one.requests().state(id) == RequestState::Pending {
                            one.wait(Some(LIMIT)).unwrap();
                            while one.oob().ready().unwrap().is_some() {}
                        }
                        assert_eq!(one.requests().state(id), RequestState::Complete);
                    }
                    let mut back = vec![0; BYTES];
                    local.read(BYTES, &mut back).unwrap();
                    assert!(back.iter().all(|byte| *byte == round), "round {round}");
                    if round == 250 || is_over() {
                        return;
                    }
                }
            });
            kill(&server, KILLS);
            prints(&mut server.subcommand("upgrade", &[]));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let maps = maps();
        assert!(
            !maps.contains("memfd:towpath-memory") && maps.contains("memfd:towpath-copies"),
            "{maps}"
        );
        let log = server.log();
        assert!(!log.contains("not resumed"), "{log}");
        drop((one, other));
        assert!(server.stop(Signal::TERM).success());
    });
}

fn log_count(server: &Running) -> usize {
    server.log().matches("serving device=").count()
}

/// Sends a number, waiting for room.
fn put(channel: &mut Channel, session: &mut Session, number: u64) {
    while let Err(error) = channel.send(&number.to_le_bytes()) {
        assert_eq!(error, ChannelError::Full);
        assert!(channel.wait(session, Some(LIMIT)).unwrap(), "no room for {number}");
    }
}

/// Returns the next number, waiting for it.
fn take(channel: &mut Channel, session: &mut Session) -> u64 {
    let mut message = Vec::new();
    while !channel.receive_into(&mut message).unwrap() {
        assert!(channel.wait(session, Some(LIMIT)).unwrap(), "no message");
    }
    u64::from_le_bytes(message.try_into().unwrap())
}

/// Sides that sleep for each message, and one that is sent while there is no server.
#[test]
fn channels_outlive_their_servers() {
    towpath_testkit::isolated!(|| {
        if !tun("apertures::channels_outlive_their_servers") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let [(mut one, from), (mut other, to)] = connected(&server);
        let over = std::sync::atomic::AtomicBool::new(false);
        let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut channel = Channel::open(&mut one, from, 64, Some(LIMIT)).unwrap();
                for round in 0.. {
                    put(&mut channel, &mut one, if is_over() { LAST } else { round });
                    channel.flush(&mut one).unwrap();
                    match take(&mut channel, &mut one) {
                        LAST => break,
                        answer => assert_eq!(answer, round),
                    }
                    if round % 8 == 0 {
                        // The other side sleeps, also beyond the death of the server.
                        std::thread::sleep(Duration::from_millis(3));
                    }
                }
            });
            scope.spawn(move || {
                let mut channel = Channel::open(&mut other, to, 64, Some(LIMIT)).unwrap();
                loop {
                    let round = take(&mut channel, &mut other);
                    put(&mut channel, &mut other, round);
                    channel.flush(&mut other).unwrap();
                    if round == LAST {
                        break;
                    }
                }
            });
            kill(&server, KILLS);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let log = server.log();
        assert!(!log.contains("not resumed"), "{log}");
    });
}

/// Sides that never wait, but look at their sessions now and then.
#[test]
fn sides_that_only_poll_notice_another_server() {
    towpath_testkit::isolated!(|| {
        if !tun("apertures::sides_that_only_poll_notice_another_server") {
            return;
        }
        let directory = Directory::new();
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        let sides = connected(&server);
        std::thread::scope(|scope| {
            let polls = |(mut session, endpoint): (Session, Endpoint), first: bool| {
                let mut channel = Channel::open(&mut session, endpoint, 64, Some(LIMIT)).unwrap();
                let until = std::time::Instant::now() + LIMIT;
                let (mut round, mut message) = (0_u64, Vec::new());
                if first {
                    put(&mut channel, &mut session, round);
                    channel.flush(&mut session).unwrap();
                }
                // Odd answers say that the side's session is resumed; the first side ends it when both are.
                while round != LAST {
                    assert!(std::time::Instant::now() < until, "not resumed");
                    if !channel.receive_into(&mut message).unwrap() {
                        session.wait(Some(Duration::ZERO)).unwrap();
                        std::thread::yield_now();
                        continue;
                    }
                    let got = u64::from_le_bytes(message[..].try_into().unwrap());
                    let resumed = session.statistics().resumptions > 0;
                    round =
                        if got == LAST || first && resumed && got % 2 == 1 { LAST } else { got };
                    if got == LAST {
                        // The other side may have gone already: there is no answer.
                        break;
                    }
                    let answer = if round == LAST { LAST } else { 2 + u64::from(resumed) };
                    put(&mut channel, &mut session, answer);
                    channel.flush(&mut session).unwrap();
                }
                assert!(session.statistics().resumptions > 0);
            };
            let [one, other] = sides;
            scope.spawn(move || polls(one, true));
            scope.spawn(move || polls(other, false));
            kill(&server, 1);
        });
    });
}

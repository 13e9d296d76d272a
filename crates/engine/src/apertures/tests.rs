use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_memory::copies::Copies;
use towpath_memory::copying::{CopyArea, Direction, SLOTS};
use towpath_memory::{CommonMemory, SharedFile};
use towpath_protocol::apertures::{Access, ApertureState};
use towpath_protocol::oob::{Kind, PeerState, Refused};
use towpath_protocol::requests::{LocalRange, Request, RequestFault, RequestKind};

use super::commands::{ApertureCommand, ApertureReport, Exporting};
use super::memory::{EngineMemory, WorkerMemory};
use super::requests::{Outcome, Requesting, TRANSFER_BYTES, carry_out};
use crate::account::Account;
use crate::oob::Sender;
use crate::oob::connection::EndpointName;
use crate::oob::tests::{APERTURES, World};

const OWNER: (u32, u32) = (1, 0);
const IMPORTER: (u32, u32) = (2, 1);
const KEY: u32 = 7;
const BYTES: usize = 1 << 20;

fn name((session, endpoint): (u32, u32)) -> EndpointName {
    EndpointName { session, endpoint }
}

/// Two sessions with a memory each, and a connection between them.
fn world() -> (World, [CommonMemory; 2]) {
    let mut world = World::new(2);
    world.connect(OWNER, (2, 0), IMPORTER);
    let memories = [1, 2].map(|session| add_memory(&mut world, session));
    (world, memories)
}

fn add_memory(world: &mut World, session: u32) -> CommonMemory {
    let file = SharedFile::create("memory", BYTES).unwrap();
    let memory = file.map_common(true).unwrap();
    let add = ApertureCommand::AddMemory {
        session,
        number: 0,
        memory: EngineMemory::Mapped(memory.clone()),
    };
    assert!(execute(world, add).is_none());
    memory
}

fn execute(world: &mut World, command: ApertureCommand) -> Option<ApertureReport> {
    world.apertures.execute(command, &mut world.sessions, &mut world.notifier)
}

fn export(world: &mut World, key: u32, number: u32, resumed_for: Option<EndpointName>) -> bool {
    let command = ApertureCommand::Export(Box::new(Exporting {
        key,
        owner: name(OWNER),
        number,
        memory: 0,
        offset: 64,
        len: BYTES as u64 - 64,
        access: Access::ReadWrite,
        resumed_for,
    }));
    match execute(world, command) {
        Some(ApertureReport::Exported { peer, .. }) => peer.is_some(),
        other => panic!("{other:?}"),
    }
}

fn state(world: &World, session: u32, number: u32) -> ApertureState {
    let key = world.sessions.key(session).unwrap();
    world.sessions.get(key).unwrap().extras.apertures.state(number)
}

/// Carries out a request of the importer, and returns what became of it.
fn request(world: &mut World, slot: u32, request: &Request) -> Outcome {
    let from = world.at(IMPORTER.0, IMPORTER.1);
    let sender = Sender { from, session: IMPORTER.0, queue_pair: 0, slot, may_repeat: false };
    let checked = request.check().unwrap();
    let requesting = Requesting { sender, request, checked };
    carry_out(&requesting, &mut world.parts()).0
}

fn write(sequence: u32, len: u32) -> Request {
    let local = LocalRange { offset: 0, len, memory: 0 };
    Request::new(RequestKind::Write, sequence, (KEY, 0), &[local]).unwrap()
}

fn fault(world: &World) -> Option<RequestFault> {
    let key = world.sessions.key(IMPORTER.0).unwrap();
    world.sessions.get(key).unwrap().extras.apertures.fault(IMPORTER.1)
}

#[test]
fn thousands_of_apertures_end_a_few_at_a_time() {
    let (mut world, _) = world();
    for number in 0..APERTURES {
        assert!(export(&mut world, KEY + number, number, None));
    }
    world.send(OWNER, Kind::Close, (2, 0));
    assert!(world.apertures.has_ending(), "{APERTURES} do not end at once");
    // None of them can be used any more, and the endpoints are not connected before all are gone.
    assert_eq!(request(&mut world, 1, &write(1, 8)), Outcome::Ended);
    assert_eq!(fault(&world), Some(RequestFault::Closed));
    world.send(OWNER, Kind::Request, (2, 0));
    world.send(IMPORTER, Kind::Accept, OWNER);
    assert_eq!(world.state(IMPORTER), PeerState::Refused(Refused::State));
    let mut turns = 0;
    while world.apertures.has_ending() {
        let sessions = &mut world.sessions;
        assert!(world.apertures.remove_ended(sessions) <= 64);
        turns += 1;
    }
    assert!(turns >= APERTURES / 64 - 1);
    assert!((0..APERTURES).all(|number| state(&world, 1, number) == ApertureState::Closed));
    world.send(IMPORTER, Kind::Accept, OWNER);
    assert_eq!(world.state(IMPORTER), PeerState::Connected);
    assert_eq!(request(&mut world, 2, &write(2, 8)), Outcome::Ended);
    assert_eq!(
        fault(&world),
        Some(RequestFault::Key),
        "the old key is no key of the new connection"
    );
}

#[test]
fn a_successor_carries_out_no_request_that_is_complete() {
    let (mut world, [remote, local]) = world();
    assert!(export(&mut world, KEY, 0, None));
    assert!(local.store(0, 5));
    assert_eq!(request(&mut world, 1, &write(1, 8)), Outcome::Ended);
    assert_eq!(remote.load(64), Some(5));
    // The application knows that it is complete, and changes its memory; then the server is killed.
    assert!(local.store(0, 6));
    assert_eq!(request(&mut world, 1, &write(1, 8)), Outcome::Ended);
    assert_eq!(remote.load(64), Some(5));
    assert_eq!(request(&mut world, 2, &write(2, 8)), Outcome::Ended);
    assert_eq!((remote.load(64), fault(&world)), (Some(6), None));
}

#[test]
fn a_long_request_goes_on_where_it_was() {
    let (mut world, [remote, local]) = world();
    assert!(export(&mut world, KEY, 0, None));
    let len = 3 * TRANSFER_BYTES + 8;
    let data: Vec<u8> = (0..len).map(|place| (place % 251) as u8).collect();
    assert!(local.write(0, &data));
    let one = write(1, len as u32);
    assert_eq!(request(&mut world, 1, &one), Outcome::More);
    // What is moved is moved: a successor goes on behind it.
    assert!(local.write(0, &[0; 64]));
    for _ in 0..2 {
        assert_eq!(request(&mut world, 1, &one), Outcome::More);
    }
    assert_eq!(request(&mut world, 1, &one), Outcome::Ended);
    let mut placed = vec![0; len as usize];
    assert!(remote.read(64, &mut placed));
    assert_eq!(placed, data);
}

/// An application that exchanges its request for another one in between gets no right by it.
#[test]
fn a_request_is_checked_also_if_nothing_is_left_to_move() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None));
    assert_eq!(request(&mut world, 1, &write(1, 2 * TRANSFER_BYTES as u32)), Outcome::More);
    let local = LocalRange { offset: 0, len: 8, memory: 0 };
    let other = Request::new(RequestKind::WriteWithValue, 1, (KEY + 1, 0), &[local]).unwrap();
    assert_eq!(request(&mut world, 1, &other), Outcome::Ended);
    assert_eq!(fault(&world), Some(RequestFault::Key));
    assert!(!world.taken(OWNER).contains(&Kind::Value));
}

#[test]
fn a_successor_enters_what_was_valid() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None) && export(&mut world, KEY + 1, 1, None));
    let revoke = ApertureCommand::Revoke { key: KEY + 1, session: 1, number: 1 };
    assert!(execute(&mut world, revoke).is_none());
    assert_eq!(state(&world, 1, 1), ApertureState::Revoked);
    world.serve(vec![1, 2]);
    let before = Some(name(IMPORTER));
    assert!(export(&mut world, KEY, 0, before));
    assert!(!export(&mut world, KEY + 1, 1, before), "revoked");
    assert!(!export(&mut world, KEY + 2, 2, before), "never exported");
    assert_eq!(state(&world, 1, 1), ApertureState::Revoked);
    // For another endpoint than before, or without a connection.
    world.serve(vec![1, 2]);
    assert!(!export(&mut world, KEY, 0, Some(name((2, 2)))));
    assert_eq!(state(&world, 1, 0), ApertureState::Closed);
    let import = ApertureCommand::Import { key: KEY, session: 2, number: 5 };
    let report = execute(&mut world, import);
    assert!(matches!(report, Some(ApertureReport::Imported { entered: false, .. })));
    assert_eq!(state(&world, 2, 5), ApertureState::Closed);
}

/// The connection restored first ends the aperture, if the peer's session is gone.
#[test]
fn a_successor_without_the_peer_ends_the_aperture() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None));
    world.serve(vec![1]);
    assert!(!export(&mut world, KEY, 0, Some(name(IMPORTER))));
    assert_eq!(state(&world, 1, 0), ApertureState::Closed);
}

/// A worker, which copies when the test says so, and one memory of its user.
struct TestWorker {
    copies: Copies,
    area: Arc<CopyArea>,
    /// The application's view of the memory.
    memory: CommonMemory,
}

impl TestWorker {
    /// Enters a memory of a session that only a worker maps.
    fn new(world: &mut World, session: u32) -> TestWorker {
        let file = SharedFile::create("memory", BYTES).unwrap();
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let (area, area_file) = CopyArea::create(Arc::new(wake)).unwrap();
        let (area, id) = (Arc::new(area), u64::from(session) + 70);
        let mut copies = Copies::with_room(2);
        copies.set_area(Some(&area_file));
        copies.add(id, &file.as_fd().try_clone_to_owned().unwrap());
        let account = Account { uid: session, group: None, is_limited: true };
        let worker = (0, account);
        let by_worker = WorkerMemory { id, len: BYTES, area: area.clone(), worker };
        let memory = EngineMemory::ByWorker(by_worker);
        let change = ApertureCommand::ChangeMemory { session, number: 0, memory };
        assert!(execute(world, change).is_none());
        TestWorker { copies, area, memory: file.map_common(true).unwrap() }
    }

    /// Enters a memory of another session that the same worker maps. Returns the application's view of it.
    fn share(&mut self, world: &mut World, session: u32) -> CommonMemory {
        let file = SharedFile::create("memory", BYTES).unwrap();
        let id = u64::from(session) + 70;
        self.copies.add(id, &file.as_fd().try_clone_to_owned().unwrap());
        let account = Account { uid: 1, group: None, is_limited: true };
        let (area, worker) = (self.area.clone(), (0, account));
        let memory = EngineMemory::ByWorker(WorkerMemory { id, len: BYTES, area, worker });
        let change = ApertureCommand::ChangeMemory { session, number: 0, memory };
        assert!(execute(world, change).is_none());
        file.map_common(true).unwrap()
    }
}

/// Carries out a request, and lets the workers copy whenever it waits. Returns how often it waited.
fn request_by_workers(
    world: &mut World,
    slot: u32,
    one: &Request,
    workers: &mut [Option<TestWorker>],
) -> usize {
    let mut waits = 0;
    for _ in 0..10_000 {
        match request(world, slot, one) {
            Outcome::Ended => return waits,
            Outcome::More => {}
            Outcome::NotReady(_) => {
                waits += 1;
                // Without an answer, nothing changes.
                assert!(matches!(request(world, slot, one), Outcome::NotReady(_)));
                workers.iter_mut().flatten().for_each(|worker| worker.copies.serve());
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the request does not end")
}

/// Requests of all lengths and both directions, with a worker on each side, on both, and on none.
#[test]
fn workers_copy_what_the_engine_may_not_map() {
    for by_worker in [[false, false], [false, true], [true, false], [true, true]] {
        let (mut world, mapped) = world();
        assert!(export(&mut world, KEY, 0, None));
        let mut workers = [1, 2].map(|session| {
            by_worker[session - 1].then(|| TestWorker::new(&mut world, session as u32))
        });
        let [remote, local] = [0, 1].map(|side: usize| {
            let worker: &Option<TestWorker> = &workers[side];
            worker.as_ref().map_or(mapped[side].clone(), |one| one.memory.clone())
        });
        let data: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        for (turn, len) in (0..).zip([1, 8, 4099, TRANSFER_BYTES as u32, 200_003]) {
            assert!(local.write(0, &data) && remote.write(0, &vec![0; BYTES]));
            let ranges = [(40, len / 3), (500_000, len - len / 3)];
            let ranges = ranges.map(|(offset, len)| LocalRange { offset, len, memory: 0 });
            let mut expected = data[40..][..ranges[0].len as usize].to_vec();
            expected.extend_from_slice(&data[500_000..][..ranges[1].len as usize]);
            let ranges: Vec<_> = ranges.into_iter().filter(|range| range.len > 0).collect();
            let write = Request::new(RequestKind::Write, 2 * turn + 1, (KEY, 8), &ranges).unwrap();
            let waits = request_by_workers(&mut world, 2 * turn, &write, &mut workers);
            assert_eq!(
                (waits > 0, fault(&world)),
                (by_worker != [false; 2], None),
                "{by_worker:?}"
            );
            let mut placed = vec![0; len as usize];
            assert!(remote.read(72, &mut placed));
            assert!(placed == expected, "{by_worker:?}: {len} bytes");
            // And back, to another place.
            let to = [LocalRange { offset: 300, len, memory: 0 }];
            let read = Request::new(RequestKind::Read, 2 * turn + 2, (KEY, 8), &to).unwrap();
            request_by_workers(&mut world, 2 * turn + 1, &read, &mut workers);
            assert!(local.read(300, &mut placed));
            assert!(placed == expected, "{by_worker:?}: {len} bytes back");
        }
    }
}

/// Between two memories of one worker, the worker copies a whole range at once.
#[test]
fn a_worker_copies_between_its_memories_directly() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None));
    let mut remote = TestWorker::new(&mut world, 1);
    let local = remote.share(&mut world, 2);
    let data: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    assert!(local.write(0, &data));
    let len = (BYTES - 100) as u32;
    let range = [LocalRange { offset: 40, len, memory: 0 }];
    let memory = remote.memory.clone();
    let mut workers = [Some(remote), None];
    let write = Request::new(RequestKind::Write, 1, (KEY, 8), &range).unwrap();
    assert_eq!(request_by_workers(&mut world, 0, &write, &mut workers), 1, "asks");
    let mut placed = vec![0; len as usize];
    assert!(memory.read(72, &mut placed));
    assert!(placed == data[40..][..len as usize]);
    let to = [LocalRange { offset: 0, len, memory: 0 }];
    let read = Request::new(RequestKind::Read, 2, (KEY, 8), &to).unwrap();
    assert_eq!(request_by_workers(&mut world, 1, &read, &mut workers), 1, "asks");
    assert!(local.read(0, &mut placed));
    assert!(placed == data[40..][..len as usize]);
    assert_eq!(fault(&world), None);
}

/// A request that fails tells the application so only when no worker writes its memory any more.
#[test]
fn a_revoked_aperture_fails_a_request_after_the_workers_copy() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None));
    let mut worker = TestWorker::new(&mut world, 2);
    let to = [LocalRange { offset: 0, len: 8, memory: 0 }];
    let read = Request::new(RequestKind::Read, 1, (KEY, 0), &to).unwrap();
    assert!(matches!(request(&mut world, 1, &read), Outcome::NotReady(_)));
    let revoke = ApertureCommand::Revoke { key: KEY, session: 1, number: 0 };
    assert!(execute(&mut world, revoke).is_none());
    assert!(matches!(request(&mut world, 1, &read), Outcome::NotReady(_)));
    assert_eq!(fault(&world), None);
    worker.copies.serve();
    assert_eq!(request(&mut world, 1, &read), Outcome::Ended);
    assert_eq!(fault(&world), Some(RequestFault::Key));
}

/// The requests of a user whose worker has ended fail, and those that it has under way.
#[test]
fn a_lost_worker_fails_requests() {
    for is_under_way in [false, true] {
        let (mut world, _) = world();
        assert!(export(&mut world, KEY, 0, None));
        let worker = TestWorker::new(&mut world, 1);
        if is_under_way {
            assert!(matches!(request(&mut world, 1, &write(1, 8)), Outcome::NotReady(_)));
        }
        worker.area.lose();
        assert_eq!(request(&mut world, 1, &write(1, 8)), Outcome::Ended);
        assert_eq!(fault(&world), Some(RequestFault::NotReady));
    }
}

/// More requests than slots: each gets one in the end.
#[test]
fn slots_are_given_back() {
    let (mut world, _) = world();
    assert!(export(&mut world, KEY, 0, None));
    let mut worker = TestWorker::new(&mut world, 1);
    let tickets: Vec<_> = std::iter::from_fn(|| worker.area.claim()).collect();
    assert_eq!(tickets.len(), SLOTS);
    assert!(matches!(request(&mut world, 1, &write(1, 8)), Outcome::NotReady(_)));
    // A slot whose question has no answer is not free, though nothing waits for it any more.
    tickets[0].ask(Direction::Read, (71, 0, 8), (0, 0));
    drop(tickets);
    let tickets: Vec<_> = std::iter::from_fn(|| worker.area.claim()).collect();
    assert_eq!(tickets.len(), SLOTS - 1);
    drop(tickets);
    worker.copies.serve();
    assert_eq!(std::iter::from_fn(|| worker.area.claim()).collect::<Vec<_>>().len(), SLOTS);
    let mut workers = [Some(worker), None];
    assert!(request_by_workers(&mut world, 1, &write(1, 8), &mut workers) > 0);
    assert_eq!(fault(&world), None);
}

/// Requests from and to a memory that two users could take away.
#[test]
fn requests_to_a_memory_of_two_writers_are_refused() {
    for session in [1, 2] {
        let (mut world, _) = world();
        assert!(export(&mut world, KEY, 0, None));
        let memory = EngineMemory::Refused(BYTES);
        let change = ApertureCommand::ChangeMemory { session, number: 0, memory };
        assert!(execute(&mut world, change).is_none());
        assert_eq!(request(&mut world, 1, &write(1, 8)), Outcome::Ended);
        assert_eq!(fault(&world), Some(RequestFault::Rights));
    }
}

/// The worker also refuses a range outside of the memory.
#[test]
fn workers_copy_inside_of_memories_only() {
    let (mut world, _) = world();
    let mut worker = TestWorker::new(&mut world, 1);
    let bytes = BYTES as u64;
    for (id, offset, len) in [(71, bytes, 1), (71, u64::MAX, 2), (71, 0, 1 << 20)] {
        let ticket = worker.area.claim().unwrap();
        ticket.ask(Direction::Write, (id, offset, len), (0, 0));
        assert_eq!(ticket.outcome(), None);
        worker.copies.serve();
        assert_eq!(ticket.outcome(), Some(false), "{id} {offset} {len}");
    }
    let transfers = [(71, 0, 1), (71, bytes - 1, 2), (71, 0, (1 << 20) + 1)];
    for (id, start, len) in transfers {
        let ticket = worker.area.claim().unwrap();
        ticket.ask(Direction::Transfer, (71, 0, len), (id, start));
        worker.copies.serve();
        assert_eq!(ticket.outcome(), Some(len == 1), "{id} {start} {len}");
    }
    // Nothing is copied from a memory that the worker could not map.
    let unmappable = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    worker.copies.add(73, &unmappable);
    for direction in [Direction::Transfer, Direction::Write] {
        let ticket = worker.area.claim().unwrap();
        let memory = if direction == Direction::Transfer { 71 } else { 73 };
        ticket.ask(direction, (memory, 0, 8), (73, 0));
        worker.copies.serve();
        assert_eq!(ticket.outcome(), Some(false), "{direction:?}");
    }
    worker.copies.remove(73);
    let ticket = worker.area.claim().unwrap();
    ticket.ask(Direction::Write, (99, 0, 8), (0, 0));
    worker.copies.serve();
    assert_eq!(ticket.outcome(), None, "the memory may come");
}

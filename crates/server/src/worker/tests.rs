//! Tests of a worker's loop in a thread; the test holds the control thread's end of its channel.
//! Every test of a whole server shows that the loop also works behind a fork.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use towpath_memory::copies::Copies;
use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_protocol::message::{MAX_REQUEST_BYTES, Message};
use towpath_queue::OwnWords;

use super::closer::Closer;
use super::held::{Doorbells, Entries};
use super::link::{Link, Packet, Report};
use super::process::{Tables, Worker};
use super::spawner::pair;
use super::wire::{Descriptors, MAX_PACKET_BYTES, command, report};

/// Longer than any test takes.
const LONG: u64 = 3_600_000_000_000;

struct World {
    link: Option<Link>,
    engine: OwnedFd,
    notified: OwnedFd,
    counters: OwnWords,
    buffer: Box<[u8; MAX_PACKET_BYTES]>,
    worker: Option<JoinHandle<()>>,
}

impl World {
    fn new(step_ns: u64) -> World {
        let (ours, theirs) = pair().unwrap();
        let engine = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let notified = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let memory = Region::private(64).unwrap();
        let doorbells = Doorbells::new(vec![peer_words(memory.mapping()).part(0, 8)]);
        let (entries, copies) = (Entries::with_room(3), Copies::with_room(2));
        let tables = Tables { entries, doorbells, copies, step_ns, report_ns: LONG };
        let (epoll, event) = (engine.try_clone().unwrap(), notified.try_clone().unwrap());
        let worker = std::thread::spawn(move || {
            let mut buffer = Box::new([0; MAX_PACKET_BYTES]);
            let mut engines = Descriptors::default();
            engines[0] = Some(epoll);
            if let Ok(worker) = Worker::new(theirs, engines, event, tables) {
                worker.run(&mut buffer);
            }
        });
        World {
            // Without the closing thread, the test's own thread closes sent descriptors.
            link: Some(Link::new(ours, Closer::without_thread("").queue(1))),
            engine,
            notified,
            counters: own_words(memory),
            buffer: Box::new([0; MAX_PACKET_BYTES]),
            worker: Some(worker),
        }
    }

    fn link(&mut self) -> &mut Link {
        self.link.as_mut().unwrap()
    }

    fn tell(&mut self, kind: u32, token: u64, value: u64, descriptors: Vec<OwnedFd>) {
        self.link().push(Packet::new(kind, token, value).with(descriptors));
    }

    fn answer(&mut self, token: u64, value: u64, message: &Message, descriptors: Vec<OwnedFd>) {
        let packet = Packet::new(command::ANSWER, token, value);
        self.link().push(packet.with(descriptors).saying(message.encode()));
    }

    /// Returns the next report other than that commands were executed.
    fn next_report(&mut self) -> Report {
        loop {
            let (link, buffer) = (self.link.as_mut().unwrap(), &mut self.buffer);
            match link.receive(buffer) {
                Some(Report::Handled) => {}
                Some(report) => return report,
                None => {
                    poll(&mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)], None).unwrap();
                }
            }
        }
    }

    /// Waits until the worker has executed all commands.
    fn settle(&mut self) {
        while !self.link().is_idle() {
            let (link, buffer) = (self.link.as_mut().unwrap(), &mut self.buffer);
            poll(&mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)], None).unwrap();
            assert_eq!(link.receive(buffer), Some(Report::Handled));
        }
    }

    /// Makes a connection that the worker serves.
    fn connect(&mut self, token: u64, flags: u64) -> OwnedFd {
        let (ours, theirs) = pair().unwrap();
        self.tell(command::ADOPT, token, flags, vec![theirs]);
        ours
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.link = None;
        if let Some(worker) = self.worker.take() {
            assert!(worker.join().is_ok() || std::thread::panicking());
        }
    }
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

fn received(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let (_, len) =
        rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
    bytes[..len].to_vec()
}

fn message_report(token: u64, body: &[u8]) -> Report {
    Report::Message { token, wrong: report::VALID, body: body.to_vec() }
}

fn pipe() -> (std::fs::File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (read.into(), write)
}

fn is_closed(read: &mut std::fs::File) -> bool {
    read.read(&mut [0]).unwrap() == 0
}

/// The control thread's copy of a process's descriptor may be open for longer than the worker's.
/// The comparison of descriptors that keep memory in place only checks whether there are any.
impl PartialEq for Report {
    fn eq(&self, other: &Report) -> bool {
        match (self, other) {
            (
                Report::MemoryReady { token, outcome, is_unfreeable },
                Report::MemoryReady {
                    token: their_token,
                    outcome: theirs,
                    is_unfreeable: is_theirs,
                },
            ) => {
                let errors = (outcome.as_ref().err(), theirs.as_ref().err());
                (token, is_unfreeable) == (their_token, is_theirs) && errors.0 == errors.1
            }
            _ => format!("{self:?}") == format!("{other:?}"),
        }
    }
}

#[test]
fn the_end_of_a_process_ends_no_later_connection() {
    let mut world = World::new(LONG);
    // A pipe without a writer is readable, as the descriptor of a process that has ended.
    let (process, alive) = pipe();
    let copy = process.try_clone().unwrap();
    let (_ours, theirs) = pair().unwrap();
    world.tell(command::ADOPT, 7, 0, vec![theirs, process.into()]);
    world.settle();
    drop(alive);
    assert_eq!(world.next_report(), Report::Ended { token: 7 });
    let next = world.connect(8, 0);
    world.settle();
    say(&next, b"hello");
    assert_eq!(world.next_report(), message_report(8, b"hello"));
    drop(copy);
}

#[test]
fn a_connection_has_one_unanswered_request_at_a_time() {
    let mut world = World::new(LONG);
    let peer = world.connect(7, 0);
    say(&peer, b"first");
    say(&peer, b"second");
    assert_eq!(world.next_report(), message_report(7, b"first"));
    // The worker reads another connection's message next: the first connection's second message
    // waits.
    let other = world.connect(8, 0);
    say(&other, b"other");
    assert_eq!(world.next_report(), message_report(8, b"other"));
    let (mut read, write) = pipe();
    world.answer(7, 0, &Message::Done, vec![write]);
    assert_eq!(world.next_report(), message_report(7, b"second"));
    assert_eq!(received(&peer), Message::Done.encode());
    // The peer received the descriptor without room for it, so the kernel closed it, and no process
    // keeps it.
    assert!(is_closed(&mut read));
    // The last answer ends the connection.
    world.answer(7, command::LAST, &Message::Done, Vec::new());
    assert_eq!(world.next_report(), Report::Ended { token: 7 });
    assert_eq!(received(&peer), Message::Done.encode());
    assert_eq!(received(&peer), b"");
    world.tell(command::CLOSE_CONNECTION, 8, 0, Vec::new());
    world.settle();
    assert_eq!(received(&other), b"");
}

#[test]
fn invalid_requests_are_reported_without_their_content() {
    let mut world = World::new(LONG);
    let long = world.connect(1, 0);
    say(&long, &[7; MAX_REQUEST_BYTES + 1]);
    let wrong = report::TOO_LONG;
    assert_eq!(world.next_report(), Report::Message { token: 1, wrong, body: Vec::new() });
    say(&world.connect(2, 0), &[7; MAX_REQUEST_BYTES]);
    assert_eq!(world.next_report(), message_report(2, &[7; MAX_REQUEST_BYTES]));
    assert_eq!(world.wait_for_end_of(2), 2);
    // The kernel closes descriptors on arrival, and the server ignores their message.
    let gifts = world.connect(3, 0);
    let (mut read, write) = pipe();
    send_with(&gifts, b"hello", write.as_fd());
    drop(write);
    let wrong = report::DESCRIPTORS;
    assert_eq!(world.next_report(), Report::Message { token: 3, wrong, body: Vec::new() });
    assert!(is_closed(&mut read));
}

impl World {
    /// Waits until the worker notices a hung-up connection, behind an answer.
    fn wait_for_end_of(&mut self, token: u64) -> u64 {
        self.answer(token, 0, &Message::Done, Vec::new());
        let Report::Ended { token } = self.next_report() else { panic!("it goes on") };
        token
    }
}

fn send_with(socket: &OwnedFd, bytes: &[u8], descriptor: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn time_runs_only_while_the_peer_has_to_say_something() {
    let mut world = World::new(1_000_000);
    // The peer has sent a message: its time does not run, however late the server is.
    let peer = world.connect(1, 0);
    say(&peer, b"attach");
    assert_eq!(world.next_report(), message_report(1, b"attach"));
    let silent = world.connect(2, command::TIMED);
    assert_eq!(world.next_report(), Report::Ended { token: 2 });
    assert_eq!(received(&silent), b"");
    // After the answer, the peer's time runs.
    world.answer(1, command::TIMED, &Message::Done, Vec::new());
    assert_eq!(world.next_report(), Report::Ended { token: 1 });
    // A connection without a limit may be silent: the worker reports the others' ends, and not its.
    let patient = world.connect(3, 0);
    for token in 4..8 {
        let _peer = world.connect(token, command::TIMED);
        assert_eq!(world.next_report(), Report::Ended { token });
    }
    say(&patient, b"here");
    assert_eq!(world.next_report(), message_report(3, b"here"));
}

#[test]
fn a_peer_that_does_not_read_its_answers_is_cut_off() {
    let mut world = World::new(LONG);
    let _peer = world.connect(1, 0);
    loop {
        world.answer(1, 0, &Message::Done, Vec::new());
        while !world.link().is_idle() {
            let (link, buffer) = (world.link.as_mut().unwrap(), &mut world.buffer);
            match link.receive(buffer) {
                Some(Report::Ended { token: 1 }) => return,
                Some(Report::Handled) => {}
                Some(other) => panic!("{other:?}"),
                None => drop(poll(&mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)], None)),
            }
        }
    }
}

#[test]
fn more_connections_than_there_is_room_for_are_ended() {
    let mut world = World::new(LONG);
    let _peers: Vec<OwnedFd> = (0..3).map(|token| world.connect(token, 0)).collect();
    let fourth = world.connect(3, 0);
    assert_eq!(world.next_report(), Report::Ended { token: 3 });
    assert_eq!(received(&fourth), b"");
}

fn files() -> Vec<OwnedFd> {
    (0..5).map(|_| SharedFile::create("worker-test", 8192).unwrap().into()).collect()
}

fn copies(files: &[OwnedFd]) -> Vec<OwnedFd> {
    files.iter().map(|file| file.try_clone().unwrap()).collect()
}

/// Allocates a file, as an application does that has mapped it.
fn allocate(file: &OwnedFd) {
    let file = SharedFile::adopt(file.try_clone().unwrap()).unwrap();
    file.map_writable().unwrap().allocate().unwrap();
}

fn blocks(file: &OwnedFd) -> i64 {
    rustix::fs::fstat(file).unwrap().st_blocks
}

#[test]
fn memory_is_sealed_allocated_and_watched_by_the_engine() {
    let mut world = World::new(LONG);
    let files = files();
    for file in &files[3..] {
        allocate(file);
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let wake = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&wake, &event, epoll::EventData::new_u64(0), edge).unwrap();
    let mut handed = copies(&files);
    handed.push(wake.try_clone().unwrap());
    world.tell(command::PREPARE_MEMORY, 1, 42, handed);
    assert_eq!(world.next_report(), memory_ready(false));
    let page = [1; 4096];
    for (index, file) in files.iter().enumerate() {
        let is_the_servers = index < 3;
        assert_eq!(blocks(file), 16, "file {index}");
        assert_eq!(rustix::io::write(file, &page).is_ok(), is_the_servers, "file {index}");
    }
    // The engine's epoll set reports each notification of the application.
    for _ in 0..3 {
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
        let mut events = Vec::with_capacity(4);
        let nothing = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut came = || {
            epoll::wait(&world.engine, rustix::buffer::spare_capacity(&mut events), Some(&nothing))
                .unwrap();
            events.drain(..).map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(came(), [42]);
        assert_eq!(came(), [] as [u64; 0]);
    }
    // The seals are permanent.
    let mut handed = copies(&files);
    handed.push(wake);
    world.tell(command::PREPARE_MEMORY, 1, 42, handed);
    assert_eq!(
        world.next_report(),
        Report::MemoryReady {
            token: 1,
            outcome: Err(Errno::PERM.raw_os_error()),
            is_unfreeable: false
        }
    );
}

fn memory_ready(is_unfreeable: bool) -> Report {
    Report::MemoryReady { token: 1, outcome: Ok(Vec::new()), is_unfreeable }
}

/// A page that is missing, in the file of the application or of the transmit buffers, or in both.
#[test]
fn a_worker_reports_that_it_allocated_an_applications_memory() {
    for missing in [&[3][..], &[4], &[3, 4]] {
        let mut world = World::new(LONG);
        let files = files();
        for file in &files[3..] {
            allocate(file);
        }
        for index in missing {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&files[*index], hole, 4096, 4096).unwrap();
        }
        world.tell(command::PREPARE_OLDER, 1, 42, copies(&files));
        assert_eq!(world.next_report(), memory_ready(true), "{missing:?}");
        assert!(files.iter().all(|file| blocks(file) == 16), "the engine allocates nothing");
    }
}

/// The worker of an application that has to allocate its memory allocates none for it.
#[test]
fn memory_with_a_page_that_is_not_allocated_is_refused() {
    for missing in [3, 4] {
        let mut world = World::new(LONG);
        let files = files();
        for file in &files[3..] {
            allocate(file);
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&files[missing], hole, 4096, 4096).unwrap();
        world.tell(command::PREPARE_MEMORY, 1, 42, copies(&files));
        let outcome = Err(Errno::NODATA.raw_os_error());
        let refused = Report::MemoryReady { token: 1, outcome, is_unfreeable: false };
        assert_eq!(world.next_report(), refused, "{missing}");
        assert_eq!(blocks(&files[missing]), 8, "{missing}");
    }
}

#[test]
fn armed_words_that_are_not_allocated_are_refused() {
    let mut world = World::new(LONG);
    let armed: OwnedFd = SharedFile::create("worker-test", 8192).unwrap().into();
    world.tell(command::SEAL, 1, 0, vec![armed.try_clone().unwrap()]);
    let outcome = Err(Errno::NODATA.raw_os_error());
    assert_eq!(
        world.next_report(),
        Report::MemoryReady { token: 1, outcome, is_unfreeable: false }
    );
    assert_eq!(blocks(&armed), 0);
    let armed: OwnedFd = SharedFile::create("worker-test", 8192).unwrap().into();
    allocate(&armed);
    world.tell(command::SEAL, 1, 0, vec![armed]);
    world.settle();
}

#[test]
fn memory_is_freed_at_once_or_when_the_connection_ends() {
    let mut world = World::new(100_000_000);
    let [first, second] = [files(), files()];
    for file in first.iter().chain(&second) {
        rustix::io::write(file, &[1; 8192]).unwrap();
    }
    let blocks = |files: &[OwnedFd]| files.iter().map(blocks).sum::<i64>();
    world.tell(command::DISPOSE, 0, command::WIPE, copies(&first));
    world.settle();
    assert_eq!(blocks(&first), 0);
    // Without that flag the content stays.
    world.tell(command::DISPOSE, 0, 0, copies(&second));
    world.settle();
    assert!(blocks(&second) > 0);
    // A connection that still exists learns of the end at once, and keeps the first file for a
    // while; also during a request.
    let peer = world.connect(1, 0);
    say(&peer, b"request");
    assert_eq!(world.next_report(), message_report(1, b"request"));
    world.tell(command::DISPOSE, 1, command::WIPE, copies(&second));
    world.answer(1, 0, &Message::Done, Vec::new());
    assert_eq!(received(&peer), b"");
    assert_eq!(blocks(&second[1..]), 0);
    assert_eq!(world.next_report(), Report::Ended { token: 1 });
    assert_eq!(blocks(&second), 0);
}

/// A worker whose commands last long reports each, so that it does not count as hung.
#[test]
fn long_commands_are_reported_one_by_one() {
    for (report_ns, reports) in [(0, 3), (LONG, 0)] {
        let (ours, theirs) = pair().unwrap();
        let (entries, copies) = (Entries::with_room(1), Copies::with_room(1));
        let memory = Region::private(64).unwrap();
        let doorbells = Doorbells::new(vec![peer_words(memory.mapping()).part(0, 8)]);
        let tables = Tables { entries, doorbells, copies, step_ns: LONG, report_ns };
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut worker = Worker::new(theirs, Descriptors::default(), event, tables).ok().unwrap();
        let mut link = Link::new(ours, Closer::without_thread("").queue(1));
        for _ in 0..3 {
            link.push(Packet::new(command::DISPOSE, 0, 0));
        }
        let mut buffer = Box::new([0; MAX_PACKET_BYTES]);
        assert!(worker.commands(&mut buffer).is_ok());
        for _ in 0..reports {
            assert!(!link.is_idle());
            assert_eq!(link.receive(&mut buffer), Some(Report::Handled));
        }
        assert_eq!((link.receive(&mut buffer), link.is_idle()), (None, reports == 3));
    }
}

/// Unread descriptors count as the server's, so the connection counts as its user's until the peer
/// reads them.
#[test]
fn a_connection_stays_until_its_descriptors_are_read() {
    let mut world = World::new(LONG);
    let peer = world.connect(1, 0);
    say(&peer, b"attach");
    assert_eq!(world.next_report(), message_report(1, b"attach"));
    let (_read, write) = pipe();
    world.answer(1, 0, &Message::Done, vec![write]);
    rustix::net::shutdown(&peer, rustix::net::Shutdown::Write).unwrap();
    // Another connection comes and goes: the worker reports its end, and not the first one's.
    let other = world.connect(2, command::TIMED);
    drop(other);
    assert_eq!(world.next_report(), Report::Ended { token: 2 });
    assert_eq!(received(&peer), Message::Done.encode());
    assert_eq!(world.next_report(), Report::Ended { token: 1 });
    assert_eq!(received(&peer), b"");
}

#[test]
fn worker_notifies_for_the_engine_and_closes_doorbells() {
    let mut world = World::new(LONG);
    let mut bells: Vec<_> =
        (0..2).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
    // A notification that the engine made before the worker had the doorbell is not lost.
    world.counters.publish(5, 1);
    for (number, (ours, _)) in [(5, &bells[0]), (6, &bells[1])] {
        world.tell(command::OPEN_DOORBELL, 0, number, vec![ours.try_clone().unwrap().into()]);
    }
    world.settle();
    let mut byte = [0];
    let [(_, first), (ours, second)] = &bells[..] else { unreachable!() };
    (&*first).read_exact(&mut byte).unwrap();
    for _ in 0..3 {
        world.counters.publish(6, world.counters.get(6) + 1);
        rustix::io::write(&world.notified, &1_u64.to_ne_bytes()).unwrap();
        (&*second).read_exact(&mut byte).unwrap();
    }
    first.set_nonblocking(true).unwrap();
    assert!((&*first).read(&mut byte).is_err(), "its counter stands");
    // The worker closes the doorbell: the server's descriptor goes with the command.
    world.tell(command::CLOSE_DOORBELL, 0, 6, vec![ours.try_clone().unwrap().into()]);
    world.settle();
    let (ours, mut theirs) = bells.pop().unwrap();
    drop(ours);
    assert_eq!(theirs.read(&mut byte).unwrap(), 0);
    assert!(theirs.write(&byte).is_err());
}

/// The server sends a hung worker nothing more, and still learns that it executed its last command.
#[test]
fn a_worker_reports_its_last_commands_before_it_ends() {
    let mut world = World::new(LONG);
    for _ in 0..50 {
        let file: OwnedFd = SharedFile::create("worker-test", 8192).unwrap().into();
        world.link().push(Packet::new(command::DISPOSE, 0, command::WIPE).with(vec![file]));
        world.link().say_no_more();
        while !world.link().is_idle() {
            let (link, buffer) = (world.link.as_mut().unwrap(), &mut world.buffer);
            poll(&mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)], None).unwrap();
            assert_eq!(link.receive(buffer), Some(Report::Handled));
        }
        world = World::new(LONG);
    }
}

#[test]
fn commands_wait_for_socket_room_and_none_is_lost() {
    let mut world = World::new(LONG);
    // The test sends more at once than a socket has room for.
    let mut pipes = Vec::new();
    for _ in 0..1000 {
        let (read, write) = pipe();
        world.tell(command::DISPOSE, 0, command::WIPE, vec![write]);
        pipes.push(read);
    }
    while !world.link().flush() {
        std::thread::yield_now();
        let (link, buffer) = (world.link.as_mut().unwrap(), &mut world.buffer);
        while link.receive(buffer).is_some() {}
    }
    world.settle();
    assert!(pipes.iter_mut().all(is_closed));
}

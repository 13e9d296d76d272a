//! An application that forks: the child has no session, and the parent's goes on.
//!
//! Unsafe lives here for `fork`, and for the child's end without the parent's destructors.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{
    AccessError, ChannelError, Endpoint, Lost, OpenError, Options, QueuePair, Rule, SendError,
    Session, Sharing,
};
use towpath_pdu::PduEndpoint;
use towpath_tests::{PATIENCE, frames};

use crate::channel;

fn with_itself(session: &mut Session, endpoint: Endpoint, numbers: std::ops::Range<u64>) {
    let own = session.info().mac;
    for number in numbers {
        session.sender().send_bytes(endpoint, &frames::frame(own, own, 7, number)).expect("lives");
        session.sender().flush().expect("lives");
        assert!(session.wait(Some(PATIENCE)).expect("lives"));
        let seen = session
            .receiver()
            .receive_one(QueuePair::FIRST)
            .expect("lives")
            .expect("something is there");
        frames::check(&seen, own, own, 7, number).expect("the sent frame");
    }
}

/// Runs a function in a child and returns its process number.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls, touches only its own memory and ends. Other threads of this
    // process wait for input, or hold locks of the networks whose behaviour in a child is under test.
    // The C library keeps its allocator usable in children.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status.unwrap_or(99)) }
        }
        pid => pid,
    }
}

pub(crate) fn status(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status is written to a live integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status
}

/// Tries every call in a child.
fn try_everything(mut session: Session, endpoint: Endpoint) -> i32 {
    let before = session.statistics();
    assert_eq!(session.wait(Some(Duration::from_millis(1))), Err(Lost::Forked), "wait");
    assert_eq!(session.wait(None), Err(Lost::Forked), "wait for ever");
    assert_eq!(
        session.receiver().receive(QueuePair::FIRST, 1, |_| ()),
        Err(Lost::Forked.into()),
        "receive"
    );
    assert_eq!(
        session.receiver().receive_one(QueuePair::FIRST),
        Err(Lost::Forked.into()),
        "receive one"
    );
    assert_eq!(session.sender().flush(), Err(Lost::Forked), "flush");
    assert_eq!(session.sender().want_room(QueuePair::FIRST), Err(Lost::Forked.into()), "want room");
    assert_eq!(session.sender().unsent(QueuePair::FIRST), Err(Lost::Forked.into()), "unsent");
    assert_eq!(session.arm(), Err(Lost::Forked), "arm");
    assert_eq!(session.ready(), Err(Lost::Forked), "ready");
    assert_eq!(session.sender().has_room(endpoint, 60), Err(Lost::Forked.into()), "room");
    assert_eq!(session.lost(), Some(Lost::Forked), "lost");
    assert!(session.sender().reserve().is_none(), "reserve");
    let sent = session.sender().send_bytes(endpoint, &[0; 60]);
    assert_eq!(sent, Err(SendError::Lost(Lost::Forked)), "send");
    let opened = session.open(&Rule::new()).unwrap_err();
    assert!(matches!(opened, OpenError::Lost(Lost::Forked)), "open: {opened}");
    let closed = session.close(endpoint).unwrap_err();
    assert!(matches!(closed, OpenError::Lost(Lost::Forked)), "close: {closed}");
    // These calls return no error: they must neither fault nor take anything from the parent.
    session.disarm();
    session.take_notifications();
    assert!(session.counters(endpoint).iter().all(|(_, value)| value == 0), "counters");
    assert_eq!(session.statistics(), before, "statistics");
    drop(session);
    0
}

/// Tries a channel in a child, and then in the parent.
fn with_a_channel(socket: &Path) {
    let (mut one, mut other) = (channel::attach(socket, "one"), channel::attach(socket, "other"));
    let [mut near, mut far] = channel::open(&mut one, &mut other);
    far.send(b"waits").expect("there is room");
    far.flush(&mut other).expect("lives");
    near.send(b"not published").expect("there is room");
    let child = fork(|| {
        assert_eq!(near.send(b"child's"), Err(ChannelError::Forked), "send");
        assert!(matches!(near.receive(), Err(ChannelError::Forked)), "receive");
        assert_eq!(near.finish(), Err(ChannelError::Forked), "finish");
        assert_eq!(near.flush(&mut one), Err(Lost::Forked), "flush");
        assert_eq!(near.wait(&mut one, None), Err(Lost::Forked), "wait");
        assert_eq!(near.arm(&mut one), Err(Lost::Forked), "arm");
        0
    });
    assert_eq!(status(child), 0, "the child found something else than a channel that is gone");
    let mut message = Vec::new();
    assert!(!far.receive_into(&mut message).expect("lives"), "the child published nothing");
    near.flush(&mut one).expect("lives");
    assert!(far.receive_into(&mut message).expect("lives"));
    assert_eq!(message, b"not published");
    assert!(near.receive_into(&mut message).expect("lives"));
    assert_eq!(message, b"waits");
    near.close(&mut one).expect("closes");
    assert!(matches!(far.receive(), Err(ChannelError::Closed)));
}

/// Tries, in a child, a memory and messages that the parent had begun to write and to read.
fn with_memory_and_messages(socket: &Path) {
    let (mut one, mut other) = (channel::attach(socket, "one"), channel::attach(socket, "other"));
    let [mut near, mut far] = channel::open(&mut one, &mut other);
    let memory = one.memories().create(4096, Sharing::Requests).expect("memory");
    memory.write(0, b"parent's").expect("writes");
    far.send(b"parent's").expect("there is room");
    far.flush(&mut other).expect("lives");
    let received = near.receive().expect("lives").expect("it is there");
    let mut reserved = far.reserve(8).expect("there is room");
    reserved.write(0, b"parent's").expect("writes");
    let child = fork(|| {
        assert_eq!(memory.read(0, &mut [0; 8]), Err(AccessError::Forked), "memory, read");
        assert_eq!(memory.write(0, b"child's"), Err(AccessError::Forked), "memory, write");
        assert_eq!(memory.load(0), Err(AccessError::Forked), "memory, load");
        assert_eq!(memory.store(0, 7), Err(AccessError::Forked), "memory, store");
        assert_eq!(received.read(0, &mut [0; 8]), Err(AccessError::Forked), "read");
        assert_eq!(received.to_vec(), [0; 8], "copy");
        assert_eq!(reserved.write(0, b"child's"), Err(AccessError::Forked), "write");
        // SAFETY: the parent drops its own copies, which lie in another memory.
        let (received, reserved) =
            unsafe { (std::ptr::read(&raw const received), std::ptr::read(&raw const reserved)) };
        drop(received);
        reserved.send();
        let created = one.memories().create(4096, Sharing::Requests).map(|_| ());
        assert!(matches!(created, Err(OpenError::Lost(Lost::Forked))), "create");
        let released = one.memories().release(&memory);
        assert!(matches!(released, Err(OpenError::Lost(Lost::Forked))), "release");
        0
    });
    assert_eq!(status(child), 0, "the child found something else than memory that is gone");
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).expect("reads");
    assert_eq!(&bytes, b"parent's");
    assert_eq!(received.to_vec(), b"parent's");
    drop(received);
    reserved.send();
    far.flush(&mut other).expect("lives");
    let mut message = Vec::new();
    assert!(near.receive_into(&mut message).expect("lives"));
    assert_eq!(message, b"parent's");
    one.memories().release(&memory).expect("releases");
}

/// Tries a PDU endpoint with a waiting fragment, in a child and then in the parent.
fn with_pdus(socket: &Path) {
    let attach = || Session::attach(socket, &Options::default()).expect("attaches");
    let (session, other) = (attach(), attach());
    let to = other.info().mac;
    let options = towpath_pdu::Options::default();
    let mut pdus = PduEndpoint::open(session, &options).expect("opens");
    let mut far = PduEndpoint::open(other, &options).expect("opens");
    pdus.send_bytes(to, 7, b"parent's").expect("there is room");
    let mut message = pdus.message(to, 7, 8).expect("there is room");
    message.write_all(b"another ").expect("writes");
    let child = fork(|| {
        assert!(message.next_chunk().is_none(), "chunk");
        assert_eq!(message.send(), Err(Lost::Forked), "send a message");
        0
    });
    assert_eq!(status(child), 0, "the child found something else than a message that is gone");
    let child = fork(|| {
        let lost = Err(towpath_pdu::SendError::Lost(Lost::Forked));
        assert_eq!(pdus.send_bytes(to, 7, b"child's"), lost, "send");
        assert_eq!(pdus.message(to, 7, 8).map(|_| 0), lost, "message");
        assert!(!pdus.has_room(7, 8), "room");
        assert_eq!(pdus.flush(), Err(Lost::Forked), "flush");
        assert_eq!(pdus.receive(1, |_| ()), Err(Lost::Forked), "receive");
        pdus.want_room();
        assert_eq!(pdus.wait(None), Err(Lost::Forked), "wait");
        assert_eq!(pdus.drain(Duration::MAX, |_| ()), Err(Lost::Forked), "drain");
        0
    });
    assert_eq!(status(child), 0, "the child found something else than an endpoint that is gone");
    pdus.flush().expect("lives");
    let mut seen = Vec::new();
    while seen.is_empty() {
        assert!(far.wait(Some(PATIENCE)).expect("lives"), "no PDU came");
        far.receive(8, |pdu| pdu.append_to(&mut seen)).expect("lives");
    }
    assert_eq!(seen, b"parent's");
}

/// Prints `child N` once a child that holds everything lives on, and ends with its input.
pub(crate) fn run(socket: &Path) {
    let options = Options { name: "forked".into(), ..Options::default() };
    let mut session = Session::attach(socket, &options).expect("attaches");
    let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).expect("opens");
    with_itself(&mut session, endpoint, 0..50);
    with_a_channel(socket);
    with_memory_and_messages(socket);
    with_pdus(socket);

    // A packet waits, and a notification in the doorbell: the child must get neither.
    assert!(!session.arm().expect("lives"), "nothing waits");
    let own = session.info().mac;
    let mut another = Session::attach(socket, &options).expect("attaches");
    let rule = Rule::new().ethertype(frames::ETHERTYPE);
    let of_another = another.open(&rule).expect("opens");
    let from = another.info().mac;
    another.sender().send_bytes(of_another, &frames::frame(own, from, 7, 50)).expect("lives");
    another.sender().flush().expect("lives");
    towpath_tests::eventually("the packet arrives", || {
        session.counters(endpoint).rx_packets() == 51
    });

    // The child gets the parent's session as it is in memory. Both have it: the child drops its
    // copy.
    let session = std::mem::ManuallyDrop::new(session);
    let child = fork(|| {
        // SAFETY: in the child this is the only one; the parent's lies in another memory.
        let session = unsafe { std::ptr::read(&raw const *session) };
        try_everything(session, endpoint)
    });
    assert_eq!(status(child), 0, "the child found something else than a session that is gone");
    let mut session = std::mem::ManuallyDrop::into_inner(session);
    let mut polled = [PollFd::new(&session, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&none)), Ok(1), "the notification was the parent's");
    assert!(session.wait(Some(PATIENCE)).expect("lives"), "and the packet");
    session.disarm();
    let seen = session
        .receiver()
        .receive_one(QueuePair::FIRST)
        .expect("lives")
        .expect("the packet was the parent's");
    frames::check(&seen, own, from, 7, 50).expect("the sent frame");
    drop(another);
    with_itself(&mut session, endpoint, 51..100);

    let child = fork(|| {
        // Holds its inherited descriptors, until it is killed, and not for ever.
        std::thread::sleep(3 * PATIENCE);
        0
    });
    println!("child {child}");
    let _ = std::io::stdin().lines().last();
    std::mem::forget(session);
}

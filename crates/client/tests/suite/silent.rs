//! A server that does not answer: every request of the client ends with a specific error, and the
//! client takes no late answer for another request's.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socketpair};
use towpath_client::{AttachError, Lost, OpenError, Options, Rule, Session, Setting};
use towpath_device_testing::loopback;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{ErrorBody, Message, Refusal};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};

const SHORT: Duration = Duration::from_millis(50);

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn within(answer_timeout: Duration) -> Options {
    Options { answer_timeout, ..Options::default() }
}

#[test]
fn attaching_to_a_silent_server_fails_by_name() {
    let (near, far) = pair();
    let error = Session::attach_over(near, &within(SHORT)).unwrap_err();
    assert!(matches!(error, AttachError::NoAnswer { path: None, after: SHORT }), "{error}");
    let said = error.to_string();
    assert!(said.contains("did not answer within 50ms") && said.contains("restart"), "{said}");
    // The server's socket holds the request, and after it the connection's end.
    let far = Channel::new(far);
    assert!(matches!(far.receive().unwrap(), Incoming::Message(Message::Attach(_), _)));
    assert!(matches!(far.receive().unwrap(), Incoming::End));
}

/// A listening socket in a directory of its own.
struct Listening {
    directory: PathBuf,
    path: PathBuf,
    socket: OwnedFd,
}

impl Listening {
    fn new(name: &str) -> Listening {
        let directory = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("x.sock");
        let socket = seqpacket(SocketFlags::CLOEXEC);
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        Listening { directory, path, socket }
    }

    fn attach(&self) -> AttachError {
        Session::attach(&self.path, &within(SHORT)).unwrap_err()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn seqpacket(flags: SocketFlags) -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

#[test]
fn a_server_that_accepts_no_connection_is_named() {
    let server = Listening::new("silent");
    let is_named = |error: AttachError| {
        assert!(
            matches!(&error, AttachError::NoAnswer { path: Some(path), after: SHORT } if *path == server.path),
            "{error}"
        );
        assert!(error.to_string().starts_with(&format!("{}: ", server.path.display())), "{error}");
    };
    // The kernel accepts the connection and the request, and no answer comes back.
    is_named(server.attach());
    // The kernel accepts no further connection.
    let address = SocketAddrUnix::new(&server.path).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match rustix::net::connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100, "the queue of connections is never full");
    };
    assert_eq!(full, rustix::io::Errno::AGAIN);
    is_named(server.attach());
}

/// A server that is replaced, or that has too many connections, closes connections that it has not read. Others get through.
#[test]
fn a_server_that_hangs_up_is_asked_again() {
    for hang_ups in [5, 6] {
        let server = Listening::new(&format!("hangs-up-{hang_ups}"));
        let socket = server.socket.try_clone().unwrap();
        let served = std::thread::spawn(move || {
            for _ in 0..hang_ups {
                drop(rustix::net::accept(&socket).unwrap());
            }
            if hang_ups == 5 {
                let channel = Channel::new(rustix::net::accept(&socket).unwrap());
                assert!(matches!(
                    channel.receive().unwrap(),
                    Incoming::Message(Message::Attach(_), _)
                ));
                let body = ErrorBody::new(Refusal::Limit, "no room");
                channel.send(&Message::Error(Box::new(body)), &[]).unwrap();
            }
        });
        let error = Session::attach(&server.path, &within(Duration::from_secs(10))).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(if hang_ups == 5 { "no room" } else { "hung up" }), "{said}");
        served.join().unwrap();
    }
}

/// The pauses between attempts do not outlast the application's time limit.
#[test]
fn a_server_that_hangs_up_is_not_asked_after_the_deadline() {
    let server = Listening::new("hangs-up-late");
    let socket = server.socket.try_clone().unwrap();
    let served = std::thread::spawn(move || {
        let mut count = 0;
        let mut polled = [PollFd::new(&socket, PollFlags::IN)];
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        while poll(&mut polled, Some(&limit)).unwrap() > 0 {
            drop(rustix::net::accept(&socket).unwrap());
            count += 1;
        }
        count
    });
    // The fourth attempt would be after 105 ms.
    let error = Session::attach(&server.path, &within(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(error, AttachError::HungUp), "{error}");
    assert!((1..=3).contains(&served.join().unwrap()));
}

/// Relays `answered` requests to a server and their answers back. Keeps the next answer until the
/// test says to send that too. If sending then fails, returns the next message from the client's
/// end as the error.
fn relay(
    client: OwnedFd,
    server: OwnedFd,
    answered: usize,
    go_on: &mpsc::Receiver<()>,
) -> Result<(), Incoming> {
    let (client, server) = (Channel::new(client), Channel::new(server));
    let exchange = || {
        let Incoming::Message(request, _) = client.receive().unwrap() else {
            panic!("the client hung up");
        };
        server.send(&request, &[]).unwrap();
        let Incoming::Message(answer, descriptors) = server.receive().unwrap() else {
            panic!("the server hung up");
        };
        (answer, descriptors)
    };
    for _ in 0..answered {
        let (answer, descriptors) = exchange();
        let descriptors: Vec<_> = descriptors.iter().map(std::os::fd::AsFd::as_fd).collect();
        client.send(&answer, &descriptors).unwrap();
    }
    let (late, _) = exchange();
    assert_eq!(late, Message::Done);
    go_on.recv().unwrap();
    match client.send(&late, &[]) {
        Ok(()) => Ok(()),
        Err(_) => Err(client.receive().unwrap()),
    }
}

#[test]
fn a_late_answer_is_no_other_requests_answer() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let config = Config { settings: EngineStrategy::Block.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let connection = server.connect().unwrap();
    let (client, relayed) = pair();
    let (say_go_on, go_on) = mpsc::channel();
    // To attach takes two requests, to open one.
    let relay = std::thread::spawn(move || relay(relayed, connection, 3, &go_on));
    let after = Duration::from_secs(3);
    let mut session = Session::attach_over(client, &within(after)).unwrap();
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = session.open(&rule).unwrap();
    let lost = Lost::NoAnswer { after };
    let is_lost = |result: Result<(), OpenError>| match result {
        Err(OpenError::Lost(is)) => assert_eq!(is, lost),
        other => panic!("{other:?}"),
    };
    is_lost(session.set(endpoint, Setting::Weight, 2));
    assert!(lost.to_string().contains("within 3s") && lost.to_string().contains("attach again"));
    say_go_on.send(()).unwrap();
    let late = relay.join().unwrap();
    assert!(matches!(late, Err(Incoming::End)), "the late answer found {late:?}");
    // Each later request reports the loss, and none of them takes the late answer for its own.
    is_lost(session.close(endpoint));
    is_lost(session.open(&rule).map(drop));
    is_lost(session.set(endpoint, Setting::Weight, 3));
    assert_eq!(session.wait(Some(Duration::ZERO)), Err(lost));
    assert!(session.sender().send_bytes(endpoint, &[0; 60]).is_err());
    drop(session);
    server.stop().unwrap();
}

//! The three ways in which one thread waits for many connections.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Poll, Token};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;
use towpath_net::{Events, Interest, Poller, TcpStream, Trigger};

use crate::world::World;

/// The ways, by their names.
pub(crate) const NAMES: [&str; 3] = ["Poller", "tokio", "mio"];
/// The longest wait for a byte that has been sent. It only ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Connections that one thread waits for.
pub(crate) trait Waiting {
    /// Waits for the newest connection, and reads its byte.
    fn receive(&mut self);
}

/// Has one thread wait for connections; the byte comes from the last one.
pub(crate) fn wait_for(name: &str, world: &World, streams: Vec<TcpStream>) -> Box<dyn Waiting> {
    match name {
        "Poller" => Box::new(ByPoller::new(streams)),
        "tokio" => Box::new(ByTokio::new(world, streams)),
        "mio" => Box::new(ByMio::new(world, streams)),
        _ => panic!("there is no way {name}"),
    }
}

struct ByPoller {
    poller: Poller,
    events: Events,
    streams: Vec<TcpStream>,
}

impl ByPoller {
    fn new(streams: Vec<TcpStream>) -> ByPoller {
        let (poller, events) = (Poller::new().unwrap(), Events::with_capacity(64));
        for (stream, token) in streams.iter().zip(0..) {
            poller.register(stream, token, Interest::READABLE, Trigger::Level).unwrap();
        }
        ByPoller { poller, events, streams }
    }
}

impl Waiting for ByPoller {
    fn receive(&mut self) {
        loop {
            self.poller.wait(&mut self.events, Some(LIMIT)).unwrap();
            assert!(!self.events.is_empty(), "no event");
            let last = self.streams.last_mut().unwrap();
            match last.read(&mut [0; 8]) {
                Ok(len) => return assert_eq!(len, 1),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

/// A task for each connection, and one that drives the network.
struct ByTokio {
    runtime: Runtime,
    last: towpath_net::tokio::TcpStream,
}

impl ByTokio {
    fn new(world: &World, mut streams: Vec<TcpStream>) -> ByTokio {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.spawn(towpath_net::tokio::drive(world.server.clone()));
        let last = towpath_net::tokio::TcpStream::new(streams.pop().unwrap()).unwrap();
        let (started, count) = (Arc::new(AtomicUsize::new(0)), streams.len());
        for stream in streams {
            let started = started.clone();
            let mut stream = towpath_net::tokio::TcpStream::new(stream).unwrap();
            runtime.spawn(async move {
                started.fetch_add(1, Ordering::Relaxed);
                let read = stream.read_u8().await;
                unreachable!("an idle connection has {read:?}");
            });
        }
        // Each task runs until it waits.
        while started.load(Ordering::Relaxed) < count {
            runtime.block_on(tokio::task::yield_now());
        }
        ByTokio { runtime, last }
    }
}

impl Waiting for ByTokio {
    fn receive(&mut self) {
        let read = tokio::time::timeout;
        let read = self.runtime.block_on(async { read(LIMIT, self.last.read_u8()).await });
        assert_eq!(read.expect("a byte").unwrap(), 7);
    }
}

struct ByMio {
    network: towpath_net::Network,
    poll: Poll,
    events: mio::Events,
    streams: Vec<towpath_net::mio::Socket<TcpStream>>,
}

/// The token of the network's work.
const WORK: Token = Token(usize::MAX >> 1);

impl ByMio {
    fn new(world: &World, streams: Vec<TcpStream>) -> ByMio {
        let (network, poll) = (world.server.clone(), Poll::new().unwrap());
        let work = network.work_fd().unwrap().as_raw_fd();
        poll.registry().register(&mut SourceFd(&work), WORK, mio::Interest::READABLE).unwrap();
        network.turn().unwrap();
        let mut registered = Vec::with_capacity(streams.len());
        for (stream, number) in streams.into_iter().zip(0..) {
            let mut stream = towpath_net::mio::Socket::new(stream);
            let token = Token(number);
            poll.registry().register(&mut stream, token, mio::Interest::READABLE).unwrap();
            registered.push(stream);
        }
        ByMio { network, poll, events: mio::Events::with_capacity(64), streams: registered }
    }
}

impl Waiting for ByMio {
    fn receive(&mut self) {
        loop {
            self.poll.poll(&mut self.events, Some(LIMIT)).unwrap();
            assert!(!self.events.is_empty(), "no event");
            if self.events.iter().any(|event| event.token() == WORK) {
                self.network.turn().unwrap();
            }
            match self.streams.last_mut().unwrap().read(&mut [0; 8]) {
                Ok(len) => return assert_eq!(len, 1),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

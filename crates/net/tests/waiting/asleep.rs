//! Wake-ups, one at a time: the engine, the receiving thread and the threads of the library sleep, one datagram is sent, and the
//! receiver has to wake. It waits without a limit, so nothing but the wake-up ends its wait.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use towpath_client::Session;
use towpath_device_testing::loopback;
use towpath_net::{
    Driving, Events, Interest, Network, Poller, SessionLink, Trigger, UdpSocket, tokio as tasks,
};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy};

/// The rounds of a normal run, for each way to wait.
const ROUNDS: u64 = 2000;
/// A lost wake-up ends the test after this time.
const LIMIT: Duration = Duration::from_secs(60);
/// The receiver's address.
const AT: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 77, 0, 2), 7);

/// How the receiver waits.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The thread that waits drives the network.
    PollerThatDrives,
    /// A thread of the library drives it.
    PollerBesideTheLibrary,
    /// A task waits, and another one drives.
    Tokio,
}

/// Threads of this process, by the files that tell their states.
struct Threads(Vec<File>);

impl Threads {
    /// Finds the threads that wait for the network: all but the main one and those of the server beside the engine.
    fn find() -> Threads {
        let tasks =
            std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
        let of_interest = tasks.filter(|task| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            ["engine", "towpath-net", "receiver"].contains(&name.trim())
        });
        Threads(of_interest.map(|task| File::open(task.join("stat")).unwrap()).collect())
    }

    fn are_asleep(&self) -> bool {
        self.0.iter().all(|stat| {
            let mut text = [0; 64];
            let len = stat.read_at(&mut text, 0).unwrap();
            let state = text[..len].iter().position(|byte| *byte == b')').map(|at| at + 2);
            state.and_then(|at| text.get(at)) == Some(&b'S')
        })
    }
}

/// Waits for a condition, and gives the processor away meanwhile.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Receives datagrams with numbers in order, and counts them.
fn receive(way: Way, network: &Network, socket: UdpSocket, rounds: u64, received: &AtomicU64) {
    let mut buffer = [0; 16];
    match way {
        Way::PollerThatDrives | Way::PollerBesideTheLibrary => {
            socket.set_nonblocking(true).unwrap();
            let (poller, mut events) = (Poller::new().unwrap(), Events::with_capacity(4));
            poller.register(&socket, 0, Interest::READABLE, Trigger::Edge).unwrap();
            while received.load(Ordering::Relaxed) < rounds {
                poller.wait(&mut events, None).unwrap();
                while let Ok(len) = socket.recv(&mut buffer) {
                    let number = received.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(buffer[..len], number.to_be_bytes());
                }
            }
        }
        Way::Tokio => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let driver = tokio::spawn(tasks::drive(network.clone()));
                let socket = tasks::UdpSocket::new(socket).unwrap();
                for number in 0..rounds {
                    let len = socket.recv(&mut buffer).await.unwrap();
                    assert_eq!(buffer[..len], number.to_be_bytes());
                    received.fetch_add(1, Ordering::Relaxed);
                }
                driver.abort();
            });
        }
    }
}

fn counter(server: &Server, name: &str) -> u64 {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["counters"][name].as_u64().unwrap()
}

/// Sends a datagram in each round, and returns the time and the number of the longest round.
fn send(socket: &UdpSocket, rounds: u64, received: &AtomicU64) -> (Duration, u64) {
    until("the receiver's thread", || {
        // The engine, the sender's library thread and the receiver.
        Threads::find().0.len() >= 3
    });
    let threads = Threads::find();
    let mut longest = (Duration::ZERO, 0);
    for number in 0..rounds {
        until("all threads sleep", || threads.are_asleep());
        let start = Instant::now();
        socket.send_to(&number.to_be_bytes(), AT).unwrap();
        let what = format!("the wake-up of round {number}");
        until(&what, || received.load(Ordering::Relaxed) > number);
        longest = longest.max((start.elapsed(), number));
    }
    longest
}

fn wakes(way: Way, rounds: u64) {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new("10.77.0.1".parse().unwrap(), 24));
    let subnets = Subnets { ipv4, ipv6: None };
    let config = Config { subnets, settings: WaitStrategy::Block.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let host = |name, driving| {
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options(name)).unwrap();
        Network::builder().driving(driving).over(session).unwrap()
    };
    let driving = match way {
        Way::PollerBesideTheLibrary => Driving::Thread,
        Way::PollerThatDrives | Way::Tokio => Driving::Application,
    };
    let (receiver, sender) = (host("receiver", driving), host("sender", Driving::Thread));
    assert_eq!(receiver.addresses()[0], AT.0);
    let (inbound, outbound) =
        (UdpSocket::bind(&receiver, AT).unwrap(), UdpSocket::bind(&sender, "0.0.0.0:0").unwrap());
    let (received, before) = (AtomicU64::new(0), counter(&server, "sleeps"));
    let start = Instant::now();
    let longest = std::thread::scope(|scope| {
        let receiving = || receive(way, &receiver, inbound, rounds, &received);
        let thread = std::thread::Builder::new().name("receiver".into());
        thread.spawn_scoped(scope, receiving).unwrap();
        send(&outbound, rounds, &received)
    });
    let (time, sleeps) = (start.elapsed(), counter(&server, "sleeps") - before);
    let (most, number) = longest;
    println!("{way:?}: {rounds} wake-ups in {time:.1?}; the engine slept {sleeps} times");
    // A wake-up that only a later timer replaced would show as a round of seconds.
    println!("{way:?}: the longest round, {number}, took {most:.1?}");
    assert!(sleeps >= rounds, "the engine slept {sleeps} times in {rounds} rounds");
    drop((outbound, receiver, sender));
    server.stop().unwrap();
}

/// No wake-up is lost, whichever way the receiver waits.
pub(crate) fn no_wake_up_is_lost() {
    let rounds = std::env::var("TOWPATH_WAKE_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    for way in [Way::PollerThatDrives, Way::PollerBesideTheLibrary, Way::Tokio] {
        wakes(way, rounds);
    }
}

//! Two sessions of a server in this process, and connections between their endpoints.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use towpath_client::{
    Endpoint, OobAddress, OobKind, Options, PeerState, ReceivedOob, Rule, Session, WaitStrategy,
    report_over,
};
use towpath_device_testing::loopback::{self, LoopbackDevice};
use towpath_protocol::settings::{Setting, Values};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

/// Ends a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const SLOTS: u32 = 16;
pub(crate) const PORT: u16 = 7471;

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) _far: LoopbackDevice,
}

pub(crate) fn world(lanes: usize) -> World {
    world_with(lanes, EngineStrategy::Block.into())
}

/// A world in which workers notify, and reach the memories of sessions, as for several users.
pub(crate) fn world_of_workers() -> World {
    world_with(1, settings_of_workers())
}

/// The settings of such a world.
pub(crate) fn settings_of_workers() -> Values {
    let mut settings: Values = EngineStrategy::Block.into();
    settings.set(Setting::Notify, Setting::Notify.parse("worker").unwrap()).unwrap();
    settings
}

fn world_with(lanes: usize, settings: Values) -> World {
    let subnet = |ip: &str, prefix| Some(Subnet::new(ip.parse().unwrap(), prefix));
    let subnets = Subnets { ipv4: subnet("10.77.0.1", 24), ipv6: None };
    let config = Config { settings, subnets, lanes, ..Config::default() };
    let device = loopback::Config { queues: lanes, ..loopback::Config::default() };
    let (near, far) = loopback::pair(&device).unwrap();
    let store = Box::<MemoryStore>::default();
    World { server: Server::start(&config, Box::new(near), store).unwrap(), _far: far }
}

pub(crate) fn options(name: &str) -> Options {
    Options {
        name: name.into(),
        oob_slots: SLOTS,
        wait_strategy: WaitStrategy::Block,
        ..Options::default()
    }
}

impl World {
    pub(crate) fn attach(&self, name: &str) -> Session {
        self.attach_with(&options(name))
    }

    pub(crate) fn attach_with(&self, options: &Options) -> Session {
        Session::attach_over(self.server.connect().unwrap(), options).unwrap()
    }

    /// Returns a session with an endpoint, and its address.
    pub(crate) fn at(&self, name: &str, port: u16) -> (Session, Endpoint, OobAddress) {
        let mut session = self.attach(name);
        let (endpoint, address) = open(&mut session, port);
        (session, endpoint, address)
    }

    /// Returns what the report says of a session.
    pub(crate) fn reported(&self, session: &Session, field: &str) -> u64 {
        let report = report_over(self.server.connect().unwrap()).unwrap();
        let sessions = report["sessions"].as_array().unwrap();
        let one = sessions.iter().find(|one| one["session"] == session.info().session).unwrap();
        one[field].as_u64().unwrap()
    }

    pub(crate) fn counter(&self, session: &Session, endpoint: Endpoint, name: &str) -> u64 {
        let report = report_over(self.server.connect().unwrap()).unwrap();
        let sessions = report["sessions"].as_array().unwrap();
        let one = sessions.iter().find(|one| one["session"] == session.info().session).unwrap();
        let all = one["endpoints"].as_array().unwrap();
        let endpoint = all.iter().find(|one| one["endpoint"] == endpoint.id().number()).unwrap();
        endpoint["counters"][name].as_u64().unwrap()
    }
}

pub(crate) fn open(session: &mut Session, port: u16) -> (Endpoint, OobAddress) {
    let endpoint = session.open(&Rule::new().tcp(port).out_of_band()).unwrap();
    let ip = IpAddr::V4(session.info().ipv4.unwrap().0);
    (endpoint, OobAddress { ip, protocol: 6, port: endpoint.port() })
}

/// Waits until something holds.
pub(crate) fn eventually(mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until an endpoint has a message, and takes it.
pub(crate) fn next(session: &mut Session, endpoint: Endpoint) -> ReceivedOob {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(message) = session.oob().receive(endpoint).unwrap() {
            return message;
        }
        assert!(Instant::now() < until, "no message");
        session.wait(Some(PATIENCE)).unwrap();
        while let Some(ready) = session.oob().ready().unwrap() {
            if ready == endpoint.id() {
                break;
            }
        }
    }
}

/// Waits until an endpoint's peer has a state.
pub(crate) fn becomes(session: &mut Session, endpoint: Endpoint, state: PeerState) {
    let until = Instant::now() + PATIENCE;
    while session.peer_state(endpoint) != state {
        assert!(Instant::now() < until, "{:?}, not {state:?}", session.peer_state(endpoint));
        session.wait(Some(Duration::from_millis(100))).unwrap();
        let _ = session.oob().ready().unwrap();
    }
}

/// Connects an endpoint of one session with a new endpoint of another one, which listens.
pub(crate) fn connect(
    (client, endpoint, own): (&mut Session, Endpoint, OobAddress),
    (server, listener, to): (&mut Session, Endpoint, OobAddress),
) -> Endpoint {
    client.oob().request_connection(endpoint, to, b"hello").unwrap();
    assert_eq!(client.peer_state(endpoint), PeerState::Requested);
    client.sender().flush().unwrap();
    let request = next(server, listener);
    assert_eq!((request.kind(), request.payload()), (OobKind::Request, &b"hello"[..]));
    assert_eq!((request.from(), request.session()), (own, client.info().session));
    let (accepting, _) = open(server, 0);
    server.oob().accept_connection(accepting, request.from(), b"welcome").unwrap();
    server.sender().flush().unwrap();
    becomes(client, endpoint, PeerState::Connected);
    becomes(server, accepting, PeerState::Connected);
    let answer = next(client, endpoint);
    assert_eq!((answer.kind(), answer.payload()), (OobKind::Accept, &b"welcome"[..]));
    accepting
}

/// How long hostile parties go on: for a number of servers, or for the time that the environment gives.
pub(crate) struct HostileTime(Option<Instant>);

impl HostileTime {
    pub(crate) fn start() -> HostileTime {
        let seconds = std::env::var("TOWPATH_HOSTILE_SECONDS").ok();
        let seconds = seconds.map(|text| text.parse().expect("a number of seconds"));
        HostileTime(seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)))
    }

    /// Returns a seed for each server that they attack: `count`, or as many as the time allows.
    pub(crate) fn seeds(&self, count: u64) -> impl Iterator<Item = u64> {
        let most = if self.0.is_some() { u64::MAX } else { count };
        (1..=most).take_while(|_| !self.is_over())
    }

    /// `true` once a given time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|until| Instant::now() >= until)
    }
}

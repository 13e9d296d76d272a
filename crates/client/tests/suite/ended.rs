//! The addresses of ended sessions on a device that filters, with two lanes: the engines answer for these addresses.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use towpath_client::{Options, Rule, Session, report_over};
use towpath_device::{Device, Filter, FilterError, Meta};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, Cable, LoopbackDevice, Reception};
use towpath_device_testing::refusing::{Refuses, Refusing};
use towpath_packet::build::Flow;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

const LANES: usize = 2;
const PEER: ([u8; 6], [u8; 4]) = ([2, 9, 9, 9, 9, 9], [10, 77, 0, 1]);
/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    cable: Cable,
    far: Vec<DeviceFarEnd>,
}

/// The port of flows for which the tests' devices have no filter.
const REFUSED_PORT: u16 = 99;

fn has_refused_port(filter: &Filter) -> bool {
    matches!(filter, Filter::Flow(flow) if flow.port == Some(REFUSED_PORT))
}

/// The device could receive everything instead.
fn is_full(wanted: &Filter, _: &[Filter]) -> Option<FilterError> {
    has_refused_port(wanted).then_some(FilterError::Full)
}

/// Nothing replaces the filter.
fn fails(wanted: &Filter, _: &[Filter]) -> Option<FilterError> {
    has_refused_port(wanted).then(|| FilterError::Failed(std::io::ErrorKind::Other.into()))
}

impl World {
    fn new(filters_addresses: bool) -> World {
        let reception = Reception { filters_addresses, ..Reception::default() };
        World::over(reception, |device| Box::new(device))
    }

    fn over(reception: Reception, wrap: impl FnOnce(LoopbackDevice) -> Box<dyn Device>) -> World {
        let device = loopback::Config { queues: LANES, reception, ..loopback::Config::default() };
        let (near, far) = loopback::pair(&device).unwrap();
        let (cable, far) = (near.cable(), DeviceFarEnd::of_all(Box::new(far)));
        let ipv4 = Some(Subnet::new(PEER.1.into(), 24));
        let subnets = Subnets { ipv4, ipv6: None };
        let config = Config { subnets, lanes: LANES, ..Config::default() };
        let store = Box::<MemoryStore>::default();
        World { server: Server::start(&config, wrap(near), store).unwrap(), cable, far }
    }

    /// Attaches a session. A session of another name gets other addresses.
    fn attach(&self, name: &str) -> Session {
        let options = Options { name: name.into(), ..Options::default() };
        Session::attach_over(self.server.connect().unwrap(), &options).unwrap()
    }

    /// Attaches a session with an endpoint, and ends it. Returns a flow to it, once the engines answer for it.
    fn ended(&self) -> Flow {
        let mut session = self.attach("ended");
        session.open(&Rule::new().udp(7)).unwrap();
        let (mac, (own, _)) = (session.info().mac, session.info().ipv4.unwrap());
        drop(session);
        comes("the session's end", || self.report()["sessions"].as_array().unwrap().is_empty());
        Flow::v4().macs(PEER.0, mac).addresses(IpAddr::V4(PEER.1.into()), own).ports(9, 9)
    }

    fn report(&self) -> serde_json::Value {
        report_over(self.server.connect().unwrap()).unwrap()
    }

    fn count(&self, lane: usize, counter: &str) -> u64 {
        self.report()["device"]["lanes"][lane][counter].as_u64().unwrap()
    }

    /// Sends a datagram to a lane, and waits until its engine has received it.
    fn send(&mut self, lane: usize, flow: &Flow) {
        let before = self.count(lane, "rx_dropped_no_match");
        // An engine without room for an answer sends none.
        while self.far[lane].receive().is_some() {}
        while !self.far[lane].send(&flow.udp(b"are you there?"), Meta::FULL) {}
        comes("the datagram", || self.count(lane, "rx_dropped_no_match") > before);
    }

    /// Returns `true` if a lane's engine answers a datagram.
    fn is_answered(&mut self, lane: usize, flow: &Flow) -> bool {
        let before = self.count(lane, "freed_answers");
        // The engine counts a packet before it answers, and answers before it takes the next one.
        (0..2).for_each(|_| self.send(lane, flow));
        self.count(lane, "freed_answers") > before
    }
}

fn comes(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The claim of another host reaches one lane, as broadcasts do.
#[test]
fn a_claim_on_one_lane_ends_the_answers_of_all() {
    for lane in 0..LANES {
        let mut world = World::new(false);
        let flow = world.ended();
        (0..LANES).for_each(|lane| comes("an answer", || world.is_answered(lane, &flow)));
        let claim = flow.addresses(flow.destination, flow.source).who_has();
        assert!(world.far[lane].send(&claim, Meta::FULL));
        (0..LANES).for_each(|lane| comes("silence", || !world.is_answered(lane, &flow)));
        world.server.stop().unwrap();
    }
}

#[test]
fn a_claim_releases_the_filters() {
    let mut world = World::new(true);
    let flow = world.ended();
    let filters = [Filter::Address(flow.destination_mac), Filter::AllGroups];
    comes("the filters", || world.cable.filters() == filters);
    // The session had the same filters. A claim ends the answers only once the engine answers.
    comes("an answer", || world.is_answered(0, &flow));
    let claim = flow.addresses(flow.destination, flow.source).who_has();
    assert!(world.far[0].send(&claim, Meta::FULL));
    comes("the end of the filters", || world.cable.filters().is_empty());
    world.server.stop().unwrap();
}

#[test]
fn a_freed_lease_gives_way_only_to_a_filter_that_then_has_room() {
    let by_address = Reception { filters_addresses: true, ..Reception::default() };
    for (refuses, is_full) in [(is_full as Refuses, true), (fails, false)] {
        let wrap = |inner| Box::new(Refusing::new(Box::new(inner), refuses)) as Box<dyn Device>;
        let world = World::over(by_address, wrap);
        let freed = Filter::Address(world.ended().destination_mac);
        comes("the filters", || world.cable.filters() == [freed, Filter::AllGroups]);
        let mut session = world.attach("another");
        let outcome = session.open(&Rule::new().udp(REFUSED_PORT));
        assert_eq!(outcome.is_ok(), is_full, "{outcome:?}");
        assert_eq!(world.cable.filters().contains(&Filter::Everything), is_full);
        assert!(world.cable.filters().contains(&freed));
        world.server.stop().unwrap();
    }
    let of_one = Reception { most_filters: Some(1), ..by_address };
    let world = World::over(of_one, |device| Box::new(device));
    let freed = Filter::Address(world.ended().destination_mac);
    comes("the filters", || world.cable.filters() == [freed, Filter::AllGroups]);
    let session = world.attach("another");
    assert_eq!(world.cable.filters(), [Filter::Address(session.info().mac.octets())]);
    world.server.stop().unwrap();
}

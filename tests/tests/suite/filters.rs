//! A device that filters: it knows what an application receives before the application does, and
//! forgets it at the application's end.

use towpath_client::{AttachError, Options, QueuePair, Rule, Session};
use towpath_device::{Filter, FlowRule, FlowVlan, Meta};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, Cable, Reception};
use towpath_packet::build::Flow;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server};
use towpath_tests::process::Program;
use towpath_tests::{PATIENCE, eventually};

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

const BY_ALL: Reception = Reception {
    filters_addresses: true,
    filters_flows: true,
    data_bytes: None,
    removes_tags: false,
    verifies: false,
    hashes: false,
    most_filters: None,
};

fn served(reception: Reception, config: &Config) -> (Server, Cable, DeviceFarEnd) {
    let device = loopback::Config { reception, ..Default::default() };
    let (near, far) = loopback::pair(&device).unwrap();
    let cable = near.cable();
    let server = Server::start(config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, cable, DeviceFarEnd::new(Box::new(far)))
}

fn attach(server: &Server) -> Result<Session, AttachError> {
    Session::attach_over(server.connect().unwrap(), &Options::default())
}

/// Returns the filter for UDP packets to a port.
fn udp(mac: [u8; 6], port: u16) -> Filter {
    Filter::Flow(FlowRule {
        mac: Some(mac),
        vlan: FlowVlan::Untagged,
        protocol: Some(17),
        port: Some(port),
        ..FlowRule::default()
    })
}

#[test]
fn the_device_knows_a_claim_before_the_application_does() {
    let (server, cable, _far) = served(BY_ALL, &Config::default());
    assert_eq!(cable.filters(), []);
    let mut first = attach(&server).unwrap();
    let address = Filter::Address(first.info().mac.octets());
    assert_eq!(cable.filters(), [address]);
    let mac = first.info().mac;
    let one = first.open(&Rule::new().udp(2000)).unwrap();
    assert_eq!(cable.filters(), [address, udp(mac.octets(), 2000)]);
    let group = first.open(&Rule::new().udp(2001).with_group()).unwrap();
    assert_eq!(
        cable.filters(),
        [address, Filter::AllGroups, udp(mac.octets(), 2000), udp(mac.octets(), 2001)]
    );
    let capture = first.open(&Rule::capture()).unwrap();
    assert!(cable.filters().contains(&Filter::Everything));
    first.close(capture).unwrap();
    assert!(!cable.filters().contains(&Filter::Everything));

    // Another session's group outlives this one's.
    let mut second = attach(&server).unwrap();
    second.open(&Rule::new().udp(2000).with_group()).unwrap();
    first.close(group).unwrap();
    first.close(one).unwrap();
    let theirs = second.info().mac;
    let mut left = vec![
        address,
        Filter::Address(theirs.octets()),
        Filter::AllGroups,
        udp(theirs.octets(), 2000),
    ];
    left.sort_unstable();
    assert_eq!(cable.filters(), left);
    drop((first, second));
    eventually("the sessions' addresses are gone", || cable.filters().is_empty());
}

/// Packets arrive as soon as the application may expect them, and no others reach the engine.
#[test]
fn only_claimed_packets_reach_the_engine() {
    let (server, _cable, mut far) = served(BY_ALL, &Config::default());
    let mut session = attach(&server).unwrap();
    let mac = session.info().mac;
    session.open(&Rule::new().udp(2000)).unwrap();
    let flow = Flow::v4().macs([2, 0, 0, 0, 0, 1], mac);
    let other = Flow::v4().macs([2, 0, 0, 0, 0, 1], [2; 6]);
    let mine = flow.ports(1, 2000).udp(&[7; 100]);
    for frame in [flow.ports(1, 2001).udp(&[7; 100]), other.ports(1, 2000).udp(&[7; 100])] {
        assert!(far.send(&frame, Meta::FULL));
    }
    assert!(far.send(&mine, Meta::FULL));
    assert!(session.wait(Some(PATIENCE)).unwrap());
    assert_eq!(session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(), mine);
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    let counters = &report["device"]["counters"];
    assert_eq!((&counters["rx_packets"], &counters["rx_dropped_no_match"]), (&1.into(), &0.into()));
}

/// A killed application releases nothing itself.
#[test]
fn the_device_forgets_a_killed_application() {
    let name = format!("towpath-filters-{}", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let config = Config { socket: Some(socket.clone()), ..Config::default() };
    let (server, cable, _far) = served(BY_ALL, &config);
    let mut victim = PEER.start(&["pair", socket.to_str().unwrap(), "1"]);
    victim.expect("running");
    let kinds = |cable: &Cable| {
        let is_address = |one: &&Filter| matches!(one, Filter::Address(_));
        let all = cable.filters();
        (all.iter().filter(is_address).count(), all.len())
    };
    let (addresses, all) = kinds(&cable);
    assert!(addresses == 2 && all >= 4, "{:?}", cable.filters());
    victim.kill();
    eventually("all is released", || cable.filters().is_empty());
    server.stop().unwrap();
}

/// A device without room for another address receives everything instead.
#[test]
fn a_device_without_room_loses_nothing() {
    let by_address = Reception { filters_flows: false, most_filters: Some(1), ..BY_ALL };
    let (server, cable, mut far) = served(by_address, &Config::default());
    let (first, mut second) = (attach(&server).unwrap(), attach(&server).unwrap());
    let mac = second.info().mac;
    assert_eq!(cable.filters(), [Filter::Address(first.info().mac.octets()), Filter::Everything]);
    second.open(&Rule::new().udp(2000)).unwrap();
    let frame = Flow::v4().macs([2, 0, 0, 0, 0, 1], mac).ports(1, 2000).udp(b"hello");
    assert!(far.send(&frame, Meta::FULL));
    assert!(second.wait(Some(PATIENCE)).unwrap());
    drop((first, second));
    eventually("all is released", || cable.filters().is_empty());
}

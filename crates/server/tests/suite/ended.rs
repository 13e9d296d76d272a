//! The filters of ended sessions on a device without room for another filter. The filters give way to a request that
//! then has room, and to no other request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use towpath_client::{Options, Rule, Session, report_over};
use towpath_device::{Filter, FilterError, FlowRule};
use towpath_device_testing::loopback::{self, Cable, LoopbackDevice, Reception};
use towpath_device_testing::refusing::{Refuses, Refusing};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

/// The port of flows for which a device has no room.
const REFUSED_PORT: u16 = 99;
const ENDED: usize = 40;
/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    cable: Cable,
    /// The count of filters that the server removed.
    removed: Arc<AtomicUsize>,
    _far: LoopbackDevice,
}

impl World {
    fn new(refuses: Refuses) -> World {
        let reception =
            Reception { filters_addresses: true, filters_flows: true, ..Reception::default() };
        let device = loopback::Config { reception, ..loopback::Config::default() };
        let (inner, far) = loopback::pair(&device).unwrap();
        let cable = inner.cable();
        let device = Refusing::new(Box::new(inner), refuses);
        let removed = device.removed();
        let subnets = Subnets { ipv4: Some(Subnet::new([10, 77, 0, 1].into(), 24)), ipv6: None };
        let config = Config { subnets, ..Config::default() };
        let store = Box::<MemoryStore>::default();
        let server = Server::start(&config, Box::new(device), store).unwrap();
        World { server, cable, removed, _far: far }
    }

    fn attach(&self, name: &str) -> Session {
        let options = Options { name: name.into(), ..Options::default() };
        Session::attach_over(self.server.connect().unwrap(), &options).unwrap()
    }

    /// Attaches sessions with endpoints and ends them, until the engines answer for all.
    fn end_sessions(&self) {
        for number in 0..ENDED {
            self.attach(&format!("ended{number}")).open(&Rule::new().udp(7)).unwrap();
        }
        let sessions = || report_over(self.server.connect().unwrap()).unwrap()["sessions"].clone();
        comes("the sessions' end", || sessions().as_array().unwrap().is_empty());
        // The control thread changes the filters after it has told of the end.
        comes("the ended sessions' addresses", || self.addresses() == ENDED);
    }

    /// Returns the number of addresses among the device's filters.
    fn addresses(&self) -> usize {
        let filters = self.cable.filters();
        filters.iter().filter(|one| matches!(one, Filter::Address(_))).count()
    }

    fn receives_everything(&self) -> bool {
        self.cable.filters().contains(&Filter::Everything)
    }
}

fn comes(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Refuses flows of one port.
fn one_port(wanted: &Filter, _: &[Filter]) -> Option<FilterError> {
    let is_refused = matches!(wanted, Filter::Flow(flow) if flow.port == Some(REFUSED_PORT));
    is_refused.then_some(FilterError::Full)
}

#[test]
fn a_request_in_vain_takes_no_filters_of_ended_sessions() {
    let world = World::new(one_port);
    world.end_sessions();
    let mut session = world.attach("another");
    for _ in 0..2 {
        world.removed.store(0, Ordering::Relaxed);
        let endpoint = session.open(&Rule::new().udp(REFUSED_PORT)).unwrap();
        assert!(world.receives_everything());
        assert_eq!((world.removed.load(Ordering::Relaxed), world.addresses()), (0, ENDED + 1));
        session.close(endpoint).unwrap();
        comes("the release", || !world.receives_everything());
    }
    world.server.stop().unwrap();
}

/// Has room for flows that give two sets of fields, as a flow filter with AF_XDP has for sixteen.
fn two_sets(wanted: &Filter, has: &[Filter]) -> Option<FilterError> {
    let fields = |filter: &Filter| match filter {
        Filter::Flow(FlowRule { mac, ethertype, protocol, port, remote_port, .. }) => Some([
            mac.is_some(),
            ethertype.is_some(),
            protocol.is_some(),
            port.is_some(),
            remote_port.is_some(),
        ]),
        _ => None,
    };
    let mut sets: Vec<_> = has.iter().chain([wanted]).filter_map(fields).collect();
    sets.sort_unstable();
    sets.dedup();
    (sets.len() > 2 && fields(wanted).is_some()).then_some(FilterError::NoRoom)
}

/// All ended sessions share a set of fields, so that its room is free once all of them have given way.
#[test]
fn all_ended_sessions_give_way_to_another_set_of_fields() {
    let world = World::new(two_sets);
    world.end_sessions();
    let mut session = world.attach("another");
    session.open(&Rule::new().udp(7)).unwrap();
    assert_eq!(world.addresses(), ENDED + 1, "these two sets have room");
    let remote = Rule::new().udp(7).remote_port(9);
    session.open(&remote).unwrap();
    assert_eq!((world.addresses(), world.receives_everything()), (1, false));
    // A live session does not give way.
    let refused = session.open(&Rule::new().ethertype(0x88b5)).unwrap_err().to_string();
    assert!(refused.contains("the device has no room for another filter"), "{refused}");
    world.server.stop().unwrap();
}

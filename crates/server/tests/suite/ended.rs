//! The filters of ended sessions on a device without room for another one: few of them give way to a request in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use towpath_client::{Options, Rule, Session, report_over};
use towpath_device::loopback::{self, LoopbackDevice, Reception};
use towpath_device::{Device, DeviceError, DeviceQueue, Filter, FilterError, Info, Spaces};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

/// The port of flows for which the device has no room.
const REFUSED_PORT: u16 = 99;
const ENDED: usize = 40;
/// The limit of leases that give way.
const MOST_YIELDING: usize = 16;
/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device that has no room for flows of one port, and counts removed filters.
struct Full {
    inner: LoopbackDevice,
    removed: Arc<AtomicUsize>,
}

impl Device for Full {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn open_queue(
        &mut self,
        index: usize,
        spaces: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        self.inner.open_queue(index, spaces)
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        match filter {
            Filter::Flow(flow) if flow.port == Some(REFUSED_PORT) => Err(FilterError::Full),
            other => self.inner.add_filter(other),
        }
    }

    fn remove_filter(&mut self, filter: &Filter) {
        self.removed.fetch_add(1, Ordering::Relaxed);
        self.inner.remove_filter(filter);
    }
}

fn attach(server: &Server, name: &str) -> Session {
    let options = Options { name: name.into(), ..Options::default() };
    Session::attach_over(server.connect().unwrap(), &options).unwrap()
}

fn comes(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_request_in_vain_takes_few_filters_of_ended_sessions() {
    let reception = Reception { filters_addresses: true, ..Reception::default() };
    let device = loopback::Config { reception, ..loopback::Config::default() };
    let (inner, _far) = loopback::pair(&device).unwrap();
    let (cable, removed) = (inner.cable(), Arc::<AtomicUsize>::default());
    let subnets = Subnets { ipv4: Some(Subnet::new([10, 77, 0, 1].into(), 24)), ipv6: None };
    let config = Config { subnets, ..Config::default() };
    let full = Full { inner, removed: removed.clone() };
    let server = Server::start(&config, Box::new(full), Box::<MemoryStore>::default()).unwrap();
    for number in 0..ENDED {
        attach(&server, &format!("ended{number}")).open(&Rule::new().udp(7)).unwrap();
    }
    let sessions = || report_over(server.connect().unwrap()).unwrap()["sessions"].clone();
    comes("the sessions' end", || sessions().as_array().unwrap().is_empty());
    let freed = || {
        let filters = cable.filters();
        filters.iter().filter(|one| matches!(one, Filter::Address(_))).count()
    };
    assert_eq!(freed(), ENDED);

    let mut session = attach(&server, "another");
    for _ in 0..2 {
        removed.store(0, Ordering::Relaxed);
        let endpoint = session.open(&Rule::new().udp(REFUSED_PORT)).unwrap();
        assert!(cable.filters().contains(&Filter::Everything));
        assert_eq!((removed.load(Ordering::Relaxed), freed()), (MOST_YIELDING, ENDED + 1));
        session.close(endpoint).unwrap();
        comes("the release", || !cable.filters().contains(&Filter::Everything));
    }
    server.stop().unwrap();
}

//! A driver server.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_device_testing::loopback;
use towpath_protocol::store::{MemoryStore, Store};
use towpath_server::{
    Config, Grant, Policy, Reach, Server, Subnet, Subnets, WaitStrategy as EngineStrategy,
};
use towpath_tests::far::Echo;

use crate::logged::Logged;
use crate::number;

/// A store that counts its descriptors.
struct Counted {
    store: MemoryStore,
    count: Arc<AtomicUsize>,
}

impl Store for Counted {
    fn put(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let outcome = self.store.put(name, descriptor);
        self.count.store(self.store.len(), Ordering::SeqCst);
        outcome
    }

    fn remove(&mut self, name: &str) -> Vec<OwnedFd> {
        let removed = self.store.remove(name);
        self.count.store(self.store.len(), Ordering::SeqCst);
        removed
    }

    fn forget(&mut self, name: &str) {
        self.store.forget(name);
        self.count.store(self.store.len(), Ordering::SeqCst);
    }

    fn contents(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        self.store.contents()
    }

    fn holds(&self, name: &str) -> bool {
        self.store.holds(name)
    }
}

/// Serves a loopback device whose far end echoes everything (`far=echo`) or takes nothing
/// (`far=none`), or a TAP (`tap=NAME`). Prints `ready`. Then it answers `stored` with the number of
/// descriptors in its store, `logged` with the number of its log lines so far, `logged TEXT` with the last line that
/// has the text or an empty one, `warned UID` with the warnings that name a user, and `stop` with `stopped`.
/// `out_of_band=all` is for the grants before it.
pub(crate) fn run(socket: &Path, options: &[&str]) {
    let logged = Logged::start();
    let mut policy = Policy::default();
    let (mut mode, mut echo, mut tap, mut waits) = (EngineStrategy::Block, true, None, false);
    let (mut lanes, mut hosts) = (1, false);
    for option in options {
        let (name, value) = option.split_once('=').expect("name=value");
        match (name, value) {
            ("wait", "poll") => mode = EngineStrategy::Poll,
            ("wait", "block") => mode = EngineStrategy::Block,
            ("far", "echo") => echo = true,
            ("far", "none") => echo = false,
            // The far end fetches packets late, so that some are in flight at any moment.
            ("late", "yes") => waits = true,
            // Only the first queue's far end echoes.
            ("lanes", count) => lanes = number(count) as usize,
            // The far end is the server of another host, at the socket's path with `.far`.
            ("hosts", "yes") => hosts = true,
            ("tap", name) => tap = Some(name.to_owned()),
            ("users", list) => {
                let users = list.split(',').map(|uid| number(uid) as u32).collect();
                policy.grants.push(Grant { users, ..Grant::default() });
            }
            ("groups", list) => {
                let groups = list.split(',').map(|gid| number(gid) as u32).collect();
                policy.grants.push(Grant { groups, ..Grant::default() });
            }
            ("out_of_band", "all") => {
                for grant in &mut policy.grants {
                    Arc::make_mut(&mut grant.terms).out_of_band = Reach::All;
                }
            }
            ("sessions_per_user", count) => policy.sessions_per_user = number(count) as usize,
            ("connections", count) => policy.connections = number(count) as usize,
            ("bytes_per_user", count) => policy.bytes_per_user = number(count) as usize,
            ("session_bytes", count) => policy.session_bytes = number(count) as usize,
            ("endpoints_per_session", count) => {
                policy.endpoints_per_session = number(count) as u32;
            }
            _ => panic!("no option {option}"),
        }
    }
    for grant in &mut policy.grants {
        Arc::make_mut(&mut grant.terms).rdma = hosts;
    }
    let (device, far): (Box<dyn Device>, _) = match tap {
        Some(name) => {
            let options = Options { name, offloads: true };
            (Box::new(TapDevice::open(&options).expect("a TAP")), None)
        }
        None => {
            let config =
                loopback::Config { tx_asynchronous: waits, queues: lanes, ..Default::default() };
            let (near, far) = loopback::pair(&config).expect("a loopback");
            (Box::new(near), Some(far))
        }
    };
    let count = Arc::new(AtomicUsize::new(0));
    let store = Counted { store: MemoryStore::default(), count: count.clone() };
    let config = Config {
        socket: Some(socket.to_owned()),
        policy,
        subnets: subnets(hosts.then_some([16, 127])),
        settings: mode.into(),
        lanes,
        rdma: hosts,
        ..Config::default()
    };
    let far_config = Config {
        socket: Some(far_socket(socket)),
        subnets: subnets(Some([128, 159])),
        ..config.clone()
    };
    let server = Server::start(&config, device, Box::new(store)).expect("the server starts");
    let mut kept = None;
    let mut echoing = None;
    let mut far_server = None;
    match far {
        Some(far) if hosts => {
            let store = Box::<MemoryStore>::default();
            let started = Server::start(&far_config, Box::new(far), store);
            far_server = Some(started.expect("the server of the other host starts"));
        }
        Some(far) if echo => {
            echoing = Some(std::thread::spawn(move || {
                let mut far = Echo::new(Box::new(far));
                while let Some(work) = far.turn() {
                    if work == 0 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
                // The other queues' far ends live until all engines have ended.
                far
            }));
        }
        other => kept = other,
    }
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "stored" => println!("{}", count.load(Ordering::SeqCst)),
            "logged" => println!("{}", logged.lines()),
            "stop" => break,
            _ => match line.split_once(' ') {
                Some(("logged", text)) => {
                    println!("{}", logged.last_with(text).unwrap_or_default());
                }
                Some(("warned", uid)) => {
                    println!("{}", logged.warnings_of(number(uid)).join("; "));
                }
                _ => panic!("no such command: {line}"),
            },
        }
    }
    server.stop().expect("the server ends well");
    if let Some(server) = far_server {
        server.stop().expect("the server of the other host ends well");
    }
    if let Some(echoing) = echoing {
        drop(echoing.join().expect("the far end ends well"));
    }
    drop(kept);
    println!("stopped");
}

/// Returns the path of the other host's socket.
pub(crate) fn far_socket(socket: &Path) -> PathBuf {
    socket.with_extension("far")
}

/// Returns the network, with these last bytes of the first and the last address that a server gives.
fn subnets(given: Option<[u8; 2]>) -> Subnets {
    let ipv4 = |last| Ipv4Addr::new(10, 77, 0, last);
    let leases = given.map(|[first, last]| (ipv4(first), ipv4(last)));
    let ipv6 = given.is_none().then(|| Subnet::new("fd77::1".parse().expect("an address"), 64));
    Subnets { ipv4: Some(Subnet { leases, ..Subnet::new(ipv4(1), 24) }), ipv6 }
}

//! Tests networks against the kernel's own stack, across a TAP device in a private network
//! namespace.

mod cases;
mod tap;
mod throughput;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tap::TapLink;
use towpath_net::{Config, Driving, Network};
use towpath_netlink::{Netlink, Prefix};

/// A network whose link leads to the kernel's stack.
pub(crate) struct Bench {
    pub(crate) network: Network,
    /// The TAP device's name.
    pub(crate) name: String,
    pub(crate) ours: [IpAddr; 2],
    pub(crate) kernel: [IpAddr; 2],
}

/// Options of a bench.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) mtu: usize,
    pub(crate) offload: bool,
    pub(crate) driving: Driving,
}

pub(crate) const PLAIN: Setting = Setting { mtu: 1500, offload: true, driving: Driving::Thread };

impl Bench {
    pub(crate) fn new(setting: Setting) -> Bench {
        use std::sync::atomic::{AtomicU8, Ordering};
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tpnet{count}");
        let link = TapLink::new(&name, setting.mtu, setting.offload).unwrap();
        let v4 = |host| Ipv4Addr::new(10, 77, count, host);
        let v6 = |host| Ipv6Addr::new(0xfd77, 0, 0, count.into(), 0, 0, 0, host);
        let mut netlink = Netlink::open().unwrap();
        netlink.set_mtu(&name, setting.mtu as u32).unwrap();
        netlink.set_up(&name).unwrap();
        netlink.add_address(&name, Prefix::new(v4(1).into(), 24).unwrap()).unwrap();
        netlink.add_address(&name, Prefix::new(v6(1).into(), 64).unwrap()).unwrap();
        let mut config = Config::new([0; 6]);
        config.ipv4 = Some((v4(2), 24));
        config.ipv6 = vec![(v6(2), 64)];
        let network =
            Network::builder().driving(setting.driving).on(Box::new(link), config).unwrap();
        let ours = [v4(2).into(), v6(2).into()];
        Bench { network, name, ours, kernel: [v4(1).into(), v6(1).into()] }
    }
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < until, "{what}: not within ten seconds");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo and similar runners list the tests of every test program.
    if arguments.iter().any(|argument| argument == "--list") {
        cases::ALL.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    if let Err(why) = towpath_testkit::check_tun() {
        return towpath_testkit::skip("kernel", &why);
    }
    towpath_testkit::enter().unwrap();
    if arguments.iter().any(|argument| argument == "throughput") {
        return throughput::run();
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut failed = Vec::new();
    let (mut count, start) = (0, Instant::now());
    for (name, test) in cases::ALL {
        if wanted.is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        count += 1;
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(test));
        let said = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {said} ({:.2?})", begin.elapsed());
        if outcome.is_err() {
            failed.push(name);
        }
    }
    println!("{count} tests, {} failed, {:.2?}", failed.len(), start.elapsed());
    assert!(failed.is_empty(), "failed: {failed:?}");
}

//! Configurations with which a server does not start. The error names the setting and the possible
//! values, and nothing is left behind.

use towpath_client::set_over;
use towpath_device_testing::loopback::{self, LoopbackDevice};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Setting, StartError, Values};

/// Starts a server, and returns it with the far end, without which its device would be gone.
fn start(config: &Config) -> Result<(Server, LoopbackDevice), StartError> {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    Ok((Server::start(config, Box::new(near), Box::<MemoryStore>::default())?, far))
}

fn refused(config: &Config) -> String {
    let said = start(config).map(|(server, _)| server).expect_err("it does not start").to_string();
    assert!(!said.contains("--"), "an error of the library names no option of a command: {said}");
    said
}

fn rx_batch(server: &Server) -> String {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["settings"]["rx_batch"].as_str().unwrap().to_owned()
}

#[test]
fn an_engine_is_bound_to_a_processor_that_is_there_or_not_at_all() {
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let there: Vec<usize> = (0..1024).filter(|cpu| usable.is_set(*cpu)).collect();
    let (first, last) = (there[0], there[there.len() - 1]);
    for cpu in [last + 1, 1023, 1024, 1 << 20, usize::MAX] {
        if there.contains(&cpu) {
            continue;
        }
        let directory = std::env::temp_dir();
        let socket = directory.join(format!("towpath-starting-{}.sock", std::process::id()));
        let config =
            Config { socket: Some(socket.clone()), engine_cpus: vec![cpu], ..Config::default() };
        let said = refused(&config);
        assert!(said.starts_with(&format!("the engine cannot run on processor {cpu};")), "{said}");
        let named = said.rsplit_once(' ').unwrap().1;
        assert!(named.starts_with(&first.to_string()), "{said}");
        assert!(named.ends_with(&last.to_string()), "{said}");
        assert!(!socket.exists(), "{socket:?} is left");
    }
    let config = Config { engine_cpus: vec![last], ..Config::default() };
    start(&config).unwrap().0.stop().unwrap();
}

#[test]
fn budgets_out_of_range_are_refused() {
    for transmit_budget in [0, 65_537, usize::MAX / 8, usize::MAX] {
        let said = refused(&Config { transmit_budget, ..Config::default() });
        let wanted = format!("transmit_budget is {transmit_budget}; 1 to 65536 is possible");
        assert_eq!(said, wanted);
    }
    for batch in [0, 1025, usize::MAX] {
        let said = refused(&Config { batch, ..Config::default() });
        assert_eq!(said, format!("batch is {batch}; 1 to 1024 is possible"));
    }
    let most = Config {
        batch: 1024,
        receive_budget: u32::MAX,
        transmit_budget: 65_536,
        ..Config::default()
    };
    start(&most).unwrap().0.stop().unwrap();
}

/// A server takes at most the number of packets per poll iteration that it was started with, and
/// reports no other number.
#[test]
fn no_rx_batch_is_above_the_servers() {
    let (server, _far) = start(&Config { batch: 32, ..Config::default() }).unwrap();
    assert_eq!(rx_batch(&server), "32", "the default, limited");
    let set = |value| set_over(server.connect().unwrap(), None, Setting::RxBatch, value);
    set(7).unwrap();
    for value in [33, 64, 1024] {
        let said = set(value).unwrap_err().to_string();
        assert!(said.contains(&format!("rx_batch={value}")), "{said}");
        assert!(said.contains("a batch of 32") && said.contains("1 to 32 packets"), "{said}");
    }
    let said = set(1025).unwrap_err().to_string();
    assert!(said.contains("rx_batch=1025: 1 to 1024 packets is possible"), "{said}");
    assert_eq!(rx_batch(&server), "7", "the old one stands");
    set(32).unwrap();
    assert_eq!(rx_batch(&server), "32");
    server.stop().unwrap();
    // The limit also applies to the initial settings.
    let mut settings = Values::default();
    settings.set(Setting::RxBatch, 100).unwrap();
    let said = refused(&Config { settings: settings.clone(), ..Config::default() });
    assert!(said.contains("rx_batch=100") && said.contains("a batch of 64"), "{said}");
    // A chosen value does not give way, even if it is the default one.
    let mut chosen = Values::default();
    chosen.set(Setting::RxBatch, 64).unwrap();
    let said = refused(&Config { settings: chosen, batch: 32, ..Config::default() });
    assert!(said.contains("rx_batch=64") && said.contains("a batch of 32"), "{said}");
    let (server, _far) = start(&Config { settings, batch: 100, ..Config::default() }).unwrap();
    assert_eq!(rx_batch(&server), "100");
    server.stop().unwrap();
}

#[test]
fn a_server_makes_two_sockets_and_removes_both() {
    let directory = std::env::temp_dir().join(format!("towpath-two-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let names = || {
        let entries = std::fs::read_dir(&directory).unwrap();
        let names = entries.map(|one| one.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let (socket, own) = (directory.join("s"), directory.join("own.admin"));
    let both = |admin_socket: Option<&std::path::PathBuf>| Config {
        socket: Some(socket.clone()),
        admin_socket: admin_socket.cloned(),
        ..Config::default()
    };
    let (server, _far) = start(&both(None)).unwrap();
    assert_eq!(names(), ["s", "s.admin", "s.lock"]);
    // This process owns both, and has all rights over the second one.
    towpath_client::set(&socket, None, Setting::RxBatch, 7).unwrap();
    let only = directory.join("only");
    std::fs::hard_link(&socket, &only).unwrap();
    let refused_there = towpath_client::set(&only, None, Setting::RxBatch, 8).unwrap_err();
    assert!(refused_there.to_string().contains("SOCKET.admin"), "{refused_there}");
    assert_eq!(rx_batch(&server), "7");
    std::fs::remove_file(&only).unwrap();
    server.stop().unwrap();
    assert_eq!(names(), [""; 0]);

    let (server, _far) = start(&both(Some(&own))).unwrap();
    assert_eq!(names(), ["own.admin", "own.lock", "s", "s.lock"]);
    let other = Config { socket: Some(directory.join("t")), ..both(Some(&own)) };
    assert!(refused(&other).contains("another server serves here"));
    server.stop().unwrap();
    assert_eq!(names(), [""; 0]);

    assert!(refused(&both(Some(&socket))).contains("one path for the socket and"));
    let long = directory.join("x".repeat(107 - 1 - directory.as_os_str().len()));
    let said = refused(&Config { socket: Some(long.clone()), ..Config::default() });
    assert!(said.contains("113 bytes; 107 are possible"), "{said}");
    let (server, _far) = start(&Config { socket: Some(long), ..both(Some(&own)) }).unwrap();
    server.stop().unwrap();
    assert_eq!(names(), [""; 0]);
    std::fs::remove_dir(&directory).unwrap();
}

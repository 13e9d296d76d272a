//! An engine with a bound on processor time or with a timer, in this process, over an in-memory
//! device. The tests check the time that the engine uses, and that it finds every packet.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use towpath_client::{Endpoint, Options, QueuePair, Rule, SendError, Session, Setting};
use towpath_device_testing::loopback;
use towpath_packet::build::Flow;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_waiting::Costs;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn serve(mode: EngineStrategy) -> (Server, loopback::LoopbackDevice) {
    let (server, far, _) = serve_with_account(mode);
    (server, far)
}

fn start(mode: EngineStrategy) -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets = Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ipv6: None };
    let policy = Policy { sessions_per_user: 100, connections: 200, ..Policy::default() };
    let config = Config { settings: mode.into(), subnets, policy, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, far)
}

fn attach(server: &Server, name: &str) -> (Session, Endpoint) {
    let options = Options { name: name.into(), ..Options::default() };
    let mut session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(0x88b5)).unwrap();
    (session, endpoint)
}

fn frame(to: &Session, from: &Session, number: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&to.info().mac.octets());
    frame.extend_from_slice(&from.info().mac.octets());
    frame.extend_from_slice(&[0x88, 0xb5]);
    frame.resize(60, number);
    frame
}

fn set(server: &Server, setting: Setting, value: u64) {
    towpath_client::set_over(server.connect().unwrap(), None, setting, value).unwrap();
}

fn counter(server: &Server, name: &str) -> u64 {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["counters"][name].as_u64().unwrap()
}

/// Returns the paths of the scheduler's accounts of this process's engines. Each server has a
/// thread of that name, and only some runners give each test of this file a process of its own.
fn engines() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let paths = tasks.map(|task| task.unwrap().path());
    let named = paths.filter(|path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "engine")
    });
    named.map(|path| path.join("schedstat").to_str().unwrap().to_owned()).collect()
}

/// Starts a server, and returns the path of its engine's account. All servers of this file start
/// one at a time, each once the engine before it has its name: so a new engine is this server's.
fn serve_with_account(mode: EngineStrategy) -> (Server, loopback::LoopbackDevice, String) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = engines();
    let (server, far) = start(mode);
    let until = Instant::now() + Duration::from_secs(10);
    // A thread has its name a little after it starts.
    loop {
        if let Some(new) = engines().into_iter().find(|one| !before.contains(one)) {
            return (server, far, new);
        }
        assert!(Instant::now() < until, "no engine");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the processor time.
fn cpu(account: &str) -> Duration {
    let text = fs::read_to_string(account).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Ends a flood when the test ends, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills the queue again and again, and notifies the engine each time, until the test ends the
/// flood.
fn flood(from: &mut Session, by: Endpoint, packet: &[u8], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        loop {
            match from.sender().send_bytes(by, packet) {
                Ok(()) => {}
                Err(SendError::Full) => break,
                Err(other) => panic!("{other}"),
            }
        }
        from.sender().flush_now().unwrap();
    }
}

/// One application sends as fast as it can, and notifies as often as it may. The engine uses at
/// most its bound. The engine finds other sessions that send notifications meanwhile, and runs
/// commands.
#[test]
fn the_bound_on_processor_time_holds_under_a_flood() {
    const BOUND: f64 = 0.075;
    let (server, _far, account) = serve_with_account(EngineStrategy::Auto);
    let ((mut a, by_a), (b, _)) = (attach(&server, "floods"), attach(&server, "flooded"));
    let ((mut c, by_c), (mut d, _)) = (attach(&server, "c"), attach(&server, "d"));
    // These are more than the engine always keeps active, so the engine parks some.
    let _idle: Vec<_> = (0..10).map(|_| attach(&server, "idle")).collect();
    let packet = frame(&b, &a, 1);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| flood(&mut a, by_a, &packet, &over));
        set(&server, Setting::CpuPercent, 5);
        std::thread::sleep(Duration::from_millis(100));
        let throttled = counter(&server, "throttled");
        let mut shares = Vec::new();
        for _ in 0..2 {
            let (start, before) = (Instant::now(), cpu(&account));
            std::thread::sleep(Duration::from_secs(1));
            shares.push((cpu(&account) - before).as_secs_f64() / start.elapsed().as_secs_f64());
            if shares.last().is_some_and(|share| *share <= BOUND) {
                break;
            }
        }
        let throttled = counter(&server, "throttled") - throttled;
        for number in 0..20 {
            let packet = frame(&d, &c, number);
            c.sender().send_bytes(by_c, &packet).unwrap();
            c.sender().flush().unwrap();
            assert!(d.wait(PATIENCE).unwrap(), "packet {number} was not found");
            assert_eq!(d.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap()[14], number);
        }
        // The engine runs a command while it is throttled, and the command may lift the bound.
        set(&server, Setting::CpuPercent, 100);
        println!("{shares:?} of a processor, throttled {throttled} times");
        assert!(shares.iter().any(|share| *share <= BOUND), "{shares:?} of a processor, not 0.05");
        assert!(throttled > 0, "the engine was never throttled");
    });
    server.stop().unwrap();
}

/// More queue pairs have a packet each than the engine takes events in one poll iteration. The
/// engine takes all packets at the tick that finds them, instead of a part of them at each tick.
#[test]
fn one_tick_takes_packets_of_all_queue_pairs() {
    const QUEUE_PAIRS: u32 = 3000;
    let (server, _far) = serve(EngineStrategy::TimerDriven);
    let options = Options {
        name: "many".into(),
        queue_pairs: QUEUE_PAIRS,
        endpoints: QUEUE_PAIRS,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        ..Options::default()
    };
    let mut many = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let (mut b, _) = attach(&server, "b");
    b.open(&Rule::new().udp(7)).unwrap();
    let address = |session: &Session| session.info().ipv4.unwrap().0;
    let flow =
        Flow::v4().macs(many.info().mac, b.info().mac).addresses(address(&many), address(&b));
    let endpoints: Vec<_> = (0..QUEUE_PAIRS)
        .map(|number| {
            many.open(&Rule::new().udp(number as u16 + 1).queue_pair(QueuePair::new(number)))
                .unwrap()
        })
        .collect();
    set(&server, Setting::TickHz, 4);
    let ticks = || counter(&server, "ticks") + counter(&server, "ticks_missed");
    let iterations = || counter(&server, "busy_iterations");
    let (before, busy) = (ticks(), iterations());
    for (number, endpoint) in endpoints.iter().enumerate() {
        many.sender().send_bytes(*endpoint, &flow.ports(number as u16 + 1, 7).udp(&[1])).unwrap();
    }
    many.sender().flush().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    // The engine drops most of the packets at the receiver, and counts them as sent too.
    let taken = |many: &Session| {
        endpoints.iter().filter(|one| many.counters(**one).get("tx_packets") == Some(1)).count()
    };
    while taken(&many) < QUEUE_PAIRS as usize {
        assert!(Instant::now() < until, "{} of {QUEUE_PAIRS} were taken", taken(&many));
        std::thread::sleep(Duration::from_millis(5));
    }
    let (ticks, iterations) = (ticks() - before, iterations() - busy);
    assert!(
        iterations >= u64::from(QUEUE_PAIRS) / 256,
        "{iterations} poll iterations are too few for this test"
    );
    assert!(ticks <= 6, "{ticks} ticks for the packets of one");
    server.stop().unwrap();
}

/// The engine counts ticks that are too fast for a sleep as awake, and checks for parked sessions'
/// notifications at such ticks.
#[test]
fn awake_ticks_are_counted_and_check_for_notifications() {
    const HZ: u64 = 100_000;
    let (server, _far) = serve(EngineStrategy::Block);
    let mut all: Vec<_> = (0..20).map(|_| attach(&server, "one of many")).collect();
    // Enough poll iterations to park the others.
    let [(a, by_a), (b, _)] = all.get_disjoint_mut([0, 1]).unwrap();
    for number in 0..200 {
        let packet = frame(b, a, number);
        a.sender().send_bytes(*by_a, &packet).unwrap();
        a.sender().flush().unwrap();
        assert!(b.wait(PATIENCE).unwrap());
        assert_eq!(b.receiver().receive(QueuePair::FIRST, 9, |_| ()).unwrap(), 1);
    }
    assert!(counter(&server, "sessions_parked") > 0);
    set(&server, Setting::Wait, EngineStrategy::TimerDriven as u64);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(counter(&server, "ticks_awake"), 0, "the engine sleeps at 1000 ticks per second");
    let spins = 1_000_000_000 / HZ < Costs::of_this_machine().least_sleep();
    let until = Instant::now() + PATIENCE.unwrap_or_default();
    loop {
        let before = (counter(&server, "doorbell_polls"), counter(&server, "ticks_awake"));
        set(&server, Setting::TickHz, HZ);
        std::thread::sleep(Duration::from_millis(200));
        // The engine publishes its counters before the next sleep.
        let sleeps = counter(&server, "sleeps");
        set(&server, Setting::TickHz, 1000);
        comes("the engine does not sleep", || counter(&server, "sleeps") > sleeps + 1);
        let after = (counter(&server, "doorbell_polls"), counter(&server, "ticks_awake"));
        let (asked, ticks) = (after.0 - before.0, after.1 - before.1);
        if !spins {
            assert_eq!(ticks, 0);
            break;
        }
        if ticks > 0 && asked >= ticks / 4 {
            break;
        }
        assert!(Instant::now() < until, "{asked} doorbell polls in {ticks} ticks");
    }
    server.stop().unwrap();
}

/// A sleep that could end only at whole milliseconds would miss every other tick.
#[test]
fn a_fast_clock_keeps_most_of_its_ticks() {
    let (server, _far) = serve(EngineStrategy::TimerDriven);
    set(&server, Setting::TickHz, 2000);
    let ticks = || (counter(&server, "ticks"), counter(&server, "ticks_missed"));
    let keeps_most = (0..50).any(|_| {
        let before = ticks();
        std::thread::sleep(Duration::from_millis(100));
        let after = ticks();
        let (kept, missed) = (after.0 - before.0, after.1 - before.1);
        assert!(kept + missed <= 1000, "{kept} ticks kept, {missed} missed");
        kept + missed >= 100 && kept >= 4 * missed
    });
    assert!(keeps_most, "{:?} ticks kept and missed", ticks());
    server.stop().unwrap();
}

fn comes(what: &str, mut there: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !there() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine sends deferred notifications of near deadlines together with the first.
#[test]
fn timer_slack_sends_deferred_notifications_together() {
    const ROUNDS: usize = 10;
    let (server, _far) = serve(EngineStrategy::Block);
    let (mut a, by_a) = attach(&server, "a");
    let mut others = [("b", 20_000), ("c", 100_000)].map(|(name, us)| {
        let (mut session, endpoint) = attach(&server, name);
        session.set(endpoint, Setting::RxUsecs, us).unwrap();
        session
    });
    let mut together = |slack_us| {
        set(&server, Setting::TimerSlackUs, slack_us);
        let rounds = (0..ROUNDS).filter(|_| {
            let before = counter(&server, "notifications");
            for other in &mut others {
                assert!(!other.arm().unwrap());
                let packet = frame(other, &a, 1);
                a.sender().send_bytes(by_a, &packet).unwrap();
            }
            a.sender().flush().unwrap();
            comes("no notification", || counter(&server, "notifications") > before);
            let notified = counter(&server, "notifications") - before;
            comes("not two notifications", || counter(&server, "notifications") == before + 2);
            for other in &mut others {
                other.disarm();
                other.take_notifications();
                assert!(other.poll().unwrap());
                assert_eq!(other.receiver().receive(QueuePair::FIRST, 9, |_| ()).unwrap(), 1);
                while other.poll().unwrap() {}
            }
            notified == 2
        });
        rounds.count()
    };
    // On a busy machine some notifications are late.
    let (apart, near) = (together(0), together(100_000));
    assert!(apart <= ROUNDS / 2, "{apart} of {ROUNDS} together without slack");
    assert!(near >= ROUNDS / 2, "{near} of {ROUNDS} together");
    server.stop().unwrap();
}

/// The engine suppresses notifications to an awake client, unless the setting is off.
#[test]
fn notifications_to_an_awake_side_can_be_suppressed() {
    const PACKETS: u64 = 10;
    let (server, _far) = serve(EngineStrategy::Block);
    let ((mut a, by_a), (b, _)) = (attach(&server, "a"), attach(&server, "b"));
    let packet = frame(&b, &a, 1);
    let mut notifications = |saving: u64| {
        set(&server, Setting::NotificationSuppression, saving);
        let of = |name| counter(&server, name);
        let (notifications, saved) =
            (of("notifications"), of("notifications_suppressed") + of("notifications_merged"));
        for _ in 0..PACKETS {
            let local = of("local_packets");
            a.sender().send_bytes(by_a, &packet).unwrap();
            a.sender().flush().unwrap();
            comes("no packet", || of("local_packets") > local);
        }
        comes("no notification counted", || {
            of("notifications") + of("notifications_suppressed") + of("notifications_merged")
                > notifications + saved
        });
        of("notifications") - notifications
    };
    assert_eq!(notifications(1), 0, "the client never sleeps");
    assert!(notifications(0) >= PACKETS - 1, "one per batch");
    server.stop().unwrap();
}

#[test]
fn how_late_ticks_are_is_counted() {
    let (server, _far) = serve(EngineStrategy::TimerDriven);
    let of = |name| counter(&server, name);
    comes("no late ticks", || of("ticks") >= 20 && of("ticks_late_ns") > 0);
    let (ticks, late, latest) = (of("ticks"), of("ticks_late_ns"), of("tick_latest_ns"));
    // No timer is early, and none is exact to the nanosecond. More ticks may have come between the
    // reports.
    assert!(latest > 0 && latest <= of("ticks_late_ns"), "{latest} of {late}");
    assert!(late <= of("tick_latest_ns") * of("ticks"), "{late} in {ticks} ticks");
    server.stop().unwrap();
}

#[test]
fn controller_decisions_are_counted() {
    let (server, _far) = serve(EngineStrategy::Auto);
    let ((mut a, by_a), (b, _)) = (attach(&server, "a"), attach(&server, "b"));
    let of = |name| counter(&server, name);
    assert_eq!(of("late_packets") + of("throttled"), 0);
    // No wake-up is this short, so the engine stays awake. Then it sleeps again.
    let switches = of("wait_switches");
    set(&server, Setting::LatencyUs, 1);
    comes("the engine does not stay awake", || of("wait_switches") > switches);
    let switches = of("wait_switches");
    set(&server, Setting::LatencyUs, 1_000_000);
    comes("the engine does not sleep again", || of("wait_switches") > switches);
    // A bound on latency that the engine cannot keep at this little processor time.
    set(&server, Setting::LatencyUs, 1000);
    set(&server, Setting::CpuPercent, 1);
    let packet = frame(&b, &a, 1);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| flood(&mut a, by_a, &packet, &over));
        comes("no late packets", || of("late_packets") > 0 && of("throttled") > 0);
    });
    server.stop().unwrap();
}

//! A thousand sessions at one server, and ten thousand endpoints in one session. The tests check
//! their cost to the busy ones, and that the engine forgets none of them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Resource, getrlimit, setrlimit};
use towpath_client::{Endpoint, MacAddr, Options, QueuePair, Rule, Session, Setting};
use towpath_device_testing::loopback;
use towpath_memory::{SharedFile, own_words};
use towpath_packet::build::Flow;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Attach, Message};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));
/// Descriptors that a session and its application take in one process, with room to spare.
const DESCRIPTORS: u64 = 16;

/// Returns a lock for a test with many sessions, since the limit of descriptors applies to the
/// process.
fn alone() -> MutexGuard<'static, ()> {
    static MANY: Mutex<()> = Mutex::new(());
    MANY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of sessions for which this process may have descriptors, at most a thousand.
/// Raises the limit as far as possible. Fewer than 50 would show nothing.
fn sessions() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let count = (descriptors.saturating_sub(200) / DESCRIPTORS).min(1000) as usize;
    if count < 1000 {
        println!(
            "{count} sessions instead of 1000: this process may have {descriptors} descriptors"
        );
    }
    assert!(count >= 50, "{descriptors} descriptors are too few for this test");
    count
}

fn serve(mode: EngineStrategy) -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets = Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 16)), ipv6: None };
    let policy = Policy { sessions_per_user: 2000, connections: 4000, ..Policy::default() };
    let config = Config { settings: mode.into(), subnets, policy, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, far)
}

struct Application {
    session: Session,
    endpoint: Endpoint,
}

fn small(name: &str) -> Options {
    Options {
        name: name.into(),
        endpoints: 4,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        ..Options::default()
    }
}

fn attach(server: &Server, name: &str) -> Application {
    let mut session = Session::attach_over(server.connect().unwrap(), &small(name)).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(0x88b5)).unwrap();
    Application { session, endpoint }
}

fn frame(to: impl Into<MacAddr>, from: impl Into<MacAddr>, number: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&to.into().octets());
    frame.extend_from_slice(&from.into().octets());
    frame.extend_from_slice(&[0x88, 0xb5]);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.resize(60 + number as usize % 60, number as u8);
    frame
}

/// Sends one packet from one application to the other, and receives it there.
fn pass(from: &mut Application, to: &mut Application, number: u32) {
    let packet = frame(to.session.info().mac, from.session.info().mac, number);
    from.session.sender().send_bytes(from.endpoint, &packet).unwrap();
    from.session.sender().flush().unwrap();
    assert!(to.session.wait(PATIENCE).unwrap(), "packet {number} did not come");
    assert_eq!(to.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(), packet);
}

/// Sends a packet between two of the applications.
fn between(all: &mut [Application], from: usize, to: usize, number: u32) {
    let [from, to] = all.get_disjoint_mut([from, to]).unwrap();
    pass(from, to, number);
}

fn set(server: &Server, setting: Setting, value: u64) {
    towpath_client::set_over(server.connect().unwrap(), None, setting, value).unwrap();
}

fn counters(server: &Server) -> impl Fn(&str) -> u64 + use<> {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    move |name| report["device"]["counters"][name].as_u64().unwrap()
}

/// Waits for a value, since a polling server publishes values only now and then.
fn comes(what: &str, mut there: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !there() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn parked_sessions_are_not_polled() {
    let _alone = alone();
    let (server, _far) = serve(EngineStrategy::Block);
    let mut all: Vec<_> = (0..sessions()).map(|_| attach(&server, "one of many")).collect();
    let count = all.len() as u64;
    // Enough poll iterations to park the others.
    for number in 0..200 {
        between(&mut all, 0, 1, number);
    }
    let before = counters(&server);
    assert!(before("sessions_parked") >= count - 10, "{} are parked", before("sessions_parked"));
    for number in 0..500 {
        between(&mut all, 0, 1, number);
    }
    let after = counters(&server);
    let since = |name: &str| after(name) - before(name);
    // After each busy poll iteration the engine makes an idle one, and one before a sleep.
    let chances = 3 * (since("busy_iterations") + since("sleeps") + 10);
    let looks = since("session_polls");
    assert!(looks <= chances * 10, "{looks} polls in {chances} iterations, {count} sessions");
    server.stop().unwrap();
}

#[test]
fn parked_sessions_are_found_with_every_wait_strategy() {
    let _alone = alone();
    let seed = 0x5ca1e;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let (server, _far) = serve(EngineStrategy::Block);
    let mut all: Vec<_> = (0..sessions().min(500)).map(|_| attach(&server, "one")).collect();
    for mode in EngineStrategy::ALL {
        set(&server, Setting::Wait, mode as u64);
        set(&server, Setting::TickHz, 20_000);
        for number in 0..80 {
            between(&mut all, 0, 1, number);
        }
        let before = counters(&server);
        for number in 0..300 {
            let from = random.usize(..all.len());
            let to = (from + 1 + random.usize(..all.len() - 1)) % all.len();
            between(&mut all, from, to, number);
        }
        comes("a hundred more parked sessions", || {
            counters(&server)("sessions_parked") >= before("sessions_parked") + 100
        });
    }
    server.stop().unwrap();
}

/// A busy engine finds several parked sessions that send notifications at once.
#[test]
fn parked_sessions_are_found_by_a_busy_engine() {
    let _alone = alone();
    for mode in [EngineStrategy::Poll, EngineStrategy::Block, EngineStrategy::TimerDriven] {
        let (server, _far) = serve(mode);
        let mut all: Vec<_> = (0..sessions().min(300)).map(|_| attach(&server, "one")).collect();
        let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
        let (over, passed) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let number = passed.fetch_add(1, Ordering::Relaxed);
                    pass(&mut a, &mut b, number);
                }
            });
            comes("a busy engine", || passed.load(Ordering::Relaxed) > 1);
            let half = all.len() / 2;
            for round in 0..10 {
                // All of one half send before any of the other half polls.
                for one in 0..half {
                    let to = all[half + one].session.info().mac;
                    let from = &mut all[one];
                    let packet = frame(to, from.session.info().mac, round);
                    from.session.sender().send_bytes(from.endpoint, &packet).unwrap();
                    from.session.sender().flush().unwrap();
                }
                for (one, to) in all[half..2 * half].iter_mut().enumerate() {
                    assert!(to.session.wait(PATIENCE).unwrap(), "{mode:?}: {one} in round {round}");
                    assert!(to.session.receiver().receive_one(QueuePair::FIRST).unwrap().is_some());
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        server.stop().unwrap();
    }
}

#[test]
fn parked_sessions_end_and_new_ones_attach() {
    let _alone = alone();
    let (server, _far) = serve(EngineStrategy::Poll);
    let mut all: Vec<_> = (0..sessions().min(200)).map(|_| attach(&server, "one")).collect();
    let count = all.len();
    let living = || {
        let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
        report["sessions"].as_array().unwrap().len()
    };
    for round in 0..3 {
        for number in 0..100 {
            between(&mut all, 0, 1, number);
        }
        // Every other session ends, most of them parked.
        let mut keep = 0;
        all.retain(|_| {
            keep += 1;
            keep <= 2 || keep % 2 == round % 2
        });
        let left = all.len();
        comes("the other sessions to end", || living() == left);
        for number in 0..left {
            between(&mut all, number, (number + 1) % left, number as u32);
        }
        while all.len() < count {
            all.push(attach(&server, "another"));
        }
        for number in left - 2..count {
            between(&mut all, number, 0, number as u32);
        }
    }
    server.stop().unwrap();
}

/// A session without the client library, which can write anything.
struct Raw {
    _channel: Channel,
    wake: OwnedFd,
    _memory: Vec<OwnedFd>,
    application: towpath_protocol::layout::ApplicationPages<towpath_queue::OwnWords>,
}

fn raw(server: &Server) -> Raw {
    let socket = server.connect().unwrap();
    let channel = Channel::new(socket);
    let options = small("hostile");
    let attach = Attach {
        queue_pairs: 1,
        endpoints: 1,
        transmit_slots: options.transmit_slots,
        receive_slots: options.receive_slots,
        transmit_buffer_bytes: options.transmit_buffer_bytes,
        receive_buffer_bytes: options.receive_buffer_bytes,
        name: message::fixed_name("hostile"),
        ipv4: [0; 4],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    };
    let shape = SessionShape::new(
        1,
        1,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_buffer_bytes,
        attach.receive_buffer_bytes,
    )
    .unwrap();
    channel.send(&Message::Attach(attach), &[]).unwrap();
    let Incoming::Message(Message::Attached(_), mut memory) = channel.receive().unwrap() else {
        panic!("not attached")
    };
    let wake = memory.pop().unwrap();
    let application = SharedFile::adopt(memory[3].try_clone().unwrap()).unwrap();
    let mut application = application.map_writable().unwrap();
    application.allocate().unwrap();
    let pool = SharedFile::adopt(memory[4].try_clone().unwrap()).unwrap();
    pool.map_writable().unwrap().allocate().unwrap();
    channel.send(&Message::Mapped, &[]).unwrap();
    let Incoming::Message(Message::Done, _) = channel.receive().unwrap() else {
        panic!("not mapped")
    };
    let application = shape.application_own(own_words(application));
    Raw { _channel: channel, wake, _memory: memory, application }
}

/// Some sessions send notifications all the time without news, one has news and never sends a
/// notification, one writes an impossible index. The other sessions continue.
#[test]
fn misbehaving_notifiers_hold_up_no_other_session() {
    let (server, _far) = serve(EngineStrategy::Poll);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let _others: Vec<_> = (0..10).map(|_| attach(&server, "quiet")).collect();
    let notifiers: Vec<_> = (0..20).map(|_| raw(&server)).collect();
    let mut silent = raw(&server);
    let mut liar = raw(&server);
    for number in 0..300 {
        pass(&mut a, &mut b, number);
    }
    comes("twenty parked sessions", || counters(&server)("sessions_parked") >= 20);
    let before = counters(&server);
    // The session publishes an event and never sends a notification for it. Only this session is
    // delayed.
    silent.application.events.store(16, 0);
    silent.application.events.publish(0, 1);
    let over = AtomicBool::new(false);
    let wakes: Vec<_> = notifiers.iter().map(|one| &one.wake).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for wake in &wakes {
                    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
                }
            }
        });
        for number in 0..2000 {
            pass(&mut a, &mut b, number);
        }
        over.store(true, Ordering::Relaxed);
    });
    comes("a doorbell poll by the engine", || {
        counters(&server)("doorbell_polls") > before("doorbell_polls")
    });
    assert_eq!(counters(&server)("violations"), before("violations"));
    // An impossible index with a notification: the engine finds it although the session was parked.
    liar.application.events.publish(0, 1 << 20);
    rustix::io::write(&liar.wake, &1u64.to_ne_bytes()).unwrap();
    comes("a violation", || counters(&server)("violations") > before("violations"));
    pass(&mut a, &mut b, 1);
    server.stop().unwrap();
}

#[test]
fn ten_thousand_endpoints_in_one_session() {
    const ENDPOINTS: u32 = 10_000;
    const CHOSEN: usize = 6;
    let seed = 0xe2d;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let (server, _far) = serve(EngineStrategy::Block);
    let options = Options { queue_pairs: ENDPOINTS, endpoints: ENDPOINTS, ..small("many") };
    let mut many = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let from = a.session.open(&Rule::new().udp(7)).unwrap();
    let endpoints: Vec<_> = (0..ENDPOINTS)
        .map(|number| {
            many.open(&Rule::new().udp(number as u16 + 1).queue_pair(QueuePair::new(number)))
                .unwrap()
        })
        .collect();
    let address = |session: &Session| session.info().ipv4.unwrap().0;
    let flow = Flow::v4()
        .macs(a.session.info().mac, many.info().mac)
        .addresses(address(&a.session), address(&many));
    for round in 0..200u8 {
        let mut chosen = BTreeSet::new();
        while chosen.len() < CHOSEN {
            chosen.insert(random.u32(..ENDPOINTS));
        }
        for one in &chosen {
            let packet = flow.ports(7, *one as u16 + 1).udp(&[round]);
            a.session.sender().send_bytes(from, &packet).unwrap();
        }
        a.session.sender().flush().unwrap();
        // The session learns of these endpoints, each once, and of no others.
        let mut reported = BTreeSet::new();
        while reported.len() < CHOSEN {
            assert!(many.wait(PATIENCE).unwrap(), "round {round}: {reported:?} of {chosen:?}");
            let queue_pair = many.ready().unwrap().unwrap();
            let packet = many.receiver().receive_one(queue_pair).unwrap().unwrap();
            assert_eq!(packet[36..38], (queue_pair.number() as u16 + 1).to_be_bytes());
            assert!(reported.insert(queue_pair.number()));
        }
        assert_eq!(reported, chosen);
        for number in reported {
            let answer = flow.ports(7, number as u16 + 1).reversed().udp(&[round]);
            let mut sender = many.sender();
            sender.send_bytes(endpoints[number as usize], &answer).unwrap();
            sender.want_room(QueuePair::new(number)).unwrap();
        }
        many.sender().flush().unwrap();
        let mut answers = BTreeSet::new();
        while answers.len() < CHOSEN {
            assert!(a.session.wait(PATIENCE).unwrap(), "round {round}: {answers:?}");
            let packet = a.session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap();
            answers.insert(u32::from(u16::from_be_bytes([packet[34], packet[35]])) - 1);
        }
        assert_eq!(answers, chosen);
        // The engine also reports the room that each queue pair requested.
        let mut rooms = BTreeSet::new();
        while rooms.len() < CHOSEN {
            assert!(many.wait(PATIENCE).unwrap(), "round {round}: room of {rooms:?}");
            rooms.insert(many.ready().unwrap().unwrap().number());
        }
        assert_eq!(rooms, chosen);
    }
    // The session ends; the server removes its ten thousand rules while the other sessions
    // continue.
    let mac = many.info().mac;
    drop(many);
    for number in 0..500 {
        pass(&mut a, &mut b, number);
    }
    comes("the session to end", || {
        let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
        // The server releases the addresses when it has unmapped the session, a little later.
        report["sessions"].as_array().unwrap().len() == 2
            && report["device"]["addresses_in_use"] == 2
    });
    // The addresses and the rules now belong to another session.
    let mut again = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    assert_eq!(again.info().mac, mac);
    let first = again.open(&Rule::new().udp(1)).unwrap();
    assert_eq!((first.id().number(), counters(&server)("violations")), (0, 0));
    a.session.sender().send_bytes(from, &flow.ports(7, 1).udp(&[1])).unwrap();
    a.session.sender().flush().unwrap();
    assert!(again.wait(PATIENCE).unwrap());
    server.stop().unwrap();
}

//! Every abuse of the control connection; and applications that die at every step of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::{Options, QueuePair, Rule, Session};
use towpath_protocol::apertures::Sharing;
use towpath_protocol::message::{
    self, Attach, Attached, Close, CreateMemory, Cursor, ErrorBody, MAX_REQUEST_BYTES, Message,
    Open, Opened, Refusal, Set,
};
use towpath_protocol::settings::{Kind, Scope, Setting};
use towpath_protocol::{OLDEST_VERSION, VERSION};
use towpath_tests::process::Program;
use towpath_tests::random::seed;
use towpath_tests::raw::{self, Raw, Reply, bytes};
use towpath_tests::served::Served;
use towpath_tests::{PATIENCE, eventually};
use zerocopy::FromZeros;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn connect(server: &Served) -> Raw {
    Raw::connect(server.socket()).unwrap()
}

fn refused(reply: Reply) -> (Refusal, String) {
    match reply {
        Reply::Refused(refusal, text) => (refusal, text),
        other => panic!("not refused: {other:?}"),
    }
}

/// Asserts that the server refused and ended the connection.
fn cut_off(raw: &Raw, reply: Reply) -> (Refusal, String) {
    let refused = refused(reply);
    assert!(matches!(raw.reply(PATIENCE), Reply::HungUp), "{refused:?}");
    refused
}

fn serves(server: &Served) {
    let mut session = Session::attach(server.socket(), &Options::default()).unwrap();
    session.open(&Rule::new()).unwrap();
}

#[test]
fn malformed_messages_are_refused_and_cut_off() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let mut wrong_length = Vec::new();
    for message in [
        Message::Attach(raw::attach("short")),
        Message::Open(raw::open()),
        Message::Close(Close { endpoint: 0 }),
        Message::Set(set(0, 1)),
        Message::Mapped,
        Message::Report(Cursor::default()),
    ] {
        let whole = bytes(&message);
        // Half of it, a byte short, a byte long.
        wrong_length.push((whole[..whole.len() / 2].to_vec(), ""));
        wrong_length.push((whole[..whole.len() - 1].to_vec(), ""));
        wrong_length.push(([whole, vec![0]].concat(), "bytes"));
    }
    let mut unknown = bytes(&Message::Mapped);
    unknown[6..8].copy_from_slice(&999_u16.to_ne_bytes());
    let mut cases = vec![
        (b"hello".to_vec(), "not a Towpath message"),
        (vec![0; 8], "not a Towpath message"),
        (vec![0xff; MAX_REQUEST_BYTES], "not a Towpath message"),
        (vec![0xff; MAX_REQUEST_BYTES + 1], "too long"),
        (vec![7; 4096], "too long"),
        (unknown, "no message has kind 999"),
    ];
    cases.extend(wrong_length);
    for (bytes, wanted) in cases {
        let raw = connect(&server);
        let (refusal, text) = cut_off(&raw, raw.ask_bytes(&bytes).unwrap());
        assert_eq!(refusal, Refusal::Malformed, "{} bytes: {text}", bytes.len());
        assert!(text.contains(wanted), "{} bytes: {text}", bytes.len());
    }
    // An empty message is invalid too, and ends the connection.
    let raw = connect(&server);
    raw.send(&[], &[]).unwrap();
    assert!(matches!(raw.reply(PATIENCE), Reply::HungUp));
    drop(raw);
    // The same in the middle of a session.
    let raw = connect(&server);
    raw.live(raw::attach("live")).unwrap();
    cut_off(&raw, raw.ask_bytes(b"hello").unwrap());
    drop(raw);
    server.holds_again(&before);
    serves(&server);
    server.stop();
}

#[test]
fn random_control_bytes_harm_no_session() {
    let mut random = Rng::with_seed(seed(0xb17e5));
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    for round in 0..400 {
        let raw = connect(&server);
        if round % 2 == 0 {
            raw.live(raw::attach("random")).unwrap();
        }
        for _ in 0..1 + random.u64(..4) {
            let mut bytes: Vec<u8> = (0..random.u64(..600)).map(|_| random.u8(..)).collect();
            if bytes.len() >= 8 && random.u64(..4) > 0 {
                bytes[..4].copy_from_slice(&message::MAGIC.to_ne_bytes());
                bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
                bytes[6..8].copy_from_slice(&random.u16(..22).to_ne_bytes());
                // Often of the right length, so that the server examines its fields.
                let len = [80, 8, 72, 12, 24, 40, bytes.len()][random.usize(..7)];
                bytes.resize(len, random.u8(..));
            }
            if raw.send(&bytes, &[]).is_err() {
                break;
            }
        }
    }
    server.holds_again(&before);
    serves(&server);
    server.stop();
}

/// A server answers an application of an older version in that version.
#[test]
fn an_older_version_is_answered_in_itself() {
    let server = Served::start(&PEER, &[]);
    for version in OLDEST_VERSION..=VERSION {
        let raw = connect(&server);
        raw.send(&Message::Attach(raw::attach("old")).encode_for(version), &[]).unwrap();
        let mut answer = [0; 512];
        let (count, _) = rustix::net::recv(
            raw.channel.as_fd(),
            &mut answer[..],
            rustix::net::RecvFlags::empty(),
        )
        .unwrap();
        let (message, answered) = Message::decode_any(&answer[..count]).unwrap();
        assert_eq!(answered, version);
        assert!(matches!(message, Message::Attached(_)), "{message:?}");
    }
    server.stop();
}

#[test]
fn a_version_refusal_names_both_versions() {
    let server = Served::start(&PEER, &[]);
    for version in [0, OLDEST_VERSION - 1, VERSION + 1, 0x7fff, u16::MAX] {
        for message in [
            Message::Attach(raw::attach("old")),
            Message::Report(Cursor::default()),
            Message::Mapped,
        ] {
            let mut bytes = bytes(&message);
            bytes[4..6].copy_from_slice(&version.to_ne_bytes());
            let raw = connect(&server);
            let (refusal, text) = cut_off(&raw, raw.ask_bytes(&bytes).unwrap());
            assert_eq!(refusal, Refusal::Version);
            for part in [
                &format!("version {version} "),
                &format!("this side {VERSION}"),
                "update the older of the two",
            ] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
    server.stop();
}

#[test]
fn server_messages_and_messages_out_of_order_are_refused() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let raw = connect(&server);
    let theirs = [
        Message::Attached(Attached::new_zeroed()),
        Message::Opened(Opened { endpoint: 0, port: 0 }),
        Message::Reported(Cursor::END, Vec::new()),
        Message::Done,
        Message::Error(Box::new(ErrorBody::new(Refusal::Limit, "no"))),
    ];
    for message in theirs {
        // `reply` takes an error for a refusal, and a refusal is expected.
        let (refusal, text) = refused(raw.ask(&message).unwrap());
        assert_eq!(refusal, Refusal::State, "{message:?}: {text}");
    }
    for message in [Message::Mapped, Message::Open(raw::open())] {
        let (refusal, text) = refused(raw.ask(&message).unwrap());
        assert_eq!(refusal, Refusal::State, "{message:?}: {text}");
    }
    let (refusal, _) = refused(raw.ask(&Message::Close(Close { endpoint: 0 })).unwrap());
    assert_eq!(refusal, Refusal::NotFound);
    // Between attached and mapped.
    let (_, files) = raw.attach(raw::attach("order")).unwrap();
    raw::allocate(&files).unwrap();
    for message in [Message::Attach(raw::attach("again")), Message::Open(raw::open())] {
        let (refusal, text) = refused(raw.ask(&message).unwrap());
        assert_eq!(refusal, Refusal::State, "{message:?}: {text}");
    }
    let done = raw.ask(&Message::Mapped).unwrap();
    assert!(matches!(done, Reply::Message(Message::Done, _)), "{done:?}");
    // In a live session.
    for message in [Message::Attach(raw::attach("again")), Message::Mapped] {
        let (refusal, text) = refused(raw.ask(&message).unwrap());
        assert_eq!(refusal, Refusal::State, "{message:?}: {text}");
    }
    // The connection stayed usable throughout.
    let opened = raw.ask(&Message::Open(raw::open())).unwrap();
    assert!(matches!(opened, Reply::Message(Message::Opened(_), _)), "{opened:?}");
    drop(raw);
    server.holds_again(&before);
    server.stop();
}

#[test]
fn each_field_of_attach_has_its_range() {
    let options = ["session_bytes=4194304", "endpoints_per_session=64"];
    let mut server = Served::start(&PEER, &options);
    let before = server.settled();
    let good = raw::attach("fields");
    let [many, huge] = [u32::MAX, 1 << 30];
    let malformed: Vec<Attach> = vec![
        Attach { queue_pairs: 0, ..good },
        Attach { queue_pairs: 16_385, ..good },
        Attach { queue_pairs: many, ..good },
        Attach { endpoints: 0, ..good },
        Attach { endpoints: 16_385, ..good },
        Attach { endpoints: many, ..good },
        Attach { transmit_slots: 0, ..good },
        Attach { transmit_slots: 4, ..good },
        Attach { transmit_slots: 9, ..good },
        Attach { transmit_slots: huge, ..good },
        Attach { receive_slots: 0, ..good },
        Attach { receive_slots: 12, ..good },
        Attach { receive_slots: 1 << 31, ..good },
        Attach { transmit_buffer_bytes: 0, ..good },
        Attach { transmit_buffer_bytes: 63, ..good },
        Attach { transmit_buffer_bytes: 1 << 18, ..good },
        Attach { transmit_buffer_bytes: many, ..good },
        Attach { receive_buffer_bytes: 1, ..good },
        Attach { receive_buffer_bytes: many, ..good },
        Attach { queue_pairs: 16_384, transmit_slots: 1 << 20, ..good },
        Attach { transmit_slots: 1 << 20, transmit_buffer_bytes: 1 << 17, ..good },
        Attach { flags: 16, ..good },
    ];
    let raw = connect(&server);
    for attach in malformed {
        let (refusal, text) = refused(raw.ask(&Message::Attach(attach)).unwrap());
        assert_eq!(refusal, Refusal::Malformed, "{attach:?}: {text}");
        assert!(text.starts_with("attach: "), "{text}");
    }
    for (attach, refusal, part) in [
        (Attach { transmit_slots: 4096, ..good }, Refusal::Limit, "at most 4194304"),
        (Attach { endpoints: 65, ..good }, Refusal::Limit, "at most 64"),
        (Attach { ipv4: [10, 77, 0, 1], ..good }, Refusal::NotFound, "10.77.0.1"),
        (Attach { ipv4: [10, 77, 0, 255], ..good }, Refusal::NotFound, "10.77.0.255"),
        (Attach { ipv4: [10, 77, 1, 5], ..good }, Refusal::NotFound, "10.77.1.5"),
        (Attach { ipv4: [255; 4], ..good }, Refusal::NotFound, "255.255.255.255"),
        (Attach { flags: message::ATTACH_OWN_QUEUE, ..good }, Refusal::NotFound, "no own queues"),
    ] {
        let (said, text) = refused(raw.ask(&Message::Attach(attach)).unwrap());
        assert_eq!(said, refusal, "{text}");
        assert!(text.contains(part), "{text}");
    }
    // None of these took any resource. The server shows arbitrary bytes of a name as characters.
    let attach = Attach { name: [0xff; 32], ipv4: [10, 77, 0, 9], ..good };
    raw.live(attach).unwrap();
    let report = server.report();
    assert_eq!(report["sessions"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["sessions"][0]["ipv4"], "10.77.0.9/24");
    // The server cannot give an address twice.
    let other = connect(&server);
    let (said, _) = refused(other.ask(&Message::Attach(attach)).unwrap());
    assert_eq!(said, Refusal::InUse);
    drop((raw, other));
    server.holds_again(&before);
    server.stop();
}

#[test]
fn each_field_of_open_has_its_range() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let raw = connect(&server);
    let (attached, _files) = raw.live(raw::attach("fields")).unwrap();
    let good = raw::open();
    let (ip, port) = (message::RULE_IP, message::RULE_PORT | message::RULE_PROTOCOL);
    let remote_port = message::RULE_REMOTE_PORT | message::RULE_PROTOCOL;
    let (any_vlan, within) = (message::RULE_ANY_VLAN, message::OPEN_WITHIN_VLAN);
    let mut other_ip = [0; 16];
    other_ip[..4].copy_from_slice(&[10, 77, 0, 99]);
    let cases: Vec<(Open, Refusal)> = vec![
        (Open { given: 1024, ..good }, Refusal::Malformed),
        (Open { given: u32::MAX, ..good }, Refusal::Malformed),
        (Open { flags: 16, ..good }, Refusal::Malformed),
        (Open { flags: u32::MAX, ..good }, Refusal::Malformed),
        (Open { queue_pair: 1, ..good }, Refusal::NotFound),
        (Open { queue_pair: u32::MAX, ..good }, Refusal::NotFound),
        (Open { flags: 12, ..good }, Refusal::Malformed),
        (Open { flags: 4, given: message::RULE_VLAN, vlan: 5, ..good }, Refusal::Malformed),
        (Open { flags: 8, given: ip, ip_version: 4, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_VLAN, vlan: 0, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_VLAN, vlan: 4095, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_ETHERTYPE, ethertype: 0x5ff, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_ETHERTYPE, ethertype: 0x8100, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_ETHERTYPE, ethertype: 0x88a8, ..good }, Refusal::Malformed),
        (Open { given: remote_port, protocol: 1, remote_port: 53, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_MAC | message::RULE_ANY_MAC, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_VLAN | any_vlan, vlan: 5, ..good }, Refusal::Malformed),
        (Open { flags: within, ..good }, Refusal::Malformed),
        (Open { flags: within, vlan: 5, ..good }, Refusal::Malformed),
        (Open { flags: within, given: any_vlan, ..good }, Refusal::Malformed),
        (Open { flags: within, given: message::RULE_VLAN, vlan: 0, ..good }, Refusal::Malformed),
        (Open { flags: within | message::OPEN_CAPTURE, ..good }, Refusal::Malformed),
        (Open { flags: within | message::OPEN_NEIGHBOURS, ..good }, Refusal::Malformed),
        (Open { given: message::RULE_REMOTE_IP, ip_version: 0, ..good }, Refusal::Malformed),
        (Open { given: port, protocol: 1, port: 53, ..good }, Refusal::Malformed),
        (Open { given: ip, ip_version: 5, ..good }, Refusal::Malformed),
        (Open { given: ip, ip_version: 0, ..good }, Refusal::Malformed),
        (Open { given: ip, ip_version: 4, ip: other_ip, ..good }, Refusal::Permission),
        (Open { given: ip, ip_version: 6, ip: [7; 16], ..good }, Refusal::Permission),
        (Open { given: message::RULE_MAC, mac: [1, 0, 0, 0, 0, 1], ..good }, Refusal::Permission),
    ];
    for (open, wanted) in cases {
        let (refusal, text) = refused(raw.ask(&Message::Open(open)).unwrap());
        assert_eq!(refusal, wanted, "{open:?}: {text}");
        assert!(text.starts_with("open: "), "{text}");
    }
    // Each of these is valid, until the session has its requested number.
    let mut own = [0; 16];
    own[..4].copy_from_slice(&attached.ipv4);
    let rights = [
        Open { given: any_vlan | message::RULE_REMOTE_PORT, remote_port: 7, ..good },
        Open { given: message::RULE_VLAN, vlan: 4094, flags: within, ..good },
        Open { given: ip, ip_version: 4, ip: own, ..good },
        Open { given: port, protocol: 132, port: 0, ..good },
    ];
    for open in rights {
        let reply = raw.ask(&Message::Open(open)).unwrap();
        assert!(matches!(reply, Reply::Message(Message::Opened(_), _)), "{reply:?}");
    }
    let (refusal, _) = refused(raw.ask(&Message::Open(raw::open())).unwrap());
    assert_eq!(refusal, Refusal::Limit);
    for (endpoint, there) in [(3, true), (3, false), (4, false), (u32::MAX, false), (0, true)] {
        let reply = raw.ask(&Message::Close(Close { endpoint })).unwrap();
        match reply {
            Reply::Message(Message::Done, _) => assert!(there, "{endpoint}"),
            Reply::Refused(Refusal::NotFound, _) => assert!(!there, "{endpoint}"),
            other => panic!("{endpoint}: {other:?}"),
        }
    }
    drop(raw);
    server.holds_again(&before);
    server.stop();
}

fn set(setting: u32, value: u64) -> Set {
    Set { setting, session: 0, endpoint: 0, reserved: 0, value }
}

/// Returns the settings of the device and of each endpoint.
fn settings(server: &Served) -> Vec<serde_json::Value> {
    let report = server.report();
    let sessions = report["sessions"].as_array().unwrap();
    let endpoints = sessions.iter().flat_map(|one| one["endpoints"].as_array().unwrap());
    let theirs = endpoints.map(|one| one["settings"].clone());
    [report["device"]["settings"].clone()].into_iter().chain(theirs).collect()
}

#[test]
fn settings_that_are_none_are_refused() {
    let server = Served::start(&PEER, &[]);
    let raw = connect(&server);
    let (attached, _files) = raw.live(raw::attach("settings")).unwrap();
    let opened = raw.ask(&Message::Open(raw::open())).unwrap();
    assert!(matches!(opened, Reply::Message(Message::Opened(Opened { endpoint: 0, port: 0 }), _)));
    let session = attached.session;
    // A setting with a value other than the default, which an error could reset.
    let clock = set(Setting::TickHz as u32, 300);
    let weight = Set { session, ..set(Setting::Weight as u32, 7) };
    for one in [clock, weight] {
        let done = raw.ask(&Message::Set(one)).unwrap();
        assert!(matches!(done, Reply::Message(Message::Done, _)), "{done:?}");
    }
    let before = settings(&server);
    assert_eq!((before[0]["tick_hz"].as_str(), before[1]["weight"].as_str()), {
        (Some("300"), Some("7"))
    });
    let none = Setting::ALL.len() as u32;
    let mut wrong = vec![
        (set(none, 0), format!("setting {none}")),
        (set(u32::MAX, 0), format!("setting {}", u32::MAX)),
        // Above the limit from the server's start.
        (
            set(Setting::RxBatch as u32, 65),
            "rx_batch=65: the server was started with a batch of 64".into(),
        ),
    ];
    for (setting, spec) in Setting::ALL {
        let number = *setting as u32;
        let of_device = spec.scope == Scope::Device;
        let whose = |value| {
            let session = if of_device { 0 } else { session };
            Set { session, ..set(number, value) }
        };
        let (least, over) = match spec.kind {
            Kind::Number { least, most, .. } => (least, most + 1),
            Kind::Word(words) => (0, words.len() as u64),
        };
        for value in [least.checked_sub(1), Some(over), Some(u64::MAX)].into_iter().flatten() {
            let possible = format!("{}={value}: {} is possible", spec.name, setting.possible());
            wrong.push((whose(value), possible));
        }
        // The setting is not the device's, or not an endpoint's, or the endpoint does not exist.
        let right = whose(spec.default);
        let (other, says) = if of_device {
            (Set { session, ..right }, "it is the device's, not an endpoint's")
        } else {
            (Set { session: 0, ..right }, "it is an endpoint's: name session and endpoint")
        };
        wrong.push((other, format!("{}: {says}", spec.name)));
        if !of_device {
            for (session, endpoint) in [(session, 1), (session, u32::MAX), (session + 77, 0)] {
                let says = format!("{}: there is no endpoint {session}/{endpoint}", spec.name);
                wrong.push((Set { session, endpoint, ..right }, says));
            }
        }
    }
    for (one, says) in wrong {
        let (refusal, text) = refused(raw.ask(&Message::Set(one)).unwrap());
        assert_eq!(refusal, Refusal::NotFound, "{one:?}: {text}");
        assert!(text.starts_with("set") && text.contains(&says), "{one:?}: {text}, not {says}");
        assert_eq!(settings(&server), before, "{one:?}: {text}");
    }
    let odd = Set { reserved: 1, ..clock };
    let (refusal, _) = refused(raw.ask(&Message::Set(odd)).unwrap());
    assert_eq!(refusal, Refusal::Malformed);
    assert_eq!(settings(&server), before);
    assert_eq!(server.report()["device"]["wait"], "block");
    drop(raw);
    server.stop();
}

/// Sets a flag at its end, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes settings on all of these connections, as fast as it can, until the flag is set. Returns
/// the number of answers.
fn flood(all: &[Raw], messages: &[Vec<u8>; 2], over: &AtomicBool) -> usize {
    /// Fewer than a socket has room for: the server cuts off a client that has no room for answers.
    const UNANSWERED: usize = 128;
    let mut counts = vec![(0, 0); all.len()];
    loop {
        let goes_on = !over.load(Ordering::Relaxed);
        for (raw, (sent, answered)) in all.iter().zip(&mut counts) {
            while goes_on && *sent - *answered < UNANSWERED {
                if raw.send(&messages[*sent % 2], &[]).is_err() {
                    break;
                }
                *sent += 1;
            }
            loop {
                match raw.reply(Duration::ZERO) {
                    Reply::Message(Message::Done, _) => *answered += 1,
                    Reply::Nothing => break,
                    other => panic!("{other:?}"),
                }
            }
        }
        if !goes_on && counts.iter().all(|(sent, answered)| sent == answered) {
            return counts.iter().map(|(_, answered)| answered).sum();
        }
        std::thread::yield_now();
    }
}

/// A client with the maximum of queue pairs that changes settings without end delays no packets of
/// others. The server cuts it off when it does not read its answers.
#[test]
fn a_flood_of_settings_delays_no_other_client() {
    let mut server = Served::start(&PEER, &[]);
    let mut neighbour = PEER.start(&["pair", server.path(), "7"]);
    neighbour.expect("running");
    let before = server.settled();
    let raw = connect(&server);
    let attach = Attach {
        queue_pairs: 16_384,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        ..raw::attach("flood")
    };
    let (attached, files) = raw.live(attach).unwrap();
    let opened = raw.ask(&Message::Open(raw::open())).unwrap();
    assert!(matches!(opened, Reply::Message(Message::Opened(_), _)), "{opened:?}");
    let pacing = |value| {
        let session = attached.session;
        bytes(&Message::Set(Set { session, ..set(Setting::Pacing as u32, value) }))
    };
    let messages = [pacing(1), pacing(0)];
    let all: Vec<Raw> = (0..16).map(|_| connect(&server)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&all, &messages, &over));
        let stop = Over(&over);
        // The neighbour checks each of its packets, and ends with an error where one takes too
        // long.
        let mut count = || neighbour.ask("count").parse::<u64>().unwrap();
        let first = count();
        eventually("the neighbour's packets go on", || count() > first + 1000);
        drop(stop);
        assert!(flooding.join().unwrap() > 1000);
    });
    // The same from a client that does not read.
    let until = Instant::now() + PATIENCE;
    loop {
        match raw.send(&messages[0], &[]) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => assert!(Instant::now() < until, "still answered"),
        }
    }
    drop((raw, files, all));
    server.holds_again(&before);
    let last = neighbour.finish();
    assert!(last.last().unwrap().starts_with("exchanged "), "{last:?}");
    server.stop();
}

#[test]
fn clients_that_flood_or_never_read_are_cut_off() {
    let mut server = Served::start(&PEER, &[]);
    let mut neighbour = PEER.start(&["pair", server.path(), "6"]);
    neighbour.expect("running");
    let before = server.settled();
    for message in [
        // The server answers each: by refusals, by a memory file.
        bytes(&Message::Mapped),
        bytes(&Message::Open(Open { given: u32::MAX, ..raw::open() })),
        bytes(&Message::Report(Cursor::default())),
    ] {
        let raw = connect(&server);
        let until = Instant::now() + PATIENCE;
        let mut sent = 0;
        let error = loop {
            match raw.send(&message, &[]) {
                Ok(()) => sent += 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::yield_now();
                }
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "{sent} messages, and still answered");
            // The server serves another client meanwhile.
            if sent == 50 {
                serves(&server);
            }
        };
        let kind = error.kind();
        let ended = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
        assert!(ended.contains(&kind), "{error}");
        drop(raw);
        server.holds_again(&before);
    }
    let last = neighbour.finish();
    assert!(last.last().unwrap().starts_with("exchanged "), "{last:?}");
    server.stop();
}

/// Since Linux 6.16 the kernel refuses descriptors for the server; before, its worker closes them
/// and cuts the connection off.
#[test]
fn descriptors_sent_to_the_server_do_not_stay() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let (read, write) = rustix::pipe::pipe().unwrap();
    for message in [bytes(&Message::Attach(raw::attach("gifts"))), b"hello".to_vec()] {
        for count in [1, 7, 8, 64, 253] {
            let raw = connect(&server);
            let many: Vec<BorrowedFd<'_>> = (0..count).map(|_| write.as_fd()).collect();
            match raw.send(&message, &many) {
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
                Ok(()) => {
                    let (refusal, text) = cut_off(&raw, raw.reply(PATIENCE));
                    assert_eq!(refusal, Refusal::Malformed);
                    assert!(text.contains("descriptors"), "{text}");
                }
            }
        }
        // The client sends, and never receives: the server closes the connection with the
        // descriptors in it.
        let raw = connect(&server);
        for _ in 0..20 {
            let _ = raw.send(&message, &[write.as_fd()]);
        }
    }
    drop(write);
    server.holds_again(&before);
    // No write end is left anywhere: the pipe is at its end.
    assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 0);
    server.stop();
}

#[test]
fn connections_and_sessions_are_limited() {
    let mut server = Served::start(&PEER, &["sessions_per_user=4", "connections=7"]);
    let before = server.settled();
    let uid = rustix::process::geteuid().as_raw();
    let mut sessions: Vec<Session> =
        (0..4).map(|_| Session::attach(server.socket(), &Options::default()).unwrap()).collect();
    let error = Session::attach(server.socket(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains(&format!("user {uid} has 4 sessions")), "{error}");
    assert!(error.contains("(sessions-per-user of the server or the policy)"), "{error}");
    // A session that ends makes room for another.
    drop(sessions.pop());
    eventually("room for a session", || {
        Session::attach(server.socket(), &Options::default()).map(|one| sessions.push(one)).is_ok()
    });
    // The limit of all connections together: the sessions' own and three more.
    let more: Vec<Raw> = (0..3).map(|_| connect(&server)).collect();
    let raw = connect(&server);
    let (refusal, text) = cut_off(&raw, raw.reply(PATIENCE));
    assert_eq!(refusal, Refusal::Limit);
    assert!(text.contains("as many control connections"), "{text}");
    assert!(text.contains("sessions-per-user") && !text.contains("--"), "{text}");
    drop((raw, more));
    // The existing ones go on.
    for session in &mut sessions {
        session.open(&Rule::new()).unwrap();
    }
    drop(sessions);
    server.holds_again(&before);
    server.stop();
}

#[test]
fn a_process_may_die_at_every_step() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let address = |server: &Served| {
        Session::attach(server.socket(), &Options::default()).unwrap().info().ipv4
    };
    let first = address(&server);
    for _ in 0..3 {
        for step in 0..10 {
            let status = PEER.start(&["step", server.path(), &step.to_string()]).wait();
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(signal, Some(9), "step {step}: {status}");
        }
    }
    server.holds_again(&before);
    assert_eq!(address(&server), first);
    server.stop();
}

/// A client may end at any moment while the server creates a memory for it.
#[test]
fn a_memory_that_is_being_created_ends_with_its_client() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    for moment in 0..24 {
        let raw = connect(&server);
        let flags = 8 << message::ATTACH_OOB_SHIFT;
        raw.live(Attach { flags, apertures: 64, ..raw::attach("short") }).unwrap();
        let create =
            CreateMemory { sequence: 1, bytes: 128 << 20, sharing: Sharing::Requests as u32 };
        raw.say(&Message::CreateMemory(create)).unwrap();
        std::thread::sleep(Duration::from_millis(moment * 2));
    }
    server.holds_again(&before);
    server.stop();
}

#[test]
fn a_child_made_by_fork_has_no_session_and_the_parents_goes_on() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let mut forked = PEER.start(&["forked", server.path()]);
    let line = forked.line();
    let child: i32 = line.strip_prefix("child ").expect("a child").parse().unwrap();
    let sessions = |server: &Served| server.report()["sessions"].as_array().unwrap().len();
    eventually("one session is left", || sessions(&server) == 1);
    assert!(forked.leave().success());
    // The child lives, with every descriptor of the parent's, and yet the session is over.
    assert!(std::path::Path::new(&format!("/proc/{child}")).exists());
    eventually("the session is over", || sessions(&server) == 0);
    assert!(std::path::Path::new(&format!("/proc/{child}")).exists());
    server.holds_again(&before);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    server.stop();
}

/// The flow cache follows its setting while the server runs, and its counters show it.
#[test]
fn the_flow_cache_is_switched_and_counted() {
    let server = Served::start(&PEER, &[]);
    let mut session = Session::attach(server.socket(), &Options::default()).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(0x88b5)).unwrap();
    let mac = session.info().mac.octets();
    let mut packet = [&mac[..], &mac, &[0x88, 0xb5]].concat();
    packet.resize(60, 0);
    let counts = || {
        ["flow_lookups", "flow_compared", "flow_cache_hits"].map(|name| server.device_counter(name))
    };
    // For each setting: how many of 100 lookups the cache compares, and hits.
    for (value, compared) in [("off", 0), ("on", 100), ("off", 0)] {
        let value = Setting::FlowCache.parse(value).unwrap();
        towpath_client::set(server.socket(), None, Setting::FlowCache, value).unwrap();
        let before = counts();
        for _ in 0..100 {
            session.sender().send_bytes(endpoint, &packet).unwrap();
            session.sender().flush().unwrap();
            let mut got = 0;
            eventually("its own packet", || {
                got += session.receiver().receive(QueuePair::FIRST, 1, |_| {}).unwrap();
                got == 1
            });
        }
        // The first of them belongs to no cached flow.
        let hits = if compared > 0 { compared - 1 } else { 0 };
        let expected = [before[0] + 100, before[1] + compared, before[2] + hits];
        eventually("all is counted", || counts() == expected);
    }
    let shown = server.report()["device"]["settings"]["flow_cache"].clone();
    assert_eq!(shown, "off");
    drop(session);
    server.stop();
}

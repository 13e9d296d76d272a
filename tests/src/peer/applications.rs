//! Well-behaved applications: they exchange frames and check every byte.

use std::path::Path;
use std::time::{Duration, Instant};

use towpath_client::{
    Endpoint, Meta, OobAddress, OobKind, Options, PeerState, QueuePair, Rule, SendError, Session,
    Sharing,
};
use towpath_tests::{PATIENCE, frames};

use crate::inputs::{Input, Inputs};
use crate::server::far_socket;

/// Frames of a batch: fewer than the queues hold, so that no loss is allowed.
const BATCH: u64 = 16;

fn attach(socket: &Path, name: &str) -> (Session, Endpoint) {
    let options = Options {
        name: name.into(),
        endpoints: 2,
        transmit_slots: 64,
        receive_slots: 64,
        ..Options::default()
    };
    let mut session = Session::attach(socket, &options).expect("attaches");
    let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).expect("opens");
    (session, endpoint)
}

fn send(session: &mut Session, endpoint: Endpoint, to: [u8; 6], seed: u64, number: u64) {
    let source = session.info().mac;
    loop {
        let sent =
            session.sender().send(endpoint, frames::len(seed, number), Meta::FULL, |parts| {
                frames::write(parts[0], to, source.octets(), seed, number);
            });
        match sent {
            Ok(()) => return,
            Err(SendError::Full) => {
                session.sender().want_room(QueuePair::FIRST).expect("lives");
                assert!(session.wait(Some(PATIENCE)).expect("lives"), "no room came");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives the frames of a batch, in order and without loss, from `source`; ignores others'
/// frames.
fn expect(session: &mut Session, source: [u8; 6], seed: u64, first: u64, spin: bool) {
    let own = session.info().mac;
    let until = Instant::now() + PATIENCE;
    let mut next = first;
    while next < first + BATCH {
        if !spin {
            assert!(session.wait(Some(PATIENCE)).expect("lives"), "number {next} did not come");
        }
        assert!(Instant::now() < until, "number {next} did not come");
        session
            .receiver()
            .receive(QueuePair::FIRST, 64, |received| {
                let seen = received.contiguous().expect("frames are larger than these");
                if frames::source(seen) == Some(source) {
                    let same = frames::check(seen, own.octets(), source, seed, next);
                    // Packets in flight to the previous holder of the address may arrive before the
                    // first of our own.
                    if next == 0 && same.is_err() {
                        return;
                    }
                    same.expect("the sent frame");
                    next += 1;
                }
            })
            .expect("lives");
    }
}

fn nothing_dropped(session: &Session, endpoint: Endpoint, packets: u64) {
    for (name, value) in session.counters(endpoint) {
        // At most one copy on the transmit path: of a short packet, or of the headers.
        assert!(name != "tx_copies" || value <= packets, "{name} {value} of {packets} packets");
        let wanted = match name {
            "rx_packets" | "tx_packets" | "rx_copies" => packets,
            name if name.contains("dropped") => 0,
            _ => continue,
        };
        assert_eq!(value, wanted, "{name}");
    }
}

/// Runs two sessions that send each other batches and check every byte. Prints `running`, answers
/// `count`, and at the end of its input prints `exchanged N`. With `spin` it polls instead of
/// sleeping.
pub(crate) fn pair(socket: &Path, seed: u64, options: &[&str]) {
    let spin = options.contains(&"spin");
    let (mut a, of_a) = attach(socket, "pair-a");
    let (mut b, of_b) = attach(socket, "pair-b");
    let (mac_a, mac_b) = (a.info().mac, b.info().mac);
    let inputs = Inputs::listen();
    let mut number = 0;
    loop {
        for step in 0..BATCH {
            send(&mut a, of_a, mac_b.octets(), seed, number + step);
            send(&mut b, of_b, mac_a.octets(), seed, number + step);
        }
        a.sender().flush().expect("lives");
        b.sender().flush().expect("lives");
        expect(&mut b, mac_a.octets(), seed, number, spin);
        expect(&mut a, mac_b.octets(), seed, number, spin);
        if number == 0 {
            println!("running");
        }
        number += BATCH;
        match inputs.next() {
            Input::None => {}
            Input::Line(line) if line == "count" => println!("{number}"),
            Input::Line(line) => panic!("no such command: {line}"),
            Input::Over => break,
        }
    }
    let statistics = [a.statistics(), b.statistics()];
    assert!(statistics.iter().all(|one| one.notifications <= one.batches), "{statistics:?}");
    nothing_dropped(&a, of_a, number);
    nothing_dropped(&b, of_b, number);
    println!("exchanged {number}");
}

/// Sends batches through the device to an echoing far end, and checks every byte. Prints `running`,
/// answers `count`, and at the end of its input prints `echoed N`.
pub(crate) fn echoed(socket: &Path, seed: u64) {
    let (mut session, endpoint) = attach(socket, "echoed");
    let inputs = Inputs::listen();
    let mut number = 0;
    loop {
        for step in 0..BATCH {
            send(&mut session, endpoint, frames::ELSEWHERE, seed, number + step);
        }
        session.sender().flush().expect("lives");
        expect(&mut session, frames::ELSEWHERE, seed, number, false);
        if number == 0 {
            println!("running");
        }
        number += BATCH;
        match inputs.next() {
            Input::None => {}
            Input::Line(line) if line == "count" => println!("{number}"),
            Input::Line(line) => panic!("no such command: {line}"),
            Input::Over => break,
        }
    }
    nothing_dropped(&session, endpoint, number);
    println!("echoed {number}");
}

/// Sleeps until it is killed, or a packet arrives.
pub(crate) fn sleeper(socket: &Path) {
    let (mut session, _endpoint) = attach(socket, "sleeper");
    println!("asleep");
    let woken = session.wait(None);
    println!("woken: {woken:?}");
}

/// Creates a memory for apertures. Prints `created`, or the refusal, and keeps the memory until its input ends.
pub(crate) fn memory(socket: &Path) {
    let options = Options { oob_slots: 16, apertures: 1, tripwires: 8, ..Options::default() };
    let mut session = Session::attach(socket, &options).expect("attaches");
    match session.memories().create(4096, Sharing::MapRead) {
        Ok(_) => println!("created"),
        Err(error) => println!("{error}"),
    }
    let _ = std::io::stdin().lines().count();
}

/// Connects a session with one of the other host. Prints `Connected`, or the state in which the request ends.
pub(crate) fn connection(socket: &Path) {
    let options = Options { oob_slots: 16, ..Options::default() };
    let rule = Rule::new().tcp(0).out_of_band();
    let attach = |path: &Path| {
        let mut session = Session::attach(path, &options).expect("attaches");
        let endpoint = session.open(&rule).expect("opens");
        let ip = session.info().ipv4.expect("an address").0.into();
        let address = OobAddress { ip, protocol: 6, port: endpoint.port() };
        (session, endpoint, address)
    };
    let (mut near, from, _) = attach(socket);
    let (mut far, listener, address) = attach(&far_socket(socket));
    near.oob().request_connection(from, address, b"").expect("asks");
    near.sender().flush_now().expect("asks");
    let until = Instant::now() + PATIENCE;
    while near.peer_state(from) == PeerState::Requested && Instant::now() < until {
        let asked = far.oob().receive(listener).expect("lives");
        if let Some(asked) = asked.filter(|one| one.kind() == OobKind::Request) {
            let accepting = far.open(&rule).expect("opens");
            far.oob().accept_connection(accepting, asked.from(), b"").expect("accepts");
            far.sender().flush_now().expect("accepts");
        }
        near.wait(Some(Duration::from_millis(1))).expect("lives");
        let _ = near.oob().ready().expect("lives");
    }
    println!("{:?}", near.peer_state(from));
    let _ = std::io::stdin().lines().count();
}

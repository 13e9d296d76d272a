//! Two applications with a channel between them, in one process, which polls.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use towpath_client::{
    Access, Channel, ChannelOffer, Endpoint, OobAddress, OobKind, Options, PeerState, ReceivedOob,
    Rule, Session, Sharing,
};
use towpath_tests::PATIENCE;

use crate::inputs::{Input, Inputs};

const TCP: u8 = 6;
const RING_BYTES: usize = 4096;
/// Tripwires that one side sets, and polls.
const TRIPWIRES: usize = 10_000;

/// Sends messages both ways, and polls the tripwires of one side each time. Prints `running`,
/// answers `count`, and at the end of its input prints `exchanged N`.
pub(crate) fn run(socket: &Path) {
    let (mut one, mut other) = (attach(socket, "one"), attach(socket, "other"));
    let [mut near, mut far] = open(&mut one, &mut other);
    let memory = one.memories().create(TRIPWIRES * 8, Sharing::Requests).expect("memory");
    for number in 0..TRIPWIRES {
        let range = number * 8..number * 8 + 8;
        let tripwire =
            one.memories().set_tripwire(&memory, range, Access::Write).expect("a tripwire");
        one.tripwires().arm(tripwire);
    }
    let inputs = Inputs::listen();
    let (mut number, mut message) = (0_u64, Vec::with_capacity(64));
    loop {
        let mut pass = |from: (&mut Channel, &mut Session), to: &mut Channel| {
            for step in 0..16 {
                from.0.send(&(number + step).to_le_bytes()).expect("there is room");
            }
            from.0.flush(from.1).expect("lives");
            for step in 0..16 {
                assert!(to.receive_into(&mut message).expect("lives"), "it is there");
                assert_eq!(message, (number + step).to_le_bytes());
            }
            assert!(!to.receive_into(&mut message).expect("lives"));
        };
        pass((&mut near, &mut one), &mut far);
        pass((&mut far, &mut other), &mut near);
        one.tripwires().for_each_fired(|tripwire| panic!("{tripwire:?} fired"));
        if number == 0 {
            println!("running");
        }
        number += 16;
        match inputs.next() {
            Input::None => {}
            Input::Line(line) if line == "count" => println!("{number}"),
            Input::Line(line) => panic!("no such command: {line}"),
            Input::Over => break,
        }
    }
    println!("exchanged {number}");
}

pub(crate) fn attach(socket: &Path, name: &str) -> Session {
    let options = Options {
        name: name.into(),
        oob_slots: 8,
        apertures: 2,
        tripwires: TRIPWIRES as u32 + 2,
        ..Options::default()
    };
    Session::attach(socket, &options).expect("attaches")
}

/// Connects two sessions, and opens a channel.
pub(crate) fn open(one: &mut Session, other: &mut Session) -> [Channel; 2] {
    let from = one.open(&Rule::new().tcp(0).out_of_band()).expect("opens");
    let to = other.open(&Rule::new().tcp(0).out_of_band()).expect("opens");
    let at = |session: &Session, endpoint: Endpoint| OobAddress {
        ip: IpAddr::V4(session.info().ipv4.expect("an address").0),
        protocol: TCP,
        port: endpoint.port(),
    };
    one.oob().request_connection(from, at(other, to), b"").expect("asks");
    one.sender().flush().expect("lives");
    assert_eq!(message(other, to).kind(), OobKind::Request);
    other.oob().accept_connection(to, at(one, from), b"").expect("accepts");
    other.sender().flush().expect("lives");
    assert_eq!(message(one, from).kind(), OobKind::Accept);
    while other.peer_state(to) != PeerState::Connected {
        other.wait(Some(Duration::from_millis(1))).expect("lives");
    }
    let memories = [&mut *one, &mut *other].map(|session| {
        let bytes = ChannelOffer::memory_bytes(RING_BYTES).expect("a ring");
        session.memories().create(bytes, Sharing::MapWrite).expect("memory")
    });
    let mut near = ChannelOffer::new(one, from, (&memories[0], 0), RING_BYTES).expect("offers");
    let mut far = ChannelOffer::new(other, to, (&memories[1], 0), RING_BYTES).expect("offers");
    one.sender().flush().expect("lives");
    other.sender().flush().expect("lives");
    let offered = message(one, from);
    let near = near.complete(one, &offered).expect("completes").expect("an offer");
    let offered = message(other, to);
    let far = far.complete(other, &offered).expect("completes").expect("an offer");
    [near, far]
}

fn message(session: &mut Session, endpoint: Endpoint) -> ReceivedOob {
    loop {
        if let Some(message) = session.oob().receive(endpoint).expect("lives") {
            return message;
        }
        assert!(session.wait(Some(PATIENCE)).expect("lives"), "no message came");
        session.oob().ready().expect("lives");
    }
}

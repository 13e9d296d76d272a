//! Out-of-band messages between the sessions of a server in this process: messages, connections,
//! limits, and what each side learns of the other's end.

use std::time::{Duration, Instant};

use crate::connections::{PATIENCE, PORT, SLOTS, becomes, connect, eventually, next, open, world};
use towpath_client::{
    Endpoint, Lost, OobAddress, OobKind, OpenError, Options, PeerState, Refusal, Refused, Rule,
    SendError, Session, Setting,
};

#[test]
fn messages_arrive_in_order_with_their_senders_address() {
    for lanes in [1, 2] {
        let world = world(lanes);
        let (mut one, from, own) = world.at("one", PORT);
        let (mut other, to, address) = world.at("other", PORT);
        for number in 0..100_u32 {
            one.oob().send(from, address, &number.to_le_bytes()).unwrap();
            one.sender().flush().unwrap();
            let message = next(&mut other, to);
            assert_eq!(message.payload(), number.to_le_bytes());
            assert_eq!((message.kind(), message.from()), (OobKind::Message, own));
            assert_eq!(message.uid(), rustix::process::geteuid().as_raw());
        }
        for len in [0, 1, 63, 64] {
            let payload = vec![len as u8; len];
            other.oob().send(to, own, &payload).unwrap();
            other.sender().flush().unwrap();
            assert_eq!(next(&mut one, from).payload(), payload);
        }
        assert_eq!(one.oob().receive(from), Ok(None));
        assert_eq!(world.counter(&other, to, "oob_received"), 100);
        assert_eq!(world.counter(&one, from, "oob_sent"), 100);
        let counted = one.counters(from);
        assert_eq!(counted.get("oob_received"), Some(4), "{counted:?}");
    }
}

#[test]
fn connections_are_made_and_end() {
    let world = world(1);
    let (mut client, endpoint, own) = world.at("client", PORT);
    let (mut server, listener, to) = world.at("server", PORT);
    assert_eq!(client.peer_state(endpoint), PeerState::None);
    let accepted = connect((&mut client, endpoint, own), (&mut server, listener, to));
    assert_eq!(server.peer_state(listener), PeerState::None, "it listens on");
    let again = client.oob().request_connection(endpoint, to, b"");
    assert_eq!(again, Err(SendError::HasPeer));
    // What was sent before the close is there when the state says so.
    let at = OobAddress { port: accepted.port(), ..to };
    client.oob().send(endpoint, at, b"last").unwrap();
    client.oob().disconnect(endpoint).unwrap();
    client.sender().flush().unwrap();
    assert_eq!(client.peer_state(endpoint), PeerState::None);
    becomes(&mut server, accepted, PeerState::Closed);
    assert_eq!(server.oob().receive(accepted).unwrap().unwrap().payload(), b"last");
    server.close(accepted).unwrap();
    // The endpoint's close, the session's end.
    let accepted = connect((&mut client, endpoint, own), (&mut server, listener, to));
    server.close(accepted).unwrap();
    becomes(&mut client, endpoint, PeerState::Closed);
    connect((&mut client, endpoint, own), (&mut server, listener, to));
    drop(server);
    becomes(&mut client, endpoint, PeerState::Gone);
}

#[test]
fn requests_are_refused_for_a_reason() {
    let world = world(1);
    let (mut client, endpoint, own) = world.at("client", PORT);
    let (mut server, listener, to) = world.at("server", PORT);
    let refused = |client: &mut Session, to, why| {
        client.oob().request_connection(endpoint, to, b"").unwrap();
        client.sender().flush().unwrap();
        becomes(client, endpoint, PeerState::Refused(why));
    };
    refused(&mut client, OobAddress { port: 9, ..to }, Refused::NoEndpoint);
    refused(&mut client, OobAddress { protocol: 17, ..to }, Refused::NoEndpoint);
    refused(&mut client, own, Refused::State);
    // Rejected, also if there is no room for the payload.
    client.oob().request_connection(endpoint, to, b"?").unwrap();
    client.sender().flush().unwrap();
    assert_eq!(next(&mut server, listener).kind(), OobKind::Request);
    server.oob().reject_connection(listener, own, b"not today").unwrap();
    server.sender().flush().unwrap();
    becomes(&mut client, endpoint, PeerState::Refused(Refused::Rejected));
    let answer = next(&mut client, endpoint);
    assert_eq!((answer.kind(), answer.payload()), (OobKind::Reject, &b"not today"[..]));
    // An answer to nowhere.
    let (accepting, _) = open(&mut server, 0);
    server.oob().accept_connection(accepting, own, b"").unwrap();
    server.sender().flush().unwrap();
    becomes(&mut server, accepting, PeerState::Refused(Refused::State));
    assert_eq!(client.peer_state(endpoint), PeerState::Refused(Refused::Rejected));
    // The listener closes before it answers.
    client.oob().request_connection(endpoint, to, b"?").unwrap();
    client.sender().flush().unwrap();
    next(&mut server, listener);
    server.close(listener).unwrap();
    becomes(&mut client, endpoint, PeerState::Refused(Refused::NoEndpoint));
    // The requester takes its request back, and the answer finds nowhere.
    let (listener, to) = open(&mut server, PORT);
    client.oob().request_connection(endpoint, to, b"?").unwrap();
    client.oob().disconnect(endpoint).unwrap();
    client.sender().flush().unwrap();
    next(&mut server, listener);
    server.oob().accept_connection(accepting, own, b"").unwrap();
    server.sender().flush().unwrap();
    becomes(&mut server, accepting, PeerState::Refused(Refused::State));
    assert_eq!(client.peer_state(endpoint), PeerState::None);
}

#[test]
fn full_queues_discard_and_a_sender_has_a_quarter() {
    let world = world(1);
    let (mut receiver, to, address) = world.at("receiver", PORT);
    let mut sent = 0;
    for number in 0..5 {
        let (mut sender, from, _) = world.at("sender", PORT);
        for _ in 0..SLOTS {
            sender.oob().send(from, address, &[number]).unwrap();
        }
        sender.sender().flush().unwrap();
        sent += u64::from(SLOTS);
        eventually(|| {
            let counts = ["oob_received", "oob_dropped_full", "oob_dropped_share"]
                .map(|name| world.counter(&receiver, to, name));
            counts.iter().sum::<u64>() >= sent
        });
    }
    // One place is kept for an answer.
    let quarter = u64::from(SLOTS / 4);
    let received = u64::from(SLOTS - 1);
    assert_eq!(world.counter(&receiver, to, "oob_received"), received);
    assert_eq!(world.counter(&receiver, to, "oob_dropped_share"), 3 * (u64::from(SLOTS) - quarter));
    let full = sent - received - 3 * (u64::from(SLOTS) - quarter);
    assert_eq!(world.counter(&receiver, to, "oob_dropped_full"), full);
    let mut counts = [0; 5];
    for _ in 0..received {
        counts[usize::from(next(&mut receiver, to).payload()[0])] += 1;
    }
    assert_eq!(counts, [4, 4, 4, 3, 0]);
    assert_eq!(receiver.oob().receive(to), Ok(None));
}

#[test]
fn an_answer_has_room_in_a_full_queue() {
    let world = world(1);
    let (mut client, endpoint, own) = world.at("client", PORT);
    let (mut server, listener, to) = world.at("server", PORT);
    client.oob().request_connection(endpoint, to, b"").unwrap();
    client.sender().flush().unwrap();
    next(&mut server, listener);
    let mut others: Vec<_> = (0..4).map(|_| world.at("other", PORT)).collect();
    for (other, from, _) in &mut others {
        for _ in 0..SLOTS / 4 {
            other.oob().send(*from, own, b"").unwrap();
        }
        other.sender().flush().unwrap();
    }
    eventually(|| world.counter(&client, endpoint, "oob_dropped_full") > 0);
    let (accepting, _) = open(&mut server, 0);
    server.oob().accept_connection(accepting, own, b"yes").unwrap();
    server.sender().flush().unwrap();
    becomes(&mut client, endpoint, PeerState::Connected);
    for _ in 0..SLOTS - 1 {
        assert_eq!(next(&mut client, endpoint).kind(), OobKind::Message);
    }
    assert_eq!(next(&mut client, endpoint).payload(), b"yes");
}

#[test]
fn a_listener_has_as_many_requests_of_a_session_as_of_its_messages() {
    let world = world(1);
    let (mut server, listener, to) = world.at("server", PORT);
    let mut client = world.attach("client");
    let endpoints: Vec<_> = (0..SLOTS / 4 + 1).map(|_| open(&mut client, 0).0).collect();
    for endpoint in &endpoints {
        client.oob().request_connection(*endpoint, to, b"").unwrap();
        client.sender().flush().unwrap();
        if *endpoint != endpoints[SLOTS as usize / 4] {
            // The listener reads them all, and answers none.
            next(&mut server, listener);
        }
    }
    becomes(&mut client, endpoints[SLOTS as usize / 4], PeerState::Refused(Refused::Full));
    assert_eq!(client.peer_state(endpoints[0]), PeerState::Requested);
    client.close(endpoints[0]).unwrap();
    let last = endpoints[SLOTS as usize / 4];
    client.oob().request_connection(last, to, b"again").unwrap();
    client.sender().flush().unwrap();
    assert_eq!(next(&mut server, listener).payload(), b"again");
}

#[test]
fn a_closed_endpoints_messages_are_not_the_next_ones() {
    let world = world(1);
    let (mut one, from, _) = world.at("one", PORT);
    let (mut other, to, address) = world.at("other", PORT);
    one.oob().send(from, address, b"for the first").unwrap();
    one.sender().flush().unwrap();
    eventually(|| world.counter(&other, to, "oob_received") > 0);
    other.close(to).unwrap();
    let (again, address) = open(&mut other, PORT);
    assert_eq!(again.id(), to.id());
    assert_eq!(other.oob().receive(again), Ok(None));
    assert_eq!(world.counter(&other, again, "oob_received"), 0);
    one.oob().send(from, address, b"for the second").unwrap();
    one.sender().flush().unwrap();
    assert_eq!(next(&mut other, again).payload(), b"for the second");
}

#[test]
fn a_new_state_ends_a_wait_once() {
    let world = world(1);
    let (mut client, endpoint, _) = world.at("client", PORT);
    let nowhere = OobAddress { ip: "10.77.0.99".parse().unwrap(), protocol: 6, port: 1 };
    client.oob().request_connection(endpoint, nowhere, b"").unwrap();
    assert_eq!(client.wait(Some(PATIENCE)), Ok(true));
    assert_eq!(client.peer_state(endpoint), PeerState::Refused(Refused::NoEndpoint));
    assert_eq!(client.wait(Some(Duration::from_millis(10))), Ok(false), "it was told");
    client.oob().request_connection(endpoint, nowhere, b"").unwrap();
    assert_eq!(client.wait(Some(PATIENCE)), Ok(true));
    assert_eq!(client.oob().ready(), Ok(Some(endpoint.id())));
    assert_eq!(client.oob().ready(), Ok(None));
}

/// The application does not ask which endpoint has news: each new state still ends a wait.
#[test]
fn every_new_state_ends_a_wait() {
    let world = world(1);
    let (mut client, endpoint, own) = world.at("client", PORT);
    let (mut server, listener, to) = world.at("server", PORT);
    client.oob().request_connection(endpoint, to, b"").unwrap();
    client.sender().flush().unwrap();
    next(&mut server, listener);
    let (accepting, _) = open(&mut server, 0);
    server.oob().accept_connection(accepting, own, b"").unwrap();
    server.sender().flush().unwrap();
    let until = |client: &mut Session, state| {
        while client.peer_state(endpoint) != state {
            assert_eq!(client.wait(Some(PATIENCE)), Ok(true));
            while client.oob().receive(endpoint).unwrap().is_some() {}
        }
    };
    until(&mut client, PeerState::Connected);
    while client.wait(Some(Duration::from_millis(10))).unwrap() {
        while client.oob().receive(endpoint).unwrap().is_some() {}
    }
    server.close(accepting).unwrap();
    until(&mut client, PeerState::Closed);
    for _ in 0..3 {
        client.oob().request_connection(endpoint, to, b"").unwrap();
        assert_eq!(client.wait(Some(PATIENCE)), Ok(true));
        until(&mut client, PeerState::Requested);
        next(&mut server, listener);
        server.oob().reject_connection(listener, own, b"").unwrap();
        server.sender().flush().unwrap();
        until(&mut client, PeerState::Refused(Refused::Rejected));
    }
}

/// A maximum delay of the endpoint does not let messages pass their rate.
#[test]
fn messages_keep_to_their_rate() {
    let world = world(1);
    let (mut one, from, _) = world.at("one", PORT);
    let (mut other, to, address) = world.at("other", PORT);
    for (setting, value) in
        [(Setting::RatePps, 2), (Setting::BurstPackets, 1), (Setting::MaxDelayUs, 1)]
    {
        one.set(from, setting, value).unwrap();
    }
    let began = Instant::now();
    for _ in 0..4 {
        one.oob().send(from, address, b"").unwrap();
    }
    one.sender().flush().unwrap();
    for _ in 0..4 {
        next(&mut other, to);
    }
    // Two a second, and one at once: half a second less for the arithmetic of the bucket.
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn a_port_of_the_servers_choice_has_a_free_address() {
    let world = world(1);
    let mut session = world.attach("session");
    let ip = session.info().ipv4.unwrap().0.into();
    let first = session.open(&Rule::new().tcp(49_152).ip(ip).out_of_band()).unwrap();
    let chosen = session.open(&Rule::new().tcp(0).out_of_band()).unwrap();
    assert_ne!(first.port(), chosen.port());
}

#[test]
fn wrong_requests_are_named() {
    let world = world(1);
    let attach = |oob_slots| {
        let options = Options { oob_slots, ..Options::default() };
        Session::attach_over(world.server.connect().unwrap(), &options)
    };
    let refused = attach(24).unwrap_err();
    assert!(refused.to_string().contains("24 out-of-band messages"), "{refused}");
    let mut plain = attach(0).unwrap();
    let refused = |outcome: Result<Endpoint, OpenError>, kind, part: &str| match outcome {
        Err(OpenError::Refused { refusal, text }) => {
            assert!(refusal == kind && text.contains(part), "{refusal:?} {text}");
        }
        other => panic!("{other:?}"),
    };
    let rule = Rule::new().tcp(PORT);
    refused(plain.open(&rule.out_of_band()), Refusal::State, "oob_slots");
    let endpoint = plain.open(&rule).unwrap();
    let nowhere = OobAddress { ip: "10.77.0.9".parse().unwrap(), protocol: 6, port: 1 };
    assert_eq!(plain.oob().send(endpoint, nowhere, b""), Err(SendError::NotOutOfBand));
    assert_eq!(plain.peer_state(endpoint), PeerState::None);
    assert_eq!(plain.oob().receive(endpoint), Ok(None));
    let (mut session, endpoint, own) = world.at("session", PORT);
    for rule in [
        Rule::new(),
        Rule::new().protocol(6),
        rule.remote_port(9),
        rule.vlan(7),
        rule.remote_ip("10.77.0.9".parse().unwrap()),
    ] {
        refused(session.open(&rule.out_of_band()), Refusal::Malformed, "protocol and a port");
    }
    let same = Rule::new().tcp(PORT).ip(own.ip).out_of_band();
    refused(session.open(&same), Refusal::InUse, "tcp:10.77.0.");
    let long = [0; 65];
    let length = |len, max| Err(SendError::Payload { len, max });
    assert_eq!(session.oob().send(endpoint, own, &long), length(65, 64));
    assert_eq!(session.oob().request_connection(endpoint, own, &long[..57]), length(57, 56));
    drop(world);
    let until = Instant::now() + PATIENCE;
    loop {
        match session.oob().receive(endpoint) {
            Err(lost) => return assert_eq!(lost, Lost::ServerGone),
            Ok(_) => assert!(Instant::now() < until),
        }
        let _ = session.wait(Some(Duration::from_millis(10)));
    }
}

/// An engine that blocks tells of the end of a session although it has nothing else to do.
#[test]
fn the_end_of_a_peer_ends_a_sleep() {
    let world = world(1);
    let (mut client, endpoint, own) = world.at("client", PORT);
    let (mut server, listener, to) = world.at("server", PORT);
    connect((&mut client, endpoint, own), (&mut server, listener, to));
    while client.wait(Some(Duration::ZERO)).unwrap() || client.oob().ready().unwrap().is_some() {}
    let left = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            drop(server);
        });
        client.wait(Some(PATIENCE)).unwrap()
    });
    assert!(left, "nothing ended the sleep");
    assert_eq!(client.peer_state(endpoint), PeerState::Gone);
}

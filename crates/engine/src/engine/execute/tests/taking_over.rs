//! Tests of endpoints that take over the flow rules of other sessions.

use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};

use super::*;
use crate::testing::{Application, inward};

/// Attaches a session with an endpoint for a port, in place of another session's if that is given.
fn attach(world: &World, number: u32, from: Option<u32>) -> Application {
    let (session, application) = session(number);
    world.give(Command::AddSession(session));
    let (endpoint, group) = (Box::new(endpoint(PORT)), false);
    world.give(match from {
        Some(earlier) => Command::TakeOverEndpoint {
            from: (earlier, 0),
            session: number,
            number: 0,
            endpoint,
            group,
        },
        None => {
            Command::AddEndpoint { session: number, number: 0, endpoint, listening: None, group }
        }
    });
    application
}

/// Sends a packet from the wire, and returns how many packets each application received.
fn received(
    world: &mut World,
    far: &mut DeviceFarEnd,
    applications: &mut [Application],
) -> Vec<usize> {
    far.send(&inward(PORT).udp(b"x"), Meta::FULL);
    for _ in 0..4 {
        world.engine.poll_once().unwrap();
    }
    applications.iter_mut().map(|one| one.packets().len()).collect()
}

#[test]
fn a_flow_rule_changes_hands_between_two_packets() {
    let mut world = World::new(WaitStrategy::Poll);
    let mut far = DeviceFarEnd::new(Box::new(world.take_far()));
    let mut applications = vec![attach(&world, 1, None)];
    world.poll_until_done();
    assert_eq!(received(&mut world, &mut far, &mut applications), [1]);
    applications.push(attach(&world, 2, Some(1)));
    world.poll_until_done();
    assert_eq!(received(&mut world, &mut far, &mut applications), [0, 1]);
    let key = world.engine.sessions.key(1).unwrap();
    let session = world.engine.sessions.get(key).unwrap();
    assert!(session.receive.endpoints.get(0).is_none(), "the earlier endpoint is closed");
    assert_eq!(world.engine.counters.get(Count::RxNoMatch), 0);
    // The session that has the rule ends, and a third one takes over from nothing.
    world.give(Command::RemoveSession { number: 2, reason: 0, at_once: true });
    world.poll_until_done();
    applications.push(attach(&world, 3, Some(2)));
    world.poll_until_done();
    assert_eq!(received(&mut world, &mut far, &mut applications), [0, 0, 1]);
}

/// The session that has the rule closes in the same batch of commands.
#[test]
fn a_rule_of_a_session_that_closes_is_taken_over() {
    let mut world = World::new(WaitStrategy::Poll);
    let mut far = DeviceFarEnd::new(Box::new(world.take_far()));
    let mut applications = vec![attach(&world, 1, None)];
    world.poll_until_done();
    world.give(Command::RemoveSession { number: 1, reason: 0, at_once: true });
    applications.push(attach(&world, 2, Some(1)));
    world.poll_until_done();
    assert_eq!(received(&mut world, &mut far, &mut applications), [0, 1]);
}

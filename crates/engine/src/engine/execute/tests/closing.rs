//! Tests of ending sessions whose queue pairs still stand in the scheduler's lines.

use super::*;

/// The engine takes the queue pairs of ending sessions out of their lines a few per poll iteration. The packet of a
/// session that lives leaves when its turn comes.
#[test]
fn an_iteration_gives_ending_queue_pairs_a_bounded_number_of_turns() {
    const QUEUE_PAIRS: u32 = 200;
    for expedited in [false, true] {
        let mut world = World::new(WaitStrategy::Poll);
        world.attach(QUEUE_PAIRS, 1);
        let (session, mut application) = session(2);
        world.give(Command::AddSession(session));
        let (endpoint, listening, group) = (Box::new(endpoint(PORT)), None, false);
        let command = Command::AddEndpoint { session: 2, number: 0, endpoint, listening, group };
        world.give(command);
        world.poll_until_done();
        let session = world.engine.sessions.get_mut(0).unwrap();
        let units: Vec<u32> = session.transmit.queues().map(|queue| queue.unit).collect();
        for unit in &units {
            world.engine.tx.schedule_mut().enter(*unit, Class::default(), expedited, 0);
        }
        world.engine.begin_closing(0, 0);
        application.send_with(0, 0, &outward(PORT), if expedited { EXPEDITED } else { 0 });
        let mut iteration = || {
            let taken = world.engine.transmit().unwrap();
            let schedule = world.engine.tx.schedule();
            (units.iter().filter(|unit| schedule.is_active(**unit)).count(), taken)
        };
        let learned = [(); 4].map(|()| iteration());
        assert_eq!(learned, [(136, 0), (72, 0), (8, 0), (0, 1)], "expedited: {expedited}");
    }
}

#[test]
fn an_iteration_ends_a_bounded_number_of_waits_of_ending_queue_pairs() {
    let mut world = World::new(WaitStrategy::Poll);
    world.attach(200, 1);
    world.poll_until_done();
    let session = world.engine.sessions.get_mut(0).unwrap();
    let units: Vec<u32> = session.transmit.queues().map(|queue| queue.unit).collect();
    for unit in &units {
        let schedule = world.engine.tx.schedule_mut();
        schedule.enter(*unit, Class::default(), false, 0);
        schedule.next(true).unwrap();
        schedule.more(*unit, Stop::Until(1), 0);
    }
    world.engine.begin_closing(0, 0);
    let left = [(); 4].map(|()| {
        world.engine.transmit().unwrap();
        let schedule = world.engine.tx.schedule();
        units.iter().filter(|unit| schedule.is_active(**unit)).count()
    });
    assert_eq!(left, [136, 72, 8, 0]);
}

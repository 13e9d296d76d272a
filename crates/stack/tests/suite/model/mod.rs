//! Random schedules of segments, calls and times at one stack, against an oracle.
//!
//! | file | holds |
//! |---|---|
//! | `oracle` | the oracle: a connection as RFC 9293 describes it |
//! | `arrive`, `stream` | its transitions: segments; data, calls and time |
//! | `compare` | what the stack does against what an oracle allows |
//! | `event` | the events, and the numbers that their classes stand for |
//! | `driver` | the stack, its link and its application |
//!
//! A failure prints the smallest schedule, and every event and segment of it. `PROPTEST_CASES` sets
//! the number of schedules, `PROPTEST_RNG_SEED` chooses others.

#![allow(unreachable_pub, reason = "a test program has no other users")]

mod arrive;
mod compare;
mod driver;
mod event;
mod oracle;
mod stream;

use driver::Driver;
use event::{Case, Event, Packet, case, event};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::wire;

fn run(case: &Case, events: &[Event]) {
    let mut driver = Driver::new(case);
    if case.opens {
        let syn = Packet::syn();
        if case.active {
            driver.step(&Event::Connect);
            driver.step(&Event::Segment(Packet { flags: wire::SYN | wire::ACK, ..syn }));
        } else {
            driver.step(&Event::Segment(syn));
            driver.step(&Event::Segment(Packet::ack()));
        }
    }
    for event in events {
        driver.step(event);
    }
}

/// Returns the number in a variable of the environment.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(number("PROPTEST_RNG_SEED", 1)),
        cases: number("PROPTEST_CASES", 1200) as u32,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    /// The stack does what RFC 9293 says, whatever the peer and the application do.
    #[test]
    fn the_stack_does_what_the_rfc_says(
        case in case(),
        events in prop::collection::vec(event(), 1..40),
    ) {
        run(&case, &events);
    }
}

/// Runs a schedule, and prints its failure, which is silent.
fn aloud(run: impl FnOnce()) {
    if let Err(error) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        panic!("{}", error.downcast_ref::<String>().map_or("", |text| text));
    }
}

/// A segment that carries selective acknowledgements has room for less data. (The link has no
/// offloads.)
#[test]
fn a_segment_with_selective_acknowledgements_fits() {
    let case = Case {
        seed: 0,
        active: false,
        wraps: false,
        peer_isn: 0,
        stamps: false,
        selective: true,
        scale: None,
        opens: true,
    };
    let ahead = Packet { place: event::Place::Ahead(1), ..Packet::ack() };
    let events = [
        Event::Segment(Packet { window: 1, len: 1, ..ahead }),
        Event::Send(1449),
        Event::Full(true),
        Event::Wait(201),
        Event::Segment(ahead),
        Event::Full(false),
    ];
    aloud(|| run(&case, &events));
}

/// A FIN after the window does not replace one within.
#[test]
fn a_fin_after_the_window_is_ignored() {
    let fin = |place| Packet { flags: wire::ACK | wire::FIN, place, ..Packet::ack() };
    let case = Case {
        seed: 0,
        active: false,
        wraps: false,
        peer_isn: 0,
        stamps: false,
        selective: false,
        scale: None,
        opens: true,
    };
    aloud(|| {
        let mut driver = Driver::new(&case);
        driver.step(&Event::Segment(Packet::syn()));
        driver.step(&Event::Segment(Packet::ack()));
        driver.step(&Event::Segment(fin(event::Place::Ahead(1))));
        driver.peer_fin = None;
        driver.step(&Event::Segment(fin(event::Place::Edge)));
        driver.peer_fin = Some(2);
        driver.step(&Event::Segment(Packet { len: 1, ..Packet::ack() }));
    });
}

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
#[allow(dead_code, reason = "the scenarios use all of it")]
#[path = "../scenarios/wire.rs"]
mod wire;

use driver::Driver;
use event::{Case, Event, Packet, case, event};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

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

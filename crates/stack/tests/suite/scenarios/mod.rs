//! Scenarios: scripts of segments to and from the stack, with times, one table per RFC.
//!
//! `notation.rs` describes the scripts. Each test's documentation cites its section. The numbers are
//! relative to each side's initial sequence number.

#![allow(unreachable_pub, reason = "a test program has no other users")]

mod checks;
mod commands;
mod matching;
mod notation;
mod peer;
mod script;

/// Makes a test of each script.
macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident: $script:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                crate::scenarios::script::run($script);
            }
        )*
    };
}

mod generated;
mod reported;
mod rfc1122;
mod rfc2018;
mod rfc3168;
mod rfc4015;
mod rfc4987;
mod rfc5482;
mod rfc5681;
mod rfc5927;
mod rfc5961;
mod rfc6191;
mod rfc6298;
mod rfc7323;
mod rfc8985;
mod rfc9293;

//! The readiness core of `towpath-net` in all orders of its threads: `RUSTFLAGS='--cfg loom' cargo test --release -p
//! towpath-net-models`.
//!
//! The core's files are those of `towpath-net`; this crate compiles them with the locks and atomics of loom, and without
//! the network around them.

#![cfg(all(test, loom))]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the network around the core uses the rest, and exports some of it"
)]

#[path = "../../src/lock.rs"]
mod lock;
#[path = "../../src/readiness.rs"]
mod readiness;
#[path = "../../src/ready_set.rs"]
mod ready_set;
#[path = "../../src/sync.rs"]
mod sync;
#[path = "../../src/watchers.rs"]
mod watchers;

mod loom_tests;

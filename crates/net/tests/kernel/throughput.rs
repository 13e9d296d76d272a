//! A rough measure, no test: `cargo test -p towpath-net --release --test kernel -- throughput`.

pub(crate) fn run() {}

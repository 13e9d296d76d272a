//! Runs one experiment from start to end. `experiments.rs` runs the others.

mod experiment;

use crate::experiment::whole;

#[test]
fn notify() {
    whole(
        "notify",
        "notify",
        &["doorbell, more than a pipe", "call of a worker, more than a pipe", "pipe"],
        &[],
    );
}

//! One experiment, run whole. The others are in `experiments.rs`.

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

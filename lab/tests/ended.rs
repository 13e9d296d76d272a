//! An experiment that is ended at any moment.

mod experiment;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use towpath_testkit::{check_tun, skip};

use crate::experiment::{Directory, LIMIT, NOTHING, bench, end_of, files_of, start};

#[test]
fn an_experiment_ended_early_leaves_nothing() {
    if let Err(why) = check_tun() {
        skip("an_experiment_ended_early_leaves_nothing", &why);
        return;
    }
    let directory = Directory::new();
    let temporary = directory.make("tmp");
    let mut command = bench("notre-dame", &temporary);
    // The test ends the experiment at many moments: while it starts its processes, and as soon as
    // one or two servers exist. The experiment stops each server as soon as that has started.
    let moments = (0..20).map(|number| When::After(Duration::from_millis(number * 10)));
    for when in moments.chain([1, 2, 2, 2].map(When::Servers)) {
        let mut child = start(&mut command);
        let until = Instant::now() + LIMIT;
        match when {
            When::After(time) => std::thread::sleep(time),
            When::Servers(number) => {
                while files_of(&temporary).len() < number {
                    let runs = child.try_wait().unwrap().is_none();
                    assert!(runs && Instant::now() < until, "no {number} servers");
                    std::hint::spin_loop();
                }
            }
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let said = end_of(&command, child);
        assert_eq!(files_of(&temporary), NOTHING, "{when:?}, {said:?}");
    }
}

/// The moment at which the test ends the experiment.
#[derive(Clone, Copy, Debug)]
enum When {
    After(Duration),
    /// As soon as this many servers have made their directories.
    Servers(usize),
}

//! Applications killed and stopped at any moment, while a neighbour goes on and everything is
//! counted; and the engine's wait strategy changed under load.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;
use towpath_client::Setting;
use towpath_tests::process::{Process, Program};
use towpath_tests::random::seed;
use towpath_tests::served::Served;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn start(part: &str, server: &Served, seed: &str) -> Process {
    let mut process = PEER.start(&[part, server.path(), seed]);
    process.expect("running");
    process
}

fn count(process: &mut Process) -> u64 {
    process.ask("count").parse().unwrap()
}

/// Returns the number of kills: 1000 unless `TOWPATH_KILLS` says otherwise.
fn kills() -> u64 {
    std::env::var("TOWPATH_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

#[test]
fn a_thousand_kills_leave_nothing_behind() {
    let mut random = Rng::with_seed(seed(0x5161_1c11));
    // The far end fetches packets late, so that killed applications leave some in flight.
    let mut server = Served::start(&PEER, &["late=yes"]);
    let mut neighbour = start("pair", &server, "1");
    let before = server.settled();
    let exchanged = count(&mut neighbour);
    let (mut in_traffic, begin) = (0, Instant::now());
    for round in 0..kills() {
        let mut victim = PEER
            .command()
            // Each with a seed of its own, so that it tells its own packets from its predecessor's.
            .args(["echoed", server.path(), &(round + 100).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if round % 4 == 0 {
            // Somewhere between its start and its traffic.
            std::thread::sleep(Duration::from_micros(random.u64(..8000)));
        } else {
            let mut said = [0; 8];
            victim.stdout.as_mut().unwrap().read_exact(&mut said).expect("it runs");
            assert_eq!(&said, b"running\n");
            in_traffic += 1;
            std::thread::sleep(Duration::from_micros(random.u64(..1500)));
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    println!("{} kills, {in_traffic} of them in traffic: {:?}", kills(), begin.elapsed());
    server.holds_again(&before);
    assert_eq!(server.device_counter("violations"), 0, "to be killed is no violation");
    // Buffers left in flight are not missing: the next one's traffic flows.
    let mut next = start("echoed", &server, "3");
    let now = count(&mut next);
    while count(&mut next) < now + 5000 {}
    next.finish();
    assert!(count(&mut neighbour) > exchanged);
    let last = neighbour.finish();
    assert!(last.last().unwrap().starts_with("exchanged "), "{last:?}");
    server.stop();
}

#[test]
fn an_application_stopped_two_hundred_times_holds_up_only_itself() {
    let mut random = Rng::with_seed(seed(0x57075));
    let mut server = Served::start(&PEER, &["late=yes"]);
    let mut neighbour = start("pair", &server, "4");
    let before = server.settled();
    let mut victim = start("echoed", &server, "5");
    for _ in 0..200 {
        std::thread::sleep(Duration::from_micros(random.u64(..2000)));
        victim.signal(libc::SIGSTOP);
        // The neighbour goes on meanwhile.
        let then = count(&mut neighbour);
        while count(&mut neighbour) < then + 32 {}
        victim.signal(libc::SIGCONT);
    }
    let then = count(&mut victim);
    while count(&mut victim) < then + 100 {}
    let last = victim.finish();
    assert!(last.last().unwrap().starts_with("echoed "), "{last:?}");
    server.holds_again(&before);
    let last = neighbour.finish();
    assert!(last.last().unwrap().starts_with("exchanged "), "{last:?}");
    server.stop();
}

#[test]
fn a_change_of_mode_under_load_loses_nothing() {
    let mut random = Rng::with_seed(seed(0x30de));
    let server = Served::start(&PEER, &[]);
    let mut pair = start("pair", &server, "6");
    let mut echoed = start("echoed", &server, "7");
    for round in 0..300 {
        let mode = if round % 2 == 0 { "poll" } else { "block" };
        let value = Setting::Wait.parse(mode).unwrap();
        towpath_client::set(server.socket(), None, Setting::Wait, value).unwrap();
        let shown = server.report()["device"]["wait"].as_str().unwrap().to_owned();
        assert_eq!(shown, mode);
        std::thread::sleep(Duration::from_micros(random.u64(..3000)));
        if round % 30 == 0 {
            // All processes make progress in either mode.
            for process in [&mut pair, &mut echoed] {
                let then = count(process);
                while count(process) < then + 64 {}
            }
        }
    }
    for (process, word) in [(pair, "exchanged "), (echoed, "echoed ")] {
        let last = process.finish();
        assert!(last.last().unwrap().starts_with(word), "{last:?}");
    }
    server.stop();
}

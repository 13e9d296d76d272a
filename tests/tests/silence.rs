//! The server closes connections that stop in the middle of attaching.

use std::time::{Duration, Instant};

use towpath_tests::PATIENCE;
use towpath_tests::process::Program;
use towpath_tests::raw::{self, Raw, Reply};
use towpath_tests::served::Served;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn connect(server: &Served) -> Raw {
    Raw::connect(server.socket()).unwrap()
}

#[test]
fn a_silent_handshake_is_cut_off_after_five_seconds() {
    let mut server = Served::start(&PEER, &[]);
    let before = server.settled();
    let start = Instant::now();
    let silent = connect(&server);
    let attached = connect(&server);
    let files = attached.attach(raw::attach("never-maps")).unwrap();
    // The server keeps a live session's connection, even if the client stays silent for long.
    let lives = connect(&server);
    let living = lives.live(raw::attach("lives")).unwrap();
    for raw in [&silent, &attached] {
        assert!(matches!(raw.reply(PATIENCE), Reply::HungUp));
        let after = start.elapsed();
        assert!(after > Duration::from_secs(5), "{after:?}");
    }
    assert!(matches!(lives.reply(Duration::from_millis(500)), Reply::Nothing));
    drop((files, living, silent, attached, lives));
    server.holds_again(&before);
    server.stop();
}

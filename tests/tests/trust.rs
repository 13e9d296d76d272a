//! Who trusts whom: hostile applications as processes of their own, beside a neighbour whose every
//! byte is looked at, on a server whose every descriptor is counted.

use std::collections::BTreeMap;

use towpath_client::{AttachError, Options, Refusal, Session};
use towpath_rig::{Unavailable, Users, skip};
use towpath_tests::process::{Process, Program};
use towpath_tests::random::seed;
use towpath_tests::served::Served;

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

fn neighbour(server: &Served) -> Process {
    let mut neighbour = PEER.start(&["pair", server.path(), "5"]);
    neighbour.expect("running");
    neighbour
}

/// The neighbour has gone on meanwhile, and lost nothing to the end.
fn went_on(mut neighbour: Process, before: u64) {
    let now: u64 = neighbour.ask("count").parse().unwrap();
    assert!(now > before, "the neighbour stood still at {before}");
    let last = neighbour.finish();
    assert!(last.iter().any(|line| line.starts_with("exchanged ")), "{last:?}");
}

fn every_violation(mode: &str) {
    let mut server = Served::start(&PEER, &[mode, "late=yes"]);
    let mut neighbour = neighbour(&server);
    let before = server.settled();
    let count: u64 = neighbour.ask("count").parse().unwrap();
    let said = PEER.start(&["violations", server.path()]).finish();
    let (last, acts) = said.split_last().unwrap();
    assert_eq!(*last, format!("violations {} of 8 kinds", acts.len()), "{said:?}");
    assert_eq!(server.device_counter("violations"), acts.len() as u64);
    server.holds_again(&before);
    went_on(neighbour, count);
    server.stop();
}

#[test]
fn every_violation_ends_its_session_alone_asleep() {
    every_violation("mode=interrupt");
}

#[test]
fn every_violation_ends_its_session_alone_polling() {
    every_violation("mode=poll");
}

#[test]
fn anything_written_anywhere_harms_nobody_else() {
    let seed = seed(0x7e57);
    let mut server = Served::start(&PEER, &["late=yes"]);
    let mut neighbour = neighbour(&server);
    let before = server.settled();
    let count: u64 = neighbour.ask("count").parse().unwrap();
    let said = PEER.start(&["random", server.path(), &seed.to_string(), "100"]).finish();
    println!("{said:#?}");
    let violated: u64 =
        said.last().unwrap().strip_prefix("rounds 100 violated ").unwrap().parse().unwrap();
    // Three of the five ways cannot fail to be noticed.
    assert!(violated >= 40, "{violated} of 100 sessions were closed");
    // A peer that ends by itself may not hear any more that it was found out.
    let counted = server.device_counter("violations");
    assert!((violated..=100).contains(&counted), "{violated} told, {counted} counted");
    server.holds_again(&before);
    went_on(neighbour, count);
    server.stop();
}

/// A server and an application of two users, both others than the caller.
fn two_users(test: &str) -> Option<Users> {
    let users = Users::find();
    if users.distinct {
        return Some(users);
    }
    let cause = "server and application cannot be made different users".to_owned();
    skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
    None
}

#[test]
fn another_user_writes_only_what_is_its_own() {
    let Some(users) = two_users("another_user_writes_only_what_is_its_own") else { return };
    let [granted, stranger] = users.applications;
    let options = [format!("users={}", granted.uid)];
    let mut server = Served::start_as(&PEER, &[&options[0]], Some(users.server));
    let before = server.settled();
    let pid = server.pid().to_string();
    let mut confined =
        PEER.start_as(&["confined", server.path(), &pid], |command| granted.confine(command));
    let mut said = BTreeMap::new();
    loop {
        let line = confined.line();
        if line == "tried" {
            break;
        }
        let (what, came_to) = line.rsplit_once(": ").unwrap();
        said.insert(what.to_owned(), came_to.to_owned());
    }
    let report = server.report();
    assert_eq!(report["sessions"][0]["trusted"], false);
    assert_eq!(report["sessions"][0]["uid"], granted.uid);

    let mut expected = BTreeMap::new();
    let mut expect = |memory: &str, outcomes: &[(&str, &str)]| {
        for (what, came_to) in outcomes {
            expected.insert(format!("{memory}: {what}"), (*came_to).to_owned());
        }
    };
    // Not even opened for writing.
    for memory in ["server pages", "receive heap", "state page"] {
        expect(
            memory,
            &[
                ("map for writing", "EACCES"),
                ("map for reading", "done"),
                ("make a mapping writable", "EACCES"),
                ("remove a page", "EACCES"),
                ("open again", "EACCES"),
                ("write", "EBADF"),
                ("truncate", "EINVAL"),
                ("grow", "EINVAL"),
                ("punch a hole", "EBADF"),
                ("seal against writing", "EPERM"),
                ("seal against sealing", "EPERM"),
                ("change the mode", "EPERM"),
            ],
        );
    }
    // Opened for writing, and sealed against every writer that is not there already.
    for memory in ["application pages", "transmit heap"] {
        expect(
            memory,
            &[
                ("map for writing", "EPERM"),
                ("map for reading", "done"),
                ("make a mapping writable", "EACCES"),
                ("remove a page", "EACCES"),
                ("open again", "EACCES"),
                ("write", "EPERM"),
                ("truncate", "EPERM"),
                ("grow", "EPERM"),
                ("punch a hole", "EPERM"),
                ("seal against writing", "EPERM"),
                ("seal against sealing", "EPERM"),
                ("change the mode", "EPERM"),
            ],
        );
    }
    expect("own mapping", &[("remove a page", "EPERM"), ("write", "done")]);
    for what in ["the server's mem", "the server's fd", "the server's maps"] {
        expected.insert(what.to_owned(), "refused".to_owned());
    }
    expected.insert("trusted".to_owned(), "false".to_owned());
    for (what, came_to) in &expected {
        assert_eq!(said.get(what), Some(came_to), "{what}");
    }
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    confined.finish();

    // Nobody else may attach at all, and is told who may.
    let refused = PEER
        .start_as(&["step", server.path(), "2"], |command| {
            stranger.confine(command);
            command.stderr(std::process::Stdio::null());
        })
        .wait();
    assert!(!refused.success());
    server.holds_again(&before);
    server.stop();
}

#[test]
fn who_is_not_named_is_refused_with_the_remedy() {
    let Some(users) = two_users("who_is_not_named_is_refused_with_the_remedy") else { return };
    let [granted, stranger] = users.applications;
    let option = format!("users={}", granted.uid);
    let server = Served::start_as(&PEER, &[&option], Some(users.server));
    // Whoever may become anybody asks as the stranger, in a thread whose user alone changes.
    let socket = server.socket().to_owned();
    let refused = std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(stranger.uid);
        let gid = rustix::process::Gid::from_raw(stranger.gid);
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        Session::attach(socket, &Options::default()).unwrap_err()
    })
    .join()
    .unwrap();
    let AttachError::Refused { refusal: Refusal::Permission, text } = refused else {
        panic!("{refused}")
    };
    assert!(text.contains(&format!("--allow-user {}", stranger.uid)), "{text}");
    server.stop();
}

#[test]
fn the_servers_own_user_is_shown_as_trusted() {
    let server = Served::start(&PEER, &[]);
    let session = Session::attach(server.socket(), &Options::default()).unwrap();
    assert!(session.info().trusted);
    assert_eq!(server.report()["sessions"][0]["trusted"], true);
    drop(session);
    server.stop();
}

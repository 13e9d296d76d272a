//! Attacks by a process of another user on the objects and limits that it shares with the server,
//! while a neighbour of a third user goes on.
//!
//! No test measures the neighbour's speed: `towpath-lab attacks` does. A test ends a neighbour that
//! hangs, after a while.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use towpath_attacks::neighbour::Seen;
use towpath_attacks::{Attack, fuse_is_usable};
use towpath_testkit::{Unavailable, User, Users, skip};
use towpath_tests::process::{Process, Program};
use towpath_tests::served::{Holdings, Served};

static PEER: Program = Program::at(env!("CARGO_BIN_EXE_towpath-tests-peer"));

/// Round trips and attachments that the neighbour completes under each attack.
const TRIPS: u64 = 500;
const ATTACHES: u64 = 20;
/// The time after which a neighbour counts as hanging, in milliseconds: less than the tests'
/// patience with an answer.
const LIVENESS: u64 = 15_000;

/// The time after which an attacker ends by itself.
const ATTACK: Duration = Duration::from_secs(120);

/// Tests attack one after the other: each attack must hit one neighbour alone.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A server and its users, and the server's holdings before they came. Rust drops the fields in
/// this order: the attacker's end releases a server's thread that an attack holds.
struct Scene {
    attackers: Vec<Process>,
    neighbour: Process,
    server: Served,
    before: Holdings,
    users: Users,
    node: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    /// Starts a server that grants the neighbour by its user, and the attacker by its group if it
    /// attaches.
    fn set(test: &str, attaches: bool, options: &[&str]) -> Option<Scene> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let users = Users::find();
        if !users.distinct {
            let cause = "server, attacker and neighbour cannot be made different users".to_owned();
            skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
            return None;
        }
        let [attacker, neighbour] = users.applications;
        let mut granted = vec![format!("users={}", neighbour.uid)];
        if attaches {
            granted.push(format!("groups={}", attacker.gid));
        }
        let options: Vec<&str> =
            granted.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let mut server = Served::start_as(&PEER, &options, Some(users.server));
        let before = server.settled();
        let mut process = PEER.start_as(&["neighbour", server.path()], |command| {
            neighbour.confine(command);
        });
        process.expect("running");
        let node = server.socket().with_file_name("fuse");
        Some(Scene {
            attackers: Vec::new(),
            neighbour: process,
            server,
            before,
            users,
            node,
            _alone: alone,
        })
    }

    /// Makes a node of the FUSE device that every user may open, as most distributions have it.
    fn open_fuse(&self, test: &str) -> bool {
        let everyone = Mode::from_raw_mode(0o666);
        let device = makedev(10, 229);
        let _ = mknodat(CWD, &self.node, FileType::CharacterDevice, everyone, device);
        let _ = chmod(&self.node, everyone);
        let usable = fuse_is_usable(&self.node);
        if !usable {
            no_fuse(test, "no FUSE device can be opened");
        }
        usable
    }

    /// Starts an attacker; `false` where the machine does not let it attack.
    fn attack(&mut self, name: &str, user: User, options: &[&str]) -> bool {
        let fuse = format!("fuse={}", self.node.display());
        let seconds = ATTACK.as_secs().to_string();
        let mut arguments = vec!["attack", name, self.server.path(), &seconds, &fuse];
        arguments.extend(options);
        let mut attacker = PEER.start_as(&arguments, |command| user.confine(command));
        // On a slow machine, the endpoints of a large session take most of a minute.
        let said = attacker.line_within(ATTACK);
        if let Some(why) = said.strip_prefix("cannot ") {
            println!("{name}: {why}");
            return false;
        }
        assert_eq!(said, "attacking");
        self.attackers.push(attacker);
        true
    }

    /// Asserts that the neighbour goes on during the attack.
    fn neighbour_goes_on(&mut self) -> Seen {
        let line = self.neighbour.ask(&format!("until {TRIPS} {ATTACHES} {LIVENESS}"));
        let seen = Seen::read(&line).expect("its measurements");
        println!("{seen:?}");
        assert!(seen.trips.count >= TRIPS, "round trips: {seen:?}");
        assert!(seen.attaches.count >= ATTACHES, "attachments: {seen:?}");
        assert_eq!((seen.trips.failed, seen.attaches.failed), (0, 0), "{seen:?}");
        let stuck = self.server.stuck_threads();
        assert!(stuck.is_empty(), "threads in uninterruptible sleep: {stuck:?}");
        let [_, neighbour] = self.users.applications;
        assert_eq!(
            self.server.ask(&format!("warned {}", neighbour.uid)),
            "",
            "warnings name the victim"
        );
        seen
    }

    /// Ends the attackers, and returns the sum of their deeds.
    fn call_off(&mut self) -> BTreeMap<String, u64> {
        let mut deeds = BTreeMap::new();
        for line in self.attackers.drain(..).flat_map(Process::finish) {
            let deed = line.strip_prefix("did ").and_then(|deed| deed.split_once(' '));
            let (what, count) = deed.unwrap_or_else(|| panic!("{line}"));
            *deeds.entry(what.to_owned()).or_default() += count.parse::<u64>().unwrap();
        }
        println!("{deeds:?}");
        deeds
    }

    /// Asserts that the server holds nothing of the attack.
    fn nothing_is_left(&mut self) {
        self.neighbour.kill();
        self.server.holds_again(&self.before);
    }
}

fn no_fuse(test: &str, cause: &str) {
    let remedy = "load the kernel's fuse and allow user namespaces".to_owned();
    skip(test, &Unavailable { cause: cause.to_owned(), remedy });
}

/// Asserts that the neighbour goes on under an attack, that the attack leaves nothing behind, and
/// that SIGTERM ends the server during another attack. Returns the attack's deeds.
fn stands(test: &str, name: &str, options: &[&str]) -> Option<BTreeMap<String, u64>> {
    let attack = Attack::from_name(name).unwrap();
    let mut scene = Scene::set(test, attack.attaches, options)?;
    if attack.needs_fuse && !scene.open_fuse(test) {
        return None;
    }
    let [attacker, _] = scene.users.applications;
    if !scene.attack(name, attacker, &[]) {
        assert!(attack.needs_fuse, "{name}: nothing but FUSE may be missing");
        no_fuse(test, "an unprivileged process cannot mount a FUSE file system");
        return None;
    }
    scene.neighbour_goes_on();
    let deeds = scene.call_off();
    scene.nothing_is_left();
    assert!(scene.attack(name, attacker, &[]));
    scene.server.terminate();
    Some(deeds)
}

/// Asserts as [`stands`] does, and that the attack's count of a deed is not zero.
fn stands_and_did(test: &str, name: &str, options: &[&str], what: &str) {
    if let Some(deeds) = stands(test, name, options) {
        assert!(deeds[what] > 0, "{name}: {deeds:?}");
    }
}

#[test]
fn a_doorbell_that_is_spliced_into_a_full_socket() {
    stands("a_doorbell_that_is_spliced_into_a_full_socket", "doorbell-splice", &[]);
}

#[test]
fn a_doorbell_that_is_read_into_a_page_that_never_arrives() {
    stands("a_doorbell_that_is_read_into_a_page_that_never_arrives", "doorbell-read", &[]);
}

#[test]
fn a_session_that_ends_while_its_doorbell_is_spliced() {
    stands("a_session_that_ends_while_its_doorbell_is_spliced", "doorbell-end-splice", &[]);
}

#[test]
fn a_session_that_ends_while_its_doorbell_is_read() {
    stands("a_session_that_ends_while_its_doorbell_is_read", "doorbell-end-read", &[]);
}

#[test]
fn a_doorbell_with_a_filter_a_signalled_group_and_no_reader() {
    stands("a_doorbell_with_a_filter_a_signalled_group_and_no_reader", "doorbell-options", &[]);
}

#[test]
fn a_doorbell_with_many_epoll_items() {
    stands_and_did("a_doorbell_with_many_epoll_items", "waiters-epoll", &[], "entries");
}

#[test]
fn a_doorbell_with_many_polling_threads() {
    stands_and_did("a_doorbell_with_many_polling_threads", "waiters-poll", &[], "entries");
}

#[test]
fn a_doorbell_that_gets_waiters_after_it_was_fast() {
    stands_and_did(
        "a_doorbell_that_gets_waiters_after_it_was_fast",
        "waiters-nested",
        &[],
        "entries",
    );
}

#[test]
fn a_control_connection_with_many_epoll_items() {
    stands_and_did("a_control_connection_with_many_epoll_items", "waiters-control", &[], "entries");
}

#[test]
fn a_wake_descriptor_with_many_epoll_items() {
    stands("a_wake_descriptor_with_many_epoll_items", "waiters-wake", &[]);
}

#[test]
fn a_stranger_sends_descriptors_that_close_slowly() {
    stands_and_did("a_stranger_sends_descriptors_that_close_slowly", "linger", &[], "tried");
}

#[test]
fn an_application_sends_descriptors_that_close_slowly() {
    stands("an_application_sends_descriptors_that_close_slowly", "linger-granted", &[]);
}

#[test]
fn unread_reports() {
    stands_and_did("unread_reports", "reports", &[], "asked");
}

#[test]
fn unread_reports_of_a_large_session() {
    stands_and_did("unread_reports_of_a_large_session", "reports-large", &[], "asked");
}

#[test]
fn a_write_that_holds_the_lock_of_a_file_to_be_sealed() {
    stands("a_write_that_holds_the_lock_of_a_file_to_be_sealed", "mapping-write", &[]);
}

#[test]
fn random_words_in_all_writable_memory() {
    for _ in 0..4 {
        let test = "random_words_in_all_writable_memory";
        let Some(deeds) = stands(test, "overwrite", &[]) else { return };
        assert!(deeds["words"] > 1000 && deeds["sessions"] > 1, "{deeds:?}");
        assert_eq!(deeds["foreign"], 0, "packets of others: {deeds:?}");
    }
}

#[test]
fn large_memories_that_come_and_go() {
    stands("large_memories_that_come_and_go", "large-memories", &[]);
}

#[test]
fn memory_that_is_paged_out_and_merged() {
    stands_and_did("memory_that_is_paged_out_and_merged", "page-out", &[], "sent");
    stands_and_did("memory_that_is_paged_out_and_merged", "page-collapse", &[], "sent");
}

/// Attacks, and returns how many lines the server logged for the attacker, and the attacker's
/// deeds.
fn logged_for(test: &str, name: &str) -> Option<(u64, BTreeMap<String, u64>)> {
    let attack = Attack::from_name(name).unwrap();
    let mut scene = Scene::set(test, attack.attaches, &[])?;
    scene.neighbour.kill();
    let lines = |scene: &mut Scene| scene.server.ask("logged").parse::<u64>().unwrap();
    scene.server.holds_again(&scene.before.clone());
    let before = lines(&mut scene);
    let [attacker, _] = scene.users.applications;
    assert!(scene.attack(name, attacker, &[]));
    std::thread::sleep(LOGGING);
    let deeds = scene.call_off();
    let after = lines(&mut scene);
    scene.server.terminate();
    Some((after - before, deeds))
}

/// The time in which the test counts log lines.
const LOGGING: Duration = Duration::from_secs(2);
/// Lines that the server may log for one user in that time.
const LINES: u64 = 200;

#[test]
fn a_flood_of_connections() {
    let test = "a_flood_of_connections";
    stands_and_did(test, "flood", &[], "connected");
    if let Some((lines, deeds)) = logged_for(test, "flood") {
        assert!(lines <= LINES, "{lines} lines for {deeds:?}");
    }
}

#[test]
fn a_flood_of_a_strangers_connections() {
    let test = "a_flood_of_a_strangers_connections";
    stands_and_did(test, "flood-stranger", &[], "connected");
    if let Some((lines, deeds)) = logged_for(test, "flood-stranger") {
        assert!(lines <= LINES, "{lines} lines for {deeds:?}");
    }
}

#[test]
fn a_flood_of_connections_with_many_waiters() {
    stands_and_did("a_flood_of_connections_with_many_waiters", "flood-waiters", &[], "connected");
}

#[test]
fn a_flood_of_connections_with_nested_waiters() {
    stands_and_did("a_flood_of_connections_with_nested_waiters", "flood-nested", &[], "connected");
}

#[test]
fn messages_that_mean_nothing_fill_no_log() {
    stands_and_did("messages_that_mean_nothing_fill_no_log", "malformed", &[], "sent");
    let Some((lines, deeds)) = logged_for("messages_that_mean_nothing_fill_no_log", "malformed")
    else {
        return;
    };
    assert!(lines <= LINES, "{lines} lines for {deeds:?}");
}

#[test]
fn sessions_that_come_and_go_fill_no_log() {
    stands("sessions_that_come_and_go_fill_no_log", "small-memories", &[]);
    let Some((lines, deeds)) =
        logged_for("sessions_that_come_and_go_fill_no_log", "small-memories")
    else {
        return;
    };
    assert!(lines <= LINES, "{lines} lines for {deeds:?}");
}

/// Returns the bytes of anonymous memory of a process.
fn anonymous_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn endpoints_take_no_more_memory_than_a_session_may() {
    const SESSION_BYTES: u64 = 4 << 20;
    let options = format!("session_bytes={SESSION_BYTES}");
    stands_and_did(
        "endpoints_take_no_more_memory_than_a_session_may",
        "endpoints",
        &[&options],
        "endpoints",
    );
    let test = "endpoints_take_no_more_memory_than_a_session_may";
    let Some(mut scene) = Scene::set(test, true, &[&options]) else { return };
    let before = anonymous_bytes(scene.server.pid());
    let [attacker, _] = scene.users.applications;
    assert!(scene.attack("endpoints", attacker, &[]));
    let grown = anonymous_bytes(scene.server.pid()).saturating_sub(before);
    let deeds = scene.call_off();
    let most = SESSION_BYTES * deeds["sessions"] + SLACK;
    assert!(grown <= most, "{grown} bytes more, at most {most} are allowed: {deeds:?}");
}

#[test]
fn memory_that_is_merged_under_many_mappings() {
    let test = "memory_that_is_merged_under_many_mappings";
    if let Some(deeds) = stands(test, "page-collapse-wide", &[]) {
        assert!(deeds["mapped"] > 0 && deeds["refused"] > 0, "{deeds:?}");
        assert_eq!(deeds["taken"], 0, "the kernel merged pages that the engine uses: {deeds:?}");
    }
}

/// The engine does not touch such memory, so it does not wait for the kernel to free it.
#[test]
fn memory_whose_pages_are_freed_under_many_mappings() {
    let test = "memory_whose_pages_are_freed_under_many_mappings";
    let Some(mut scene) = Scene::set(test, true, &[]) else { return };
    let [attacker, _] = scene.users.applications;
    assert!(scene.attack("page-remove", attacker, &[]));
    let process = scene.server.pid();
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    assert!(maps.contains("memfd:towpath-copies"), "{maps}");
    assert!(!maps.contains("memfd:towpath-memory"), "the server maps the memory: {maps}");
    scene.neighbour_goes_on();
    let deeds = scene.call_off();
    assert!(deeds["mapped"] > 0 && deeds["removed"] > 0 && deeds["moved"] > 0, "{deeds:?}");
    scene.nothing_is_left();
    assert!(scene.attack("page-remove", attacker, &[]));
    scene.server.terminate();
}

#[test]
fn answers_that_are_never_read() {
    stands_and_did("answers_that_are_never_read", "answers", &[], "kept");
}

#[test]
fn the_end_of_a_long_report() {
    stands_and_did("the_end_of_a_long_report", "report-tail", &[], "asked");
}

/// The text of the server's line about a memory that it cannot free, and of that about its end.
const CANNOT_FREE: &str = "cannot free a memory";
const IS_FREED: &str = "is freed";
/// The longest time in which that many workers hang, one after the other, 10 s each.
const HANGS: Duration = Duration::from_secs(90);

impl Scene {
    /// Lets the neighbour go on until the server has logged a line that has both texts. Returns the line.
    fn goes_on_until_logged(&mut self, text: &str, other: &str) -> String {
        let until = Instant::now() + HANGS;
        loop {
            self.neighbour_goes_on();
            let line = self.server.ask(&format!("logged {text}"));
            if line.contains(text) && line.contains(other) {
                return line;
            }
            assert!(
                Instant::now() < until,
                "the server has not logged {text:?} with {other:?}: {line:?}"
            );
        }
    }
}

/// An attacker holds the locks of memories that it shares with the neighbour, and detaches. Asserts that only workers
/// of no user hang, that the server names both users, and that the places are free when the attacker ends.
fn shared_memory_that_is_locked(test: &str, name: &str, locks: usize) {
    let Some(mut scene) = Scene::set(test, true, &["out_of_band=all"]) else { return };
    if !scene.open_fuse(test) {
        return;
    }
    let [attacker, neighbour] = scene.users.applications;
    if !scene.attack(name, attacker, &[&format!("size={locks}")]) {
        return no_fuse(test, "an unprivileged process cannot mount a FUSE file system");
    }
    let line = scene.goes_on_until_logged(CANNOT_FREE, &format!("hung={locks} "));
    println!("{line}");
    let users = match name {
        "shared-owner" => (attacker.uid, neighbour.uid),
        _ => (neighbour.uid, attacker.uid),
    };
    assert!(line.contains(&format!("owner={} importer={} ", users.0, users.1)), "{line}");
    assert_eq!(scene.server.hung(), (0, locks), "threads of the server, workers");
    // The attacker tries to share another memory every two seconds.
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        scene.neighbour_goes_on();
    }
    let deeds = scene.call_off();
    assert_eq!(deeds["held"], locks as u64, "{deeds:?}");
    let most = 4;
    assert_eq!(deeds["refused"] > 0, locks >= most, "the limit of two users: {deeds:?}");
    assert!(deeds["shared"] > 0, "{deeds:?}");
    scene.goes_on_until_logged(IS_FREED, "");
    scene.nothing_is_left();
    assert_eq!(scene.server.hung(), (0, 0));
    scene.server.terminate();
}

#[test]
fn an_importer_that_holds_the_lock_of_shared_memory() {
    let test = "an_importer_that_holds_the_lock_of_shared_memory";
    shared_memory_that_is_locked(test, "shared-importer", 1);
}

#[test]
fn an_owner_that_holds_the_locks_of_shared_memory() {
    let test = "an_owner_that_holds_the_locks_of_shared_memory";
    shared_memory_that_is_locked(test, "shared-owner", 4);
}

/// The neighbour can only read the memory, so the worker of the attacker's user frees it, and only this user's sessions
/// end.
#[test]
fn an_owner_that_holds_the_lock_of_memory_that_others_read() {
    let test = "an_owner_that_holds_the_lock_of_memory_that_others_read";
    let Some(mut scene) = Scene::set(test, true, &["out_of_band=all"]) else { return };
    if !scene.open_fuse(test) {
        return;
    }
    let [attacker, _] = scene.users.applications;
    if !scene.attack("shared-readable", attacker, &[]) {
        return no_fuse(test, "an unprivileged process cannot mount a FUSE file system");
    }
    let hung = "blocks the user's worker process";
    let line = scene.goes_on_until_logged(hung, "");
    assert!(line.contains(&format!("uid={} ", attacker.uid)), "{line}");
    scene.neighbour_goes_on();
    assert_eq!(scene.server.hung(), (0, 1), "threads of the server, workers");
    let deeds = scene.call_off();
    assert_eq!(deeds["held"], 1, "{deeds:?}");
    scene.nothing_is_left();
    scene.server.terminate();
}

#[test]
fn record_locks_on_the_state_page() {
    stands_and_did("record_locks_on_the_state_page", "record-locks", &[], "locks");
}

#[test]
fn very_many_tripwires() {
    stands_and_did("very_many_tripwires", "tripwires", &[], "tripwires");
}

/// All users of a group together have half of the memories, so that a user of another group still gets one.
#[test]
fn memories_of_a_group_leave_room_for_others() {
    const MEMORIES: u64 = 4_096;
    let test = "memories_of_a_group_leave_room_for_others";
    let Some(mut scene) = Scene::set(test, true, &[]) else { return };
    let [attacker, neighbour] = scene.users.applications;
    for number in 0..17 {
        let Some(user) = attacker.subordinate(number) else {
            let cause = "subordinate users do not exist here".to_owned();
            return skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
        };
        if !scene.attack("memories", user, &[]) {
            break;
        }
    }
    let mut maker = PEER.start_as(&["memory", scene.server.path()], |command| {
        neighbour.confine(command);
    });
    assert_eq!(maker.line_within(ATTACK), "created");
    scene.neighbour_goes_on();
    let deeds = scene.call_off();
    assert_eq!(deeds["memories"], MEMORIES / 2, "{deeds:?}");
    assert!(deeds["refused"] > 0, "{deeds:?}");
    maker.kill();
    scene.nothing_is_left();
    scene.server.terminate();
}

/// All users of a group together have half of the connections with other hosts.
#[test]
fn connections_of_a_group_leave_room_for_others() {
    let test = "connections_of_a_group_leave_room_for_others";
    let Some(mut scene) = Scene::set(test, true, &["hosts=yes"]) else { return };
    let [attacker, neighbour] = scene.users.applications;
    // Each user may have a quarter of all.
    for number in 0..5 {
        let Some(user) = attacker.subordinate(number) else {
            let cause = "subordinate users do not exist here".to_owned();
            return skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
        };
        assert!(scene.attack("asked", user, &[]));
    }
    let mut connected = PEER.start_as(&["connection", scene.server.path()], |command| {
        neighbour.confine(command);
    });
    assert_eq!(connected.line_within(ATTACK), "Connected");
    scene.neighbour_goes_on();
    let deeds = scene.call_off();
    assert!(deeds["full"] > 0, "{deeds:?}");
    connected.kill();
    scene.nothing_is_left();
    scene.server.terminate();
}

/// Memory that the server may need for other events.
const SLACK: u64 = 1 << 20;

#[test]
fn subordinate_users_of_a_group_leave_room_for_others() {
    let test = "subordinate_users_of_a_group_leave_room_for_others";
    let options = ["sessions_per_user=8", "connections=64"];
    let Some(mut scene) = Scene::set(test, true, &options) else { return };
    let [attacker, _] = scene.users.applications;
    for number in 0..8 {
        let Some(user) = attacker.subordinate(number) else {
            let cause = "subordinate users do not exist here".to_owned();
            return skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
        };
        if !scene.attack("hoard", user, &[]) {
            // Without one of the permitted sessions there is nothing to attack with.
            break;
        }
    }
    scene.neighbour_goes_on();
    let deeds = scene.call_off();
    assert!(deeds["sessions"] > 0, "{deeds:?}");
    scene.nothing_is_left();
    scene.server.terminate();
}

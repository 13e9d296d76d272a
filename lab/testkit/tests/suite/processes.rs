//! Users, time, system calls, allocations, descriptors.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use towpath_testkit::{
    CapabilitySet, Census, CountingAllocator, Executable, Namespace, ProcessTimes, SyscallCount,
    SyscallWatch, User, Users, WatchEnd, check_namespaces, check_tun, enter, isolated, probe,
    process_cpu_time, skip, this_thread_cpu_time,
};

/// Returns the `status` file of a `cat` started after `prepare`.
fn status_of(prepare: impl FnOnce(&mut Command)) -> BTreeMap<String, String> {
    let mut command = Command::new("/bin/cat");
    command.arg("/proc/self/status");
    prepare(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

fn assert_confined(status: &BTreeMap<String, String>, user: User, kept: u64) {
    let all_four = |id: u32| format!("{id}\t{id}\t{id}\t{id}");
    assert_eq!(status["Uid"], all_four(user.uid));
    assert_eq!(status["Gid"], all_four(user.gid));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status[set], 16).unwrap(), kept, "{set}: {status:?}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
}

fn confine_and_look() {
    let users = Users::find();
    for user in [users.server, users.applications[0], users.applications[1]] {
        let status = status_of(|command| user.confine(command));
        assert_confined(&status, user, 0);
        if users.distinct {
            assert_eq!(status["Groups"], "");
            assert!(user.uid >= 61001);
        } else {
            assert_eq!(user, User::caller());
        }
        let bounding = u64::from_str_radix(&status["CapBnd"], 16).unwrap();
        let own = rustix::thread::capabilities(None).unwrap().effective;
        if own.contains(CapabilitySet::SETPCAP) {
            assert_eq!(bounding, 0);
            let kept = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN;
            let status = status_of(|command| user.confine_but(command, kept));
            assert_confined(&status, user, kept.bits());
        }
    }
    if users.distinct {
        let uids = [users.server.uid, users.applications[0].uid, users.applications[1].uid];
        assert!(uids[0] != uids[1] && uids[1] != uids[2] && uids[0] != uids[2]);
    }
}

#[test]
fn a_confined_process_has_no_rights() {
    confine_and_look();
}

#[test]
fn a_confined_process_has_no_rights_in_a_namespace_either() {
    isolated!(|| {
        confine_and_look();
        // Into another namespace first, then without rights.
        let namespace = Namespace::create().unwrap();
        let user = Users::find().applications[0];
        let status = status_of(|command| {
            namespace.contain(command);
            user.confine(command);
        });
        assert_confined(&status, user, 0);
    });
}

#[test]
fn a_confined_program_gains_nothing_by_another() {
    isolated!(|| {
        // In a user namespace the user is root, whose programs would get every capability.
        let user = Users::find().applications[0];
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "/bin/cat /proc/self/status"]);
        user.confine(&mut command);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let effective = text.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        assert_eq!(u64::from_str_radix(effective, 16).unwrap(), 0);
    });
}

#[test]
fn the_running_program_starts_as_any_user() {
    let program = Executable::current().unwrap();
    let mut command = program.command();
    command.args(["--list", "--format=terse"]);
    Users::find().applications[1].confine(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the_running_program_starts_as_any_user: test"), "{output:?}");
}

#[test]
fn checks_of_the_machine_have_no_side_effects() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let namespaces = check_namespaces();
    let tap = check_tun();
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
    if let Err(why) = namespaces {
        skip("check_namespaces", &why);
        assert!(tap.is_err(), "a TAP needs a namespace");
    } else if let Err(why) = tap {
        skip("check_tun", &why);
    }
    // This harness has several threads.
    std::thread::scope(|scope| {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || held.recv());
        assert!(enter().is_err());
        drop(hold);
    });
}

/// A child that ends with the test, even a failing one.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, arguments: &[&str]) -> Kept {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    Kept(command.spawn().unwrap())
}

/// Starts a `cat`, and waits until it answers.
fn running_cat() -> (Kept, std::process::ChildStdin, BufReader<std::process::ChildStdout>) {
    let mut cat = start("/bin/cat", &[]);
    let mut input = cat.0.stdin.take().unwrap();
    let mut output = BufReader::new(cat.0.stdout.take().unwrap());
    input.write_all(b"up\n").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    // Back in its read.
    let pid = cat.0.id();
    wait_until(|| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") S "));
    (cat, input, output)
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited for 10 seconds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_idle_process_takes_no_time_and_a_busy_one_does() {
    let (idle, _input, _output) = running_cat();
    let before = ProcessTimes::of(idle.0.id()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let after = ProcessTimes::of(idle.0.id()).unwrap();
    assert_eq!(before.threads.len(), 1);
    assert_eq!(before.threads[0].name, "cat");
    // Not one nanosecond and not one wake-up.
    assert_eq!(before, after);

    let busy = start("/bin/sh", &["-c", "while :; do :; done"]);
    let pid = busy.0.id();
    wait_until(|| process_cpu_time(pid).unwrap() > Duration::from_millis(20));
    wait_until(|| ProcessTimes::of(pid).unwrap().threads[0].cpu > Duration::from_millis(20));

    let start = this_thread_cpu_time().unwrap();
    let mut spun = 0_u64;
    while this_thread_cpu_time().unwrap() - start < Duration::from_millis(2) {
        spun += 1;
    }
    assert!(spun > 0);
    assert!(process_cpu_time(std::process::id()).unwrap() >= Duration::from_millis(2));
    assert!(process_cpu_time(u32::MAX).is_err() && ProcessTimes::of(u32::MAX).is_err());
}

#[test]
fn each_wake_up_is_seen() {
    let (cat, mut input, mut output) = running_cat();
    let before = ProcessTimes::of(cat.0.id()).unwrap();
    for n in 0..10 {
        input.write_all(format!("{n}\n").as_bytes()).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let pid = cat.0.id();
        let slept = before.voluntary_switches() + n + 1;
        wait_until(|| ProcessTimes::of(pid).unwrap().voluntary_switches() >= slept);
    }
    let after = ProcessTimes::of(cat.0.id()).unwrap();
    // One sleep per line; a second one where it met us at the pipe's lock.
    let sleeps = after.voluntary_switches() - before.voluntary_switches();
    assert!((10..=20).contains(&sleeps), "{sleeps}");
    assert!(after.cpu > before.cpu);
}

/// Returns `true` if tracing children is allowed here; prints a message if not.
fn may_trace(test: &str) -> bool {
    let (cat, _input, _output) = running_cat();
    match SyscallCount::of(cat.0.id(), Duration::ZERO) {
        Ok(_) => true,
        Err(towpath_testkit::Error::Unavailable(why)) => {
            skip(test, &why);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn system_calls_are_counted_one_by_one() {
    if !may_trace("system_calls_are_counted_one_by_one") {
        return;
    }
    let (mut cat, mut input, mut output) = running_cat();
    let watch = SyscallWatch::start(cat.0.id(), Duration::from_secs(20)).unwrap();
    for n in 0..25 {
        input.write_all(format!("{n}\n").as_bytes()).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{n}\n"));
    }
    // `cat` answers the last line before its next read begins.
    std::thread::sleep(Duration::from_millis(20));
    let count = watch.stop().unwrap();
    assert_eq!(count.ended, WatchEnd::Stopped);
    assert_eq!(count.number(libc::SYS_write), 25, "{count}");
    // The call in which the watch found it, if restarted, and 25 more.
    assert!((25..=26).contains(&count.number(libc::SYS_read)), "{count}");
    assert!(count.total() <= 52 && count.to_string().contains("write 25"), "{count}");

    // It goes on as before.
    input.write_all(b"after\n").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "after\n");
    drop(input);
    assert!(cat.0.wait().unwrap().success());
}

#[test]
fn a_loop_without_system_calls_is_seen_to_have_none() {
    if !may_trace("a_loop_without_system_calls_is_seen_to_have_none") {
        return;
    }
    let mut busy = start("/bin/sh", &["-c", "echo up; while :; do :; done"]);
    let mut line = [0; 3];
    busy.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let count = SyscallCount::of(busy.0.id(), Duration::from_millis(50)).unwrap();
    assert_eq!(count.total(), 0, "{count}");
    assert_eq!(count.ended, WatchEnd::TimeOver);
    assert!(busy.0.try_wait().unwrap().is_none(), "it goes on");
}

#[test]
fn a_watch_sees_the_end_and_leaves_it_to_the_parent() {
    if !may_trace("a_watch_sees_the_end_and_leaves_it_to_the_parent") {
        return;
    }
    let (mut cat, input, _output) = running_cat();
    let watch = SyscallWatch::start(cat.0.id(), Duration::from_secs(20)).unwrap();
    drop(input);
    let count = watch.wait().unwrap();
    assert_eq!(count.ended, WatchEnd::Exited);
    assert_eq!(count.number(libc::SYS_exit_group), 1, "{count}");
    assert!(cat.0.wait().unwrap().success());
}

#[test]
fn signals_reach_a_watched_process() {
    if !may_trace("signals_reach_a_watched_process") {
        return;
    }
    // A shell that is about to wait may have the signal, and run its trap only after the wait.
    let computes = "trap 'echo caught; exit 3' TERM; echo up; while :; do :; done";
    let mut shell = start("/bin/sh", &["-c", computes]);
    let mut output = BufReader::new(shell.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&shell.0);
    let watch = SyscallWatch::start(shell.0.id(), Duration::from_secs(20)).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(watch.wait().unwrap().ended, WatchEnd::Exited);
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "caught\n");
    assert_eq!(shell.0.wait().unwrap().code(), Some(3));
}

#[test]
fn threads_that_cannot_be_watched_are_refused() {
    // The own thread, and numbers without a thread.
    for tid in [std::process::id(), u32::MAX, i32::MAX as u32] {
        assert!(SyscallWatch::start(tid, Duration::from_secs(1)).is_err());
    }
}

#[test]
fn allocations_are_counted_by_thread() {
    assert!(CountingAllocator::is_installed());
    let ((), none) = CountingAllocator::of_this_thread(|| {
        std::hint::black_box([0_u8; 64]);
    });
    assert_eq!(none.calls(), 0);

    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Other threads' allocations do not count here.
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(std::hint::black_box(vec![0_u8; 10]));
            }
        });
        for _ in 0..100 {
            let before = crate::ALLOCATOR.of_process();
            let (held, counted) = CountingAllocator::of_this_thread(|| {
                let mut held = Vec::<u8>::with_capacity(100);
                std::hint::black_box(&mut held).reserve_exact(300);
                drop(std::hint::black_box(Box::new([0_u64; 4])));
                held
            });
            assert_eq!((counted.allocated, counted.reallocated, counted.freed), (2, 1, 1));
            assert_eq!((counted.allocated_bytes, counted.freed_bytes), (332, 32));
            assert_eq!(counted.live_bytes(), 300);
            assert!(crate::ALLOCATOR.of_process().since(&before).allocated >= 2);
            drop(held);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn leaked_descriptors_are_named() {
    let mut shell = start(
        "/bin/sh",
        &["-c", "exec 2>/dev/null; echo 1; read x; exec 7</etc/passwd; echo 2; read x"],
    );
    let mut input = shell.0.stdin.take().unwrap();
    let mut output = BufReader::new(shell.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let before = Census::of(shell.0.id()).unwrap();
    assert_eq!(before.threads, 1);
    assert!(before.descriptors["pipe"] >= 2 && before.mappings > 3, "{before:?}");
    assert!(before.resident_bytes >= before.private_bytes && before.private_bytes > 0);
    input.write_all(b"go\n").unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    let after = Census::of(shell.0.id()).unwrap();
    assert_eq!(after.leaked_since(&before), ["descriptor file: 0 and now 1"]);
    assert!(before.leaked_since(&after).is_empty());
    assert_eq!(after.open(), before.open() + 1);
}

#[test]
fn memory_files_are_counted_by_name() {
    isolated!(|| {
        // A process of its own: no other test opens or closes anything meanwhile.
        let before = Census::of_self().unwrap();
        assert_eq!(Census::of_self().unwrap().open(), before.open());
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let pool = rustix::fs::memfd_create("towpath-testkit-pool", flags).unwrap();
        rustix::fs::ftruncate(&pool, 4096).unwrap();
        let after = Census::of_self().unwrap();
        assert_eq!(
            after.leaked_since(&before),
            ["descriptor memfd: 0 and now 1", "memory file towpath-testkit-pool: 0 and now 1"]
        );
        drop(pool);
        assert_eq!(Census::of_self().unwrap().open(), before.open());
        assert!(Census::of(u32::MAX).is_err());

        // A query of the kernel's features leaves nothing behind, whatever its answer.
        let answers = format!(
            "{:?}",
            (
                probe::landlock(),
                probe::io_uring(),
                probe::xdp_map(),
                probe::xdp_socket(),
                probe::peer_pidfd(),
                probe::hypervisor(),
            )
        );
        let leaked = Census::of_self().unwrap().leaked_since(&before);
        assert!(leaked.is_empty(), "{leaked:?} after {answers}");
    });
}

//! The demonstration as users start it: as root and without root, in processes and embedded, with a
//! requirement missing, and ended early. Afterwards nothing of it is left.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use towpath_testkit::{
    Unavailable, as_only_user, check_tun, enter_own_mounts, isolated, replace_tun, skip,
    with_default_signals,
};

/// The time limit of a demonstration here, beside other running tests.
const LIMIT: Duration = Duration::from_secs(45);
/// An ordinary user: no account has this number.
const ORDINARY: u32 = 61009;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_towpath"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns `true` if a demonstration can run here at all; prints a message if not.
fn possible(test: &str) -> bool {
    check_tun().map_err(|why| skip(test, &why)).is_ok()
}

/// Returns `true` if a command starts as `prepare` says; prints a message if not.
fn works(test: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    let mut command = Command::new("/bin/sh");
    prepare(command.args(["-c", ":"]));
    let Err(error) = command.status() else { return true };
    let cause = format!("a program with other users cannot be started: {error}");
    skip(test, &Unavailable { cause, remedy: "run as root".to_owned() });
    false
}

/// Runs a command to its end, within the limit. Returns its process number and output.
fn run(command: &mut Command) -> (u32, Output) {
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match waits.recv_timeout(LIMIT) {
        Ok(output) => (pid, output.unwrap()),
        Err(_) => {
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
            panic!("{command:?} took longer than {LIMIT:?}");
        }
    }
}

/// Returns a demonstration's directories, and its children, which name them on their command lines.
fn traces(pid: u32) -> Vec<String> {
    let name = format!("towpath-demo-{pid}");
    let mut traces = Vec::new();
    for place in [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()] {
        if place.join(&name).exists() {
            traces.push(place.join(&name).display().to_string());
        }
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("{name}/")) {
            traces.push(format!("process {}: {line}", process.file_name().to_string_lossy()));
        }
    }
    traces
}

/// Checks the output of a successful demonstration.
fn assert_held(pid: u32, output: &Output, protection: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{said}", output.status);
    assert!(text.ends_with("every check held\n"), "{text}");
    let mut rows = vec![
        "10.77.0.2/24",
        "fd77::3/64",
        "HTTP to the kernel's TCP",
        "HTTP from the kernel's TCP",
        "625 answered, 0 lost",
        "62 answered, 0 lost",
        "p50 / p99 / p99.9",
        "packets per wake-up",
        "drops ",
        protection,
    ];
    if text.contains("process ") {
        rows.extend(["its 4224 buffers free ", "neighbours undisturbed"]);
    }
    for row in rows {
        assert!(text.contains(row), "no \"{row}\" in:\n{text}");
    }
    // The server copies each packet exactly once.
    let copies = text.lines().find(|line| line.starts_with("copies per packet")).unwrap();
    assert_eq!(copies.matches("1.00").count(), 2, "{copies}");
    assert_eq!(text.matches("SHA-256 equal").count(), 2, "{text}");
    assert_eq!(traces(pid), [""; 0]);
}

const ONE_USER: &str = "same user: server pages unprotected";

#[test]
fn the_demo_holds_as_the_current_user() {
    if !possible("the_demo_holds_as_the_current_user") {
        return;
    }
    let (pid, output) = run(Command::new(program()).args(["demo", "--quick", "--device", "tap"]));
    // In a user namespace, root may be unable to change to another user.
    let users = towpath_testkit::Users::find();
    let protection = if users.distinct { "are three users" } else { ONE_USER };
    assert_held(pid, &output, protection);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if users.distinct {
        for user in users.applications {
            assert!(text.contains(&format!("user {}", user.uid)), "{text}");
        }
    }
    assert_eq!(text.contains("started by root"), is_root(), "{text}");
    assert!(text.contains("over a TAP in"), "{text}");
}

/// The kernel counts locked memory by user, and one server may need all that its user may lock.
fn alone() -> MutexGuard<'static, ()> {
    static LOCKED_MEMORY: Mutex<()> = Mutex::new(());
    LOCKED_MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without an option, the demonstration serves by AF_XDP where it may, and else a TAP.
#[test]
fn the_demo_holds_over_af_xdp() {
    const TEST: &str = "the_demo_holds_over_af_xdp";
    if !possible(TEST) {
        return;
    }
    let _alone = alone();
    let (_, asked) = run(Command::new(program()).args(["demo", "--quick", "--device", "xdp"]));
    let may = asked.status.code() != Some(77);
    if !may {
        let cause = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
        assert!(cause.contains("AF_XDP") && cause.lines().count() == 1, "{cause}");
        skip(TEST, &Unavailable { cause, remedy: "run the test as root".to_owned() });
    }
    let (pid, output) = run(Command::new(program()).args(["demo", "--quick"]));
    let users = towpath_testkit::Users::find();
    assert_held(pid, &output, if users.distinct { "are three users" } else { ONE_USER });
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.contains("AF_XDP on a veth pair"), may, "{text}");
    assert_eq!(text.contains("over a TAP in"), !may, "{text}");
}

#[test]
fn the_demo_holds_embedded() {
    if !possible("the_demo_holds_embedded") {
        return;
    }
    let _alone = alone();
    let (pid, output) = run(Command::new(program()).args(["demo", "--quick", "--embedded"]));
    assert_held(pid, &output, ONE_USER);
}

/// The program where any user can start it, removed when dropped.
struct Copied(PathBuf);

impl Copied {
    fn make() -> Copied {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-demo-test-{}-{count}", std::process::id());
        let directory = Path::new("/tmp").join(name);
        std::fs::create_dir(&directory).unwrap();
        let copied = Copied(directory);
        std::fs::set_permissions(&copied.0, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(program(), copied.program()).unwrap();
        std::fs::set_permissions(copied.program(), PermissionsExt::from_mode(0o755)).unwrap();
        copied
    }

    fn program(&self) -> PathBuf {
        self.0.join("towpath")
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_demo_holds_as_an_ordinary_user() {
    if !is_root() || !possible("the_demo_holds_as_an_ordinary_user") {
        // Without root, every other test runs as an ordinary user already.
        return;
    }
    let copied = Copied::make();
    for embedded in [false, true] {
        let mut command = Command::new(copied.program());
        command.args(["demo", "--quick"]).uid(ORDINARY).gid(ORDINARY).env_remove("TMPDIR");
        if embedded {
            command.arg("--embedded");
        }
        // Only this thread's program sees the node, with the mode that udev gives it.
        let by_user = || {
            enter_own_mounts().unwrap();
            replace_tun(Some(0o666)).unwrap();
            run(&mut command)
        };
        let ran = std::thread::scope(|scope| scope.spawn(by_user).join());
        let (pid, output) = ran.unwrap();
        assert_held(pid, &output, ONE_USER);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("without root"), "{text}");
    }
}

/// Checks that a demonstration reported that it cannot run here: one line, and nothing left.
fn assert_unavailable(pid: u32, output: &Output, cause: &str, remedy: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("towpath demo: ") && said.contains(cause), "{said}");
    assert!(said.contains(remedy), "{said}");
    assert!(output.stdout.is_empty());
    assert_eq!(traces(pid), [""; 0]);
}

#[test]
fn without_tun_the_demo_is_unavailable() {
    isolated!(|| {
        if !possible("without_tun_the_demo_is_unavailable") {
            return;
        }
        enter_own_mounts().unwrap();
        replace_tun(None).unwrap();
        let (pid, output) = run(Command::new(program()).args(["demo", "--device", "tap"]));
        let cause = "/dev/net/tun cannot be opened: No such file";
        assert_unavailable(pid, &output, cause, "modprobe tun");
    });
}

#[test]
fn without_namespaces_the_demo_is_unavailable() {
    const TEST: &str = "without_namespaces_the_demo_is_unavailable";
    if !possible(TEST) || !works(TEST, as_only_user) {
        return;
    }
    // The limit is the user namespace's own.
    let script = "echo 0 > /proc/sys/user/max_net_namespaces; exec \"$0\" demo";
    let mut command = Command::new("/bin/sh");
    as_only_user(command.args(["-ec", script]).arg(program()));
    let (pid, output) = run(&mut command);
    assert_unavailable(pid, &output, "user.max_net_namespaces is 0", "sysctl");
}

/// Starts a demonstration, ends it in the middle, and waits until nothing is left of it.
fn end_early(signal: Signal) {
    let mut command = Command::new(program());
    command.arg("demo").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    with_default_signals(&mut command);
    let mut demonstration: Child = command.spawn().unwrap();
    let pid = demonstration.id();
    let start = Instant::now();
    // Server and both applications, and the directory.
    while traces(pid).len() < 4 {
        assert!(start.elapsed() < LIMIT, "{:?}", traces(pid));
        assert_eq!(demonstration.try_wait().unwrap(), None, "it has ended by itself");
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    let status = demonstration.wait().unwrap();
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    let start = Instant::now();
    while !traces(pid).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "left: {:?}", traces(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_or_interrupted_demo_leaves_nothing() {
    if !possible("a_killed_or_interrupted_demo_leaves_nothing") {
        return;
    }
    let _alone = alone();
    end_early(Signal::KILL);
    end_early(Signal::INT);
    end_early(Signal::TERM);
}

//! Running the command: servers in a directory of their own, other subcommands to their end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use towpath_testkit::{User, Users};

/// The time limit of operations that should take no time.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Environment variables that would change the output: its amount, width and colours, and the
/// service manager.
const AMBIENT: [&str; 9] = [
    "RUST_LOG",
    "RUST_BACKTRACE",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "NOTIFY_SOCKET",
    "XDG_RUNTIME_DIR",
];

/// A directory that every user may read; dropping it removes it.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-op-{}-{number}", std::process::id()));
        // Other users must read the files made in it, even under a restrictive umask of the caller.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        // A killed test of a process with the same number may have left one behind.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Directory(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a command without the settings of the user that runs the tests.
pub(crate) fn plain(program: &str) -> Command {
    let mut command = Command::new(program);
    for variable in AMBIENT {
        command.env_remove(variable);
    }
    command
}

/// Returns the command, started as `user`, which need not have access to the build directory.
pub(crate) fn towpath_as(user: Option<&User>, arguments: &[&str]) -> Command {
    let flags = OFlags::PATH;
    let file: OwnedFd =
        rustix::fs::open(env!("CARGO_BIN_EXE_towpath"), flags, Mode::empty()).unwrap();
    let mut command = match user {
        None => plain(env!("CARGO_BIN_EXE_towpath")),
        Some(user) => {
            let mut command = plain(&format!("/proc/self/fd/{}", file.as_raw_fd()));
            user.confine(&mut command);
            // The file stays open in this process: the child needs it for its exec.
            std::mem::forget(file);
            command
        }
    };
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn towpath(arguments: &[&str]) -> Command {
    towpath_as(None, arguments)
}

/// Gives the calling thread, and all programs that it starts, a private `/run`, in which no subcommand
/// finds this machine's servers.
pub(crate) fn hide_servers() {
    towpath_testkit::enter_own_mounts().unwrap();
    towpath_testkit::mount_tmpfs(Path::new("/run"), "").unwrap();
}

/// Runs a command to its end. Kills a command that does not end, and fails the test. Also fails the
/// test if the command leaves a process behind that holds its output open.
pub(crate) fn finish(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    fn reading(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            bytes
        })
    }
    let (out, err) = (reading(out), reading(err));
    let status = wait(&mut child);
    until("the command's output ends", || out.is_finished() && err.is_finished());
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

/// Waits for a child, and kills it after the time limit.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the child did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the one line that a command failed with, and checks its status.
pub(crate) fn fails(command: &mut Command, status: i32) -> String {
    let output = finish(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
    let lines: Vec<&str> = said.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!(lines.len(), 1, "{command:?} said: {said}");
    assert!(lines[0].starts_with("towpath: "), "{said}");
    assert!(!said.contains("panicked") && !said.contains("os error"), "{said}");
    lines[0].to_owned()
}

/// Returns the output of a command that succeeds.
pub(crate) fn prints(command: &mut Command) -> String {
    let output = finish(command);
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the first words of the lines of a part of a help text.
fn begins(help: &str, part: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != part).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// Returns the command's subcommands, as its help lists them.
pub(crate) fn subcommands() -> Vec<String> {
    let mut subcommands = begins(&prints(&mut towpath(&["--help"])), "Subcommands:");
    subcommands.retain(|subcommand| subcommand != "help");
    assert!(subcommands.len() >= 9 && subcommands.contains(&"serve".to_owned()), "{subcommands:?}");
    subcommands
}

/// Returns the long options of a subcommand, as its help lists them.
pub(crate) fn options(subcommand: &str) -> Vec<String> {
    let help = prints(&mut towpath(&[subcommand, "--help"]));
    let lines = help.lines().filter_map(|line| {
        // An option's line has the short form first, or its indent; other text is indented further.
        let long = match line.strip_prefix("      ") {
            Some(rest) => rest,
            None => line.strip_prefix("  -")?.split_once(", ")?.1,
        };
        let long = long.split([' ', '[']).next()?;
        long.starts_with("--").then(|| long.to_owned())
    });
    let options: Vec<String> = lines.collect();
    assert!(options.contains(&"--help".to_owned()), "{subcommand}: {help}");
    options
}

/// Returns the settings of a running server, each with its equals sign, as the command lists them.
pub(crate) fn settings() -> Vec<String> {
    let list = prints(&mut towpath(&["set", "--list"]));
    let lines = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.filter_map(|line| Some(format!("{}=", line.trim().split_once('=')?.0)));
    let names: Vec<String> = names.collect();
    assert!(names.contains(&"wait=".to_owned()), "{list}");
    names
}

/// A server that applications can attach to. Dropping it kills the server and its keeper, unless the
/// test ended them before.
pub(crate) struct Running {
    /// The keeper, which started the server.
    pub(crate) child: Child,
    pub(crate) socket: String,
    log: PathBuf,
    /// The pipe of the readiness message; dropping it closes the other end with it.
    _ready: BufReader<std::process::ChildStdout>,
}

/// Starts a server whose socket is `socket`, and waits until it is ready.
pub(crate) fn serve(directory: &Directory, socket: &str, arguments: &[&str]) -> Running {
    try_serve(directory, socket, arguments).unwrap_or_else(|said| panic!("{said}"))
}

pub(crate) fn try_serve(
    directory: &Directory,
    socket: &str,
    arguments: &[&str],
) -> Result<Running, String> {
    let file = fs::File::create(log_of(directory, socket)).unwrap();
    serve_with_log(directory, socket, arguments, file.into())
}

fn log_of(directory: &Directory, socket: &str) -> PathBuf {
    directory.join(&format!("{}.log", socket.replace('/', "-")))
}

/// Starts a server as `serve` does, with its log elsewhere. Returns its output if it did not become
/// ready.
pub(crate) fn serve_with_log(
    directory: &Directory,
    socket: &str,
    arguments: &[&str],
    to: Stdio,
) -> Result<Running, String> {
    serve_by(towpath(&[]), directory, socket, arguments, to)
}

/// Starts a server of a program that is elsewhere, as `serve` does.
pub(crate) fn serve_from(
    program: &str,
    directory: &Directory,
    socket: &str,
    arguments: &[&str],
) -> Running {
    let served = Starting::with(plain(program), directory, socket, arguments).ready();
    served.unwrap_or_else(|said| panic!("{said}"))
}

fn serve_by(
    program: Command,
    directory: &Directory,
    socket: &str,
    arguments: &[&str],
    to: Stdio,
) -> Result<Running, String> {
    Starting::spawn(program, directory, socket, arguments, to).ready()
}

/// A server that is not ready yet.
pub(crate) struct Starting {
    child: Child,
    socket: String,
    log: PathBuf,
}

impl Starting {
    /// Starts a server by a command that takes the arguments of the program.
    pub(crate) fn with(
        program: Command,
        directory: &Directory,
        socket: &str,
        arguments: &[&str],
    ) -> Starting {
        let file = fs::File::create(log_of(directory, socket)).unwrap();
        Starting::spawn(program, directory, socket, arguments, file.into())
    }

    fn spawn(
        mut program: Command,
        directory: &Directory,
        socket: &str,
        arguments: &[&str],
        to: Stdio,
    ) -> Starting {
        let path = directory.text(socket);
        let child = program
            .args(["serve", "--socket", &path, "--ready-fd", "1", "--confine", "kill"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(to)
            .spawn()
            .unwrap();
        Starting { child, socket: path, log: log_of(directory, socket) }
    }

    /// Starts a server of a device by a command that takes the arguments of the program. Without an
    /// option, the server's socket is in a directory for the servers of its user.
    pub(crate) fn in_place(
        mut program: Command,
        directory: &Directory,
        servers: &Path,
        interface: &str,
        arguments: &[&str],
    ) -> Starting {
        let socket = servers.join(format!("{interface}.sock")).to_str().unwrap().to_owned();
        let log = directory.join(&format!("{interface}.log"));
        let child = program
            .args(["serve", "--device", &format!("tap:{interface}"), "--ready-fd", "1"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Starting { child, socket, log }
    }

    /// Waits until the server is ready. Returns its output if it does not become ready.
    pub(crate) fn ready(self) -> Result<Running, String> {
        self.ready_or_end().map_err(|(_, said)| said)
    }

    /// Waits until the server is ready. Returns its status and its output if it does not become ready.
    pub(crate) fn ready_or_end(self) -> Result<Running, (ExitStatus, String)> {
        let Starting { mut child, socket, log } = self;
        let mut ready = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        ready.read_line(&mut line).unwrap();
        if !line.starts_with("ready ") {
            let _ = child.kill();
            let status = child.wait().unwrap();
            return Err((status, fs::read_to_string(&log).unwrap_or_default()));
        }
        assert!(line.ends_with(&format!(" {socket}\n")), "{line}");
        Ok(Running { child, socket, log, _ready: ready })
    }
}

impl Running {
    /// Returns the server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends the server with a signal, and waits for its end.
    pub(crate) fn stop(&mut self, by: Signal) -> ExitStatus {
        signal(&self.child, by);
        wait(&mut self.child)
    }

    /// Returns the server's process; `None` if there is none now.
    pub(crate) fn server(&self) -> Option<Pid> {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        let server = children.split_whitespace().find(|child| {
            let name = fs::read_to_string(format!("/proc/{child}/comm"));
            // Before it has set its name, it has the program's.
            name.is_ok_and(|name| ["towpath-server", "exe", "towpath"].contains(&name.trim()))
        });
        server.and_then(|server| Pid::from_raw(server.parse().ok()?))
    }

    /// Keeps further servers from starting: they cannot lock a directory.
    pub(crate) fn forbid_next(&self) {
        let lock = format!("{}.lock", self.socket);
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
    }

    /// Ends what [`Running::forbid_next`] began.
    pub(crate) fn allow_next(&self) {
        fs::remove_dir(format!("{}.lock", self.socket)).unwrap();
    }

    /// Kills the server alone, and waits for its end.
    pub(crate) fn kill_server(&self) {
        let server = self.server().expect("there is a server");
        let process = pidfd_open(server, PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&process, Signal::KILL).unwrap();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
    }

    /// Kills the keeper and the server, so that neither ends in order.
    pub(crate) fn kill(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(&self.child, Signal::STOP);
            if self.server().is_some() {
                self.kill_server();
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns a command for another subcommand on this server.
    pub(crate) fn subcommand(&self, subcommand: &str, arguments: &[&str]) -> Command {
        self.subcommand_as(None, subcommand, arguments)
    }

    pub(crate) fn subcommand_as(
        &self,
        user: Option<&User>,
        subcommand: &str,
        arguments: &[&str],
    ) -> Command {
        let mut all = vec![subcommand, "--socket", &self.socket];
        all.extend(arguments);
        towpath_as(user, &all)
    }

    /// Returns the state of the device by its keeper.
    pub(crate) fn state(&self) -> String {
        let listed = prints(&mut self.subcommand("ls", &["--json"]));
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        listed["keeper"]["state"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn report(&self) -> serde_json::Value {
        serde_json::from_str(&prints(&mut self.subcommand("stat", &["--json"]))).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the server logged:\n{}", self.log());
        }
    }
}

/// Returns three users, where this machine lets the test choose them.
pub(crate) fn users() -> Option<Users> {
    let users = Users::find();
    users.distinct.then_some(users)
}

/// Returns three users as [`users`] does, and says why the test does not run without them.
pub(crate) fn other_users(test: &str) -> Option<Users> {
    let users = users();
    if users.is_none() {
        let cause = "applications cannot be started as other users".to_owned();
        let remedy = "run as root".to_owned();
        towpath_testkit::skip(test, &towpath_testkit::Unavailable { cause, remedy });
    }
    users
}

/// Returns `true` if TAP interfaces are available here; prints a message if not.
pub(crate) fn tun(test: &str) -> bool {
    match towpath_testkit::check_tun() {
        Ok(()) => true,
        Err(why) => {
            towpath_testkit::skip(test, &why);
            false
        }
    }
}

pub(crate) fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().symlink_metadata().is_ok()
}

/// Allocates the memory that the application of a session writes, as the client library does.
/// `files`: the descriptors that came with the session.
pub(crate) fn allocate(files: Vec<OwnedFd>) {
    for file in files.into_iter().skip(3).take(2).map(File::from) {
        let len = file.metadata().unwrap().len() as usize;
        file.write_all_at(&vec![0; len], 0).unwrap();
    }
}

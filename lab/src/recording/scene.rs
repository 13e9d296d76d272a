//! The scene: a server on a TAP with its keeper, the example `udp_echo`, a kill and an upgrade. Every
//! line that begins with `$` is a command that runs as it is written, but for the kill, whose signal
//! this program sends. Lines that begin with `#` are this program's counts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, ensure};

use super::asker::Asker;
use super::screen::Screen;
use crate::child::{Child, Keep, OwnSocket};
use crate::programs::{Running, STARTS, end_with_signal, first_child, own_program};
use towpath_report::cast::Cast;

const TITLE: &str = "Towpath: a server is killed, then upgraded, while udp_echo answers";
/// Letters of a line of the terminal.
const COLUMNS: usize = 120;
const DEVICE: [&str; 4] = ["--device", "tap:tap0", "--address", "10.77.0.1/24"];
/// The address of the kernel's socket, and of the application.
const KERNEL: &str = "10.77.0.1:0";
const APPLICATION: &str = "10.77.0.2:7";
const SOCKET: &str = "./tap0.sock";
/// The time between two steps.
const STEP: Duration = Duration::from_millis(1500);

/// Plays the scene.
pub(crate) fn play() -> anyhow::Result<Cast> {
    let [towpath, echo] = ["towpath", "udp_echo"].map(own_program);
    let (towpath, echo) = (towpath.map_err(|why| anyhow!(why))?, echo.map_err(|why| anyhow!(why))?);
    let files = OwnSocket::new()?;
    let _directory = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let stage = Stage { screen: Screen::new(), directory: files.directory().to_owned() };

    let serve = [&["serve"], &DEVICE[..], &["--log", "warn", "--socket", SOCKET]].concat();
    let keeper = stage.start(&towpath, &serve)?;
    let socket = stage.directory.join(SOCKET);
    wait_until("the server serves", || towpath_client::report(&socket).is_ok())?;
    let application = stage.start(&echo, &[SOCKET])?;
    wait_until("udp_echo answers", || stage.screen.shows("answering at"))?;

    let asker = Asker::new(KERNEL.parse()?, APPLICATION.parse()?)?;
    std::thread::scope(|scope| {
        scope.spawn(|| asker.ask());
        let played = stage.disturb(&towpath, keeper.0.id(), &asker);
        asker.stop();
        played
    })?;
    let pid = application.0.id();
    ensure!(Path::new("/proc").join(pid.to_string()).exists(), "udp_echo ended");
    let [_, all] = asker.counts();
    stage.screen.show(&all.line(&format!("in all, from one udp_echo (process {pid})")));
    let lines = stage.screen.lines();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(Cast::new(TITLE, COLUMNS, now, lines))
}

struct Stage {
    screen: Screen,
    directory: PathBuf,
}

impl Stage {
    /// Kills the server, and upgrades the next one, while the asker asks.
    fn disturb(&self, towpath: &Path, keeper: u32, asker: &Asker) -> anyhow::Result<()> {
        let screen = &self.screen;
        screen.show(&format!("# a socket of the kernel asks {APPLICATION} once a millisecond"));
        let report = |since| screen.show(&asker.counts()[0].line(since));
        std::thread::sleep(STEP);
        report("until now");
        let server = first_child(keeper).context("the keeper has no server")?;
        screen.show(&format!("$ kill -9 {server}"));
        end_with_signal(server)?;
        let another = || first_child(keeper).is_some_and(|now| now != server);
        wait_until("another server starts", another)?;
        std::thread::sleep(STEP);
        report("from the kill on");

        self.run(towpath, &["upgrade", SOCKET])?;
        std::thread::sleep(STEP);
        report("from the upgrade on");
        self.run(towpath, &["ls", "--socket", SOCKET])?;
        Ok(())
    }

    /// Starts a program in the background, as a shell does with `&`.
    fn start(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<Running> {
        self.type_in(program, arguments, " &");
        let mut command = self.command(program, arguments);
        towpath_testkit::end_with_parent(&mut command);
        let mut running = Running(command.spawn().with_context(|| program.display().to_string())?);
        let (output, errors) = (running.0.stdout.take(), running.0.stderr.take());
        self.screen.follow(output.context("a program without output")?);
        self.screen.follow(errors.context("a program without errors")?);
        Ok(running)
    }

    /// Runs a program, and shows what it prints.
    fn run(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        self.type_in(program, arguments, "");
        let output = self.command(program, arguments).output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        said.lines().for_each(|line| self.screen.show(line));
        ensure!(output.status.success(), "{}: {said}", program.display());
        Ok(())
    }

    fn type_in(&self, program: &Path, arguments: &[&str], end: &str) {
        let name = program.file_name().unwrap_or(OsStr::new("?")).to_string_lossy();
        self.screen.show(&format!("$ {name} {}{end}", arguments.join(" ")));
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        // It would decide what the server logs.
        command.env_remove("RUST_LOG");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let until = Instant::now() + STARTS;
    while !holds() {
        ensure!(Instant::now() < until, "not within {} s: {what}", STARTS.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

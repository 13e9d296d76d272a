//! The other processes of an experiment: this program again, in a role.
//!
//! A child writes one line when it is ready, and ends when its standard input does. So no child
//! outlives its experiment, however that ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::coexistence::Mode;
use crate::process::Serving;
use towpath_server::Values;
use towpath_server::internals::{Solo, Traffic};

/// The flag that gives a process its role, followed by one argument.
pub const ROLE_FLAG: &str = "--role";

/// The longest time that a child may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The work of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Serves an in-memory device.
    Server {
        /// The socket's path.
        socket: PathBuf,
        /// The core of its engine.
        engine_cpu: usize,
    },
    /// Serves a TAP device.
    TapServer {
        /// The socket's path.
        socket: PathBuf,
    },
    /// Serves the shared interface of `coexistence`.
    XdpServer {
        /// The socket's path.
        socket: PathBuf,
        /// How the kernel runs the filter.
        mode: Mode,
    },
    /// Serves a device as its settings say.
    Serve {
        /// The device and its settings.
        serving: Serving,
        /// The socket's path.
        socket: PathBuf,
    },
    /// Serves both ends of a link of cells.
    CellServers(crate::cells::CellServing),
    /// Sends frames back to their senders.
    Echo {
        /// The interface.
        interface: String,
        /// The frames' ethertype.
        ethertype: u16,
        /// The core.
        cpu: usize,
    },
    /// Serves a device and sends through it on command, in one process.
    Counted {
        /// The device and its settings.
        serving: Serving,
        /// The socket's path.
        socket: PathBuf,
    },
    /// Computes, and nothing else.
    Factor {
        /// The core; any core if `None`.
        cpu: Option<usize>,
    },
    /// Reads memory beyond the caches, and reports how fast.
    Stride {
        /// The core.
        cpu: usize,
    },
    /// Counts the idle time of each core, and reports it on request.
    CountIdle {
        /// The cores.
        cpus: Vec<usize>,
        /// The time to calibrate, in milliseconds.
        calibration_ms: u64,
    },
    /// Sends to itself through a server, as fast as its pace allows.
    Application {
        /// The server's socket.
        socket: PathBuf,
        /// The core.
        cpu: usize,
        /// Packets that it submits together, once a millisecond.
        burst: usize,
    },
    /// Attacks a server, and reports when the attack has begun.
    Attack {
        /// The attack's name.
        name: String,
        /// The server's socket.
        socket: PathBuf,
        /// The attack's options.
        options: Vec<String>,
    },
    /// Measures round trips and attachments in the windows that its parent asks for.
    Neighbour {
        /// The server's socket.
        socket: PathBuf,
    },
    /// Keeps a directory for the files of other programs.
    Keep {
        /// The directory.
        directory: PathBuf,
    },
    /// Sends each packet back through a server, and sleeps until the next.
    Answer {
        /// The server's socket.
        socket: PathBuf,
        /// The core; any core if `None`.
        cpu: Option<usize>,
    },
    /// Sends each datagram back to a Unix socket, and sleeps until the next.
    AnswerSocket {
        /// The abstract names of the child's socket and of its peer's.
        names: [String; 2],
        /// The core; any core if `None`.
        cpu: Option<usize>,
    },
    /// Makes the system calls of one part of a round trip, and nothing else.
    BareCalls {
        /// The abstract name of the socket that gives the child its descriptors.
        name: String,
        /// The part.
        part: crate::peers::Part,
        /// What wakes an application.
        doorbell: crate::peers::Doorbell,
        /// The core; any core if `None`.
        cpu: Option<usize>,
    },
    /// Answers at the far end of a wire.
    AnswerWire(crate::xdp::Answers),
    /// Moves packets through an engine without threads, for a tool that counts instructions.
    Count {
        /// The path of the packets.
        way: Traffic,
        /// The number of successive packets of one flow.
        train: usize,
        /// The number of packets.
        packets: usize,
        /// Uses the code with support for captures, though no capture is open.
        taps: bool,
    },
    /// Makes idle connections between two stacks, and reports the memory of each end.
    IdleConnections {
        /// The number of connections.
        connections: usize,
    },
    /// Receives from a card in a guest, and counts.
    CardReceiver(crate::card::Receiver),
    /// Drives a card in a guest for an application, in an older way.
    CardDriver(crate::card::Order),
    /// Sends to all receivers of a guest in turn.
    CardTrials(crate::card::Plan),
    /// Sends through a card of a guest from several threads, in each way.
    HandoffTrials(crate::handoff::Plan),
    /// Sends through a card on command.
    HandoffSteps {
        /// The card.
        card: String,
        /// The way to it.
        way: crate::handoff::Way,
    },
    /// Sends to itself through a server of its own, for a tool that counts an application's
    /// instructions.
    CountApplication {
        /// The number of packets.
        packets: u64,
    },
}

/// Runs the role that a parent gave. Returns when the parent is gone.
///
/// # Errors
/// With the failure, in words; the parent shows them, as the child shares its standard error.
pub fn act(role: &str) -> anyhow::Result<()> {
    let role = serde_json::from_str(role).context("no role of this program")?;
    // A stopped child would not see that its input has ended.
    rustix::process::set_parent_process_death_signal(Some(Signal::CONT))?;
    match role {
        Role::Server { socket, engine_cpu } => {
            let _directory = Directory::of(&socket)?;
            crate::switch::serve(socket, engine_cpu)
        }
        Role::TapServer { socket } => {
            let _directory = Directory::of(&socket)?;
            crate::tcp::serve(socket)
        }
        Role::XdpServer { socket, mode } => {
            let _directory = Directory::of(&socket)?;
            crate::coexistence::serve(socket, mode)
        }
        Role::Serve { serving, socket } => {
            let _directory = Directory::of(&socket)?;
            crate::process::serve(&serving, socket)
        }
        Role::CellServers(serving) => {
            let _directory = Directory::of(serving.socket())?;
            crate::cells::serve(&serving)
        }
        Role::Echo { interface, ethertype, cpu } => crate::echo::serve(&interface, ethertype, cpu),
        Role::Counted { serving, socket } => {
            let _directory = Directory::of(&socket)?;
            crate::freebsd::counted(&serving, socket)
        }
        Role::Factor { cpu } => crate::penn::factor(cpu),
        Role::Stride { cpu } => crate::penn::stride(cpu),
        Role::CountIdle { cpus, calibration_ms } => {
            crate::karlsruhe::count_idle(&cpus, Duration::from_millis(calibration_ms))
        }
        Role::Application { socket, cpu, burst } => {
            crate::isolation::send_to_itself(&socket, cpu, burst)
        }
        Role::Attack { name, socket, options } => crate::attacks::attack(&name, &socket, &options),
        Role::Neighbour { socket } => crate::attacks::neighbour(&socket),
        Role::Keep { directory } => {
            let _directory = Directory::make(directory)?;
            tell("ready")?;
            wait_for_end()
        }
        Role::Answer { socket, cpu } => crate::peers::answer(&socket, cpu),
        Role::AnswerSocket { names, cpu } => crate::peers::answer_socket(&names, cpu),
        Role::BareCalls { name, part, doorbell, cpu } => {
            crate::peers::bare_calls(&name, part, doorbell, cpu)
        }
        Role::AnswerWire(answers) => crate::xdp::answer(&answers),
        Role::Count { way, train, packets, taps } => count(way, train, packets, taps),
        Role::IdleConnections { connections } => crate::scale::idle_connections(connections),
        Role::CardReceiver(receiver) => crate::card::receive(&receiver),
        Role::CardDriver(order) => crate::card::drive(&order),
        Role::CardTrials(plan) => crate::card::run_trials(&plan),
        Role::HandoffTrials(plan) => crate::handoff::run_trials(&plan),
        Role::HandoffSteps { card, way } => crate::handoff::serve_steps(&card, way),
        Role::CountApplication { packets } => crate::switch::count_application(packets),
    }
}

/// A running child. Dropping it ends it.
pub(crate) struct Child {
    process: std::process::Child,
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child, and waits until it is ready.
    pub(crate) fn start(role: &Role) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("the program's own file")?;
        let mut command = Command::new(program);
        command.arg(ROLE_FLAG).arg(serde_json::to_string(role)?);
        Child::start_command(command)
    }

    /// Starts a child by a command that the caller has prepared.
    pub(crate) fn start_command(command: Command) -> anyhow::Result<Child> {
        Ok(Child::start_heard(command)?.0)
    }

    /// Starts a child as [`Child::start_command`] does. Returns its first line, too.
    pub(crate) fn start_heard(mut command: Command) -> anyhow::Result<(Child, String)> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting another process of this program")?;
        let (Some(say), Some(hear)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a process without its pipes");
        };
        let mut child = Child { process, say: Some(say), hear: BufReader::new(hear) };
        let said = child.hear().context("the other process did not become ready")?;
        Ok((child, said))
    }

    /// Returns the child's next line.
    pub(crate) fn hear(&mut self) -> anyhow::Result<String> {
        let until = Instant::now() + PATIENCE;
        let mut line = Vec::new();
        loop {
            if self.hear.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                let mut heard = [PollFd::new(self.hear.get_ref(), PollFlags::IN)];
                let timeout =
                    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                if poll(&mut heard, Some(&timeout))? == 0 {
                    bail!("no answer from the other process in {} s", PATIENCE.as_secs());
                }
            }
            let got = self.hear.fill_buf()?;
            if got.is_empty() {
                bail!("the other process ended");
            }
            let end = got.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(got.len(), |at| at + 1);
            line.extend_from_slice(&got[..end.unwrap_or(used)]);
            self.hear.consume(used);
            if end.is_some() {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if line.len() > 64 * 1024 {
                bail!("the other process sent more than 64 KiB in one line");
            }
        }
    }

    /// Returns the child's process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends the child a line.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let say = self.say.as_mut().context("a process whose input is closed")?;
        Ok(writeln!(say, "{line}")?)
    }

    /// Closes the child's input, and returns its last line.
    pub(crate) fn end(mut self) -> anyhow::Result<String> {
        self.say = None;
        self.hear()
    }

    /// Sends the child a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a process without a number")?, signal)?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.say = None;
        // A stopped child would not see that its input has ended.
        let _ = self.signal(Signal::CONT);
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a child's line to its parent.
pub(crate) fn tell(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits until the parent closes the child's input.
pub(crate) fn wait_for_end() -> anyhow::Result<()> {
    std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut std::io::sink())?;
    Ok(())
}

/// Returns whether the parent has closed the child's input, without waiting.
pub(crate) fn is_over() -> bool {
    let stdin = std::io::stdin();
    let mut heard = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut heard, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// A path for the socket of a child that serves, in a directory that no other process uses. The
/// child makes the directory and removes it, because a parent may be ended at any moment.
pub(crate) struct OwnSocket(PathBuf);

impl OwnSocket {
    pub(crate) fn new() -> anyhow::Result<OwnSocket> {
        OwnSocket::below(&std::env::temp_dir())
    }

    /// Returns a path in a new directory below another one.
    pub(crate) fn below(base: &Path) -> anyhow::Result<OwnSocket> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("towpath-lab-{:016x}", u64::from_ne_bytes(random));
        Ok(OwnSocket(base.join(name)))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.join("device.sock")
    }
}

impl Drop for OwnSocket {
    /// Removes the directory where the child has not, because it had to be killed.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A directory, for as long as a child serves there.
struct Directory(PathBuf);

impl Directory {
    fn of(socket: &Path) -> anyhow::Result<Directory> {
        Directory::make(socket.parent().context("a socket in no directory")?.to_owned())
    }

    fn make(path: PathBuf) -> anyhow::Result<Directory> {
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Moves packets for a tool that counts instructions, and prints their number. The code supports
/// captures or does not; no capture is open.
fn count(way: Traffic, train: usize, packets: usize, taps: bool) -> anyhow::Result<()> {
    let mut solo = Solo::new(&Values::default()).map_err(anyhow::Error::from_boxed)?;
    solo.assume_captures(taps);
    let turns = packets.div_ceil(Solo::BATCH);
    let moved = solo.run(way, turns, train.max(1)).map_err(anyhow::Error::from_boxed)?;
    println!("{moved} packets");
    Ok(())
}

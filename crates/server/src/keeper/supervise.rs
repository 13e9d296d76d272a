//! A keeper that starts servers, one after the other.

mod upgrade;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::ends::{Ends, LONGEST_PAUSE, Next, describe, is_defect};
use super::hang_watch::HangWatch;
use super::keeper_state::KeeperState;
use super::listener::Listener;
use super::options::{KeeperOptions, OWN, UPGRADE_TIMEOUT, keeper_connection};
use super::process::{Keeper, timeout};
use super::server_process::ServerProcess;
use crate::position::{Crash, Positions};

/// Signals within this time are one: `timeout` (coreutils) signals its program and then the program's
/// group.
const TOGETHER: Duration = Duration::from_millis(100);

/// Asks a server to end, and to leave everything to the next one.
const LEAVE: Signal = Signal::USR2;

/// The bits of the descriptors that a keeper waits for beside a server's messages.
const ENDED: u32 = 1;
const SIGNALLED: u32 = 2;

/// The caller's part of [`supervise`]: starts server processes, and gives up privileges.
pub trait Supervised {
    /// Starts a server, to which the keeper is at the other end of `connection`
    /// ([`KeeperAccess::new`](super::KeeperAccess::new)).
    ///
    /// # Errors
    /// If the process does not start.
    fn launch(&mut self, connection: OwnedFd, start: Start) -> io::Result<Child>;

    /// Finds the program that is installed now, for the next server. Returns its name for messages.
    ///
    /// # Errors
    /// If there is none, with the reason and the remedy.
    fn prepare_upgrade(&mut self) -> io::Result<String>;

    /// Ends an upgrade. If a server of the program of [`Supervised::prepare_upgrade`] serves, all
    /// further servers start from that program, and else from the previous one.
    fn end_upgrade(&mut self, serves: bool);

    /// Has this process execute the program with which the last upgrade ended, after that program has
    /// checked by [`Continued::read`] that it can go on with the contents of `file`. Returns only if
    /// the check or the execution fails, with the reason. Until then, all descriptors of the keeper are open for programs that
    /// this process starts.
    fn replace(&mut self, file: BorrowedFd<'_>) -> io::Error;

    /// Gives up all privileges but a keeper's. [`supervise`] calls it once, when the first server
    /// serves.
    ///
    /// # Errors
    /// If the process cannot give up its privileges. This ends the keeper.
    fn ready(&mut self) -> io::Result<()>;

    /// Takes the number of a signal for the server that has arrived; `None` if there is none.
    fn take_signal(&mut self) -> Option<i32>;
}

/// The start of a server.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// How many servers were started before.
    pub number: u32,
    /// How the server before crashed or hung, if it did and no server has counted that yet.
    pub crash: Option<Crash>,
    /// `true` if the server is of the program of [`Supervised::prepare_upgrade`]. It ends before it
    /// changes anything if it cannot resume everything.
    pub is_upgrade: bool,
}

/// The end of a supervision.
#[derive(Debug)]
pub enum Supervision {
    /// The server ended in order, or before it served for the first time.
    Ended(ExitStatus),
    /// A signal ended the supervision while no server ran.
    Stopped,
    /// SIGTERM ended the supervision, and the server has left, with
    /// [`KeeperOptions::leaves_at_sigterm`].
    Left(LeftObjects),
    /// No server could serve for the time that the keeper holds objects.
    GaveUp(ExitStatus),
}

/// What the servers of a supervision leave.
#[derive(Debug, Default)]
pub struct LeftObjects {
    /// The objects, by name.
    pub objects: Vec<(String, OwnedFd)>,
    /// How the last server crashed or hung, if it did and no server has counted that yet.
    pub crash: Option<Crash>,
}

/// How a supervision begins.
#[derive(Debug)]
pub enum Begin {
    /// It starts the first server.
    First {
        /// The keeper's own objects, by name.
        own: Vec<(String, OwnedFd)>,
        /// What an earlier supervision left.
        left: LeftObjects,
    },
    /// It goes on with a server that serves, for an earlier program of this process.
    Continued(Continued),
}

/// The state that an earlier program of this process has left ([`Supervised::replace`]).
#[derive(Debug)]
pub struct Continued(KeeperState);

impl Continued {
    /// Reads the file of [`Supervised::replace`], and checks that every descriptor in it is open.
    ///
    /// # Errors
    /// If the file is of an unknown format, or a descriptor is not open.
    pub fn read(file: BorrowedFd<'_>) -> io::Result<Continued> {
        Ok(Continued(KeeperState::read(file)?))
    }

    /// Returns a copy of an object that the keeper holds.
    ///
    /// # Errors
    /// If it holds none under this name.
    pub fn object(&self, name: &str) -> io::Result<OwnedFd> {
        self.0.object(name)
    }
}

/// Starts a server, or goes on with one, and serves its requests. The keeper starts another server after
/// each that ends without announcing its end, and gives it everything that it holds, unless
/// `options.hold` is zero.
///
/// `signals`: a descriptor that is readable when [`Supervised::take_signal`] has a signal.
///
/// # Errors
/// Fails if the kernel fails, or with an error of `supervised`.
pub fn supervise(
    options: &KeeperOptions,
    begin: Begin,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<Supervision> {
    let (keeper, listener, first, number) = match begin {
        Begin::First { own, left } => {
            let (ours, theirs) = keeper_connection()?;
            let listener = Listener::bind(&options.path, options.owner)?;
            let mut keeper = Keeper::new(ours, options)?;
            let LeftObjects { objects, crash } = left;
            let of_servers = objects.into_iter().filter(|(name, _)| !name.starts_with(OWN));
            let mut count = 0;
            for (name, object) in of_servers {
                keeper.held.put(name, object);
                count += 1;
            }
            for (name, object) in own {
                keeper.held.put(name, object);
            }
            (keeper, listener, First::Connection(theirs, crash), u32::from(count > 0))
        }
        Begin::Continued(Continued(left)) => {
            let listener = Listener::from_state(KeeperState::take(left.listener)?, &options.path);
            let server = KeeperState::take(left.server)?;
            let server = ServerProcess::from_state(left.server_pid, server)?;
            let mut keeper = Keeper::from_state(&left, options)?;
            if let Err(error) = keeper.held.start_closers() {
                // The keeper closes the objects itself, then.
                tracing::error!(interface = options.interface, "no thread for closing: {error}");
            }
            if let Some(asking) = keeper.upgrade_request.take() {
                asking.answer(Ok(None));
            }
            (keeper, listener, First::Server(server), left.servers_started)
        }
    };
    let supervisor = Supervisor {
        options,
        listener,
        keeper,
        signals,
        supervised,
        handover: Handover::None,
        program: String::new(),
        hung: None,
        is_late: false,
        is_leaving: false,
        number,
        serve_by: None,
    };
    supervisor.run(first)
}

/// The first server of a supervision.
enum First {
    /// It is to start, with this end of the keeper's connection, after a crash, if there was one.
    Connection(OwnedFd, Option<Crash>),
    /// It serves.
    Server(ServerProcess),
}

/// How far the server is with leaving, and the next one with starting.
enum Handover {
    None,
    /// The server leaves, for an upgrade or at the end of the supervision, by this time.
    Leaving(Instant),
    /// The next server, of the installed program, is to serve by this time.
    Starting(Instant),
}

/// A keeper and its servers.
struct Supervisor<'a> {
    options: &'a KeeperOptions,
    listener: Listener,
    keeper: Keeper,
    signals: BorrowedFd<'a>,
    supervised: &'a mut dyn Supervised,
    handover: Handover,
    /// The name of the program of an upgrade.
    program: String,
    /// The engine of the last server that hung.
    hung: Option<usize>,
    /// `true` if the last server took too long to end or to start, and was killed.
    is_late: bool,
    /// `true` once the last server is to leave everything, because the supervision ends.
    is_leaving: bool,
    /// How many servers were started.
    number: u32,
    /// The time by which a server must serve, if an earlier one has served.
    serve_by: Option<Instant>,
}

impl Supervisor<'_> {
    /// Serves one server after the other.
    fn run(mut self, first: First) -> io::Result<Supervision> {
        // With objects of earlier servers, a first start that fails does not end the supervision.
        let mut ends = if self.number > 0 { Ends::from_now() } else { Ends::default() };
        let mut crash = match &first {
            First::Connection(_, crash) => *crash,
            First::Server(_) => None,
        };
        let mut first = Some(first);
        loop {
            self.serve_by = ends.serve_by(self.options.hold);
            let begun = Instant::now();
            let started = match first.take() {
                Some(First::Server(process)) => Ok(process),
                Some(First::Connection(theirs, _)) => self.start(Some(theirs), crash),
                None => self.start(None, crash),
            };
            let process = match started {
                Err(error)
                    if ends.held_until(self.options.hold).is_some_and(|last| last > begun) =>
                {
                    if self.after_failed_start(&error)? {
                        return Ok(self.stopped(crash));
                    }
                    continue;
                }
                started => started?,
            };
            let status = self.serve(&process)?;
            if self.has_counted_crash() {
                crash = self.crash_of(status);
            }
            let is_ready = self.keeper.is_ready;
            if self.is_leaving {
                return Ok(self.left(crash));
            }
            if self.keeper.is_told_to_end || !is_ready && !ends.has_served() {
                return Ok(Supervision::Ended(status));
            }
            if self.continue_upgrade(status) {
                ends = Ends::from_now();
                continue;
            }
            let next = ends.add(is_ready, crash.is_some(), begun, self.options.hold);
            next.log(self.options, &self.describe(status));
            let pause = match next {
                Next::None => return Ok(Supervision::GaveUp(status)),
                Next::AtOnce => continue,
                Next::AfterCrashes { pause, .. } | Next::AfterFailedStarts { pause, .. } => pause,
            };
            if self.pause_until(Instant::now() + pause)? {
                return Ok(self.stopped(crash));
            }
        }
    }

    /// Returns the end of the supervision by a signal while no server runs.
    fn stopped(&mut self, crash: Option<Crash>) -> Supervision {
        if self.is_leaving { self.left(crash) } else { Supervision::Stopped }
    }

    /// Returns the end of the supervision with what the servers left.
    fn left(&mut self, crash: Option<Crash>) -> Supervision {
        Supervision::Left(LeftObjects { objects: self.keeper.held.drain(), crash })
    }

    /// Starts a server over the keeper's first connection, or over a new one, and gives it
    /// everything that the keeper holds.
    fn start(
        &mut self,
        connection: Option<OwnedFd>,
        crash: Option<Crash>,
    ) -> io::Result<ServerProcess> {
        let theirs = match connection {
            Some(theirs) => theirs,
            None => {
                let (ours, theirs) = keeper_connection()?;
                self.keeper.connect(ours)?;
                theirs
            }
        };
        let is_upgrade = matches!(self.handover, Handover::Starting(_));
        let start = Start { number: self.number, crash, is_upgrade };
        let process = ServerProcess::new(self.supervised.launch(theirs, start)?)?;
        self.number += 1;
        if let Err(error) = self.keeper.give_held() {
            process.signal(Signal::KILL);
            process.wait()?;
            return Err(error);
        }
        Ok(process)
    }

    /// Logs that a server's process did not start, undoes an upgrade, or else pauses. Returns `true` if
    /// a signal ends the supervision.
    fn after_failed_start(&mut self, error: &io::Error) -> io::Result<bool> {
        let why =
            format!("{0} does not start: {error}; check the program: {0} --version", self.program);
        if self.undo_upgrade(&why) {
            return Ok(false);
        }
        tracing::error!(
            interface = self.options.interface,
            "a server does not start: {error}; another attempt follows"
        );
        self.pause_until(Instant::now() + LONGEST_PAUSE)
    }

    /// Serves one server until its process has ended.
    fn serve(&mut self, process: &ServerProcess) -> io::Result<ExitStatus> {
        let mut watch = HangWatch::new(process.pid());
        let mut is_connected = true;
        self.hung = None;
        self.is_late = false;
        // The first signal that asked for the end.
        let mut asked_at: Option<Instant> = None;
        let (mut was_ready, mut is_ready) = (self.keeper.was_ready(), false);
        loop {
            let others = [process.as_fd(), self.signals];
            let until = self.deadline().into_iter().chain(watch.next(&self.keeper)).min();
            let others = if is_connected {
                let heard = self.keeper.serve_once(&self.listener, &others, until)?;
                is_connected = heard.is_connected;
                heard.others
            } else {
                // The server closed its connection, or is about to be gone.
                self.wait(&others, until)?
            };
            if self.keeper.is_ready && !was_ready {
                was_ready = true;
                self.supervised.ready()?;
                self.keeper.held.start_closers()?;
            }
            if self.keeper.is_ready && !self.is_late && !std::mem::replace(&mut is_ready, true) {
                self.finish_upgrade(process);
            }
            if others & SIGNALLED != 0 {
                self.pass_signals_on(process, &mut asked_at);
            }
            if others & ENDED != 0 {
                // The server may have sent more before it ended.
                self.keeper.finish()?;
                return process.wait();
            }
            if self.hung.is_none()
                && let Some(engine) = watch.find(&self.keeper)
            {
                self.hung = Some(engine);
                process.signal(Signal::KILL);
            }
            if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                tracing::error!(
                    interface = self.options.interface,
                    "the server takes too long to end or to start, and is killed"
                );
                self.is_late = true;
                process.signal(Signal::KILL);
                // Its end is next.
                self.wait(&[process.as_fd()], None)?;
            } else {
                self.begin_upgrade(process);
            }
        }
    }

    /// Passes the signals that have arrived on to a server. `asked_at`: the first one that asked for the
    /// end.
    fn pass_signals_on(&mut self, process: &ServerProcess, asked_at: &mut Option<Instant>) {
        while let Some(signal) = self.supervised.take_signal() {
            let mut sent = Signal::from_named_raw(signal);
            if signal != libc::SIGHUP {
                self.keeper.is_told_to_end = true;
                if self.options.leaves_at_sigterm && signal == libc::SIGTERM {
                    self.is_leaving = true;
                    // A server that leaves already needs no second request.
                    sent = match self.handover {
                        Handover::Leaving(_) => None,
                        _ => Some(LEAVE),
                    };
                    self.handover = Handover::Leaving(Instant::now() + UPGRADE_TIMEOUT);
                }
                if asked_at.is_some_and(|first| first.elapsed() > TOGETHER) {
                    // The server takes too long.
                    sent = Some(Signal::KILL);
                }
                asked_at.get_or_insert_with(Instant::now);
            }
            if let Some(signal) = sent {
                process.signal(signal);
            }
        }
    }

    /// Waits for descriptors, and answers processes at the keeper's socket. Returns a bit for each
    /// of `others` that is readable.
    fn wait(&mut self, others: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<u32> {
        let mut heard = vec![PollFd::new(&self.listener.socket, PollFlags::IN)];
        heard.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        match poll(&mut heard, timeout(until).as_ref()) {
            Err(Errno::INTR) => return Ok(0),
            other => other?,
        };
        let is_asked = !heard[0].revents().is_empty();
        let readable = heard[1..].iter().rev().map(|one| !one.revents().is_empty());
        let readable = readable.fold(0, |bits, one| bits << 1 | u32::from(one));
        if is_asked {
            self.keeper.admit(&self.listener);
        }
        Ok(readable)
    }

    /// Pauses. Returns `true` if a signal ends the pause and the supervision.
    fn pause_until(&mut self, until: Instant) -> io::Result<bool> {
        while Instant::now() < until {
            if self.wait(&[self.signals], Some(until))? & 1 != 0
                && let Some(signal) = self.supervised.take_signal()
                && signal != libc::SIGHUP
            {
                self.is_leaving = self.options.leaves_at_sigterm && signal == libc::SIGTERM;
                return Ok(true);
            }
            self.refuse_upgrade("no server serves now; wait until one does");
        }
        Ok(false)
    }

    /// Returns the time by which the server must have ended, or must serve.
    fn deadline(&self) -> Option<Instant> {
        match self.handover {
            Handover::Leaving(deadline) => Some(deadline),
            Handover::Starting(deadline) if !self.keeper.is_ready => Some(deadline),
            _ if !self.keeper.is_ready => self.serve_by,
            _ => None,
        }
    }

    /// Returns how a server ended, in words, with the places of its threads.
    fn describe(&self, status: ExitStatus) -> String {
        let places = self.keeper.positions.as_ref().map(Positions::describe).unwrap_or_default();
        let places = if places.is_empty() { places } else { format!(" ({places})") };
        format!("{}{places}", self.describe_end(status))
    }

    /// Returns how a server ended, in words.
    fn describe_end(&self, status: ExitStatus) -> String {
        match self.hung {
            Some(engine) => format!("engine {engine} hung, and the server was killed"),
            None if self.is_late => "the server took too long, and was killed".to_owned(),
            None => describe(status),
        }
    }

    /// Returns `true` if the server that has ended came to the point at which it counts the crash of
    /// the one before, and stores a position page of its own.
    fn has_counted_crash(&self) -> bool {
        self.keeper.positions.is_some()
    }

    /// Returns how the server that has ended crashed, if it did. A program that an upgrade tries is
    /// no fault of a session.
    fn crash_of(&self, status: ExitStatus) -> Option<Crash> {
        if matches!(self.handover, Handover::Starting(_)) {
            return None;
        }
        let anywhere = is_defect(status).then_some(Crash::InUnknownThread);
        self.hung.map(Crash::Hang).or(anywhere)
    }
}

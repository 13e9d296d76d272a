//! A keeper that starts servers, one after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::ends::{Ends, LONGEST_PAUSE, Next, describe, is_defect};
use super::hang_watch::HangWatch;
use super::listener::Listener;
use super::options::{KeeperOptions, UPGRADE_TIMEOUT, keeper_connection};
use super::process::{Keeper, timeout};
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

    /// Finds the program that is installed now, for the next server.
    ///
    /// # Errors
    /// If there is none, with the reason and the remedy.
    fn prepare_upgrade(&mut self) -> io::Result<()>;

    /// Ends an upgrade. If a server of the program of [`Supervised::prepare_upgrade`] serves, all
    /// further servers start from that program, and else from the previous one.
    fn end_upgrade(&mut self, serves: bool);

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
    /// No server could serve for the time that the keeper holds objects.
    GaveUp(ExitStatus),
}

/// Starts a server and serves its requests. A server that ends without saying so is followed by
/// another one, which gets everything that the keeper holds, unless `options.hold` is zero. `own`: the
/// keeper's own objects, by name.
/// `signals`: a descriptor that is readable when [`Supervised::take_signal`] has a signal.
///
/// # Errors
/// Fails if the kernel fails, or with an error of `supervised`.
pub fn supervise(
    options: &KeeperOptions,
    own: Vec<(String, OwnedFd)>,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<Supervision> {
    let (ours, theirs) = keeper_connection()?;
    let (listener, mut keeper) = Keeper::new(ours, options)?;
    for (name, object) in own {
        keeper.held.put(name, object);
    }
    let mut supervisor = Supervisor {
        options,
        listener,
        keeper,
        signals,
        supervised,
        handover: Handover::None,
        hung: None,
        is_late: false,
        number: 0,
        serve_by: None,
    };
    let mut next = Some(theirs);
    let (mut ends, mut crash) = (Ends::default(), None);
    loop {
        supervisor.serve_by = ends.serve_by(options.hold);
        let started = Instant::now();
        let mut child = match supervisor.start(next.take(), crash) {
            Err(error) if ends.held_until(options.hold).is_some_and(|last| last > started) => {
                if supervisor.after_failed_start(&error)? {
                    return Ok(Supervision::Stopped);
                }
                continue;
            }
            started => started?,
        };
        let status = supervisor.serve(&mut child)?;
        if supervisor.has_counted_crash() {
            crash = supervisor.crash_of(status);
        }
        let is_ready = supervisor.keeper.is_ready;
        if supervisor.keeper.is_told_to_end || !is_ready && !ends.has_served() {
            return Ok(Supervision::Ended(status));
        }
        if supervisor.continue_upgrade(status) {
            ends = Ends::from_now();
            continue;
        }
        let next = ends.add(is_ready, crash.is_some(), started, options.hold);
        next.log(options, &supervisor.describe(status));
        let pause = match next {
            Next::None => return Ok(Supervision::GaveUp(status)),
            Next::AtOnce => continue,
            Next::AfterCrashes { pause, .. } | Next::AfterFailedStarts { pause, .. } => pause,
        };
        if supervisor.pause_until(Instant::now() + pause)? {
            return Ok(Supervision::Stopped);
        }
    }
}

/// The progress of an upgrade.
enum Handover {
    None,
    /// The server ends, and leaves everything to the next one, at the latest at this time.
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
    /// The engine of the last server that hung.
    hung: Option<usize>,
    /// `true` if the last server took too long to end or to start, and was killed.
    is_late: bool,
    /// How many servers were started.
    number: u32,
    /// The time by which a server must serve, if an earlier one has served.
    serve_by: Option<Instant>,
}

impl Supervisor<'_> {
    /// Starts a server over the keeper's first connection, or over a new one, and gives it
    /// everything that the keeper holds.
    fn start(&mut self, connection: Option<OwnedFd>, crash: Option<Crash>) -> io::Result<Child> {
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
        let mut child = self.supervised.launch(theirs, start)?;
        self.number += 1;
        if let Err(error) = self.keeper.give_held() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(child)
    }

    /// Logs that a server's process did not start, undoes an upgrade, or else pauses. Returns `true` if
    /// a signal ends the supervision.
    fn after_failed_start(&mut self, error: &io::Error) -> io::Result<bool> {
        tracing::error!(
            interface = self.options.interface,
            "a server does not start: {error}; another attempt follows"
        );
        if self.undo_upgrade(&format!("the new program does not start: {error}")) {
            return Ok(false);
        }
        self.pause_until(Instant::now() + LONGEST_PAUSE)
    }

    /// Serves one server until its process has ended.
    fn serve(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let mut watch = HangWatch::new(child.id());
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
                self.finish_upgrade();
            }
            while others & SIGNALLED != 0
                && let Some(signal) = self.supervised.take_signal()
            {
                let mut sent = Signal::from_named_raw(signal);
                if signal != libc::SIGHUP {
                    self.keeper.is_told_to_end = true;
                    if asked_at.is_some_and(|first| first.elapsed() > TOGETHER) {
                        // The server takes too long.
                        sent = Some(Signal::KILL);
                    }
                    asked_at.get_or_insert_with(Instant::now);
                }
                // This fails if the server has ended; the next check sees that.
                let _ = sent.map(|signal| pidfd_send_signal(&process, signal));
            }
            if others & ENDED != 0 {
                // The server may have sent more before it ended.
                self.keeper.finish()?;
                return child.wait();
            }
            if self.hung.is_none()
                && let Some(engine) = watch.find(&self.keeper)
            {
                self.hung = Some(engine);
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
            if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                tracing::error!(
                    interface = self.options.interface,
                    "the server takes too long to end or to start, and is killed"
                );
                self.is_late = true;
                let _ = pidfd_send_signal(&process, Signal::KILL);
                // Its end is next.
                self.wait(&[process.as_fd()], None)?;
            } else {
                self.begin_upgrade(&process);
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
                && self.supervised.take_signal().is_some_and(|signal| signal != libc::SIGHUP)
            {
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

    /// Tells the administrator that asked, if one did, why there is no upgrade.
    fn refuse_upgrade(&mut self, why: &str) {
        if let Some(asking) = self.keeper.upgrade_request.take() {
            tracing::error!(interface = self.options.interface, "no upgrade: {why}");
            asking.answer(Err(why));
        }
    }

    /// Has the server leave for its successor, if an administrator has asked for an upgrade.
    fn begin_upgrade(&mut self, process: &OwnedFd) {
        if self.keeper.upgrade_request.is_none()
            || self.keeper.is_told_to_end
            || !matches!(self.handover, Handover::None)
        {
            return;
        }
        if !self.keeper.is_ready {
            return self.refuse_upgrade("the server does not serve yet; wait until it does");
        }
        if let Err(error) = self.supervised.prepare_upgrade() {
            return self.refuse_upgrade(&error.to_string());
        }
        tracing::info!(interface = self.options.interface, "upgrade: the server hands over");
        let _ = pidfd_send_signal(process, LEAVE);
        self.handover = Handover::Leaving(Instant::now() + UPGRADE_TIMEOUT);
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

    /// Takes note that a server has ended. Returns `true` if the next server starts at once, because
    /// of an upgrade.
    fn continue_upgrade(&mut self, status: ExitStatus) -> bool {
        match self.handover {
            Handover::None => false,
            // Killed or not, it has ended.
            Handover::Leaving(_) => {
                self.handover = Handover::Starting(Instant::now() + UPGRADE_TIMEOUT);
                true
            }
            Handover::Starting(_) => self.undo_upgrade(&format!(
                "the new program did not serve: {}; see the log",
                self.describe_end(status)
            )),
        }
    }

    /// Goes back to the previous program, if an upgrade is under way. Returns `true` if one was.
    fn undo_upgrade(&mut self, why: &str) -> bool {
        if matches!(self.handover, Handover::None) {
            return false;
        }
        self.handover = Handover::None;
        self.supervised.end_upgrade(false);
        self.refuse_upgrade(&format!("{why}; the keeper starts a server of the previous program"));
        true
    }

    /// Ends an upgrade whose server serves.
    fn finish_upgrade(&mut self) {
        if !matches!(self.handover, Handover::Starting(_)) {
            return;
        }
        self.handover = Handover::None;
        self.supervised.end_upgrade(true);
        tracing::info!(interface = self.options.interface, "upgrade: the new server serves");
        if let Some(asking) = self.keeper.upgrade_request.take() {
            asking.answer(Ok(()));
        }
    }
}

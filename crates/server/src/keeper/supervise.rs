//! A keeper that starts servers, one after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::options::{KeeperOptions, OWN, keeper_connection};
use super::process::Keeper;
use super::take_over::{BUSY, Listener};

/// The pause before another start, after a server that ended before it served. It doubles with each
/// such end, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Signals within this time are one: `timeout` (coreutils) signals its program and then the program's
/// group.
const TOGETHER: Duration = Duration::from_millis(100);

/// The bits of the descriptors that a keeper waits for beside a server's messages.
const ENDED: u32 = 1;
const SIGNALLED: u32 = 2;

/// The caller's part of [`supervise`]: starts server processes, and gives up privileges.
pub trait Supervised {
    /// Starts a server, to which the keeper is at the other end of `connection`
    /// ([`KeeperAccess::new`](super::KeeperAccess::new)). `number`: how many were started before.
    ///
    /// # Errors
    /// If the process does not start.
    fn launch(&mut self, connection: OwnedFd, number: u32) -> io::Result<Child>;

    /// Gives up all privileges but a keeper's. [`supervise`] calls it once, when the first server
    /// serves.
    /// `makes_xdp_sockets`: the keeper makes AF_XDP sockets for servers.
    ///
    /// # Errors
    /// If the process cannot give up its privileges. This ends the keeper.
    fn ready(&mut self, makes_xdp_sockets: bool) -> io::Result<()>;

    /// Takes the number of a signal for the server that has arrived; `None` if there is none.
    fn take_signal(&mut self) -> Option<i32>;
}

/// The end of a supervision.
#[derive(Debug)]
pub enum Supervision {
    /// The server ended in order, or before it served for the first time.
    Ended(ExitStatus),
    /// The server was killed, and [`KeeperOptions::restarts`] is off; or it did not serve, and there
    /// was something of an earlier one. With everything that the keeper held, by name.
    Killed(ExitStatus, Vec<(String, OwnedFd)>),
    /// A signal ended the supervision while no server ran.
    Stopped,
    /// No server could serve for the time that the keeper holds objects.
    GaveUp(ExitStatus),
}

/// Starts a server and serves its requests. A server that ends without saying so is followed by
/// another one, which gets everything that the keeper holds, with `options.restarts` and unless
/// `options.hold` is zero. `left`: what an earlier keeper held.
/// `signals`: a descriptor that is readable when [`Supervised::take_signal`] has a signal.
///
/// # Errors
/// Fails if the kernel fails, or with an error of `supervised`.
pub fn supervise(
    options: &KeeperOptions,
    left: Vec<(String, OwnedFd)>,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<Supervision> {
    let (ours, theirs) = keeper_connection()?;
    let (listener, mut keeper) = Keeper::new(ours, options)?;
    let took_over = left.iter().any(|(name, _)| !name.starts_with(OWN));
    for (name, object) in left {
        keeper.held.put(name, object);
    }
    let mut next = Some(theirs);
    let (mut number, mut failed_starts) = (0, 0u32);
    let mut served_at: Option<Instant> = None;
    loop {
        let mut child = match start(&mut keeper, next.take(), number, supervised) {
            Err(error) if served_at.is_some_and(|last| last + options.hold > Instant::now()) => {
                tracing::error!("a server does not start: {error}; another attempt follows");
                if pause_until(&listener, Instant::now() + LONGEST_PAUSE, signals, supervised)? {
                    return Ok(Supervision::Stopped);
                }
                continue;
            }
            started => started?,
        };
        number += 1;
        let status = serve(&mut keeper, &listener, &mut child, signals, supervised)?;
        let never_served = served_at.is_none() && !keeper.is_ready;
        if keeper.is_told_to_end || never_served && !took_over {
            return Ok(Supervision::Ended(status));
        }
        if !options.restarts || never_served {
            tracing::error!(interface = options.interface, "{}", describe(status));
            drop(listener);
            return Ok(Supervision::Killed(status, keeper.held.into_all()));
        }
        let now = Instant::now();
        failed_starts = if keeper.is_ready { 0 } else { failed_starts + 1 };
        let last = if keeper.is_ready { now } else { served_at.unwrap_or(now) };
        served_at = Some(last);
        let gives_up = options.hold.is_zero() || last + options.hold <= now;
        let next = if gives_up { Next::None } else { Next::after(failed_starts) };
        next.log(options, status, failed_starts);
        let pause = match next {
            Next::None => return Ok(Supervision::GaveUp(status)),
            Next::AtOnce => continue,
            Next::After(pause) => pause,
        };
        if pause_until(&listener, now + pause, signals, supervised)? {
            return Ok(Supervision::Stopped);
        }
    }
}

/// When the next server starts.
enum Next {
    AtOnce,
    After(Duration),
    None,
}

impl Next {
    /// Returns the time of the next start, after so many that failed one after the other.
    fn after(failed_starts: u32) -> Next {
        let Some(doublings) = failed_starts.checked_sub(1) else { return Next::AtOnce };
        let pause = FIRST_PAUSE * 2u32.saturating_pow(doublings).min(1 << 10);
        Next::After(pause.min(LONGEST_PAUSE))
    }

    /// Tells the operator what follows the end of a server.
    fn log(&self, options: &KeeperOptions, status: ExitStatus, failed_starts: u32) {
        let (interface, end) = (&options.interface, describe(status));
        match self {
            Next::AtOnce => {
                tracing::warn!(interface, "{end}: another server starts, and resumes the sessions");
            }
            Next::After(pause) => tracing::error!(
                interface,
                "{end} before it served (attempt {failed_starts}): another start in {} ms",
                pause.as_millis()
            ),
            Next::None => {
                let why = match options.hold.as_secs() {
                    0 => "with --hold 0, no other server follows it".to_owned(),
                    hold => format!("no server has served for {hold} s"),
                };
                tracing::error!(
                    interface,
                    "{end}: {why}, and the keeper ends; remove the cause that the lines before \
                     give, and start towpath serve again"
                );
            }
        }
    }
}

/// Starts a server over the keeper's first connection, or over a new one, and gives it everything
/// that the keeper holds.
fn start(
    keeper: &mut Keeper,
    connection: Option<OwnedFd>,
    number: u32,
    supervised: &mut dyn Supervised,
) -> io::Result<Child> {
    let theirs = match connection {
        Some(theirs) => theirs,
        None => {
            let (ours, theirs) = keeper_connection()?;
            keeper.connect(ours)?;
            theirs
        }
    };
    let mut child = supervised.launch(theirs, number)?;
    if let Err(error) = keeper.give_held() {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// Returns how a server ended, in words.
fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the server was killed by signal {signal}"),
        (None, code) => format!("the server ended with exit code {}", code.unwrap_or(-1)),
    }
}

/// Serves one server until its process has ended.
fn serve(
    keeper: &mut Keeper,
    listener: &Listener,
    child: &mut Child,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<ExitStatus> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut is_connected = true;
    // The first signal that asked for the end.
    let mut asked_at: Option<Instant> = None;
    let mut was_ready = keeper.was_ready();
    loop {
        let others = [process.as_fd(), signals];
        let others = if is_connected {
            let heard = keeper.serve_once(listener, &others)?;
            is_connected = heard.is_connected;
            heard.others
        } else {
            // The server closed its connection, or is about to be gone.
            wait(listener, &others, None)?
        };
        if keeper.is_ready && !was_ready {
            was_ready = true;
            supervised.ready(keeper.xdp_sockets.is_some())?;
            keeper.held.start_closer()?;
        }
        if others & SIGNALLED != 0 {
            while let Some(signal) = supervised.take_signal() {
                let mut sent = Signal::from_named_raw(signal);
                if signal != libc::SIGHUP {
                    keeper.is_told_to_end = true;
                    if asked_at.is_some_and(|first| first.elapsed() > TOGETHER) {
                        // The server takes too long.
                        sent = Some(Signal::KILL);
                    }
                    asked_at.get_or_insert_with(Instant::now);
                }
                // This fails if the server has ended; the next check sees that.
                let _ = sent.map(|signal| pidfd_send_signal(&process, signal));
            }
        }
        if others & ENDED != 0 {
            // The server may have sent more before it ended.
            keeper.finish()?;
            return child.wait();
        }
    }
}

/// Waits for descriptors, and answers servers that want to take over. Returns a bit for each of
/// `others` that is readable.
fn wait(
    listener: &Listener,
    others: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<u32> {
    let mut heard = vec![PollFd::new(&listener.socket, PollFlags::IN)];
    heard.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut heard, timeout.as_ref()) {
        Err(Errno::INTR) => return Ok(0),
        other => other?,
    };
    if !heard[0].revents().is_empty() {
        listener.answer(BUSY);
    }
    let readable = heard[1..].iter().rev().map(|one| !one.revents().is_empty());
    Ok(readable.fold(0, |bits, one| bits << 1 | u32::from(one)))
}

/// Pauses. Returns `true` if a signal ends the pause and the supervision.
fn pause_until(
    listener: &Listener,
    until: Instant,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if wait(listener, &[signals], Some(left))? & 1 != 0
            && supervised.take_signal().is_some_and(|signal| signal != libc::SIGHUP)
        {
            return Ok(true);
        }
    }
}

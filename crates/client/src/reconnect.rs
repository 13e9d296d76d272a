//! The way to the next server: attempts to connect and to ask for a session, without waiting.

use std::io::{
    self,
    ErrorKind::{ConnectionRefused, NotFound},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{Attached, Message, Refusal, Resume};

use crate::clock;
use crate::entrance::{administration_socket, is_for_applications};

/// The pause after an attempt to connect while the server's queue of connections is full, or after a
/// server that ended before it answered.
const PAUSE: Duration = Duration::from_millis(5);

/// The means to resume a session: the server's path, the timeout, and the descriptors to wait on.
#[derive(Debug)]
pub(crate) struct Resumable {
    /// The server's socket for applications, or the administration socket that the session was given.
    path: PathBuf,
    /// How long the session waits for a server.
    timeout: Duration,
    /// Readable when the session has something to do: the doorbell, or an answer to `resume`, or
    /// the end of a pause.
    ready: OwnedFd,
    /// The end of a pause.
    timer: OwnedFd,
    attempt: Option<Attempt>,
}

/// An attempt under way.
#[derive(Debug)]
struct Attempt {
    /// `None`: the attempt never expires.
    deadline: Option<Instant>,
    /// The connection on which the client asked; `None` between two connections.
    channel: Option<Channel>,
    /// The earliest time of the next connection.
    next: Instant,
}

/// The result of a step.
pub(crate) enum Progress {
    Resumed(Box<Attached>, Vec<OwnedFd>, Channel),
    /// There is an answer to wait for, or a pause.
    Pending,
    /// The server that was asked has ended, too.
    Ended,
    /// No server resumes the session: the server refused, or none listens.
    NotResumed,
}

impl Resumable {
    /// Prepares a session whose server listens at `path`.
    pub(crate) fn new(
        path: &Path,
        timeout: Duration,
        doorbell: BorrowedFd<'_>,
    ) -> io::Result<Resumable> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // The process may change its directory. An address has no room for a longer path.
        let absolute = std::path::absolute(path)?;
        let path = if SocketAddrUnix::new(&absolute).is_ok() { &absolute } else { path }.to_owned();
        let resumable = Resumable { path, timeout, ready, timer, attempt: None };
        resumable.watch(doorbell)?;
        resumable.watch(resumable.timer.as_fd())?;
        Ok(resumable)
    }

    /// Returns a descriptor that is readable when the session has something to do.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Makes the descriptor of [`Resumable::ready`] readable when this one is.
    pub(crate) fn watch(&self, one: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.ready, one, data, epoll::EventFlags::IN)?)
    }

    /// Removes a descriptor that [`Resumable::watch`] added.
    pub(crate) fn forget(&self, one: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.ready, one);
    }

    /// Starts an attempt, unless one is under way. Returns `true` if it started.
    pub(crate) fn begin(&mut self) -> bool {
        let now = clock::now();
        let deadline = now.checked_add(self.timeout);
        let is_new = self.attempt.is_none();
        self.attempt.get_or_insert(Attempt { deadline, channel: None, next: now });
        is_new
    }

    /// Returns the time until which there is nothing to do without an answer; `None` if the time to
    /// wait is over.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let attempt = self.attempt.as_ref()?;
        let now = clock::now();
        if attempt.deadline.is_some_and(|deadline| deadline <= now) {
            return None;
        }
        let until = attempt.deadline.unwrap_or(now + Duration::from_secs(60));
        Some(if attempt.channel.is_some() { until } else { until.min(attempt.next) })
    }

    /// Connects, asks and receives, as far as possible without waiting.
    pub(crate) fn step(&mut self, question: Resume) -> Progress {
        let Some(attempt) = &mut self.attempt else { return Progress::NotResumed };
        if let Some(channel) = &attempt.channel {
            let mut polled = [PollFd::new(channel, PollFlags::IN)];
            if poll(&mut polled, Some(&Timespec::default())).unwrap_or(0) == 0 {
                return Progress::Pending;
            }
            let answer = channel.receive();
            let Some(channel) = attempt.channel.take() else { return Progress::Pending };
            let _ = epoll::delete(&self.ready, &channel);
            match answer {
                Ok(Incoming::Message(Message::Attached(granted), descriptors)) => {
                    return Progress::Resumed(Box::new(granted), descriptors, channel);
                }
                // While sessions are claimed, their applications may take all connections.
                Ok(Incoming::Message(Message::Error(body), _))
                    if body.refusal() == Refusal::Limit =>
                {
                    attempt.next = clock::now() + PAUSE;
                }
                Ok(Incoming::Message(..)) => return Progress::NotResumed,
                Ok(Incoming::End | Incoming::Nothing) | Err(_) => {
                    attempt.next = clock::now() + PAUSE;
                    return Progress::Ended;
                }
            }
        }
        if attempt.next <= clock::now() {
            match ask(&self.path, question) {
                Ok(channel) => {
                    let data = epoll::EventData::new_u64(0);
                    let _ = epoll::add(&self.ready, &channel, data, epoll::EventFlags::IN);
                    attempt.channel = Some(channel);
                }
                // The keeper of a killed server holds its socket. Without a socket there is no keeper.
                Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => {
                    return Progress::NotResumed;
                }
                Err(_) => attempt.next = clock::now() + PAUSE,
            }
        }
        Progress::Pending
    }

    /// Returns the connection whose answer an attempt waits for.
    pub(crate) fn asked(&self) -> Option<&Channel> {
        self.attempt.as_ref()?.channel.as_ref()
    }

    /// Ends an attempt.
    pub(crate) fn end(&mut self) {
        self.attempt = None;
        self.set_timer(None);
    }

    /// Sets the timer to a time.
    pub(crate) fn set_timer(&self, at: Option<Instant>) {
        let left = at.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(clock::now()).max(Duration::from_nanos(1))
        });
        let it_value = Timespec::try_from(left).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// Connects without waiting, as an administrator where that is possible, and asks for the session.
fn ask(path: &Path, question: Resume) -> io::Result<Channel> {
    if let Some(admin) = administration_socket(path) {
        match ask_at(&admin, question) {
            Err(error) if is_for_applications(&error) => {}
            other => return other,
        }
    }
    ask_at(path, question)
}

fn ask_at(path: &Path, question: Resume) -> io::Result<Channel> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    let channel = Channel::new(socket);
    channel.send(&Message::Resume(question), &[]).map_err(io::Error::other)?;
    Ok(channel)
}

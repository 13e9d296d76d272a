//! A worker as the control thread has it. Nothing here waits: what the worker has no room for stays in a
//! queue, and a worker that carries nothing out for some seconds counts as lost.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::wire::{self, Descriptors, Head, MAX_PACKET_BYTES, report};

/// A worker that has carried out nothing for so long, and has something to do, hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be sent.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Packet {
    /// A command that concerns a connection.
    pub(crate) fn new(kind: u32, token: u64, value: u64) -> Packet {
        let head = Head { kind, token, value, ..Head::default() };
        Packet { head, ..Packet::default() }
    }

    /// With descriptors.
    pub(crate) fn with(mut self, descriptors: Vec<OwnedFd>) -> Packet {
        self.descriptors = descriptors;
        self
    }

    /// With a control message.
    pub(crate) fn saying(mut self, body: Vec<u8>) -> Packet {
        self.body = body;
        self
    }
}

/// What a worker said.
#[derive(Debug)]
pub(crate) enum Report {
    /// A message of a connection, or what is wrong with it.
    Heard { token: u64, wrong: u64, body: Vec<u8> },
    /// A connection has ended.
    Ended { token: u64 },
    /// A session's memory is ready, with what keeps it in place; or the number of the error.
    MemoryReady { token: u64, outcome: Result<Vec<OwnedFd>, i32> },
    /// Commands were carried out.
    Handled,
    /// The worker's process has ended.
    Exited,
}

/// The control thread's end of a worker's channel.
#[derive(Debug)]
pub(crate) struct Link {
    channel: OwnedFd,
    queue: VecDeque<Packet>,
    /// Where descriptors are closed that were sent.
    closer: Sender<Vec<OwnedFd>>,
    /// Connections whose packets the kernel refused.
    failed: Vec<u64>,
    sent: u64,
    handled: u64,
    /// When the worker last carried something out, or got something to carry out.
    since: Instant,
}

impl Link {
    pub(crate) fn new(channel: OwnedFd, closer: Sender<Vec<OwnedFd>>) -> Link {
        let (queue, failed) = (VecDeque::new(), Vec::new());
        Link { channel, queue, closer, failed, sent: 0, handled: 0, since: Instant::now() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sent == self.handled
    }

    /// How much waits for room.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Until when the worker has to carry something out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.is_idle()).then(|| self.since + PATIENCE)
    }

    /// Sends a packet, at once or when there is room.
    pub(crate) fn push(&mut self, packet: Packet) {
        if self.is_idle() {
            self.since = Instant::now();
        }
        self.queue.push_back(packet);
        self.flush();
    }

    /// Sends what there is room for. Returns `true` if there was room for everything. A packet that the
    /// kernel refuses, since too many descriptors are under way (`ETOOMANYREFS`), fails its connection.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(packet) = self.queue.pop_front() {
            let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
            let flags = SendFlags::DONTWAIT;
            let fd = self.channel.as_fd();
            match wire::send(fd, packet.head, &packet.body, &descriptors, flags) {
                Ok(()) => self.sent += 1,
                // The end of the channel is told by its worker's.
                Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => {
                    self.queue.push_front(packet);
                    return false;
                }
                Err(_) => self.failed.push(packet.head.token),
            }
            // Even a close that is not the last takes as long as an application made it, by record
            // locks. Without the thread for it, it is done here.
            let _ = self.closer.send(packet.descriptors);
        }
        true
    }

    /// The connections whose packets the kernel refused.
    pub(crate) fn take_failed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.failed)
    }

    /// Returns `true` if the worker has said something that was not taken yet.
    pub(crate) fn has_report(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// What was never sent, with its descriptors.
    pub(crate) fn unsent(&mut self) -> VecDeque<Packet> {
        std::mem::take(&mut self.queue)
    }

    /// No more commands will come: the worker ends when it has carried out those that it has.
    pub(crate) fn say_no_more(&self) {
        let _ = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Write);
    }

    /// Takes one report; `None` where there is none.
    pub(crate) fn receive(&mut self, buffer: &mut [u8; MAX_PACKET_BYTES]) -> Option<Report> {
        let mut descriptors = Descriptors::default();
        let came =
            wire::receive(self.channel.as_fd(), buffer, &mut descriptors, RecvFlags::DONTWAIT);
        let (head, body) = match came {
            Ok(Some(came)) => came,
            Err(Errno::AGAIN) => return None,
            Ok(None) | Err(_) => return Some(Report::Exited),
        };
        if head.handled != self.handled {
            self.handled = head.handled;
            self.since = Instant::now();
        }
        let token = head.token;
        Some(match head.kind {
            report::MESSAGE => Report::Heard { token, wrong: head.value, body: body.to_vec() },
            report::ENDED => Report::Ended { token },
            report::MEMORY_READY => Report::MemoryReady {
                token,
                outcome: match head.value {
                    0 => Ok(descriptors.into_iter().flatten().collect()),
                    number => Err(number as i32),
                },
            },
            _ => Report::Handled,
        })
    }
}

/// What keeps memory in place is compared by whether it is there at all.
#[cfg(test)]
impl PartialEq for Report {
    fn eq(&self, other: &Report) -> bool {
        match (self, other) {
            (
                Report::MemoryReady { token, outcome },
                Report::MemoryReady { token: their_token, outcome: theirs },
            ) => token == their_token && outcome.as_ref().err() == theirs.as_ref().err(),
            _ => format!("{self:?}") == format!("{other:?}"),
        }
    }
}

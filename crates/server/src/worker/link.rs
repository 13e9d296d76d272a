//! A worker as the control thread has it. Nothing here waits: what the worker has no room for stays in a
//! queue, and a worker that carries nothing out for some seconds counts as lost.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

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
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A message of a connection, or what is wrong with it.
    Heard { token: u64, wrong: u64, body: Vec<u8> },
    /// A connection has ended.
    Ended { token: u64 },
    /// A session's memory is ready, or why not.
    MemoryReady { token: u64, outcome: Result<(), Errno> },
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
    sent: u64,
    handled: u64,
    /// When the worker last carried something out, or got something to carry out.
    since: Instant,
}

impl Link {
    pub(crate) fn new(channel: OwnedFd) -> Link {
        Link { channel, queue: VecDeque::new(), sent: 0, handled: 0, since: Instant::now() }
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

    /// Sends what there is room for. Returns `true` if there was room for everything. What the kernel
    /// refuses altogether is kept, and the end of the channel tells of it.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(packet) = self.queue.front() {
            let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
            let flags = SendFlags::DONTWAIT;
            let fd = self.channel.as_fd();
            if wire::send(fd, packet.head, &packet.body, &descriptors, flags).is_err() {
                return false;
            }
            self.sent += 1;
            self.queue.pop_front();
        }
        true
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
                    0 => Ok(()),
                    number => Err(Errno::from_raw_os_error(number as i32)),
                },
            },
            _ => Report::Handled,
        })
    }
}

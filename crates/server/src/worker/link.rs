//! The control thread's view of a worker. Nothing here waits. Commands for which the worker has no
//! room stay in a queue, and a worker that executes nothing for some seconds counts as lost.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::closer::ClosingQueue;
use super::wire::{self, Descriptors, Head, MAX_DESCRIPTORS, MAX_PACKET_BYTES, command, report};

/// The time after which a worker with pending commands that executes no command counts as hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A packet to send.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Packet {
    /// Creates a command that concerns a connection.
    pub(crate) fn new(kind: u32, token: u64, value: u64) -> Packet {
        let head = Head { kind, token, value, ..Head::default() };
        Packet { head, ..Packet::default() }
    }

    /// Adds descriptors.
    pub(crate) fn with(mut self, descriptors: Vec<OwnedFd>) -> Packet {
        self.descriptors = descriptors;
        self
    }

    /// Splits a command to close more descriptors than one packet carries. The first packet has the
    /// connection.
    pub(crate) fn split(mut self) -> Vec<Packet> {
        let mut packets = Vec::with_capacity(1);
        while self.head.kind == command::DISPOSE && self.descriptors.len() > MAX_DESCRIPTORS {
            let rest = self.descriptors.split_off(MAX_DESCRIPTORS);
            let rest = Packet::new(command::DISPOSE, 0, self.head.value).with(rest);
            packets.push(std::mem::replace(&mut self, rest));
        }
        packets.push(self);
        packets
    }

    /// Adds a control message.
    pub(crate) fn saying(mut self, body: Vec<u8>) -> Packet {
        self.body = body;
        self
    }
}

/// A report of a worker.
#[derive(Debug)]
pub(crate) enum Report {
    /// A message of a connection, or the kind of its error.
    Message { token: u64, wrong: u64, body: Vec<u8> },
    /// A connection has ended.
    Ended { token: u64 },
    /// A session's memory is ready, with the descriptors that keep it in place; or the number of
    /// the error. `is_unfreeable`: the worker has allocated a part of the application's memory.
    MemoryReady { token: u64, outcome: Result<Vec<OwnedFd>, i32>, is_unfreeable: bool },
    /// A memory file is allocated, with the descriptors that keep it in place; or the number of the
    /// error.
    Allocated { token: u64, outcome: Result<Vec<OwnedFd>, i32> },
    /// The worker executed commands.
    Handled,
    /// The worker's process has ended.
    Exited,
}

/// The control thread's end of a worker's channel.
#[derive(Debug)]
pub(crate) struct Link {
    channel: OwnedFd,
    queue: VecDeque<Packet>,
    /// The sent descriptors that the server has not closed yet.
    closing: ClosingQueue,
    /// Connections whose packets the kernel refused, and the kinds of these commands.
    failed: Vec<(u64, u32)>,
    sent: u64,
    handled: u64,
    /// The time at which the worker last executed a command, or got a command after an idle time.
    since: Instant,
}

impl Link {
    pub(crate) fn new(channel: OwnedFd, closing: ClosingQueue) -> Link {
        Link {
            channel,
            queue: VecDeque::new(),
            closing,
            failed: Vec::new(),
            sent: 0,
            handled: 0,
            since: Instant::now(),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns `true` if no command is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sent == self.handled
    }

    /// Returns the number of commands that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time by which the worker has to execute a command.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.is_idle()).then(|| self.since + PATIENCE)
    }

    /// Gives the worker this time again, in which neither it nor the server ran.
    pub(crate) fn excuse(&mut self, gap: Duration) {
        self.since = (self.since + gap).min(Instant::now());
    }

    /// Makes the worker late.
    #[cfg(test)]
    pub(crate) fn delay(&mut self) {
        self.since -= PATIENCE;
    }

    /// Sends a packet, at once or when there is room.
    pub(crate) fn push(&mut self, packet: Packet) {
        debug_assert!(packet.descriptors.len() <= MAX_DESCRIPTORS, "the kernel would refuse it");
        if self.is_idle() {
            self.since = Instant::now();
        }
        self.queue.push_back(packet);
        self.flush();
    }

    /// Sends the packets that there is room for. Returns `true` if there was room for all. The
    /// kernel refuses a packet if too many descriptors are in flight (`ETOOMANYREFS`); this fails
    /// the packet's connection.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(packet) = self.queue.pop_front() {
            let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
            let flags = SendFlags::DONTWAIT;
            let fd = self.channel.as_fd();
            match wire::send(fd, packet.head, &packet.body, &descriptors, flags) {
                Ok(()) => self.sent += 1,
                // [`Link::receive`] reports the end of the channel.
                Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => {
                    self.queue.push_front(packet);
                    return false;
                }
                Err(_) => self.failed.push((packet.head.token, packet.head.kind)),
            }
            // Even a close that is not the last may be prolonged by an application, through record
            // locks. If the worker closes its copies first, this close is the last.
            self.closing.close(packet.descriptors);
        }
        true
    }

    /// Returns the connections whose packets the kernel refused, and the kinds of these commands.
    pub(crate) fn take_failed(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.failed)
    }

    /// Returns `true` if the worker has sent a report that was not read yet.
    pub(crate) fn has_report(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Returns the packets that were never sent, with their descriptors.
    pub(crate) fn unsent(&mut self) -> VecDeque<Packet> {
        std::mem::take(&mut self.queue)
    }

    /// Announces that no more commands follow: the worker ends when it has executed the commands that it
    /// has.
    pub(crate) fn say_no_more(&self) {
        let _ = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Write);
    }

    /// Receives a report; `None` if no report has arrived.
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
            report::MESSAGE => Report::Message { token, wrong: head.value, body: body.to_vec() },
            report::ENDED => Report::Ended { token },
            report::MEMORY_READY | report::ALLOCATED => {
                let outcome = match head.value & !report::UNFREEABLE {
                    0 => Ok(descriptors.into_iter().flatten().collect()),
                    number => Err(number as i32),
                };
                let is_unfreeable = head.value & report::UNFREEABLE != 0;
                match head.kind {
                    report::ALLOCATED => Report::Allocated { token, outcome },
                    _ => Report::MemoryReady { token, outcome, is_unfreeable },
                }
            }
            _ => Report::Handled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_packet_has_more_descriptors_than_the_kernel_takes() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let descriptors = |count| (0..count).map(|_| reader.try_clone().unwrap().into()).collect();
        let dispose = |count| {
            Packet::new(command::DISPOSE, 7, command::WIPE).with(descriptors(count)).split()
        };
        let shape = |packets: Vec<Packet>| -> Vec<(u64, u64, usize)> {
            let one =
                |packet: &Packet| (packet.head.token, packet.head.value, packet.descriptors.len());
            packets.iter().map(one).collect()
        };
        let most = MAX_DESCRIPTORS;
        assert_eq!(shape(dispose(0)), [(7, command::WIPE, 0)]);
        assert_eq!(shape(dispose(most)), [(7, command::WIPE, most)]);
        let both = [(7, command::WIPE, most), (0, command::WIPE, 3)];
        assert_eq!(shape(dispose(most + 3)), both);
    }
}

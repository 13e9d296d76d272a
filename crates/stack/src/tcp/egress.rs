//! Transmission of connections, and their timers.

use std::net::IpAddr;

use smoltcp::iface::PollResult;
use smoltcp::socket::tcp::State;

use super::port::Egress;
use super::table::Tcp;
use crate::ethernet::HEADER_BYTES as ETHERNET_BYTES;
use crate::host::Host;
use crate::neighbour::Lookup;
use crate::outbox::NextHop;
use crate::{Instant, SocketError, TcpId, Transmit};

/// The maximum number of segments that a connection sends before the next connection's turn.
const SEGMENTS_PER_CONNECTION: usize = 16;
/// Headers of a segment with every option, Ethernet included.
const HEADERS: usize = ETHERNET_BYTES + 40 + 60;
/// The maximum number of timer moves per poll.
const TIMERS: usize = 512;
/// The time after which a connection that waits for its neighbour retries by itself.
const NEIGHBOUR_RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// If smoltcp wants to send at once and sends nothing, the stack polls it again after this time, in
/// microseconds.
const STALL: u64 = 10_000;

/// The reason why a connection's turn ended.
enum Progress {
    /// It has nothing more to send now.
    Done,
    /// It has more to send, but its turn is over.
    More,
    /// It waits for its neighbour's address.
    Neighbour,
    /// The link has no room.
    NoRoom,
}

/// The work of one poll.
struct Work<'a, T> {
    link: &'a mut T,
    /// The number of segments that connections may still send.
    segments_left: usize,
    /// `true` once a timer fired, or a segment was sent.
    done: bool,
}

impl Tcp {
    /// Fires timers, and sends at most `budget` segments. Returns whether it did any work, and
    /// whether the link ran out of room.
    pub(crate) fn poll<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        link: &mut T,
        budget: usize,
    ) -> (bool, bool) {
        let mut work = Work { link, segments_left: budget, done: false };
        let mut timers_left = TIMERS;
        self.time_wait.expire(now, TIMERS, &mut self.ports);
        while let Some(index) = self.wheel.fire(now, &mut timers_left) {
            host.counters.timers_fired += 1;
            work.done = true;
            self.expire(now, host, index);
            self.mark(index);
        }
        // Connections marked from now on have their turn at the next poll.
        for _ in 0..self.dirty.len() {
            if work.segments_left == 0 {
                break;
            }
            let Some(index) = self.dirty.pop_front() else { break };
            let Some(connection) = self.slots[index as usize].connection.as_mut() else { continue };
            if !connection.dirty {
                continue;
            }
            connection.dirty = false;
            if connection.detached {
                continue;
            }
            host.counters.tcp_visits += 1;
            match self.turn(now, host, index, &mut work) {
                Progress::Done | Progress::Neighbour => {}
                Progress::More => self.mark(index),
                Progress::NoRoom => {
                    if let Some(connection) = self.slots[index as usize].connection.as_mut() {
                        connection.dirty = true;
                        self.dirty.push_front(index);
                    }
                    return (work.done, true);
                }
            }
        }
        (work.done, false)
    }

    /// Handles a timer: signals a loss, or gives up a connection whose state has lasted too long.
    fn expire(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        let (acknowledged, sent_to) = (connection.acknowledged_to, connection.path.sent_to);
        if connection.recovery.expired(now, acknowledged, sent_to) {
            self.tell_loss(now, host, index);
        }
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        if connection.deadline(&host.config.tcp).is_none_or(|at| at > now) {
            return;
        }
        connection.give_up_at = None;
        connection.waiting_since = None;
        connection.keep_alive = None;
        if connection.state() == State::SynReceived {
            host.counters.tcp_half_open_timeout += 1;
        } else {
            host.counters.tcp_timeouts += 1;
        }
        self.fail(now, host, index, SocketError::TimedOut);
    }

    /// Lets one connection send, and applies the consequences.
    fn turn<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        work: &mut Work<'_, T>,
    ) -> Progress {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else {
            return Progress::Done;
        };
        let at = now.to_smoltcp();
        let before = connection.state();
        let remote = connection.tuple.remote.ip();
        let mut next = self.interface.poll_at(at, connection.sockets());
        let mut result = Progress::Done;
        if next.is_some_and(|next| next <= at) {
            let station = match self.station(now, host, index, remote) {
                Ok(station) => station,
                Err(progress) => return progress,
            };
            result = self.send_segments(now, host, work, index, station, &mut next);
        }
        let Some(connection) = self.slots[index as usize].connection.as_mut() else {
            return Progress::Done;
        };
        let changed = connection.state() != before;
        let settle = changed || matches!(before, State::TimeWait | State::Closed);
        self.rearm(now, host, index, next.map(Instant::from_smoltcp));
        if changed {
            self.tell(host, index);
        }
        if settle {
            self.settle(now, host, index);
        }
        result
    }

    /// Returns the MAC address to which a connection's segments go. If the stack does not have it,
    /// returns the reason why the connection's turn ends.
    fn station(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        remote: IpAddr,
    ) -> Result<[u8; 6], Progress> {
        match host.route(remote).map(|route| route.to) {
            Some(NextHop::Station(mac)) => Ok(mac),
            Some(NextHop::Neighbour(hop)) => {
                let (outbox, counters) = (&mut host.outbox, &mut host.counters);
                match host.neighbours.lookup(now, hop, outbox, counters) {
                    Lookup::Station(mac) => Ok(mac),
                    Lookup::Asked => {
                        let generation = self.slots[index as usize].generation;
                        host.neighbours.wait(hop, TcpId { index, generation });
                        // Retry, in case the stack forgets the neighbour meanwhile.
                        self.rearm(now, host, index, Some(now + NEIGHBOUR_RETRY));
                        Err(Progress::Neighbour)
                    }
                }
            }
            None => {
                host.counters.no_route += 1;
                self.strand(host, index);
                Err(Progress::Done)
            }
        }
    }

    /// Sends a connection's segments, within the limits of its turn. Returns the reason why the
    /// turn ended. Sets `next` to the time at which smoltcp wants to be polled next.
    fn send_segments<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        work: &mut Work<'_, T>,
        index: u32,
        station: [u8; 6],
        next: &mut Option<smoltcp::time::Instant>,
    ) -> Progress {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else {
            return Progress::Done;
        };
        let at = now.to_smoltcp();
        let path = connection.path;
        let most = self.capabilities.max_transmission_unit + ETHERNET_BYTES;
        for turn in 0.. {
            if turn == SEGMENTS_PER_CONNECTION || work.segments_left == 0 {
                return Progress::More;
            }
            let need = (connection.socket().send_queue() + HEADERS).min(most);
            if !work.link.room(need) {
                return Progress::NoRoom;
            }
            let mut port = Egress {
                link: work.link,
                path: &path,
                capabilities: &self.capabilities,
                stations: (station, host.config.mac),
                scratch: &mut self.scratch,
                counters: &mut host.counters,
                sent: None,
            };
            let interface = self.narrow.of(path.mss).unwrap_or(&mut self.interface);
            let polled = interface.poll_egress(at, &mut port, connection.sockets());
            let sent = port.sent;
            if let Some(sent) = sent {
                host.counters.tcp_sent += 1;
                if connection.note_sent(now, &sent) {
                    host.counters.tcp_retransmitted += 1;
                }
                work.done = true;
                work.segments_left -= 1;
            }
            *next = self.interface.poll_at(at, connection.sockets());
            if next.is_none_or(|next| next > at) {
                break;
            }
            if polled == PollResult::None {
                *next = Some(at + smoltcp::time::Duration::from_micros(STALL));
                break;
            }
        }
        Progress::Done
    }

    /// Sets the connection's timer to its earliest deadline.
    fn rearm(&mut self, now: Instant, host: &mut Host, index: u32, next: Option<Instant>) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        if connection.detached {
            return;
        }
        connection.note_time(now, &host.config.tcp);
        let deadline = connection.deadline(&host.config.tcp);
        let lost = connection.recovery.probe_at();
        self.wheel.set(index, [next, lost, deadline].into_iter().flatten().min());
    }

    /// Returns when to poll next; `now` if segments wait to be sent.
    pub(crate) fn poll_at(&self, now: Instant) -> Option<Instant> {
        if self.dirty.is_empty() { self.wheel.poll_at() } else { Some(now) }
    }

    /// Returns `true` if segments wait to be sent.
    pub(crate) fn wants_poll(&self) -> bool {
        !self.dirty.is_empty()
    }
}

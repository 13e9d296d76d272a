//! Transmission of connections, and their timers.

use std::net::IpAddr;

use towpath_packet::offload::{MAX_SENT_SEGMENTS, MIN_SEGMENT_BYTES};

use super::frame::{self, Shape};
use super::half_open::Due;
use super::passive::own_clock;
use super::plan::Capacity;
use super::segment;
use super::table::Tcp;
use crate::ethernet::HEADER_BYTES as ETHERNET_BYTES;
use crate::host::Host;
use crate::ip;
use crate::neighbour::Lookup;
use crate::outbox::NextHop;
use crate::{Instant, SocketError, TcpId, Transmit};

/// The maximum number of packets that a connection sends before the next connection is visited; a
/// large packet counts as one.
const PACKETS_PER_CONNECTION: usize = 16;
/// The maximum number of timer moves per poll.
const TIMERS: usize = 512;
/// The time after which a connection that waits for its neighbour retries by itself.
const NEIGHBOUR_RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// The reason why a visit ended.
enum Progress {
    /// It has nothing more to send now.
    Done,
    /// It has more to send, but the visit is over.
    More,
    /// It waits for its neighbour's address.
    Neighbour,
    /// The link has no room.
    NoRoom,
}

/// The work of one poll.
struct Work<'a, T> {
    link: &'a mut T,
    /// The number of packets that connections may still send.
    packets_left: usize,
    /// `true` once a timer fired, or a segment was sent.
    done: bool,
}

/// Returns what the link segments for connections of an address family.
fn capacity(host: &Host, local: IpAddr, under_pressure: bool) -> Capacity {
    let offload = &host.config.offload;
    let most = offload.max_frame_bytes.min(0xffff + ETHERNET_BYTES) - ETHERNET_BYTES;
    let large = if offload.tcp_segmentation { most - ip::header_len(local) } else { 0 };
    let (most_segments, least_segment) = (MAX_SENT_SEGMENTS, usize::from(MIN_SEGMENT_BYTES));
    Capacity { large, most_segments, least_segment, under_pressure }
}

impl Tcp {
    /// Fires timers, and sends at most `budget` packets. Returns whether it did any work, and
    /// whether the link ran out of room.
    pub(crate) fn poll<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        link: &mut T,
        budget: usize,
    ) -> (bool, bool) {
        let mut work = Work { link, packets_left: budget, done: false };
        self.fire_timers(now, host, &mut work.done);
        self.notify_memory_waiters(host);
        // Connections marked from now on are visited at the next poll.
        for _ in 0..self.dirty.len() {
            if work.packets_left == 0 {
                break;
            }
            let Some(index) = self.dirty.pop_front() else { break };
            let Some(connection) = self.at(index) else { continue };
            if !connection.dirty {
                continue;
            }
            connection.dirty = false;
            if connection.detached {
                continue;
            }
            host.counters.tcp_visits += 1;
            match self.visit(now, host, index, &mut work) {
                Progress::Done | Progress::Neighbour => {}
                Progress::More => self.mark(index),
                Progress::NoRoom => {
                    if let Some(connection) = self.at(index)
                        && !connection.dirty
                    {
                        connection.dirty = true;
                        self.dirty.push_front(index);
                    }
                    return (work.done, true);
                }
            }
        }
        (work.done, false)
    }

    /// Handles due timers of connections, half-open connections, TIME-WAIT entries and the pool.
    fn fire_timers(&mut self, now: Instant, host: &mut Host, done: &mut bool) {
        self.time_wait.expire(now, TIMERS, &mut self.ports);
        self.pool.tidy(now);
        for _ in 0..TIMERS {
            let Some(due) = self.half_open.next_due(now) else { break };
            *done = true;
            match due {
                Due::Repeat(tuple, entry) => {
                    host.counters.tcp_retransmitted += 1;
                    let clock = own_clock(now, host, &tuple);
                    self.answer_syn(now, host, &tuple, &entry.agreement, clock);
                }
                Due::Over(tuple, entry) => {
                    self.ports.remove(tuple.local);
                    host.counters.tcp_half_open_timeout += 1;
                    self.listeners.half_open_ended(host, entry.listener);
                }
            }
        }
        let mut timers_left = TIMERS;
        while let Some(index) = self.wheel.fire(now, &mut timers_left) {
            host.counters.timers_fired += 1;
            *done = true;
            self.expire(now, host, index);
            self.mark(index);
        }
    }

    /// Handles a connection's timer.
    fn expire(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some((connection, env)) = self.connection_and_env(now, host, index) else { return };
        if connection.gives_up_at(env.config).is_some_and(|at| at <= now) {
            connection.clear_deadlines();
            env.counters.tcp_timeouts += 1;
            return self.fail(now, host, index, SocketError::TimedOut);
        }
        connection.receiving.pass_time(now);
        connection.sending.pass_time(now);
        if connection.state.is_opening() {
            if connection.syn_timeout_at().is_some_and(|at| at <= now) {
                connection.sending.rtt.back_off();
                connection.syn_due = true;
            }
            return;
        }
        if connection.sending.expired(now, env.counters) {
            let remote = connection.tuple.remote.ip();
            connection.try_smaller(ip::header_len(remote) + segment::HEADER_BYTES);
        }
        if connection.probe_peer(now) {
            env.counters.tcp_timeouts += 1;
            self.fail(now, host, index, SocketError::TimedOut);
        }
    }

    /// Lets one connection send, and applies the consequences.
    fn visit<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        work: &mut Work<'_, T>,
    ) -> Progress {
        let Some(connection) = self.at(index) else { return Progress::Done };
        if connection.sizes.path < connection.sizes.local && !connection.tries_size() {
            // A path's MTU expires (RFC 1191, 6.3), or another connection lowered it. Data that is
            // lost by that is sent in this visit.
            let remote = connection.tuple.remote.ip();
            let headers = ip::header_len(remote) + segment::HEADER_BYTES;
            connection.set_path_mss(host.paths.mtu(now, remote) - headers);
        }
        let result = self.send_segments(now, host, work, index);
        if let Progress::Neighbour = result {
            return result;
        }
        let Some(connection) = self.at(index) else { return Progress::Done };
        let ends = connection.state.is_over();
        connection.update_deadlines(now, &host.config.tcp);
        if ends {
            self.settle(now, host, index);
        }
        let Some(connection) = self.at(index) else { return Progress::Done };
        let at = connection.wake_at(&host.config.tcp);
        self.wheel.set(index, at);
        result
    }

    /// Returns the MAC address to which a connection's segments go; `None` if they stay in this host. If the stack does
    /// not have the address, returns the reason why the visit ends.
    fn station(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        remote: IpAddr,
    ) -> Result<Option<[u8; 6]>, Progress> {
        match host.route(remote).map(|route| route.to) {
            Some(NextHop::Own) => Ok(None),
            Some(NextHop::Station(mac)) => Ok(Some(mac)),
            Some(NextHop::Neighbour(hop)) => {
                let (outbox, counters) = (&mut host.outbox, &mut host.counters);
                match host.neighbours.lookup(now, hop, outbox, counters) {
                    Lookup::Station(mac) => Ok(Some(mac)),
                    Lookup::Asked => {
                        let generation = self.slots[index as usize].generation;
                        host.neighbours.wait(hop, TcpId { index, generation });
                        // Retry, in case the stack forgets the neighbour meanwhile.
                        let Some(connection) = self.at(index) else { return Err(Progress::Done) };
                        connection.update_deadlines(now, &host.config.tcp);
                        let retry = now + NEIGHBOUR_RETRY;
                        let give_up = connection.gives_up_at(&host.config.tcp);
                        self.wheel.set(index, Some(give_up.map_or(retry, |at| at.min(retry))));
                        Err(Progress::Neighbour)
                    }
                }
            }
            None => {
                host.counters.no_route += 1;
                self.end(host, index, SocketError::Unreachable);
                Err(Progress::Done)
            }
        }
    }

    /// Sends a connection's segments, within the limits of a visit. Returns the reason why the
    /// visit ended.
    fn send_segments<T: Transmit>(
        &mut self,
        now: Instant,
        host: &mut Host,
        work: &mut Work<'_, T>,
        index: u32,
    ) -> Progress {
        let Some(connection) = self.at(index) else { return Progress::Done };
        let tuple = connection.tuple;
        let capacity = capacity(host, tuple.local.ip(), !self.pool.is_roomy());
        let mut to = None;
        for sent in 0.. {
            let Some(connection) = self.at(index) else { return Progress::Done };
            let Some(plan) = connection.plan(now, &capacity) else { break };
            if sent == PACKETS_PER_CONNECTION || work.packets_left == 0 {
                return Progress::More;
            }
            let station = match to {
                Some(station) => station,
                None => match self.station(now, host, index, tuple.remote.ip()) {
                    Ok(station) => *to.insert(station),
                    Err(progress) => return progress,
                },
            };
            let shape = Shape::of(&plan, tuple.local.ip(), &host.config.offload);
            match station {
                Some(_) if !work.link.room(shape.bytes) => return Progress::NoRoom,
                // The next poll receives the frames that wait.
                None if !host.own_frames.has_room(shape.bytes) => return Progress::More,
                _ => {}
            }
            let slot = &mut self.slots[index as usize];
            let Some(connection) = slot.connection.as_deref_mut() else { return Progress::Done };
            let mac = host.config.mac.octets();
            let (pool, stations) = (&self.pool, (station.unwrap_or(mac), mac));
            let write = |frame: &mut [u8]| {
                frame::write(frame, &shape, stations, connection, &plan, pool);
            };
            let taken = match station {
                Some(_) => work.link.transmit(shape.bytes, shape.meta, write),
                None => {
                    host.own_frames.push(shape.bytes, shape.meta, write);
                    true
                }
            };
            if !taken {
                host.counters.tcp_transmit_refused += 1;
                return Progress::NoRoom;
            }
            if station.is_some() {
                host.counters.tx_frames += 1;
                host.counters.tx_bytes += shape.bytes as u64;
            }
            connection.sent(now, &plan, &mut host.counters);
            work.done = true;
            work.packets_left -= 1;
        }
        Progress::Done
    }

    /// Returns when to poll next; `now` if segments wait to be sent.
    pub(crate) fn poll_at(&self, now: Instant) -> Option<Instant> {
        if self.wants_poll() {
            return Some(now);
        }
        let times = [self.wheel.poll_at(), self.half_open.poll_at(), self.pool.tidy_at()];
        times.into_iter().flatten().min()
    }

    /// Returns `true` if segments wait to be sent.
    pub(crate) fn wants_poll(&self) -> bool {
        !self.dirty.is_empty() || self.can_serve_memory_waiters()
    }

    /// Queues a connection whose application waits for memory. Connections that ended meanwhile
    /// leave the queue once they are more than those that live.
    pub(super) fn queue_for_memory(&mut self, id: TcpId) {
        if self.memory_waiters.len() > 2 * self.live {
            let slots = &self.slots;
            self.memory_waiters.retain(|id| {
                let slot = &slots[id.index as usize];
                slot.generation == id.generation && slot.connection.is_some()
            });
        }
        self.memory_waiters.push_back(id);
    }

    /// Returns `true` if there is memory for applications that wait for it.
    fn can_serve_memory_waiters(&self) -> bool {
        !self.memory_waiters.is_empty() && self.pool.has_room()
    }

    /// Reports connections whose applications waited for memory.
    fn notify_memory_waiters(&mut self, host: &mut Host) {
        while self.can_serve_memory_waiters() {
            let Some(id) = self.memory_waiters.pop_front() else { break };
            if let Ok(connection) = self.get(id) {
                connection.wants_memory = false;
                self.tell(host, id.index);
            }
        }
    }
}

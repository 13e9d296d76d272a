//! The data part: the rings of the packet sockets, and the socket that sends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use super::shared::SharedSockets;
use crate::kernel_interface;
use crate::kernel_interface::edge_sleep::{DOWN_POLL_INTERVAL, EdgeSleep};
use crate::kernel_interface::full_rings::FullRings;
use crate::kernel_interface::host_traffic;
use crate::kernel_interface::packet_ring::{PacketRing, Target};
use crate::kernel_interface::packet_sender::Sending;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Info, Kick, Packet, Received, SpaceId,
    Spaces,
};

/// The maximum number of empty buffers that the driver holds.
const RX_BUFFERS: usize = 1024;
/// The maximum number of tokens for `tx_complete`. The driver takes no more packets until the
/// engine fetches some.
const TX_TOKENS: usize = 1024;

/// A ring and the packets in it.
struct Source {
    ring: PacketRing,
    /// `true` for packets of this host's own sockets.
    is_from_host: bool,
}

/// The queue.
pub(super) struct PacketQueue {
    info: Info,
    shared: Arc<SharedSockets>,
    sources: Vec<Source>,
    /// The source that the next poll begins with.
    next_source: usize,
    buffers: VecDeque<u32>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    done: VecDeque<Completion>,
    /// Memory for a packet to this host's own sockets.
    host_packet: Vec<u8>,
    /// Readable with each new packet and, once [`PacketQueue::watch_sender`] says so, while the
    /// sending socket has room. The timer wakes the engine to try again to send, while the interface
    /// is down.
    sleep: EdgeSleep,
    /// The events of the sending socket that `sleep` waits for.
    waits_for: EventFlags,
    /// `true` if the kernel had no room for a packet.
    full: bool,
    /// `true` if the last packet found the interface down.
    down: bool,
    full_rings: FullRings,
    counters: Counters,
}

impl PacketQueue {
    pub(super) fn new(info: Info, shared: Arc<SharedSockets>) -> Result<PacketQueue, DeviceError> {
        let host = shared.host_traffic.as_ref().map(|local| (local.socket(), true));
        let sockets = [(&shared.flows, false), (&shared.groups, false)].into_iter().chain(host);
        let sources: Vec<Source> = sockets
            .map(|(socket, is_from_host)| {
                Ok(Source { ring: PacketRing::map(socket.clone())?, is_from_host })
            })
            .collect::<io::Result<_>>()
            .map_err(info.failed("mapping a packet socket's ring"))?;
        let rings = sources.iter().map(|source| source.ring.socket());
        let sleep = EdgeSleep::new(rings).map_err(info.failed("epoll"))?;
        sleep.add(shared.sender.socket(), EventFlags::empty()).map_err(info.failed("epoll"))?;
        let full_rings = FullRings::new(sources.iter().map(|source| source.ring.slots()));
        let host_bytes = if host.is_some() { host_traffic::FRAME_BYTES } else { 0 };
        Ok(PacketQueue {
            info,
            sources,
            next_source: 0,
            buffers: VecDeque::with_capacity(RX_BUFFERS),
            pool: None,
            done: VecDeque::with_capacity(TX_TOKENS),
            host_packet: Vec::with_capacity(host_bytes),
            sleep,
            waits_for: EventFlags::empty(),
            full: false,
            down: false,
            full_rings,
            counters: Counters::default(),
            shared,
        })
    }

    fn failure(&self, what: &'static str, cause: io::Error) -> DeviceError {
        kernel_interface::failure(&self.info, what, cause)
    }

    /// Returns `true` if there is something to do right now.
    fn has_work(&self, tx_waiting: bool) -> bool {
        let is_ready = |source: &Source| source.ring.is_ready();
        !self.done.is_empty()
            || tx_waiting && !self.full && !self.down
            || !self.buffers.is_empty() && self.sources.iter().any(is_ready)
    }

    /// Appends packets of one ring to `out`. Returns how many, dropped ones included.
    fn poll_source(
        &mut self,
        index: usize,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let Some(pool) = self.pool else { return 0 };
        let Source { ring, is_from_host } = &mut self.sources[index];
        let mut target = Target {
            pool,
            buffers: &mut self.buffers,
            limits: &self.info.limits,
            // The loopback interface has no MAC addresses.
            mac: is_from_host.then_some(self.info.mac),
        };
        ring.poll(spaces, &mut target, out, budget, &mut self.counters)
    }

    /// Sends one packet. Returns its completion; `None` if the kernel has no room for it now.
    fn send(
        &mut self,
        spaces: &Spaces,
        packet: &Packet<'_>,
    ) -> Result<Option<Completion>, DeviceError> {
        self.counters.system_calls += 1;
        let token = packet.token;
        let local = self.shared.host_traffic.as_ref();
        if let Some(local) = local.filter(|local| local.is_for_host(spaces, packet)) {
            let outcome = match local.send(spaces, packet, &mut self.host_packet) {
                Some(len) => self.counters.sent(len),
                None => self.counters.dropped(),
            };
            return Ok(Some(Completion { token, outcome }));
        }
        let outcome = match self.shared.sender.send(spaces, packet) {
            Ok(Sending::Sent(len)) => self.counters.sent(len),
            Ok(Sending::Dropped) => self.counters.dropped(),
            Ok(Sending::Later { down }) => {
                (self.full, self.down) = (!down, down);
                return Ok(None);
            }
            Err(cause) => return Err(self.failure("writev", cause)),
        };
        Ok(Some(Completion { token, outcome }))
    }

    /// Makes the end of what keeps packets from being sent wake the engine.
    fn watch_sender(&mut self, tx_waiting: bool) -> Result<(), DeviceError> {
        if tx_waiting && self.down {
            self.sleep
                .set_timer(DOWN_POLL_INTERVAL, &mut self.counters)
                .map_err(|cause| self.failure("timerfd_settime", cause))?;
        }
        let wanted = match tx_waiting && self.full {
            true => EventFlags::OUT,
            false => EventFlags::empty(),
        };
        if wanted != self.waits_for {
            self.counters.system_calls += 1;
            self.sleep
                .change(self.shared.sender.socket(), wanted)
                .map_err(|cause| self.failure("EPOLL_CTL_MOD", cause))?;
            self.waits_for = wanted;
        }
        Ok(())
    }

    /// Adds to the counters what the rings had no room for since the last look.
    fn count_kernel_drops(&mut self) {
        for source in &mut self.sources {
            self.counters.system_calls += 1;
            self.counters.rx_dropped += source.ring.take_drops();
        }
    }
}

impl DeviceQueue for PacketQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let room = (RX_BUFFERS - self.buffers.len()).min(buffers.len());
        let taken = self.info.limits.writable(spaces, space, &buffers[..room]);
        self.buffers.extend(taken);
        if !taken.is_empty() {
            self.pool = Some(space);
        }
        taken.len()
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        if self.full_rings.polls() {
            self.count_kernel_drops();
        }
        let before = self.counters.rx_packets;
        let count = self.sources.len();
        let mut polled = 0;
        for step in 0..count {
            let source = (self.next_source + step) % count;
            polled += self.poll_source(source, spaces, out, budget - polled);
        }
        self.next_source = (self.next_source + 1) % count;
        if self.full_rings.polled(polled) {
            self.count_kernel_drops();
        }
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let room = TX_TOKENS - self.done.len();
        (self.full, self.down) = (false, false);
        let mut taken = 0;
        for packet in packets.iter().take(room) {
            match self.send(spaces, packet) {
                Ok(Some(completion)) => self.done.push_back(completion),
                Ok(None) => break,
                // The next call reports the error; this call returns how many packets it took.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Does nothing: a packet is sent when it is submitted, and a buffer is filled when it is
    /// polled.
    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleep.fd())
    }

    /// Arms the sleep: takes the events so far, and then looks at the rings.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        if self.full_rings.sleeps() {
            self.count_kernel_drops();
        }
        self.watch_sender(tx_waiting)?;
        self.sleep.take_events(&mut self.counters);
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..));
        (self.full, self.down) = (false, false);
        self.count_kernel_drops();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

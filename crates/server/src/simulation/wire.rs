//! A wire that outlives servers, as an interface of the kernel does, and the device at its near end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use towpath_device::{
    Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, Info, Kick,
    Limits, Packet, Part, Received, SpaceId, Spaces,
};
use towpath_engine::testing::{MAC, event};
use towpath_packet::Meta;
use towpath_queue::simulation::{Point, pass};

use super::random::Random;

/// The most packets on the wire to the server.
const WIRE_PACKETS: usize = 48;
/// The most packets in the device.
const RING_PACKETS: usize = 24;
/// The longest time for which the device stalls: longer than the watchdog's window.
const LONGEST_STALL_NS: u64 = 3_000_000_000;

/// The properties of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// The device completes packets later than it takes them, and reads them only then.
    pub(super) asynchronous: bool,
    /// The device sends from the applications' memory.
    pub(super) in_place: bool,
    /// Received packets stay on the wire until the server polls again, as with AF_XDP. Otherwise a
    /// killed server loses the packets of its last poll.
    pub(super) keeps: bool,
    /// The device stalls now and then.
    pub(super) stalls: bool,
}

/// A packet that the device took, and has not completed.
struct Taken {
    token: u64,
    parts: Vec<Part>,
    /// `None` once the packet is on the wire.
    bytes: Option<Vec<u8>>,
}

/// The state of both ends.
pub(super) struct Wire {
    manner: Manner,
    random: Random,
    to_server: VecDeque<Vec<u8>>,
    /// The first packets of `to_server`, which the server has, and which leave the wire at its next poll.
    given: usize,
    pub(super) to_far: VecDeque<Vec<u8>>,
    taken: VecDeque<Taken>,
    /// The number of packets at the front of `taken` that the device may complete.
    ready: usize,
    /// Packets that a reset returns.
    returned: VecDeque<u64>,
    stalled_until: Option<u64>,
    /// `true` if the engine sleeps, and the device must wake it.
    armed: bool,
    event: Arc<OwnedFd>,
    /// Packets that killed servers had taken off the wire in their last batch.
    pub(super) lost: u64,
    last_batch: u64,
}

impl Wire {
    pub(super) fn new(manner: Manner, random: Random) -> Wire {
        let event = event();
        Wire {
            manner,
            random,
            to_server: VecDeque::new(),
            given: 0,
            to_far: VecDeque::new(),
            taken: VecDeque::new(),
            ready: 0,
            returned: VecDeque::new(),
            stalled_until: None,
            armed: false,
            event: Arc::new(event),
            lost: 0,
            last_batch: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.to_server.len() < WIRE_PACKETS
    }

    /// Sends a packet from the far end.
    pub(super) fn send(&mut self, packet: Vec<u8>) {
        self.to_server.push_back(packet);
        self.wake();
    }

    /// Returns `true` if the device can complete packets.
    pub(super) fn can_complete(&self, now: u64) -> bool {
        self.ready < self.taken.len() && self.stalled_until.is_none_or(|until| until <= now)
    }

    /// Returns the time at which a stalled device completes packets again.
    pub(super) fn stalled_until(&self) -> Option<u64> {
        self.stalled_until.filter(|_| self.ready < self.taken.len())
    }

    /// Completes some packets, or stalls the device.
    pub(super) fn complete_or_stall(&mut self, now: u64) {
        self.stalled_until = None;
        if self.manner.stalls && self.random.once_in(40) {
            self.stalled_until = Some(now + self.random.below(LONGEST_STALL_NS));
            return;
        }
        let more = self.random.below((self.taken.len() - self.ready) as u64) as usize + 1;
        self.ready += more;
        self.wake();
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.armed) {
            rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Ends the use by a killed server. The device still sends the first packets that it has, a random number.
    pub(super) fn killed(&mut self) {
        let sent = self.random.below(self.taken.len() as u64 + 1) as usize;
        self.to_far.extend(self.taken.drain(..).take(sent).filter_map(|taken| taken.bytes));
        self.returned.clear();
        self.lost += if self.manner.keeps { 0 } else { self.last_batch };
        (self.given, self.ready, self.stalled_until, self.armed) = (0, 0, None, false);
        self.last_batch = 0;
    }

    /// Ends the use by a server that ended in order.
    pub(super) fn left(&mut self) {
        self.release();
        assert_eq!(self.last_batch, 0, "a server leaves with packets in hand");
        self.killed();
    }

    fn release(&mut self) {
        self.to_server.drain(..std::mem::take(&mut self.given));
        self.last_batch = 0;
    }
}

/// The near end, of one server.
pub(super) struct SimulatedDevice {
    info: Info,
    wire: Arc<Mutex<Wire>>,
}

impl SimulatedDevice {
    pub(super) fn new(wire: &Arc<Mutex<Wire>>) -> SimulatedDevice {
        let manner = wire.lock().unwrap().manner;
        let can = Capabilities {
            tx_in_place: manner.in_place,
            tx_asynchronous: manner.asynchronous,
            ..Capabilities::default()
        };
        let info = Info {
            name: "simulated".to_owned(),
            mac: MAC,
            mtu: 1500,
            can,
            queues: 1,
            limits: Limits { tx_ring: RING_PACKETS, ..Limits::new(2048) },
            rx_queue_packets: WIRE_PACKETS,
        };
        SimulatedDevice { info, wire: wire.clone() }
    }
}

impl Device for SimulatedDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        _: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let wire = self.wire.clone();
        let event = wire.lock().unwrap().event.clone();
        let (buffers, pool) = (VecDeque::new(), None);
        Ok(Box::new(SimulatedQueue { wire, event, buffers, pool, counters: Counters::default() }))
    }
}

struct SimulatedQueue {
    wire: Arc<Mutex<Wire>>,
    event: Arc<OwnedFd>,
    buffers: VecDeque<u32>,
    pool: Option<SpaceId>,
    counters: Counters,
}

impl SimulatedQueue {
    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }
}

fn frame(spaces: &Spaces, parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let mut piece = vec![0; part.len as usize];
        spaces.copy_out(part.space, part.offset, &mut piece).unwrap();
        bytes.extend(piece);
    }
    bytes
}

impl DeviceQueue for SimulatedQueue {
    fn rx_fill(&mut self, _: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        self.buffers.extend(buffers);
        buffers.len()
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        pass(Point::Device);
        let wire = self.wire.clone();
        let mut wire = wire.lock().unwrap();
        // The engine has handled the packets of the poll before.
        wire.release();
        // The device reads a packet at the end of its transmission. The engine must not have changed the packet before.
        for taken in wire.taken.iter().take(wire.ready) {
            let is_same =
                taken.bytes.as_ref().is_none_or(|sent| *sent == frame(spaces, &taken.parts));
            assert!(is_same, "changed before its completion");
        }
        let Some(pool) = self.pool else { return Ok(0) };
        let count = budget.min(wire.to_server.len()).min(self.buffers.len());
        for packet in wire.to_server.iter().take(count) {
            let Some(buffer) = self.buffers.pop_front() else { break };
            spaces.copy_in(pool, buffer, packet).unwrap();
            let len = packet.len() as u32;
            out.push(Received::whole(pool, buffer, buffer, len, Meta::FULL));
            self.counters.rx_packets += 1;
        }
        wire.last_batch = count as u64;
        if wire.manner.keeps {
            wire.given = count;
        } else {
            wire.to_server.drain(..count);
        }
        Ok(count)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        pass(Point::Device);
        let wire = self.wire.clone();
        let mut wire = wire.lock().unwrap();
        let room = RING_PACKETS - wire.taken.len();
        let most = if wire.random.once_in(4) { wire.random.below(4) as usize } else { room };
        let count = packets.len().min(room).min(most);
        for packet in &packets[..count] {
            let parts = packet.parts.to_vec();
            let bytes = Some(frame(spaces, &parts));
            wire.taken.push_back(Taken { token: packet.token, parts, bytes });
            self.counters.tx_packets += 1;
        }
        if !wire.manner.asynchronous {
            wire.ready = wire.taken.len();
            let Wire { taken, to_far, .. } = &mut *wire;
            to_far.extend(taken.iter_mut().filter_map(|taken| taken.bytes.take()));
        }
        Ok(count)
    }

    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        pass(Point::Device);
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        pass(Point::Device);
        let mut wire = self.wire();
        let count = wire.ready.min(budget);
        wire.ready -= count;
        let done: Vec<Taken> = wire.taken.drain(..count).collect();
        out.extend(done.iter().map(|taken| Completion::sent(taken.token)));
        wire.to_far.extend(done.into_iter().filter_map(|taken| taken.bytes));
        if wire.ready > 0 {
            return Ok(count);
        }
        let back = wire.returned.len().min(budget - count);
        out.extend(wire.returned.drain(..back).map(Completion::returned));
        Ok(count + back)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        pass(Point::Device);
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        let wire = self.wire.clone();
        let mut wire = wire.lock().unwrap();
        wire.release();
        wire.armed = true;
        let receives = !wire.to_server.is_empty() && !self.buffers.is_empty();
        let sends = tx_waiting && wire.taken.len() < RING_PACKETS;
        let completes = wire.ready > 0 || !wire.returned.is_empty();
        Ok(if receives || sends || completes { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        buffers.extend(self.buffers.drain(..));
        let wire = self.wire.clone();
        let mut wire = wire.lock().unwrap();
        (wire.stalled_until, self.counters.resets) = (None, self.counters.resets + 1);
        let ready = wire.ready;
        let Wire { taken, returned, .. } = &mut *wire;
        returned.extend(taken.drain(ready..).map(|taken| taken.token));
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

//! An engine without threads, processes or a clock: one application, an in-memory device, and one
//! poll iteration per call. Every run executes the same instructions, so a tool that counts them
//! gives a figure per packet.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use towpath_packet::{FlowRule, FlowVlan};

use crate::Engine;
use crate::commands::{Command, EngineReport};
use crate::rights::{Addresses, Rights};
use crate::session::endpoints::Endpoint;
use crate::wiring::{self, ApplicationSide, BATCH, BUDGETS, Outcome, Wired};
use serde::{Deserialize, Serialize};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_memory::Region;
use towpath_packet::build::Flow;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use towpath_queue::events::{self, Marker};
use towpath_queue::receive::ReceiveConsumer;
use towpath_queue::transmit::TransmitProducer;

/// Returns an error if a condition does not hold.
fn ensure(so: bool, what: impl Into<String>) -> Outcome<()> {
    if so { Ok(()) } else { Err(what.into().into()) }
}

fn this_thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Slots of each queue, and buffers of each buffer pool.
const SLOTS: u32 = 256;
/// Endpoints, each with a port.
const ENDPOINTS: u16 = 8;
/// The first port.
const PORT: u16 = 2000;
/// Bytes per packet.
const FRAME_BYTES: usize = 64;

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Traffic {
    /// From the device to the application.
    Receive,
    /// From the application to itself.
    Local,
    /// From the application to the device.
    Send,
}

impl Traffic {
    /// All kinds of traffic.
    pub const ALL: [Traffic; 3] = [Traffic::Receive, Traffic::Local, Traffic::Send];

    /// Returns the name used in tables.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Receive => "from the device",
            Traffic::Local => "from endpoint to endpoint",
            Traffic::Send => "to the device",
        }
    }
}

/// An engine, its application and an in-memory device on one thread. [`Solo::run`] moves packets, so that a tool
/// can count the instructions of the engine per packet (`lab/count`): each run executes the same ones.
pub struct Solo {
    engine: Engine,
    far: DeviceFarEnd,
    transmit: TransmitProducer,
    receive: ReceiveConsumer,
    marker: Marker,
    transmit_pool: Region,
    transmit_free: FreeBuffers,
    shape: SessionShape,
    inward: Vec<Vec<u8>>,
    outward: Vec<Vec<u8>>,
    received: u64,
    left: u64,
    /// The processor's time for the engine's poll iterations.
    busy: Duration,
    commands: Sender<(u64, Command)>,
    _reports: Receiver<EngineReport>,
    _doorbell: OwnedFd,
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

impl Solo {
    /// Packets per poll iteration.
    pub const BATCH: usize = BATCH;

    /// Creates an engine with endpoints for ports, and with the given settings.
    pub fn new(values: &Values) -> Outcome<Solo> {
        Solo::on(&loopback::Config::default(), values)
    }

    /// Creates an engine over an in-memory device of this configuration.
    pub fn on(device: &loopback::Config, values: &Values) -> Outcome<Solo> {
        let (mut near, far) = loopback::pair(device)?;
        let far = DeviceFarEnd::new(Box::new(far));
        let Wired { engine, commands, reports, .. } = Wired::new(&mut near, values, BUDGETS)?;
        let shape = SessionShape::new(1, u32::from(ENDPOINTS), SLOTS, SLOTS, 2048, 2048)?;
        let (session, side) = wiring::session(1, shape)?;
        let ApplicationSide { transmit, receive, marker, pool, doorbell, .. } = side;
        give(&commands, Command::AddSession(session))?;
        let flow = Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC);
        for number in 0..ENDPOINTS {
            add_endpoint(&commands, number, &flow)?;
        }
        // Each endpoint has one flow in and one out.
        let body = [0; FRAME_BYTES - 42];
        let inward = |number: u16| flow.ports(1000, PORT + number).udp(&body);
        let outward = |number: u16| {
            Flow { source_mac: MAC, source: flow.destination, ..flow }
                .ports(PORT + number, PORT + number)
                .udp(&body)
        };
        let mut solo = Solo {
            engine,
            far,
            transmit,
            receive,
            marker,
            transmit_pool: pool,
            transmit_free: FreeBuffers::new(0, SLOTS),
            shape,
            inward: (0..ENDPOINTS).map(inward).collect(),
            outward: (0..ENDPOINTS).map(outward).collect(),
            received: 0,
            left: 0,
            busy: Duration::ZERO,
            commands,
            _reports: reports,
            _doorbell: doorbell,
        };
        poll_once(&mut solo.engine)?;
        Ok(solo)
    }

    /// Selects the routines for captures and promiscuous endpoints, although there are none, or
    /// those without; see [`Engine::assume_captures`].
    pub fn assume_captures(&mut self, captures: bool) {
        self.engine.assume_captures(captures);
    }

    /// Moves `iterations` batches, in trains of a length, and checks that all packets arrived.
    pub fn run(&mut self, traffic: Traffic, iterations: usize, train: usize) -> Outcome<u64> {
        let before = self.received + self.left;
        let mut number = 0;
        for _ in 0..iterations {
            for _ in 0..BATCH {
                let flow = number / train % usize::from(ENDPOINTS);
                number += 1;
                match traffic {
                    Traffic::Receive => {
                        ensure(self.far.send(&self.inward[flow], Meta::FULL), "no room")?;
                    }
                    Traffic::Local | Traffic::Send => self.put(traffic, flow)?,
                }
            }
            self.transmit.publish();
            self.marker.mark(events::fence(), 0)?;
            self.marker.publish();
            let start = this_thread_cpu_time();
            poll_once(&mut self.engine)?;
            self.busy += this_thread_cpu_time().saturating_sub(start);
            self.take()?;
        }
        let moved = self.received + self.left - before;
        ensure(
            moved == (iterations * BATCH) as u64,
            format!("{moved} of {} arrived", iterations * BATCH),
        )?;
        Ok(moved)
    }

    fn put(&mut self, traffic: Traffic, flow: usize) -> Outcome<()> {
        let buffer = self.transmit_free.take().ok_or("a buffer to send")?;
        let mut packet = [0; FRAME_BYTES];
        packet.copy_from_slice(&self.outward[flow]);
        if traffic == Traffic::Local {
            packet[..6].copy_from_slice(&MAC);
        } else {
            packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        }
        let descriptor = Descriptor {
            buffer,
            start: HEADROOM_BYTES,
            len: FRAME_BYTES as u32,
            endpoint: flow as u32,
            flags: 0,
        };
        let at = descriptor.pool_offset(&self.shape.transmit_pool);
        ensure(self.transmit_pool.copy_in(at, &packet), "a buffer outside of its pool")?;
        ensure(self.transmit.push(&[descriptor]), "a slot for each buffer")?;
        Ok(())
    }

    /// Takes the packets that the application and the far end received, and the completions.
    fn take(&mut self) -> Outcome<()> {
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        self.receive.observe()?;
        loop {
            let count = self.receive.take(&mut packet)?;
            if count == 0 {
                break;
            }
            self.received += 1;
            for descriptor in &packet[..count] {
                ensure(self.receive.provide(descriptor.buffer), "a slot for each buffer")?;
            }
        }
        self.receive.publish();
        while self.far.receive().is_some() {
            self.left += 1;
        }
        let free = &mut self.transmit_free;
        self.transmit.reclaim(|buffer| free.release(buffer))?;
        Ok(())
    }
}

/// Opens the endpoint for a port, which may send from the destination of `flow`.
fn add_endpoint(commands: &Sender<(u64, Command)>, number: u16, flow: &Flow) -> Outcome<()> {
    let addresses = Addresses { ipv4: Some(ip(flow)?), ipv6: [None; 2] };
    let rule = FlowRule {
        mac: Some(MAC),
        vlan: FlowVlan::Untagged,
        protocol: Some(17),
        port: Some(PORT + number),
        ..FlowRule::default()
    };
    let rights = Rights::new(rule, MAC, addresses);
    let endpoint = Endpoint { coalescing: (1, 0), ..wiring::endpoint(rule, rights) };
    let endpoint = Box::new(endpoint);
    let (number, listening, group) = (u32::from(number), None, false);
    give(commands, Command::AddEndpoint { session: 1, number, endpoint, listening, group })
}

/// Runs one poll iteration. A tool counts this function's instructions: all the work of the engine
/// for a batch.
#[inline(never)]
fn poll_once(engine: &mut Engine) -> Outcome<()> {
    engine.poll_once()?;
    Ok(())
}

fn give(commands: &Sender<(u64, Command)>, command: Command) -> Outcome<()> {
    commands.send((0, command)).ok().ok_or("the engine takes no commands")?;
    Ok(())
}

fn ip(flow: &Flow) -> Outcome<u32> {
    match flow.destination {
        std::net::IpAddr::V4(ip) => Ok(ip.to_bits()),
        std::net::IpAddr::V6(_) => Err("an IPv4 flow".into()),
    }
}

/// Returns the engine's cost of a frame of 64 bytes, in batches over an in-memory device, in
/// nanoseconds. The three values are for the directions from the device to an application, from one
/// application to another, and to the device. The measurement takes some milliseconds.
///
/// # Errors
/// Fails if memory or descriptors are not available.
pub fn packet_costs() -> Outcome<[f64; 3]> {
    let mut solo = Solo::new(&Values::default())?;
    let mut costs = [0.0; 3];
    for (cost, traffic) in costs.iter_mut().zip(Traffic::ALL) {
        // Caches are cold in the first batches.
        solo.run(traffic, 20, 1)?;
        solo.busy = Duration::ZERO;
        let moved = solo.run(traffic, 200, 1)?;
        *cost = solo.busy.as_nanos() as f64 / moved as f64;
    }
    Ok(costs)
}

/// Poll iterations with one kind of routines before those with the other.
const ITERATIONS: usize = 20;

/// Returns the nanoseconds per packet without the routines for captures and promiscuous endpoints
/// and with them, while none of these is open. One engine alternates between both, so that neither
/// its memory's location nor other work of the machine makes a difference.
pub fn without_and_with_captures(
    solo: &mut Solo,
    traffic: Traffic,
    packets: usize,
) -> Outcome<[f64; 2]> {
    let times = in_turn(solo, traffic, packets, |solo, side| {
        solo.engine.assume_captures(side == 1);
        Ok(())
    })?;
    solo.engine.assume_captures(false);
    Ok(times)
}

/// Returns the nanoseconds per packet to the device with direct hand-off, and through a queue. One
/// engine alternates between both.
pub fn direct_and_queued(solo: &mut Solo, packets: usize) -> Outcome<[f64; 2]> {
    in_turn(solo, Traffic::Send, packets, |solo, side| {
        let (session, endpoint, value) = (0, 0, side as u64);
        let setting = Setting::Handoff;
        give(&solo.commands, Command::Set { setting, session, endpoint, value })
    })
}

/// Returns the nanoseconds per packet of both sides, between which `choose` switches.
fn in_turn(
    solo: &mut Solo,
    traffic: Traffic,
    packets: usize,
    mut choose: impl FnMut(&mut Solo, usize) -> Outcome<()>,
) -> Outcome<[f64; 2]> {
    let rounds = packets.div_ceil(ITERATIONS * BATCH);
    let mut times = [Duration::ZERO; 2];
    for round in 0..rounds {
        for side in 0..2 {
            let side = (side + round) % 2;
            choose(solo, side)?;
            // The engine executes the command before it counts.
            poll_once(&mut solo.engine)?;
            solo.busy = Duration::ZERO;
            solo.run(traffic, ITERATIONS, 1)?;
            times[side] += solo.busy;
        }
    }
    Ok(times.map(|time| time.as_nanos() as f64 / (rounds * ITERATIONS * BATCH) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::handoff::Counts;

    #[test]
    fn each_packet_cost_is_positive() {
        assert!(packet_costs().unwrap().iter().all(|cost| *cost > 1.0));
    }

    #[test]
    fn half_of_the_packets_are_handed_off_each_way() {
        let device = loopback::Config { tx_asynchronous: true, ..Default::default() };
        let mut solo = Solo::on(&device, &Values::default()).unwrap();
        let packets = ITERATIONS * BATCH;
        for rounds in 1..=2 {
            direct_and_queued(&mut solo, packets).unwrap();
            let Counts { direct, queued, .. } = solo.engine.tx().handoff_counts();
            let expected = (rounds * packets) as u64;
            assert_eq!((direct, queued), (expected, expected));
        }
    }

    #[test]
    fn every_packet_arrives_each_way() {
        let mut solo = Solo::new(&Values::default()).unwrap();
        for captures in [false, true] {
            solo.engine.assume_captures(captures);
            for traffic in Traffic::ALL {
                for train in [1, 16] {
                    assert_eq!(solo.run(traffic, 20, train).unwrap(), 20 * BATCH as u64);
                }
            }
        }
    }
}

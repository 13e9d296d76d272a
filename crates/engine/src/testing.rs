//! A session and its application in one thread, for the unit tests of the engine's parts and for the simulation.

use std::os::fd::OwnedFd;

use towpath_memory::{Mapping, Region};
use towpath_packet::build::Flow;
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::layout::SessionShape;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use towpath_queue::events::{self, Marker};
use towpath_queue::receive::ReceiveConsumer;
use towpath_queue::transmit::TransmitProducer;

#[cfg(towpath_simulation)]
use crate::Budgets;
#[cfg(towpath_simulation)]
use crate::oob::connection::EndpointName;
use crate::rights::{Addresses, Rights};
use crate::session::Session;
use crate::session::endpoints::Endpoint;
use crate::wiring::{self, ApplicationSide};

/// The MAC address of every endpoint made here.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// A port for an endpoint.
pub const PORT: u16 = 2000;

/// The application's side of a session with one queue pair.
pub struct Application {
    /// The queue to send.
    pub transmit: TransmitProducer,
    /// The queue to receive.
    pub receive: ReceiveConsumer,
    /// The events for the engine.
    pub marker: Marker,
    _doorbell: OwnedFd,
    pool: Region,
    receive_pool: Mapping,
    shape: SessionShape,
}

/// Makes a session and its application, which has provided all of its receive buffers.
pub fn session(number: u32) -> (Box<Session>, Application) {
    let shape = SessionShape::new(1, 4, 16, 16, 2048, 2048).unwrap();
    let (session, side) = wiring::session(number, shape).unwrap();
    let ApplicationSide { transmit, receive, marker, pool, receive_pool, doorbell } = side;
    let application =
        Application { transmit, receive, marker, _doorbell: doorbell, pool, receive_pool, shape };
    (session, application)
}

/// Returns the rule of an endpoint for UDP packets to a port.
pub fn rule(port: u16) -> FlowRule {
    FlowRule {
        mac: Some(MAC),
        vlan: FlowVlan::Untagged,
        protocol: Some(17),
        port: Some(port),
        ..FlowRule::default()
    }
}

/// Returns the flow of packets from the wire to [`MAC`] and a port.
pub fn inward(port: u16) -> Flow {
    Flow::v4().macs([2, 0, 0, 0, 0, 1], MAC).ports(1000, port)
}

/// Returns a packet to the wire from the endpoint for a port.
pub fn outward(port: u16) -> Vec<u8> {
    let flow = inward(port);
    let (source_mac, destination_mac) = (MAC, flow.source_mac);
    let (source, destination) = (flow.destination, flow.source);
    let flow = Flow { source_mac, destination_mac, source, destination, ..flow };
    flow.ports(port, 1000).udp(&[7; 22])
}

/// Returns an endpoint for UDP packets to a port. It may send from the address to which
/// [`inward`]'s packets go.
pub fn endpoint(port: u16) -> Endpoint {
    let std::net::IpAddr::V4(ip) = inward(port).destination else { panic!("an IPv4 flow") };
    let addresses = Addresses { ipv4: Some(ip.to_bits()), ipv6: [None; 2] };
    wiring::endpoint(rule(port), Rights::new(rule(port), MAC, addresses))
}

/// Budgets of a poll iteration for tests.
#[cfg(towpath_simulation)]
pub const BUDGETS: Budgets = wiring::BUDGETS;

/// Makes an eventfd that nothing was written to.
#[cfg(towpath_simulation)]
pub fn event() -> OwnedFd {
    wiring::event().unwrap()
}

/// Connects an endpoint, as an earlier server left it.
#[cfg(towpath_simulation)]
pub fn set_connected(session: &mut Session, endpoint: u32, peer: EndpointName) {
    session.extras.oob.set_connected(endpoint, peer);
}

/// Makes an aperture valid, as an earlier server left it.
#[cfg(towpath_simulation)]
pub fn set_valid(session: &mut Session, number: u32) {
    session.extras.apertures.set_valid(number);
}

impl Application {
    /// Writes a packet into a buffer and queues it.
    pub fn send(&mut self, buffer: u32, endpoint: u32, packet: &[u8]) {
        self.send_with(buffer, endpoint, packet, 0);
    }

    /// Writes a packet into a buffer and queues it with flags.
    pub fn send_with(&mut self, buffer: u32, endpoint: u32, packet: &[u8], flags: u16) {
        let len = packet.len() as u32;
        let descriptor = Descriptor { buffer, start: HEADROOM_BYTES, len, endpoint, flags };
        let at = descriptor.pool_offset(&self.shape.transmit_pool);
        assert!(self.pool.copy_in(at, packet));
        assert!(self.transmit.push(&[descriptor]));
        self.transmit.publish();
        self.mark();
    }

    /// Marks and publishes an event of the queue pair.
    pub fn mark(&mut self) {
        self.marker.mark(events::fence(), 0).unwrap();
        self.marker.publish();
    }

    /// Returns the number of received packets that the application can see.
    pub fn received(&mut self) -> usize {
        self.receive.observe().unwrap();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        std::iter::from_fn(|| (self.receive.take(&mut packet).unwrap() > 0).then_some(())).count()
    }

    /// Takes the received packets, and gives their buffers back. Returns the endpoint and the bytes
    /// of each.
    pub fn packets(&mut self) -> Vec<(u32, Vec<u8>)> {
        self.packets_in_order(|_| {}).1
    }

    /// Takes the received packets as [`Application::packets`] does, but gives the buffers back in
    /// the order of `order`. Returns all descriptors too.
    pub fn packets_in_order(
        &mut self,
        order: impl FnOnce(&mut Vec<u32>),
    ) -> (Vec<Descriptor>, Vec<(u32, Vec<u8>)>) {
        self.receive.observe().unwrap();
        let mut taken = [Descriptor::default(); MAX_CHAIN];
        let (mut descriptors, mut packets) = (Vec::<Descriptor>::new(), Vec::new());
        loop {
            let count = self.receive.take(&mut taken).unwrap();
            if count == 0 {
                break;
            }
            let mut bytes = Vec::new();
            for one in &taken[..count] {
                let mut piece = vec![0; one.len as usize];
                let at = one.pool_offset(&self.shape.receive_pool);
                assert!(self.receive_pool.copy_out(at, &mut piece));
                bytes.extend(piece);
            }
            descriptors.extend(&taken[..count]);
            packets.push((taken[0].endpoint, bytes));
        }
        let mut buffers: Vec<u32> = descriptors.iter().map(|one| one.buffer).collect();
        order(&mut buffers);
        assert!(buffers.into_iter().all(|buffer| self.receive.provide(buffer)));
        self.receive.publish();
        (descriptors, packets)
    }

    /// Returns the number of packets that the server has completed.
    pub fn completed(&mut self) -> u32 {
        self.transmit.reclaim(|_| {}).unwrap()
    }
}

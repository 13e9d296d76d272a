//! TCP: connections found by their four-tuple, each with its own socket of smoltcp.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the table, and the path of a received segment |
//! | `connection` | one connection |
//! | `listener` | listeners, half-open connections, accept queues |
//! | `api` | the application's operations |
//! | `lifecycle` | the consequences of a connection's state, and its end |
//! | `egress` | transmission, and timers |
//! | `answer` | resets and other answers, and ICMP errors |
//! | `recovery` | loss detection, and retransmission |
//! | `window` | the end of our own window, as the peer knows it |
//! | `port` | the device between smoltcp and frames |
//! | `sequence` | initial sequence numbers |
//! | `time_wait` | TIME-WAIT entries |

mod answer;
mod api;
mod connection;
mod egress;
mod lifecycle;
mod listener;
mod narrow;
mod port;
mod recovery;
mod segment;
mod sequence;
mod time_wait;
mod window;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use smoltcp::iface::{Config as InterfaceConfig, Interface};
use smoltcp::phy::{ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::State;
use smoltcp::wire::HardwareAddress;

use crate::checksum::Sum;
use crate::host::Host;
use crate::ip::{self, Header, Packet};
use crate::outbox::{Frame, NextHop};
use crate::wheel::Wheel;
use crate::{Instant, SocketError, SocketId, TcpId};
pub use api::{Shutdown, TcpState};
use connection::{Connection, Owner, Tuple};
use listener::Listeners;
use narrow::Narrow;
use port::{Ingress, Path};
use segment::{ACK, RST, SYN, Segment};
use time_wait::TimeWait;

struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// See the module.
pub(crate) struct Tcp {
    interface: Interface,
    narrow: Narrow,
    capabilities: DeviceCapabilities,
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
    by_tuple: HashMap<Tuple, u32>,
    listeners: Listeners,
    time_wait: TimeWait,
    wheel: Wheel,
    dirty: VecDeque<u32>,
    /// Memory in which the stack rebuilds packets that smoltcp does not accept as received.
    scratch: Vec<u8>,
}

/// Returns the link's capabilities as smoltcp sees them.
fn capabilities(host: &Host) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.checksum = ChecksumCapabilities::ignored();
    capabilities.max_transmission_unit = host.config.mtu;
    let offload = host.config.offload;
    if offload.tcp_segmentation {
        // smoltcp drops packets over IPv6 that are larger than its MTU even if the link would
        // segment them. So the stack configures the largest MTU. The segment size option limits the
        // real segments (clamped in both directions), and each packet's metadata has its segment
        // size.
        let most = offload.max_frame_bytes.min(65_535 + crate::ethernet::HEADER_BYTES)
            - crate::ethernet::HEADER_BYTES;
        capabilities.max_transmission_unit = most;
        capabilities.segmentation.tcpv4 = std::num::NonZeroUsize::new(most);
        capabilities.segmentation.tcpv6 = std::num::NonZeroUsize::new(most);
    }
    capabilities
}

impl Tcp {
    pub(crate) fn new(host: &Host, now: Instant) -> Self {
        let capabilities = capabilities(host);
        let limits = &host.config.limits;
        Tcp {
            time_wait: TimeWait::new(limits.time_wait, host.config.tcp.time_wait),
            interface: interface(host, &capabilities, now, 0),
            narrow: Narrow::new(host, &capabilities, now),
            capabilities,
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
            by_tuple: HashMap::new(),
            listeners: Listeners::new(),
            wheel: Wheel::new(now),
            dirty: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Processes a received segment for one of our addresses.
    pub(crate) fn input(
        &mut self,
        now: Instant,
        host: &mut Host,
        packet: &Packet<'_>,
        verify: bool,
    ) {
        host.counters.tcp_received += 1;
        let Some(seg) = Segment::parse(packet.payload) else {
            host.counters.tcp_malformed += 1;
            return;
        };
        if verify {
            let pseudo = Sum::pseudo(packet.src, packet.dst, ip::TCP, packet.payload.len());
            if pseudo.add(packet.payload).folded() != 0xffff {
                host.counters.rx_checksum += 1;
                return;
            }
        }
        let tuple = Tuple {
            local: SocketAddr::new(packet.dst, seg.dst_port),
            remote: SocketAddr::new(packet.src, seg.src_port),
        };
        if let Some(&index) = self.by_tuple.get(&tuple) {
            return self.process(now, host, index, packet, &seg);
        }
        if let Some(remains) = self.time_wait.get(now, &tuple) {
            let newer = segment::before(remains.receive_next, seg.sequence.wrapping_add(1));
            if seg.flags & (SYN | ACK) == SYN && newer {
                host.counters.tcp_time_wait_reused += 1;
                self.time_wait.remove(&tuple);
            } else {
                // The peer repeats its FIN or an old segment: it has not received our last segment.
                // The stack accepts a reset only at exactly the next sequence number (RFC 1337,
                // RFC 5961 3.2). A peer that reopens the connection with an older number answers
                // our last segment with such a reset.
                if seg.has(RST) && seg.sequence == remains.receive_next {
                    self.time_wait.remove(&tuple);
                } else if !seg.has(RST) && host.errors.take(now) {
                    let at = (remains.send_next, remains.receive_next);
                    self.say(now, host, &tuple, at, ACK);
                }
                return;
            }
        }
        if seg.flags & (SYN | ACK | RST) == SYN && self.open_passive(now, host, tuple, packet, &seg)
        {
            return;
        }
        host.counters.tcp_no_connection += 1;
        if !seg.has(RST) {
            self.refuse(now, host, &tuple, &seg);
        }
    }

    /// Passes a segment to its connection.
    fn process(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        packet: &Packet<'_>,
        seg: &Segment,
    ) {
        host.counters.tcp_visits += 1;
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        // The stack ignores the handshake's last segment while the listener is full. The peer, or
        // our repeated SYN, triggers another one.
        if let Owner::Listener(id) = connection.owner
            && !connection.established
            && connection.state() == State::SynReceived
            && !seg.has(RST)
            && self.listeners.is_full(id)
        {
            host.counters.tcp_accept_overflow += 1;
            return;
        }
        let config = &host.config.tcp;
        let before = connection.state();
        let queued = (connection.socket().recv_queue(), connection.socket().send_queue());
        let mut bytes = packet.bytes;
        if !packet.plain() || seg.has(SYN) {
            make_plain(&mut self.scratch, packet);
            if seg.has(SYN) {
                let tcp = &mut self.scratch[ip::header_len(packet.src)..];
                let header = &mut tcp[..seg.header_bytes];
                let most = connection.path.mss;
                // The stack uses the option only in the handshake; later it would be forged.
                if connection.connecting() {
                    let said = segment::clamp_mss(header, most).filter(|&mss| mss != 0);
                    connection.path.mss = said.unwrap_or(536).max(48).min(most);
                    connection.window_shift = segment::window_shift(header);
                    connection.window.heard_syn(seg.sequence, segment::scales_windows(header));
                }
            }
            bytes = &self.scratch;
        }
        // The acknowledgement of a small segment may wait for data to go with. Delaying that of a
        // large one would slow a sender whose window is still small.
        let large = seg.payload_bytes > connection.path.mss;
        let delay = if large { std::time::Duration::ZERO } else { config.ack_delay };
        connection.socket_mut().set_ack_delay(Some(connection::smol(delay)));
        connection.last_heard = now;
        let (acknowledged, sent_to) = (connection.acknowledged_to, connection.path.sent_to);
        let expected = (connection.acknowledged, config.receive_buffer_bytes);
        connection.recovery.note_peer(seg, expected);
        let header = &packet.payload[..seg.header_bytes];
        let selects = segment::selects_beyond(header, seg.acknowledgement);
        let lost = connection.recovery.heard(now, seg, selects, acknowledged, sent_to);
        connection.note_window(seg);
        let alone = connection.window.place_of_acknowledgement(seg, queued.0);
        give(&mut self.interface, &self.capabilities, now, host, connection, bytes);
        if let Some(sequence) = alone {
            let said = (sequence, seg.acknowledgement, seg.window);
            write_acknowledgement(&mut self.scratch, connection.tuple, said);
            let bytes = &self.scratch;
            give(&mut self.interface, &self.capabilities, now, host, connection, bytes);
        }
        if before != State::Closed && connection.state() == State::Closed && seg.has(RST) {
            host.counters.tcp_resets_received += 1;
            connection.error = Some(match before {
                State::SynSent => SocketError::Refused,
                _ => SocketError::Reset,
            });
        }
        if connection.read_shut || connection.owner == Owner::None {
            self.discard(host, index);
        }
        if lost {
            self.tell_loss(now, host, index);
        }
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && connection.finishing
        {
            connection.finish();
        }
        self.mark(index);
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        let after = (connection.socket().recv_queue(), connection.socket().send_queue());
        if after.0 > queued.0 || after.1 < queued.1 || connection.state() != before {
            self.tell(host, index);
        }
        if self.slots[index as usize].connection.as_ref().is_some_and(|c| c.state() != before) {
            self.settle(now, host, index);
        }
    }

    /// Makes smoltcp retransmit the first unacknowledged segment. The signal is repeated
    /// acknowledgements.
    fn tell_loss(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        // With only a FIN in flight smoltcp would forget that it waits for an acknowledgement.
        if connection.detached || connection.connecting() || connection.socket().send_queue() == 0 {
            return;
        }
        let (sequence, windows) = connection.recovery.tell(connection.acknowledged);
        for window in windows {
            let said = (sequence, connection.acknowledged_to, window);
            write_acknowledgement(&mut self.scratch, connection.tuple, said);
            let bytes = &self.scratch;
            give(&mut self.interface, &self.capabilities, now, host, connection, bytes);
        }
        self.mark(index);
    }

    /// Discards data that the application will never read. If the application has dropped the
    /// connection, the data is lost, and the stack sends a reset (RFC 9293, 3.10.7.3 and RFC 2525,
    /// 2.17).
    fn discard(&mut self, host: &mut Host, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        let lost = connection.socket().recv_queue();
        if lost == 0 {
            return;
        }
        if connection.owner == Owner::None {
            host.counters.tcp_resets_sent += 1;
            connection.socket_mut().abort();
            return;
        }
        while let Ok(len @ 1..) = connection.socket_mut().recv(|data| (data.len(), data.len())) {
            connection.window.read(len);
        }
    }

    /// Queues a connection for a visit.
    fn mark(&mut self, index: u32) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Reports the connection to the application, once until the application checks it.
    fn tell(&mut self, host: &mut Host, index: u32) {
        let slot = &mut self.slots[index as usize];
        if let Some(connection) = slot.connection.as_mut()
            && connection.owner == Owner::Application
            && !connection.told
        {
            connection.told = true;
            let id = TcpId { index, generation: slot.generation };
            host.news.push_back(SocketId::Tcp(id));
        }
    }

    fn get(&mut self, id: TcpId) -> Result<&mut Connection, SocketError> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.connection.as_deref_mut())
            .ok_or(SocketError::NoSocket)
    }

    /// Returns a connection that the application owns.
    fn owned(&mut self, id: TcpId) -> Result<&mut Connection, SocketError> {
        self.get(id).and_then(|connection| match connection.owner {
            Owner::Application => Ok(connection),
            Owner::Listener(_) | Owner::None => Err(SocketError::NoSocket),
        })
    }

    /// Returns the path to `remote` that a new connection's segments take.
    fn path(&self, now: Instant, host: &Host, local: IpAddr, remote: IpAddr) -> Path {
        let headers = ip::header_len(local) + segment::HEADER_BYTES;
        Path {
            local,
            remote,
            local_mss: host.config.mtu - headers,
            mss: host.paths.mtu(now, remote) - headers,
            offload: host.config.offload,
            sent_to: None,
            edge: None,
        }
    }

    /// Makes the next connection start with the sequence number of [`sequence::initial`].
    fn reseed(&mut self, now: Instant, host: &mut Host, tuple: &Tuple) {
        let initial = sequence::initial(now, &host.random, tuple);
        let seed = sequence::seed(initial, host.random.next());
        self.interface = interface(host, &self.capabilities, now, seed);
    }

    /// Returns the number of connections and of TIME-WAIT entries.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.live, self.time_wait.len())
    }
}

/// Makes a bare acknowledgement from the peer; `said` is its sequence number, acknowledgement and
/// unshifted window.
fn write_acknowledgement(packet: &mut Vec<u8>, tuple: Tuple, said: (u32, u32, u16)) {
    let (sequence, acknowledgement, window) = said;
    let ports = (tuple.remote.port(), tuple.local.port());
    let tcp = segment::bare(ports, sequence, acknowledgement, ACK, window);
    let header = Header {
        src: tuple.remote.ip(),
        dst: tuple.local.ip(),
        protocol: ip::TCP,
        hop_limit: 64,
        payload_bytes: tcp.len(),
        fragment: None,
    };
    packet.clear();
    packet.resize(header.len(), 0);
    header.write(packet);
    packet.extend_from_slice(&tcp);
}

/// Passes a packet of a connection to smoltcp, and sends its immediate answer.
fn give(
    interface: &mut Interface,
    capabilities: &DeviceCapabilities,
    now: Instant,
    host: &mut Host,
    connection: &mut Connection,
    packet: &[u8],
) {
    let mut reply = host.outbox.buffer();
    let path = connection.path;
    let packet = Some(packet);
    let mut port = Ingress { packet, path: &path, capabilities, reply: &mut reply, sent: None };
    interface.poll_ingress_single(now.to_smoltcp(), &mut port, connection.sockets());
    if let Some((sent, meta)) = port.sent {
        connection.note_sent(now, &sent);
        host.counters.tcp_sent += 1;
        push_reply(host, reply, meta, connection.tuple.remote.ip());
    } else {
        host.outbox.recycle(reply);
    }
}

/// Creates an interface of smoltcp.
fn interface(host: &Host, capabilities: &DeviceCapabilities, now: Instant, seed: u64) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let unspecified = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    let path = Path {
        local: unspecified,
        remote: unspecified,
        local_mss: 0,
        mss: 0,
        offload: host.config.offload,
        sent_to: None,
        edge: None,
    };
    let mut nothing = Vec::new();
    let mut port =
        Ingress { packet: None, path: &path, capabilities, reply: &mut nothing, sent: None };
    let mut interface = Interface::new(config, &mut port, now.to_smoltcp());
    // The stack has checked the destination address before smoltcp sees the packet.
    interface.set_any_ip(true);
    interface
}

/// Copies the packet to `scratch`, with a header without options.
fn make_plain(scratch: &mut Vec<u8>, packet: &Packet<'_>) {
    let header = Header {
        src: packet.src,
        dst: packet.dst,
        protocol: packet.protocol,
        hop_limit: packet.hop_limit,
        payload_bytes: packet.payload.len(),
        fragment: None,
    };
    scratch.clear();
    scratch.resize(header.len(), 0);
    header.write(scratch);
    scratch.extend_from_slice(packet.payload);
}

/// Queues smoltcp's immediate answer.
fn push_reply(host: &mut Host, bytes: Vec<u8>, meta: crate::Meta, remote: IpAddr) {
    let Some(route) = host.route(remote) else {
        host.counters.no_route += 1;
        return host.outbox.recycle(bytes);
    };
    let to: NextHop = route.to;
    if !host.outbox.push(Frame { bytes, meta, to }) {
        host.counters.transmit_limit += 1;
    }
}

fn smol_endpoint(address: SocketAddr) -> smoltcp::wire::IpEndpoint {
    smoltcp::wire::IpEndpoint::new(address.ip().into(), address.port())
}

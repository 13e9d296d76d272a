//! The path of a received segment.

use std::net::{IpAddr, SocketAddr};

use smoltcp::iface::Interface;
use smoltcp::phy::DeviceCapabilities;
use smoltcp::socket::tcp::State;

use super::connection::{self, Connection, Owner, Tuple};
use super::port::Ingress;
use super::segment::{self, ACK, RST, SYN, Segment};
use super::table::Tcp;
use crate::checksum::Sum;
use crate::host::Host;
use crate::ip::{self, Header, Packet};
use crate::outbox::{Frame, NextHop};
use crate::{Instant, SocketError};

/// A connection's state before a segment.
#[derive(Clone, Copy)]
struct Before {
    state: State,
    /// Received bytes that the application has not read.
    unread: usize,
    /// Written bytes that the peer has not acknowledged.
    unsent: usize,
}

impl Before {
    fn of(connection: &Connection) -> Before {
        let socket = connection.socket();
        let (unread, unsent) = (socket.recv_queue(), socket.send_queue());
        Before { state: connection.state(), unread, unsent }
    }
}

impl Tcp {
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
                self.time_wait.remove(&tuple, &mut self.ports);
            } else {
                // The peer repeats its FIN or an old segment: it has not received our last segment.
                // The stack accepts a reset only at exactly the next sequence number (RFC 1337,
                // RFC 5961 3.2). A peer that reopens the connection with an older number answers
                // our last segment with such a reset.
                if seg.has(RST) && seg.sequence == remains.receive_next {
                    self.time_wait.remove(&tuple, &mut self.ports);
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
    pub(super) fn process(
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
        let before = Before::of(connection);
        let lost = self.hear(now, host, index, packet, seg);
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        if before.state != State::Closed && connection.state() == State::Closed && seg.has(RST) {
            host.counters.tcp_resets_received += 1;
            connection.error = Some(match before.state {
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
        self.follow_up(now, host, index, before);
    }

    /// Passes a segment to smoltcp, and notes in it what smoltcp does not. Returns `true` if the
    /// segment shows a loss.
    fn hear(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        packet: &Packet<'_>,
        seg: &Segment,
    ) -> bool {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return false };
        let unread = connection.socket().recv_queue();
        let config = &host.config.tcp;
        let mut bytes = packet.bytes;
        if !packet.plain() || seg.has(SYN) {
            make_plain(&mut self.scratch, packet);
            if seg.has(SYN) {
                let tcp = &mut self.scratch[ip::header_len(packet.src)..];
                note_options(connection, &mut tcp[..seg.header_bytes], seg);
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
        let alone = connection.window.place_of_acknowledgement(seg, unread);
        give(&mut self.interface, &self.capabilities, now, host, connection, bytes);
        if let Some(sequence) = alone {
            let said = (sequence, seg.acknowledgement, seg.window);
            write_acknowledgement(&mut self.scratch, connection.tuple, said);
            let bytes = &self.scratch;
            give(&mut self.interface, &self.capabilities, now, host, connection, bytes);
        }
        lost
    }

    /// Applies the consequences of a segment that the connection has processed.
    fn follow_up(&mut self, now: Instant, host: &mut Host, index: u32, before: Before) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && connection.finishing
        {
            connection.finish();
        }
        self.mark(index);
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        let after = Before::of(connection);
        let changed = after.state != before.state;
        if after.unread > before.unread || after.unsent < before.unsent || changed {
            self.tell(host, index);
        }
        if self.slots[index as usize].connection.as_ref().is_some_and(|c| c.state() != before.state)
        {
            self.settle(now, host, index);
        }
    }

    /// Makes smoltcp retransmit the first unacknowledged segment. The signal is repeated
    /// acknowledgements.
    pub(super) fn tell_loss(&mut self, now: Instant, host: &mut Host, index: u32) {
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
    pub(super) fn discard(&mut self, host: &mut Host, index: u32) {
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
}

/// Takes over the options of a SYN, and clamps its segment size to the path's.
fn note_options(connection: &mut Connection, header: &mut [u8], seg: &Segment) {
    // The stack uses the options only in the handshake; later they would be forged.
    if connection.connecting() {
        let most = connection.path.mss;
        let said = segment::clamp_mss(header, most).filter(|&mss| mss != 0);
        connection.path.mss = said.unwrap_or(536).max(48).min(most);
        connection.window_shift = segment::window_shift(header);
        connection.window.heard_syn(seg.sequence, segment::scales_windows(header));
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

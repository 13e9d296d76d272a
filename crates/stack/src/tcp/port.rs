//! The device between smoltcp's interface and frames: one packet in, or one packet out.
//!
//! smoltcp handles IP packets without checksums, up to the size of a segmented frame. This module
//! completes smoltcp's packets: segment size option, full or partial checksum, segmentation.

use std::net::IpAddr;

use smoltcp::phy::{Device, DeviceCapabilities, RxToken, TxToken};
use smoltcp::time::Instant as SmolInstant;

use super::segment::{self, CHECKSUM_AT, HEADER_BYTES, Segment, before};
use crate::checksum::Sum;
use crate::ethernet::{self, HEADER_BYTES as ETHERNET_BYTES};
use crate::{Checksum, Counters, Meta, Offload, Segmentation, SegmentationKind, Transmit, ip};

/// The properties that all packets of a connection share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    /// The segment size that our SYN offers, in bytes.
    pub(super) local_mss: usize,
    /// Payload bytes of a segment.
    pub(super) mss: usize,
    pub(super) offload: Offload,
    /// The end of all data ever sent.
    pub(super) sent_to: Option<u32>,
    /// The end of the peer's window.
    pub(super) edge: Option<u32>,
}

impl Path {
    fn header_bytes(&self) -> usize {
        ip::header_len(self.local)
    }

    /// Completes an IP packet of smoltcp, except for the offloads of the link.
    fn finish(&self, packet: &mut [u8]) -> Meta {
        let header = self.header_bytes();
        let (ip_header, tcp) = packet.split_at_mut(header);
        if tcp[13] & segment::SYN != 0 {
            let end = usize::from(tcp[12] >> 4) * 4;
            segment::clamp_mss(&mut tcp[..end], self.local_mss);
        }
        // When smoltcp retransmits, it goes back in sequence, and sends acknowledgements with the
        // sequence number that it went back to. To the peer such a segment is old, and its
        // acknowledgement does not count. If both sides do that at once, neither ever accepts the
        // other's acknowledgements. An acknowledgement belongs at the end of the sent data
        // (RFC 9293, 3.10.7.4: SND.NXT), but not beyond the peer's window, where a probe may have
        // been.
        let payload = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        if payload == 0 && tcp[13] & (segment::SYN | segment::FIN | segment::RST) == 0 {
            let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            let inside = |edge| self.sent_to.map(|to| if before(edge, to) { edge } else { to });
            let end = self.edge.map_or(self.sent_to, inside);
            if let Some(to) = end.filter(|&to| before(sequence, to)) {
                tcp[4..8].copy_from_slice(&to.to_be_bytes());
            }
        }
        if self.local.is_ipv4() {
            // smoltcp leaves identification zero and sets "do not fragment".
            ip_header[10..12].fill(0);
            let sum = Sum::default().add(ip_header).finish();
            ip_header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let pseudo = Sum::pseudo(self.local, self.remote, ip::TCP, tcp.len());
        tcp[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
        if !self.offload.checksum {
            let sum = pseudo.add(tcp).finish();
            tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
            return Meta::FULL;
        }
        tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&pseudo.folded().to_be_bytes());
        self.partial()
    }

    fn partial(&self) -> Meta {
        let start = (ETHERNET_BYTES + self.header_bytes()) as u16;
        let checksum = Checksum::Partial { start, offset: CHECKSUM_AT as u16 };
        Meta { checksum, segmentation: None }
    }

    /// Returns the metadata of a packet of `len` bytes. smoltcp sends payload only after headers
    /// without options, so the length tells whether the link must segment the packet.
    fn meta(&self, len: usize) -> Meta {
        let headers = self.header_bytes() + HEADER_BYTES;
        if len > headers + self.mss && self.offload.tcp_segmentation {
            let kind = match self.local {
                IpAddr::V4(_) => SegmentationKind::Tcp4,
                IpAddr::V6(_) => SegmentationKind::Tcp6,
            };
            let segmentation = Some(Segmentation {
                kind,
                segment_bytes: self.mss as u16,
                header_bytes: (ETHERNET_BYTES + headers) as u16,
                ecn: false,
            });
            return Meta { segmentation, ..self.partial() };
        }
        if self.offload.checksum { self.partial() } else { Meta::FULL }
    }
}

/// A sent segment, for the connection's bookkeeping outside smoltcp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) sequence: u32,
    pub(super) len: u32,
    pub(super) acknowledgement: u32,
    pub(super) flags: u8,
    /// The header's value, not shifted.
    pub(super) window: u16,
    /// In a SYN, the shift of later windows.
    pub(super) window_shift: u8,
}

impl Sent {
    fn of(tcp: &[u8]) -> Option<Sent> {
        let segment = Segment::parse(tcp)?;
        Some(Sent {
            sequence: segment.sequence,
            len: segment.len(),
            acknowledgement: segment.acknowledgement,
            flags: segment.flags,
            window: segment.window,
            window_shift: if segment.has(segment::SYN) {
                segment::window_shift(&tcp[..segment.header_bytes])
            } else {
                0
            },
        })
    }
}

/// One packet in; smoltcp's immediate answer goes into `reply`, a whole frame.
pub(super) struct Ingress<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) path: &'a Path,
    pub(super) capabilities: &'a DeviceCapabilities,
    pub(super) reply: &'a mut Vec<u8>,
    pub(super) sent: Option<(Sent, Meta)>,
}

/// smoltcp's end of the received packet.
pub(super) struct Packet<'a>(&'a [u8]);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// smoltcp's end of the reply.
pub(super) struct Reply<'a> {
    path: &'a Path,
    buffer: &'a mut Vec<u8>,
    sent: &'a mut Option<(Sent, Meta)>,
}

impl TxToken for Reply<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.buffer.clear();
        self.buffer.resize(ETHERNET_BYTES + len, 0);
        let packet = &mut self.buffer[ETHERNET_BYTES..];
        let result = f(packet);
        let sent = Sent::of(&packet[self.path.header_bytes()..]);
        let meta = self.path.finish(packet);
        *self.sent = sent.map(|sent| (sent, meta));
        result
    }
}

impl Device for Ingress<'_> {
    type RxToken<'b>
        = Packet<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Reply<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: SmolInstant) -> Option<(Packet<'_>, Reply<'_>)> {
        let packet = self.packet.take()?;
        let reply = Reply { path: self.path, buffer: self.reply, sent: &mut self.sent };
        Some((Packet(packet), reply))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Reply<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

/// One packet out, written directly into the link's frame.
pub(super) struct Egress<'a, T> {
    pub(super) link: &'a mut T,
    pub(super) path: &'a Path,
    pub(super) capabilities: &'a DeviceCapabilities,
    pub(super) stations: ([u8; 6], [u8; 6]),
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) counters: &'a mut Counters,
    pub(super) sent: Option<Sent>,
}

/// smoltcp's end of the outgoing packet.
pub(super) struct Outgoing<'a, T> {
    link: &'a mut T,
    path: &'a Path,
    stations: ([u8; 6], [u8; 6]),
    scratch: &'a mut Vec<u8>,
    counters: &'a mut Counters,
    sent: &'a mut Option<Sent>,
}

impl<T: Transmit> Outgoing<'_, T> {
    fn count(&mut self, taken: bool, len: usize) {
        if taken {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += len as u64;
        } else {
            self.counters.tcp_transmit_refused += 1;
        }
    }

    /// Segments the packet in the scratch buffer. The path's MTU became smaller than smoltcp knows,
    /// and the link does not segment.
    fn cut(&mut self) {
        let headers = self.path.header_bytes() + HEADER_BYTES;
        let mut packet = std::mem::take(self.scratch);
        let (head, payload) = packet.split_at_mut(headers);
        let mut offset = 0;
        let first = u32::from_be_bytes(
            head[self.path.header_bytes() + 4..][..4].try_into().unwrap_or_default(),
        );
        while offset < payload.len() {
            let len = self.path.mss.min(payload.len() - offset);
            let last = offset + len == payload.len();
            let total = ETHERNET_BYTES + headers + len;
            let part = &payload[offset..offset + len];
            let meta = self.path.meta(headers + len);
            let path = self.path;
            let (dst, src) = self.stations;
            let taken = self.link.transmit(total, meta, |frame| {
                ethernet::write(frame, dst, src, ip::ethertype(path.local));
                let packet = &mut frame[ETHERNET_BYTES..];
                packet[..headers].copy_from_slice(head);
                packet[headers..].copy_from_slice(part);
                let ip_header = path.header_bytes();
                if path.local.is_ipv4() {
                    packet[2..4].copy_from_slice(&((headers + len) as u16).to_be_bytes());
                } else {
                    packet[4..6].copy_from_slice(&((HEADER_BYTES + len) as u16).to_be_bytes());
                }
                let tcp = &mut packet[ip_header..];
                tcp[4..8].copy_from_slice(&first.wrapping_add(offset as u32).to_be_bytes());
                if !last {
                    // FIN and PSH belong to the last byte.
                    tcp[13] &= !(segment::FIN | 8);
                }
                path.finish(packet);
            });
            self.count(taken, total);
            offset += len;
        }
        *self.scratch = packet;
    }
}

impl<T: Transmit> TxToken for Outgoing<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, f: F) -> R {
        let headers = self.path.header_bytes() + HEADER_BYTES;
        let fits = len <= headers + self.path.mss.max(64) || self.path.offload.tcp_segmentation;
        if !fits {
            self.scratch.clear();
            self.scratch.resize(len, 0);
            let result = f(self.scratch);
            *self.sent = Sent::of(&self.scratch[self.path.header_bytes()..]);
            self.cut();
            return result;
        }
        let meta = self.path.meta(len);
        let total = ETHERNET_BYTES + len;
        let mut f = Some(f);
        let mut result = None;
        let path = self.path;
        let mut sent = None;
        let stations = self.stations;
        let taken = self.link.transmit(total, meta, |frame| {
            let (dst, src) = stations;
            ethernet::write(frame, dst, src, ip::ethertype(path.local));
            let packet = &mut frame[ETHERNET_BYTES..];
            if let Some(f) = f.take() {
                result = Some(f(packet));
            }
            sent = Sent::of(&packet[path.header_bytes()..]);
            path.finish(packet);
        });
        *self.sent = sent;
        self.count(taken, total);
        match (result, f) {
            (Some(result), _) => result,
            // The link reported room and then refused. smoltcp must still write its segment, which
            // counts as lost.
            (None, Some(f)) => {
                self.scratch.clear();
                self.scratch.resize(len, 0);
                let result = f(self.scratch);
                *self.sent = Sent::of(&self.scratch[self.path.header_bytes()..]);
                result
            }
            (None, None) => unreachable!("a called closure has a result"),
        }
    }
}

impl<T: Transmit> Device for Egress<'_, T> {
    type RxToken<'b>
        = Packet<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Outgoing<'b, T>
    where
        Self: 'b;

    fn receive(&mut self, _: SmolInstant) -> Option<(Packet<'_>, Outgoing<'_, T>)> {
        None
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Outgoing<'_, T>> {
        Some(Outgoing {
            link: self.link,
            path: self.path,
            stations: self.stations,
            scratch: self.scratch,
            counters: self.counters,
            sent: &mut self.sent,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

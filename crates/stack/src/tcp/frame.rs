//! The frame of a segment: Ethernet, IP and TCP headers, payload, checksum or offload metadata.

use std::net::IpAddr;

use super::connection::Connection;
use super::plan::Plan;
use super::pool::Pool;
use super::segment::{CHECKSUM_AT, CWR, HEADER_BYTES};
use crate::checksum::Sum;
use crate::ethernet::HEADER_BYTES as ETHERNET_BYTES;
use crate::{Checksum, Meta, Offload, Segmentation, SegmentationKind, ethernet, ip};

/// The size and the metadata of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    pub(super) meta: Meta,
    /// The length of Ethernet and IP header together.
    network: usize,
}

impl Shape {
    /// Returns the shape of a segment's frame.
    pub(super) fn of(plan: &Plan, local: IpAddr, offload: &Offload) -> Shape {
        let network = ETHERNET_BYTES + ip::header_len(local);
        let headers = network + HEADER_BYTES + plan.options.as_slice().len();
        let checksum = match offload.checksum {
            true => Checksum::Partial { start: network as u16, offset: CHECKSUM_AT as u16 },
            false => Checksum::Full,
        };
        let segmentation = (plan.len > plan.segment).then_some(Segmentation {
            kind: match local {
                IpAddr::V4(_) => SegmentationKind::Tcp4,
                IpAddr::V6(_) => SegmentationKind::Tcp6,
            },
            segment_bytes: plan.segment as u16,
            header_bytes: headers as u16,
            ecn: plan.header.flags & CWR != 0,
        });
        Shape { bytes: headers + plan.len, meta: Meta { checksum, segmentation }, network }
    }
}

/// Writes the whole frame. `stations`: the receiver's MAC address, and the sender's.
pub(super) fn write(
    frame: &mut [u8],
    shape: &Shape,
    stations: ([u8; 6], [u8; 6]),
    connection: &Connection,
    plan: &Plan,
    pool: &Pool,
) {
    let (local, remote) = (connection.tuple.local.ip(), connection.tuple.remote.ip());
    ethernet::write(frame, stations.0, stations.1, ip::ethertype(local));
    let header = ip::Header {
        src: local,
        dst: remote,
        protocol: ip::TCP,
        hop_limit: connection.hop_limit,
        traffic_class: connection.traffic_class,
        payload_bytes: frame.len() - shape.network,
        fragment: None,
    };
    let packet = &mut frame[ETHERNET_BYTES..];
    header.write(packet);
    if plan.markable {
        ip::mark_capable(packet, local);
    }
    let tcp = &mut frame[shape.network..];
    let options = plan.options.as_slice();
    plan.header.write(tcp, options);
    let payload = HEADER_BYTES + options.len();
    connection.sending.buffer.read(pool, plan.offset, &mut tcp[payload..]);
    let pseudo = Sum::pseudo(local, remote, ip::TCP, tcp.len());
    let sum = match shape.meta.checksum {
        Checksum::Partial { .. } => pseudo.folded(),
        _ => pseudo.add(tcp).finish(),
    };
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

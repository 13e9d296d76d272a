//! The check of packets with offload work left: large ones, partial checksums, tags to insert.

use towpath_device::{Meta, TagProtocol, VlanTag};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::headers::{Headers, PROTOCOL_TCP};
use towpath_packet::transport::Transport;

use super::far::FarEnd;
use super::frames::cuts;
use super::near::{FAR_MAC, NEAR_MAC, Near, Outgoing, drain};
use crate::random::Random;

/// Returns whether `got` is all of `sent`, either unchanged, with its metadata, or segmented with
/// full checksums. An error describes a difference.
fn is_whole(got: &[(Vec<u8>, Meta)], sent: &[u8], meta: Meta) -> Result<bool, String> {
    let Some((first, got_meta)) = got.first() else { return Ok(false) };
    if !got_meta.is_full() {
        let mut wanted = meta;
        if let (Some(wanted), Some(got)) = (&mut wanted.segmentation, got_meta.segmentation) {
            // A device need not deliver the length of the headers.
            if got.header_bytes == 0 {
                wanted.header_bytes = 0;
            }
        }
        if *got_meta != wanted || first != sent {
            return Err(format!("{got_meta:?} of {} bytes is not {meta:?}", first.len()));
        }
        return Ok(true);
    }
    let payload = |frame: &[u8]| -> Result<Vec<u8>, String> {
        let headers = Headers::parse(frame, frame.len()).map_err(|error| format!("{error:?}"))?;
        let l4 = headers.l4_offset().ok_or("no transport header")?;
        let end = headers.ip_end().ok_or("no IP")?;
        let header = match headers.transport() {
            Transport::Tcp { header_bytes, .. } => usize::from(header_bytes),
            Transport::Udp { .. } => 8,
            other => return Err(format!("{other:?}")),
        };
        Ok(frame[l4 + header..end].to_vec())
    };
    let mut bytes = Vec::new();
    for (frame, meta) in got {
        if VlanTag::of(frame) != VlanTag::of(sent) {
            let (got, wanted) = (VlanTag::of(frame), VlanTag::of(sent));
            return Err(format!("the tag {got:?} in place of {wanted:?}"));
        }
        let headers = Headers::parse(frame, frame.len()).map_err(|error| format!("{error:?}"))?;
        if !meta.is_full() || verify(frame, &headers) != Verdict::Right {
            return Err(format!("a wrong checksum in a frame of {} bytes", frame.len()));
        }
        if let Some(segmentation) = meta_segment_bytes(sent, headers.protocol(), frame) {
            return Err(segmentation);
        }
        bytes.extend(payload(frame)?);
    }
    let wanted = payload(sent)?;
    if !wanted.starts_with(&bytes) {
        return Err("the bytes differ from those sent".to_owned());
    }
    Ok(bytes.len() == wanted.len())
}

/// Returns an error text if a TCP frame with a full checksum comes from a large packet and was not
/// segmented.
fn meta_segment_bytes(sent: &[u8], protocol: Option<u8>, frame: &[u8]) -> Option<String> {
    (protocol == Some(PROTOCOL_TCP) && sent.len() > 20_000 && frame.len() > 2_000)
        .then(|| format!("a frame of {} bytes that was not segmented", frame.len()))
}

/// The tag that devices with `tx_tag` insert.
const TAG: VlanTag = VlanTag { protocol: TagProtocol::Customer, control: 0xe007 };

pub(super) fn metadata(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let mut random = Random::new(seed);
    let payload: Vec<u8> = (0..60_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut packets = Vec::new();
    for (from, to, outward) in [(NEAR_MAC, FAR_MAC, true), (FAR_MAC, NEAR_MAC, false)] {
        for flow in [Flow::v4(), Flow::v6()].map(|flow| flow.macs(from, to)) {
            let segment_bytes = (near.info.mtu - 60) as u16;
            let kinds = |flow: Flow| {
                [
                    flow.udp_partial(&payload[..1000]),
                    flow.tcp_partial(&Tcp::default(), &payload[..999]),
                    flow.tcp_large(&Tcp::default(), &payload, segment_bytes),
                    (flow.udp(&payload[..60]), Meta::FULL),
                    (flow.udp(&payload[..700]), Meta::FULL),
                ]
            };
            packets.extend(kinds(flow).map(|packet| (outward, None, packet.clone(), packet)));
            if outward && near.info.can.tx_tag {
                let on_wire = kinds(flow.vlan(TAG.control));
                let tagged = kinds(flow).into_iter().zip(on_wire);
                packets.extend(tagged.map(|(packet, wire)| (outward, Some(TAG), packet, wire)));
            }
        }
    }
    let can = near.info.can;
    for (outward, tag, (frame, meta), (on_wire, wire_meta)) in packets {
        let mut got = Vec::new();
        let mut sent = false;
        let goal = format!("{meta:?}, {tag:?}, sent by the device: {outward}");
        if outward {
            let takes = match meta.segmentation {
                Some(_) => can.tx_checksum && can.tx_segmentation || can.tx_large_copied,
                None => can.tx_checksum || meta.is_full(),
            };
            if !takes {
                continue;
            }
            let cuts = cuts(&mut random, frame.len(), near.info.limits.tx_packet_parts);
            let packet = Outgoing { bytes: &frame, cuts: &cuts, meta, tag };
            near.run_until(&goal, |near, _| {
                sent = sent || near.offer(std::slice::from_ref(&packet)) == 1;
                drain(far, &mut got);
                is_whole(&got, &on_wire, wire_meta).expect("as it was sent")
                    && near.outstanding() == 0
            });
        } else if far.takes_metadata() {
            near.run_until(&goal, |_, received| {
                sent = sent || far.send(&frame, meta);
                is_whole(received, &frame, meta).expect("as it was sent")
            });
        }
    }
}

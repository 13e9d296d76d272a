//! The check of what a device may report beside a packet's bytes: a VLAN tag that it removed, and
//! the hash of the packet's flow.

use towpath_device::Meta;
use towpath_packet::build::{Flow, Tcp};

use super::far::FarEnd;
use super::near::{FAR_MAC, NEAR_MAC, Near, drain};

/// Sends several packets of each of several flows to the device, with and without a tag. The suite
/// puts a removed tag back, so all packets must arrive as they were sent. Packets of one flow have
/// one hash.
pub(super) fn tags_and_hashes(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    let flows: Vec<Flow> = [Flow::v4(), Flow::v6()]
        .into_iter()
        .flat_map(|flow| (1..=3).map(move |port| flow.macs(FAR_MAC, NEAR_MAC).ports(port, 7)))
        // A number, a priority beside it, and a priority alone.
        .flat_map(|flow| [flow, flow.vlan(7), flow.vlan(0xe007), flow.vlan(0xe000)])
        .collect();
    let mut sent: Vec<(usize, Vec<u8>)> = Vec::new();
    for round in 0..3 {
        for (number, flow) in flows.iter().enumerate() {
            // Several buffers where these are small, and one that ends with the packet.
            let payload = vec![number as u8; [18, 900, 1400][round]];
            sent.push((number, flow.udp(&payload)));
            sent.push((number, flow.tcp(&Tcp::default(), &payload)));
        }
    }
    near.hashes.clear();
    let mut fed = 0;
    let received = near.run_until("packets of several flows", |_, received| {
        // A wire may lose frames that the receiver does not take in time.
        if fed < sent.len() && fed - received.len() < 16 && far.send(&sent[fed].1, Meta::FULL) {
            fed += 1;
        }
        // A far end that is a device itself works only when the suite calls it.
        drain(far, &mut Vec::new());
        received.len() >= sent.len()
    });
    assert_eq!(near.hashes.len(), sent.len(), "{}: hashes", near.what());
    let mut of_flow = vec![None; flows.len() * 2];
    for (at, ((number, frame), (got, meta))) in sent.iter().zip(&received).enumerate() {
        assert!(got == frame, "{}: packet {at} differs:\n{got:x?}\n{frame:x?}", near.what());
        assert!(meta.is_full(), "{}: packet {at} has offload work left", near.what());
        let hash = near.hashes[at];
        // UDP and TCP are two flows.
        let first = of_flow[number * 2 + at % 2].get_or_insert(hash);
        assert_eq!(*first, hash, "{}: hashes of flow {number}", near.what());
    }
}

//! Parsing headers: never a panic, no offset outside the packet, the same result from a prefix as
//! from the whole frame, and the same as etherparse where both parse the frame.
#![no_main]

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use libfuzzer_sys::fuzz_target;
use towpath_packet::checksum::verify;
use towpath_packet::headers::{Headers, Malformed, Network, PREFIX_BYTES};
use towpath_packet::pattern::{BEGINNING_BYTES, Pattern};
use towpath_packet::plain::{self, Plain};
use towpath_packet::{igmp, mld};

/// The pattern of a frame matches a frame with one changed byte exactly if this one is plain and
/// has the same fields. The last two bytes choose the place and the change.
fn compare_with_changed(frame: &[u8]) {
    let (Some(plain), [.., place, change]) = (plain::read(frame, frame.len()), frame) else {
        return;
    };
    let mut changed = frame.to_vec();
    changed[usize::from(*place) % frame.len()] ^= change;
    let beginning = |frame: &[u8], rest: u8| -> [u8; BEGINNING_BYTES] {
        std::array::from_fn(|at| frame.get(at).copied().unwrap_or(rest))
    };
    let matches = Pattern::of(&plain, &beginning(frame, *change))
        .matches(&beginning(&changed, !change), changed.len());
    assert_eq!(matches, plain::read(&changed, changed.len()) == Some(plain));
}

fuzz_target!(|frame: &[u8]| {
    // Queries of multicast groups, as messages and as a frame, and options that may hold a router alert.
    let _ = (igmp::Query::parse(frame), mld::Query::parse(frame), mld::Query::of_frame(frame));
    let _ = (igmp::has_router_alert(frame), mld::has_router_alert(frame));
    let Ok(whole) = Headers::parse(frame, frame.len()) else {
        assert!(frame.len() < 14);
        return;
    };
    assert!(whole.ip_end().unwrap_or(0) <= frame.len());
    assert!(whole.l4_offset().unwrap_or(0) <= whole.ip_end().unwrap_or(0));
    let _ = verify(frame, &whole);
    let _ = whole.quoted(frame);

    let copied = &frame[..frame.len().min(PREFIX_BYTES)];
    let prefix = Headers::parse(copied, frame.len()).expect("as long as the whole's header");
    assert!(prefix == whole || prefix.malformed == Some(Malformed::BeyondPrefix));
    assert_eq!(plain::read(frame, frame.len()), Plain::of(&whole));
    let short = plain::read(&frame[..frame.len().min(60)], frame.len());
    assert!(short.is_none() || short == Plain::of(&whole));
    let _ = plain::read(frame, frame.len() / 2);
    compare_with_changed(frame);
    // A caller that states a wrong length gets some answer.
    let _ = Headers::parse(frame, frame.len() / 2);
    let _ = Headers::parse(frame, usize::MAX);

    if whole.malformed.is_some() {
        return;
    }
    let Ok(theirs) = SlicedPacket::from_ethernet(frame) else { return };
    match (&whole.network, &theirs.net) {
        (Network::Ipv4(ip), Some(NetSlice::Ipv4(theirs))) => {
            assert_eq!(ip.source, theirs.header().source_addr().to_bits());
            assert_eq!(ip.destination, theirs.header().destination_addr().to_bits());
            assert_eq!(ip.protocol, theirs.header().protocol().0);
        }
        (Network::Ipv6(ip), Some(NetSlice::Ipv6(theirs))) => {
            assert_eq!(ip.source, theirs.header().source_addr().to_bits());
            assert_eq!(ip.destination, theirs.header().destination_addr().to_bits());
        }
        _ => return,
    }
    // Where both found ports, the ports are the same. (etherparse walks mobility headers and IPv4's
    // authentication header, too.)
    let ports = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        _ => return,
    };
    assert!(whole.ports().is_none_or(|ours| ours == ports), "{whole:?} {ports:?}");
});

//! How large the packets are that the link is to cut, for peers with small segments.
//!
//! The link cuts a packet into at most [`MAX_SENT_SEGMENTS`] segments of at least [`MIN_SEGMENT_BYTES`].
//! smoltcp makes packets as large as its interface says, and asks an interface with each packet: so a
//! connection to a peer with small segments sends through an interface that says less.

use std::num::NonZeroUsize;

use smoltcp::iface::Interface;
use smoltcp::phy::DeviceCapabilities;
use towpath_packet::offload::{MAX_SENT_SEGMENTS, MIN_SEGMENT_BYTES};

use super::interface;
use crate::Instant;
use crate::host::Host;

/// The least segment sizes of the interfaces, in bytes. From the last on any packet is cut into few
/// enough segments.
const LEAST: [usize; 4] = [0, MIN_SEGMENT_BYTES as usize, 160, 320];
/// Of these sizes the largest packet takes no more segments than may be.
const ENOUGH: usize = 512;

const _: () = assert!((ENOUGH * MAX_SENT_SEGMENTS) > 0xffff - 40);

/// Interfaces for small segments.
pub(super) struct Narrow([Option<Interface>; LEAST.len()]);

impl Narrow {
    /// None of them, where the link does not cut.
    pub(super) fn new(host: &Host, capabilities: &DeviceCapabilities, now: Instant) -> Narrow {
        Narrow(LEAST.map(|least| {
            let segmentation = &capabilities.segmentation;
            segmentation.tcpv4.or(segmentation.tcpv6)?;
            let mut less = capabilities.clone();
            // Headers come on top, so what is said is a little less than what may be.
            let most = NonZeroUsize::new(least * MAX_SENT_SEGMENTS);
            let least_of =
                |may: Option<NonZeroUsize>| may.zip(most).map(|(may, most)| may.min(most));
            less.segmentation.tcpv4 = least_of(segmentation.tcpv4);
            less.segmentation.tcpv6 = least_of(segmentation.tcpv6);
            Some(interface(host, &less, now, 0))
        }))
    }

    /// The one for segments of so many bytes; `None`: any packet may be cut into those.
    pub(super) fn of(&mut self, segment_bytes: usize) -> Option<&mut Interface> {
        if segment_bytes >= ENOUGH {
            return None;
        }
        let place = LEAST.iter().rposition(|least| *least <= segment_bytes)?;
        self.0[place].as_mut()
    }
}

//! The size of large packets that the link segments, for peers with small segments.
//!
//! The link segments a packet into at most [`MAX_SENT_SEGMENTS`] segments of at least
//! [`MIN_SEGMENT_BYTES`]. smoltcp makes packets as large as its interface allows; the caller
//! chooses the interface per packet. So a connection to a peer with small segments sends through an
//! interface with a lower limit.

use std::num::NonZeroUsize;

use smoltcp::iface::Interface;
use smoltcp::phy::DeviceCapabilities;
use towpath_packet::offload::{MAX_SENT_SEGMENTS, MIN_SEGMENT_BYTES};

use super::interface::interface;
use crate::Instant;
use crate::host::Host;

/// The minimum segment sizes of the interfaces, in bytes.
const LEAST: [usize; 4] = [0, MIN_SEGMENT_BYTES as usize, 160, 320];
/// The largest packet in segments of this size takes at most the allowed number of segments.
const ENOUGH: usize = 512;

const _: () = assert!((ENOUGH * MAX_SENT_SEGMENTS) > 0xffff - 40);

/// Interfaces for small segments.
pub(super) struct Narrow([Option<Interface>; LEAST.len()]);

impl Narrow {
    /// Creates the interfaces; none if the link does not segment.
    pub(super) fn new(host: &Host, capabilities: &DeviceCapabilities, now: Instant) -> Narrow {
        Narrow(LEAST.map(|least| {
            let segmentation = &capabilities.segmentation;
            segmentation.tcpv4.or(segmentation.tcpv6)?;
            let mut less = capabilities.clone();
            // Headers come on top, so the interface's limit is a little below the true one.
            let most = NonZeroUsize::new(least * MAX_SENT_SEGMENTS);
            let least_of =
                |may: Option<NonZeroUsize>| may.zip(most).map(|(may, most)| may.min(most));
            less.segmentation.tcpv4 = least_of(segmentation.tcpv4);
            less.segmentation.tcpv6 = least_of(segmentation.tcpv6);
            Some(interface(host, &less, now, 0))
        }))
    }

    /// Returns the interface for segments of `segment_bytes`; `None` if packets need no lower
    /// limit.
    pub(super) fn of(&mut self, segment_bytes: usize) -> Option<&mut Interface> {
        if segment_bytes >= ENOUGH {
            return None;
        }
        let place = LEAST.iter().rposition(|least| *least <= segment_bytes)?;
        self.0[place].as_mut()
    }
}

//! The last plain packet that an endpoint sent, for packets that repeat its headers.
//!
//! Most sockets send to one address, and most packets of a flow differ only in their payload. For
//! such a packet, a comparison of its beginning replaces the reading of its headers, the check of
//! the endpoint's rights and the lookup of its receiver. All three depend only on the compared
//! fields, on the endpoint, and on the flow rules: an endpoint's rights do not change while it
//! exists, and a change of the flow rules ends the comparison.
//!
//! An endpoint whose packets alternate between addresses would pay for comparisons in vain. After
//! `MISSES` of them in a row it rests for `REST` packets.

use towpath_packet::pattern::{BEGINNING_BYTES, Pattern};
use towpath_packet::plain::Plain;

use crate::demux::Destination;

/// Comparisons in vain, in a row, after which an endpoint rests.
const MISSES: u8 = 4;
/// Packets of a resting endpoint without a comparison.
const REST: u8 = 64;

/// What the engine found for the last plain packet that an endpoint was allowed to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastSent {
    pattern: Pattern,
    /// The packet's receiver on this host.
    found: Option<Destination>,
    /// The number of changes of the flow rules at that time.
    changes: u64,
    misses: u8,
    /// Packets until the next comparison.
    rest: u8,
}

impl LastSent {
    /// Returns the receiver of a packet of `len` bytes that repeats the headers, `Some(None)` if
    /// it has none on this host, and `None` if the engine has to find out.
    #[inline(always)]
    pub(crate) fn ask(
        &mut self,
        beginning: &[u8; BEGINNING_BYTES],
        len: usize,
        changes: u64,
    ) -> Option<Option<Destination>> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        if self.changes != changes || !self.pattern.matches(beginning, len) {
            self.misses += 1;
            if self.misses == MISSES {
                // The next series of comparisons is a shorter one.
                (self.misses, self.rest) = (MISSES - 2, REST);
            }
            return None;
        }
        self.misses = 0;
        Some(self.found)
    }

    /// Remembers what the engine found for a packet that did not repeat the headers.
    pub(crate) fn remember(
        &mut self,
        plain: &Plain,
        beginning: &[u8; BEGINNING_BYTES],
        found: Option<Destination>,
        changes: u64,
    ) {
        if self.rest == 0 {
            self.pattern = Pattern::of(plain, beginning);
            (self.found, self.changes) = (found, changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_packet::build::Flow;
    use towpath_packet::plain;

    use super::*;

    const HERE: Option<Destination> = Some(Destination { session: 3, endpoint: 4 });

    fn beginning(port: u16) -> ([u8; BEGINNING_BYTES], usize) {
        let frame = Flow { destination_port: port, ..Flow::v4() }.udp(&[7; 40]);
        let mut beginning = [0; BEGINNING_BYTES];
        beginning[..frame.len()].copy_from_slice(&frame);
        (beginning, frame.len())
    }

    /// Sends packets to ports. Returns those that repeated the headers of their predecessors.
    fn send(last: &mut LastSent, ports: impl Iterator<Item = u16>, changes: u64) -> usize {
        let mut repeated = 0;
        for port in ports {
            let (beginning, len) = beginning(port);
            let asked = last.ask(&beginning, len, changes);
            if asked.is_none() {
                let plain = plain::read(&beginning[..len], len).unwrap();
                last.remember(&plain, &beginning, HERE, changes);
            }
            assert!(asked.is_none_or(|found| found == HERE));
            repeated += usize::from(asked.is_some());
        }
        repeated
    }

    #[test]
    fn packets_that_repeat_the_headers_are_found() {
        let mut last = LastSent::default();
        assert_eq!(send(&mut last, [5; 10].into_iter(), 0), 9);
        assert_eq!(send(&mut last, [6; 10].into_iter(), 0), 9, "of another flow");
    }

    #[test]
    fn a_change_of_the_rules_ends_the_comparison() {
        let mut last = LastSent::default();
        send(&mut last, [5; 10].into_iter(), 0);
        assert_eq!(send(&mut last, [5; 10].into_iter(), 1), 9);
    }

    #[test]
    fn an_endpoint_with_alternating_packets_rests_and_tries_again() {
        let mut last = LastSent::default();
        let mut rested = 0;
        for port in 0..1000 {
            assert_eq!(send(&mut last, [port].into_iter(), 0), 0);
            rested += usize::from(last.rest > 0);
        }
        assert!(rested > 900, "{rested} of 1000 packets without a comparison");
        let repeated = send(&mut last, [5; 200].into_iter(), 0);
        assert!(repeated >= 200 - usize::from(REST) - 4, "{repeated}");
    }
}

//! Frames that leave the host, and its timers.

use super::Stack;
use crate::ethernet;
use crate::host::Host;
use crate::neighbour::Lookup;
use crate::outbox::NextHop;
use crate::{Instant, Transmit};

/// The maximum number of outbox frames sent per poll.
const OUTBOX_BUDGET: usize = 256;
/// The maximum number of TCP segments sent per poll.
const SEGMENT_BUDGET: usize = 64;

impl Stack {
    /// Sends waiting frames while the link has room, and handles due timers. The work of a call is
    /// bounded: [`Stack::poll_at`] tells whether there is more. Returns `true` if it did any work.
    pub fn poll<T: Transmit>(&mut self, now: Instant, link: &mut T) -> bool {
        let outcome = std::mem::take(&mut self.outcome);
        self.tcp.resume(&outcome.resume);
        self.tcp.unreachable(now, &mut self.host, &outcome.failed);
        self.reassembly.expire(now, &mut self.host.counters);
        self.blocked = false;
        let mut worked = self.receive_own(now);
        worked |= self.flush(now, link);
        if !self.blocked {
            let (sent, blocked) = self.tcp.poll(now, &mut self.host, link, SEGMENT_BUDGET);
            worked |= sent;
            self.blocked = blocked;
        }
        let Host { outbox, counters, neighbours, .. } = &mut self.host;
        let questions = neighbours.due(now, outbox, counters, &mut self.outcome);
        worked |= !questions.is_empty();
        for question in questions {
            self.ask(now, question);
        }
        worked |= self.memberships.poll(now, &mut self.host);
        // Failed connections may have queued resets, and unknown neighbours requests.
        if !self.blocked && !self.host.outbox.is_empty() {
            worked |= self.flush(now, link);
        }
        worked
    }

    /// Sends frames of the outbox.
    fn flush<T: Transmit>(&mut self, now: Instant, link: &mut T) -> bool {
        let mut worked = false;
        for _ in 0..OUTBOX_BUDGET.min(self.host.outbox.len()) {
            let Some(mut frame) = self.host.outbox.pop() else { break };
            let host = &mut self.host;
            let station = match frame.to {
                NextHop::Station(station) => station,
                NextHop::Own => host.config.mac.octets(),
                NextHop::Neighbour(address) => {
                    let (outbox, counters) = (&mut host.outbox, &mut host.counters);
                    match host.neighbours.lookup(now, address, outbox, counters) {
                        Lookup::Station(station) => station,
                        Lookup::Asked => {
                            host.neighbours.hold(address, frame, outbox, counters);
                            worked = true;
                            continue;
                        }
                    }
                }
            };
            if frame.bytes.get(12..14) != Some(&ethernet::ARP.to_be_bytes()[..]) {
                let ethertype = match frame.bytes[ethernet::HEADER_BYTES] >> 4 {
                    4 => ethernet::IPV4,
                    _ => ethernet::IPV6,
                };
                ethernet::write(&mut frame.bytes, station, host.config.mac.octets(), ethertype);
            }
            let len = frame.bytes.len();
            let bytes = &frame.bytes;
            if frame.to == NextHop::Own {
                if !host.own_frames.has_room(len) {
                    host.outbox.unpop(frame);
                    break;
                }
                host.own_frames.push(len, frame.meta, |to| to.copy_from_slice(bytes));
                host.outbox.recycle(frame.bytes);
                worked = true;
                continue;
            }
            if !link.transmit(len, frame.meta, |to| to.copy_from_slice(bytes)) {
                host.outbox.unpop(frame);
                self.blocked = true;
                break;
            }
            host.counters.tx_frames += 1;
            host.counters.tx_bytes += len as u64;
            host.outbox.recycle(frame.bytes);
            worked = true;
        }
        self.udp.room(&mut self.host);
        worked
    }
}

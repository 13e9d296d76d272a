//! Received packets.

use towpath_device::{Meta, Received, SpaceId, Spaces, TagProtocol, VlanTag, longest_frame};

use super::super::descriptor::{self, Written};
use super::{DISCARD, E1000eQueue, LEAST_HELD, Owner, RX_BUFFER_BYTES};

impl E1000eQueue {
    /// Gives the device empty buffers. Returns how many the device took.
    pub(super) fn fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let mut taken = 0;
        let headroom = self.parts.owner.headroom_bytes();
        for buffer in buffers {
            let at = buffer.saturating_add(headroom);
            let is_good = self.parts.shared.rx.room() > 0
                // The server does not write into the memory of a session's queue. The device does.
                && (self.parts.owner.is_session()
                    || spaces.is_writable(space, at, RX_BUFFER_BYTES as u32))
                && spaces.device_address(space, at, RX_BUFFER_BYTES as u32).is_some();
            if !is_good {
                break;
            }
            self.give(*buffer);
            taken += 1;
        }
        taken
    }

    /// Notes that the engine has handled all received packets. The caller does this before it reuses their
    /// descriptors: a server that follows a killed one receives the packets from the noted one on.
    /// Then gives the device the buffers of dropped packets again, and tells it at once: the engine does not
    /// know of these, and may have no other buffer for which it would kick.
    pub(super) fn release_received(&mut self) {
        self.note_received();
        if self.dropped.is_empty() || self.pool.is_none() {
            return;
        }
        while self.parts.shared.rx.room() > 0
            && let Some(buffer) = self.dropped.pop()
        {
            self.give(buffer);
        }
        self.tell_rx();
    }

    /// Notes the oldest descriptor that the device has, once the engine has handled all older ones.
    pub(super) fn note_received(&mut self) {
        let now = (self.parts.shared.rx.oldest(), self.discards);
        if std::mem::replace(&mut self.noted, now) != now {
            self.parts.ledger.set_oldest(now.0, now.1);
        }
    }

    /// Gives the device a buffer of the pool, which it reaches. The ring has room.
    pub(super) fn give(&mut self, buffer: u32) {
        let rx = &mut self.parts.shared.rx;
        self.parts.ledger.set_buffer(rx.tail(), buffer);
        let at = u64::from(buffer) + u64::from(self.parts.owner.headroom_bytes());
        rx.push(descriptor::empty(self.pool_at + at));
    }

    /// Gives the device of a session's queue, which has few buffers, the one for packets that are dropped, several times,
    /// and tells it.
    pub(super) fn keep_some(&mut self) {
        let Owner::Session { discard } = &self.parts.owner else { return };
        let rx = &mut self.parts.shared.rx;
        if rx.held() >= LEAST_HELD {
            return;
        }
        while rx.held() < LEAST_HELD && rx.room() > 0 {
            self.parts.ledger.set_buffer(rx.tail(), DISCARD);
            rx.push(descriptor::empty(discard.address()));
        }
        self.tell_rx();
    }

    /// Drops the packets that wait from an earlier server, and counts them. Their buffers go back to the device.
    pub(super) fn drop_waiting(&mut self) {
        let rx = &mut self.parts.shared.rx;
        while rx.held() > 0 {
            let [first, second] = rx.fetch(rx.oldest());
            let Some(written) = descriptor::written(first, second) else { return };
            let buffer = self.parts.ledger.buffer(rx.oldest());
            self.dropped.extend(Some(buffer).filter(|buffer| *buffer != DISCARD));
            rx.take(1);
            let is_rest = std::mem::replace(&mut self.discards, !written.is_last);
            self.counters.rx_dropped += u64::from(!is_rest);
        }
    }

    /// Appends packets to `out`. Returns how many, dropped ones included.
    pub(super) fn receive(&mut self, out: &mut Vec<Received>, budget: usize) -> usize {
        let Some(pool) = self.pool else { return 0 };
        let mut count = 0;
        let longest = longest_frame(self.parts.info.mtu);
        while count < budget {
            if self.receive_whole(pool, longest, out) {
                count += 1;
                continue;
            }
            let from = out.len();
            let (last, is_whole) = match self.fetch_packet(pool, out) {
                Fetched::Nothing => {
                    out.truncate(from);
                    break;
                }
                Fetched::Whole(last) => (last, true),
                Fetched::TooLong(last) => (last, false),
            };
            count += 1;
            self.parts.shared.rx.take((out.len() - from) as u32);
            let len: usize = out[from..].iter().map(|part| part.len as usize).sum();
            let is_rest = std::mem::replace(&mut self.discards, !is_whole);
            let is_discarded = out[from..].iter().any(|part| part.buffer == DISCARD);
            let tag_bytes = last.tag_bytes();
            if !is_whole || is_rest || is_discarded || last.is_bad || len + tag_bytes > longest {
                // The first part of a packet that is too long was counted.
                self.counters.rx_dropped += u64::from(!is_rest);
                let buffers = out.drain(from..).map(|part| part.buffer);
                self.dropped.extend(buffers.filter(|buffer| *buffer != DISCARD));
                continue;
            }
            let first = &mut out[from];
            first.meta.checksum = last.checksum;
            first.hash = last.hash;
            first.tag = last.tag.map(tag);
            self.counters.received(len + tag_bytes);
        }
        count
    }

    /// Appends a good packet in one buffer to `out`: most packets take this path. Returns `false` without a change
    /// if the device has written none, or another one.
    #[inline]
    fn receive_whole(&mut self, pool: SpaceId, longest: usize, out: &mut Vec<Received>) -> bool {
        let rx = &mut self.parts.shared.rx;
        if self.discards || rx.held() == 0 {
            return false;
        }
        let index = rx.oldest();
        let [first, second] = rx.fetch(index);
        let Some(written) = descriptor::written(first, second) else { return false };
        let len = written.len as usize;
        let buffer = self.parts.ledger.buffer(index);
        let is_good = written.is_last && !written.is_bad && buffer != DISCARD;
        // The packet's last descriptor says whether the device removed a tag.
        if !is_good || written.tag.is_some() || len > longest.min(RX_BUFFER_BYTES) {
            return false;
        }
        rx.take(1);
        let at = buffer + self.parts.owner.headroom_bytes();
        let mut packet = Received::whole(pool, buffer, at, written.len, Meta::FULL);
        packet.meta.checksum = written.checksum;
        packet.hash = written.hash;
        out.push(packet);
        self.counters.received(len);
        true
    }

    /// Fetches the oldest packet: each descriptor once, since the device may write it again. Appends its buffers
    /// to `out`, also those of a packet that the device has not written whole.
    fn fetch_packet(&self, pool: SpaceId, out: &mut Vec<Received>) -> Fetched {
        let most = self.most_buffers();
        for ahead in 0..most.min(self.parts.shared.rx.held()) {
            let index = self.parts.shared.rx.after(self.parts.shared.rx.oldest(), ahead);
            let [first, second] = self.parts.shared.rx.fetch(index);
            let Some(written) = descriptor::written(first, second) else { return Fetched::Nothing };
            let buffer = self.parts.ledger.buffer(index);
            // The device may claim more bytes than the buffer has.
            let len = written.len.min(RX_BUFFER_BYTES as u32);
            let at = buffer.wrapping_add(self.parts.owner.headroom_bytes());
            let mut part = Received::whole(pool, buffer, at, len, Meta::FULL);
            part.continues = !written.is_last;
            out.push(part);
            match written {
                Written { is_last: true, .. } => return Fetched::Whole(written),
                _ if ahead + 1 == most => return Fetched::TooLong(written),
                _ => {}
            }
        }
        Fetched::Nothing
    }

    /// Returns `true` if the device has written a packet whole, or more buffers than a packet may have. The
    /// next poll decides anew.
    pub(super) fn has_packet(&self) -> bool {
        let most = self.most_buffers();
        for ahead in 0..most.min(self.parts.shared.rx.held()) {
            let [first, second] = self
                .parts
                .shared
                .rx
                .fetch(self.parts.shared.rx.after(self.parts.shared.rx.oldest(), ahead));
            match descriptor::written(first, second) {
                None => return false,
                Some(written) if written.is_last || ahead + 1 == most => return true,
                Some(_) => {}
            }
        }
        false
    }

    /// Returns the number of buffers with which a packet is too long.
    fn most_buffers(&self) -> u32 {
        self.parts.info.limits.rx_packet_buffers as u32 + 1
    }
}

/// The oldest packet in the receive ring, by its last descriptor.
enum Fetched {
    /// The device has not written all of its buffers.
    Nothing,
    Whole(Written),
    /// Its end is in none of the buffers.
    TooLong(Written),
}

/// Returns a tag that the device removed. It removes only tags of the ethertype in `VET`.
fn tag(control: u16) -> VlanTag {
    VlanTag { protocol: TagProtocol::Customer, control }
}

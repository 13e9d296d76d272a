//! A connection: both of its sides, and the packets of both.

use towpath_packet::roce::{
    self, Bth, Extension, Opcode, Path, Segment, frame_bytes, write_headers,
};

use crate::rate::Rate;
use crate::requester::{Answered, Fault, Outgoing, Requester, Work, WorkKind};
use crate::responder::{Progress, Responder, Served};
use crate::{Host, NotCopied, Psn, Range};

/// The shortest time between two congestion notifications, in nanoseconds.
const NOTIFICATION_NS: u64 = 50_000;
/// The number of a request of the connection itself, which asks whether the peer is there.
pub const PROBE: u64 = u64::MAX;

/// The times of a connection, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the peer may be silent before it is asked whether it is there.
    pub quiet: u64,
    /// How long the peer may leave packets without an answer before it counts as dead.
    pub dead: u64,
    /// How long its queue may have no room before the request fails.
    pub not_ready: u64,
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A request of this side failed.
    Failed(Fault),
    /// The peer did what it may not, and is told once.
    Refused,
    /// The peer does not answer any more.
    Dead,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    path: Path,
    /// The peer's queue pair.
    destination: u32,
    timing: Timing,
    requester: Requester,
    responder: Responder,
    rate: Rate,
    /// When a packet of the peer last arrived.
    last_received: u64,
    /// Since when it has left packets without an answer.
    silent_since: Option<u64>,
    /// When the peer was last told of congestion, and whether it is to be told.
    notified: Option<u64>,
    notifies: bool,
    ended: Option<Ended>,
    /// `true` if the next packet waits for its time by the rate.
    paced: bool,
    probe: Option<Psn>,
}

impl Connection {
    /// Creates a connection. `mtu`: the most bytes of payload per packet, a power of two from 256 to
    /// 4096; `first`: the number of this side's next packet; `reads`: the read requests that the
    /// peer answers at once; `progress`: how far the peer's requests are carried out.
    #[must_use]
    pub fn new(
        (path, destination): (Path, u32),
        mtu: u32,
        (first, reads): (Psn, u32),
        progress: Progress,
        timing: Timing,
        now: u64,
    ) -> Connection {
        Connection {
            path,
            destination,
            timing,
            requester: Requester::new(first, mtu, reads),
            responder: Responder::new(progress, mtu),
            rate: Rate::default(),
            last_received: now,
            silent_since: None,
            notified: None,
            notifies: false,
            ended: None,
            paced: false,
            probe: None,
        }
    }

    /// Returns the addresses.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the requesting side.
    #[must_use]
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Returns the most bytes of this side that are under way at once, as the rate is now.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.requester.window_bytes(self.rate.limit().is_some())
    }

    /// Returns how far the peer's requests are carried out.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.responder.progress()
    }

    /// Returns the rate.
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Returns why the connection has ended, if it has, and everything is sent.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended.filter(|_| !self.responder.has_answers())
    }

    /// Returns why the connection has ended, if it has, even if the peer has yet to be told.
    #[must_use]
    pub fn why_ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Records that the peer takes packets.
    pub fn set_ready(&mut self) {
        self.requester.set_ready();
    }

    /// Records that an earlier server had the connection, and may have sent the packets that come
    /// next.
    pub fn set_resumed(&mut self) {
        self.requester.set_ready();
        self.requester.set_resumed();
    }

    /// Puts a request of this side at the end. `released`: how many of its bytes may be sent.
    pub fn push(&mut self, work: Work, released: u64, now: u64) {
        self.requester.push(work, released, now);
    }

    /// Lets the last request send up to `bytes` of its bytes.
    pub fn release(&mut self, bytes: u64) {
        self.requester.release(bytes);
    }

    /// Handles a packet of the peer, whose check value and partition key are right. `marked`: the network marked it as
    /// congested.
    ///
    /// Returns `false` if the host has yet to copy: the caller handles the packet again later, before the packets
    /// behind it.
    #[must_use]
    pub fn receive(
        &mut self,
        segment: &Segment<'_>,
        marked: bool,
        host: &mut impl Host,
        now: u64,
    ) -> bool {
        use Opcode as O;
        if self.ended.is_some() {
            return true;
        }
        self.last_received = now;
        self.set_ready();
        self.notifies |= marked;
        let psn = Psn::new(segment.bth.psn);
        let answered = match segment.bth.opcode {
            O::Acknowledge => {
                let Some(aeth) = segment.extension.aeth else { return true };
                let before = self.requester.oldest();
                let complete_one = |id, next| host.complete(id, next);
                let answered = self.requester.acknowledged(psn, aeth, now, complete_one);
                // A peer that answers without getting further counts as silent.
                let waits = self.requester.not_ready_since().is_some();
                if waits || before != self.requester.oldest() {
                    self.silent_since = None;
                }
                answered
            }
            O::ReadResponseFirst
            | O::ReadResponseMiddle
            | O::ReadResponseLast
            | O::ReadResponseOnly => {
                let before = self.requester.oldest();
                let mut done = Vec::new();
                let store = |id, offset, bytes: &[u8]| host.store(id, offset, bytes);
                let complete_one = |id, next| done.push((id, next));
                let bytes = segment.payload;
                if marked {
                    // The requests for more bytes come later, and are for fewer at once.
                    self.rate.marked(self.requester.round_trip(), now);
                }
                let answered = self.requester.read_answered(psn, bytes, now, store, complete_one);
                done.into_iter().for_each(|(id, next)| host.complete(id, next));
                if before != self.requester.oldest() {
                    self.silent_since = None;
                }
                answered
            }
            O::CongestionNotification => {
                self.rate.marked(self.requester.round_trip(), now);
                Answered::default()
            }
            O::AtomicAcknowledge | O::DatagramSendOnly | O::DatagramSendOnlyImmediate => {
                Answered::default()
            }
            _ => {
                let served = self.responder.receive(segment, host);
                if let Served::Refused(_) = served {
                    self.ended = Some(Ended::Refused);
                }
                return served != Served::Later;
            }
        };
        self.conclude(answered, now)
    }

    /// Acts on an answer of the peer. Returns `false` if the host has yet to copy for it.
    fn conclude(&mut self, answered: Answered, now: u64) -> bool {
        if answered.lost {
            self.rate.lost(self.requester.round_trip(), now);
        }
        if let Some(fault) = answered.fault {
            self.ended = Some(Ended::Failed(fault));
        }
        !answered.later
    }

    /// Writes the next frame into `to`, which has room for the longest one. Returns its length;
    /// `None` if there is nothing to send now, or if the host has yet to copy.
    pub fn transmit(&mut self, host: &mut impl Host, now: u64, to: &mut [u8]) -> Option<usize> {
        if self.notifies && self.notified.is_none_or(|at| now >= at + NOTIFICATION_NS) {
            (self.notifies, self.notified) = (false, Some(now));
            let bth = self.bth(Opcode::CongestionNotification, Psn::new(0), false);
            let bth = Bth { becn: true, ..bth };
            return self.seal(&bth, &Extension::default(), 0, to, |_| Ok(())).ok();
        }
        loop {
            let before = self.responder.front();
            let Some(reply) = self.responder.next_reply() else { break };
            let bth = self.bth(reply.opcode, reply.psn, false);
            let extension = Extension { aeth: reply.aeth, ..Extension::default() };
            let Range { len, .. } = reply.range;
            let fetch =
                |to: &mut [u8]| if to.is_empty() { Ok(()) } else { host.fetch(reply.range, to) };
            match self.seal(&bth, &extension, len as usize, to, fetch) {
                Ok(len) => return Some(len),
                Err(NotCopied::Later) => {
                    self.responder.put_back(before, &reply);
                    return None;
                }
                Err(NotCopied::Refused) => self.responder.refuse_read(reply.psn),
            }
            self.ended.get_or_insert(Ended::Refused);
        }
        self.paced = false;
        if self.ended.is_some() || !self.check_time(now) {
            return None;
        }
        if !self.rate.may_send(now) {
            self.paced = !self.requester.is_empty();
            return None;
        }
        let (packet, covers) = self.requester.next_packet(self.rate.limit().is_some(), now)?;
        let Outgoing { psn, opcode, reth, immediate, asks, id, offset, len } = packet;
        let bth = self.bth(opcode, psn, asks);
        let extension = Extension { reth, immediate, ..Extension::default() };
        let load = |to: &mut [u8]| if to.is_empty() { Ok(()) } else { host.load(id, offset, to) };
        let sent = self.seal(&bth, &extension, len, to, load);
        if sent == Err(NotCopied::Later) {
            return None;
        }
        self.silent_since.get_or_insert(now);
        self.requester.sent(&packet, covers, now);
        match sent {
            Ok(bytes) => self.rate.sent(bytes as u64, now),
            Err(_) => self.ended = Some(Ended::Failed(Fault::Local)),
        }
        sent.ok()
    }

    /// Checks the timeouts. Returns `false` if the connection has ended.
    fn check_time(&mut self, now: u64) -> bool {
        if !self.requester.waits() {
            self.silent_since = None;
        }
        if self.silent_since.is_some_and(|since| now.saturating_sub(since) >= self.timing.dead) {
            self.ended = Some(Ended::Dead);
        }
        let not_ready = self.requester.not_ready_since();
        if not_ready.is_some_and(|since| now.saturating_sub(since) >= self.timing.not_ready) {
            self.ended = Some(Ended::Failed(Fault::NotReady));
        }
        if self.ended.is_some() {
            return false;
        }
        if self.requester.check_time(now) {
            self.rate.lost(self.requester.round_trip(), now);
        }
        if self.requester.is_empty() && now >= self.last_received + self.timing.quiet {
            self.last_received = now;
            self.push_probe(now);
        }
        true
    }

    /// Asks the peer whether it is there, by a write of no bytes.
    pub fn push_probe(&mut self, now: u64) {
        self.probe = Some(self.requester.end());
        let work = Work { id: PROBE, kind: WorkKind::Write, bytes: 0, key: 0, address: 0 };
        self.requester.push(work, 0, now);
    }

    /// Returns the number of the last packet that asked the peer whether it is there.
    #[must_use]
    pub fn probe(&self) -> Option<Psn> {
        self.probe
    }

    /// Returns the time at which there is something to do without a packet of the peer, in
    /// nanoseconds.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        if self.ended.is_some() {
            return None;
        }
        let quiet = self.requester.is_empty().then_some(self.last_received + self.timing.quiet);
        let dead = self.silent_since.map(|since| since + self.timing.dead);
        let notification = self.notified.filter(|_| self.notifies).map(|at| at + NOTIFICATION_NS);
        let paced = self.rate.next_due().filter(|_| self.paced);
        let requester = self.requester.next_due(self.paced);
        let all = [quiet, dead, notification, paced, requester];
        all.into_iter().flatten().min()
    }

    fn bth(&self, opcode: Opcode, psn: Psn, ack_request: bool) -> Bth {
        Bth { ack_request, ..Bth::new(opcode, self.destination, psn.number()) }
    }

    fn seal(
        &self,
        bth: &Bth,
        extension: &Extension,
        payload: usize,
        to: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), NotCopied>,
    ) -> Result<usize, NotCopied> {
        let refused = NotCopied::Refused;
        let len = frame_bytes(&self.path, bth.opcode, payload);
        let frame = to.get_mut(..len).ok_or(refused)?;
        let headers = write_headers(&self.path, bth, extension, payload, frame).ok_or(refused)?;
        fill(&mut frame[headers..headers + payload])?;
        if roce::seal(frame) { Ok(len) } else { Err(refused) }
    }
}

//! Checks of each segment that the stack sends, whatever the script expects.

use crate::wire::{ACK, CWR, ECE, FIN, RST, SYN, Segment, TcpOption};

/// The options of a SYN.
#[derive(Clone, Copy, Debug, Default)]
struct Offer {
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    timestamps: bool,
    ece: bool,
    cwr: bool,
}

impl Offer {
    fn of(segment: &Segment) -> Offer {
        let mut offer = Offer { ece: segment.has(ECE), cwr: segment.has(CWR), ..Offer::default() };
        for option in &segment.options {
            match option {
                TcpOption::Mss(mss) => offer.mss = Some(*mss),
                TcpOption::WindowScale(scale) => offer.scale = Some((*scale).min(14)),
                TcpOption::SackPermitted => offer.sack = true,
                TcpOption::Timestamps { .. } => offer.timestamps = true,
                _ => {}
            }
        }
        offer
    }
}

/// The state of a flow as an observer of the link knows it.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// The options of the stack's SYN and of the peer's.
    stack: Option<Offer>,
    peer: Option<Offer>,
    /// The latest SYN of the peer.
    received: Option<Offer>,
    /// The stack's initial sequence number.
    isn: u32,
    /// `true` once the stack has sent a segment after its SYN.
    begun: bool,
    /// The largest end of the window that the stack has announced, and that the peer has.
    stack_edge: Option<u32>,
    peer_edge: Option<u32>,
    /// The highest sequence number that the stack has sent, and that the peer has acknowledged.
    sent_to: u32,
    acknowledged: u32,
    /// `true` once the peer has sent a FIN, after which the stack's window means nothing.
    ended: bool,
    /// The stack's latest timestamp, and its time in seconds.
    stamp: Option<(u32, u64)>,
}

fn before(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) > 0
}

/// Returns the later of two sequence numbers.
fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

impl Checks {
    fn both(&self, has: impl Fn(&Offer) -> bool) -> bool {
        self.stack.as_ref().is_some_and(&has) && self.peer.as_ref().is_some_and(&has)
    }

    /// Returns the shift of the stack's windows, and of the peer's.
    fn shifts(&self) -> (u8, u8) {
        match (self.stack.and_then(|s| s.scale), self.peer.and_then(|p| p.scale)) {
            (Some(stack), Some(peer)) => (stack, peer),
            _ => (0, 0),
        }
    }

    /// Returns the window of a segment of the stack, in bytes.
    pub fn window(&self, segment: &Segment) -> u32 {
        let shift = if segment.has(SYN) { 0 } else { self.shifts().0 };
        u32::from(segment.window) << shift
    }

    /// Notes a segment of the peer.
    pub fn receive(&mut self, segment: &Segment) {
        if segment.corrupt || segment.has(RST) {
            return;
        }
        if segment.has(SYN) {
            let offer = Offer::of(segment);
            self.received = Some(offer);
            if !self.begun && self.stack.is_some() {
                self.peer = Some(offer);
            }
        }
        self.ended |= segment.has(FIN);
        // An acknowledgement of what was never sent tells nothing.
        if segment.has(ACK) && !before(self.sent_to, segment.acknowledgement) {
            let shift = if segment.has(SYN) { 0 } else { self.shifts().1 };
            let edge = segment.acknowledgement.wrapping_add(u32::from(segment.window) << shift);
            self.peer_edge = Some(self.peer_edge.map_or(edge, |known| later(known, edge)));
            self.acknowledged = later(self.acknowledged, segment.acknowledgement);
        }
    }

    /// Checks a segment of the stack, sent at this time.
    pub fn see(&mut self, segment: &Segment, seconds: u64) -> Result<(), String> {
        if segment.has(RST) {
            let quiet = segment.payload.is_empty() && segment.flags & (SYN | FIN) == 0;
            return ensure(quiet && segment.ecn == 0, "a reset with data, SYN, FIN or ECT");
        }
        if segment.has(SYN) {
            return self.see_syn(segment);
        }
        self.begun = true;
        ensure(segment.has(ACK), "a segment without ACK (RFC 9293, 3.10)")?;
        self.check_options(segment, seconds)?;
        self.check_ecn(segment)?;
        self.check_window(segment)?;
        let end = segment.end();
        if let Some(edge) = self.peer_edge {
            // A probe of a closed window has one byte, or a FIN.
            let probe = end.wrapping_sub(segment.sequence) == 1;
            let fits = !before(edge.wrapping_add(u32::from(probe)), end);
            ensure(fits, "data beyond the peer's window (RFC 9293, 3.8.6)")?;
        }
        self.check_payload(segment)?;
        self.sent_to = later(self.sent_to, end);
        Ok(())
    }

    fn see_syn(&mut self, segment: &Segment) -> Result<(), String> {
        ensure(segment.ecn == 0, "a SYN with ECT (RFC 3168, 6.1.1)")?;
        let offer = Offer::of(segment);
        if segment.sequence != self.isn || self.stack.is_none() {
            // RFC 9293, 3.4.1 and 3.6.1: so that segments of the old connection are old.
            let is_later = !self.begun || before(self.sent_to, segment.sequence.wrapping_add(1));
            ensure(is_later, "an initial sequence number that the last connection used")?;
            *self = Checks {
                isn: segment.sequence,
                sent_to: segment.end(),
                acknowledged: segment.sequence,
                received: self.received,
                peer: self.received.filter(|_| segment.has(ACK)),
                ..Checks::default()
            };
        }
        if segment.has(ACK) {
            let peer = self.peer.unwrap_or_default();
            let more = (offer.sack && !peer.sack)
                || (offer.timestamps && !peer.timestamps)
                || (offer.scale.is_some() && peer.scale.is_none());
            ensure(!more, "an option that the peer's SYN did not offer (RFC 7323, 2.2, 3.2)")?;
            let ecn = offer.ece && !(peer.ece && peer.cwr);
            ensure(!ecn && !offer.cwr, "ECN that the peer's SYN did not offer (RFC 3168, 6.1.1)")?;
        }
        ensure(offer.mss.is_some(), "a SYN without MSS (RFC 9293, 3.7.1)")?;
        self.stack = Some(offer);
        Ok(())
    }

    fn check_options(&mut self, segment: &Segment, seconds: u64) -> Result<(), String> {
        let stamps = segment.timestamps();
        if self.both(|offer| offer.timestamps) {
            let (val, _) = stamps.ok_or("no timestamps though negotiated (RFC 7323, 3.2)")?;
            // After 24 days the numbers have wrapped (RFC 7323, 5.5).
            let last = self.stamp.filter(|(_, at)| seconds - at < 20 * 86_400);
            let back = last.is_some_and(|(last, _)| before(val, last));
            ensure(!back, "a timestamp that goes back (RFC 7323, 5.4)")?;
            self.stamp = Some((val, seconds));
        } else if self.peer.is_some() {
            ensure(stamps.is_none(), "timestamps that were not negotiated (RFC 7323, 3.2)")?;
        }
        if let Some(blocks) = segment.sack() {
            ensure(self.both(|offer| offer.sack), "SACK that was not negotiated (RFC 2018, 3)")?;
            let real = blocks.iter().all(|(from, to)| before(*from, *to));
            ensure(real, "an empty SACK block (RFC 2018, 3)")?;
        }
        for option in &segment.options {
            let only_syn = matches!(
                option,
                TcpOption::Mss(_) | TcpOption::WindowScale(_) | TcpOption::SackPermitted
            );
            ensure(!only_syn, "an option that only a SYN has (RFC 9293, 3.2)")?;
        }
        Ok(())
    }

    fn check_ecn(&self, segment: &Segment) -> Result<(), String> {
        let passive =
            self.peer.is_some_and(|p| p.ece && p.cwr) && self.stack.is_some_and(|s| s.ece);
        let active = self.stack.is_some_and(|s| s.ece && s.cwr)
            && self.peer.is_some_and(|p| p.ece && !p.cwr);
        if !passive && !active {
            let none = segment.ecn == 0 && !segment.has(ECE) && !segment.has(CWR);
            return ensure(none, "ECN that was not negotiated (RFC 3168, 6.1.1)");
        }
        ensure(segment.ecn != 3, "the sender marks its packet itself (RFC 3168, 6.1)")?;
        let new = !segment.payload.is_empty() && !before(segment.sequence, self.sent_to);
        let right = segment.ecn == 0 || new;
        ensure(right, "ECT on an acknowledgement or retransmission (RFC 3168, 6.1.4, 6.1.5)")
    }

    fn check_window(&mut self, segment: &Segment) -> Result<(), String> {
        let unit = 1u32 << self.shifts().0;
        let edge = segment.acknowledgement.wrapping_add(self.window(segment));
        if let Some(known) = self.stack_edge {
            let kept = self.ended || !before(edge.wrapping_add(unit - 1), known);
            ensure(kept, "a smaller window than before (RFC 9293, 3.8.6.2.2)")?;
        }
        self.stack_edge = Some(self.stack_edge.map_or(edge, |known| later(known, edge)));
        Ok(())
    }

    fn check_payload(&self, segment: &Segment) -> Result<(), String> {
        // RFC 9293, 3.7.1 and RFC 6691: the peer's MSS counts the options as data.
        let stamps = if segment.timestamps().is_some() { 12 } else { 0 };
        let mss =
            usize::from(self.peer.and_then(|peer| peer.mss).filter(|mss| *mss > 0).unwrap_or(536));
        let len = segment.payload.len();
        let most = mss.max(48).saturating_sub(stamps);
        ensure(len <= most, "a segment larger than the peer's MSS (RFC 9293, 3.7.1)")?;
        // A keep-alive probe may have one byte of any value.
        if len == 1 && before(segment.sequence, self.acknowledged) {
            return Ok(());
        }
        let first = segment.sequence.wrapping_sub(self.isn);
        let right =
            segment.payload.iter().zip(first..).all(|(byte, place)| *byte == stack_byte(place));
        ensure(right, "bytes that the application did not write at this place")
    }
}

fn ensure(right: bool, what: &str) -> Result<(), String> {
    if right { Ok(()) } else { Err(format!("the stack sends {what}")) }
}

/// Returns the byte that the stack's application writes at a sequence number.
pub fn stack_byte(place: u32) -> u8 {
    (place.wrapping_mul(31) ^ place >> 8) as u8
}

/// Returns the byte that the peer sends at a sequence number.
pub fn peer_byte(place: u32) -> u8 {
    (place.wrapping_mul(37) ^ place >> 7) as u8 ^ 0x5a
}

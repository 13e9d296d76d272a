//! One connection: its state, both directions, and its owner.

use std::time::Duration;

use super::options::TIMESTAMP_BYTES;
use super::pool::Pool;
use super::receiving::Receiving;
use super::sending::Sending;
use super::sequence::{Seq, timestamp};
pub(super) use super::state::{Ecn, Owner, State};
use super::tuple::Tuple;
use crate::config::{KeepAlive, TcpConfig};
use crate::{Counters, Instant, SocketError};

/// The least segment of a peer, in bytes, its options included; smaller offers do not count. Linux
/// has the same limit (`TCP_MIN_SND_MSS` in `include/net/tcp.h`): the options must fit.
const LEAST_MSS: usize = 48;
/// The segment size of a peer that states none (RFC 9293, 3.7.1).
const DEFAULT_MSS: usize = 536;

/// The number of timeouts in a row after which full segments may be too large for the path, as many
/// as on Linux (`tcp_retries1`).
const BLACK_HOLE_TIMEOUTS: u8 = 3;
/// The MTUs to try on such a path (RFC 4821, 7.2, recommends 1024 as a start; 1280 is the least MTU
/// of IPv6 and common in tunnels).
const PLATEAUS: [usize; 3] = [1280, 1064, 576];

/// The sizes of segments, in bytes, without IP and TCP headers, options included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The size that our SYN offers.
    pub(super) local: usize,
    /// The size that the peer's SYN offered.
    pub(super) remote: usize,
    /// The size that the path carries.
    pub(super) path: usize,
}

impl Sizes {
    /// Returns the size of a full segment to the peer.
    pub(super) fn mss(&self) -> usize {
        self.remote.min(self.path)
    }

    /// Takes the offer of the peer's SYN.
    pub(super) fn take_offer(&mut self, mss: Option<u16>) {
        let said = mss.map(usize::from).filter(|&mss| mss != 0);
        self.remote = said.unwrap_or(DEFAULT_MSS).max(LEAST_MSS);
    }
}

/// The parts of the stack that a connection uses.
pub(super) struct Env<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a TcpConfig,
    pub(super) pool: &'a mut Pool,
    pub(super) counters: &'a mut Counters,
}

/// A smaller segment size that a connection tries, and the first number that was not acknowledged
/// then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlackHoleSearch {
    tried: Option<usize>,
    at: Seq,
    /// The size that the path carried as far as known.
    before: usize,
    /// The end of the first full segment sent, and `true` once the peer acknowledged it: the path
    /// has carried full segments.
    full: Option<Seq>,
    proven: bool,
}

/// See the module.
pub(super) struct Connection {
    pub(super) tuple: Tuple,
    pub(super) owner: Owner,
    /// `true` if the application sees the IPv4 addresses as IPv6 ones.
    pub(super) is_mapped: bool,
    pub(super) state: State,
    pub(super) sizes: Sizes,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// `true` if both sides use timestamps.
    pub(super) timestamps: bool,
    /// The origin of our timestamp clock.
    pub(super) origin: u32,
    pub(super) ecn: Ecn,
    /// `true` if a SYN is to be sent, and when it was sent first.
    pub(super) syn_due: bool,
    pub(super) syn_at: Instant,
    /// `true` if the SYN was sent again at once, because the peer acknowledged an earlier connection.
    pub(super) syn_hastened: bool,
    /// `true` if a reset is to be sent.
    pub(super) reset_due: bool,
    /// The reason why the connection ended, until the application has read it.
    pub(super) error: Option<SocketError>,
    /// `true` if the application has stopped reading: the stack discards received data.
    pub(super) read_shut: bool,
    /// `true` if another connection may use the tuple: this connection neither sends nor receives.
    pub(super) detached: bool,
    /// `true` if the connection is queued for a visit.
    pub(super) dirty: bool,
    /// `true` if the connection was reported to the application, which has not checked it since.
    pub(super) told: bool,
    /// `true` if the application waits for room to write.
    pub(super) wants_room: bool,
    /// `true` if the application waits for memory to write.
    pub(super) wants_memory: bool,
    /// What the connection found out about the path's MTU by itself.
    pub(super) black_hole: BlackHoleSearch,
    pub(super) last_received: Instant,
    /// The time of the last challenge acknowledgement, and of the last answer to a segment that did
    /// not fit.
    pub(super) challenged: Option<Instant>,
    pub(super) answered: Option<Instant>,
    /// The number of such segments without data, since one did fit.
    pub(super) unacceptable_answers: u8,
    /// The time since which data waits for the peer's acknowledgement, and the first byte that
    /// waits.
    pub(super) waiting: Option<(Instant, Seq)>,
    /// The time at which the present state has lasted too long.
    pub(super) give_up_at: Option<Instant>,
    pub(super) user_timeout: Option<Duration>,
    pub(super) keep_alive: Option<KeepAlive>,
    /// The number of unanswered keep-alives, the time of the last one, and `true` if one is to be sent.
    pub(super) probes: u32,
    pub(super) last_probe: Instant,
    pub(super) probe_due: bool,
    /// `None`: a close sends what was written in the background.
    pub(super) linger: Option<Duration>,
    /// The hop limit of sent packets, and their traffic class without the bits of congestion notification.
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    /// `true` to acknowledge all data at once.
    pub(super) acknowledges_at_once: bool,
}

impl Connection {
    pub(super) fn new(
        tuple: Tuple,
        owner: Owner,
        sizes: Sizes,
        config: &TcpConfig,
        initial: Seq,
        now: Instant,
    ) -> Self {
        let sending = Sending::new(initial, sizes.mss() as u32, config.congestion_control);
        let shift = offered_shift(config.receive_buffer_bytes);
        Connection {
            tuple,
            owner,
            is_mapped: false,
            state: State::SynSent,
            sizes,
            sending,
            receiving: Receiving::new(Seq(0), config, shift, sizes.local as u32),
            timestamps: false,
            origin: 0,
            ecn: if config.ecn { Ecn::Asked } else { Ecn::Off },
            syn_due: true,
            syn_at: now,
            syn_hastened: false,
            reset_due: false,
            error: None,
            read_shut: false,
            detached: false,
            dirty: false,
            told: false,
            wants_room: false,
            last_received: now,
            challenged: None,
            answered: None,
            unacceptable_answers: 0,
            wants_memory: false,
            black_hole: BlackHoleSearch::default(),
            waiting: None,
            give_up_at: None,
            user_timeout: None,
            keep_alive: None,
            probes: 0,
            last_probe: now,
            probe_due: false,
            linger: None,
            hop_limit: crate::ip::HOP_LIMIT,
            traffic_class: 0,
            acknowledges_at_once: false,
        }
    }

    /// Takes the empty memory of an ended connection over.
    pub(super) fn adopt(&mut self, spare: &mut Connection) {
        std::mem::swap(&mut self.sending.buffer, &mut spare.sending.buffer);
        std::mem::swap(&mut self.sending.scoreboard, &mut spare.sending.scoreboard);
        std::mem::swap(&mut self.receiving.buffer, &mut spare.receiving.buffer);
        std::mem::swap(&mut self.receiving.out_of_order, &mut spare.receiving.out_of_order);
    }

    /// Returns our clock's value for a segment sent now.
    pub(super) fn clock(&self, now: Instant) -> u32 {
        timestamp(now, self.origin)
    }

    /// Sets the payload of a full segment by the sizes and the options that each segment has.
    pub(super) fn resize(&mut self) {
        let options = if self.timestamps { TIMESTAMP_BYTES } else { 0 };
        self.sending.set_segment((self.sizes.mss() - options) as u32);
    }

    /// Lowers the size that the path carries, and sends again what was too large.
    pub(super) fn set_path_mss(&mut self, path: usize) {
        if path >= self.sizes.path {
            self.sizes.path = path;
            return self.resize();
        }
        let was = self.sizes.mss();
        self.sizes.path = path;
        self.resize();
        if self.sizes.mss() < was && !self.state.is_opening() {
            self.sending.resend();
        }
    }

    /// Ends this side's direction: a FIN follows the written data.
    pub(super) fn finish(&mut self) {
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => return,
        }
        self.sending.finish = true;
    }

    /// Ends the connection with a reset, if the peer knows of it.
    pub(super) fn abort(&mut self, pool: &mut Pool) {
        if !self.state.is_over() && self.state != State::SynSent {
            self.reset_due = true;
        }
        self.state = State::Closed;
        self.sending.buffer.clear(pool);
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.sending.buffer.clear(pool);
        self.sending.scoreboard.clear();
        self.receiving.clear(pool);
    }

    /// Returns `true` if a segment with this sequence number is in flight, so that an ICMP error
    /// about it is credible (RFC 5927, 4.1).
    pub(super) fn in_flight(&self, sequence: Seq) -> bool {
        let sending = &self.sending;
        !sequence.before(sending.una) && sequence.before(sending.nxt)
    }

    /// Tries a smaller segment size after several timeouts in a row, while a full segment is first
    /// to be sent again: such segments may vanish on the path without an error (RFC 4821, 7.7;
    /// RFC 2923, 2.1). `headers`: the length of IP and TCP header.
    pub(super) fn try_smaller(&mut self, headers: usize) {
        let sending = &self.sending;
        let first = sending.scoreboard.first_lost(u32::MAX).map(|(start, end)| end.since(start));
        let is_full = first.is_some_and(|len| len >= sending.segment);
        if sending.rtt.backoff() < BLACK_HOLE_TIMEOUTS || !is_full || sending.is_closed() {
            return;
        }
        if self.black_hole.tried.is_none() {
            self.black_hole.before = self.sizes.path;
        }
        // Two timeouts for each size below the present one. If none gets through, the peer is
        // absent.
        let before = self.black_hole.before;
        let most = before.min(self.sizes.remote);
        let step = usize::from(sending.rtt.backoff() - BLACK_HOLE_TIMEOUTS) / 2;
        let smaller =
            PLATEAUS.iter().map(|mtu| mtu - headers).filter(|&size| size < most).nth(step);
        let size = smaller.unwrap_or(before);
        if size != self.sizes.path {
            self.black_hole.tried = smaller;
            self.black_hole.at = self.sending.una;
            self.set_path_mss(size);
        }
    }

    /// Returns `true` if the connection is trying a smaller segment size.
    pub(super) fn tries_size(&self) -> bool {
        self.black_hole.tried.is_some()
    }

    /// Records that a full segment was sent, which ends at `end`.
    pub(super) fn note_full(&mut self, end: Seq) {
        if self.black_hole.tried.is_none() {
            self.black_hole.full.get_or_insert(end);
        }
    }

    /// Returns the segment size that the path carries, once a smaller one got through. If full
    /// segments did before, the path may only have been down: the connection keeps the smaller
    /// size, but others shall not.
    pub(super) fn take_found_mss(&mut self) -> Option<usize> {
        let (una, black_hole) = (self.sending.una, &mut self.black_hole);
        black_hole.proven |=
            black_hole.tried.is_none() && black_hole.full.is_some_and(|end| !una.before(end));
        let passed = una.after(black_hole.at) && !black_hole.proven;
        black_hole.tried.take_if(|_| passed)
    }

    /// Returns `true` if a read would not have to wait.
    pub(super) fn readable(&self) -> bool {
        self.receiving.buffer.len() > 0 || self.error.is_some() || self.read_closed()
    }

    /// Returns `true` if a write would not have to wait.
    pub(super) fn writable(&self, config: &TcpConfig) -> bool {
        !self.state.is_opening()
            && (!self.state.sends()
                || !self.wants_memory && self.sending.room(config.send_buffer_bytes) > 0)
    }

    /// Returns `true` if no further data will arrive.
    pub(super) fn read_closed(&self) -> bool {
        self.read_shut || !self.state.is_opening() && !self.state.receives()
    }

    /// Returns `true` if this side cannot write any more.
    pub(super) fn write_closed(&self) -> bool {
        !self.state.is_opening() && !self.state.sends()
    }
}

/// Returns the window shift that a SYN offers for a buffer: the least with which the window's field
/// can tell the whole buffer (RFC 7323, 2.3).
pub(super) fn offered_shift(receive_buffer_bytes: usize) -> u8 {
    let mut shift = 0;
    while receive_buffer_bytes >> shift > 0xffff {
        shift += 1;
    }
    shift
}

//! How much is sent, in which pieces, and how fast.

use std::time::{Duration, Instant};

use crate::flow::HEADER_BYTES;

/// The largest payload of one packet.
pub(crate) const PIECE_BYTES: usize = 32 * 1024;
/// The MTU that this payload needs.
pub(crate) const MTU_BYTES: usize = 65_535;
/// The most packets in flight.
pub(super) const WINDOW: u64 = 192;
/// The most bytes in flight, unless one packet is longer.
pub(super) const WINDOW_BYTES: usize = 1 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The end of sending.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// After this time.
    Time(Duration),
    /// After this many messages.
    Messages(u64),
}

impl Amount {
    /// Returns whether this many messages, sent since the pace began, are enough.
    pub(crate) fn is_sent(self, pace: &Pace, messages: u64) -> bool {
        match self {
            Amount::Time(time) => pace.start.elapsed() >= time,
            Amount::Messages(all) => messages >= all,
        }
    }
}

/// The messages that were moved, and the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) messages: u64,
    pub(crate) took: Duration,
}

impl Moved {
    pub(crate) fn gbit_s(&self, message_bytes: usize) -> f64 {
        self.messages as f64 * message_bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e9
    }
}

/// Returns the packets of a message, and the bytes of each.
pub(super) fn pieces(message_bytes: usize) -> (u64, usize) {
    let count = message_bytes.div_ceil(PIECE_BYTES).max(1);
    (count as u64, message_bytes.div_ceil(count))
}

/// Returns the most packets in flight.
pub(super) fn window(piece_bytes: usize) -> u64 {
    WINDOW.min((WINDOW_BYTES / (piece_bytes + HEADER_BYTES)) as u64).max(2)
}

/// The times at which messages of a rate are due.
pub(crate) struct Pace {
    pub(crate) start: Instant,
    /// Nanoseconds per message; 0: as fast as possible.
    pub(crate) each_ns: f64,
}

impl Pace {
    pub(crate) fn new(message_bytes: usize, bits_per_s: Option<f64>) -> Pace {
        let each_ns = bits_per_s.map_or(0.0, |rate| message_bytes as f64 * 8.0 / rate * 1e9);
        Pace { start: Instant::now(), each_ns }
    }

    /// Returns the messages that may have been sent by now.
    pub(crate) fn due(&self) -> u64 {
        if self.each_ns == 0.0 {
            return u64::MAX;
        }
        (self.start.elapsed().as_nanos() as f64 / self.each_ns) as u64 + 1
    }

    /// Returns the time until the message after this many is due; `None` if it is due now.
    pub(crate) fn left(&self, messages: u64) -> Option<Duration> {
        let due = Duration::from_nanos((messages as f64 * self.each_ns) as u64);
        due.checked_sub(self.start.elapsed())
    }
}

/// Reads all bytes, and returns their sum.
pub(crate) fn add(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_carried_in_as_few_packets_as_possible() {
        assert_eq!(pieces(16), (1, 16));
        assert_eq!(pieces(PIECE_BYTES), (1, PIECE_BYTES));
        assert_eq!(pieces(2 * PIECE_BYTES), (2, PIECE_BYTES));
        assert_eq!(pieces(48_000), (2, 24_000));
        for bytes in [16, 1500, PIECE_BYTES] {
            assert!((2..=WINDOW).contains(&window(bytes)));
        }
    }

    #[test]
    fn all_bytes_are_read() {
        assert_eq!(add(&[1; 8]), 0x0101_0101_0101_0101);
        assert_eq!(add(&[0, 0, 0, 0, 0, 0, 0, 0, 5, 6]), 11);
    }
}

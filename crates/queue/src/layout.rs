//! The positions of a queue pair's words, in each of the three memories that hold them.
//!
//! | memory | line 0 | line 1 | then |
//! |---|---|---|---|
//! | application pages | transmit head, index wanted | receive head | transmit descriptors, provided buffers |
//! | server pages | transmit commit | receive commit | receive descriptors |
//! | ledger | transmit slots completed out of order | | |
//!
//! Both sides compute this layout from the same two numbers. They agree on the numbers once and
//! keep them in private memory from then on.

use crate::spsc::MAX_CAPACITY;
use crate::word::{LINE_WORDS, OwnWords, PeerWords};

/// The smallest capacity of a queue. Every capacity is a power of two, so that a side masks an
/// index and does not divide it.
pub const MIN_CAPACITY: u32 = 8;

/// Capacities of a queue pair, both powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueShape {
    transmit: u32,
    receive: u32,
}

impl QueueShape {
    /// Returns the shape, or `None` unless both are powers of two between [`MIN_CAPACITY`] and
    /// [`MAX_CAPACITY`].
    #[must_use]
    pub const fn new(transmit: u32, receive: u32) -> Option<QueueShape> {
        const fn fits(capacity: u32) -> bool {
            capacity.is_power_of_two() && capacity >= MIN_CAPACITY && capacity <= MAX_CAPACITY
        }
        if fits(transmit) && fits(receive) { Some(QueueShape { transmit, receive }) } else { None }
    }

    /// Returns the number of slots of the transmit queue.
    #[must_use]
    pub const fn transmit(&self) -> u32 {
        self.transmit
    }

    /// Returns the number of slots of the receive queue.
    #[must_use]
    pub const fn receive(&self) -> u32 {
        self.receive
    }

    /// Returns the number of words in the application pages.
    #[must_use]
    pub const fn application_words(&self) -> usize {
        lines(2 * LINE_WORDS + 2 * self.transmit as usize + self.receive as usize)
    }

    /// Returns the number of words in the server pages.
    #[must_use]
    pub const fn server_words(&self) -> usize {
        lines(2 * LINE_WORDS + 2 * self.receive as usize)
    }

    /// Returns the number of words in the ledger.
    #[must_use]
    pub const fn ledger_words(&self) -> usize {
        self.transmit.div_ceil(64) as usize
    }

    /// Splits the application's own words into their parts.
    pub(crate) fn application_own(&self, mut words: OwnWords) -> ApplicationOwn {
        ApplicationOwn {
            transmit_line: words.split_off_front(LINE_WORDS),
            receive_line: words.split_off_front(LINE_WORDS),
            descriptors: words.split_off_front(2 * self.transmit as usize),
            provided: words.split_off_front(self.receive as usize),
        }
    }

    /// Returns the parts of the application's words, as the server sees them.
    pub(crate) fn application_peer(&self, words: &PeerWords) -> ApplicationPeer {
        let descriptors = 2 * self.transmit as usize;
        ApplicationPeer {
            transmit_line: words.part(0, LINE_WORDS),
            receive_line: words.part(LINE_WORDS, LINE_WORDS),
            descriptors: words.part(2 * LINE_WORDS, descriptors),
            provided: words.part(2 * LINE_WORDS + descriptors, self.receive as usize),
        }
    }

    /// Splits the server's own words into their parts.
    pub(crate) fn server_own(&self, mut words: OwnWords) -> ServerOwn {
        ServerOwn {
            transmit_line: words.split_off_front(LINE_WORDS),
            receive_line: words.split_off_front(LINE_WORDS),
            descriptors: words.split_off_front(2 * self.receive as usize),
        }
    }

    /// Returns the parts of the server's words, as the application sees them.
    pub(crate) fn server_peer(&self, words: &PeerWords) -> ServerPeer {
        ServerPeer {
            transmit_line: words.part(0, LINE_WORDS),
            receive_line: words.part(LINE_WORDS, LINE_WORDS),
            descriptors: words.part(2 * LINE_WORDS, 2 * self.receive as usize),
        }
    }
}

/// Rounds a number of words up to whole lines.
#[must_use]
pub const fn lines(words: usize) -> usize {
    words.next_multiple_of(LINE_WORDS)
}

pub(crate) struct ApplicationOwn {
    pub(crate) transmit_line: OwnWords,
    pub(crate) receive_line: OwnWords,
    pub(crate) descriptors: OwnWords,
    pub(crate) provided: OwnWords,
}

pub(crate) struct ApplicationPeer {
    pub(crate) transmit_line: PeerWords,
    pub(crate) receive_line: PeerWords,
    pub(crate) descriptors: PeerWords,
    pub(crate) provided: PeerWords,
}

pub(crate) struct ServerOwn {
    pub(crate) transmit_line: OwnWords,
    pub(crate) receive_line: OwnWords,
    pub(crate) descriptors: OwnWords,
}

pub(crate) struct ServerPeer {
    pub(crate) transmit_line: PeerWords,
    pub(crate) receive_line: PeerWords,
    pub(crate) descriptors: PeerWords,
}

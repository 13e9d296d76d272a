//! A session's memory as its own application can reach it: found in this process' mappings, and
//! written beyond the client library's limits.
//!
//! Unsafe lives here because the module shares words with a server on purpose, and the server must
//! stand all writes.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use towpath_protocol::layout::SessionShape;
use towpath_queue::word::LINE_WORDS;

/// Words of a mapping of this process.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    first: *const AtomicU64,
    len: usize,
}

// SAFETY: an address of atomics, valid from every thread for as long as the mapping stays, as
// promised to `find`.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Finds the only mapping in this process of a memory file with this name.
    ///
    /// # Errors
    /// When there is none, or more than one.
    ///
    /// # Safety
    /// The caller uses the words only while the session that mapped them lives, and stores only to
    /// words that the session mapped writable.
    pub unsafe fn find(name: &str) -> io::Result<Words> {
        let wanted = format!("/memfd:{name} ");
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let mut found = maps.lines().filter(|line| line.contains(&wanted));
        let odd = |what| io::Error::other(format!("{name}: {what}"));
        let line = found.next().ok_or_else(|| odd("not mapped"))?;
        if found.next().is_some() {
            return Err(odd("mapped more than once"));
        }
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end) = range
            .and_then(|(start, end)| Some((number(start)?, number(end)?)))
            .ok_or_else(|| odd("a line of maps that is none"))?;
        Ok(Words { first: start as *const AtomicU64, len: (end - start) / 8 })
    }

    /// Returns the number of words.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads a word.
    ///
    /// # Panics
    /// When it is not inside.
    #[must_use]
    pub fn load(&self, index: usize) -> u64 {
        assert!(index < self.len);
        // SAFETY: inside of a mapping of this process, as `find` saw it and its caller promised.
        unsafe { (*self.first.add(index)).load(Ordering::Acquire) }
    }

    /// Writes a word.
    ///
    /// # Panics
    /// When it is not inside.
    pub fn store(&self, index: usize, value: u64) {
        assert!(index < self.len);
        // SAFETY: as above; and writable, as promised there.
        unsafe { (*self.first.add(index)).store(value, Ordering::Release) }
    }
}

/// The layout of the application pages, as word indices.
#[derive(Clone, Debug)]
pub struct Places {
    /// Acknowledgements of the server's events: a line with the index, then the bits.
    pub acknowledgements: usize,
    /// Events to the server: a line with the index, then the queue.
    pub events: usize,
    /// The queue pairs.
    pub queue_pairs: Vec<QueuePairOffsets>,
    /// All words, of all lanes.
    pub all: Range<usize>,
}

/// The layout of a queue pair's words in the application pages.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOffsets {
    /// The transmit queue's head.
    pub transmit_head: usize,
    /// The receive queue's head.
    pub receive_head: usize,
    /// Transmit descriptors, two words each.
    pub descriptors: usize,
    /// Provided buffers.
    pub provided: usize,
}

impl Places {
    /// Returns the layout of a session's pages in the last of so many lanes.
    #[must_use]
    pub fn of(shape: &SessionShape, lanes: usize) -> Places {
        let start = (lanes - 1) * shape.application_words();
        let acknowledgements = start + LINE_WORDS;
        let events = acknowledgements + shape.events_to_server().acknowledger_words();
        let first = events + shape.events_to_server().marker_words();
        let queue_pairs = (0..shape.queue_pairs as usize).map(|set| {
            let start = first + set * shape.queues.application_words();
            let descriptors = start + 2 * LINE_WORDS;
            QueuePairOffsets {
                transmit_head: start,
                receive_head: start + LINE_WORDS,
                descriptors,
                provided: descriptors + 2 * shape.queues.transmit() as usize,
            }
        });
        Places {
            acknowledgements,
            events,
            queue_pairs: queue_pairs.collect(),
            all: 0..lanes * shape.application_words(),
        }
    }
}

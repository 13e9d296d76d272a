//! One direction of the link: cells with the times at which they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use towpath_pdu::atm::Cell;

use super::sizes::{LINK_CELLS, TRANSMIT_CELLS};

/// Cells that found the receiver's memory full.
#[derive(Debug, Default)]
pub(super) struct Lost {
    cells: AtomicU64,
}

impl Lost {
    fn add(&self, cells: u64) {
        // A count only: it orders nothing.
        self.cells.fetch_add(cells, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.cells.load(Ordering::Relaxed)
    }
}

/// A cell in the link, with the time of its arrival.
#[derive(Debug)]
struct TimedCell {
    /// When its last bit arrives.
    at: Instant,
    cell: Cell,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct SendingEnd {
    queue: rtrb::Producer<TimedCell>,
    cell_time: Duration,
    /// When the last cell leaves.
    busy_until: Instant,
    lost: Arc<Lost>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct ReceivingEnd {
    queue: rtrb::Consumer<TimedCell>,
    lost: Arc<Lost>,
}

/// Creates a direction whose cells follow each other after `cell_time`.
pub(super) fn direction(cell_time: Duration) -> (SendingEnd, ReceivingEnd) {
    // The receiver decides which cells find no memory. It may stay away for 0.18 s.
    let (producer, consumer) = rtrb::RingBuffer::new(LINK_CELLS);
    let lost = Arc::<Lost>::default();
    let busy_until = Instant::now();
    (
        SendingEnd { queue: producer, cell_time, busy_until, lost: lost.clone() },
        ReceivingEnd { queue: consumer, lost },
    )
}

impl SendingEnd {
    /// Returns `true` if that many cells more find room at the transmission card.
    pub(super) fn has_room(&self, cells: usize, now: Instant) -> bool {
        let waiting = self.busy_until.saturating_duration_since(now);
        waiting + self.cell_time * cells as u32 <= self.cell_time * TRANSMIT_CELLS as u32
    }

    /// Sends a cell after those before it. Returns the time at which the cell will have left.
    pub(super) fn send(&mut self, cell: Cell, now: Instant) -> Instant {
        let at = self.busy_until.max(now) + self.cell_time;
        self.busy_until = at;
        if self.queue.push(TimedCell { at, cell }).is_err() {
            self.lost.add(1);
        }
        at
    }
}

impl ReceivingEnd {
    pub(super) fn lost(&self) -> Arc<Lost> {
        self.lost.clone()
    }

    /// Counts a cell that finds no memory.
    pub(super) fn lose(&self) {
        self.lost.add(1);
    }

    /// Returns the next cell that has arrived by `now`.
    pub(super) fn next(&mut self, now: Instant) -> Option<Cell> {
        if self.queue.peek().ok()?.at > now {
            return None;
        }
        self.queue.pop().ok().map(|timed| timed.cell)
    }
}

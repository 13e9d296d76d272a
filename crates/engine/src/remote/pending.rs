//! Requests that go out to another host, until that has acknowledged them.

use towpath_protocol::requests::{Checked, Request, RequestKind};

/// A request that the other host has not acknowledged.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) work: Work,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    /// A request in a slot of a transmit queue.
    Request {
        queue_pair: u32,
        slot: u32,
        request: Box<Request>,
        checked: Checked,
        /// Bytes that may be sent.
        released: u64,
    },
    /// An out-of-band message in such a slot.
    Message { queue_pair: u32, slot: u32, payload: Vec<u8> },
}

impl Pending {
    /// Returns the message, if it is one.
    pub(super) fn message(&self) -> Option<&[u8]> {
        match &self.work {
            Work::Request { request, checked, .. } => {
                (checked.kind == RequestKind::Send).then(|| request.payload())
            }
            Work::Message { payload, .. } => Some(payload),
        }
    }

    /// Returns the queue pair and the slot that it came from.
    pub(super) fn place(&self) -> (u32, u32) {
        match self.work {
            Work::Request { queue_pair, slot, .. } | Work::Message { queue_pair, slot, .. } => {
                (queue_pair, slot)
            }
        }
    }

    /// `true` if its slot is taken from its queue. One of which a piece has yet to go out is in its
    /// queue, whose next turn frees the slot.
    pub(super) fn is_taken(&self) -> bool {
        match &self.work {
            Work::Request { request, checked, released, .. } => {
                *released >= length(request, checked)
            }
            Work::Message { .. } => true,
        }
    }

    /// `true` if it is the request in a slot of a queue pair.
    pub(super) fn is_of(&self, from: u32, at: u32) -> bool {
        matches!(self.work, Work::Request { queue_pair, slot, .. }
            if queue_pair == from && slot == at)
    }
}

/// Returns the bytes of a request, or of its message.
pub(super) fn length(request: &Request, checked: &Checked) -> u64 {
    match checked.kind {
        RequestKind::Send => request.payload().len() as u64,
        _ => checked.bytes,
    }
}

/// A queue pair whose request waits for the ones before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) queue_pair: u32,
    /// It goes on once there are no more requests than these without an acknowledgement.
    pub(super) most_pending: usize,
}

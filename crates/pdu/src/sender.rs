//! The sending half of a PDU endpoint: the buffers of a PDU that the application writes, and the
//! fragments that wait for their turn.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use towpath_client::{
    Endpoint, Lost, MacAddr, QueuePairError, Session, TransmitBuffer, UnsentBuffer, Violation,
};

use crate::counters::SendCounters;
use crate::format::MAX_PDU_BYTES;
use crate::turns::Turns;

/// One in this many of a session's transmit buffers is reserved for channels without waiting
/// fragments.
const KEPT_SHARE: u32 = 8;

/// The reason why a PDU was not accepted. None of it was queued then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The buffers have no room for all fragments: wait for room
    /// ([`PduEndpoint::want_room`](crate::PduEndpoint::want_room)).
    #[error("the transmit queue is full")]
    Full,
    /// No PDU of that length can be sent.
    #[error("a PDU of {len} bytes; 0 to {max} are possible here")]
    Length {
        /// The PDU's length.
        len: usize,
        /// The longest possible length.
        max: usize,
    },
    /// The session is over.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A fragment that is written and not yet in the transmit queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// `None` while it is being put there.
    pub(crate) buffer: Option<TransmitBuffer>,
    pub(crate) buffer_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) session: Session,
    pub(crate) endpoint: Endpoint,
    pub(crate) mac: MacAddr,
    /// The maximum number of PDU bytes per buffer.
    pub(crate) chunk_bytes: usize,
    /// Buffers of the message that is being written.
    pub(crate) filling: Vec<TransmitBuffer>,
    pub(crate) turns: Turns<Waiting>,
    pub(crate) next_id: u32,
    pub(crate) sent: SendCounters,
    pub(crate) slots: u32,
    ahead: u32,
}

impl Sender {
    pub(crate) fn new(
        mut session: Session,
        endpoint: Endpoint,
        chunk_bytes: usize,
        ahead: u32,
    ) -> Result<Sender, Lost> {
        let slots = session.sender().slots(endpoint.queue_pair()).map_err(lost)?;
        Ok(Sender {
            endpoint,
            mac: session.info().mac,
            chunk_bytes,
            filling: Vec::with_capacity(slots as usize),
            turns: Turns::new(slots as usize),
            // A random start: the previous owner of this address may have sent the numbers from 0
            // on.
            next_id: RandomState::new().build_hasher().finish() as u32,
            sent: SendCounters::default(),
            slots,
            ahead: ahead.max(1),
            session,
        })
    }

    /// Reserves buffers for a PDU of `len` bytes, or none.
    pub(crate) fn reserve(&mut self, channel: u32, len: usize) -> Result<(), SendError> {
        let max = self.max_pdu_bytes();
        if len > max {
            return Err(SendError::Length { len, max });
        }
        // Empty, unless the application forgot a message instead of dropping it.
        self.release_filling();
        if !self.has_room(channel, len)? {
            self.sent.full += 1;
            return Err(SendError::Full);
        }
        let needed = self.buffers_for(len);
        for _ in 0..needed {
            match self.session.sender().reserve() {
                Some(buffer) => self.filling.push(buffer),
                None => break,
            }
        }
        debug_assert_eq!(self.filling.len(), needed, "enough, as just checked");
        Ok(())
    }

    /// Releases the buffers of an unsent message.
    pub(crate) fn release_filling(&mut self) {
        self.filling.clear();
    }

    fn buffers_for(&self, len: usize) -> usize {
        len.div_ceil(self.chunk_bytes).max(1)
    }

    /// Returns `true` if the buffers have room for a PDU of `len` bytes on that channel.
    pub(crate) fn has_room(&mut self, channel: u32, len: usize) -> Result<bool, Lost> {
        let needed = self.buffers_for(len);
        let kept = if self.turns.has(channel) { (self.slots / KEPT_SHARE) as usize } else { 0 };
        if self.session.sender().free_buffers()? >= needed + kept {
            return Ok(true);
        }
        self.session.sender().unsent(self.endpoint.queue_pair()).map_err(lost)?;
        Ok(self.session.sender().free_buffers()? >= needed + kept)
    }

    /// Returns the length of the longest PDU that can be sent, in bytes.
    pub(crate) fn max_pdu_bytes(&self) -> usize {
        MAX_PDU_BYTES.min(self.slots as usize * self.chunk_bytes)
    }

    /// Puts fragments into the transmit queue, channels in turn, and publishes them.
    pub(crate) fn flush(&mut self) -> Result<(), Lost> {
        if self.turns.len() > 0 {
            let queue_pair = self.endpoint.queue_pair();
            let unsent = self.session.sender().unsent(queue_pair).map_err(lost)?;
            for _ in unsent..self.ahead.min(self.slots) {
                let Some(waiting) = self.turns.front() else { break };
                let Some(buffer) = waiting.buffer.take() else { break };
                let sender = &mut self.session.sender();
                match buffer.send(sender, self.endpoint, waiting.buffer_bytes) {
                    Ok(()) => drop(self.turns.next()),
                    Err(UnsentBuffer { error, buffer, .. }) => {
                        waiting.buffer = Some(buffer);
                        match error {
                            towpath_client::SendError::Lost(lost) => return Err(lost),
                            // The channels have no other endpoint.
                            towpath_client::SendError::Revoked => return Err(Lost::Revoked),
                            _ => break,
                        }
                    }
                }
            }
        }
        self.session.sender().flush()
    }
}

/// Returns the loss that a failed call on the endpoint's queue pair means. The server opened the
/// endpoint there, so a queue pair that does not exist is the server's mistake.
pub(crate) fn lost(error: QueuePairError) -> Lost {
    match error {
        QueuePairError::Lost(lost) => lost,
        _ => Lost::ServerWrong(Violation::Range),
    }
}

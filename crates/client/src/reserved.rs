//! Buffers that the application reserves before it sends them. The application may write any number
//! of them at any time, and sends each one when it chooses.

use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES};

use crate::error::{Lost, SendError};
use crate::options::Endpoint;
use crate::session::Session;

/// A transmit buffer that the application took and has not sent yet ([`Session::reserve`]). It
/// belongs to the session that returned it. Another session does not know it, or takes it for a
/// reserved buffer of its own with the same number. If the application drops it without
/// [`Session::release`], the session has one buffer less.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a buffer that is neither sent nor released is lost to its session"]
pub struct TransmitBuffer(u32);

impl Session {
    /// Returns how many transmit buffers are free, as last reclaimed; [`Session::unsent`] reclaims.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn free_buffers(&self) -> Result<usize, Lost> {
        self.check()?;
        Ok(self.transmit_free.len())
    }

    /// Returns how many data bytes a transmit buffer holds.
    #[must_use]
    pub fn transmit_buffer_bytes(&self) -> usize {
        self.transmit_pool.data_bytes()
    }

    /// Returns how many buffers an endpoint's transmit queue holds; 0 for an endpoint of another
    /// session whose queue pair this session does not have.
    #[must_use]
    pub fn transmit_slots(&self, endpoint: Endpoint) -> u32 {
        let pair = self.unit(endpoint.queue_pair, 0).map(|unit| &self.queue_pairs[unit]);
        pair.map_or(0, |pair| pair.transmit.capacity())
    }

    /// Takes a free transmit buffer, if the client knows of one. A child made by `fork` has none.
    pub fn reserve(&mut self) -> Option<TransmitBuffer> {
        if !self.is_parents() {
            return None;
        }
        let buffer = self.transmit_free.take()?;
        self.reserved[buffer as usize] = true;
        Some(TransmitBuffer(buffer))
    }

    /// Releases a reserved buffer, unsent.
    pub fn release(&mut self, buffer: TransmitBuffer) {
        if self.is_reserved(&buffer) {
            self.reserved[buffer.0 as usize] = false;
            self.transmit_free.release(buffer.0);
        }
    }

    /// Returns the first `len` bytes of a reserved buffer, in place. They hold the bytes that this
    /// session wrote there last. `None` if the buffer is not reserved, or is shorter.
    #[must_use]
    pub fn reserved(&mut self, buffer: &TransmitBuffer, len: usize) -> Option<&mut [u8]> {
        if self.check().is_err() || !self.is_reserved(buffer) {
            return None;
        }
        self.transmit_pool.bytes_mut(buffer.0, len)
    }

    /// Queues the packet in the first `len` bytes of a reserved buffer, its checksums full, on an
    /// endpoint. The buffer then belongs to the server, and `buffer` is no longer valid.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued, and the buffer stays reserved.
    pub fn send_reserved(
        &mut self,
        endpoint: Endpoint,
        buffer: &TransmitBuffer,
        len: usize,
    ) -> Result<(), SendError> {
        self.check()?;
        if self.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        let max = self.transmit_pool.data_bytes();
        if len == 0 || len > max {
            return Err(SendError::Length { len, max });
        }
        if !self.is_reserved(buffer) {
            return Err(SendError::NotReserved);
        }
        let lane = self.lane_of(buffer.0, len);
        let unit = self.unit(endpoint.queue_pair, lane)?;
        let descriptor = Descriptor {
            buffer: buffer.0,
            start: HEADROOM_BYTES,
            len: len as u32,
            endpoint: endpoint.number,
            flags: 0,
        };
        if self.queue_pairs[unit].transmit.room() == 0 {
            self.unsent(endpoint.queue_pair)?;
        }
        if !self.push(unit, &[descriptor]) {
            return Err(SendError::Full);
        }
        self.reserved[buffer.0 as usize] = false;
        Ok(())
    }

    fn is_reserved(&self, buffer: &TransmitBuffer) -> bool {
        self.reserved.get(buffer.0 as usize) == Some(&true)
    }
}

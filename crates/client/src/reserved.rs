//! Buffers that the application reserves before it sends them. The application may write any number
//! of them at any time, and sends each one when it chooses.

use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES};

use crate::error::{Lost, SendError};
use crate::options::Endpoint;
use crate::pool::LentBuffer;
use crate::send::Sender;

/// A transmit buffer that the application has reserved and not sent yet ([`Sender::reserve`]).
/// Dropping it returns it to its session. It may move to another thread, and may live longer than its
/// session.
#[derive(Debug)]
#[must_use = "a buffer that is dropped is returned unsent"]
pub struct TransmitBuffer {
    buffer: LentBuffer,
}

/// The reason why the client did not queue a reserved buffer, with the buffer, which stays reserved.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct UnsentBuffer {
    /// The reason.
    #[source]
    pub error: SendError,
    /// The buffer, with its bytes.
    pub buffer: TransmitBuffer,
}

impl From<UnsentBuffer> for SendError {
    /// Returns the reason, and drops the buffer.
    fn from(unsent: UnsentBuffer) -> SendError {
        unsent.error
    }
}

impl TransmitBuffer {
    /// Returns the buffer's data bytes, in place: as many as
    /// [`Session::transmit_buffer_bytes`](crate::Session::transmit_buffer_bytes) says. They hold the bytes
    /// that this session wrote there last.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(buffer: &mut TransmitBuffer) -> Result<(), Box<dyn std::error::Error>> {
    /// buffer.bytes_mut()?[..60].fill(0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost::Forked`] in a child made by `fork`.
    #[inline]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Lost> {
        self.buffer.bytes_mut().ok_or(Lost::Forked)
    }

    /// Queues the packet in the first `len` bytes of the buffer, its checksums full, on an endpoint.
    /// The next [`Sender::flush`] sends the packet. The sender is of the session that reserved the
    /// buffer.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, buffer: TransmitBuffer) {
    /// if let Err(unsent) = buffer.send(&mut session.sender(), endpoint, 60) {
    ///     println!("{}", unsent.error);
    ///     let again = unsent.buffer;
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`UnsentBuffer`]; then nothing was queued.
    pub fn send(
        self,
        sender: &mut Sender<'_>,
        endpoint: Endpoint,
        len: usize,
    ) -> Result<(), UnsentBuffer> {
        match sender.queue_reserved(&self.buffer, endpoint, len) {
            Ok(()) => {
                self.buffer.into_queue();
                Ok(())
            }
            Err(error) => Err(UnsentBuffer { error, buffer: self }),
        }
    }
}

impl Sender<'_> {
    /// Takes a free transmit buffer, which the application writes and sends when it chooses; `None` if
    /// the client knows of none. [`Sender::unsent`] reclaims buffers. A child made by `fork` has none.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sender = session.sender();
    /// if let Some(mut buffer) = sender.reserve() {
    ///     buffer.bytes_mut()?[..packet.len()].copy_from_slice(packet);
    ///     buffer.send(&mut sender, endpoint, packet.len())?;
    /// }
    /// sender.flush()?;
    /// # Ok(()) }
    /// ```
    pub fn reserve(&mut self) -> Option<TransmitBuffer> {
        if !self.status.is_parents() {
            return None;
        }
        if self.transmit.free.is_empty() {
            self.transmit.reclaim_lent();
        }
        let buffer = self.transmit.free.take()?;
        Some(TransmitBuffer { buffer: LentBuffer::new(buffer, &self.transmit.lent) })
    }

    /// Returns how many transmit buffers are free, as last reclaimed; [`Sender::unsent`] reclaims.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} buffers are free", session.sender().free_buffers()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn free_buffers(&mut self) -> Result<usize, Lost> {
        self.status.check()?;
        self.transmit.reclaim_lent();
        Ok(self.transmit.free.len())
    }

    fn queue_reserved(
        &mut self,
        buffer: &LentBuffer,
        endpoint: Endpoint,
        len: usize,
    ) -> Result<(), SendError> {
        self.status.check()?;
        if self.status.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        let max = self.transmit.pool.data_bytes();
        if len == 0 || len > max {
            return Err(SendError::Length { len, max });
        }
        let number = buffer.number_in(&self.transmit.lent).ok_or(SendError::OtherSession)?;
        let lane = self.transmit.lane_of(number, len);
        let unit = self.transmit.unit(endpoint.queue_pair, lane)?;
        let descriptor = Descriptor {
            buffer: number,
            start: HEADROOM_BYTES,
            len: len as u32,
            endpoint: endpoint.number,
            flags: 0,
        };
        if self.transmit.pairs[unit].queue.room() == 0 {
            self.unsent(endpoint.queue_pair)?;
        }
        if !self.transmit.push(unit, &[descriptor]) {
            return Err(SendError::Full);
        }
        Ok(())
    }
}

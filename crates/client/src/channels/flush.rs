//! Publication of a channel's messages, and the channel's end.

use towpath_protocol::oob::PeerState;

use super::channel::Channel;
use super::error::ChannelError;
use crate::error::{Lost, OpenError};
use crate::session::Session;

impl Channel {
    /// Returns `true` if nothing more can come, or be sent.
    #[inline]
    pub(super) fn has_ended(&mut self, session: &Session) -> bool {
        if self.peers_aperture.check_valid().is_err() || self.violation.is_some() {
            return true;
        }
        // The engine ends the connection first, and its apertures some poll iterations later.
        match session.peer_state(self.endpoint) {
            PeerState::Connected => return false,
            PeerState::Gone => self.end = Some(ChannelError::Gone),
            _ => self.end = Some(ChannelError::Closed),
        }
        true
    }

    /// Shows the peer what this side sent, consumed and waits for, and wakes it if it sleeps.
    pub(super) fn prepare_sleep(&mut self, session: &mut Session) -> Result<(), Lost> {
        session.status.check()?;
        self.find_end().map_err(|_| Lost::Forked)?;
        self.ring.prepare_sleep();
        self.flush(session)
    }

    /// Shows the peer all messages that were sent. Wakes the peer if it sleeps, and there are such
    /// messages, or the room that it waits for. The application calls this after it has sent or
    /// received what there was, and before it does something else; [`Channel::wait`] does so by
    /// itself. If the peer is awake, this costs at most four stores to shared words, a barrier, and
    /// loads; if there is nothing to show, only loads. Once the channel has ended, it shows nothing.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// for number in 0..16_u32 {
    ///     channel.send(&number.to_le_bytes())?;
    /// }
    /// channel.flush(session)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    #[inline]
    pub fn flush(&mut self, session: &mut Session) -> Result<(), Lost> {
        session.status.check()?;
        self.find_end().map_err(|_| Lost::Forked)?;
        match self.ring.flush() {
            Some(fenced) => {
                session.tripwires().trip_fenced(self.peers_tripwire, fenced).map(|_| ())
            }
            None => Ok(()),
        }
    }

    /// Ends this side's messages. The peer sees the end after the next [`Channel::flush`], or earlier;
    /// its [`Channel::receive`] then returns [`ChannelError::Finished`].
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.finish()?;
    /// channel.flush(session)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ChannelError::Full`]: wait, and call again. Else as [`Channel::reserve`].
    pub fn finish(&mut self) -> Result<(), ChannelError> {
        self.reserve(0)?;
        self.ring.append_end();
        self.has_finished = true;
        Ok(())
    }

    /// Closes the channel. The peer gets the messages that were sent, and then
    /// [`ChannelError::Closed`]. The connection stays.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.close(session)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn close(mut self, session: &mut Session) -> Result<(), OpenError> {
        self.prepare_sleep(session)?;
        session.memories().release_imported_tripwire(self.peers_tripwire)?;
        session.memories().release_aperture(self.peers_aperture)?;
        self.own.release(session)
    }
}

//! Waiting for the news of a channel.

use std::time::Duration;

use super::channel::Channel;
use crate::error::Lost;
use crate::news::NewsSource;
use crate::session::Session;

/// The news of a channel for which a side waits, beside its end.
struct ChannelNews<'a> {
    channel: &'a mut Channel,
    /// `true` if it waits for messages.
    messages: bool,
    /// `true` if it waits for the room of the message that found none.
    room: bool,
}

impl NewsSource for ChannelNews<'_> {
    #[inline]
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost> {
        let channel = &mut *self.channel;
        Ok(self.messages && channel.has_message()
            || self.room && channel.has_wanted_room()
            || channel.has_ended(session))
    }

    fn prepare_sleep(&mut self, session: &mut Session) -> Result<(), Lost> {
        self.channel.prepare_sleep(session)?;
        session.tripwires().arm(self.channel.tripwire());
        Ok(())
    }

    fn end_sleep(&mut self, session: &mut Session) {
        session.tripwires().disarm(self.channel.tripwire());
    }
}

/// The news of a channel that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    All,
    Messages,
    Room,
}

impl Channel {
    /// Returns `true` if a message may be there. What a peer writes behind its end is none.
    #[inline]
    pub(super) fn has_message(&self) -> bool {
        !self.peer_has_finished && self.ring.has_message()
    }

    /// Returns `true` once if the room is there for which this side waits, or the peer broke the
    /// protocol.
    #[inline]
    pub(super) fn has_wanted_room(&mut self) -> bool {
        match self.ring.has_wanted_room() {
            Ok(has_room) => has_room,
            Err(violation) => {
                self.violation = Some(violation);
                true
            }
        }
    }

    /// Waits for a message, for room if the last [`Channel::send`] found none, or for the end of
    /// the channel; by the session's wait strategy, and whatever other news the session has.
    /// Flushes first. Returns `false` when the timeout expires; `None` never expires, and zero only
    /// checks. The call returns at once as long as there is a message that was not received.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.wait(session, None)?;
    /// while let Some(message) = channel.receive()? {
    ///     println!("{:?}", message.to_vec());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn wait(&mut self, session: &mut Session, timeout: Option<Duration>) -> Result<bool, Lost> {
        self.wait_in(session, Awaited::All, timeout)
    }

    /// Waits as [`Channel::wait`] does, but not for messages: for the room that the last
    /// [`Channel::send`] did not find, or the end of the channel. Two sides that both wait for room,
    /// and receive nothing meanwhile, wait for ever.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// while channel.send(b"hello") == Err(ChannelError::Full) {
    ///     channel.wait_for_room(session, None)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn wait_for_room(
        &mut self,
        session: &mut Session,
        timeout: Option<Duration>,
    ) -> Result<bool, Lost> {
        self.wait_in(session, Awaited::Room, timeout)
    }

    /// Waits as [`Channel::wait`] does, for all news or some.
    pub(super) fn wait_in(
        &mut self,
        session: &mut Session,
        awaited: Awaited,
        timeout: Option<Duration>,
    ) -> Result<bool, Lost> {
        self.prepare_sleep(session)?;
        let (messages, room) = (awaited != Awaited::Room, awaited != Awaited::Messages);
        session.wait_for(&mut ChannelNews { channel: self, messages, room }, timeout)
    }

    /// Prepares this channel for a [`Session::wait`] that also waits for other news, or for other
    /// channels. Flushes first. Returns `true` if the channel has news already. Otherwise a message
    /// or room fires [`Channel::tripwire`], which [`Tripwires::ready`](crate::Tripwires::ready) returns. The end of the
    /// channel or its connection is news of the endpoint ([`Oob::ready`](crate::Oob::ready)).
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// if !channel.arm(session)? {
    ///     session.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn arm(&mut self, session: &mut Session) -> Result<bool, Lost> {
        let mut news = ChannelNews { channel: self, messages: true, room: true };
        news.prepare_sleep(session)?;
        let has_news = news.has_news(session)?;
        if has_news {
            news.end_sleep(session);
        }
        Ok(has_news)
    }
}

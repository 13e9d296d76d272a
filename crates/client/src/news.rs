//! The news that ends a wait: of the session, or of a source that the application has.

use std::time::Duration;

use crate::error::Lost;
use crate::session::Session;

/// News that an application waits for with [`Session::wait_for`], such as messages in memory that
/// it shares with another one. A source says whether there is any, and arranges that some event of
/// the session ends a sleep.
///
/// ```no_run
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use towpath_client::{Lost, NewsSource, Session};
///
/// /// A word that a thread of this process changes. That thread also wakes the session, by a packet.
/// struct Changes<'a> {
///     word: &'a AtomicU64,
///     seen: u64,
/// }
///
/// impl NewsSource for Changes<'_> {
///     fn has_news(&mut self, _: &mut Session) -> Result<bool, Lost> {
///         Ok(self.word.load(Ordering::Acquire) != self.seen)
///     }
///
///     fn prepare_sleep(&mut self, _: &mut Session) -> Result<(), Lost> {
///         Ok(())
///     }
///
///     fn end_sleep(&mut self, _: &mut Session) {}
/// }
///
/// fn wait(session: &mut Session, changes: &mut Changes<'_>) -> Result<bool, Lost> {
///     session.wait_for(changes, None)
/// }
/// ```
pub trait NewsSource {
    /// Returns `true` if there is news. A waiting session calls this often.
    ///
    /// # Errors
    /// [`Lost`].
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost>;

    /// Arranges that later news ends the session's sleep, for instance by a tripwire
    /// ([`Tripwires::arm`](crate::Tripwires::arm)). Then the session looks once more whether there is news.
    ///
    /// # Errors
    /// [`Lost`].
    fn prepare_sleep(&mut self, session: &mut Session) -> Result<(), Lost>;

    /// Ends what [`NewsSource::prepare_sleep`] arranged.
    fn end_sleep(&mut self, session: &mut Session);
}

/// The news that ends a wait.
pub(crate) trait Awaited {
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost>;
    fn arm(&mut self, session: &mut Session) -> Result<bool, Lost>;
    fn disarm(&mut self, session: &mut Session);
    /// `true` if the wait ends once another server has resumed the session.
    fn ends_on_resume(&self) -> bool;
}

/// The news of a session, of any kind.
pub(crate) struct SessionNews;

impl Awaited for SessionNews {
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost> {
        session.has_news()
    }

    fn arm(&mut self, session: &mut Session) -> Result<bool, Lost> {
        session.arm()
    }

    fn disarm(&mut self, session: &mut Session) {
        session.disarm();
    }

    fn ends_on_resume(&self) -> bool {
        true
    }
}

/// The news of a source.
pub(crate) struct SourceNews<'a, S>(pub(crate) &'a mut S);

impl<S: NewsSource> Awaited for SourceNews<'_, S> {
    fn has_news(&mut self, session: &mut Session) -> Result<bool, Lost> {
        // The source may have news without any event: from time to time, this side looks whether the
        // server lives.
        if session.waiter.is_time_to_poll() {
            session.sleep(Some(Duration::ZERO))?;
        }
        if session.status.hung_up() && session.start_resuming() {
            session.resume(None)?;
        }
        if self.0.has_news(session)? {
            return Ok(true);
        }
        session.take_events()?;
        self.0.has_news(session)
    }

    fn arm(&mut self, session: &mut Session) -> Result<bool, Lost> {
        session.arm_for(self.0)
    }

    fn disarm(&mut self, session: &mut Session) {
        self.0.end_sleep(session);
        session.disarm();
    }

    fn ends_on_resume(&self) -> bool {
        false
    }
}

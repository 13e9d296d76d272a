//! What the control thread learns of a card: changes of its link, and its removal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use towpath_device::Event;

use super::signals::{any_of, take_signal};

/// What the kernel signals the control thread.
pub(crate) struct CardEvents {
    /// The kernel signals it before it removes the card.
    pub(crate) removal: OwnedFd,
    /// An epoll instance, which is readable once the link's interrupt or `removal` is signalled.
    epoll: OwnedFd,
    /// The state of the link that was reported last.
    is_up: bool,
}

impl CardEvents {
    /// Watches the link's interrupt and the removal. The start of a card signals the former, and
    /// then a link that is down is news.
    pub(crate) fn new(link: BorrowedFd<'_>, removal: OwnedFd) -> io::Result<CardEvents> {
        let epoll = any_of(&[link, removal.as_fd()])?;
        Ok(CardEvents { removal, epoll, is_up: true })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the removal, or a change of the link, whose interrupt is `link`. If that was signalled
    /// and the card answers, `is_up` returns the state of the link, or `None` to report nothing.
    pub(crate) fn take(
        &mut self,
        link: &OwnedFd,
        is_gone: impl FnOnce() -> bool,
        is_up: impl FnOnce() -> Option<bool>,
    ) -> Option<Event> {
        if take_signal(&self.removal) {
            return Some(Event::Removed);
        }
        if !take_signal(link) {
            return None;
        }
        if is_gone() {
            return Some(Event::Removed);
        }
        let up = is_up()?;
        (std::mem::replace(&mut self.is_up, up) != up).then_some(Event::Link { up })
    }
}

//! What sockets are ready for, and what a program wants to know of it.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use towpath_stack::Readiness;

const READABLE: u8 = 1;
const WRITABLE: u8 = 1 << 1;
const PRIORITY: u8 = 1 << 2;
const READ_CLOSED: u8 = 1 << 3;
const WRITE_CLOSED: u8 = 1 << 4;
const ERROR: u8 = 1 << 5;

const NAMES: [(u8, &str); 6] = [
    (READABLE, "READABLE"),
    (WRITABLE, "WRITABLE"),
    (PRIORITY, "PRIORITY"),
    (READ_CLOSED, "READ_CLOSED"),
    (WRITE_CLOSED, "WRITE_CLOSED"),
    (ERROR, "ERROR"),
];

fn write_names(f: &mut fmt::Formatter<'_>, bits: u8) -> fmt::Result {
    let mut names = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
    f.write_str(names.next().unwrap_or("EMPTY"))?;
    names.try_for_each(|name| write!(f, " | {name}"))
}

/// What a socket is ready for: a set of conditions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ready(u8);

impl Ready {
    /// No condition.
    pub const EMPTY: Ready = Ready(0);
    /// A read or an accept does not wait: for data, a connection, the end of the stream or an error.
    pub const READABLE: Ready = Ready(READABLE);
    /// A write does not wait; after a failed connect it returns the error.
    pub const WRITABLE: Ready = Ready(WRITABLE);
    /// Urgent data waits to be read.
    pub const PRIORITY: Ready = Ready(PRIORITY);
    /// No further data will arrive: the peer closed its direction, this side shut down reading, or the
    /// connection is over.
    pub const READ_CLOSED: Ready = Ready(READ_CLOSED);
    /// This side cannot write any more: it shut down writing, or the connection is over.
    pub const WRITE_CLOSED: Ready = Ready(WRITE_CLOSED);
    /// An error is pending: a reset, a refusal, a timeout, a revoked port or a dead link.
    pub const ERROR: Ready = Ready(ERROR);

    /// The state of every socket of a dead link.
    pub(crate) const DEAD: Ready = Ready(READABLE | WRITABLE | READ_CLOSED | WRITE_CLOSED | ERROR);

    pub(crate) fn of(readiness: Readiness) -> Ready {
        let bit = |holds, bit| if holds { bit } else { 0 };
        Ready(
            bit(readiness.readable, READABLE)
                | bit(readiness.writable, WRITABLE)
                | bit(readiness.urgent, PRIORITY)
                | bit(readiness.read_closed, READ_CLOSED)
                | bit(readiness.write_closed, WRITE_CLOSED)
                | bit(readiness.error, ERROR),
        )
    }

    /// Returns `true` if a read or an accept does not wait.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// let ready = Ready::READABLE | Ready::READ_CLOSED;
    /// // The read returns 0: the peer has closed its direction.
    /// assert!(ready.is_readable() && !ready.is_writable());
    /// ```
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.0 & READABLE != 0
    }

    /// Returns `true` if a write does not wait.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// assert!(Ready::WRITABLE.is_writable());
    /// assert!(!Ready::READABLE.is_writable());
    /// ```
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    /// Returns `true` if urgent data waits.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// let ready = Ready::READABLE | Ready::PRIORITY;
    /// assert!(ready.is_priority());
    /// ```
    #[must_use]
    pub const fn is_priority(self) -> bool {
        self.0 & PRIORITY != 0
    }

    /// Returns `true` if no further data will arrive.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// /// Returns `true` if the program may stop reading, once it has read what arrived.
    /// fn is_last_data(ready: Ready) -> bool {
    ///     ready.is_read_closed() && !ready.is_error()
    /// }
    /// assert!(is_last_data(Ready::READABLE | Ready::READ_CLOSED));
    /// ```
    #[must_use]
    pub const fn is_read_closed(self) -> bool {
        self.0 & READ_CLOSED != 0
    }

    /// Returns `true` if this side cannot write any more.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// assert!((Ready::WRITABLE | Ready::WRITE_CLOSED).is_write_closed());
    /// assert!(!Ready::WRITABLE.is_write_closed());
    /// ```
    #[must_use]
    pub const fn is_write_closed(self) -> bool {
        self.0 & WRITE_CLOSED != 0
    }

    /// Returns `true` if an error is pending.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// // The next call on the socket, or its `take_error`, returns the error.
    /// assert!((Ready::READABLE | Ready::ERROR).is_error());
    /// ```
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 & ERROR != 0
    }

    /// Returns `true` if no condition holds.
    ///
    /// ```
    /// # use towpath_net::{Interest, Ready};
    /// let ready = Ready::READABLE;
    /// assert!(ready.of_interest(Interest::WRITABLE).is_empty());
    /// ```
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if all conditions of `other` hold.
    ///
    /// ```
    /// # use towpath_net::Ready;
    /// let over = Ready::READ_CLOSED | Ready::WRITE_CLOSED;
    /// assert!((over | Ready::ERROR).contains(over));
    /// assert!(!Ready::READ_CLOSED.contains(over));
    /// ```
    #[must_use]
    pub const fn contains(self, other: Ready) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the conditions of `self` that a registration with `interest` reports: its directions, the end of each of
    /// these, errors, and both ends once both directions are closed.
    ///
    /// ```
    /// # use towpath_net::{Interest, Ready};
    /// let ready = Ready::READABLE | Ready::WRITABLE | Ready::READ_CLOSED;
    /// let seen = ready.of_interest(Interest::READABLE);
    /// assert_eq!(seen, Ready::READABLE | Ready::READ_CLOSED);
    /// ```
    #[must_use]
    pub const fn of_interest(self, interest: Interest) -> Ready {
        const BOTH: u8 = READ_CLOSED | WRITE_CLOSED;
        let mut wanted = interest.0 | ERROR;
        if interest.0 & READABLE != 0 {
            wanted |= READ_CLOSED;
        }
        if interest.0 & WRITABLE != 0 {
            wanted |= WRITE_CLOSED;
        }
        if self.0 & BOTH == BOTH {
            wanted |= BOTH;
        }
        Ready(self.0 & wanted)
    }
}

impl BitOr for Ready {
    type Output = Ready;

    fn bitor(self, other: Ready) -> Ready {
        Ready(self.0 | other.0)
    }
}

impl BitOrAssign for Ready {
    fn bitor_assign(&mut self, other: Ready) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.0)
    }
}

/// The directions of a socket that a program wants events for: at least one. Every interest also reports errors and the
/// end of both directions. `READABLE` also reports the end of the peer's data, and `WRITABLE` the end of this side's.
///
/// ```
/// use towpath_net::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// assert!(both.contains(Interest::WRITABLE) && !both.contains(Interest::PRIORITY));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Reading, accepting, and the end of the peer's data.
    pub const READABLE: Interest = Interest(READABLE);
    /// Writing, and the outcome of a connect.
    pub const WRITABLE: Interest = Interest(WRITABLE);
    /// Urgent data.
    pub const PRIORITY: Interest = Interest(PRIORITY);

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Interest {
        Interest(bits)
    }

    /// Returns `true` if the interest includes all directions of `other`.
    ///
    /// ```
    /// # use towpath_net::Interest;
    /// let interest = Interest::READABLE | Interest::PRIORITY;
    /// assert!(interest.contains(Interest::READABLE));
    /// assert!(!interest.contains(Interest::READABLE | Interest::WRITABLE));
    /// ```
    #[must_use]
    pub const fn contains(self, other: Interest) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Interest) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.0)
    }
}

/// When a registered socket has events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trigger {
    /// As long as the socket is ready: each [`Poller::wait`](crate::Poller::wait) reports it.
    #[default]
    Level,
    /// When something happens to the socket: data arrives, room becomes free, the connection changes. Use the
    /// socket until it returns `WouldBlock`.
    Edge,
    /// Once: then the socket has no events until [`Poller::modify`](crate::Poller::modify).
    OneShot,
}

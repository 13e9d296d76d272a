//! The two sockets at which a server listens.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::policy::Entrance;

/// The epoll data of the listening sockets, which is no worker's number.
pub(crate) const LISTENER: u64 = u64::MAX;
pub(crate) const ADMIN_LISTENER: u64 = u64::MAX - 5;

/// The time between two warnings about one user that needs the administration socket.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

/// The listening sockets.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) applications: OwnedFd,
    pub(crate) administrators: OwnedFd,
    /// The path of the administration socket, for people to read.
    pub(crate) admin_path: PathBuf,
}

impl Listeners {
    /// Has an epoll set tell of new connections.
    pub(crate) fn watch(&self, set: &OwnedFd) -> io::Result<()> {
        for (socket, token) in
            [(&self.applications, LISTENER), (&self.administrators, ADMIN_LISTENER)]
        {
            let data = epoll::EventData::new_u64(token);
            match epoll::add(set, socket, data, epoll::EventFlags::IN) {
                // An attempt to listen again may have failed halfway.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Has an epoll set tell of no new connection of an entrance.
    pub(crate) fn forget(&self, set: &OwnedFd, entrance: Entrance) {
        let _ = epoll::delete(set, self.of(entrance));
    }

    /// Returns the socket of an entrance.
    pub(crate) fn of(&self, entrance: Entrance) -> &OwnedFd {
        match entrance {
            Entrance::Administrators => &self.administrators,
            Entrance::Applications | Entrance::Earlier => &self.applications,
        }
    }
}

/// The times of the last warnings about root and the server's user at the applications' socket.
#[derive(Debug, Default)]
pub(crate) struct AdminWarnings {
    last: HashMap<u32, Instant>,
}

impl AdminWarnings {
    /// Returns `true` if the server may warn about this user now: once per [`WARNING_PAUSE`].
    pub(crate) fn allows(&mut self, uid: u32, now: Instant) -> bool {
        let is_due =
            self.last.get(&uid).is_none_or(|last| now.duration_since(*last) >= WARNING_PAUSE);
        if is_due {
            self.last.insert(uid, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_warned_of_once_a_minute() {
        let (mut warnings, start) = (AdminWarnings::default(), Instant::now());
        let mut warned = |uid, second| warnings.allows(uid, start + Duration::from_secs(second));
        let seconds: Vec<_> = (0..150).filter(|second| warned(0, *second)).collect();
        assert_eq!(seconds, [0, 60, 120]);
        assert!(warned(7, 121), "each user counts for itself");
    }
}

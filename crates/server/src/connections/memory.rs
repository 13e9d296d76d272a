//! The memory of each user, of each group, and of all sessions: what it may be, and what is freed.

use crate::connections::Connections;
use crate::policy::Limits;

impl Connections {
    /// Returns the reason for which there is no room for so many bytes more, of any session.
    pub(super) fn exceeds_total(&self, limits: &Limits, bytes: usize) -> Option<String> {
        let (total, most) = (self.bytes.saturating_add(bytes), limits.total_bytes);
        (total > most).then(|| {
            format!(
                "with it, all sessions would have {total} bytes together; at most {most} are allowed (total-bytes \
                 of the server, by default half of its memory); end another session, ask for less, or raise \
                 total-bytes"
            )
        })
    }

    /// Records that a worker begins to seal the memory of a session's application, of `bytes` bytes,
    /// and allocates what the application left unallocated. Until [`Connections::prepared`], the
    /// server takes it for allocated, because the session may end before the worker reports.
    pub(crate) fn begin_preparing(&mut self, token: u64, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        // An administrator's applications may take all memory anyway.
        if connection.account.is_limited {
            let bytes = bytes.min(connection.bytes);
            connection.unfreeable_bytes = bytes;
            self.preparing.insert(token, (connection.account, bytes));
        }
    }

    /// Records that a worker has sealed the memory of an application. `is_unfreeable`: the worker has
    /// allocated some of it, and no process can free that. It then counts as the user's until this
    /// server ends: the kernel does not say when the application lets go of it.
    pub(crate) fn prepared(&mut self, token: u64, is_unfreeable: bool) {
        let Some((account, bytes)) = self.preparing.remove(&token).filter(|_| !is_unfreeable)
        else {
            return;
        };
        match self.all.get_mut(&token).filter(|one| one.number != 0) {
            Some(connection) => connection.unfreeable_bytes = 0,
            None => {
                self.bytes -= bytes;
                self.charge(account, |held| {
                    held.bytes -= bytes;
                    held.unfreeable_bytes -= bytes;
                });
            }
        }
    }

    /// Adds bytes to those of a session, if its limits allow. Returns the reason otherwise.
    pub(crate) fn charge_bytes(
        &mut self,
        token: u64,
        limits: &Limits,
        bytes: usize,
    ) -> Result<(), String> {
        let Some(connection) = self.all.get(&token) else { return Ok(()) };
        let (account, most) = (connection.account, limits.session_bytes);
        let wanted = connection.bytes + bytes;
        if wanted > most {
            return Err(format!(
                "with this memory the session would have {wanted} bytes; at most {most} are allowed \
                 (session-bytes of the server or the policy); release another memory, or ask for less"
            ));
        }
        if let Some(text) = self.exceeds_total(limits, bytes) {
            return Err(text);
        }
        let uid = account.uid;
        let held = self.users.get(&uid).map_or(0, |held| held.bytes) + bytes;
        let most = limits.bytes_per_user;
        if account.is_limited && held > most {
            return Err(format!(
                "with this memory, the sessions of user {uid} would have {held} bytes; at most {most} \
                 are allowed (bytes-per-user of the server or the policy); release another memory"
            ));
        }
        self.add_bytes(token, bytes);
        Ok(())
    }

    /// Adds bytes to those of a session, whatever its limits are.
    pub(crate) fn add_bytes(&mut self, token: u64, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token).filter(|one| one.number != 0) else {
            return;
        };
        connection.bytes += bytes;
        self.bytes += bytes;
        let account = connection.account;
        self.charge(account, |held| held.bytes += bytes);
    }

    /// Takes bytes off those of a session.
    pub(crate) fn take_bytes(&mut self, token: u64, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token).filter(|one| one.number != 0) else {
            return;
        };
        connection.bytes -= bytes;
        self.bytes -= bytes;
        let account = connection.account;
        self.charge(account, |held| held.bytes -= bytes);
    }
}

#[cfg(test)]
mod tests {
    use towpath_protocol::peer::Peer;

    use super::*;
    use crate::connection::Connection;
    use crate::policy::{Account, Standing, Terms};

    const LIMITED: Account = Account { uid: 7, group: Some(70), is_limited: true };
    const ADMINISTRATOR: Account = Account { uid: 0, group: None, is_limited: false };

    impl Connections {
        /// Makes a connection with a session of `bytes` bytes.
        fn attach(&mut self, token: u64, account: Account, bytes: usize) {
            let standing =
                if account.is_limited { Standing::Granted } else { Standing::Administrator };
            let peer = Peer { uid: account.uid, gid: 1, groups: Vec::new(), pid: 1, process: None };
            let terms = Terms::default().into();
            let connection = Connection::new(0, peer, standing, terms, account, false);
            self.insert(token, connection);
            self.give_number(token, token as u32, bytes);
        }

        /// Ends a session and its connection. Returns the user's bytes.
        fn end(&mut self, token: u64) -> usize {
            let uid = self.get(token).unwrap().account.uid;
            self.remove(token);
            self.users.get(&uid).map_or(0, |held| held.bytes)
        }
    }

    #[test]
    fn memory_that_cannot_be_freed_stays_charged() {
        let mut all = Connections::default();
        // The worker has allocated the application's memory.
        all.attach(1, LIMITED, 100);
        all.begin_preparing(1, 40);
        all.prepared(1, true);
        assert_eq!(all.end(1), 40);
        // The application has allocated it, and ends before or after the worker says so.
        all.attach(2, LIMITED, 100);
        all.begin_preparing(2, 40);
        all.prepared(2, false);
        assert_eq!(all.end(2), 40);
        all.attach(3, LIMITED, 100);
        all.begin_preparing(3, 40);
        assert_eq!(all.end(3), 80, "not known yet");
        all.prepared(3, false);
        assert_eq!((all.users[&7].bytes, all.users[&7].unfreeable_bytes), (40, 40));
        // The worker reports the allocation after the end.
        all.attach(4, LIMITED, 100);
        all.begin_preparing(4, 40);
        all.end(4);
        all.prepared(4, true);
        assert_eq!((all.users[&7].bytes, all.groups[&70].bytes, all.bytes), (80, 80, 80));
        assert!(all.preparing.is_empty());
        all.attach(5, ADMINISTRATOR, 100);
        all.begin_preparing(5, 40);
        all.prepared(5, true);
        assert_eq!((all.end(5), all.bytes), (0, 80));
    }
}

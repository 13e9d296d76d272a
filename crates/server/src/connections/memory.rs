//! The charge for the memory of sessions, and the part that is freed.

use crate::connections::{Connections, Preparation};
use crate::policy::Policy;

impl Connections {
    /// Records that a worker begins to seal the memory of a session's application. If the application
    /// is an older one, the worker allocates what the application left unallocated. Until
    /// [`Connections::prepared`], the server counts the memory as allocated, because the session may
    /// end before the worker reports.
    pub(crate) fn begin_preparing(&mut self, token: u64) {
        let connection = self.all.get_mut(&token).filter(|one| one.unfreeable_bytes > 0);
        let Some(connection) = connection else { return };
        connection.is_unfreeable = true;
        let bytes = connection.unfreeable_bytes;
        let (worker, account) = (connection.application.worker, connection.application.account);
        self.preparing.insert(token, Preparation { worker, account, bytes });
    }

    /// Records that a worker has sealed the memory of an application. `is_unfreeable`: the worker has
    /// allocated a part of it, which no process can free. The memory then counts as the user's until
    /// this server ends: the kernel does not say when the application closes it.
    pub(crate) fn prepared(&mut self, token: u64, is_unfreeable: bool) {
        let preparation = self.preparing.remove(&token).filter(|_| !is_unfreeable);
        let Some(Preparation { account, bytes, .. }) = preparation else { return };
        self.usage.older.give_back_amount(account, bytes);
        match self.all.get_mut(&token).filter(|one| one.number != 0) {
            Some(connection) => {
                connection.unfreeable_bytes = 0;
                connection.is_unfreeable = false;
            }
            None => {
                self.usage.unfreeable.give_back_amount(account, bytes);
                self.usage.bytes.give_back_amount(account, bytes);
            }
        }
    }

    /// Forgets the preparations of workers that are gone, which report nothing any more. Their memory
    /// stays counted: such a worker may have allocated the memory before its end.
    pub(crate) fn forget_preparations(&mut self, exists: impl Fn(u64) -> bool) {
        self.preparing.retain(|_, one| exists(one.worker));
    }

    /// Adds bytes to the size of a session, if its limits allow. Returns the reason otherwise.
    pub(crate) fn charge_bytes(
        &mut self,
        token: u64,
        policy: &Policy,
        bytes: usize,
    ) -> Result<(), String> {
        let Some(connection) = self.all.get(&token) else { return Ok(()) };
        let limits = &policy.limits(&connection.application.terms);
        let (account, most) = (connection.application.account, limits.session_bytes);
        let wanted = connection.bytes + bytes;
        if wanted > most {
            return Err(format!(
                "with this memory the session would have {wanted} bytes; at most {most} are allowed \
                 (session-bytes of the server or the policy); release another memory, or ask for less"
            ));
        }
        if let Some(text) = self.usage.exceeds(limits, account, bytes) {
            return Err(format!(
                "with this memory, {text}; release another memory, or ask for less"
            ));
        }
        self.add_bytes(token, bytes);
        Ok(())
    }

    /// Adds bytes to the size of a session, whatever its limits are.
    pub(crate) fn add_bytes(&mut self, token: u64, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token).filter(|one| one.number != 0) else {
            return;
        };
        connection.bytes += bytes;
        let account = connection.application.account;
        self.usage.bytes.add_amount(account, bytes);
    }

    /// Subtracts bytes from the size of a session.
    pub(crate) fn take_bytes(&mut self, token: u64, bytes: usize) {
        let Some(connection) = self.all.get_mut(&token).filter(|one| one.number != 0) else {
            return;
        };
        connection.bytes -= bytes;
        let account = connection.application.account;
        self.usage.bytes.give_back_amount(account, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use towpath_protocol::peer::Peer;

    use super::*;
    use crate::application::Application;
    use crate::connection::Connection;
    use crate::connections::SessionMemory;
    use crate::policy::{Admission, Entrance, Limits, Standing, Terms};
    use towpath_engine::account::{Account, Party};

    const LIMITED: Account = Account { uid: 7, group: Some(70), is_limited: true };
    const ADMINISTRATOR: Account = Account { uid: 0, group: None, is_limited: false };

    impl Connections {
        /// Makes a connection with a session of `bytes` bytes.
        fn attach(&mut self, token: u64, account: Account, bytes: usize) {
            self.attach_older(token, account, bytes, 0);
        }

        /// Makes a connection of an older application, whose worker may allocate `unfreeable` bytes.
        fn attach_older(&mut self, token: u64, account: Account, bytes: usize, unfreeable: usize) {
            let standing =
                if account.is_limited { Standing::Granted } else { Standing::Administrator };
            let peer = Peer { uid: account.uid, gid: 1, groups: Vec::new(), pid: 1, process: None };
            let admission =
                Admission { standing, group: account.group, terms: Terms::default().into() };
            let entrance = Entrance::Administrators;
            let application = Application::new(token, peer, entrance, admission, false);
            self.insert(token, Connection::new(application));
            self.give_number(token, token as u32, SessionMemory { bytes, unfreeable });
        }

        /// Ends a session and its connection. Returns the user's bytes.
        fn end(&mut self, token: u64) -> usize {
            let user = self.get(token).unwrap().application.account.user();
            self.remove(token);
            self.usage.bytes.of(user)
        }
    }

    #[test]
    fn memory_that_cannot_be_freed_stays_charged() {
        let mut all = Connections::new(0, Duration::ZERO);
        // The worker has allocated the application's memory.
        all.attach_older(1, LIMITED, 100, 40);
        all.begin_preparing(1);
        all.prepared(1, true);
        assert_eq!((all.end(1), all.usage.older.all()), (40, 40));
        // The application has allocated its memory, and ends before or after the worker's report.
        all.attach_older(2, LIMITED, 100, 40);
        all.begin_preparing(2);
        all.prepared(2, false);
        assert_eq!((all.end(2), all.usage.older.all()), (40, 40));
        all.attach_older(3, LIMITED, 100, 40);
        all.begin_preparing(3);
        assert_eq!((all.end(3), all.usage.older.all()), (80, 80), "not known yet");
        all.prepared(3, false);
        assert_eq!(
            (all.usage.bytes.of(Party::User(7)), all.usage.unfreeable.of(Party::User(7))),
            (40, 40)
        );
        assert_eq!((all.usage.older.of(Party::User(7)), all.usage.older.all()), (40, 40));
        // The worker reports the allocation after the end.
        all.attach_older(4, LIMITED, 100, 40);
        all.begin_preparing(4);
        all.end(4);
        all.prepared(4, true);
        assert_eq!(
            (
                all.usage.bytes.of(Party::User(7)),
                all.usage.bytes.of(Party::Group(70)),
                all.usage.bytes()
            ),
            (80, 80, 80)
        );
        assert!(all.preparing.is_empty());
        // The application ends before its worker begins.
        all.attach_older(5, LIMITED, 100, 40);
        assert_eq!((all.end(5), all.usage.older.all()), (80, 80));
        // The worker allocates no memory of other applications.
        all.attach(6, LIMITED, 100);
        all.begin_preparing(6);
        all.prepared(6, true);
        assert_eq!((all.end(6), all.usage.older.all()), (80, 80));
    }

    /// A worker that has ended reports nothing. The server keeps no entry that waits for its report.
    #[test]
    fn preparations_of_an_ended_worker_are_forgotten() {
        let mut all = Connections::new(0, Duration::ZERO);
        for token in 1..4 {
            all.attach_older(token, LIMITED, 100, 40);
            all.begin_preparing(token);
            all.end(token);
        }
        // Each token is also the number of the worker.
        all.forget_preparations(|worker| worker != 2);
        assert_eq!(all.preparing.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 3]));
        // The worker may have allocated the memory.
        assert_eq!(
            (all.usage.bytes.of(Party::User(7)), all.usage.unfreeable.of(Party::User(7))),
            (120, 120)
        );
        all.prepared(1, false);
        assert_eq!(
            (all.usage.bytes.of(Party::User(7)), all.usage.unfreeable.of(Party::User(7))),
            (80, 80)
        );
    }

    /// Older applications, live or ended, take an eighth of the part of a group and of granted users.
    #[test]
    fn memory_that_may_never_be_freed_excludes_no_other_user() {
        let mut all = Connections::new(0, Duration::ZERO);
        let limits = limits(12_800, 12_800);
        let group = |uid| account(uid, Some(70));
        all.attach_older(1, group(7), 500, 400);
        all.begin_preparing(1);
        all.prepared(1, true);
        all.end(1);
        all.attach_older(2, group(8), 500, 300);
        assert_eq!(all.usage.exceeds_unfreeable(&limits, group(9), 100), None);
        let text = all.usage.exceeds_unfreeable(&limits, group(9), 101).unwrap();
        assert!(text.contains("group 70 would be 801 bytes; at most 800 are allowed"), "{text}");
        assert!(text.contains("rebuild the application"), "{text}");
        // Other applications of the group are not refused.
        assert_eq!(all.usage.exceeds_unfreeable(&limits, group(9), 0), None);
        assert_eq!(all.usage.exceeds(&limits, group(9), 5000), None);
        // All granted users have seven eighths.
        assert_eq!(all.usage.exceeds_unfreeable(&limits, account(9, None), 700), None);
        let text = all.usage.exceeds_unfreeable(&limits, account(9, None), 701).unwrap();
        assert!(text.contains("all granted users would be 1401 bytes; at most 1400"), "{text}");
        // A session that ends before its worker begins gives its part back.
        all.end(2);
        assert_eq!(all.usage.exceeds_unfreeable(&limits, group(9), 400), None);
        assert_eq!(all.usage.exceeds_unfreeable(&limits, account(9, None), 1000), None);
    }

    fn policy(total_bytes: usize, bytes_per_user: usize) -> Policy {
        let session_bytes = total_bytes;
        Policy { total_bytes, bytes_per_user, session_bytes, ..Policy::default() }
    }

    fn limits(total_bytes: usize, bytes_per_user: usize) -> Limits {
        policy(total_bytes, bytes_per_user).limits(&Terms::default())
    }

    fn account(uid: u32, group: Option<u32>) -> Account {
        Account { uid, group, is_limited: true }
    }

    /// Memory that two users shared and that is not freed counts as much as it takes, and half for each, also without a
    /// session.
    #[test]
    fn memory_of_two_users_counts_half_for_each() {
        let mut all = Connections::new(0, Duration::ZERO);
        let (one, other) = (account(7, Some(70)), account(8, None));
        all.attach(1, one, 100);
        all.usage.charge_both([one, other], 400);
        assert_eq!(
            (all.usage.bytes.of(Party::User(7)), all.usage.bytes.of(Party::User(8))),
            (300, 200)
        );
        assert_eq!((all.usage.bytes.of(Party::Group(70)), all.usage.bytes()), (300, 500));
        let text = all.usage.exceeds(&limits(10_000, 600), other, 401).unwrap();
        assert!(text.contains("user 8 would have 601 bytes"), "{text}");
        assert_eq!(all.end(1), 200);
        all.usage.discharge_both([one, other], 400);
        assert_eq!(
            (all.usage.bytes.users(), all.usage.bytes.of(Party::Group(70)), all.usage.bytes()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_user_has_half_of_the_memory_at_most() {
        let mut all = Connections::new(0, Duration::ZERO);
        let (user, limits) = (account(7, None), limits(800, 1000));
        all.attach(1, user, 300);
        assert_eq!(all.usage.exceeds(&limits, user, 100), None);
        let text = all.usage.exceeds(&limits, user, 101).unwrap();
        assert!(text.contains("user 7 would have 401 bytes; at most 400"), "{text}");
        assert!(text.contains("half of total-bytes"), "{text}");
        assert!(text.contains("--total-bytes raises it"), "{text}");
        // A memory of the session counts as well.
        assert!(all.charge_bytes(1, &policy(800, 1000), 101).is_err());
        assert_eq!(all.charge_bytes(1, &policy(800, 1000), 100), Ok(()));
        // Other users have room.
        assert_eq!(all.usage.exceeds(&limits, account(8, None), 300), None);
        assert_eq!(all.usage.exceeds(&limits, ADMINISTRATOR, 400), None);
    }

    #[test]
    fn the_users_of_a_group_have_half_of_the_memory_at_most() {
        let mut all = Connections::new(0, Duration::ZERO);
        let limits = limits(800, 1000);
        all.attach(1, account(7, Some(70)), 200);
        all.attach(2, account(8, Some(70)), 150);
        let third = account(9, Some(70));
        assert_eq!(all.usage.exceeds(&limits, third, 50), None);
        let text = all.usage.exceeds(&limits, third, 51).unwrap();
        assert!(text.contains("group 70 would have 401 bytes; at most 400"), "{text}");
        assert_eq!(all.usage.exceeds(&limits, account(9, Some(71)), 300), None);
    }

    #[test]
    fn granted_users_leave_an_eighth_to_administrators() {
        let mut all = Connections::new(0, Duration::ZERO);
        let limits = limits(800, 1000);
        for uid in 7..9 {
            all.attach(u64::from(uid), account(uid, None), 350);
        }
        let text = all.usage.exceeds(&limits, account(9, None), 1).unwrap();
        assert!(text.contains("701 bytes together; at most 700"), "{text}");
        assert_eq!(all.usage.exceeds(&limits, ADMINISTRATOR, 100), None);
        let text = all.usage.exceeds(&limits, ADMINISTRATOR, 101).unwrap();
        assert!(text.contains("801 bytes together; at most 800"), "{text}");
        // Administrators' bytes do not count against the granted users' share, only against the total.
        all.end(7);
        all.attach(1, ADMINISTRATOR, 400);
        assert_eq!(all.usage.exceeds(&limits, account(9, None), 50), None);
        assert!(all.usage.exceeds(&limits, account(9, None), 51).unwrap().contains("801 bytes"));
    }

    #[test]
    fn a_refusal_names_the_users_own_limit_first() {
        let mut all = Connections::new(0, Duration::ZERO);
        // These bytes exceed each limit.
        all.attach(1, account(8, None), 700);
        all.attach(2, account(7, Some(70)), 300);
        let text = all.usage.exceeds(&limits(800, 200), account(7, Some(70)), 200).unwrap();
        assert!(text.contains("at most 200") && text.contains("(bytes-per-user"), "{text}");
    }
}

//! The state pages of users: each has the engines' sleep flags for the applications of one user.
//!
//! An application maps the state page to see whether an engine sleeps. A process that has a file open can put tens of
//! thousands of record locks on it, and then each close of the file by any process takes milliseconds, because the
//! kernel walks the locks. So the applications of each untrusted user get a page of their user, and only administrators
//! get the server's own page, which also has the counters. The engines write the flags into all pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_engine::account::Account;
use towpath_engine::commands::Command;
use towpath_memory::SharedFile;
use towpath_protocol::layout::STATE_WORDS;
use tracing::warn;

use crate::control::Control;
use crate::engines::Reply;
use crate::resume::left::state_name;
use crate::user_page::UserPage;
use crate::worker::owner::Owner;

impl Control {
    /// Makes the state page of a user, if there is none and the user's applications need one.
    pub(crate) fn make_user_page(&mut self, account: Account) -> io::Result<()> {
        let uid = account.uid;
        if !account.is_limited || self.pages.has(uid) {
            return Ok(());
        }
        let bytes = self.engines.lanes() * STATE_WORDS * 8;
        let file = SharedFile::create("towpath-state", bytes)?;
        file.seal_seals()?;
        self.store.put(&state_name(uid), file.as_fd())?;
        let added = self.add_user_page(uid, file);
        added.inspect_err(|_| drop(self.store.remove(&state_name(uid))))
    }

    /// Has the engines write their sleep flags into a user's page.
    fn add_user_page(&mut self, uid: u32, file: SharedFile) -> io::Result<()> {
        let (page, flags) = UserPage::map(file, self.engines.lanes())?;
        self.pages.insert(uid, page);
        let add = |flag| Command::AddFlag { user: uid, flag: Box::new(flag) };
        self.engines.command_each(flags.into_iter().map(add).collect(), Reply::Nothing);
        Ok(())
    }

    /// Takes over the pages of an earlier server, before its sessions. Returns the users whose page is not usable:
    /// their sessions cannot be resumed, because the applications would never learn that an engine sleeps.
    pub(crate) fn restore_user_pages(&mut self, left: BTreeMap<u32, OwnedFd>) -> BTreeSet<u32> {
        let bytes = self.engines.lanes() * STATE_WORDS * 8;
        let mut lost = BTreeSet::new();
        for (uid, file) in left {
            let adopted = SharedFile::adopt(file).and_then(|file| {
                if file.len() < bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.add_user_page(uid, file)
            });
            if let Err(error) = adopted {
                warn!(uid, "the state page of an earlier server is not usable: {error}");
                let unused = self.store.remove(&state_name(uid));
                self.workers.close(unused);
                lost.insert(uid);
            }
        }
        lost
    }

    /// Removes the page of a user without sessions.
    pub(crate) fn forget_user_page(&mut self, uid: u32) {
        if self.connections.has_granted_sessions(uid) {
            return;
        }
        if let Some(page) = self.pages.remove(uid) {
            // The user's next page has the same name.
            let kept = self.store.remove(&state_name(uid));
            // The engines still write the page.
            self.workers.close_by(Owner::User(uid), kept, 0);
            let remove = Command::RemoveFlag { user: uid };
            self.engines.command(remove, Reply::FlagRemoved(uid, Box::new(page)));
        }
    }

    /// Disposes of a page that no engine writes any more. Its user can make the close slow.
    pub(crate) fn dispose_of_user_page(&mut self, uid: u32, page: UserPage) {
        let UserPage { file, readable, mapping, pins } = page;
        self.workers.drop_later(mapping);
        self.workers.drop_later(pins);
        self.workers.dispose(Owner::User(uid), vec![file.into(), readable]);
    }
}

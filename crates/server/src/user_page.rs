//! A user's state page, and the pages of all users.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use towpath_engine::account::Account;
use towpath_memory::{Mapping, Region, SharedFile, own_words};
use towpath_protocol::layout::{STATE_SLEEP_WORD, STATE_WORDS};
use towpath_queue::OwnWords;
use towpath_queue::word::LINE_WORDS;

use crate::worker::pin::pin;
use crate::worker::wire::Descriptors;

/// A user's page.
#[derive(Debug)]
pub(crate) struct UserPage {
    pub(crate) file: SharedFile,
    /// For applications.
    pub(crate) readable: OwnedFd,
    pub(crate) mapping: Arc<Mapping>,
    /// The descriptors that keep the page in place.
    pub(crate) pins: Descriptors,
}

/// The memory that the engines write for readers: the state pages, the server's own and those of users, and the ledger
/// of connections with other hosts.
#[derive(Debug)]
pub(crate) struct StatePages {
    /// The server's own page, for reading.
    own: OwnedFd,
    mapping: Arc<Mapping>,
    users: BTreeMap<u32, UserPage>,
    /// The ledger of connections with other hosts, if endpoints may have some.
    rdma_ledger: Option<Arc<Mapping>>,
    /// The descriptors that keep the server's own page in place.
    _pins: Descriptors,
}

impl StatePages {
    /// Begins with the server's own page, its mapping, and the descriptors that keep it in place. `rdma_ledger`: the
    /// ledger of connections with other hosts.
    ///
    /// # Errors
    /// Fails without descriptors.
    pub(crate) fn new(
        own: &SharedFile,
        mapping: Arc<Mapping>,
        pins: Descriptors,
        rdma_ledger: Option<Arc<Mapping>>,
    ) -> io::Result<StatePages> {
        let (own, users) = (own.read_only()?, BTreeMap::new());
        Ok(StatePages { own, mapping, users, rdma_ledger, _pins: pins })
    }

    /// Returns the ledger of connections with other hosts, if endpoints may have some.
    pub(crate) fn rdma_ledger(&self) -> Option<&Arc<Mapping>> {
        self.rdma_ledger.as_ref()
    }

    /// Returns the mapping of the server's own page.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the state page for an application of this account: the server's own, or that of the account's user.
    pub(crate) fn page_for(&self, account: Account) -> &OwnedFd {
        let page = self.users.get(&account.uid).filter(|_| account.is_limited);
        page.map_or(&self.own, |page| &page.readable)
    }

    /// Returns the users that have a page.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.users.keys().copied().collect()
    }

    /// Returns `true` if a user has a page.
    pub(crate) fn has(&self, uid: u32) -> bool {
        self.users.contains_key(&uid)
    }

    /// Adds the page of a user.
    pub(crate) fn insert(&mut self, uid: u32, page: UserPage) {
        self.users.insert(uid, page);
    }

    /// Takes the page of a user, if there is one.
    pub(crate) fn remove(&mut self, uid: u32) -> Option<UserPage> {
        self.users.remove(&uid)
    }
}

impl UserPage {
    /// Maps a page. Also returns the engines' parts of it.
    pub(crate) fn map(file: SharedFile, lanes: usize) -> io::Result<(UserPage, Vec<OwnWords>)> {
        let mut region = file.map_writable()?;
        let mapping = region.mapping().clone();
        mapping.keep_from_children()?;
        let pins = pin(&[file.as_fd()])?;
        let readable = file.read_only()?;
        let flags = (0..lanes).map(|_| flag_of(region.split_off_front(STATE_WORDS * 8)));
        let flags = flags.collect();
        Ok((UserPage { file, readable, mapping, pins }, flags))
    }
}

/// Returns the sleep flag of a lane's part of a state page.
fn flag_of(part: Region) -> OwnWords {
    let mut words = own_words(part);
    drop(words.split_off_front(STATE_SLEEP_WORD));
    words.split_off_front(LINE_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(uid: u32) -> (SharedFile, Arc<Mapping>) {
        let file = SharedFile::create(&format!("page-{uid}"), 4096).unwrap();
        let mapping = Arc::new(file.map_readable().unwrap());
        (file, mapping)
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    /// Applications of a granted user get the user's page, if there is one. Administrators get the server's.
    #[test]
    fn a_page_is_for_the_applications_of_its_user() {
        let (own, mapping) = page(0);
        let mut pages =
            StatePages::new(&own, mapping, std::array::from_fn(|_| None), None).unwrap();
        let own = rustix::fs::fstat(own.as_fd()).unwrap().st_ino;
        let account = |uid, is_limited| Account { uid, group: None, is_limited };
        assert_eq!(inode(pages.page_for(account(7, true))), own);
        let (file, mapping) = page(7);
        let readable = file.read_only().unwrap();
        let theirs = inode(&readable);
        let pins = std::array::from_fn(|_| None);
        pages.insert(7, UserPage { file, readable, mapping, pins });
        assert!(pages.has(7) && !pages.has(8) && pages.users() == [7]);
        assert_eq!(inode(pages.page_for(account(7, true))), theirs);
        for other in [account(7, false), account(8, true)] {
            assert_eq!(inode(pages.page_for(other)), own);
        }
        assert!(pages.remove(7).is_some() && pages.remove(7).is_none());
        assert_eq!(inode(pages.page_for(account(7, true))), own);
    }
}

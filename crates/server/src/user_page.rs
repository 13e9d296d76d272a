//! A user's state page, and the pages of all users.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use towpath_memory::{Mapping, Region, SharedFile, own_words};
use towpath_protocol::layout::{STATE_SLEEP_WORD, STATE_WORDS};
use towpath_queue::OwnWords;
use towpath_queue::word::LINE_WORDS;

use crate::account::Account;
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

/// The pages by users.
pub(crate) type UserPages = BTreeMap<u32, UserPage>;

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

/// Returns the state page for an application of this account: the server's own, or that of the account's user.
pub(crate) fn page_for<'a>(
    own: &'a OwnedFd,
    pages: &'a UserPages,
    account: Account,
) -> &'a OwnedFd {
    let page = pages.get(&account.uid).filter(|_| account.is_limited);
    page.map_or(own, |page| &page.readable)
}

//! The device's changed settings, and the measured costs of sleeping, in a file for the successor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_memory::{SharedFile, own_words, peer_words};
use towpath_protocol::settings::{Scope, Setting, Values};
use towpath_protocol::store::Store;
use towpath_queue::OwnWords;
use towpath_waiting::Costs;

/// The name of the file in the store.
pub(crate) const SETTINGS: &str = "settings";
/// The first word. It changes with the layout.
const LAYOUT: u64 = u64::from_le_bytes(*b"Setting2");
/// The settings that a record has room for. Later versions append settings, and never use a setting's
/// number again. A server ignores settings that it does not know.
pub(super) const SETTINGS_ROOM: usize = 64;
/// The words of the costs: 1 if they are there, and four numbers, in nanoseconds.
const COSTS: usize = 1;
/// The words of a setting: 1 if it was changed, and its value.
const FIRST: usize = COSTS + 5;
const WORDS: usize = 2;
const ALL_WORDS: usize = FIRST + WORDS * SETTINGS_ROOM;

/// A memory file that only servers write.
#[derive(Debug)]
pub(crate) struct ChangedSettings {
    words: OwnWords,
}

impl ChangedSettings {
    /// Goes on with the file of an earlier server, and applies its changes to `values`; or makes a
    /// file, and stores it.
    ///
    /// # Errors
    /// Fails if there is no memory, or if the store cannot keep the file.
    pub(crate) fn adopt_or_create(
        left: Option<OwnedFd>,
        store: &mut dyn Store,
        values: &mut Values,
    ) -> io::Result<ChangedSettings> {
        if let Some(file) = left {
            if apply(file.as_fd(), values)? {
                return ChangedSettings::map(&SharedFile::adopt(file)?);
            }
            store.remove(SETTINGS);
        }
        let file = SharedFile::create("towpath-settings", ALL_WORDS * 8)?;
        file.seal_seals()?;
        let mut changed = ChangedSettings::map(&file)?;
        changed.words.publish(0, LAYOUT);
        store.put(SETTINGS, file.as_fd())?;
        Ok(changed)
    }

    fn map(file: &SharedFile) -> io::Result<ChangedSettings> {
        let region = file.map_writable()?;
        region.mapping().keep_from_children()?;
        Ok(ChangedSettings { words: own_words(region) })
    }

    /// Records the costs of sleeping, which this process has measured or taken over.
    pub(crate) fn set_costs(&mut self, costs: Costs) {
        let Costs { wake_up, wake_up_cpu, tick_cpu, tick_late } = costs;
        for (word, value) in (COSTS + 1..).zip([wake_up, wake_up_cpu, tick_cpu, tick_late]) {
            self.words.store(word, value);
        }
        self.words.publish(COSTS, 1);
    }

    /// Records a change.
    pub(crate) fn set(&mut self, setting: Setting, value: u64) {
        let at = FIRST + setting as usize * WORDS;
        self.words.store(at + 1, value);
        self.words.publish(at, 1);
    }
}

/// Applies the changes of a file. Returns `false` if it is of a server with other settings.
fn apply(file: BorrowedFd<'_>, values: &mut Values) -> io::Result<bool> {
    let mapping = SharedFile::adopt(file.try_clone_to_owned()?)?.map_readable()?;
    let words = peer_words(&Arc::new(mapping));
    if words.len() < ALL_WORDS || words.observe(0) != LAYOUT {
        return Ok(false);
    }
    if words.observe(COSTS) == 1 {
        let [wake_up, wake_up_cpu, tick_cpu, tick_late] =
            std::array::from_fn(|word| words.fetch(COSTS + 1 + word));
        Costs { wake_up, wake_up_cpu, tick_cpu, tick_late }.assume();
    }
    for (setting, spec) in Setting::ALL {
        let at = FIRST + *setting as usize * WORDS;
        if spec.scope == Scope::Device && words.observe(at) == 1 {
            // A value out of range leaves the one of the start.
            let _ = values.set(*setting, words.fetch(at + 1));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_protocol::store::MemoryStore;

    #[test]
    fn changes_last() {
        let mut store = MemoryStore::default();
        let mut values = Values::default();
        let mut first = ChangedSettings::adopt_or_create(None, &mut store, &mut values).unwrap();
        assert_eq!(values, Values::default());
        first.set(Setting::WatchdogMs, 77);
        let left = || store.contents().unwrap().pop().map(|(_, file)| file);
        let (left, again) = (left(), left());
        let mut second = ChangedSettings::adopt_or_create(left, &mut store, &mut values).unwrap();
        assert_eq!(values.get(Setting::WatchdogMs), 77);
        assert_eq!(store.len(), 1);
        second.set(Setting::WatchdogMs, u64::MAX);
        let mut values = Values::default();
        ChangedSettings::adopt_or_create(again, &mut store, &mut values).unwrap();
        assert_eq!(values, Values::default(), "out of range");
    }

    #[test]
    fn a_file_of_other_settings_is_replaced() {
        let (mut store, mut values) = (MemoryStore::default(), Values::default());
        let other = SharedFile::create("other", 4096).unwrap();
        store.put(SETTINGS, other.as_fd()).unwrap();
        let left = Some(OwnedFd::from(other));
        ChangedSettings::adopt_or_create(left, &mut store, &mut values).unwrap();
        assert_eq!((values, store.len()), (Values::default(), 1));
    }
}

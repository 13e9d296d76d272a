//! The memories from which sessions send, for reading. They stand apart from the sessions, so that
//! the engine reads a sender's packet while it changes the receiver's session, which may be the
//! same one.

use std::sync::Arc;

use towpath_memory::{Mapping, peer_words};
use towpath_queue::PeerWords;

/// One session's transmit buffer pool.
#[derive(Debug)]
pub(crate) struct TransmitMemory {
    mapping: Arc<Mapping>,
    words: PeerWords,
}

impl TransmitMemory {
    /// Returns the memory for copies of headers and payload.
    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the memory for the fetch function, which reads metadata.
    #[inline]
    pub(crate) fn words(&self) -> &PeerWords {
        &self.words
    }
}

/// The transmit buffer pools by session key.
#[derive(Debug, Default)]
pub(crate) struct TransmitMemories {
    by_key: Vec<Option<TransmitMemory>>,
}

impl TransmitMemories {
    /// Enters the memory of a session. Replaces that of an earlier session with the key.
    pub(crate) fn insert(&mut self, key: u32, mapping: &Arc<Mapping>) {
        let index = key as usize;
        if index >= self.by_key.len() {
            self.by_key.resize_with(index + 1, || None);
        }
        let words = peer_words(mapping);
        self.by_key[index] = Some(TransmitMemory { mapping: mapping.clone(), words });
    }

    /// Removes the memory of a session.
    pub(crate) fn remove(&mut self, key: u32) {
        if let Some(memory) = self.by_key.get_mut(key as usize) {
            *memory = None;
        }
    }

    /// Returns the memory of a session.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<&TransmitMemory> {
        self.by_key.get(key as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_memory::Region;

    #[test]
    fn a_memory_is_found_by_key_until_it_is_removed() {
        let mut memories = TransmitMemories::default();
        let mut region = Region::private(4096).unwrap();
        assert!(region.copy_in(8, b"inhabits"));
        memories.insert(2, region.mapping());
        assert!(memories.get(0).is_none() && memories.get(3).is_none());
        let memory = memories.get(2).unwrap();
        let mut read = [0; 8];
        assert!(memory.mapping().copy_out(8, &mut read));
        assert_eq!(memory.words().fetch(1), u64::from_le_bytes(read));
        memories.remove(2);
        memories.remove(9);
        assert!(memories.get(2).is_none());
    }
}

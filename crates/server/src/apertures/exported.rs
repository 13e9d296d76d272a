//! The exported apertures of all sessions, by their keys.

use std::collections::HashMap;
use std::io;

use super::objects::{Entry, ObjectKind, Objects};
use super::tables::random;

/// An aperture that a session exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedAperture {
    /// The session that exports it, and the aperture's number there.
    pub(super) owner: u32,
    pub(super) number: u32,
    /// The session that imported it, and the aperture's number there.
    pub(super) imported: Option<(u32, u32)>,
}

/// The exported apertures of all sessions.
#[derive(Debug, Default)]
pub(super) struct ExportedApertures {
    by_key: HashMap<u32, ExportedAperture>,
}

impl ExportedApertures {
    /// Returns a key that no aperture has.
    ///
    /// # Errors
    /// Fails if the kernel has no random number.
    pub(super) fn new_key(&self) -> io::Result<u32> {
        loop {
            let key = u32::from_ne_bytes(random()?);
            if key != 0 && !self.by_key.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Enters an aperture that no session has imported.
    pub(super) fn enter(&mut self, key: u32, owner: u32, number: u32) {
        self.by_key.insert(key, ExportedAperture { owner, number, imported: None });
    }

    /// Returns an aperture.
    pub(super) fn get(&self, key: u32) -> Option<ExportedAperture> {
        self.by_key.get(&key).copied()
    }

    /// Forgets an aperture.
    pub(super) fn remove(&mut self, key: u32) {
        self.by_key.remove(&key);
    }

    /// Records that a session imported an aperture, if `owner` exports it: the session, and its number of the
    /// import.
    pub(super) fn import(&mut self, key: u32, owner: u32, importer: u32, number: u32) {
        if let Some(one) = self.by_key.get_mut(&key).filter(|one| one.owner == owner) {
            one.imported = Some((importer, number));
        }
    }

    /// Records that an importer has released an aperture.
    pub(super) fn release(&mut self, key: u32, importer: u32, number: u32) {
        if let Some(one) = self.by_key.get_mut(&key) {
            one.imported = one.imported.filter(|one| *one != (importer, number));
        }
    }

    /// Forgets the apertures that an ended session exported or imported.
    pub(super) fn forget_session(&mut self, objects: &Objects) {
        for (_, entry) in objects.all(ObjectKind::Aperture) {
            if entry.kind == Entry::EXPORTED {
                self.by_key.remove(&entry.key);
            } else if let Some(one) = self.by_key.get_mut(&entry.key) {
                one.imported = one.imported.filter(|(session, _)| *session != objects.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aperture_has_at_most_one_importer() {
        let mut all = ExportedApertures::default();
        let key = all.new_key().unwrap();
        assert!(all.get(key).is_none());
        all.enter(key, 5, 0);
        let imported = |all: &ExportedApertures| all.get(key).and_then(|one| one.imported);
        all.import(key, 6, 7, 1);
        assert_eq!(imported(&all), None, "session 6 does not export it");
        all.import(key, 5, 7, 1);
        assert_eq!(imported(&all), Some((7, 1)));
        all.release(key, 7, 2);
        assert_eq!(imported(&all), Some((7, 1)), "another import");
        all.release(key, 7, 1);
        assert_eq!(all.get(key), Some(ExportedAperture { owner: 5, number: 0, imported: None }));
        all.remove(key);
        assert!(all.get(key).is_none());
    }
}

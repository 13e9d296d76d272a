//! The imported tripwires of all sessions, by the tripwires' owners.

use std::collections::BTreeSet;

use super::objects::{Entry, ObjectKind, Objects};

/// Finds the sessions that imported a tripwire, without a walk over all sessions.
#[derive(Debug, Default)]
pub(super) struct TripwireImporters {
    /// Per import: the owner's session, the owner's number of the tripwire, the importer's session and the importer's
    /// number.
    all: BTreeSet<[u32; 4]>,
}

impl TripwireImporters {
    /// Enters a tripwire that a session imported. Ignores a tripwire of another kind, and one that its owner has
    /// released.
    pub(super) fn enter(&mut self, session: u32, number: u32, entry: &Entry) {
        if entry.kind == Entry::IMPORTED_TRIPWIRE && entry.key != 0 {
            self.all.insert([entry.other_session, entry.other, session, number]);
        }
    }

    /// Forgets a tripwire that a session imported.
    pub(super) fn remove(&mut self, session: u32, number: u32, entry: &Entry) {
        if entry.kind == Entry::IMPORTED_TRIPWIRE {
            self.all.remove(&[entry.other_session, entry.other, session, number]);
        }
    }

    /// Forgets all tripwires that a session imported.
    pub(super) fn remove_all(&mut self, objects: &Objects) {
        for (number, entry) in objects.all(ObjectKind::Tripwire) {
            self.remove(objects.session, number, entry);
        }
    }

    /// Forgets the imports of a session's tripwire. Returns the importers' sessions and numbers.
    pub(super) fn take(&mut self, owner: u32, tripwire: u32) -> Vec<(u32, u32)> {
        let theirs = [owner, tripwire, 0, 0]..=[owner, tripwire, u32::MAX, u32::MAX];
        let found: Vec<_> = self.all.range(theirs).copied().collect();
        for one in &found {
            self.all.remove(one);
        }
        found.into_iter().map(|[_, _, session, number]| (session, number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn imported(owner: u32, tripwire: u32) -> Entry {
        let kind = Entry::IMPORTED_TRIPWIRE;
        Entry { kind, key: 7, other_session: owner, other: tripwire, ..Entry::default() }
    }

    #[test]
    fn tripwires_that_are_not_imported_or_are_released_have_no_importer() {
        let mut importers = TripwireImporters::default();
        importers.enter(1, 0, &Entry { kind: Entry::TRIPWIRE, ..imported(5, 6) });
        importers.enter(1, 1, &Entry { key: 0, ..imported(5, 6) });
        assert_eq!(importers.take(5, 6), []);
    }

    proptest! {
        /// The importers are those that a walk over all imports finds.
        #[test]
        fn the_importers_are_those_of_a_walk(
            steps in proptest::collection::vec((0..3_u32, [0..3_u32, 0..3, 0..3, 0..3]), 0..200)
        ) {
            let mut importers = TripwireImporters::default();
            let mut all = Vec::new();
            for (step, one) in steps {
                let [owner, tripwire, session, number] = one;
                match step {
                    0 => {
                        importers.enter(session, number, &imported(owner, tripwire));
                        all.retain(|other| *other != one);
                        all.push(one);
                    }
                    1 => {
                        importers.remove(session, number, &imported(owner, tripwire));
                        all.retain(|other| *other != one);
                    }
                    _ => {
                        let is_theirs = |other: &[u32; 4]| other[..2] == one[..2];
                        let mut expected: Vec<_> = all.extract_if(.., |other| is_theirs(other)).collect();
                        expected.sort_unstable();
                        let expected: Vec<_> = expected.iter().map(|other| (other[2], other[3])).collect();
                        prop_assert_eq!(importers.take(owner, tripwire), expected);
                    }
                }
            }
        }
    }
}

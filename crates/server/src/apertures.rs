//! Memories, apertures and tripwires, as the control thread knows them.
//!
//! The control thread creates memory files, decides who may have their descriptors, and counts
//! their bytes. The engine decides whether an aperture is valid: it knows the connections. What a
//! successor needs is in a record of each session ([`objects`]); the store keeps the memory files.
//!
//! The importer of a mapped memory keeps it as long as it likes: no descriptor and no mapping can
//! be taken back. So the bytes of a memory count against its owner until the owner releases it, and
//! against each importer that maps it until the importer releases its last aperture there.
//!
//! | module | holds |
//! |---|---|
//! | [`objects`] | a session's objects by their numbers, and their record |
//! | [`tables`] | the files of memories, and the memories that a session maps |
//! | [`left`] | the objects of an earlier server |
//! | [`memories`] | the requests for memories |
//! | [`exported`] | the exported apertures of all sessions |
//! | [`counted`] | how many memories each account has; the memories that their owners have released |
//! | [`copy_areas`] | the copy areas of workers |
//! | [`reach`] | how the engine reaches a memory: by a mapping, or by a worker |
//! | [`exports`], [`imports`] | the requests for apertures |
//! | [`tripwires`], [`importers`] | the requests for tripwires; who imported each |
//! | [`release`] | the end of an object; the engine's reports |
//! | [`lookup`] | the objects that a request names, or its refusal |
//! | [`disposals`], [`wipes`] | the memories that two users could write to, until workers of neither user have freed them |
//! | [`sessions`], [`restore`] | the beginning and end of a session; its restoration |

pub(crate) mod copy_areas;
mod counted;
mod disposals;
mod exported;
mod exports;
mod importers;
mod imports;
pub(crate) mod left;
mod lookup;
mod memories;
pub(crate) mod objects;
mod reach;
mod release;
mod restore;
mod sessions;
pub(crate) mod tables;
mod tripwires;
mod wipes;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use towpath_engine::account::Account;

use copy_areas::CopyAreas;
use counted::CountedMemories;
use disposals::Disposals;
use exported::ExportedApertures;
use importers::TripwireImporters;

/// What the sessions share with each other, and what remains of ended sessions' memories.
#[derive(Debug)]
pub(crate) struct SharedMemories {
    exported: ExportedApertures,
    tripwires: TripwireImporters,
    counted: CountedMemories,
    copy_areas: CopyAreas,
    disposals: Disposals,
}

impl SharedMemories {
    /// Makes the tables of a server without sessions.
    pub(crate) fn new() -> SharedMemories {
        SharedMemories {
            exported: ExportedApertures::default(),
            tripwires: TripwireImporters::default(),
            counted: CountedMemories::new(),
            copy_areas: CopyAreas::default(),
            disposals: Disposals::new(),
        }
    }

    /// Returns the time until the control thread must look at copy areas or at memories to free.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let deadlines = [self.copy_areas.next_deadline(), self.disposals.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Takes over the copy areas of an earlier server, by their names.
    pub(crate) fn adopt_copy_areas(&mut self, earlier: HashMap<String, Vec<OwnedFd>>) {
        self.copy_areas.adopt(earlier);
    }

    /// Records that a worker has ended or hangs.
    pub(crate) fn lose_worker(&mut self, worker: u64) {
        self.copy_areas.lose(worker);
    }

    /// Counts memories of one account as memories of another account.
    pub(crate) fn move_memories(&mut self, memories: usize, before: Account, now: Account) {
        for _ in 0..memories {
            self.counted.give_back(before);
            self.counted.add(now);
        }
    }
}

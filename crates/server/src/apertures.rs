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
//! | [`tables`] | the files of memories, and what a session maps |
//! | [`left`] | what an earlier server left |
//! | [`memories`] | the requests for memories |
//! | [`copy_areas`] | the copy areas of workers |
//! | [`reach`] | how the engine reaches a memory: by a mapping, or by a worker |
//! | [`exports`], [`imports`] | the requests for apertures |
//! | [`tripwires`], [`importers`] | the requests for tripwires; who imported each |
//! | [`requests`] | the end of an object; the engine's reports |
//! | [`lookup`] | the objects that a request names, or its refusal |
//! | [`disposals`], [`wipes`] | the memories that two users could write to, until workers of neither user have freed them |
//! | [`sessions`], [`restore`] | the beginning and end of a session; its restoration |

pub(crate) mod copy_areas;
pub(crate) mod disposals;
mod exports;
pub(crate) mod importers;
mod imports;
pub(crate) mod left;
mod lookup;
mod memories;
pub(crate) mod objects;
mod reach;
mod requests;
mod restore;
mod sessions;
pub(crate) mod tables;
mod tripwires;
mod wipes;

//! Sessions of a server that was killed, which the next server resumes.
//!
//! | module | holds |
//! |---|---|
//! | `record` | the record of each session for a successor |
//! | `addresses` | the part of a record with the session's addresses |
//! | `left` | the objects of an earlier server in the store, by sessions |
//! | `restore` | the start: sessions, rules and ports as before, without their applications |
//! | `settings` | the device's settings that were changed |
//! | `claim` | an application that comes back for its session |
//!
//! A successor first makes every session anew over its old memory, before its engines run. So the
//! engines deliver packets to all sessions from the first poll iteration on. A session is
//! *unclaimed* until its application has connected again: the engines neither take packets from it
//! nor mark events, since both event queues may be inconsistent. The application restarts its event
//! queues and sends `resume`, the engines restart theirs, and the session continues.

pub(crate) mod addresses;
mod claim;
pub(crate) mod left;
pub(crate) mod record;
mod restore;
pub(crate) mod settings;

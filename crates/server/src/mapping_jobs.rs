//! Long jobs of the control thread for large sessions: mapping their memory page by page, and
//! unmapping it. The control thread works in slices, in turn for each party with such jobs, and for the users within it. A
//! party's next slice therefore waits for at most one slice of each other party.

use std::sync::Arc;

use towpath_engine::account::{Account, Party};
use towpath_engine::session::Session;
use towpath_engine::session::memories::Mappings;
use towpath_memory::Mapping;
use tracing::warn;

use crate::prepare::Mapped;
use crate::turns::PartyTurns;

/// Bytes of memory that one slice maps or unmaps, in about 0.03 ms. Beside a user that repeatedly attaches large sessions,
/// other users' attachments took 10 ms at the median with 2 MiB, and take 1.5 ms. The large sessions attach equally often
/// with both sizes.
const SLICE_BYTES: usize = 128 << 10;

/// A long job.
#[derive(Debug)]
pub(crate) enum Job {
    /// Populates the server's part of a session's memory; then the session can be served.
    Populate { token: u64, mapped: Mapped },
    /// Populates a memory of a session for the engine; then the session gets it.
    PopulateMemory { token: u64, mapping: Arc<Mapping> },
    /// Unmaps a session that has ended, or that will not be served. Then the control thread frees the
    /// session's parts.
    Release { token: u64, mappings: Mappings, sessions: Vec<Session> },
}

/// A job and its progress.
#[derive(Debug)]
struct Begun {
    job: Job,
    part: usize,
    at: usize,
}

/// Pending jobs, by the parties and users of accounts.
#[derive(Debug)]
pub(crate) struct MappingJobs {
    /// `true` if the jobs also allocate and map the applications' memory, because it is to be
    /// locked.
    populates_all: bool,
    has_failed_to_lock: bool,
    pending: PartyTurns<Party, Party, Begun>,
}

impl MappingJobs {
    pub(crate) fn new(populates_all: bool) -> MappingJobs {
        MappingJobs { populates_all, has_failed_to_lock: false, pending: PartyTurns::default() }
    }

    /// Locks memory if there is a swap device, so that the engine need not wait for it. Logs once that memory is not
    /// locked.
    pub(crate) fn lock<'a>(&mut self, mut memory: impl Iterator<Item = &'a Arc<Mapping>>) {
        if !self.populates_all {
            return;
        }
        let Err(error) = memory.try_for_each(|mapping| mapping.lock()) else { return };
        if !std::mem::replace(&mut self.has_failed_to_lock, true) {
            warn!(
                "sessions' memory may be paged out, and the engine then waits for the swap device: \
                 {error}; raise the limit of locked memory (LimitMEMLOCK, ulimit -l)"
            );
        }
    }

    /// Returns `true` if there are no jobs.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a job behind the user's other jobs.
    pub(crate) fn push(&mut self, account: Account, job: Job) {
        self.pending.push(account.party(), account.user(), Begun { job, part: 0, at: 0 });
    }

    /// Replaces the job of an ended connection, whose session is not served yet, with its release.
    /// Returns `true` if there was one.
    pub(crate) fn give_up(&mut self, ended: u64) -> bool {
        for begun in self.pending.iter_mut() {
            let Job::Populate { token, mapped } = &mut begun.job else { continue };
            if *token != ended {
                continue;
            }
            let (mappings, sessions) =
                (mapped.mappings.clone(), std::mem::take(&mut mapped.sessions));
            let job = Job::Release { token: ended, mappings, sessions };
            *begun = Begun { job, part: 0, at: 0 };
            return true;
        }
        false
    }

    /// Executes a slice of the first job of the user whose turn it is. Returns the job when it is done.
    pub(crate) fn run_next_slice(&mut self) -> Option<Job> {
        let (party, user, mut begun) = self.pending.take_next()?;
        if begun.slice(self.populates_all) {
            return Some(begun.job);
        }
        self.pending.push_front(party, user, begun);
        None
    }
}

impl Begun {
    /// Executes a slice. Returns `true` when everything is done.
    fn slice(&mut self, populates_all: bool) -> bool {
        let (parts, populates) = match &self.job {
            // The control thread skips the application's memory where possible: the application may
            // never use most of it.
            Job::Populate { mapped, .. } if !populates_all => (&mapped.mappings.all[..3], true),
            Job::Populate { mapped, .. } => (&mapped.mappings.all[..], true),
            Job::PopulateMemory { mapping, .. } => (std::slice::from_ref(mapping), true),
            Job::Release { mappings, .. } => (&mappings.all[..], false),
        };
        let mut left = SLICE_BYTES;
        while left > 0 {
            let Some(mapping) = parts.get(self.part) else { return true };
            let len = left.min(mapping.len() - self.at);
            if populates {
                mapping.populate_part(self.at, len);
            } else {
                mapping.release_part(self.at, len);
            }
            left -= len;
            self.at += len;
            if self.at == mapping.len() {
                (self.part, self.at) = (self.part + 1, 0);
            }
        }
        self.part == parts.len()
    }
}

#[cfg(test)]
mod tests {
    use towpath_memory::SharedFile;

    use super::*;

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    fn job(token: u64, bytes: usize) -> Job {
        let file = SharedFile::create("towpath-slow", bytes).unwrap();
        Job::PopulateMemory { token, mapping: Arc::new(file.map_readable().unwrap()) }
    }

    /// Returns the token of the job that the next slice completes.
    fn next_done(jobs: &mut MappingJobs) -> Option<u64> {
        match jobs.run_next_slice() {
            Some(Job::PopulateMemory { token, .. }) => Some(token),
            _ => None,
        }
    }

    #[test]
    fn a_large_job_of_one_user_delays_another_user_by_one_slice() {
        let mut jobs = MappingJobs::new(false);
        jobs.push(user(7), job(1, 2 * SLICE_BYTES));
        jobs.push(user(7), job(2, 4096));
        jobs.push(user(8), job(3, 4096));
        let done: Vec<_> = (0..4).map(|_| next_done(&mut jobs)).collect();
        assert_eq!(done, [None, Some(3), Some(1), Some(2)]);
        assert!(jobs.is_empty() && jobs.run_next_slice().is_none());
    }

    /// A member of a group with many user numbers delays others no more than one user does.
    #[test]
    fn the_users_of_a_group_share_its_slices() {
        let mut jobs = MappingJobs::new(false);
        for uid in 100..150 {
            jobs.push(Account { uid, group: Some(5), is_limited: true }, job(uid.into(), 4096));
        }
        jobs.push(user(7), job(7, 2 * SLICE_BYTES));
        let done: Vec<_> = (0..4).map(|_| next_done(&mut jobs)).collect();
        assert_eq!(done, [Some(100), None, Some(101), Some(7)]);
    }

    #[test]
    fn only_the_mapping_of_a_session_that_is_not_served_is_given_up() {
        let mut jobs = MappingJobs::new(false);
        jobs.push(user(7), job(1, 4096));
        assert!(!jobs.give_up(1), "a memory of a session");
        assert_eq!(next_done(&mut jobs), Some(1));
    }
}

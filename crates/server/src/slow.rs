//! Long jobs of the control thread for large sessions: mapping their memory page by page, and
//! unmapping it. The control thread works in slices, in turn for each user with such jobs. A user's
//! next slice therefore waits for at most one slice of each other user.

use std::collections::VecDeque;
use std::sync::Arc;

use towpath_memory::Mapping;

use crate::account::Party;
use crate::engine::session::{Mappings, Session};
use crate::prepare::Mapped;

/// Bytes of memory that one slice maps or unmaps: some 0.1 ms.
const SLICE_BYTES: usize = 2 << 20;

/// A long job.
#[derive(Debug)]
pub(crate) enum Job {
    /// Populates the server's part of a session's memory; then the session can be served.
    Populate { token: u64, mapped: Mapped },
    /// Populates a memory of a session for the engine; then the session gets it.
    PopulateMemory { token: u64, mapping: Arc<Mapping> },
    /// Unmaps a session that has ended, or that will not be served. Then these parts are disposed
    /// of.
    Release { token: u64, mappings: Mappings, sessions: Vec<Session> },
}

/// A job and its progress.
#[derive(Debug)]
struct Begun {
    job: Job,
    part: usize,
    at: usize,
}

/// Pending jobs, by user.
#[derive(Debug)]
pub(crate) struct Slow {
    /// `true` if the jobs also allocate and map the applications' memory, because it is to be
    /// locked.
    pub(crate) populates_all: bool,
    users: VecDeque<(Party, VecDeque<Begun>)>,
}

impl Slow {
    pub(crate) fn new(populates_all: bool) -> Slow {
        Slow { populates_all, users: VecDeque::new() }
    }

    /// Returns `true` if there are no jobs.
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Adds a job behind the user's others.
    pub(crate) fn push(&mut self, user: Party, job: Job) {
        let begun = Begun { job, part: 0, at: 0 };
        match self.users.iter_mut().find(|(one, _)| *one == user) {
            Some((_, jobs)) => jobs.push_back(begun),
            None => self.users.push_back((user, VecDeque::from([begun]))),
        }
    }

    /// Replaces the job of an ended connection, whose session is not served yet, with its release.
    /// Returns `true` if there was one.
    pub(crate) fn give_up(&mut self, ended: u64) -> bool {
        for begun in self.users.iter_mut().flat_map(|(_, jobs)| jobs) {
            if !matches!(begun.job, Job::Populate { token, .. } if token == ended) {
                continue;
            }
            let Job::Populate { mapped, .. } = &begun.job else { continue };
            let mappings = mapped.mappings.clone();
            let release = Job::Release { token: ended, mappings, sessions: Vec::new() };
            if let Job::Populate { mapped, .. } = std::mem::replace(&mut begun.job, release)
                && let Job::Release { sessions, .. } = &mut begun.job
            {
                *sessions = mapped.sessions;
            }
            (begun.part, begun.at) = (0, 0);
            return true;
        }
        false
    }

    /// Executes a slice of the next user's first job. Returns the job when it is done.
    pub(crate) fn go_on(&mut self) -> Option<Job> {
        let (user, mut jobs) = self.users.pop_front()?;
        let mut begun = jobs.pop_front()?;
        let is_done = begun.slice(self.populates_all);
        let done = if is_done {
            Some(begun.job)
        } else {
            jobs.push_front(begun);
            None
        };
        if !jobs.is_empty() {
            self.users.push_back((user, jobs));
        }
        done
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

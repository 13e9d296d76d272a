//! The end of memories that their owners have released.

use std::os::fd::OwnedFd;
use std::time::Instant;

use towpath_engine::account::Account;
use towpath_protocol::message::Refusal;
use tracing::{info, warn};

use super::disposals::{Disposal, MOST_HUNG};
use super::tables::Released;
use crate::control::Control;
use crate::refusal::Refused;
use crate::worker::owner::Owner;
use crate::worker::pair::Pair;

impl Control {
    /// Returns an account for a user number: that of one of the user's connections by a grant, if there is one. A memory
    /// of which only the number is known never counts as an administrator's, whose worker it could make hang.
    pub(super) fn account_of(&self, uid: u32) -> Account {
        let granted = Account { uid, group: None, is_limited: true };
        self.connections.granted_account_of(uid).unwrap_or(granted)
    }

    /// Frees a memory that no importer maps any more, as far as the server knows, and that no session has.
    ///
    /// If a second user could write to the file, no worker of a user frees the memory, because each of the two users
    /// could make the worker hang.
    pub(super) fn wipe_released(&mut self, memory: Released) {
        if let Some(writer) = memory.writer {
            self.shared.counted.add(memory.owner);
            let disposal = Disposal { memory, writer };
            self.connections.usage_mut().charge_both(disposal.accounts(), disposal.memory.bytes);
            return self.shared.disposals.push(disposal);
        }
        let mut files = self.store.remove(&memory.name());
        files.push(memory.file);
        self.workers.dispose(Owner::of(memory.owner), files);
    }

    /// Gives workers the memories that wait.
    pub(crate) fn start_disposals(&mut self) {
        let now = Instant::now();
        while let Some(disposal) = self.shared.disposals.take_next(now) {
            match self.start_disposal(&disposal) {
                Some(worker) => self.shared.disposals.start(worker, disposal),
                None => self.shared.disposals.put_back(disposal, now),
            }
        }
    }

    /// Has a worker free a memory; `None` if there is no worker, or if it did not get the file.
    fn start_disposal(&mut self, disposal: &Disposal) -> Option<u64> {
        let file = disposal.memory.file.try_clone().ok()?;
        let worker = self.worker_of(Owner::Pair(disposal.pair()))?;
        self.workers.wipe(worker, vec![file]);
        // The kernel refuses a packet if too many descriptors are in flight.
        (!self.workers.is_idle(worker)).then_some(worker)
    }

    /// Handles a report of a worker of two users: it has freed its memory, or has ended.
    pub(crate) fn disposal_reported(&mut self, worker: u64, has_ended: bool) {
        if !self.workers.is_idle(worker) {
            if has_ended {
                self.shared.disposals.retry(worker, Instant::now());
            }
            return;
        }
        let had_hung = self.workers.is_hung(worker);
        let Some(disposal) = self.shared.disposals.finish(worker) else { return };
        let [owner, writer] = disposal.accounts();
        self.shared.counted.give_back(owner);
        self.connections.usage_mut().discharge_both([owner, writer], disposal.memory.bytes);
        if had_hung && self.allows_for(owner, writer) {
            info!(
                owner = owner.uid,
                importer = writer.uid,
                "a memory that these two users shared is freed: nothing holds its file any more"
            );
        }
        let mut files = self.store.remove(&disposal.memory.name());
        files.push(disposal.memory.file);
        self.workers.close(files);
    }

    /// Logs that a worker of two users hangs. It ends no session.
    pub(crate) fn disposal_hangs(&mut self, worker: u64) {
        let Some(disposal) = self.shared.disposals.hang(worker) else { return };
        let ([owner, writer], pair) = (disposal.accounts(), disposal.pair());
        let bytes = disposal.memory.bytes;
        let hung = self.shared.disposals.hung(pair);
        if self.allows_for(owner, writer) {
            warn!(
                owner = owner.uid,
                importer = writer.uid,
                bytes,
                hung,
                "the server cannot free a memory that these two users shared for writing: a process of one of them holds the kernel's lock of its file"
            );
        }
    }

    /// Returns `true` if the log has room for a line about two users.
    fn allows_for(&mut self, owner: Account, writer: Account) -> bool {
        self.access.allows_line(owner.user()) || self.access.allows_line(writer.user())
    }

    /// Checks that a user may import memory of another user to write there.
    pub(super) fn check_shared(&self, importer: Account, owner: Account) -> Result<(), Refused> {
        if importer.user() == owner.user()
            || self.shared.disposals.hung(Pair::of(importer, owner)) < MOST_HUNG
        {
            return Ok(());
        }
        let text = format!(
            "import: the server cannot free {MOST_HUNG} memories that users {} and {} shared for \
             writing, because processes of these users hold the kernel's locks of the files; end these processes, \
             then import again",
            owner.uid, importer.uid
        );
        Err((Refusal::Limit, text))
    }

    /// Removes a memory from the store that needs no wipe. Returns its descriptors.
    pub(super) fn forget_released(&mut self, memory: Released) -> Vec<OwnedFd> {
        let mut files = self.store.remove(&memory.name());
        files.push(memory.file);
        files
    }
}

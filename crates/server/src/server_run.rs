//! One run of a server: its identity, its start, and its end.

use std::time::{Duration, Instant};

use towpath_device::DeviceError;

/// The run of a server, and the way to its end.
#[derive(Debug)]
pub(crate) struct ServerRun {
    /// The identity of this run.
    epoch: u64,
    started: Instant,
    /// `true` if the server may end after a change of the interface, because a successor resumes its sessions.
    leaves_after_changes: bool,
    /// `true` if the engines have the command to end.
    is_ending: bool,
    /// `true` if the server leaves its sessions to the next one: for an upgrade, or after a failure.
    leaves: bool,
    /// The number of internal errors.
    errors: u64,
    /// The error that stops the control thread, if it stops without a request.
    failed: Option<DeviceError>,
    /// The engines' outcome, once all have ended.
    ended: Option<Result<(), DeviceError>>,
}

impl ServerRun {
    /// Begins a run. `leaves_after_changes`: `true` if a successor resumes its sessions after a change
    /// of the interface.
    pub(crate) fn new(epoch: u64, leaves_after_changes: bool) -> ServerRun {
        ServerRun {
            epoch,
            started: Instant::now(),
            leaves_after_changes,
            is_ending: false,
            leaves: false,
            errors: 0,
            failed: None,
            ended: None,
        }
    }

    /// Returns the identity of this run.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts an internal error. Returns their number.
    pub(crate) fn count_error(&mut self) -> u64 {
        self.errors += 1;
        self.errors
    }

    /// Records that the engines are to end. Returns `true` the first time.
    pub(crate) fn begin_end(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ending, true)
    }

    /// Returns `true` if the engines are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns `true` if the server may end now because the interface has changed.
    pub(crate) fn may_leave_after_change(&self) -> bool {
        self.leaves_after_changes && !self.is_ending
    }

    /// Decides whether the server leaves its sessions to the next one.
    pub(crate) fn set_leaves(&mut self, leaves: bool) {
        self.leaves = leaves;
    }

    /// Returns `true` if the server leaves its sessions to the next one.
    pub(crate) fn leaves(&self) -> bool {
        self.leaves
    }

    /// Records the error that stops the control thread, unless there is one already.
    pub(crate) fn fail(&mut self, error: DeviceError) {
        self.failed.get_or_insert(error);
    }

    /// Records the engines' outcome, if all have ended.
    pub(crate) fn set_ended(&mut self, outcome: Option<Result<(), DeviceError>>) {
        self.ended = outcome;
    }

    /// Takes the server's outcome, once all engines have ended: the error that stopped the control thread, or else
    /// that of the engines.
    pub(crate) fn take_outcome(&mut self) -> Option<Result<(), DeviceError>> {
        let outcome = self.ended.take()?;
        Some(self.failed.take().map_or(outcome, Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(name: &str) -> DeviceError {
        let cause = rustix::io::Errno::NODEV.into();
        DeviceError::Gone { name: name.to_owned(), cause }
    }

    #[test]
    fn the_first_error_of_the_control_thread_is_the_outcome() {
        let mut run = ServerRun::new(1, true);
        assert!(run.may_leave_after_change());
        assert!(run.begin_end() && !run.begin_end() && !run.may_leave_after_change());
        run.set_ended(None);
        assert!(run.take_outcome().is_none(), "an engine runs");
        run.fail(gone("tap7"));
        run.fail(gone("tap8"));
        run.set_ended(Some(Ok(())));
        let error = run.take_outcome().unwrap().unwrap_err().to_string();
        assert!(error.contains("tap7"), "{error}");
        assert!(run.take_outcome().is_none());
    }

    #[test]
    fn without_an_error_of_the_control_thread_that_of_the_engines_counts() {
        let mut run = ServerRun::new(1, false);
        run.set_ended(Some(Err(gone("tap7"))));
        assert!(run.take_outcome().unwrap().is_err());
        run.set_ended(Some(Ok(())));
        assert!(run.take_outcome().unwrap().is_ok());
    }
}

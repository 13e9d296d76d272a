//! Children that end with their parent.
//!
//! Unsafe lives here because code between fork and exec may only make system calls
//! (`signal-safety(7)`).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel send SIGTERM to the command's process when the thread that starts the command
/// ends, in whatever way (`PR_SET_PDEATHSIG`). A child that changes its user or gains a capability
/// gets no signal.
pub fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let request = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // A parent that has ended before sends no signal any more.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(request) };
}

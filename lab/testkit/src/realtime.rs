//! A thread that runs as soon as it can (sched(7), `SCHED_FIFO`): for measurements whose clock is
//! such a thread.
//!
//! Unsafe lives here for the one system call, which rustix does not have.

use std::io;

/// The lowest real-time priority: above all ordinary threads, and below those of the kernel.
const PRIORITY: libc::c_int = 1;

/// Makes the calling thread run before all ordinary threads. Threads and processes that it starts
/// are ordinary ones. The thread has to sleep now and then: otherwise no ordinary thread gets its
/// core.
///
/// # Errors
/// Without CAP_SYS_NICE in the first user namespace, or where the system allows no real-time
/// threads.
pub fn run_before_others() -> io::Result<()> {
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: all zeros is a value of this structure of integers.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = PRIORITY;
    // SAFETY: 0 is the calling thread, and the pointer is that of a live structure.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_a_real_time_one_or_the_error_says_why() {
        let thread = std::thread::spawn(|| {
            let made = run_before_others();
            // SAFETY: takes no pointers.
            (made, unsafe { libc::sched_getscheduler(0) })
        });
        match thread.join().unwrap() {
            (Ok(()), policy) => assert_eq!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO),
            (Err(error), policy) => {
                assert_eq!(policy, libc::SCHED_OTHER);
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
        }
    }
}

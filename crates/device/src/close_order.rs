//! The order in which the kernel closes the descriptors of a process that ends.
//!
//! An application can prolong the close of an object that it shares with a server: the kernel walks all waiters that the
//! application attached. With nested epoll sets, one close can take 0.1 s. A server that is killed while it holds hundreds
//! of such objects takes half a minute to end. The next server need not wait for these closes: no thread of the
//! earlier one runs any more, and its memory is unmapped (`do_exit` in kernel/exit.c: `exit_mm` before `exit_files`).
//!
//! The kernel releases the files of such a process from the highest number down: `close_files` (fs/file.c) defers each release
//! to a task work, and `task_work_run` (kernel/task_work.c, since Linux 4.3) executes the last one first. So descriptors with
//! high numbers are closed before all others. [`close_early`] gives a descriptor such a number, and [`EndPipe`] tells another
//! process that all of them are closed.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit};

/// The highest number in use, if the limit of descriptors allows it. The kernel's table of a process with this
/// number has 0.5 MiB.
const HIGHEST: u64 = 1 << 16;
/// The maximum number of descriptors above the pipe's end.
const MOST_EARLY: u64 = 1 << 12;

/// Returns the number of a pipe's end. Higher numbers are closed before it.
fn pipe_number() -> i32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(HIGHEST);
    (limit - (limit / 4).min(MOST_EARLY)) as i32
}

fn renumbered(descriptor: OwnedFd, least: i32) -> OwnedFd {
    // Without a free number, the descriptor is closed in its turn.
    fcntl_dupfd_cloexec(&descriptor, least).unwrap_or(descriptor)
}

/// Gives a descriptor a number at which the kernel closes it before most others if the process is killed: one that the next
/// server needs, or that tells others of the end. The old number is closed.
#[must_use]
pub fn close_early(descriptor: OwnedFd) -> OwnedFd {
    renumbered(descriptor, pipe_number() + 1)
}

/// A pipe whose reader sees the end of the file once no thread of the writer's process runs, while the kernel may still close
/// other descriptors.
#[derive(Debug)]
pub struct EndPipe {
    /// The end for the other process.
    pub reading: OwnedFd,
    /// The end to keep open. Its number is below those of [`close_early`], and above most others.
    pub writing: OwnedFd,
}

impl EndPipe {
    /// Makes a pipe.
    ///
    /// # Errors
    /// Fails if no descriptors are available.
    pub fn new() -> io::Result<EndPipe> {
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(EndPipe { reading, writing: renumbered(writing, pipe_number()) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_the_close() {
        let pipe = EndPipe::new().unwrap();
        let usual = pipe.reading.try_clone().unwrap();
        let early = close_early(pipe.reading.try_clone().unwrap());
        assert!(usual.as_raw_fd() < pipe.writing.as_raw_fd());
        assert!(pipe.writing.as_raw_fd() < early.as_raw_fd());
        assert!(rustix::io::fcntl_getfd(&early).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        drop(pipe.writing);
        assert_eq!(rustix::io::read(&early, &mut [0_u8; 1]), Ok(0));
    }
}

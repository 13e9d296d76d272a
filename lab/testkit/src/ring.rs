//! Reads and writes in batches, by io_uring.
//!
//! Unsafe lives here for the entries of the ring, which point to the caller's buffers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

/// A ring, and room for the results of a batch.
pub struct Ring {
    ring: IoUring,
    entries: u32,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring for batches of at most `entries`.
    ///
    /// # Errors
    /// The kernel's error, for example if `kernel.io_uring_disabled` forbids io_uring.
    pub fn new(entries: u32) -> io::Result<Ring> {
        Ok(Ring { ring: IoUring::new(entries)?, entries })
    }

    /// Writes each buffer with a write of its own. Returns the number of bytes of the shortest.
    ///
    /// # Errors
    /// The first error of a write; or `InvalidInput` for more buffers than entries.
    pub fn write(&mut self, fd: BorrowedFd<'_>, buffers: &[&[u8]]) -> io::Result<usize> {
        let fd = types::Fd(fd.as_raw_fd());
        let entry = |one: &&[u8]| opcode::Write::new(fd, one.as_ptr(), one.len() as u32).build();
        self.transfer(buffers.iter().map(entry))
    }

    /// Reads into each buffer with a read of its own. Returns the number of bytes of the shortest.
    ///
    /// # Errors
    /// The first error of a read; or `InvalidInput` for more buffers than entries.
    pub fn read<const N: usize>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: &mut [[u8; N]],
    ) -> io::Result<usize> {
        let fd = types::Fd(fd.as_raw_fd());
        let entry = |one: &mut [u8; N]| opcode::Read::new(fd, one.as_mut_ptr(), N as u32).build();
        self.transfer(buffers.iter_mut().map(entry))
    }

    /// Submits entries with one system call, and returns once the kernel is done with all.
    fn transfer(&mut self, all: impl ExactSizeIterator<Item = squeue::Entry>) -> io::Result<usize> {
        let count = all.len();
        if count > self.entries as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for entry in all {
            // SAFETY: the entry points to a buffer that the caller has borrowed until this function
            // returns, and it returns only when the kernel is done with it.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            debug_assert!(pushed.is_ok(), "there is room for a batch");
        }
        let (mut done, mut least, mut failed) = (0, usize::MAX, None);
        while done < count {
            match self.ring.submit_and_wait(count - done) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may still use the buffers.
                Err(_) => std::process::abort(),
            }
            for completion in self.ring.completion() {
                done += 1;
                match usize::try_from(completion.result()) {
                    Ok(bytes) => least = least.min(bytes),
                    Err(_) => {
                        failed.get_or_insert(io::Error::from_raw_os_error(-completion.result()));
                    }
                }
            }
        }
        failed.map_or(Ok(least), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_batch_is_written_and_read() {
        let Ok(mut ring) = Ring::new(4) else {
            eprintln!("not on this kernel: io_uring");
            return;
        };
        let (read, write) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let sent: [&[u8]; 3] = [b"first", b"second", b"third"];
        assert_eq!(ring.write(write.as_fd(), &sent).unwrap(), 5);
        let mut got = [[0; 8]; 3];
        assert_eq!(ring.read(read.as_fd(), &mut got).unwrap(), 5);
        assert_eq!(&got[1][..6], b"second");
        let many = [&b"x"[..]; 5];
        assert_eq!(
            ring.write(write.as_fd(), &many).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        drop(read);
        assert!(ring.write(write.as_fd(), &sent).is_err());
    }
}

//! The destination of a capture: a file, or standard output and its reader.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use towpath_packet::pcapng::packets_beyond;

use crate::private_file::{self, Mode, OpenError};
use crate::signals::Signals;

/// The number of bytes that a writable pipe always takes without blocking (`pipe(7)`: it has room
/// for a whole page).
const PIPE_ROOM: usize = 4096;
/// The bytes that the capture gathers before a write. It writes the rest before each sleep.
const GATHERED_BYTES: usize = 256 << 10;

/// The output of a capture. A request to end cuts short the wait for a stalled reader.
pub(super) struct Out {
    file: Arc<File>,
    signals: Arc<Signals>,
    /// `true` if a write may have to wait: the output is not a regular file.
    waits: bool,
}

/// Gathers whole blocks of a capture for the output.
pub(super) struct Blocks {
    out: Out,
    waiting: Vec<u8>,
    /// The number of packets that a failed write lost.
    lost: u64,
}

impl Blocks {
    pub(super) fn new(out: Out) -> Blocks {
        Blocks { out, waiting: Vec::with_capacity(2 * GATHERED_BYTES), lost: 0 }
    }

    /// Returns `true` if it is time to write.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= GATHERED_BYTES
    }

    /// Returns how many packets are not in the output.
    pub(super) fn unwritten(&self) -> u64 {
        self.lost + packets_beyond(&self.waiting, 0)
    }
}

impl Write for Blocks {
    /// Gathers the bytes; only `flush` writes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writes all blocks. An error loses the packets of the blocks that are not written.
    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let outcome = loop {
            if written == self.waiting.len() {
                break Ok(());
            }
            match self.out.write(&self.waiting[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.lost += packets_beyond(&self.waiting, written);
        self.waiting.clear();
        outcome
    }
}

/// The error of a write that a request to end cut short.
#[derive(Debug, thiserror::Error)]
#[error("a signal asked for the end while the reader took nothing")]
pub(super) struct Asked;

impl Out {
    /// Opens a file that only this user may read, since captured traffic is private; or standard
    /// output, for `-`.
    pub(super) fn open(path: &str, signals: Arc<Signals>) -> Result<Out, OpenError> {
        let file = if path == "-" {
            let copy: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
            File::from(copy)
        } else {
            let mode = Mode { appends: false, nonblocking: false };
            private_file::open(path.as_ref(), mode, None)?
        };
        let waits = !file.metadata()?.is_file();
        Ok(Out { file: Arc::new(file), signals, waits })
    }

    /// Returns `true` if the output has a reader that may stop reading.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the output, which the caller polls for the end of its reader.
    pub(super) fn watched(&self) -> Arc<File> {
        self.file.clone()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.waits {
            return (&*self.file).write(bytes);
        }
        loop {
            let mut polled = [
                PollFd::new(&*self.file, PollFlags::OUT),
                PollFd::new(&*self.signals, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            if !polled[0].revents().is_empty() {
                return (&*self.file).write(&bytes[..bytes.len().min(PIPE_ROOM)]);
            }
            if !polled[1].revents().is_empty() {
                return Err(io::Error::other(Asked));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Out {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns `true` if a write failed because a signal asked for the end.
pub(super) fn was_asked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Asked>())
}

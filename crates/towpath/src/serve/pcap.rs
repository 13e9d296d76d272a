//! The file of `--pcap`, and the thread that writes it.
//!
//! The disk may be slow, and the reader of a FIFO may stop reading. So the engine puts packets into a queue of
//! bounded length, and only the thread waits for the file. Packets for which the queue has no room are missing from
//! the file, and the wrapper counts them. The thread starts after the process has given up its rights, since each
//! thread has its own rights (`serve/confine.rs`).

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use towpath_device::Device;
use towpath_device_testing::capture::{self, CaptureDevice, CaptureStatus};
use towpath_packet::pcapng::{packets_beyond, whole_blocks};
use tracing::{info, warn};

use super::settings::Settings;
use super::values::Identity;
use crate::failure::{Failure, says};
use crate::private_file::{self, Mode, OpenError};

/// The most bytes of packets that wait for the file.
const MOST_BYTES: usize = 4 << 20;
/// The bytes of packets that wake the thread before the engine sleeps.
const WAKING_BYTES: usize = 8 << 10;
/// The most bytes that the kernel writes into a FIFO in one piece or not at all (`PIPE_BUF`), also if the server is
/// killed.
const PIPE_BYTES: usize = 4096;
/// The longest time that the end of a server waits for the file.
const END_WAIT: Duration = Duration::from_secs(1);

/// The capture of a server.
pub(crate) struct Pcap<'a> {
    path: &'a Path,
    status: CaptureStatus,
    queue: Arc<Queue>,
    /// `None` once the thread has the file.
    file: Option<File>,
    /// `true` once the server has logged that packets are missing.
    warned: bool,
}

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    /// Notified when the thread has packets to write, and when the thread has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whole blocks of the capture.
    waiting: Vec<u8>,
    /// The number of packets that the thread has taken and not written, as of its last wait for the file.
    taken: u64,
    /// `true` while the thread waits for packets.
    sleeps: bool,
    /// `true` after the last packet.
    closed: bool,
    /// `true` once the thread has ended.
    ended: bool,
    failure: Option<io::Error>,
}

impl State {
    /// Returns how many packets are not in the file yet.
    fn unwritten(&self) -> u64 {
        self.taken + packets_beyond(&self.waiting, 0)
    }
}

impl Queue {
    fn new() -> Queue {
        Queue { state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it sleeps.
    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.sleeps) {
            self.changed.notify_all();
        }
    }

    /// Waits for packets, and puts them into `taken`. Returns `false` after the last ones.
    fn take(&self, taken: &mut Vec<u8>) -> bool {
        taken.clear();
        let mut state = self.lock();
        state.taken = 0;
        while state.waiting.is_empty() {
            if state.closed {
                return false;
            }
            state.sleeps = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.waiting, taken);
        state.taken = packets_beyond(taken, 0);
        true
    }

    /// Writes packets to the file, until the last one or a failure.
    fn write_to(&self, file: &File) {
        let is_fifo = file.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
        let mut taken = Vec::new();
        let mut outcome = Ok(());
        while outcome.is_ok() && self.take(&mut taken) {
            outcome = self.write_blocks(file, is_fifo, &taken);
        }
        let mut state = self.lock();
        state.failure = outcome.err();
        state.ended = true;
        self.changed.notify_all();
    }

    /// Writes whole blocks, and waits for the reader of a FIFO.
    fn write_blocks(&self, mut file: &File, is_fifo: bool, blocks: &[u8]) -> io::Result<()> {
        let (mut written, mut end) = (0, 0);
        while written < blocks.len() {
            if written == end {
                let rest = &blocks[written..];
                end += if is_fifo { whole_blocks(rest, PIPE_BYTES) } else { rest.len() };
            }
            let error = match file.write(&blocks[written..end]) {
                Ok(0) => ErrorKind::WriteZero.into(),
                Ok(bytes) => {
                    written += bytes;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.lock().taken = packets_beyond(blocks, written);
            if error.kind() != ErrorKind::WouldBlock {
                return Err(error);
            }
            // After an interruption, the next write tells whether there is room.
            let _ = poll(&mut [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT)], None);
        }
        Ok(())
    }
}

/// The engine's end of the queue.
#[derive(Debug)]
pub(crate) struct QueueWriter(Arc<Queue>);

impl Write for QueueWriter {
    /// Takes all bytes, or none with `WouldBlock`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        if state.waiting.len() + bytes.len() > MOST_BYTES {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.waiting.extend_from_slice(bytes);
        if state.waiting.len() >= WAKING_BYTES {
            self.0.wake(&mut state);
        }
        Ok(bytes.len())
    }

    /// Wakes the thread, and does not wait for the file.
    fn flush(&mut self) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        if !state.waiting.is_empty() {
            self.0.wake(&mut state);
        }
        Ok(())
    }
}

impl<'a> Pcap<'a> {
    /// Opens the file of `--pcap`, if there is one, and wraps the device so that the wrapper records its packets. A
    /// server that `appends` appends to the file, and records nothing if that fails.
    pub(crate) fn wrap(
        device: Box<dyn Device>,
        settings: &'a Settings,
        appends: bool,
    ) -> Result<(Box<dyn Device>, Option<Pcap<'a>>), Failure> {
        let Some(path) = settings.pcap.as_deref() else { return Ok((device, None)) };
        let file = match open(path, settings.user.as_ref(), appends) {
            Ok(file) => file,
            Err(error) if appends => {
                let failure = no_pcap(path, &error);
                warn!("{}: the capture ends, the server continues", failure.text());
                return Ok((device, None));
            }
            Err(error) => return Err(no_pcap(path, &error)),
        };
        let queue = Arc::new(Queue::new());
        let writer = QueueWriter(queue.clone());
        let device = CaptureDevice::new(device, writer, capture::Options::default())
            .map_err(|error| no_pcap(path, &error.into()))?;
        let status = device.status();
        let pcap = Pcap { path, status, queue, file: Some(file), warned: false };
        Ok((Box::new(device), Some(pcap)))
    }

    /// Starts the thread that writes the file.
    pub(crate) fn start_thread(&mut self) -> Result<(), Failure> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let queue = self.queue.clone();
        let builder = std::thread::Builder::new().name("pcap".to_owned());
        let started = builder.spawn(move || queue.write_to(&file));
        started.map(drop).map_err(|error| no_pcap(self.path, &error.into()))
    }

    /// Logs the first missing packet, and a failure. Returns `false` after a failure, which ends the capture.
    pub(crate) fn check(&mut self) -> bool {
        if let Some(failure) = self.status.take_failure() {
            warn!(
                "--pcap {}: {}; the capture ends after {} packets, the server continues",
                self.path.display(),
                says(&failure),
                self.status.frames().saturating_sub(self.queue.lock().unwritten())
            );
            // The packets that are missing from now on need no further warning.
            self.warned = true;
            return false;
        }
        if self.status.missed() > 0 && !std::mem::replace(&mut self.warned, true) {
            warn!(
                "--pcap {}: packets are missing, because the file or its reader is too slow; choose a faster file",
                self.path.display()
            );
        }
        true
    }
}

impl Drop for Pcap<'_> {
    /// Waits until the file has all packets, for at most a second. The engine has ended by then.
    fn drop(&mut self) {
        if self.file.is_some() {
            // The thread never started.
            return;
        }
        let until = Instant::now() + END_WAIT;
        let mut state = self.queue.lock();
        state.closed = true;
        self.queue.wake(&mut state);
        while !state.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.queue.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let unwritten = state.unwritten();
        drop(state);
        if self.check() && (self.status.missed() > 0 || unwritten > 0) {
            info!(
                missing = self.status.missed(),
                unwritten,
                "--pcap {}: {} packets",
                self.path.display(),
                self.status.frames().saturating_sub(unwritten)
            );
        }
    }
}

/// Returns the failure of `--pcap`.
fn no_pcap(path: &Path, error: &OpenError) -> Failure {
    Failure::new(format!("--pcap {}: {error}", path.display()))
}

/// Opens the file for packets, empty or, since a capture file may have several sections, at its end. A FIFO without a
/// reader is an error (`ENXIO`).
fn open(path: &Path, user: Option<&Identity>, appends: bool) -> Result<File, OpenError> {
    let mode = Mode { appends, nonblocking: true };
    let file = private_file::open(path, mode, user.map(|user| user.uid))?;
    if let Some(user) = user {
        let (uid, gid) = (user.uid, user.gid);
        // Where root may not change the owner, the file stays root's; the server has it open.
        let _ = std::os::unix::fs::fchown(&file, Some(uid), Some(gid));
    }
    Ok(file)
}

//! A page that never arrives: a file of the attacker's own FUSE file system, which answers
//! everything but reads.
//!
//! A system call that copies to or from the page sleeps with every lock that it holds, until the
//! file system's connection ends. It ends with [`Withheld`], or with the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::sys;

/// Bytes of the withheld file.
const BYTES: usize = 1 << 20;
/// The mount point, in the attacker's own mount namespace.
const DIRECTORY: &str = "/mnt";

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const IN_HEADER: usize = 40;

/// A mapped file whose pages never arrive.
#[derive(Debug)]
pub(crate) struct Withheld {
    start: usize,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// `true` if an unprivileged process can mount a FUSE file system here with this device node.
#[must_use]
pub fn fuse_is_usable(node: &Path) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let spaces = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let opens = rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    known.lines().any(|line| line.trim_start_matches("nodev").trim() == "fuse")
        && spaces.trim().parse::<u64>().is_ok_and(|most| most > 0)
        && opens.is_ok()
        && Path::new(DIRECTORY).is_dir()
}

impl Withheld {
    /// Mounts the file system in a user and mount namespace of its own, and maps the file. Must be
    /// called while the process has one thread.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn new(node: &Path) -> io::Result<Withheld> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let (uid, gid) = (uid.as_raw(), gid.as_raw());
        sys::leave_namespaces()?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        sys::make_mounts_private()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open(node, flags, Mode::empty())?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}");
        sys::mount_fuse(DIRECTORY, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let server = std::thread::spawn(move || serve(&device, &stopped));
        let path = Path::new(DIRECTORY).join("page");
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let start = sys::map_private(file.as_fd(), BYTES)?;
        Ok(Withheld { start, stop, server: Some(server) })
    }

    /// Returns the address of a page that no other system call waits for.
    pub(crate) fn page(&self, number: usize) -> usize {
        self.start + number % (BYTES / 4096) * 4096
    }
}

impl Drop for Withheld {
    /// Ends the connection: the kernel fails all waits for a page.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(device: &OwnedFd, stop: &AtomicBool) {
    let mut request = vec![0; 1 << 18];
    let timeout = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(device, PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(len) = rustix::io::read(device, &mut request) else { continue };
        if len < IN_HEADER {
            continue;
        }
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| request[at + byte]));
        let body = match word(4) {
            FORGET | READ | INTERRUPT | BATCH_FORGET => continue,
            INIT => Ok(init(word(IN_HEADER + 8))),
            LOOKUP => Ok([&[2, 0, 3600, 3600, 0][..], &attributes(2)].concat()),
            // The valid time, then its nanoseconds and a word of padding.
            GETATTR => Ok([&[3600, 0][..], &attributes(u64::from(word(16)))].concat()),
            OPEN => Ok(vec![1, 0]),
            _ => Err(libc::ENOSYS),
        };
        let unique = u64::from(word(8)) | u64::from(word(12)) << 32;
        let (error, body) = body.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let bytes = (16 + body.len() * 8) as u32;
        let mut reply = [bytes.to_ne_bytes(), error.to_ne_bytes()].concat();
        reply.extend(unique.to_ne_bytes());
        reply.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        let _ = rustix::io::write(device, &reply);
    }
}

/// Answers with version 7.31; reads are asynchronous, so that a signal ends a wait for a page.
fn init(readahead: u32) -> Vec<u64> {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    vec![pair(7, 31), pair(readahead, 1), pair(16 | 12 << 16, 4096), pair(1, 1), 0, 0, 0, 0]
}

/// Returns the attributes of the directory (1) or of the file (2).
fn attributes(node: u64) -> [u64; 11] {
    let (size, mode) = if node == 1 { (0, 0o040_755) } else { (BYTES as u64, 0o100_644_u64) };
    // Inode, size, blocks, three times, their nanoseconds, mode, links, user, group, device, flags.
    [node, size, size / 512, 0, 0, 0, 0, mode << 32, 1, 0, 4096]
}

//! The system calls of the attacks.
//!
//! Unsafe lives here for calls that rustix does not have, or with arguments that no safe type
//! allows.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn checked(outcome: libc::c_long) -> io::Result<usize> {
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// Raises the limit of descriptors as far as an unprivileged process may.
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Returns the number of descriptors that the process may have.
pub(crate) fn descriptor_limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(20_000, |limit| limit.min(1 << 20) as usize)
}

/// `true` when the parent has closed the standard input.
pub(crate) fn input_ended() -> bool {
    let input = std::io::stdin();
    let mut polled = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// Locks a byte of a file for reading, for the time that the file is open. Returns `false` if the kernel refuses.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, byte: u64) -> bool {
    let lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the kernel reads a live value.
    0 == unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }
}

/// Returns the path of an open file, as `/proc` shows it.
pub(crate) fn path_of(file: BorrowedFd<'_>) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Makes reads of a descriptor block.
pub(crate) fn make_blocking(descriptor: BorrowedFd<'_>) {
    let _ = rustix::io::ioctl_fionbio(descriptor, false);
}

/// Reads into memory that may never arrive. Returns when the kernel gives up.
pub(crate) fn read_into(descriptor: BorrowedFd<'_>, to: usize, len: usize) -> io::Result<usize> {
    // SAFETY: the kernel checks the address; the range belongs to a mapping that no Rust value
    // refers to.
    checked(unsafe { libc::read(descriptor.as_raw_fd(), to as *mut libc::c_void, len) } as _)
}

/// Writes from memory that may never arrive.
pub(crate) fn write_from(descriptor: BorrowedFd<'_>, from: usize, len: usize) -> io::Result<usize> {
    // SAFETY: the kernel checks the address and only reads.
    checked(unsafe { libc::write(descriptor.as_raw_fd(), from as *const libc::c_void, len) } as _)
}

/// Moves a pipe's content into a socket. Blocks while the socket is full.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<usize> {
    let null = std::ptr::null_mut();
    // SAFETY: null offsets are allowed for pipes and sockets.
    checked(unsafe { libc::splice(from.as_raw_fd(), null, to.as_raw_fd(), null, 4096, 0) } as _)
}

/// Sets a socket option of plain bytes.
pub(crate) fn set_option<T>(socket: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> bool {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a live value.
    0 == unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    }
}

/// Attaches a classic filter of `length` instructions that accepts everything.
pub(crate) fn attach_filter(socket: BorrowedFd<'_>, length: u16) -> bool {
    let step = libc::sock_filter { code: 0x04, jt: 0, jf: 0, k: 1 };
    let mut program = vec![step; usize::from(length)];
    if let Some(last) = program.last_mut() {
        *last = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
    }
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Makes the kernel signal this process' whole group at each event of the descriptor.
pub(crate) fn signal_own_group(descriptor: BorrowedFd<'_>) -> bool {
    let fd = descriptor.as_raw_fd();
    // SAFETY: calls without pointers.
    unsafe {
        libc::fcntl(fd, libc::F_SETOWN, -libc::getpgrp()) == 0
            && libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) == 0
    }
}

/// Becomes a process group of its own with this many further processes, which ignore the signal of
/// asynchronous descriptors and end with this process. Must be called while there is one thread.
pub(crate) fn become_large_group(processes: u64) -> u64 {
    // SAFETY: calls without pointers; the child only makes system calls until it ends.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::setpgid(0, 0);
        let parent = libc::getpid();
        for made in 0..processes {
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    // Closes the standard streams: the tests wait for the end of the output.
                    libc::close_range(0, u32::MAX, 0);
                    while libc::getppid() == parent {
                        libc::pause();
                    }
                    libc::_exit(0);
                }
                child if child < 0 => return made,
                _ => {}
            }
        }
    }
    processes
}

/// Waits for descriptors with one entry for each element.
pub(crate) fn poll_all(entries: &mut [libc::pollfd], milliseconds: i32) {
    // SAFETY: the kernel writes into a live, exclusively borrowed array of that length.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
}

/// Gives advice about a range of an own mapping. Returns `true` if the kernel takes it.
pub(crate) fn advise(start: usize, len: usize, advice: i32) -> bool {
    // SAFETY: only advices that keep the content are given; see the callers.
    0 == unsafe { libc::madvise(start as *mut libc::c_void, len, advice) }
}

/// Leaves the initial user and mount namespace. Must be called while there is one thread.
pub(crate) fn leave_namespaces() -> io::Result<()> {
    // SAFETY: a call without pointers.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } as _).map(|_| ())
}

/// Maps a file privately and writable. The mapping stays until the process ends.
pub(crate) fn map_private(file: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a free address range.
    let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE, file, 0) }?;
    Ok(start as usize)
}

/// Overwrites a word of a shared mapping of this process.
pub(crate) fn overwrite(at: usize, change: impl FnOnce(u64) -> u64) {
    let word = at as *mut u64;
    // SAFETY: the caller found the aligned address in a writable mapping, which lives as long as the
    // session. Only atomics and copies of this process, which expect any value, access the memory.
    unsafe { word.write_volatile(change(word.read_volatile())) }
}

/// Returns a second descriptor with the lowest number from `from`.
pub(crate) fn duplicate(descriptor: BorrowedFd<'_>, from: i32) -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers; a descriptor that the kernel returns is new and ours.
    unsafe {
        let fd = libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from);
        checked(fd as _)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Keeps later mounts of this mount namespace to itself.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    let (root, null) = (c"/".as_ptr(), std::ptr::null());
    // SAFETY: strings that live through the call; the other arguments are not used.
    checked(unsafe { libc::mount(null, root, null, flags, null.cast()) } as _).map(|_| ())
}

/// Mounts a FUSE file system.
pub(crate) fn mount_fuse(directory: &str, options: &str) -> io::Result<()> {
    let (directory, options) = (CString::new(directory)?, CString::new(options)?);
    let (name, kind, flags) = (c"attack", c"fuse", libc::MS_NOSUID | libc::MS_NODEV);
    // SAFETY: strings that live through the call.
    checked(unsafe {
        let options = options.as_ptr().cast();
        libc::mount(name.as_ptr(), directory.as_ptr(), kind.as_ptr(), flags, options)
    } as _)
    .map(|_| ())
}

/// Returns a second descriptor of one that is known by its number.
pub(crate) fn duplicate_number(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for this call alone; a number that is not open is an error of the call.
    duplicate(unsafe { BorrowedFd::borrow_raw(number) }, 3)
}

/// The size that the kernel merges into one page.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Maps shared memory once more, at an address fit for a large page and at least as long as one.
pub(crate) fn alias_large(start: usize, len: usize) -> Option<usize> {
    let len = len.max(LARGE_PAGE_BYTES);
    let (none, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses a free range, in which an aligned part is replaced by the alias.
    let at = unsafe {
        let space = libc::mmap(none, len + LARGE_PAGE_BYTES, libc::PROT_NONE, flags, -1, 0);
        if space == libc::MAP_FAILED {
            return None;
        }
        let at = (space as usize).next_multiple_of(LARGE_PAGE_BYTES);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(start as *mut _, 0, len, flags, at as *mut libc::c_void)
    };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// Maps an alias once more, anywhere; `false` where the process has as many mappings as it may.
pub(crate) fn alias_again(alias: usize, len: usize) -> bool {
    // SAFETY: an old length of 0 makes another mapping of shared memory, where nothing is.
    let at = unsafe { libc::mremap(alias as *mut _, 0, len, libc::MREMAP_MAYMOVE) };
    at != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

    #[test]
    fn a_unix_socket_takes_a_filter_and_a_pipe_does_not() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (near, far) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        assert!(attach_filter(far.as_fd(), 4096));
        assert!(set_option(far.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, &1_i32));
        send(&near, b"through the filter", SendFlags::DONTWAIT).unwrap();
        let mut bytes = [0; 64];
        let (_, len) = recv(&far, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(&bytes[..len], b"through the filter");
        let locked = 1_i32;
        assert!(set_option(far.as_fd(), libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &locked));
        assert!(!attach_filter(far.as_fd(), 4096), "a locked filter is not replaced");
        let (read, _write) = rustix::pipe::pipe().unwrap();
        assert!(!attach_filter(read.as_fd(), 4096));
    }

    #[test]
    fn a_splice_into_a_full_socket_is_none_from_a_socket() {
        let flags = SocketFlags::CLOEXEC;
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let (_near, doorbell) = pair(SocketType::SEQPACKET);
        let (full, _unread) = pair(SocketType::STREAM);
        let refused = splice(doorbell.as_fd(), full.as_fd()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}

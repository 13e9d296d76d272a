//! Keeps the kernel from moving a session's memory while the engine uses it.
//!
//! An application may ask the kernel to merge pages of a memory file into one large page
//! (`MADV_COLLAPSE`, Linux 6.1). The kernel then locks all pages of 2 MiB, takes them out of every
//! mapping, and walks all mappings of the file for each page. An application may have tens of
//! thousands of mappings, and the engine, at its next access, would wait for seconds. The kernel
//! refuses at once, before it locks anything, if another reference to one of the pages exists. A
//! pipe therefore refers to the first page of each 2 MiB of each file.
//!
//! This module uses unsafe code for mapping the files and for `vmsplice`, which takes addresses.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use super::wire::Descriptors;

/// The range that the kernel merges into one page.
const EXTENT_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
/// The maximum number of pages that one pipe refers to: the limit of an ordinary user's pipe.
const PIPE_PAGES: usize = 256;

/// Pipes under construction. These are the reading ends, which hold their references until closed.
struct Pipes {
    all: Descriptors,
    writing: Option<OwnedFd>,
    count: usize,
    /// Pages that the last pipe has room for.
    room: usize,
    /// Pages that are yet to come.
    left: usize,
    /// `true` if the kernel refused some pipe the size that it was to have.
    has_small: bool,
}

/// Refers to a page of each 2 MiB of these files.
///
/// # Errors
/// Fails with the kernel's error: `EDQUOT` if the kernel refuses pipes of their size, by one of its limits (pipe(7)), and
/// the small ones that it gives have no room for all files; `E2BIG` for more than 8 GiB.
pub(crate) fn pin(files: &[BorrowedFd<'_>]) -> Result<Descriptors, Errno> {
    let mut left = 0;
    for file in files {
        left += (rustix::fs::fstat(file)?.st_size as usize).div_ceil(EXTENT_BYTES);
    }
    let all = Descriptors::default();
    let mut pipes = Pipes { all, writing: None, count: 0, room: 0, left, has_small: false };
    for file in files {
        let len = rustix::fs::fstat(file)?.st_size as usize;
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let pinned = (0..len).step_by(EXTENT_BYTES).try_for_each(|at| {
            // SAFETY: the page is inside the mapping.
            pipes.push(unsafe { start.cast::<u8>().add(at) })
        });
        // SAFETY: the range was mapped above, and nothing refers to addresses in it.
        unsafe { munmap(start, len)? };
        pinned?;
    }
    Ok(pipes.all)
}

/// Returns the words of an error of [`pin`], or of an earlier step, with the remedy for the limit of pipes.
pub(crate) fn describe(error: &std::io::Error) -> String {
    if error.raw_os_error() != Some(libc::EDQUOT) {
        return error.to_string();
    }
    "it keeps the pages in place by pipes, and the kernel gives its user no larger ones; raise the limits (sysctl \
     fs.pipe-user-pages-soft and fs.pipe-max-size), run the server as a user of its own, or ask for less memory"
        .to_owned()
}

impl Pipes {
    fn push(&mut self, page: *mut u8) -> Result<(), Errno> {
        if self.room == 0 {
            self.begin()?;
        }
        let Some(writing) = &self.writing else { return Err(Errno::INVAL) };
        let part = libc::iovec { iov_base: page.cast(), iov_len: PAGE_BYTES };
        // SAFETY: the part names a mapped page; the kernel takes a reference to it.
        let taken = unsafe {
            libc::vmsplice(writing.as_raw_fd(), &raw const part, 1, libc::SPLICE_F_NONBLOCK)
        };
        if taken != PAGE_BYTES as isize {
            return Err(Errno::AGAIN);
        }
        self.room -= 1;
        self.left -= 1;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Errno> {
        let no_room = if self.has_small { Errno::DQUOT } else { Errno::TOOBIG };
        let Some(slot) = self.all.get_mut(self.count) else { return Err(no_room) };
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let wanted = self.left.min(PIPE_PAGES).next_power_of_two();
        match fcntl_setpipe_size(write.as_fd(), wanted * PAGE_BYTES) {
            Ok(_) => {}
            // The user's pipes have too many pages (pipe(7)): this one keeps the few that it has.
            Err(Errno::PERM) => self.has_small = true,
            Err(errno) => return Err(errno),
        }
        let room = fcntl_getpipe_size(write.as_fd())? / PAGE_BYTES;
        (*slot, self.writing) = (Some(read), Some(write));
        (self.count, self.room) = (self.count + 1, room);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_memory::SharedFile;

    fn collapse(mapping: &towpath_memory::Mapping) -> i32 {
        const MADV_COLLAPSE: i32 = 25;
        let start = mapping.start().as_ptr().cast();
        // SAFETY: the advice changes no content.
        let outcome = unsafe { libc::madvise(start, mapping.len(), MADV_COLLAPSE) };
        if outcome == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
    }

    #[test]
    fn pinned_pages_are_not_merged() {
        let files: Vec<SharedFile> = [1, EXTENT_BYTES, 5 * EXTENT_BYTES + 1]
            .iter()
            .map(|len| SharedFile::create("pin-test", *len).unwrap())
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mapping = files[2].map_readable().unwrap();
        mapping.populate();
        let pipes = pin(&fds).unwrap();
        assert_eq!(pipes.iter().flatten().count(), 1);
        assert_ne!(collapse(&mapping), 0, "the kernel merged pages that are pinned");
        // A kernel that merges such pages at all does so once they are not pinned.
        drop(pipes);
        println!("unpinned, the kernel answers {}", collapse(&mapping));
    }

    #[test]
    fn large_memory_takes_several_pipes() {
        let file = SharedFile::create("pin-test", 300 * EXTENT_BYTES).unwrap();
        let pipes = pin(&[file.as_fd()]).unwrap();
        assert_eq!(pipes.iter().flatten().count(), 2);
    }

    /// Calls `then` as a user of this process only, whose pipes have as many pages as the kernel allows. Returns the
    /// kernel's error if this thread may not become such a user.
    fn without_pages_for_pipes(then: impl FnOnce() + Send) -> Result<(), Errno> {
        const USERS: u32 = 1_900_000_000;
        std::thread::scope(|scope| {
            let filled = scope.spawn(|| {
                let user = rustix::process::Uid::from_raw(USERS + std::process::id());
                // The call changes only this thread, and takes its capabilities.
                rustix::thread::set_thread_res_uid(user, user, user)?;
                let mut pipes = Vec::new();
                for pages in [PIPE_PAGES, 64, 16, 4] {
                    let mut is_given = true;
                    while is_given {
                        let pipe = pipe_with(PipeFlags::CLOEXEC).unwrap();
                        is_given = fcntl_setpipe_size(&pipe.1, pages * PAGE_BYTES).is_ok();
                        pipes.push(pipe);
                    }
                }
                then();
                Ok(())
            });
            filled.join().unwrap()
        })
    }

    #[test]
    fn a_user_without_pages_for_pipes_gets_several_small_ones() {
        let test = "worker::pin::tests::a_user_without_pages_for_pipes_gets_several_small_ones";
        let skip = |cause: &str| {
            let remedy = "run as root, with Linux's default limits of pipes".to_owned();
            let why = towpath_testkit::Unavailable { cause: cause.to_owned(), remedy };
            towpath_testkit::skip(test, &why);
        };
        let limit = |name: &str| {
            let limit = std::fs::read_to_string(format!("/proc/sys/fs/pipe-user-pages-{name}"));
            limit.unwrap().trim().parse::<u32>().unwrap()
        };
        if !(1..=16384).contains(&limit("soft")) || limit("hard") != 0 {
            return skip("other limits of pipes");
        }
        let file = SharedFile::create("pin-test", 5 * EXTENT_BYTES).unwrap();
        let mapping = file.map_readable().unwrap();
        mapping.populate();
        let outcome = without_pages_for_pipes(|| {
            let pipes = pin(&[file.as_fd()]).unwrap();
            // Of two pages each, or of one (pipe(7)).
            let count = pipes.iter().flatten().count();
            assert!([3, 5].contains(&count), "{count} pipes");
            assert_ne!(collapse(&mapping), 0, "the kernel merged pages that are pinned");
            let large = SharedFile::create("pin-test", 100 * EXTENT_BYTES).unwrap();
            let error = pin(&[large.as_fd()]).unwrap_err();
            assert_eq!(error, Errno::DQUOT);
            let text = describe(&error.into());
            assert!(text.contains("fs.pipe-user-pages-soft"), "{text}");
        });
        if outcome.is_err() {
            skip("no right to become another user");
        }
    }
}

//! `select(2)` on any number of descriptors, the basis of comparison in the papers.
//!
//! Unsafe lives here because a set of descriptors is a set of numbers: the caller must keep them
//! open, and borrowing them ensures it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{FdSetElement, FdSetIter, Timespec, fd_set_insert, fd_set_num_elements};

/// Descriptors to wait for.
pub struct Selected<'a> {
    descriptors: Vec<BorrowedFd<'a>>,
    /// For each descriptor number, its index in that list.
    places: Vec<usize>,
    wanted: Vec<FdSetElement>,
    ready: Vec<FdSetElement>,
    highest: i32,
}

impl<'a> Selected<'a> {
    /// Creates a set of these descriptors.
    #[must_use]
    pub fn new(descriptors: Vec<BorrowedFd<'a>>) -> Selected<'a> {
        let highest = descriptors.iter().map(AsRawFd::as_raw_fd).max().unwrap_or(-1);
        let elements = fd_set_num_elements(descriptors.len(), highest + 1);
        let mut wanted = vec![FdSetElement::default(); elements];
        let mut places = vec![0; usize::try_from(highest + 1).unwrap_or(0)];
        for (place, descriptor) in descriptors.iter().enumerate() {
            fd_set_insert(&mut wanted, descriptor.as_raw_fd());
            places[descriptor.as_raw_fd() as usize] = place;
        }
        Selected { descriptors, places, ready: wanted.clone(), wanted, highest }
    }

    /// Waits until a descriptor is readable, at most this long. Returns the indices of the readable
    /// ones. Each call fills and scans the set anew, which is the cost of `select`.
    ///
    /// # Errors
    /// The kernel's error; an interruption is none.
    pub fn readable(&mut self, timeout: Duration, found: &mut Vec<usize>) -> io::Result<()> {
        found.clear();
        self.ready.copy_from_slice(&self.wanted);
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: every number in the set belongs to a borrowed descriptor, which is open.
        let count = unsafe {
            rustix::event::select(
                self.highest + 1,
                Some(&mut self.ready),
                None,
                None,
                Some(&timeout),
            )
        };
        match count {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let place = |fd: i32| self.places.get(usize::try_from(fd).ok()?).copied();
        found.extend(FdSetIter::new(&self.ready).filter_map(place));
        Ok(())
    }
}

impl std::fmt::Debug for Selected<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selected").field("descriptors", &self.descriptors.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_readable_one_is_named() {
        let pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let mut selected = Selected::new(pairs.iter().map(|(near, _)| near.as_fd()).collect());
        let mut found = Vec::new();
        selected.readable(Duration::ZERO, &mut found).unwrap();
        assert_eq!(found, []);
        (&pairs[70].1).write_all(&[1]).unwrap();
        for _ in 0..2 {
            selected.readable(Duration::from_secs(5), &mut found).unwrap();
            assert_eq!(found, [70], "until it is read");
        }
    }
}

//! Seals and allocates the memory files that a worker is given.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::fs::{FallocateFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

use super::pin::pin;
use super::wire::{Descriptors, Head, command};

/// Seals the memory that the application writes against every further writer, and allocates the
/// memory that the server writes. Keeps the kernel from merging its pages, and makes the
/// engines' epoll sets report the application's notifications.
///
/// If the application left a part of its memory unallocated, fails with `ENODATA`. For an older
/// application, sets `is_unfreeable` instead, before it allocates this part.
pub(super) fn prepare(
    engines: &Descriptors,
    head: Head,
    descriptors: &Descriptors,
    is_unfreeable: &mut bool,
) -> Result<Descriptors, Errno> {
    let [Some(server), Some(receive), Some(ledger), Some(application), Some(transmit), wakes @ ..] =
        descriptors
    else {
        return Err(Errno::INVAL);
    };
    for file in [application, transmit] {
        let is_allocated = seal(file)?;
        if !is_allocated && head.kind != command::PREPARE_OLDER {
            return Err(Errno::NODATA);
        }
        *is_unfreeable |= !is_allocated;
    }
    // Otherwise, a read of the engine would allocate a missing page of the application at the
    // server's cost. The call also keeps the kernel from dropping pages that the application
    // has only read.
    for file in [server, receive, ledger, application, transmit] {
        allocate(file)?;
    }
    let pins = pin(&[server, receive, ledger, application, transmit].map(AsFd::as_fd))?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for (engine, wake) in engines.iter().flatten().zip(wakes.iter().flatten()) {
        epoll::add(engine, wake, epoll::EventData::new_u64(head.value), flags)?;
    }
    Ok(pins)
}

/// Seals a memory file that an application has mapped, so that the application is the only writer.
/// Returns `true` if the application has allocated the whole file. The function seals first: after the seal, no process
/// can free a page of the file, so the result stays valid.
pub(super) fn seal(file: &OwnedFd) -> Result<bool, Errno> {
    rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    // `st_blocks` would not do: it also counts the end of a huge page behind the end of the file.
    let first_hole = rustix::fs::seek(file, SeekFrom::Hole(0))?;
    Ok(first_hole >= rustix::fs::fstat(file)?.st_size as u64)
}

/// Seals a memory file as [`seal`] does.
pub(super) fn seal_allocated([file, ..]: &Descriptors) -> Result<(), Errno> {
    let is_allocated = seal(file.as_ref().ok_or(Errno::INVAL)?)?;
    if is_allocated { Ok(()) } else { Err(Errno::NODATA) }
}

/// Allocates a memory file.
fn allocate(file: &OwnedFd) -> Result<(), Errno> {
    let len = rustix::fs::fstat(file)?.st_size as u64;
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)
}

/// Allocates a memory file, and keeps the kernel from merging its pages.
pub(super) fn allocate_and_pin([file, ..]: &Descriptors) -> Result<Descriptors, Errno> {
    let file = file.as_ref().ok_or(Errno::INVAL)?;
    allocate(file)?;
    pin(&[file.as_fd()])
}

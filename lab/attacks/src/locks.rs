//! Tens of thousands of record locks on a file that the server closes: the kernel walks the locks at each close.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_protocol::message::Message;

use crate::session::{allocate, ask, channel, small};
use crate::{Deeds, Field, sys};

/// Locks, unless the field says otherwise.
const LOCKS: u64 = 30_000;
/// The beginning of the names of memory files with the engines' sleep flags, in `/proc/self/fd`.
const STATE_PAGE: &str = "/memfd:towpath-state";

/// Locks single bytes for reading, none next to another, until the kernel refuses. The locks last as long as the file
/// is open. The kernel finds the place of a lock before all others at once.
fn lock_bytes(file: &impl AsFd, wanted: u64) -> u64 {
    (0..wanted).rev().take_while(|byte| sys::lock_byte(file.as_fd(), byte * 2)).count() as u64
}

/// Attaches a small session, and returns the descriptors that come with it.
fn attach(field: &Field) -> io::Result<(towpath_protocol::channel::Channel, Vec<OwnedFd>)> {
    let session = channel(&field.socket)?;
    match ask(&session, &Message::Attach(small("locks"))) {
        Some((Message::Attached(_), files)) => Ok((session, files)),
        _ => Err(io::Error::other("the session was refused")),
    }
}

/// Locks the state page that comes with a session, and makes the server close copies of the page by further sessions.
pub(crate) fn record_locks(field: &Field) -> io::Result<Deeds> {
    let (_session, files) = attach(field)?;
    let is_page = |file: &&OwnedFd| sys::path_of(file.as_fd()).starts_with(STATE_PAGE);
    let page = files.iter().find(is_page).ok_or_else(|| io::Error::other("no state page"))?;
    let locks = lock_bytes(page, field.size_or(LOCKS));
    field.begun();
    let mut attached = 0;
    while !field.over() {
        let Ok((session, files)) = attach(field) else { continue };
        allocate(files)?;
        attached += u64::from(ask(&session, &Message::Mapped).is_some());
    }
    Ok(vec![("locks", locks), ("attached", attached)])
}

/// Locks a file of this program, and closes copies of it. No server has the file.
pub(crate) fn alone(field: &Field) -> io::Result<Deeds> {
    let file = rustix::fs::memfd_create("attack", rustix::fs::MemfdFlags::CLOEXEC)?;
    let file = File::from(file);
    let locks = lock_bytes(&file, field.size_or(LOCKS));
    field.begun();
    let mut closed = 0;
    while !field.over() {
        drop(file.try_clone()?);
        closed += 1;
    }
    Ok(vec![("locks", locks), ("closed", closed)])
}

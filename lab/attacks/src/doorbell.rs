//! Attacks on the object by which the server notifies an application: its locks are held while the
//! server notifies, or while the server closes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};

use crate::session::Target;
use crate::withheld::Withheld;
use crate::{Deeds, Field, sys};

/// The time that a notification may take before the attacker requests the next.
const STEP: Duration = Duration::from_millis(20);
/// Processes of the group that is signalled at each notification.
const GROUP: u64 = 300;

/// Splices the doorbell into a full blocking socket: the splice holds the pipe's lock.
pub(crate) fn splice(field: &Field) -> io::Result<Deeds> {
    while_held(field, Target::attach(&field.socket)?, hold_by_splice()?, false)
}

/// Reads the doorbell into a page that never arrives.
pub(crate) fn read(field: &Field) -> io::Result<Deeds> {
    let page = Withheld::new(&field.fuse)?;
    let hold = hold_by_read(&page);
    while_held(field, Target::attach(&field.socket)?, hold, false)
}

/// As [`splice`], and the session ends meanwhile.
pub(crate) fn end_spliced(field: &Field) -> io::Result<Deeds> {
    while_held(field, Target::attach(&field.socket)?, hold_by_splice()?, true)
}

/// As [`read`], and the session ends meanwhile.
pub(crate) fn end_read(field: &Field) -> io::Result<Deeds> {
    let page = Withheld::new(&field.fuse)?;
    let hold = hold_by_read(&page);
    while_held(field, Target::attach(&field.socket)?, hold, true)
}

type Hold = Box<dyn Fn(&OwnedFd, usize) + Send + Sync>;

fn hold_by_splice() -> io::Result<Hold> {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let (full, unread) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    rustix::io::ioctl_fionbio(&full, true)?;
    while rustix::io::write(&full, &[0; 4096]).is_ok() {}
    while rustix::io::write(&full, &[0]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false)?;
    Ok(Box::new(move |doorbell, _| {
        let _ = &unread;
        let _ = sys::splice(doorbell.as_fd(), full.as_fd());
    }))
}

fn hold_by_read(page: &Withheld) -> Hold {
    let pages: Vec<usize> = (0..64).map(|number| page.page(number)).collect();
    Box::new(move |doorbell, place| {
        let _ = sys::read_into(doorbell.as_fd(), pages[place % pages.len()], 4096);
    })
}

/// Holds the doorbell's lock with one thread per descriptor, and makes the server notify the
/// session, or ends it. The attack's end is that of the process: threads may be asleep in the
/// kernel.
fn while_held(field: &Field, mut target: Target, hold: Hold, end: bool) -> io::Result<Deeds> {
    let hold = Arc::new(hold);
    let returned = Arc::new(AtomicU64::new(0));
    let descriptors = std::mem::take(&mut target.doorbells);
    let held = descriptors.len() as u64;
    for (place, descriptor) in descriptors.into_iter().enumerate() {
        sys::make_blocking(descriptor.as_fd());
        let (hold, returned) = (hold.clone(), returned.clone());
        std::thread::spawn(move || {
            hold(&descriptor, place);
            returned.fetch_add(1, Ordering::Relaxed);
            // Kept open: the server's close is then not the last one of the object.
            loop {
                std::thread::park();
            }
        });
    }
    std::thread::sleep(STEP);
    // A holder takes some bytes with the lock.
    let (mut notified, mut silent) = (u64::from(target.have_a_notification(STEP)), 0);
    std::thread::sleep(STEP);
    if end {
        drop(target);
        field.begun();
        field.sit();
    } else {
        field.begun();
        while !field.over() {
            if target.have_a_notification(STEP) {
                notified += 1;
                std::thread::sleep(Duration::from_micros(200));
            } else {
                silent += 1;
                // A session whose queue is full is refused at once.
                std::thread::sleep(STEP);
            }
        }
        // Its end could wait for the lock, too; the process' end does it.
        std::mem::forget(target);
    }
    let returned = returned.load(Ordering::Relaxed);
    Ok(vec![("held", held - returned.min(held)), ("notified", notified), ("silent", silent)])
}

/// Sets every option that makes a notification expensive: a long filter, signals to a large process
/// group, a peek offset, and at last a shut-down of the reading side.
pub(crate) fn options(field: &Field) -> io::Result<Deeds> {
    let group = sys::become_large_group(field.size_or(GROUP));
    let mut target = Target::attach(&field.socket)?;
    let (mut filters, mut signals, mut peeks, mut shut) = (0, 0, 0, 0);
    for descriptor in &target.doorbells {
        let descriptor = descriptor.as_fd();
        filters += u64::from(sys::attach_filter(descriptor, 4096));
        signals += u64::from(sys::signal_own_group(descriptor));
        peeks +=
            u64::from(sys::set_option(descriptor, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &1_i32));
    }
    field.begun();
    let mut notified = 0;
    while !field.over() {
        notified += u64::from(target.have_a_notification(STEP));
        target.take_notifications();
    }
    for descriptor in &target.doorbells {
        shut += u64::from(rustix::net::shutdown(descriptor, Shutdown::Both).is_ok());
    }
    target.have_a_notification(STEP);
    Ok(vec![
        ("group", group),
        ("filters", filters),
        ("signals", signals),
        ("peeks", peeks),
        ("shut", shut),
        ("notified", notified),
    ])
}

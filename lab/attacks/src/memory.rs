//! Attacks through the memory files that server and application share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use towpath_protocol::message::{Attach, Message};

use crate::session::{Target, allocate, ask, channel, small};
use crate::withheld::Withheld;
use crate::{Deeds, Field, sys};

/// Connections that attach with large memories at the same time.
const LARGE: u64 = 24;
/// `MADV_PAGEOUT`, `MADV_COLD` and `MADV_COLLAPSE`.
const COLD: i32 = 20;
const PAGE_OUT: i32 = 21;
/// Mappings of all files together: a process may have 65 530.
const WIDE: u64 = 60_000;
const COLLAPSE: i32 = 25;

/// Writes to each memory file that is yet to be sealed, from a page that never arrives: the write
/// holds the file's lock, which the sealing needs.
pub(crate) fn write_while_sealed(field: &Field) -> io::Result<Deeds> {
    let page = Withheld::new(&field.fuse)?;
    let session = channel(&field.socket)?;
    let Some((Message::Attached(_), descriptors)) =
        ask(&session, &Message::Attach(small("attacker")))
    else {
        return Err(io::Error::other("attaching was refused"));
    };
    let mut writing = 0;
    for file in descriptors.into_iter().filter(is_writable_file) {
        let from = page.page(writing as usize * 16);
        writing += 1;
        std::thread::spawn(move || sys::write_from(file.as_fd(), from, 4096));
    }
    // The writers take their locks.
    std::thread::sleep(Duration::from_millis(50));
    session.send(&Message::Mapped, &[]).map_err(io::Error::other)?;
    field.begun();
    field.sit();
    Ok(vec![("writing", writing)])
}

fn is_writable_file(file: &OwnedFd) -> bool {
    let regular = fstat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    regular && fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// The most words that an attacker overwrites at a time, and the times before it attaches anew.
const WORDS: u64 = 8;
const ROUNDS: u64 = 2_000;

/// Returns the words of all memory that this process shares with the server, and may write.
fn writable_words() -> io::Result<Vec<std::ops::Range<usize>>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let range = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let is_shared = rest.starts_with("rw-s") && line.contains("/memfd:towpath-");
        let (from, to) = range.split_once('-').filter(|_| is_shared)?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(from)?..number(to)?)
    };
    Ok(maps.lines().filter_map(range).collect())
}

/// Overwrites random words of everything that it may write, while its session sends and receives.
/// Attaches anew once the server has closed the session. `size=N` sets the seed, by default the
/// process's number. The deeds have it.
pub(crate) fn overwrite(field: &Field) -> io::Result<Deeds> {
    let seed = field.size_or(u64::from(std::process::id()));
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut words, mut sessions, mut foreign) = (0, 0, 0);
    let mut target = Target::attach(&field.socket)?;
    field.begun();
    'attached: while !field.over() {
        sessions += 1;
        let ranges = writable_words()?;
        for _ in 0..ROUNDS {
            if field.over() {
                break 'attached;
            }
            for _ in 0..=random.usize(..WORDS as usize) {
                let range = &ranges[random.usize(..ranges.len())];
                let at = range.start + random.usize(..range.len() / 8) * 8;
                let value = random.u64(..);
                match random.u32(..4) {
                    0 => sys::overwrite(at, |_| value),
                    1 => sys::overwrite(at, |old| old ^ 1 << (value % 64)),
                    2 => sys::overwrite(at, |old| old.wrapping_add(value % 16)),
                    _ => sys::overwrite(at, |_| [0, u64::MAX, value >> 32][value as usize % 3]),
                }
                words += 1;
            }
            match target.exchange() {
                Some(count) => foreign += count,
                None => break,
            }
        }
        target = loop {
            match Target::attach(&field.socket) {
                Ok(target) => break target,
                Err(_) if field.over() => break 'attached,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
    }
    Ok(vec![("words", words), ("sessions", sessions), ("foreign", foreign), ("seed", seed)])
}

/// Attaches with the largest memories that are granted, and detaches, from many threads.
pub(crate) fn large(field: &Field) -> io::Result<Deeds> {
    let small = small("large memories");
    come_and_go(field, Attach { receive_slots: 32_768, receive_buffer_bytes: 7_000, ..small })
}

/// Attaches as [`large`] does with small memories: the server logs each arrival and departure.
pub(crate) fn come_and_go_small(field: &Field) -> io::Result<Deeds> {
    come_and_go(field, small("small memories"))
}

fn come_and_go(field: &Field, attach: Attach) -> io::Result<Deeds> {
    let (attached, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    field.begun();
    std::thread::scope(|scope| {
        for _ in 0..field.size_or(LARGE) {
            scope.spawn(|| {
                while !field.over() {
                    let granted = channel(&field.socket).is_ok_and(|session| {
                        match ask(&session, &Message::Attach(attach)) {
                            Some((Message::Attached(_), files)) => {
                                allocate(files).is_ok()
                                    && session.send(&Message::Mapped, &[]).is_ok()
                            }
                            _ => false,
                        }
                    });
                    let count = if granted { &attached } else { &refused };
                    count.fetch_add(1, Ordering::Relaxed);
                    if !granted {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    Ok(vec![("attached", count(&attached)), ("refused", count(&refused))])
}

/// Makes the kernel reclaim the pages of the session's memory while the server uses them.
pub(crate) fn page_out(field: &Field) -> io::Result<Deeds> {
    advise_while_sending(field, &[PAGE_OUT, COLD])
}

/// Makes the kernel merge the pages into large ones, which unmaps them meanwhile.
pub(crate) fn collapse(field: &Field) -> io::Result<Deeds> {
    advise_while_sending(field, &[COLLAPSE])
}

fn advise_while_sending(field: &Field, advices: &[i32]) -> io::Result<Deeds> {
    let mut target = Target::attach(&field.socket)?;
    let ranges = shared_ranges()?;
    let (mut taken, mut refused, mut sent) = (0, 0, 0);
    field.begun();
    while !field.over() {
        for advice in advices {
            for (start, len) in &ranges {
                let count =
                    if sys::advise(*start, *len, *advice) { &mut taken } else { &mut refused };
                *count += 1;
            }
        }
        sent += u64::from(target.have_a_notification(Duration::from_millis(20)));
        target.take_notifications();
    }
    Ok(vec![("taken", taken), ("refused", refused), ("sent", sent)])
}

/// Does the same with a great number of mappings of each file. The kernel walks them all for each
/// page with the pages locked, which takes seconds.
pub(crate) fn collapse_wide(field: &Field) -> io::Result<Deeds> {
    let mut target = Target::attach(&field.socket)?;
    let ranges = shared_ranges()?;
    let each = field.size_or(WIDE) / ranges.len().max(1) as u64;
    let mut aliases = Vec::new();
    let mut mapped = 0;
    for (start, len) in ranges {
        if let Some(alias) = sys::alias_large(start, len) {
            mapped += (0..each).filter(|_| sys::alias_again(alias, len)).count() as u64;
            aliases.push(alias);
        }
    }
    let (mut taken, mut refused, mut sent) = (0, 0, 0);
    field.begun();
    while !field.over() {
        for alias in &aliases {
            let merged = sys::advise(*alias, sys::LARGE_PAGE_BYTES, COLLAPSE);
            let count = if merged { &mut taken } else { &mut refused };
            *count += 1;
        }
        sent += u64::from(target.have_a_notification(Duration::from_millis(20)));
        target.take_notifications();
    }
    Ok(vec![("mapped", mapped), ("taken", taken), ("refused", refused), ("sent", sent)])
}

/// Returns the mappings that this process shares with the server.
pub(crate) fn shared_ranges() -> io::Result<Vec<(usize, usize)>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some((number(start)?, number(end)? - number(start)?))
    };
    Ok(maps.lines().filter(|line| line.contains("/memfd:towpath")).filter_map(range).collect())
}

//! An application that attaches again and again, and keeps the memory of each session.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, fstat};
use towpath_memory::{Region, SharedFile};
use towpath_protocol::message::{Attach, Message};
use towpath_protocol::{OLDEST_VERSION, VERSION};
use towpath_tests::eventually;
use towpath_tests::raw::{self, Raw, Reply};

/// The most sessions, one after the other.
const ROUNDS: usize = 32;

/// The memory of a session that this process writes, kept by its files and mappings.
struct Kept {
    files: Vec<OwnedFd>,
    _mappings: Vec<Region>,
}

/// What the application does with its memory before it answers that the memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It allocates the memory, as the client library does.
    Allocates,
    /// It then frees a page of each file.
    Holes,
    /// It allocates nothing, as the client library of 0.1.0.
    Older,
}

impl How {
    pub(crate) fn named(name: &str) -> How {
        match name {
            "allocates" => How::Allocates,
            "holes" => How::Holes,
            "older" => How::Older,
            _ => panic!("no such way: {name}"),
        }
    }
}

impl Kept {
    fn new(files: Vec<OwnedFd>, how: How) -> Kept {
        let map = |file: &OwnedFd| {
            let file = SharedFile::adopt(file.try_clone().expect("a descriptor")).expect("a file");
            let mut region = file.map_writable().expect("a mapping");
            if how != How::Older {
                region.allocate().expect("memory");
            }
            region
        };
        let _mappings = files.iter().map(map).collect();
        if how == How::Holes {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for file in &files {
                fallocate(file, hole, 0, 4096).expect("a hole");
            }
        }
        Kept { files, _mappings }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| fstat(file).expect("a file").st_blocks as u64 * 512).sum()
    }

    fn is_allocated(&self) -> bool {
        let sizes = self.files.iter().map(|file| fstat(file).expect("a file").st_size as u64);
        self.bytes() == sizes.sum::<u64>()
    }
}

/// Attaches and leaves. `hasty`: leaves before the server answers. Prints the refusal if there is one, and the number of
/// sessions with the bytes of the kept memory.
pub(crate) fn run(socket: &Path, how: How, hasty: bool) {
    let version = if how == How::Older { OLDEST_VERSION } else { VERSION };
    // The version of a later message does not make the session an older one.
    let later = if how == How::Allocates { VERSION } else { OLDEST_VERSION };
    let attach = Attach { transmit_slots: 1024, ..raw::attach("hoarder") };
    let mut kept: Vec<Kept> = Vec::new();
    let mut refusals = 0;
    while kept.len() < ROUNDS {
        let raw = Raw::connect(socket).expect("connects");
        let files = match raw.ask_in(version, &Message::Attach(attach)).expect("speaks") {
            Reply::Message(Message::Attached(_), descriptors) => descriptors,
            // The server may still hold the last session, although its report no longer shows the session.
            Reply::Refused(..) if refusals < 10 => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Reply::Refused(_, text) => {
                println!("refused {text}");
                break;
            }
            other => panic!("{other:?}"),
        };
        let mut files = files.into_iter();
        let own: Vec<OwnedFd> = files.by_ref().skip(3).take(2).collect();
        drop(files);
        kept.push(Kept::new(own, how));
        if hasty {
            raw.send(&Message::Mapped.encode_for(later), &[]).expect("speaks");
        } else {
            let reply = raw.ask_in(later, &Message::Mapped).expect("speaks");
            if how == How::Holes {
                let is_named = |text: &str| text.contains("left pages of its memory unallocated");
                let is_refused = matches!(&reply, Reply::Refused(_, text) if is_named(text));
                assert!(is_refused, "{reply:?}");
                assert!(!kept.iter().any(Kept::is_allocated), "the worker allocated a page");
            } else {
                assert!(matches!(reply, Reply::Message(Message::Done, _)), "{reply:?}");
                assert!(kept.iter().all(Kept::is_allocated), "a read of the server would allocate");
            }
        }
        drop(raw);
        eventually("the end of the session", || {
            let report = towpath_client::report(socket).expect("a report");
            report["sessions"].as_array().expect("sessions").is_empty()
        });
    }
    if hasty && how != How::Holes {
        // A session may end before its worker has sealed the memory.
        eventually("sealed memory", || kept.iter().all(Kept::is_allocated));
    }
    println!("{} sessions, {} bytes", kept.len(), kept.iter().map(Kept::bytes).sum::<u64>());
}

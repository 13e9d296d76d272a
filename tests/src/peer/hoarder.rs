//! An application that attaches again and again, and keeps the memory of each session.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::fstat;
use towpath_memory::{Region, SharedFile};
use towpath_protocol::message::{Attach, Message};
use towpath_tests::eventually;
use towpath_tests::raw::{self, Raw, Reply};

/// The most sessions, one after the other.
const ROUNDS: usize = 32;

/// The memory of a session that this process writes, kept by its files and mappings.
struct Kept {
    files: Vec<OwnedFd>,
    _mappings: Vec<Region>,
}

impl Kept {
    fn new(files: Vec<OwnedFd>, allocates: bool) -> Kept {
        let map = |file: &OwnedFd| {
            let file = SharedFile::adopt(file.try_clone().expect("a descriptor")).expect("a file");
            let mut region = file.map_writable().expect("a mapping");
            if allocates {
                region.allocate().expect("memory");
            }
            region
        };
        let _mappings = files.iter().map(map).collect();
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

/// Attaches and leaves. `allocates`: allocates its own memory, as the client library does.
/// `hasty`: leaves before the server answers. Prints the refusal if there is one, and the number of
/// sessions with the bytes of the kept memory.
pub(crate) fn run(socket: &Path, allocates: bool, hasty: bool) {
    let attach = Attach { transmit_slots: 1024, ..raw::attach("hoarder") };
    let mut kept: Vec<Kept> = Vec::new();
    let mut refusals = 0;
    while kept.len() < ROUNDS {
        let raw = Raw::connect(socket).expect("connects");
        let files = match raw.ask(&Message::Attach(attach)).expect("speaks") {
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
        kept.push(Kept::new(own, allocates));
        if hasty {
            raw.say(&Message::Mapped).expect("speaks");
        } else {
            let reply = raw.ask(&Message::Mapped).expect("speaks");
            assert!(matches!(reply, Reply::Message(Message::Done, _)), "{reply:?}");
            assert!(kept.iter().all(Kept::is_allocated), "a read of the server would allocate");
        }
        drop(raw);
        eventually("the end of the session", || {
            let report = towpath_client::report(socket).expect("a report");
            report["sessions"].as_array().expect("sessions").is_empty()
        });
    }
    if hasty {
        // A session may end before its worker has sealed the memory.
        eventually("sealed memory", || kept.iter().all(Kept::is_allocated));
    }
    println!("{} sessions, {} bytes", kept.len(), kept.iter().map(Kept::bytes).sum::<u64>());
}

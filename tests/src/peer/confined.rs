//! An application of another user than the server's that tries to write memory without permission.
//!
//! Unsafe lives here for system calls on memory that the safe wrappers would prevent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use towpath_protocol::message::{Message, TRUSTED};
use towpath_tests::raw::{self, Raw, Reply};

const PAGE: usize = 4096;

fn outcome(result: i64) -> String {
    if result >= 0 {
        return "done".into();
    }
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let names = [
        (libc::EACCES, "EACCES"),
        (libc::EPERM, "EPERM"),
        (libc::EBADF, "EBADF"),
        (libc::EINVAL, "EINVAL"),
        (libc::ETXTBSY, "ETXTBSY"),
    ];
    names
        .iter()
        .find(|(number, _)| *number == code)
        .map_or_else(|| format!("error {code}"), |(_, name)| (*name).to_owned())
}

fn map(file: &OwnedFd, protection: i32) -> (i64, *mut libc::c_void) {
    // SAFETY: the kernel chooses a free address range.
    let address = unsafe {
        let nothing = std::ptr::null_mut();
        libc::mmap(nothing, PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    (if address == libc::MAP_FAILED { -1 } else { 0 }, address)
}

fn attempts(name: &str, file: &OwnedFd) {
    let say = |what: &str, result: i64| println!("{name}: {what}: {}", outcome(result));
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    say("map for writing", map(file, read_write).0);
    let (result, address) = map(file, libc::PROT_READ);
    say("map for reading", result);
    // SAFETY: the page was just mapped and nothing else is there; no byte of it is touched.
    let protected = unsafe { libc::mprotect(address, PAGE, read_write) };
    say("make a mapping writable", protected.into());
    // SAFETY: as above.
    let removed = unsafe { libc::madvise(address, PAGE, libc::MADV_REMOVE) };
    say("remove a page", removed.into());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    println!(
        "{name}: open again: {}",
        match opened {
            Ok(_) => "done".into(),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => "EACCES".to_owned(),
            Err(error) => error.to_string(),
        }
    );
    let fd = file.as_raw_fd();
    // SAFETY: numbers and a live buffer of one byte.
    unsafe {
        say("write", libc::pwrite(fd, [1_u8].as_ptr().cast(), 1, 0) as i64);
        say("truncate", libc::ftruncate(fd, 0).into());
        say("grow", libc::ftruncate(fd, 1 << 30).into());
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        say("punch a hole", libc::fallocate(fd, hole, 0, PAGE as i64).into());
        for (what, seal) in [("seal against writing", 0x0008), ("seal against sealing", 0x0001)] {
            say(what, libc::fcntl(fd, libc::F_ADD_SEALS, seal).into());
        }
        say("change the mode", libc::fchmod(fd, 0o666).into());
    }
}

/// Tries everything, before and after its memory is sealed, and prints each outcome.
pub(crate) fn run(socket: &Path, server: i32) {
    let raw = Raw::connect(socket).expect("connects");
    let (attached, files) = raw.attach(raw::attach("confined")).expect("attaches");
    println!("trusted: {}", attached.flags & TRUSTED != 0);
    let [server_pages, receive_pool, state, pages, transmit_pool, _doorbell, _wake] = &files[..]
    else {
        panic!("{} descriptors", files.len())
    };
    // Mapped while that is allowed: the only mapping that stays writable.
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let own = map(pages, read_write);
    assert_eq!(own.0, 0);
    raw::allocate(&files).expect("memory");
    let reply = raw.ask(&Message::Mapped).expect("speaks");
    assert!(matches!(reply, Reply::Message(Message::Done, _)), "{reply:?}");
    for (name, file) in [
        ("server pages", server_pages),
        ("receive pool", receive_pool),
        ("state page", state),
        ("application pages", pages),
        ("transmit pool", transmit_pool),
    ] {
        attempts(name, file);
    }
    // SAFETY: the page was mapped for writing, and is this process' own to write.
    let removed = unsafe { libc::madvise(own.1, PAGE, libc::MADV_REMOVE) };
    println!("own mapping: remove a page: {}", outcome(removed.into()));
    // SAFETY: as above; the word is the sleep flag, which means nothing here.
    unsafe { own.1.cast::<u64>().write_volatile(0) };
    println!("own mapping: write: done");
    for what in ["mem", "fd", "maps"] {
        let path = format!("/proc/{server}/{what}");
        let seen = match what {
            "fd" => std::fs::read_dir(&path).map(drop),
            _ => std::fs::File::open(&path).map(drop),
        };
        let refused = seen
            .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)));
        println!("the server's {what}: {}", if refused { "refused" } else { "open" });
    }
    println!("tried");
    let _ = std::io::stdin().lines().last();
}

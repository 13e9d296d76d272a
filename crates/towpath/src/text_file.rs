//! Files of settings and rights, which people write.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use crate::failure::{Failure, says};
use crate::trusted_path::{self, WayError};
use crate::trusted_user::distrust_reason;

/// The largest file accepted, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file of text. Fails if a user other than root, this process's user and the user that called sudo can change
/// the file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let failed = |error: &std::io::Error| {
        let user = rustix::process::geteuid().as_raw();
        Failure::usage(format!("{shown}: {}; give a file that user {user} can read", says(error)))
    };
    let place = trusted_path::find_target(path).map_err(|error| match error {
        WayError::Io(error) => failed(&error),
        link => Failure::usage(format!("{shown}: {link}")),
    })?;
    // Without O_NONBLOCK, the open of a FIFO waits for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(&place.directory, &place.name, flags, Mode::empty());
    let mut file = opened.map(File::from).map_err(|errno| failed(&errno.into()))?;
    let about = file.metadata().map_err(|error| failed(&error))?;
    if !about.is_file() {
        return Err(Failure::usage(format!("{shown} is not a file; give one with text")));
    }
    if let Some(why) = distrust_reason(&about, &place.directory) {
        return Err(Failure::usage(format!("{shown}: {why}")));
    }
    if about.len() > MAX_BYTES {
        let text = format!("{shown} has {} bytes; at most {MAX_BYTES} are allowed", about.len());
        return Err(Failure::usage(text));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| failed(&error))?;
    Ok(text)
}

/// Returns the number of the line, from 1, of a position in a text.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

//! Files of settings and rights, which people write.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::failure::{Failure, says};

/// The largest file accepted, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file of text.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let failed = |error: &std::io::Error| {
        let user = rustix::process::geteuid().as_raw();
        Failure::usage(format!("{shown}: {}; give a file that user {user} can read", says(error)))
    };
    let about = std::fs::metadata(path).map_err(|error| failed(&error))?;
    // To open a FIFO waits for its writer.
    if !about.is_file() {
        return Err(Failure::usage(format!("{shown} is not a file; give one with text")));
    }
    if about.len() > MAX_BYTES {
        let text = format!("{shown} has {} bytes; at most {MAX_BYTES} are allowed", about.len());
        return Err(Failure::usage(text));
    }
    std::fs::read_to_string(path).map_err(|error| failed(&error))
}

/// Returns the number of the line, from 1, of a position in a text.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

//! An application that says which file its state page is.

use std::io::BufRead;
use std::path::Path;

use towpath_tests::raw::{Raw, attach};

/// The place of the state page among the descriptors of a session.
const STATE_PAGE: usize = 2;

/// Attaches, prints the file's inode, and stays until its input ends.
pub(crate) fn run(socket: &Path) {
    let raw = Raw::connect(socket).expect("connects");
    let (_, descriptors) = raw.live(attach("state page")).expect("attaches");
    let about = rustix::fs::fstat(&descriptors[STATE_PAGE]).expect("a file");
    println!("{}", about.st_ino);
    std::io::stdin().lock().lines().for_each(drop);
}

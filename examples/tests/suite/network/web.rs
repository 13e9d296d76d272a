//! The web example, its content, and curl.

use towpath_device::tap::TapDevice;

use super::{Directory, Running, Served, run};

pub(crate) const BIG_BYTES: usize = 5_000_000;

/// Creates a directory to serve, with a small file, a big file, and a link to a file outside.
///
/// Returns the directory and the big file's content.
pub(crate) fn content() -> (Directory, Vec<u8>) {
    let directory = Directory::make();
    let root = directory.0.join("root");
    std::fs::create_dir(&root).unwrap();
    let big: Vec<u8> = (0..BIG_BYTES as u64).map(|n| ((n * n) >> 5) as u8).collect();
    std::fs::write(root.join("big"), &big).unwrap();
    std::fs::write(root.join("index.html"), "hello\n").unwrap();
    std::fs::write(directory.0.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    (directory, big)
}

pub(crate) fn plain(device: TapDevice) -> Box<dyn towpath_device::Device> {
    Box::new(device)
}

pub(crate) fn start(served: &Served, content: &Directory) -> Running {
    Running::start(env!("CARGO_BIN_EXE_web"), served, &[&content.0.join("root")])
}

/// Returns the output of curl for these arguments.
pub(crate) fn curl(arguments: &str) -> String {
    run(&format!("curl -sS --max-time 40 {arguments}"))
}

//! Memories that their owners had released when the server was killed, as the next server finds them in the store.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use towpath_device_testing::loopback;
use towpath_memory::SharedFile;
use towpath_protocol::store::{MemoryStore, Store};
use towpath_server::{Config, Server};

const BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// A store that the test looks into while the server has it.
#[derive(Clone, Default)]
struct SharedStore(Arc<Mutex<MemoryStore>>);

impl Store for SharedStore {
    fn put(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.0.lock().unwrap().put(name, descriptor)
    }

    fn remove(&mut self, name: &str) -> Vec<OwnedFd> {
        self.0.lock().unwrap().remove(name)
    }

    fn forget(&mut self, name: &str) {
        self.0.lock().unwrap().forget(name);
    }

    fn contents(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        self.0.lock().unwrap().contents()
    }

    fn holds(&self, name: &str) -> bool {
        self.0.lock().unwrap().holds(name)
    }
}

/// Returns a memory file with all of its pages.
fn memory() -> SharedFile {
    let file = SharedFile::create("released-test", BYTES).unwrap();
    file.map_writable().unwrap().allocate().unwrap();
    file.seal_seals().unwrap();
    file
}

fn bytes(file: &SharedFile) -> i64 {
    rustix::fs::fstat(file.as_fd()).unwrap().st_blocks * 512
}

/// A process keeps each file open. The next server frees the pages where the name says which users could write, and
/// closes its own descriptors of all of them.
#[test]
fn the_next_server_frees_released_memories() {
    let files = [memory(), memory(), memory()];
    let [shared, single, unknown] = &files;
    let mut store = SharedStore::default();
    let names = ["released-memory-6f-4001-4002", "released-memory-70-4001", "released-memory-71"];
    for (name, file) in names.iter().zip(&files) {
        store.put(name, file.as_fd()).unwrap();
    }
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let server =
        Server::start(&Config::default(), Box::new(near), Box::new(store.clone())).unwrap();
    let until = Instant::now() + PATIENCE;
    let is_left = || names.iter().any(|name| store.holds(name));
    while bytes(shared) > 0 || bytes(single) > 0 || is_left() {
        assert!(
            Instant::now() < until,
            "{} and {} bytes are left, and {:?}",
            bytes(shared),
            bytes(single),
            names.map(|name| store.holds(name))
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // A worker of the wrong user could hang.
    assert_eq!(bytes(unknown), BYTES as i64);
    server.stop().unwrap();
}

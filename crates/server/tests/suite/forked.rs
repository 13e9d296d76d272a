//! Children made by `fork` from a program with a server: each call fails at once, and the parent's server continues.
//!
//! Unsafe lives here for the fork and for values of the parent that a child consumes.

use std::path::Path;
use std::time::Duration;

use towpath_client::{Options, Session};
use towpath_device_testing::loopback::{self, LoopbackDevice};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, PolicyError, Server};

/// The time limit of a child, in seconds. It only ends a child that hangs.
const LIMIT_S: u32 = 20;

fn start(socket: &Path) -> (Server, LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let config = Config { socket: Some(socket.to_owned()), ..Config::default() };
    (Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap(), far)
}

/// A call that consumes a server and returns the call's error.
type Call = fn(Server) -> Option<String>;

/// Runs `calls` in a child, which consumes a copy of the parent's server. Returns the child's exit status; `None` if a
/// signal ended it.
fn in_child(server: &Server, calls: impl FnOnce(Server) -> bool) -> Option<i32> {
    // SAFETY: the child makes calls that take no lock of another thread, then ends without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a timer of this process, whose signal ends it.
        unsafe { libc::alarm(LIMIT_S) };
        // SAFETY: the child's copy of the parent's value, which the child uses once.
        let copy = unsafe { std::ptr::read(server) };
        let calls = std::panic::AssertUnwindSafe(|| calls(copy));
        let is_right = std::panic::catch_unwind(calls).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of this process, and writes a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn calls_in_a_child_fail_at_once_and_leave_the_parents_server() {
    let socket = std::env::temp_dir().join(format!("towpath-forked-{}.sock", std::process::id()));
    let (server, _far) = start(&socket);
    let says = |error: String| error.contains("this process was forked");
    let calls: [(&str, Call); 5] = [
        ("drop", |server| {
            drop(server);
            None
        }),
        ("stop", |server| server.stop().err().map(|error| error.to_string())),
        ("leave", |server| server.leave().err().map(|error| error.to_string())),
        ("connect", |server| server.connect().err().map(|error| error.to_string())),
        ("set_policy", |server| {
            let error = server.set_policy(Policy::default()).err();
            error.filter(|error| *error == PolicyError::Forked).map(|error| error.to_string())
        }),
    ];
    for (name, call) in calls {
        let ended = in_child(&server, |copy| match call(copy) {
            Some(error) => says(error),
            None => name == "drop",
        });
        assert_eq!(ended, Some(0), "{name}");
        let options = Options { answer_timeout: Duration::from_secs(20), ..Options::default() };
        Session::attach(&socket, &options).unwrap();
        Session::attach_over(server.connect().unwrap(), &options).unwrap();
    }
    server.stop().unwrap();
    assert!(!socket.exists());
}

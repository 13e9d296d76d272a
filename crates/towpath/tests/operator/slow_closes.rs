//! A server that is killed, or leaves for an upgrade, while it closes connections whose closes last long.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, getrlimit};
use towpath_client::{Options, Session};

use crate::running::*;

/// The epoll sets of each connection. All are in one outer set.
const SETS: usize = 50;
/// The entries of `poll` on the outer set: the close of a connection wakes all of them for each of its sets.
const ENTRIES: usize = 60_000;
/// Connections that wait for their close, at least, when the server is killed.
const WAITING: usize = 60;

/// Epoll sets that make closes slow, until the drop.
struct Waiters {
    sets: Vec<OwnedFd>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Waiters {
    fn start() -> Waiters {
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let outer = set();
        let sets: Vec<OwnedFd> = (0..SETS).map(|_| set()).collect();
        for one in &sets {
            epoll::add(&outer, one, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let each = usize::try_from(limit).unwrap_or(ENTRIES).min(ENTRIES);
        let stop = Arc::new(AtomicBool::new(false));
        let wait = move |outer: OwnedFd, stop: Arc<AtomicBool>| {
            let mut entries: Vec<_> =
                (0..each).map(|_| PollFd::new(&outer, PollFlags::PRI)).collect();
            while !stop.load(Ordering::Relaxed) {
                let time = Timespec::try_from(Duration::from_millis(200)).unwrap();
                let _ = poll(&mut entries, Some(&time));
            }
        };
        let threads = (0..ENTRIES.div_ceil(each)).map(|_| {
            let (outer, stop) = (outer.try_clone().unwrap(), stop.clone());
            std::thread::spawn(move || wait(outer, stop))
        });
        Waiters { threads: threads.collect(), sets, stop }
    }

    /// Connects until the server has many connections to close. Returns them.
    fn connect(&self, server: &Running) -> Vec<OwnedFd> {
        let path = SocketAddrUnix::new(&server.socket).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (mut held, files) = (Vec::new(), || open_files(server));
        let before = files();
        until("the server has many connections to close", || {
            for _ in 0..20 {
                let one =
                    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                // Otherwise the kernel's queue is full.
                if connect(&one, &path).is_ok() {
                    for set in &self.sets {
                        let (data, events) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                        epoll::add(set, &one, data, events).unwrap();
                    }
                    held.push(one);
                }
            }
            files() >= before + WAITING
        });
        held
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

fn open_files(server: &Running) -> usize {
    let process = server.server().map_or(0, |pid| pid.as_raw_nonzero().get());
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

fn administer(server: &Running) -> Session {
    Session::attach(format!("{}.admin", server.socket), &Options::default()).unwrap()
}

/// Starts a server whose policy admits no user of this test, and a session of its administrator.
fn start(test: &str) -> Option<(Directory, Running, Session)> {
    if !tun(test) {
        return None;
    }
    let directory = Directory::new();
    let file = directory.text("policy.toml");
    std::fs::write(&file, "[[grant]]\nusers = [61002]\n").unwrap();
    let arguments =
        ["--device", "tap:opA", "--address", "10.77.0.1/24", "--policy", &file, "--hold", "60"];
    let server = serve(&directory, "s.sock", &arguments);
    let session = Session::attach(format!("{}.admin", server.socket), &Options::default()).unwrap();
    Some((directory, server, session))
}

const CLOSES: &str = "the kernel still closes its descriptors";

#[test]
fn the_next_server_waits_for_no_close() {
    towpath_testkit::isolated!(|| {
        let Some((_directory, server, mut session)) =
            start("slow_closes::the_next_server_waits_for_no_close")
        else {
            return;
        };
        let told = |server: &Running| server.log().matches(CLOSES).count();
        // The second server is as prepared for its end as the first. The kernel may also be done in time.
        let mut resumptions = 0;
        while told(&server) < 2 {
            resumptions += 1;
            assert!(resumptions < 20, "{}", server.log());
            let waiters = Waiters::start();
            let held = waiters.connect(&server);
            let killed = server.server().unwrap().as_raw_nonzero();
            server.kill_server();
            while session.statistics().resumptions < resumptions {
                assert!(session.wait(Some(LIMIT)).unwrap());
            }
            drop((waiters, held));
            // The keeper takes note of the process's end, and leaves no zombie.
            until("no process is left", || {
                drop(administer(&server));
                !exists(format!("/proc/{killed}"))
            });
        }
        assert!(server.report()["device"]["connections"]["refused"].is_u64());
        drop(session);
    });
}

#[test]
fn an_upgrade_waits_for_no_close() {
    towpath_testkit::isolated!(|| {
        let Some((_directory, server, mut session)) =
            start("slow_closes::an_upgrade_waits_for_no_close")
        else {
            return;
        };
        let waiters = Waiters::start();
        let held = waiters.connect(&server);
        let left = server.server().unwrap().as_raw_nonzero();
        until("the keeper knows", || server.state() == "serving");
        let upgraded = prints(&mut towpath(&["upgrade", &server.socket]));
        assert!(
            upgraded.ends_with("the server and its keeper run the installed program\n"),
            "{upgraded}"
        );
        while session.statistics().resumptions == 0 {
            assert!(session.wait(Some(LIMIT)).unwrap());
        }
        assert!(!server.log().contains("takes too long"), "{}", server.log());
        drop((waiters, held));
        until("no process is left", || {
            drop(administer(&server));
            !exists(format!("/proc/{left}"))
        });
        drop(session);
    });
}

//! A server in a process of its own, and its holdings.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use towpath_testkit::{Census, User};

use crate::PATIENCE;
use crate::process::{Process, Program};

/// A server's holdings: after applications have gone, the same as before they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Descriptors by kind.
    pub descriptors: Vec<(String, usize)>,
    /// Descriptors of memory files by name.
    pub memory_files: Vec<(String, usize)>,
    /// Mappings of memory files.
    pub mapped_files: usize,
    /// Descriptors in its store.
    pub stored: usize,
    /// Sessions in its report.
    pub sessions: usize,
    /// Addresses of sessions, by its report.
    pub addresses_in_use: usize,
    /// Threads.
    pub threads: usize,
}

/// How often a thread must be seen in an uninterruptible sleep. A page fault takes a short one.
const LOOKS: usize = 50;

/// A server in a process of its own.
#[derive(Debug)]
pub struct Served {
    process: Process,
    directory: PathBuf,
    socket: PathBuf,
}

impl Served {
    /// Starts a server with options of `towpath-tests-peer server`.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(program: &Program, options: &[&str]) -> Served {
        Served::start_as(program, options, None)
    }

    /// Starts a server as a user.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_as(program: &Program, options: &[&str], user: Option<User>) -> Served {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-tests-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a directory for the socket");
        // Applications of other users reach the socket, whatever the umask.
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&directory, permissions).expect("its permissions");
        if let Some(user) = user {
            std::os::unix::fs::chown(&directory, Some(user.uid), Some(user.gid))
                .expect("a directory for the server's user");
        }
        let socket = directory.join("socket");
        let path = socket.to_str().expect("a path of characters").to_owned();
        let arguments: Vec<&str> =
            ["server", &path].into_iter().chain(options.iter().copied()).collect();
        let mut process = program.start_as(&arguments, |command| {
            if let Some(user) = user {
                user.confine(command);
            }
        });
        process.expect("ready");
        Served { process, directory, socket }
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the path as an argument.
    ///
    /// # Panics
    /// Never: the path was made of characters.
    #[must_use]
    pub fn path(&self) -> &str {
        self.socket.to_str().expect("a path of characters")
    }

    /// Returns its process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the number of its thread of this name: `engine` or `control`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn thread(&self, name: &str) -> u32 {
        let times = towpath_testkit::ProcessTimes::of(self.pid()).expect("it lives");
        times.threads.iter().find(|thread| thread.name == name).expect("it has the thread").tid
    }

    /// Returns the numbers of its threads that were in an uninterruptible sleep in each of several looks.
    ///
    /// # Panics
    /// When it is gone.
    #[must_use]
    pub fn stuck_threads(&self) -> Vec<u32> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let is_stuck = |tid: &u32| {
            let stat = std::fs::read_to_string(tasks.join(tid.to_string()).join("stat"));
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
        };
        let all = std::fs::read_dir(&tasks).expect("it lives").flatten();
        let numbers = all.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let mut stuck: Vec<u32> = numbers.filter(is_stuck).collect();
        for _ in 0..LOOKS {
            if stuck.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            stuck.retain(is_stuck);
        }
        stuck
    }

    /// Returns its report.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn report(&self) -> serde_json::Value {
        towpath_client::report(&self.socket).expect("it reports")
    }

    /// Returns a counter of its device.
    ///
    /// # Panics
    /// When there is none of that name.
    #[must_use]
    pub fn device_counter(&self, name: &str) -> u64 {
        self.report()["device"]["counters"][name].as_u64().expect("a counter of that name")
    }

    /// Returns the server's present holdings. They exclude the report that this call reads, once
    /// the server has noticed its end.
    ///
    /// The server may keep the workers of users that have gone, for their next session; this leaves
    /// the server's holdings of workers out.
    ///
    /// # Panics
    /// When the server is gone.
    pub fn holdings(&mut self) -> Holdings {
        let report = self.report();
        let sessions = report["sessions"].as_array().map_or(0, Vec::len);
        let given = report["device"]["addresses_in_use"].as_u64().expect("a number");
        let stored = self.process.ask("stored").parse().expect("a number");
        let census = Census::of(self.pid()).expect("it lives");
        let mut descriptors = census.descriptors;
        let workers = self.workers().len();
        for kind in ["socket", "[eventfd]"] {
            *descriptors.entry(kind.into()).or_default() -= workers;
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("it lives");
        Holdings {
            descriptors: descriptors.into_iter().collect(),
            memory_files: census.memory_files.into_iter().collect(),
            mapped_files: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            stored,
            sessions,
            addresses_in_use: given as usize,
            threads: census.threads,
        }
    }

    /// Returns its worker processes.
    fn workers(&self) -> Vec<u32> {
        let stat = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
            Some((name.to_owned(), rest.split(' ').nth(1)?.to_owned()))
        };
        let own = self.pid().to_string();
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let is_own = |spawner: &str| stat(spawner).is_some_and(|(_, parent)| parent == own);
        let worker = |one: std::fs::DirEntry| {
            let name = one.file_name();
            let (kind, parent) = stat(name.to_str()?)?;
            let is_worker = kind == "towpath-worker" && is_own(&parent);
            name.to_str()?.parse().ok().filter(|_| is_worker)
        };
        processes.filter_map(worker).collect()
    }

    /// Returns the numbers of its own threads and of its workers that are in an uninterruptible sleep, each time that
    /// this looks, for 0.2 s.
    ///
    /// # Panics
    /// When the server is gone.
    #[must_use]
    pub fn hung(&self) -> (usize, usize) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it lives");
        let mut threads: Vec<_> = tasks.flatten().map(|task| task.path()).collect();
        let workers = self.workers().into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}")));
        let mut workers: Vec<_> = workers.collect();
        for _ in 0..10 {
            threads.retain(|one| sleeps_uninterruptibly(one));
            workers.retain(|one| sleeps_uninterruptibly(one));
            std::thread::sleep(Duration::from_millis(20));
        }
        (threads.len(), workers.len())
    }

    /// Returns its holdings once nothing changes.
    pub fn settled(&mut self) -> Holdings {
        let mut last = self.holdings();
        let mut same = 0;
        while same < 3 {
            std::thread::sleep(Duration::from_millis(10));
            let now = self.holdings();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// Waits until its holdings are those before.
    ///
    /// # Panics
    /// When they stay different.
    pub fn holds_again(&mut self, before: &Holdings) {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.holdings();
            if now == *before {
                return;
            }
            if Instant::now() > until {
                assert_eq!(now, *before, "the server holds something else than before");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends it a line, and returns its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.process.ask(line)
    }

    /// Sends it SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// If it does not end: one of its threads is in an uninterruptible sleep.
    pub fn terminate(&mut self) {
        self.process.signal(libc::SIGTERM);
        let status = self.process.wait();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    }

    /// Stops it.
    ///
    /// # Panics
    /// When it does not end well.
    pub fn stop(mut self) {
        self.process.tell("stop");
        self.process.expect("stopped");
        assert!(self.process.wait().success());
    }
}

/// Returns `true` if a process or thread is in state D.
fn sleeps_uninterruptibly(directory: &Path) -> bool {
    let stat = std::fs::read_to_string(directory.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

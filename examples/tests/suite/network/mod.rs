//! A TAP device in a network namespace, with a driver server in this process, and an example that
//! runs beside it.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod web;

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_netlink::{Netlink, Prefix};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnet, Subnets};
use towpath_testkit::{Namespace, check_tun, has_programs, skip};

/// The interface's name.
pub(crate) const TAP: &str = "towpath0";

/// Returns `true` if a TAP device can be created and the programs that a test compares with are there;
/// prints the reason if not.
pub(crate) fn possible(test: &str, programs: &[(&str, &str)]) -> bool {
    if let Err(why) = check_tun() {
        skip(test, &why);
        return false;
    }
    has_programs(test, programs)
}

/// A driver server of a TAP device with the kernel's addresses 10.77.0.1 and fd77::1.
pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) directory: Directory,
}

/// A temporary directory, which dropping removes.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn make() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-examples-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        // Programs of other users are started from here, whatever the umask.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Served {
    /// Serves a TAP device, or the device that `wrap` makes of it.
    pub(crate) fn start(mtu_bytes: u32, wrap: impl FnOnce(TapDevice) -> Box<dyn Device>) -> Served {
        Served::with_policy(Policy::default(), mtu_bytes, wrap)
    }

    /// Serves users as a policy says.
    pub(crate) fn with_policy(
        policy: Policy,
        mtu_bytes: u32,
        wrap: impl FnOnce(TapDevice) -> Box<dyn Device>,
    ) -> Served {
        let _ = Namespace::current().unwrap().silence();
        let options = Options { name: TAP.to_owned(), offloads: true };
        // The MTU at its opening determines a device's largest packet, so the test sets the MTU
        // first.
        let made = TapDevice::open(&options).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.set_mtu(TAP, mtu_bytes).unwrap();
        let descriptor = std::os::fd::AsFd::as_fd(&made).try_clone_to_owned().unwrap();
        let device = TapDevice::from_fd(descriptor, true).unwrap();
        drop(made);
        for (address, len_bits) in [("10.77.0.1", 24), ("fd77::1", 64)] {
            let prefix = Prefix::new(address.parse().unwrap(), len_bits).unwrap();
            netlink.add_address(TAP, prefix).unwrap();
        }
        netlink.set_up(TAP).unwrap();
        let directory = Directory::make();
        let subnets = Subnets {
            ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)),
            ipv6: Some(Subnet::new("fd77::1".parse().unwrap(), 64)),
        };
        let socket = Some(directory.0.join("tap.sock"));
        let config = Config { socket, subnets, policy, ..Config::default() };
        let server = Server::start(&config, wrap(device), Box::<MemoryStore>::default()).unwrap();
        Served { server, directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.0.join("tap.sock")
    }
}

/// A running example, which dropping kills.
pub(crate) struct Running(Child);

impl Running {
    /// Starts an example, and waits for its first line of output.
    pub(crate) fn start(program: &str, served: &Served, more: &[&Path]) -> Running {
        let mut child = Command::new(program)
            .arg(served.socket())
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let running = Running(child);
        assert!(line.contains(" at ") || line.contains("answering"), "{line:?}");
        running
    }

    /// Checks that the example has not ended.
    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the example has ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command line of words. Returns its outcome, also of a failure. Kills a command that does not
/// end within the limit.
pub(crate) fn outcome(line: &str, limit: Duration) -> Output {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (out, err) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let until = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let status = child.wait().unwrap();
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

fn reading(from: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.expect("a pipe was asked for").read_to_end(&mut bytes);
        bytes
    })
}

/// Checks that two values are equal, without printing them.
pub(crate) fn assert_same<T: AsRef<[u8]> + Debug>(one: &T, other: &T) {
    let (one, other) = (one.as_ref(), other.as_ref());
    assert_eq!(one.len(), other.len());
    assert_eq!(one.iter().zip(other).position(|(a, b)| a != b), None);
}

//! Upgrades: a server hands its sessions over to a server of another program.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{Options, Session};
use towpath_net::{Network, UdpSocket};

use crate::containers::oom_score_adj;
use crate::running::*;

const ARGUMENTS: [&str; 4] = ["--device", "tap:opA", "--address", "10.77.0.1/24"];

/// Datagrams that are on their way at most, so that no queue overflows on a slow machine.
const ON_THE_WAY: u64 = 64;

/// Installs a program at a path: another file, as a package manager does.
pub(crate) fn install(from: &str, at: &str) {
    let new = format!("{at}.new");
    std::fs::copy(from, &new).unwrap();
    std::fs::rename(&new, at).unwrap();
}

/// Returns the path of the program that a process runs; with a suffix if the file was removed since.
pub(crate) fn program_of(process: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
    path.into_os_string().into_string().ok()
}

/// A flow of numbered datagrams in one direction.
#[derive(Default)]
struct Flow {
    sent: AtomicU64,
    received: AtomicU64,
    is_over: AtomicU64,
}

/// Ends two flows when it is dropped.
struct Over<'a>([&'a Flow; 2]);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        for flow in self.0 {
            flow.is_over.store(1, Ordering::Relaxed);
        }
    }
}

impl Flow {
    /// Sends until the flow is over.
    fn send(&self, mut send: impl FnMut(&[u8])) {
        let mut number = 0u64;
        while self.is_over.load(Ordering::Relaxed) == 0 {
            if number - self.received.load(Ordering::Relaxed) >= ON_THE_WAY {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            send(&number.to_le_bytes());
            number += 1;
            self.sent.store(number, Ordering::Relaxed);
        }
        send(&u64::MAX.to_le_bytes());
    }

    /// Receives until the flow is over: each datagram once, in the order in which it was sent.
    fn receive(&self, name: &str, mut receive: impl FnMut() -> [u8; 8]) {
        for expected in 0.. {
            let number = u64::from_le_bytes(receive());
            if number == u64::MAX {
                assert_eq!(expected, self.sent.load(Ordering::Relaxed), "lost at the end");
                return;
            }
            assert_eq!(number, expected, "{name}: lost, duplicated or out of order");
            self.received.store(expected + 1, Ordering::Relaxed);
        }
    }
}

/// Sends and receives datagrams between an application and the kernel while `upgrade` runs.
pub(crate) fn under_traffic(socket: &str, upgrade: impl FnOnce(&dyn Fn())) {
    let network = Network::attach(socket).unwrap();
    let own = network.addresses().into_iter().find(std::net::IpAddr::is_ipv4).unwrap();
    let application = UdpSocket::bind(&network, (own, 5000)).unwrap();
    let kernel = std::net::UdpSocket::bind("10.77.0.1:5000").unwrap();
    kernel.set_read_timeout(Some(LIMIT)).unwrap();
    application.set_read_timeout(Some(LIMIT)).unwrap();
    let to_kernel: SocketAddr = "10.77.0.1:5000".parse().unwrap();
    // Both know the other's link address from here on: until then, few packets wait for it.
    kernel.send_to(&[0; 8], (own, 5000)).unwrap();
    assert_eq!(application.recv_from(&mut [0; 8]).unwrap(), (8, to_kernel));
    application.send_to(&[0; 8], to_kernel).unwrap();
    assert_eq!(kernel.recv(&mut [0; 8]).unwrap(), 8);
    let (out, back) = (Flow::default(), Flow::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            out.send(|bytes| assert_eq!(application.send_to(bytes, to_kernel).unwrap(), 8));
        });
        scope.spawn(|| {
            out.receive("to the kernel", || {
                let mut bytes = [0; 8];
                assert_eq!(kernel.recv(&mut bytes).unwrap(), 8);
                bytes
            });
        });
        scope.spawn(|| {
            back.send(|bytes| assert_eq!(kernel.send_to(bytes, (own, 5000)).unwrap(), 8));
        });
        scope.spawn(|| {
            back.receive("to the application", || {
                let mut bytes = [0; 8];
                assert_eq!(application.recv_from(&mut bytes).unwrap().0, 8);
                bytes
            });
        });
        let goes_on = || {
            for flow in [&out, &back] {
                let before = flow.received.load(Ordering::Relaxed);
                until("the flow goes on", || {
                    flow.received.load(Ordering::Relaxed) >= before + 2 * ON_THE_WAY
                });
            }
        };
        let _over = Over([&out, &back]);
        goes_on();
        upgrade(&goes_on);
        goes_on();
    });
}

/// An upgrade loses no packet, duplicates none, and changes the order of none.
#[test]
fn an_upgrade_loses_and_duplicates_nothing() {
    towpath_testkit::isolated!(|| {
        if !tun("upgrading::an_upgrade_loses_and_duplicates_nothing") {
            return;
        }
        let directory = Directory::new();
        let program = directory.text("towpath");
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let mut server = serve_from(&program, &directory, "s.sock", &ARGUMENTS);
        under_traffic(&server.socket, |goes_on| {
            for count in 1..=10 {
                install(env!("CARGO_BIN_EXE_towpath"), &program);
                let said = prints(&mut towpath(&["upgrade", &server.socket]));
                assert!(
                    said.ends_with("the server and its keeper run the installed program\n"),
                    "{said}"
                );
                assert_eq!(server.log().matches("upgrade: the new server serves").count(), count);
                // The keeper is the same process, of the new program. It is the only child's parent.
                assert_eq!(program_of(server.child.id()), Some(program.clone()));
                assert!(server.server().is_some());
                goes_on();
            }
            // A server that is killed is followed by one of the new program.
            std::fs::remove_file(&program).unwrap();
            let text = fails(&mut towpath(&["upgrade", &server.socket]), 1);
            assert!(text.contains("install the new program at this path"), "{text}");
        });
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        server.kill_server();
        assert!(session.wait(Some(LIMIT)).unwrap());
        assert_eq!(session.statistics().resumptions, 1);
        // The keeper's new program also starts servers with a higher `oom_score_adj`.
        let next = server.server().unwrap().as_raw_nonzero().get();
        let keepers = oom_score_adj(server.child.id() as i32);
        assert_eq!(oom_score_adj(next), (keepers + 50).min(1000));
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A program that was started by a link is the one to which the link leads at the upgrade.
#[test]
fn a_link_to_the_program_is_followed() {
    towpath_testkit::isolated!(|| {
        if !tun("upgrading::a_link_to_the_program_is_followed") {
            return;
        }
        let directory = Directory::new();
        let (old, new, link) =
            (directory.text("old"), directory.text("new"), directory.text("towpath"));
        for program in [&old, &new] {
            install(env!("CARGO_BIN_EXE_towpath"), program);
        }
        std::os::unix::fs::symlink(&old, &link).unwrap();
        let mut server = serve_from(&link, &directory, "s.sock", &ARGUMENTS);
        assert_eq!(program_of(server.child.id()), Some(old));
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&new, &link).unwrap();
        prints(&mut towpath(&["upgrade", &server.socket]));
        assert_eq!(program_of(server.child.id()), Some(new.clone()));
        let process = server.server().unwrap().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(program_of(process), Some(new));
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A program that does not serve is followed by the one of before.
#[test]
fn an_upgrade_to_a_program_that_does_not_serve_is_undone() {
    towpath_testkit::isolated!(|| {
        if !tun("upgrading::an_upgrade_to_a_program_that_does_not_serve_is_undone") {
            return;
        }
        let directory = Directory::new();
        let program = directory.text("towpath");
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let mut server = serve_from(&program, &directory, "s.sock", &ARGUMENTS);
        let text = directory.text("text");
        std::fs::write(&text, "no program").unwrap();
        under_traffic(&server.socket, |goes_on| {
            for (wrong, why) in [
                ("/bin/false", "did not serve: the server ended with exit code 1"),
                (&text, "does not start"),
            ] {
                install(wrong, &program);
                let said = fails(&mut towpath(&["upgrade", &server.socket]), 1);
                assert!(said.contains(why), "{said}");
                assert!(
                    said.contains("the keeper starts a server of the previous program"),
                    "{said}"
                );
                goes_on();
            }
            install(env!("CARGO_BIN_EXE_towpath"), &program);
            prints(&mut towpath(&["upgrade", &server.socket]));
        });
        assert!(server.stop(Signal::TERM).success());
    });
}

/// So it is for a keeper that follows no killed server by another one.
#[test]
fn an_upgrade_without_hold_is_undone_too() {
    towpath_testkit::isolated!(|| {
        if !tun("upgrading::an_upgrade_without_hold_is_undone_too") {
            return;
        }
        let directory = Directory::new();
        let program = directory.text("towpath");
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let arguments = [&ARGUMENTS[..], &["--hold", "0"]].concat();
        let mut server = serve_from(&program, &directory, "s.sock", &arguments);
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        for resumptions in 1..=2 {
            install("/bin/false", &program);
            fails(&mut towpath(&["upgrade", &server.socket]), 1);
            while session.statistics().resumptions < resumptions {
                assert!(session.wait(Some(LIMIT)).unwrap());
            }
        }
        assert!(server.stop(Signal::TERM).success());
    });
}

/// Users other than the server's and root may not upgrade.
#[test]
fn upgrades_that_are_refused() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "upgrading::upgrades_that_are_refused";
        let directory = Directory::new();
        let nothing = directory.text("nothing.sock");
        let text = fails(&mut towpath(&["upgrade", &nothing]), 1);
        assert!(text.contains("no server runs here"), "{text}");
        if !tun(TEST) {
            return;
        }
        let server = serve(&directory, "s.sock", &ARGUMENTS);
        if let Some(users) = other_users(TEST) {
            let upgrade = ["upgrade", &server.socket];
            let text = fails(&mut towpath_as(Some(&users.applications[0]), &upgrade), 1);
            assert!(text.contains("run as root or as the server's user"), "{text}");
        }
    });
}

//! A restart of the service: the keeper leaves everything to the service manager's descriptor store,
//! and the next one goes on. The service manager is this test; the package's tests have systemd.

use std::collections::HashSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use towpath_client::{Lost, Options, Session};
use towpath_testkit::with_descriptors;

use crate::beside_the_kernel::{FAR, NEAR, device, may_attach};
use crate::interface_changes::rename;
use crate::networks::wire;
use crate::running::*;
use crate::serving::link_exists;
use crate::upgrading::under_traffic;

const ARGUMENTS: [&str; 5] = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--fd-store"];

/// A service manager's store.
struct Manager {
    path: String,
    held: Arc<Mutex<Vec<(String, OwnedFd)>>>,
}

impl Manager {
    /// Starts a service manager whose store holds at most `room` descriptors.
    fn start(directory: &Directory, room: usize) -> Manager {
        let path = directory.text("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let held = Arc::new(Mutex::new(Vec::new()));
        let store = held.clone();
        std::thread::spawn(move || {
            loop {
                let (text, descriptors) = receive(&socket);
                let lines: HashSet<&str> = text.lines().collect();
                let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
                let mut held = store.lock().unwrap();
                if lines.contains("FDSTORE=1") {
                    assert!(lines.contains("FDPOLL=0"), "{text}");
                    let name = name.unwrap();
                    assert!(!name.contains(':') && name.len() <= 255, "{name}");
                    held.extend(descriptors.into_iter().map(|one| (name.to_owned(), one)));
                    held.truncate(room);
                } else if lines.contains("FDSTOREREMOVE=1") {
                    held.retain(|(one, _)| one != name.unwrap());
                }
            }
        });
        Manager { path, held }
    }

    fn count(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Closes everything, as at the stop of a service.
    fn close(&self) {
        self.held.lock().unwrap().clear();
    }

    /// Starts the service with what the store has.
    fn serve(&self, directory: &Directory, arguments: &[&str]) -> Running {
        let held = self.held.lock().unwrap();
        let names: Vec<_> = held.iter().map(|(name, _)| name.as_str()).collect();
        // The shell knows the service's process number, which becomes the program's.
        let mut command: Command = plain("/bin/sh");
        let script = "export LISTEN_PID=$$; exec \"$0\" \"$@\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_towpath")]);
        command.env("NOTIFY_SOCKET", &self.path);
        let objects = held.iter().map(|(_, object)| object.try_clone().unwrap()).collect();
        with_descriptors(&mut command, objects);
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        let starting = Starting::with(command, directory, "s.sock", arguments);
        // The service asks the manager to close its copies before it serves. The command's copies are
        // closed as well.
        drop(held);
        starting.ready().unwrap_or_else(|said| panic!("{said}"))
    }
}

/// Receives a message with its descriptors.
fn receive(socket: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    let received = recvmsg(
        socket,
        &mut [std::io::IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    let count = received.unwrap().bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    (String::from_utf8_lossy(&bytes[..count]).into_owned(), descriptors)
}

/// Sends SIGTERM, and waits until the keeper has ended.
fn end(server: &Running) {
    signal(&server.child, Signal::TERM);
    until("the keeper ends", || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()));
        status.is_ok_and(|status| status.contains("State:\tZ"))
    });
}

/// A restart loses no datagram, repeats none, and changes the order of none.
#[test]
fn a_restart_of_the_service_loses_and_duplicates_nothing() {
    towpath_testkit::isolated!(|| {
        if !tun("restarting::a_restart_of_the_service_loses_and_duplicates_nothing") {
            return;
        }
        let directory = Directory::new();
        let manager = Manager::start(&directory, usize::MAX);
        let mut server = manager.serve(&directory, &ARGUMENTS);
        let mut quiet = Session::attach(&server.socket, &Options::default()).unwrap();
        for restarts in 1..=3 {
            let mut next = None;
            under_traffic(&server.socket, |goes_on| {
                end(&server);
                // The list, and one socket with all objects.
                assert_eq!(manager.count(), 2);
                let server = manager.serve(&directory, &ARGUMENTS);
                goes_on();
                until("the manager forgets", || manager.count() == 0);
                next = Some(server);
            });
            server = next.unwrap();
            while quiet.statistics().resumptions < restarts {
                assert!(quiet.wait(Some(LIMIT)).unwrap());
            }
        }
        // A keeper after an upgrade still leaves at SIGTERM.
        prints(&mut towpath(&["upgrade", &server.socket]));
        end(&server);
        // A stop: the service manager closes everything.
        manager.close();
        until("the interface is gone", || !link_exists("opA"));
        let error = loop {
            match quiet.wait(Some(LIMIT)) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error, Lost::ServerGone);
    });
}

/// An interface has another name than on the service's command line. The next keeper finds it by its
/// number, and so does a keeper's next program.
#[test]
fn a_renamed_interface_is_found_after_a_restart_of_the_service() {
    towpath_testkit::isolated!(|| {
        const TEST: &str =
            "restarting::a_renamed_interface_is_found_after_a_restart_of_the_service";
        if !may_attach(TEST) {
            return;
        }
        let _far = wire(&FAR, &NEAR);
        let directory = Directory::new();
        let manager = Manager::start(&directory, usize::MAX);
        let device = device("generic");
        let arguments = ["--device", &device, "--lease", "192.0.2.64/28", "--fd-store"];
        let server = manager.serve(&directory, &arguments);
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        let mut resumed = |count| {
            until("the session goes on", || {
                session.wait(Some(LIMIT)).unwrap();
                session.statistics().resumptions == count
            });
        };
        rename("uplink", "lan0");
        end(&server);
        let server = manager.serve(&directory, &arguments);
        resumed(1);
        rename("lan0", "lan1");
        prints(&mut towpath(&["upgrade", &server.socket]));
        resumed(2);
        until("the new program goes on", || server.log().contains("the keeper goes on with"));
        rename("lan1", "lan2");
        server.kill_server();
        resumed(3);
        assert_eq!(server.report()["device"]["name"], "lan2");
        assert!(!server.log().contains("before it served"), "{}", server.log());
        end(&server);
    });
}

/// A keeper of another device, and one that does not get everything, say so, and serve.
#[test]
fn objects_of_another_device_or_without_a_list_are_closed() {
    towpath_testkit::isolated!(|| {
        if !tun("restarting::objects_of_another_device_or_without_a_list_are_closed") {
            return;
        }
        let directory = Directory::new();
        let manager = Manager::start(&directory, usize::MAX);
        let server = manager.serve(&directory, &ARGUMENTS);
        let _session = Session::attach(&server.socket, &Options::default()).unwrap();
        end(&server);
        let other = ["--device", "tap:opB", "--address", "10.78.0.1/24", "--fd-store"];
        let mut server = manager.serve(&directory, &other);
        assert!(server.log().contains("they are of tap:opA, and this keeper serves tap:opB"));
        assert_eq!(manager.count(), 0);
        assert!(!link_exists("opA") && link_exists("opB"));
        assert!(server.report()["sessions"].as_array().unwrap().is_empty());
        end(&server);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        manager.close();

        let directory = Directory::new();
        let manager = Manager::start(&directory, 1);
        let server = manager.serve(&directory, &ARGUMENTS);
        let _session = Session::attach(&server.socket, &Options::default()).unwrap();
        end(&server);
        assert_eq!(manager.count(), 1);
        let server = manager.serve(&directory, &ARGUMENTS);
        assert!(server.log().contains("a larger FileDescriptorStoreMax="), "{}", server.log());
        Session::attach(&server.socket, &Options::default()).unwrap();
        end(&server);
    });
}

/// Without a service manager, a server with the option says so, and ends in order.
#[test]
fn without_a_service_manager_the_sessions_end() {
    towpath_testkit::isolated!(|| {
        if !tun("restarting::without_a_service_manager_the_sessions_end") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        assert!(server.log().contains("--fd-store has no effect"), "{}", server.log());
        let mut session = Session::attach(&server.socket, &Options::default()).unwrap();
        assert!(server.stop(Signal::TERM).success());
        assert!(!link_exists("opA"));
        assert!(session.wait(Some(LIMIT)).is_err());
    });
}

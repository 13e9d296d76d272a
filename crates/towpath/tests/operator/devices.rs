//! `towpath up`: several devices of one keeper.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use towpath_client::{Lost, Options, Session};

use crate::beside_the_kernel::{FAR, NEAR, may_attach, sockets, user};
use crate::keeping::{OF_A_START, check_rights, filters_of, table_of_rights};
use crate::networks::wire;
use crate::running::*;
use crate::serving::link_exists;
use crate::upgrading::{install, program_of, under_traffic};

/// A keeper of several devices, all of which serve or have failed. Dropping it kills the keeper, and
/// the servers end with it.
struct Up {
    child: Child,
    log: PathBuf,
    /// What the keeper wrote when it was ready.
    ready: String,
}

impl Up {
    /// Starts the command with a file, and waits until it is ready.
    fn start(directory: &Directory, file: &str) -> Up {
        Up::of(env!("CARGO_BIN_EXE_towpath"), directory, file)
    }

    /// Starts a program that is elsewhere, as [`Up::start`] does.
    fn of(program: &str, directory: &Directory, file: &str) -> Up {
        Up::with(plain("/bin/sh"), program, directory, file)
    }

    /// Starts a program by a shell, as [`Up::start`] does.
    fn with(mut shell: Command, program: &str, directory: &Directory, file: &str) -> Up {
        let (path, log) = (directory.text("up.toml"), directory.join("up.log"));
        fs::write(&path, file).unwrap();
        // The keeper closes the descriptor, which is none of its standard streams.
        let mut child = shell
            .args(["-c", "exec \"$0\" \"$@\" 3>&1 >&2", program])
            .args(["up", "--config", &path, "--ready-fd", "3"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        child.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
        Up { child, log, ready }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the server's process of an interface; `None` if there is none now.
    fn server(&self, interface: &str) -> Option<Pid> {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        let is_it = |child: &&str| {
            let line = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            line.starts_with(&format!("towpath\0server\0{interface}\0"))
        };
        let server = children.split_whitespace().find(is_it)?;
        Pid::from_raw(server.parse().ok()?)
    }

    fn kill_server(&self, interface: &str) {
        let server = self.server(interface).expect("there is a server");
        let process = pidfd_open(server, PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&process, Signal::KILL).unwrap();
    }

    fn stop(&mut self, by: Signal) -> ExitStatus {
        signal(&self.child, by);
        wait(&mut self.child)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the servers logged:\n{}", self.log());
        }
    }
}

/// Returns what the keeper of a socket tells.
fn told(socket: &str) -> Value {
    let text = prints(&mut towpath(&["ls", "--json", "--socket", socket]));
    serde_json::from_str::<Value>(&text).unwrap()["keeper"].take()
}

/// Returns a file with two TAPs, opA and opB, with the sockets a.sock and b.sock.
fn two(directory: &Directory, of_a: &str, of_b: &str) -> String {
    let (a, b) = (directory.text("a.sock"), directory.text("b.sock"));
    format!(
        "confine = \"kill\"\n\
         [[device]]\ndevice = \"tap:opA\"\naddress = [\"10.77.0.1/24\"]\nsocket = \"{a}\"\n{of_a}\n\
         [[device]]\ndevice = \"tap:opB\"\naddress = [\"10.78.0.1/24\"]\nsocket = \"{b}\"\n{of_b}\n"
    )
}

fn quiet(socket: &str) -> Session {
    Session::attach(socket, &Options::default()).unwrap()
}

/// Waits until a session has been resumed so often.
fn resumed(session: &mut Session, resumptions: u64) {
    while session.statistics().resumptions < resumptions {
        assert!(session.wait(Some(LIMIT)).unwrap());
    }
}

/// A killed server's sessions are resumed, and the traffic of the other device does not notice.
#[test]
fn a_killed_server_leaves_the_other_device_alone() {
    towpath_testkit::isolated!(|| {
        if !tun("devices::a_killed_server_leaves_the_other_device_alone") {
            return;
        }
        let directory = Directory::new();
        let (a, b) = (directory.text("a.sock"), directory.text("b.sock"));
        let mut up = Up::start(&directory, &two(&directory, "", ""));
        assert_eq!(up.ready, format!("ready opA {a}\nready opB {b}\n"));
        let (of_a, mut of_b) = (quiet(&a), quiet(&b));
        under_traffic(&a, |goes_on| {
            for resumptions in 1..=3 {
                up.kill_server("opB");
                resumed(&mut of_b, resumptions);
                goes_on();
            }
        });
        assert_eq!(of_a.statistics().resumptions, 0);
        until("the keeper tells", || told(&b)["state"] == "serving");
        let (of_a, of_b) = (told(&a), told(&b));
        assert_eq!((of_a["restarts"].as_u64(), of_b["restarts"].as_u64()), (Some(0), Some(3)));
        assert!(of_a["last_end"].is_null());
        assert_eq!(of_b["last_end"]["reason"], "the server was killed by signal 9");
        assert_eq!(of_b["keeper"], up.child.id());
        assert_eq!(of_b["version"], env!("CARGO_PKG_VERSION"));
        let shown = prints(&mut towpath(&["stat", "--socket", &b]));
        assert!(
            shown.contains("3 restarts; last end: the server was killed by signal 9"),
            "{shown}"
        );
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
        assert!(!link_exists("opA") && !link_exists("opB"));
        let left = fs::read_dir(directory.join("")).unwrap().map(|one| one.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("sock")).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// `towpath ls` without a name shows all devices, also one that has failed.
#[test]
fn ls_shows_all_devices() {
    towpath_testkit::isolated!(|| {
        let test = "devices::ls_shows_all_devices";
        if !tun(test) {
            return;
        }
        let directory = Directory::new();
        let file = two(&directory, "", "").replace(&directory.text(""), "/run/towpath/");
        let file = file.replace("a.sock", "opA.sock");
        hide_servers();
        // A server cannot lock a directory.
        let lock = Path::new("/run/towpath/b.sock.lock");
        fs::create_dir_all(lock).unwrap();
        let mut up = Up::start(&directory, &file);
        let listed = prints(&mut towpath(&["ls"]));
        let json = prints(&mut towpath(&["ls", "--json"]));
        let refused = fails(&mut towpath(&["stat", "--device", "b"]), 1);
        fs::remove_dir(lock).unwrap();
        until("the failed device serves", || {
            let listed = prints(&mut towpath(&["ls"]));
            listed.lines().any(|line| line.starts_with("opB ") && line.contains("serving"))
        });
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
        assert_eq!(fs::read_dir("/run/towpath").unwrap().count(), 0);
        let said = listed + &refused;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 4, "{said}");
        let column = |line: &str, name: &str| line[lines[0].find(name).unwrap()..].to_owned();
        assert!(column(lines[1], "STATE").starts_with("failed"), "{said}");
        assert!(lines[1].starts_with("opB ") && lines[2].starts_with("opA "), "{said}");
        let why = column(lines[1], "LAST END");
        assert!(
            why.starts_with("the server ended with exit code 1: ") && why.contains("b.sock"),
            "{said}"
        );
        assert!(column(lines[2], "STATE").starts_with("serving"), "{said}");
        assert_eq!(column(lines[2], "LAST END"), "-");
        assert!(
            lines[3].contains("opB: no server serves now (failed): the server ended"),
            "{said}"
        );
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["devices"][0]["keeper"]["state"], "failed");
        assert_eq!(json["devices"][1]["device"]["name"], "opA");
    });
}

/// A device that fails is tried again, with the rights of a start. Its sessions end, and those of the
/// other device go on.
#[test]
fn a_device_that_fails_is_tried_again() {
    towpath_testkit::isolated!(|| {
        if !tun("devices::a_device_that_fails_is_tried_again") {
            return;
        }
        const NET_ADMIN: u64 = 1 << 12;
        let directory = Directory::new();
        let (a, b) = (directory.text("a.sock"), directory.text("b.sock"));
        let lock = directory.join("b.sock.lock");
        // A server cannot lock a directory.
        fs::create_dir(&lock).unwrap();
        let mut up = Up::start(&directory, &two(&directory, "", "hold = 1"));
        assert_eq!(up.ready, format!("ready opA {a}\n"));
        assert_eq!(told(&b)["state"], "failed");
        check_rights(up.child.id(), NET_ADMIN, NET_ADMIN);
        let mut of_a = quiet(&a);
        until("another start", || told(&b)["restarts"].as_u64() >= Some(2));
        let reason = told(&b)["last_end"]["reason"].as_str().unwrap().to_owned();
        assert!(reason.starts_with("the server ended with exit code 1: "), "{reason}");
        assert!(reason.contains("b.sock: Is a directory"), "{reason}");
        fs::remove_dir(&lock).unwrap();
        until("it serves", || told(&b)["state"] == "serving");
        // The other server does not make its interface.
        up.kill_server("opA");
        until("it serves", || told(&a)["restarts"] == 1 && told(&a)["state"] == "serving");
        check_rights(up.child.id(), NET_ADMIN, 0);
        // No server serves for the time of `hold`: its sessions end, and it serves anew.
        let mut of_b = quiet(&b);
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        up.kill_server("opB");
        until("the device has failed", || told(&b)["state"] == "failed");
        until("the interface is gone", || !link_exists("opB"));
        let lost = loop {
            match of_b.wait(Some(LIMIT)) {
                Ok(_) => {}
                Err(lost) => break lost,
            }
        };
        assert_eq!(lost, Lost::ServerGone);
        resumed(&mut of_a, 1);
        fs::remove_dir(&lock).unwrap();
        until("it serves", || told(&b)["state"] == "serving");
        assert!(link_exists("opB"));
        quiet(&b);
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
    });
}

/// SIGHUP is for the devices with a policy, and a second SIGTERM for servers that hang.
#[test]
fn signals_are_for_all_devices() {
    towpath_testkit::isolated!(|| {
        if !tun("devices::signals_are_for_all_devices") {
            return;
        }
        let directory = Directory::new();
        let policy = directory.text("policy.toml");
        fs::write(&policy, "").unwrap();
        let file = two(&directory, &format!("policy = \"{policy}\""), "");
        let mut up = Up::start(&directory, &file);
        signal(&up.child, Signal::HUP);
        until("a reload", || up.log().contains("policy reloaded"));
        let (_of_a, mut of_b) =
            (quiet(&directory.text("a.sock")), quiet(&directory.text("b.sock")));
        rustix::process::kill_process(up.server("opA").unwrap(), Signal::STOP).unwrap();
        signal(&up.child, Signal::TERM);
        while of_b.wait(Some(LIMIT)).is_ok() {}
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(up.stop(Signal::TERM).code(), Some(1), "a killed server");
        // Without any policy, SIGHUP ends all.
        let mut up = Up::start(&directory, &two(&directory, "", ""));
        assert!(up.stop(Signal::HUP).success(), "{}", up.log());
        assert!(!link_exists("opA") && !link_exists("opB"));
    });
}

/// The service manager is told by the keeper alone: of all devices together.
#[test]
fn the_service_manager_hears_of_all_devices_together() {
    towpath_testkit::isolated!(|| {
        if !tun("devices::the_service_manager_hears_of_all_devices_together") {
            return;
        }
        let directory = Directory::new();
        let manager = UnixDatagram::bind(directory.join("notify")).unwrap();
        manager.set_read_timeout(Some(LIMIT)).unwrap();
        let notification = || {
            let mut bytes = [0; 128];
            let length = manager.recv(&mut bytes).unwrap();
            text(&bytes[..length])
        };
        let policy = directory.text("policy.toml");
        fs::write(&policy, "").unwrap();
        let mut shell = plain("/bin/sh");
        shell.env("NOTIFY_SOCKET", directory.text("notify"));
        let file = two(&directory, &format!("policy = \"{policy}\""), "");
        let mut up = Up::with(shell, env!("CARGO_BIN_EXE_towpath"), &directory, &file);
        assert_eq!(notification(), "READY=1\n");
        signal(&up.child, Signal::HUP);
        until("a reload", || up.log().contains("policy reloaded"));
        // A server that ends by itself is no end of the service.
        rustix::process::kill_process(up.server("opB").unwrap(), Signal::TERM).unwrap();
        until("another server", || {
            told(&directory.text("b.sock"))["restarts"] == 1
                && told(&directory.text("b.sock"))["state"] == "serving"
        });
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
        assert_eq!(notification(), "STOPPING=1\n");
        manager.set_nonblocking(true).unwrap();
        assert!(manager.recv(&mut [0; 128]).is_err());
    });
}

/// A wrong file, or a device that is served already, ends the command before it serves anything.
#[test]
fn a_wrong_file_starts_nothing() {
    towpath_testkit::isolated!(|| {
        let directory = Directory::new();
        let path = directory.text("up.toml");
        let up = |arguments: &[&str]| towpath(&[&["up", "--config", &path], arguments].concat());
        let said = fails(&mut up(&["--check"]), 2);
        assert!(said.contains("up.toml: No such file"), "{said}");
        for (text, part) in [
            ("[[device]]\ndevice = \"tap:opA\"\nmut = 1\n", "up.toml:3: unknown key `mut`"),
            (
                "[[device]]\ndevice = \"tap:opA\"\n[[device]]\ndevice = \"tap:opA\"\n",
                "up.toml:4: line 2 has a table for opA already",
            ),
            (
                "[[device]]\ndevice = \"tap:opA\"\n[[device]]\ndevice = \"tap:opB\"\nlanes = 2\n",
                "up.toml:4: --lanes 2: TAP interfaces",
            ),
            (
                "[[device]]\ndevice = \"tap:opA\"\npolicy = \"/etc/no/such\"\n",
                "up.toml:2: /etc/no/such: No such file",
            ),
        ] {
            fs::write(&path, text).unwrap();
            for arguments in [&["--check"][..], &[]] {
                let said = fails(&mut up(arguments), 2);
                assert!(said.contains(part), "{said}");
            }
        }
        fs::write(&path, two(&directory, "", "")).unwrap();
        let said = prints(&mut up(&["--check"]));
        assert!(said.ends_with("up.toml: 2 devices: tap:opA, tap:opB\n"), "{said}");
        if !tun("devices::a_wrong_file_starts_nothing") {
            return;
        }
        let mut server = serve(&directory, "b.sock", &["--device", "tap:opC"]);
        let said = fails(&mut up(&[]), 1);
        assert!(said.contains("up.toml:8: ") && said.contains("another server serves"), "{said}");
        assert!(!link_exists("opA"));
        assert!(server.stop(Signal::TERM).success());
    });
}

/// Each device is upgraded by itself.
#[test]
fn devices_are_upgraded_one_after_the_other() {
    towpath_testkit::isolated!(|| {
        if !tun("devices::devices_are_upgraded_one_after_the_other") {
            return;
        }
        let directory = Directory::new();
        let program = directory.text("towpath");
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let mut up = Up::of(&program, &directory, &two(&directory, "", ""));
        let (a, b) = (directory.text("a.sock"), directory.text("b.sock"));
        let mut of_b = quiet(&b);
        under_traffic(&a, |goes_on| {
            for (upgrades, socket) in [(1, &a), (2, &b), (3, &b), (4, &a)] {
                install(env!("CARGO_BIN_EXE_towpath"), &program);
                let said = prints(&mut towpath(&["upgrade", socket]));
                assert!(
                    said.ends_with("the server and its keeper run the installed program\n"),
                    "{said}"
                );
                assert_eq!(up.log().matches("upgrade: the new server serves").count(), upgrades);
                assert_eq!(program_of(up.child.id()), Some(program.clone()));
                goes_on();
            }
        });
        // It slept through both upgrades.
        resumed(&mut of_b, 1);
        let mut of_a = quiet(&a);
        up.kill_server("opA");
        resumed(&mut of_a, 1);
        assert_eq!(told(&a)["restarts"], 1);
        assert_eq!(told(&b)["restarts"], 0);
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
    });
}

/// The keeper has the rights of all of its devices together, and a server starts with those of its own.
#[test]
fn the_keeper_has_the_rights_of_its_devices() {
    towpath_testkit::isolated!(|| {
        const TEST: &str = "devices::the_keeper_has_the_rights_of_its_devices";
        if !may_attach(TEST) || !tun(TEST) {
            return;
        }
        let _far = wire(&FAR, &NEAR);
        let directory = sockets();
        let (a, b) = (directory.text("a.sock"), directory.text("b.sock"));
        let file = format!(
            "user = \"{}\"\nconfine = \"kill\"\n\
             [[device]]\ndevice = \"tap:opA\"\naddress = [\"10.77.0.1/24\"]\nsocket = \"{a}\"\n\
             [[device]]\ndevice = \"packet:uplink\"\nshare-host = true\nsocket = \"{b}\"\n",
            user()
        );
        let mut up = Up::start(&directory, &file);
        assert_eq!(up.ready.lines().count(), 2, "{}", up.log());
        let rows = table_of_rights();
        let expected = rows.iter().filter(|(process, device, _)| {
            process == "keeper"
                && ["`tap`", "`packet` or `xdp` with `--share-host`"].contains(&&**device)
        });
        let expected = expected.fold(0, |all, (.., rights)| all | rights);
        check_rights(up.child.id(), expected, OF_A_START);
        assert!(filters_of(up.child.id()) > 0);
        let mut sessions = [quiet(&a), quiet(&b)];
        for (interface, session) in ["opA", "uplink"].into_iter().zip(&mut sessions) {
            up.kill_server(interface);
            resumed(session, 1);
            let server = up.server(interface).unwrap().as_raw_nonzero().get() as u32;
            check_rights(server, 0, 0);
        }
        // The last server that started was one with the rights of a start.
        check_rights(up.child.id(), expected, OF_A_START);
        up.kill_server("opA");
        resumed(&mut sessions[0], 2);
        check_rights(up.child.id(), expected, 0);
        assert!(up.stop(Signal::TERM).success(), "{}", up.log());
    });
}

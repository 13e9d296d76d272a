//! The two sockets of a server: that of applications, over which root has no more rights than the policy grants, and
//! that of administrators.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets};
use towpath_client::{
    AttachError, Lost, OpenError, Options, QueuePair, Rule, Session, Setting, Sharing,
};

use crate::policies::as_user;
use crate::running::*;
use crate::upgrading::install;

const TAP: [&str; 4] = ["--device", "tap:opA", "--address", "10.77.0.1/24"];

/// Makes the applications' socket, and no other file, available in another directory, as a container has it by a
/// bind mount of this file.
fn mounted(server: &Running, directory: &Directory) -> String {
    let place = directory.join("container");
    std::fs::create_dir_all(&place).unwrap();
    let socket = place.join("s.sock");
    std::fs::hard_link(&server.socket, &socket).unwrap();
    socket.to_str().unwrap().to_owned()
}

/// Calls a function as root without capabilities, as the root user of a container is.
fn without_capabilities<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    let by_root = move || {
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).unwrap();
        assert_eq!(rustix::process::geteuid().as_raw(), 0);
        call()
    };
    std::thread::scope(|scope| scope.spawn(by_root).join().unwrap())
}

fn attach(socket: &str, endpoints: u32) -> Result<Session, AttachError> {
    Session::attach(socket, &Options { endpoints, ..Options::default() })
}

fn refused(attached: Result<Session, AttachError>) -> String {
    match attached {
        Err(AttachError::Refused { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

fn may_not(session: &mut Session, rule: &Rule) -> String {
    match session.open(rule) {
        Err(OpenError::Refused { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

fn warnings(server: &Running) -> usize {
    server.log().matches(" WARN refused: ").count()
}

#[test]
fn root_without_a_grant_is_refused_at_the_applications_socket() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::root_without_a_grant_is_refused_at_the_applications_socket") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &TAP);
        let container = mounted(&server, &directory);
        let said = without_capabilities(|| refused(attach(&container, 4)));
        assert!(said.contains("user 0") && said.contains("SOCKET.admin"), "{said}");
        for arguments in [
            &["set", &container, "wait=poll"][..],
            &["capture", &container, "-w", "/dev/null", "-c", "1"],
            &["stat", &container],
        ] {
            let said = fails(&mut towpath(arguments), 1);
            assert!(said.contains("SOCKET.admin"), "{arguments:?}: {said}");
        }
        let said = fails(&mut towpath(&["upgrade", &container]), 1);
        assert!(said.contains("s.sock.keeper") && said.contains("administrator"), "{said}");
        assert_eq!(server.report()["device"]["wait"], "spin-then-block");
        // One line a minute, with the path that helps.
        assert_eq!(warnings(&server), 1, "{}", server.log());
        assert!(server.log().contains(&format!("{}.admin", server.socket)), "{}", server.log());

        // By the path in its directory, and by that of the administration socket, root administers.
        for path in [server.socket.clone(), format!("{}.admin", server.socket)] {
            prints(&mut towpath(&["set", &path, "wait=poll"]));
            let mut session = attach(&path, 4).unwrap();
            session.open(&Rule::promiscuous()).unwrap();
            prints(&mut towpath(&["set", &path, "wait=block"]));
            assert_eq!(server.report()["device"]["wait"], "block");
        }
        let link = directory.text("link");
        std::os::unix::fs::symlink(&server.socket, &link).unwrap();
        prints(&mut towpath(&["set", &link, "wait=poll"]));
        assert_eq!(warnings(&server), 1, "{}", server.log());
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A grant to the user 0, of one endpoint more than a capture and a rule need.
const POLICY: &str = "[[grant]]\nusers = [0]\nendpoints-per-session = 3\ncapture = true\n";

#[test]
fn root_has_the_terms_of_its_grant_at_the_applications_socket() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::root_has_the_terms_of_its_grant_at_the_applications_socket") {
            return;
        }
        let directory = Directory::new();
        let policy = directory.text("policy.toml");
        std::fs::write(&policy, POLICY).unwrap();
        let server = serve(&directory, "s.sock", &[&TAP[..], &["--policy", &policy]].concat());
        let container = mounted(&server, &directory);
        let of_host = attach(&server.socket, 16).unwrap();
        without_capabilities(|| {
            let said = refused(attach(&container, 4));
            assert!(said.contains("at most 3 are allowed"), "{said}");
            let mut session = attach(&container, 3).unwrap();
            session.open(&Rule::capture()).unwrap();
            let endpoint = session.open(&Rule::new().protocol(17).port(5000)).unwrap();
            let restricted = |session: &mut Session| {
                let said = may_not(session, &Rule::promiscuous());
                assert!(said.contains("promiscuous"), "{said}");
                let refused = session.set(endpoint, Setting::Weight, 400).unwrap_err();
                assert!(refused.to_string().contains("SOCKET.admin"), "{refused}");
            };
            restricted(&mut session);
            // It sees its session, and not the administrator's of the same number.
            let seen = towpath_client::report(&container).unwrap();
            let numbers: Vec<_> =
                seen["sessions"].as_array().unwrap().iter().map(|one| &one["session"]).collect();
            assert_eq!(numbers, [&serde_json::json!(session.info().session)], "{seen}");
            assert_eq!(server.report()["sessions"].as_array().unwrap().len(), 2);

            // The next server knows by which socket a session came.
            server.kill_server();
            until("the next server serves", || server.state() == "serving");
            restricted(&mut session);
            assert_eq!(session.statistics().resumptions, 1);
            assert!(!session.is_revoked(endpoint));

            std::fs::write(&policy, "").unwrap();
            signal(&server.child, Signal::HUP);
            let lost = loop {
                // The endpoint that captures has packets.
                if let Err(lost) = session.wait(Some(LIMIT)) {
                    break lost;
                }
                if session.receiver().receive_one(QueuePair::FIRST).is_err() {
                    break session.lost().unwrap();
                }
            };
            assert_eq!(lost, Lost::Revoked, "{}", server.log());
            refused(attach(&container, 3));
        });
        let mut of_host = of_host;
        of_host.open(&Rule::promiscuous()).unwrap();
        assert_eq!(of_host.statistics().resumptions, 1);
    });
}

/// The connections and the sessions of root with a grant do not count as the administrator's.
#[test]
fn root_of_a_container_uses_up_nothing_of_the_administrators() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::root_of_a_container_uses_up_nothing_of_the_administrators") {
            return;
        }
        let directory = Directory::new();
        let options = ["--allow-user", "0", "--sessions-per-user", "2"];
        let server = serve(&directory, "s.sock", &[&TAP[..], &options].concat());
        let container = mounted(&server, &directory);
        let theirs: Vec<_> = (0..2).map(|_| attach(&container, 4).unwrap()).collect();
        let said = refused(attach(&container, 4));
        assert!(said.contains("user 0 has 2 sessions"), "{said}");
        // A user may have eight connections. These ask for nothing. One that was refused may count for a moment.
        let mut idle = Vec::new();
        until("the user's connections are used up", || {
            idle.push(connect(Path::new(&container)).unwrap());
            refused(attach(&container, 4)).contains("control connections")
        });
        let ours: Vec<_> = (0..2).map(|_| attach(&server.socket, 4).unwrap()).collect();
        prints(&mut server.subcommand("set", &["wait=block"]));
        assert_eq!(server.report()["sessions"].as_array().unwrap().len(), 4);
        drop((theirs, idle, ours));
    });
}

fn connect(path: &Path) -> std::io::Result<rustix::fd::OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[test]
fn other_users_do_not_reach_the_administration_socket() {
    towpath_testkit::isolated!(|| {
        let test = "administrators::other_users_do_not_reach_the_administration_socket";
        if !tun(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let [user, other] = users.applications.each_ref().map(|user| (user.uid, user.gid));
        let directory = Directory::new();
        let uid = user.0.to_string();
        let server = serve(&directory, "s.sock", &[&TAP[..], &["--allow-user", &uid]].concat());
        let admin = format!("{}.admin", server.socket);
        assert_eq!(std::fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
        for user in [user, other] {
            let denied = as_user(user, || connect(Path::new(&admin)).unwrap_err().kind());
            assert_eq!(denied, ErrorKind::PermissionDenied);
        }
        // The applications' socket serves the user, and refuses the other one.
        let mut session = as_user(user, || attach(&server.socket, 4).unwrap());
        let said = may_not(&mut session, &Rule::promiscuous());
        assert!(said.contains("promiscuous"), "{said}");
        let said = as_user(other, || refused(attach(&server.socket, 4)));
        assert!(said.contains("allow-user"), "{said}");
        assert_eq!(warnings(&server), 0, "{}", server.log());
    });
}

/// An ordinary user that runs a server, and owns its sockets, is its administrator.
#[test]
fn the_servers_own_user_administers() {
    towpath_testkit::isolated!(|| {
        let test = "administrators::the_servers_own_user_administers";
        if !tun(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let (uid, gid) = (users.server.uid, users.server.gid);
        let directory = Directory::new();
        std::fs::create_dir(directory.join("own")).unwrap();
        std::os::unix::fs::chown(directory.join("own"), Some(uid), Some(gid)).unwrap();
        let user = format!("{uid}:{gid}");
        let mut server = serve(&directory, "own/s.sock", &[&TAP[..], &["--user", &user]].concat());
        let container = mounted(&server, &directory);
        as_user((uid, gid), || {
            let mut session = attach(&server.socket, 4).unwrap();
            session.open(&Rule::promiscuous()).unwrap();
            let said = refused(attach(&container, 4));
            assert!(said.contains(&format!("user {uid}")), "{said}");
        });
        assert_eq!(warnings(&server), 1, "{}", server.log());
        // Root of the host also administers it.
        prints(&mut server.subcommand("set", &["wait=block"]));
        assert_eq!(std::fs::metadata(format!("{}.admin", server.socket)).unwrap().uid(), uid);
        assert!(server.stop(Signal::TERM).success());
        assert!(std::fs::read_dir(directory.join("own")).unwrap().next().is_none());
    });
}

#[test]
fn both_sockets_outlive_their_servers_and_end_with_the_keeper() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::both_sockets_outlive_their_servers_and_end_with_the_keeper") {
            return;
        }
        let directory = Directory::new();
        let program = directory.text("towpath");
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let mut server = serve_from(&program, &directory, "s.sock", &TAP);
        let sockets = [server.socket.clone(), format!("{}.admin", server.socket)];
        let inodes = || sockets.each_ref().map(|one| std::fs::metadata(one).unwrap().ino());
        let first = inodes();
        let administers = |server: &Running| {
            assert_eq!(inodes(), first);
            for socket in &sockets {
                prints(&mut towpath(&["set", socket, "wait=block"]));
            }
            assert_eq!(server.report()["device"]["wait"], "block");
        };
        administers(&server);
        let mut session = attach(&server.socket, 4).unwrap();
        server.kill_server();
        until("the next server serves", || server.state() == "serving");
        administers(&server);
        install(env!("CARGO_BIN_EXE_towpath"), &program);
        let said = prints(&mut server.subcommand("upgrade", &[]));
        assert!(said.contains("server and its keeper run the installed program"), "{said}");
        administers(&server);
        session.open(&Rule::promiscuous()).unwrap();
        drop(session);
        assert_eq!(warnings(&server), 0, "{}", server.log());

        // A killed keeper leaves both behind, and the next one takes their places.
        server.kill();
        assert!(sockets.iter().all(exists));
        let said = fails(&mut towpath(&["stat", &sockets[0]]), 1);
        assert!(said.contains("start a server"), "{said}");
        let mut server = serve_from(&program, &directory, "s.sock", &TAP);
        prints(&mut server.subcommand("set", &["wait=block"]));
        assert!(server.stop(Signal::TERM).success());
        assert!(!sockets.iter().any(exists));
    });
}

#[test]
fn the_administration_socket_has_the_path_of_an_option() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::the_administration_socket_has_the_path_of_an_option") {
            return;
        }
        let directory = Directory::new();
        std::fs::create_dir(directory.join("sockets")).unwrap();
        let admin = directory.text("admin/s.sock.admin");
        let options = [&TAP[..], &["--admin-socket", &admin]].concat();
        let mut server = serve(&directory, "sockets/s.sock", &options);
        let names = |place: &str| {
            let entries = std::fs::read_dir(directory.join(place)).unwrap();
            let mut names: Vec<_> =
                entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // A container may have the whole directory of the applications' socket.
        assert_eq!(names("sockets"), ["s.sock", "s.sock.lock", "s.sock.status"]);
        assert_eq!(names("admin"), ["s.sock.admin", "s.sock.keeper", "s.sock.lock"]);
        let said = fails(&mut towpath(&["set", &server.socket, "wait=poll"]), 1);
        assert!(said.contains("SOCKET.admin"), "{said}");
        let said = fails(&mut towpath(&["upgrade", &server.socket]), 1);
        assert!(said.contains("--admin-socket"), "{said}");
        prints(&mut towpath(&["set", &admin, "wait=poll"]));
        prints(&mut towpath(&["upgrade", &admin]));
        server.kill_server();
        until("the next server serves", || towpath_client::report(&admin).is_ok());
        let report = towpath_client::report(&admin).unwrap();
        assert_eq!(report["device"]["wait"], "poll");

        // Another server does not take this one's.
        let others = ["--device", "tap:opB", "--admin-socket", &admin];
        let said = try_serve(&directory, "other.sock", &others).err().unwrap();
        assert!(said.contains("another server serves here"), "{said}");
        prints(&mut towpath(&["set", &admin, "wait=block"]));
        assert!(server.stop(Signal::TERM).success());
        assert_eq!(names("sockets"), [""; 0]);
        assert_eq!(names("admin"), [""; 0]);
    });
}

#[test]
fn paths_of_sockets_that_no_program_could_use_are_refused() {
    let long = format!("/tmp/{}.sock", "x".repeat(100 - 10 + 7));
    assert_eq!(long.len(), 107);
    for (arguments, part) in [
        (&["--socket", "/tmp/s.admin"][..], ".admin is the end"),
        (&["--admin-socket", "/tmp/s.sock"], "give /tmp/s.sock.admin"),
        (&["--socket", &long], "113 bytes; 107 are possible"),
        (&["--socket", &long], "or give --admin-socket"),
    ] {
        let all = [&["serve", "--device", "tap:opA"], arguments].concat();
        let said = fails(&mut towpath(&all), 2);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

/// The server maps the memory of an administrator, and not that of root with a grant: a container's root could make the
/// server wait for its pages.
#[test]
fn only_the_memory_of_administrators_is_mapped() {
    towpath_testkit::isolated!(|| {
        if !tun("administrators::only_the_memory_of_administrators_is_mapped") {
            return;
        }
        let directory = Directory::new();
        let policy = directory.text("policy.toml");
        std::fs::write(&policy, POLICY).unwrap();
        let arguments = [&TAP[..], &["--policy", &policy]].concat();
        let mut server = serve(&directory, "s.sock", &arguments);
        let container = mounted(&server, &directory);
        let admin = format!("{}.admin", server.socket);
        let options = Options { oob_slots: 8, apertures: 8, endpoints: 2, ..Options::default() };
        let mapped = || {
            let pid = server.server().unwrap().as_raw_nonzero();
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            maps.matches("memfd:towpath-memory").count()
        };
        let mut administrator = Session::attach(&admin, &options).unwrap();
        let mut granted = without_capabilities(|| Session::attach(&container, &options).unwrap());
        granted.memories().create(4096, Sharing::Requests).unwrap();
        assert_eq!(mapped(), 0, "the memory of root with a grant");
        administrator.memories().create(4096, Sharing::Requests).unwrap();
        assert_eq!(mapped(), 1, "the memory of an administrator");
        drop((administrator, granted));
        assert!(server.stop(Signal::TERM).success());
    });
}

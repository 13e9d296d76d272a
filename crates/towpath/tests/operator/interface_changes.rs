//! An interface that changes under its server: another name, more or fewer hardware queues, down while a
//! server starts, deleted and made anew.

use std::net::UdpSocket as KernelSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use towpath_client::Session;
use towpath_net::{Network, SessionLink, UdpSocket};
use towpath_netlink::{Channels, Netlink, Veth};
use towpath_testkit::Namespace;

use crate::beside_the_kernel::{FAR, NEAR, device, may_attach, sockets, until_bare, user};
use crate::networks::{net, wire};
use crate::policies::attach_by;
use crate::running::*;
use crate::sharing::{ECHO, SharedUplink, remove_wire};

/// Gives an interface another name. Before Linux 6.2, it has to be down for that.
pub(crate) fn rename(name: &str, to: &str) {
    match net().rename(name, to) {
        Err(error) if error.errno() == Some(Errno::BUSY) => {
            net().set_down(name).unwrap();
            net().rename(name, to).unwrap();
            net().set_up(to).unwrap();
        }
        other => other.unwrap(),
    }
}

/// Waits until as many servers have served.
fn until_served(server: &Running, times: usize) {
    until("another server", || server.log().matches("serving device=").count() == times);
    until("the keeper knows", || server.state() == "serving");
}

/// Returns the name that `stat` and `ls` show.
fn shown(server: &Running) -> String {
    let listed = prints(&mut server.subcommand("ls", &[]));
    let line = listed.lines().nth(1).unwrap();
    let name = server.report()["device"]["name"].as_str().unwrap().to_owned();
    let stat = prints(&mut server.subcommand("stat", &[]));
    let id = server.report()["keeper"]["device"].as_str().unwrap().to_owned();
    let both = if id == name { name.clone() } else { format!("{name} ({id})") };
    assert!(stat.starts_with(&format!("{both}: ")) && line.starts_with(&both), "{stat}{listed}");
    name
}

/// A server survives another name of its interface. Later servers find the interface by its number, also if
/// another interface then has the old name.
#[test]
fn a_renamed_interface_is_followed() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::a_renamed_interface_is_followed") {
            return;
        }
        for mode in ["generic", "packet"] {
            let mut shared = SharedUplink::start(mode, &[]);
            shared.echo(ECHO);
            let asking = shared.far.run(|| KernelSocket::bind("192.0.2.200:0").unwrap()).unwrap();
            let answers =
                |shared: &SharedUplink| until("the echo answers", || shared.answers(&asking));
            answers(&shared);
            assert_eq!(shown(&shared.server), "uplink");
            rename("uplink", "lan0");
            let says = "the interface uplink has the name lan0 now";
            until("the server says so", || shared.server.log().contains(says));
            answers(&shared);
            assert_eq!(shown(&shared.server), "lan0");
            net().create_veth(&Veth::new("uplink", "other")).unwrap();
            shared.server.kill_server();
            until_served(&shared.server, 2);
            answers(&shared);
            assert_eq!(shown(&shared.server), "lan0");
            // The keeper holds the socket's port on the address of the renamed interface.
            let more = UdpSocket::bind(&shared.network, ("192.0.2.1", ECHO + 1)).unwrap();
            drop(more);
            // The name changes while no server runs and the keeper starts none.
            kill_process(Pid::from_child(&shared.server.child), Signal::STOP).unwrap();
            shared.server.kill_server();
            rename("lan0", "lan1");
            kill_process(Pid::from_child(&shared.server.child), Signal::CONT).unwrap();
            until_served(&shared.server, 3);
            answers(&shared);
            assert_eq!(shown(&shared.server), "lan1");
            let log = shared.server.log();
            assert!(log.contains("serves uplink under its name lan1"), "{mode}: {log}");
            assert!(!log.contains("before it served"), "{mode}: {log}");
            // One field has the device's name, and another one the interface's present name.
            let fields = |line: &str, key: &str| line.contains(&format!(" {key}="));
            assert!(log.lines().filter(|line| fields(line, "device")).count() > 5, "{mode}: {log}");
            for line in log.lines().filter(|line| fields(line, "device")) {
                assert!(line.contains("device=\"uplink\""), "{mode}: {line}");
            }
            for (says, name) in [
                ("has the name lan0 now", "lan0"),
                ("under its name lan1", "lan1"),
                ("serving", "lan1"),
            ] {
                let mut lines = log.lines().rev();
                let line = lines.find(|line| line.contains(&format!(" {says} "))).unwrap();
                assert!(line.contains(&format!("interface=\"{name}\"")), "{mode}: {line}");
            }
            assert_eq!(shared.server.stop(Signal::TERM).code(), Some(0), "{mode}");
            net().delete_link("lan1").unwrap();
            net().delete_link("uplink").unwrap();
        }
    });
}

/// Commands find the server by the name of its command line, and by the interface's present name.
#[test]
fn both_names_find_the_server() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::both_names_find_the_server") {
            return;
        }
        let _far = wire(&FAR, &NEAR);
        hide_servers();
        let (directory, device) = (Directory::new(), device("generic"));
        let arguments = ["--device", &device, "--share-host"];
        let server = serve(&directory, "/run/towpath/uplink.sock", &arguments);
        fails(&mut towpath(&["stat", "lan0"]), 1);
        rename("uplink", "lan0");
        until("the new name is shown", || shown(&server) == "lan0");
        for name in ["lan0", "uplink"] {
            let stat = prints(&mut towpath(&["stat", name]));
            assert!(stat.starts_with("lan0 (uplink): "), "{name}: {stat}");
        }
        net().create_veth(&Veth::new("uplink", "other")).unwrap();
        let said = fails(&mut towpath(&["stat", "other"]), 1);
        assert!(said.contains("no server of other"), "{said}");
    });
}

/// A TAP keeps its server under another name. Commands find the server by both names, and later servers keep both.
#[test]
fn a_renamed_tap_is_followed() {
    towpath_testkit::isolated!(|| {
        if !tun("interface_changes::a_renamed_tap_is_followed") {
            return;
        }
        hide_servers();
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "/run/towpath/opA.sock", &arguments);
        let found = |now: &str| {
            for name in ["opA", now] {
                let stat = prints(&mut towpath(&["stat", name]));
                assert!(stat.starts_with(&format!("{now} (opA): ")), "{name}: {stat}");
            }
        };
        let index = net().index("opA").unwrap();
        fails(&mut towpath(&["stat", "opB"]), 1);
        let mut session = Session::attach(&server.socket, &SessionLink::options("test")).unwrap();
        rename("opA", "opB");
        until("the new name is shown", || shown(&server) == "opB");
        assert!(server.log().contains("the interface opA has the name opB now"));
        until("the keeper knows", || server.report()["keeper"]["interface"] == "opB");
        found("opB");
        server.kill_server();
        assert!(session.wait(Some(LIMIT)).unwrap(), "it waits for the next server");
        until_served(&server, 2);
        assert_eq!((shown(&server), net().index("opB").unwrap()), ("opB".to_owned(), index));
        found("opB");
        crate::serving::round_trip(&server, 7);
        // The name changes while no server runs and the keeper starts none.
        kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
        server.kill_server();
        rename("opB", "opC");
        kill_process(Pid::from_child(&server.child), Signal::CONT).unwrap();
        until_served(&server, 3);
        assert_eq!(shown(&server), "opC");
        found("opC");
        assert!(server.log().contains("serves opA under its name opC"), "{}", server.log());
        assert!(server.stop(Signal::TERM).success());
        assert!(net().index("opC").is_err());
    });
}

/// Renames an interface again and again while `act` runs.
fn renaming<T>(names: [&str; 2], act: impl FnOnce() -> T) -> T {
    struct AtEnd<'a>(&'a AtomicBool);
    impl Drop for AtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let at_end = AtEnd(&is_done);
        let renaming = scope.spawn(|| {
            let mut netlink = net();
            let mut count = 0;
            while !is_done.load(Ordering::Relaxed) {
                for (name, to) in [(names[0], names[1]), (names[1], names[0])] {
                    count += usize::from(netlink.rename(name, to).is_ok());
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            count
        });
        let outcome = act();
        drop(at_end);
        assert!(renaming.join().unwrap() > 1);
        outcome
    })
}

/// A server starts also if its interface gets other names in the meantime.
#[test]
fn a_server_starts_while_its_interface_is_renamed() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::a_server_starts_while_its_interface_is_renamed") {
            return;
        }
        for mode in ["generic", "packet"] {
            let _far = wire(&FAR, &NEAR);
            let (directory, device) = (Directory::new(), device(mode));
            let server = serve(&directory, "s.sock", &["--device", &device, "--share-host"]);
            renaming(["uplink", "lan0"], || {
                for served in 2..8 {
                    server.kill_server();
                    until_served(&server, served);
                }
            });
            let log = server.log();
            assert!(!log.contains("before it served"), "{mode}: {log}");
            assert_eq!(log.matches("driver veth").count(), 7, "{mode}: {log}");
            let name = ["uplink", "lan0"].into_iter().find(|name| net().index(name).is_ok());
            until("the last name is shown", || shown(&server) == name.unwrap());
            drop(server);
            net().delete_link(name.unwrap()).unwrap();
        }
    });
}

/// A server starts also if another program renames its new TAP.
#[test]
fn a_server_starts_while_its_tap_is_renamed() {
    towpath_testkit::isolated!(|| {
        if !tun("interface_changes::a_server_starts_while_its_tap_is_renamed") {
            return;
        }
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24", "--mtu", "1400"];
        for _ in 0..5 {
            let directory = Directory::new();
            let mut server = renaming(["opA", "opB"], || {
                let server = serve(&directory, "s.sock", &arguments);
                server.kill_server();
                until_served(&server, 2);
                server
            });
            let name = ["opA", "opB"].into_iter().find(|name| net().index(name).is_ok()).unwrap();
            until("the last name is shown", || shown(&server) == name);
            let link = net().link(name).unwrap();
            assert!(link.up && link.mtu == 1400, "{link:?}");
            let addresses = net().addresses().unwrap();
            assert!(addresses.iter().any(|one| one.index == link.index));
            assert!(!server.log().contains("before it served"), "{}", server.log());
            assert!(server.stop(Signal::TERM).success());
        }
    });
}

/// While a server runs, and between two servers, an interface is down.
#[test]
fn an_interface_that_is_down_ends_no_session() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::an_interface_that_is_down_ends_no_session") {
            return;
        }
        for mode in ["generic", "native", "packet"] {
            let far = wire(&FAR, &NEAR);
            let (_directory, mut server, _network) = serve_echo(&far, &device(mode), &[]);
            net().set_down("uplink").unwrap();
            until("the server says so", || server.log().contains("the link is down"));
            server.kill_server();
            until_served(&server, 2);
            until("the next server also says so", || {
                server.log().matches("the link is down").count() == 2
            });
            let log = server.log();
            assert!(log.contains("WARN uplink is down; set it up"), "{mode}: {log}");
            assert!(!log.contains("before it served"), "{mode}: {log}");
            net().set_up("uplink").unwrap();
            until("the server says so", || server.log().contains("the link is up"));
            until("all flows are answered", || answered(&far) == FLOWS);
            assert_eq!(server.stop(Signal::TERM).code(), Some(0), "{mode}");
            until_bare();
            remove_wire();
        }
    });
}

/// The deletion of an interface ends its server with a clear error. If the interface was deleted and made
/// anew while no server ran, the next server finds it by its name.
#[test]
fn an_interface_that_is_made_anew_is_found_by_its_name() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::an_interface_that_is_made_anew_is_found_by_its_name") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        let (directory, device, user) = (sockets(), device("generic"), user());
        let arguments = ["--device", &device, "--user", &user, "--lease", "192.0.2.64/28"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let session = Session::attach(&server.socket, &SessionLink::options("test")).unwrap();
        let own = session.info().ipv4.unwrap().0;
        let network = Network::builder().over(session).unwrap();
        let before = net().link("uplink").unwrap();
        kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
        server.kill_server();
        remove_wire();
        drop(far);
        let far = wire(&FAR, &NEAR);
        // The interface has the same MAC address, as when its driver is loaded again.
        net().set_mac("uplink", before.mac.unwrap()).unwrap();
        assert_ne!(net().index("uplink").unwrap(), before.index);
        kill_process(Pid::from_child(&server.child), Signal::CONT).unwrap();
        until_served(&server, 2);
        let log = server.log();
        assert!(log.contains("was deleted, and another interface has the name uplink"), "{log}");
        crate::networks::both_ways(&network, own.into(), &far, "192.0.2.200".parse().unwrap());

        remove_wire();
        assert_eq!(wait(&mut server.child).code(), Some(1));
        let log = server.log();
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("towpath: device uplink is gone"), "{log}");
        assert!(last.contains("all sessions have ended"), "{log}");
    });
}

const QUEUES: u32 = 4;
const FLOWS: usize = 32;

/// Makes the far host with its end of a wire that has several queues, one of which is in use.
fn wire_of_queues() -> Namespace {
    let (here, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
    let mut netlink = here.netlink().unwrap();
    let pair =
        Veth { peer_place: Some(far.place()), queues: Some(QUEUES), ..Veth::new("uplink", "far") };
    netlink.create_veth(&pair).unwrap();
    let up = |mut netlink: Netlink, name: &str, addresses: [&str; 2]| {
        for address in addresses {
            netlink.add_address(name, address.parse().unwrap()).unwrap();
        }
        netlink.set_up(name).unwrap();
    };
    let index = netlink.index("uplink").unwrap();
    set_queues(index, 1).unwrap();
    up(netlink, "uplink", NEAR);
    up(far.netlink().unwrap(), "far", FAR);
    far
}

fn set_queues(index: u32, count: u32) -> Result<(), towpath_netlink::Error> {
    Netlink::set_channels(index, Channels { receive: count, transmit: count, combined: 0 })
}

/// Returns the number of flows that an application answers.
fn answered(far: &Namespace) -> usize {
    let flows: Vec<_> = far
        .run(|| {
            (0..FLOWS).map(|_| KernelSocket::bind("192.0.2.200:0").unwrap()).collect::<Vec<_>>()
        })
        .unwrap();
    for flow in &flows {
        flow.set_nonblocking(true).unwrap();
        flow.send_to(b"hello", ("192.0.2.70", ECHO)).unwrap();
    }
    let (mut waiting, until) = (flows, Instant::now() + Duration::from_millis(500));
    while !waiting.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        waiting.retain(|flow| flow.recv(&mut [0; 8]).is_err());
    }
    FLOWS - waiting.len()
}

/// Serves `uplink`, with an application that echoes datagrams.
fn serve_echo(far: &Namespace, device: &str, more: &[&str]) -> (Directory, Running, Network) {
    let (directory, user) = (sockets(), user());
    let mut arguments = vec!["--device", device, "--user", &user];
    arguments.extend(["--lease", "192.0.2.64/28"]);
    arguments.extend(more);
    let server = serve(&directory, "s.sock", &arguments);
    let options = towpath_client::Options {
        ipv4: Some("192.0.2.70".parse().unwrap()),
        ..SessionLink::options("test")
    };
    let session = Session::attach(&server.socket, &options).unwrap();
    let network = Network::builder().over(session).unwrap();
    let socket = UdpSocket::bind(&network, ("192.0.2.70", ECHO)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    until("all flows are answered", || answered(far) == FLOWS);
    (directory, server, network)
}

/// A server whose interface gets more hardware queues leaves, and the next server has sockets on all of
/// them and resumes the sessions. The kernel removes no queue with a socket.
#[test]
fn added_queues_get_sockets() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::added_queues_get_sockets") {
            return;
        }
        let far = wire_of_queues();
        let index = net().index("uplink").unwrap();
        let (_directory, mut server, _network) = serve_echo(&far, &device("generic"), &[]);
        for (servers, before, now) in [(2, 1, 2), (3, 2, QUEUES)] {
            set_queues(index, now).unwrap();
            until_served(&server, servers);
            let (log, says) = (server.log(), format!("{now} hardware queues, and had {before}"));
            assert!(log.contains(&says), "{log}");
            until("all flows are answered", || answered(&far) == FLOWS);
        }
        let reason = server.report()["keeper"]["last_end"]["reason"].clone();
        assert!(reason.as_str().unwrap().contains("4 hardware queues"), "{reason}");

        let refused = set_queues(index, 2).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
        server.kill_server();
        until_served(&server, 4);
        until("all flows are answered", || answered(&far) == FLOWS);
        assert_eq!(server.report()["keeper"]["restarts"], 3);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        // The kernel frees the sockets' queues a moment later.
        until("the queues can be removed", || set_queues(index, 1).is_ok());
    });
}

/// If no server follows, the server warns with the remedy, and counts the packets of queues without a
/// socket.
#[test]
fn added_queues_without_a_next_server_are_reported() {
    towpath_testkit::isolated!(|| {
        if !may_attach("interface_changes::added_queues_without_a_next_server_are_reported") {
            return;
        }
        let far = wire_of_queues();
        let index = net().index("uplink").unwrap();
        let (_directory, mut server, _network) =
            serve_echo(&far, &device("generic"), &["--hold", "0"]);
        set_queues(index, QUEUES).unwrap();
        let says = "uplink has 4 hardware queues, and the server has sockets on 1";
        until("the server says so", || server.log().contains(says));
        assert!(server.log().contains("ethtool -L uplink"), "{}", server.log());
        assert!(answered(&far) < FLOWS);
        let report = server.report();
        let counted = report["device"]["hardware"]["rx_no_socket"].as_u64().unwrap();
        assert!((1..=FLOWS as u64).contains(&counted), "{report}");
        assert_eq!(report["device"]["unserved_queues"], QUEUES - 1);
        let stat = prints(&mut server.subcommand("stat", &[]));
        assert!(stat.contains("3 hardware queues have no socket"), "{stat}");
        set_queues(index, 1).unwrap();
        until("the server says so", || server.log().contains("sockets on all hardware queues"));
        until("all flows are answered", || answered(&far) == FLOWS);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    });
}

/// While a session has an own queue, a server whose interface gets more hardware queues stays. When that session has
/// ended, the server leaves, and the next one has sockets on all queues.
#[test]
fn added_queues_get_sockets_when_an_own_queue_is_free_again() {
    towpath_testkit::isolated!(|| {
        let test = "interface_changes::added_queues_get_sockets_when_an_own_queue_is_free_again";
        if !may_attach(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let far = wire_of_queues();
        let index = net().index("uplink").unwrap();
        set_queues(index, 2).unwrap();
        let policy = sockets();
        let file = policy.text("policy.toml");
        std::fs::write(&file, "[[grant]]\nusers = [61002]\nown-queues = [1]\n").unwrap();
        let (_directory, mut server, _network) =
            serve_echo(&far, &device("generic"), &["--policy", &file]);
        let options = towpath_client::Options {
            own_queue: true,
            receive_slots: 256,
            transmit_slots: 256,
            transmit_buffer_bytes: 2048,
            ..SessionLink::options("own")
        };
        let session = attach_by(&users.applications[0], &server.socket, &options).unwrap();
        assert!(session.info().own_queue);
        set_queues(index, QUEUES).unwrap();
        let says = "uplink has 4 hardware queues, and the server has sockets on 2";
        until("the server says so", || server.log().contains(says));
        assert_eq!(server.report()["device"]["unserved_queues"], QUEUES - 2);
        drop(session);
        until_served(&server, 2);
        let log = server.log();
        assert!(log.contains("4 hardware queues, and had 2"), "{log}");
        until("all flows are answered", || answered(&far) == FLOWS);
        assert!(server.report()["device"]["unserved_queues"].is_null());
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    });
}

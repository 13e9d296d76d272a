//! Multicast groups of applications on a real network, behind a switch that snoops on reports.

use std::net::{IpAddr, SocketAddr, UdpSocket as KernelSocket};
use std::time::Duration;

use towpath_client::{Options, Session};
use towpath_net::{Network, SessionLink, UdpSocket};
use towpath_testkit::{Namespace, User};

use crate::networks::{net, wire};
use crate::policies::attach_by;
use crate::running::*;

/// The bridge's parameters: the longest time until hosts answer a query.
const RESPONSE: Duration = Duration::from_millis(100);

/// Sends datagrams to a group until the application receives one.
fn send_until_received(sender: &KernelSocket, receiver: &UdpSocket, to: SocketAddr) {
    receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let start = std::time::Instant::now();
    loop {
        sender.send_to(b"to the group", to).unwrap();
        if receiver.recv_from(&mut [0; 64]).is_ok() {
            return;
        }
        assert!(start.elapsed() < LIMIT, "nothing arrives at {to}");
    }
}

/// A switch that snoops forwards datagrams of a group to the application's server once the application has reported the
/// group, and until it has left it.
#[test]
fn a_bridge_learns_of_groups_by_reports() {
    towpath_testkit::isolated!(|| {
        behind_a_bridge("multicast::a_bridge_learns_of_groups_by_reports", None);
    });
}

/// The grant of ports contains the reports of groups.
#[test]
fn a_session_with_limited_ports_joins_groups() {
    towpath_testkit::isolated!(|| {
        let test = "multicast::a_session_with_limited_ports_joins_groups";
        let Some(users) = other_users(test) else { return };
        behind_a_bridge(test, Some(&users.applications[0]));
    });
}

/// Tests groups of IPv4 and IPv6. `limited`: the application's user, who may use only one port; otherwise it is that of
/// the server.
fn behind_a_bridge(test: &str, limited: Option<&User>) {
    if !tun(test) {
        return;
    }
    let here = Namespace::current().unwrap();
    let mut net = net();
    net.create_querying_bridge("br0", RESPONSE).unwrap();
    // A bridge without an address sends no queries of MLD.
    here.set("net.ipv6.conf.br0.accept_dad", "0").unwrap();
    net.add_address("br0", "fe80::1/64".parse().unwrap()).unwrap();
    net.set_up("br0").unwrap();
    let far = wire(&["192.0.2.200/24", "2001:db8::200/64"], &[]);
    net.enslave("uplink", "br0").unwrap();
    let directory = Directory::new();
    let policy = directory.text("policy");
    let uid = limited.map_or(rustix::process::getuid().as_raw(), |user| user.uid);
    let grant =
        format!("[[grant]]\nusers = [{uid}]\nports = [\"udp:7\"]\nendpoints-per-session = 8\n");
    std::fs::write(&policy, grant).unwrap();
    let device = ["--device", "tap:tap0", "--policy", &policy];
    let subnets = ["--subnet", "192.0.2.200/24", "--subnet", "2001:db8::200/64"];
    let server = serve(&directory, "s.sock", &[device, subnets].concat());
    net.enslave("tap0", "br0").unwrap();
    // The bridge begins to forward by reports only after the time for the answers to its first queries.
    std::thread::sleep(RESPONSE * 10);
    let options = Options { endpoints: 8, ..SessionLink::options("test") };
    let session = match limited {
        Some(user) => attach_by(user, &server.socket, &options),
        None => Session::attach(&server.socket, &options),
    };
    let network = Network::builder().over(session.unwrap()).unwrap();
    let other_port = UdpSocket::bind(&network, "0.0.0.0:8").map(drop);
    assert_eq!(other_port.is_err(), limited.is_some(), "{other_port:?}");
    let groups = || server.report()["device"]["counters"]["rx_group"].as_u64().unwrap();
    for (group, from) in [("239.1.2.3", "192.0.2.200"), ("ff05::1:3", "2001:db8::200")] {
        let group: IpAddr = group.parse().unwrap();
        let to = SocketAddr::new(group, 7);
        let from: IpAddr = from.parse().unwrap();
        let sender = far.run(|| KernelSocket::bind((from, 0)).unwrap()).unwrap();
        let any = if group.is_ipv4() { "0.0.0.0:7" } else { "[::]:7" };
        let receiver = UdpSocket::bind(&network, any).unwrap();
        // Far more than the other packets that `rx_group` counts: queries, reports, solicitations.
        const MANY: u64 = 1000;
        let send_many = || {
            let before = groups();
            for _ in 0..MANY {
                sender.send_to(b"to the group", to).unwrap();
            }
            std::thread::sleep(Duration::from_millis(200));
            groups() - before
        };
        let unasked = send_many();
        assert!(unasked < MANY / 10, "{unasked} datagrams of {MANY} before the report");
        match group {
            IpAddr::V4(group) => receiver.join_multicast_v4(&group, &[0; 4].into()).unwrap(),
            IpAddr::V6(group) => receiver.join_multicast_v6(&group, 0).unwrap(),
        }
        send_until_received(&sender, &receiver, to);
        match group {
            IpAddr::V4(group) => receiver.leave_multicast_v4(&group, &[0; 4].into()).unwrap(),
            IpAddr::V6(group) => receiver.leave_multicast_v6(&group, 0).unwrap(),
        }
        // The bridge asks twice, a second apart, whether another host behind the port still listens.
        until("the bridge forwards no more", || send_many() < MANY / 10);
    }
}

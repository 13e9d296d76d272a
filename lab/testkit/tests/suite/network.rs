//! The kernel's reactions to our netlink messages, and to our namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use towpath_netlink::{
    ChannelWatch, Channels, Error as NetlinkError, HostEvent, HostWatch, LinkWatch, Neighbour,
    Netlink, Place, Prefix, Reachability, Route, RouteTo, Veth, Watched,
};
use towpath_testkit::{
    End, Error, Namespace, TunMode, Unavailable, add_persistent_tun, connect, enter_own_mounts,
    isolated, mount_tmpfs, ping, skip,
};

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_namespace_of_ones_own_has_a_loopback_that_is_up() {
    isolated!(|| {
        let links = Netlink::open().unwrap().links().unwrap();
        // Tunnel drivers built into the kernel add a fall-back interface to each namespace.
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert!(loopback.up);
        assert!(links.iter().all(|link| !link.up || link.name == "lo"), "{links:?}");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(b"self", socket.local_addr().unwrap()).unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
    });
}

#[test]
fn a_wire_between_namespaces_carries_packets() {
    isolated!(|| {
        let (near, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
        near.silence().unwrap();
        far.silence().unwrap();
        let ours = [prefix("192.0.2.1/24"), prefix("2001:db8::1/64")];
        let theirs = [prefix("192.0.2.2/24"), prefix("2001:db8::2/64")];
        connect(
            &End { namespace: &near, name: "near", addresses: &ours },
            &End { namespace: &far, name: "far", addresses: &theirs },
            Some(9000),
        )
        .unwrap();
        let listed = near.netlink().unwrap().link("near").unwrap();
        assert!(listed.up && listed.carrier);
        assert_eq!((listed.mtu, listed.kind.as_deref()), (9000, Some("veth")));
        assert!(near.netlink().unwrap().link("far").is_err());
        assert_eq!(far.netlink().unwrap().link("far").unwrap().mtu, 9000);

        for (own, peer) in ours.iter().zip(&theirs) {
            // Both usable at once, IPv6 as well: no other host can have them.
            let server = far.run(|| UdpSocket::bind((peer.address(), 7)).unwrap()).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let client = UdpSocket::bind((own.address(), 0)).unwrap();
            client.send_to(b"across", server.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 16];
            let (len, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"across");
            assert_eq!(from, client.local_addr().unwrap());
        }

        let listener = far.run(|| TcpListener::bind("192.0.2.2:80").unwrap()).unwrap();
        let mut client = TcpStream::connect("192.0.2.2:80").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        client.write_all(b"stream").unwrap();
        drop(client);
        let mut text = String::new();
        accepted.read_to_string(&mut text).unwrap();
        assert_eq!(text, "stream");
        // No listener there: sockets do not see across.
        assert!(TcpStream::connect("127.0.0.1:80").is_err());
    });
}

#[test]
fn a_program_starts_inside() {
    isolated!(|| {
        let inside = Namespace::create().unwrap();
        inside.netlink().unwrap().create_veth(&Veth::new("within", "beyond")).unwrap();
        let shell = || {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "while read -r line; do echo \"$line\"; done </proc/net/dev"]);
            shell
        };
        let list = |command: &mut Command| {
            let output = command.stderr(Stdio::inherit()).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let mut command = shell();
        inside.contain(&mut command);
        assert!(list(&mut command).contains("within"));
        assert!(!list(&mut shell()).contains("within"));
    });
}

#[test]
fn a_panic_inside_goes_on_outside() {
    isolated!(|| {
        let namespace = Namespace::create().unwrap();
        let caught = std::panic::catch_unwind(|| namespace.run(|| panic!("inside")));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"inside"));
    });
}

#[test]
fn a_namespace_ends_with_its_last_holder() {
    isolated!(|| {
        let here = Namespace::current().unwrap();
        let there = Namespace::create().unwrap();
        let end = |namespace, name| End { namespace, name, addresses: &[] };
        connect(&end(&here, "stay"), &end(&there, "go"), None).unwrap();
        drop(there);
        // The kernel removes a namespace in its own time.
        let mut netlink = Netlink::open().unwrap();
        for _ in 0..500 {
            if netlink.link("stay").is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the wire outlived the namespace of its other end");
    });
}

#[test]
fn links_are_made_changed_and_deleted() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        let mac = [2, 0, 0, 0, 0, 1];
        let pair = Veth {
            mac: Some(mac),
            peer_mac: Some([2, 0, 0, 0, 0, 2]),
            mtu: Some(4000),
            queues: Some(2),
            ..Veth::new("left", "right")
        };
        netlink.create_veth(&pair).unwrap();
        let (left, right) = (netlink.link("left").unwrap(), netlink.link("right").unwrap());
        assert_eq!((left.mac, left.mtu, left.up), (Some(mac), 4000, false));
        assert_eq!((right.mac, right.mtu), (pair.peer_mac, 4000));
        assert_eq!((left.below, right.below), (Some(right.index), Some(left.index)));
        assert!(std::fs::exists("/proc/sys/net/ipv4/conf/left").unwrap());

        netlink.set_up("left").unwrap();
        assert!(netlink.link("left").unwrap().up && !netlink.link("left").unwrap().carrier);
        netlink.set_up("right").unwrap();
        assert!(netlink.link("left").unwrap().carrier);
        netlink.set_down("left").unwrap();
        assert!(!netlink.link("left").unwrap().up);
        netlink.set_mtu("left", 1280).unwrap();
        netlink.set_mac("left", [2, 9, 9, 9, 9, 9]).unwrap();
        let left = netlink.link("left").unwrap();
        assert_eq!((left.mtu, left.mac), (1280, Some([2, 9, 9, 9, 9, 9])));
        netlink.set_queue_packets("left", 77).unwrap();
        assert_eq!(netlink.link("left").unwrap().queue_packets, 77);

        netlink.create_bridge("bridge0").unwrap();
        netlink.enslave("left", "bridge0").unwrap();
        let bridge = netlink.link("bridge0").unwrap();
        assert_eq!(bridge.kind.as_deref(), Some("bridge"));
        // A bridge receives all packets of its ports.
        let left = netlink.link("left").unwrap();
        assert_eq!((left.master, left.promiscuity), (Some(bridge.index), 1));
        assert!(left.all_multicast.is_none_or(|requests| requests == 1));
        netlink.release("left").unwrap();
        let left = netlink.link("left").unwrap();
        assert_eq!((left.master, left.promiscuity), (None, 0));
        assert!(left.all_multicast.is_none_or(|requests| requests == 0));

        let other = Namespace::create().unwrap();
        netlink.set_place("right", other.place()).unwrap();
        assert!(netlink.link("right").is_err());
        let back = Place::Process(std::process::id());
        other.netlink().unwrap().set_place("right", back).unwrap();
        assert_eq!(netlink.link("right").unwrap().mac, pair.peer_mac);

        netlink.delete_link("left").unwrap();
        for gone in ["left", "right"] {
            assert!(netlink.link(gone).unwrap_err().not_found(), "{gone}");
        }
        assert!(netlink.links().unwrap().iter().any(|link| link.name == "bridge0"));
    });
}

/// A name changes, a number does not, and a watch by number reports both.
#[test]
fn a_renamed_link_keeps_its_number() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.create_veth(&Veth::new("left", "right")).unwrap();
        let index = netlink.index("left").unwrap();
        let mut watch = LinkWatch::new(index).unwrap();
        let mut latest = || {
            let deadline = Instant::now() + Duration::from_secs(5);
            loop {
                assert!(Instant::now() < deadline, "the watch reports nothing");
                if let Some(state) = watch.latest() {
                    return state;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(matches!(latest(), Watched::Here(link) if link.name == "left"));
        netlink.rename("left", "middle").unwrap();
        assert!(matches!(latest(), Watched::Here(link) if link.name == "middle"));
        assert_eq!(netlink.link_at(index).unwrap().name, "middle");
        assert!(netlink.link("left").unwrap_err().not_found());
        assert!(netlink.rename("middle", "right").unwrap_err().already_exists());
        assert!(netlink.rename("middle", "a/b").is_err());
        netlink.delete_link("middle").unwrap();
        assert_eq!(latest(), Watched::Gone);
        let gone = netlink.link_at(index).unwrap_err();
        assert!(gone.not_found() && gone.to_string().contains(&index.to_string()), "{gone}");
    });
}

/// More messages than the kernel queues for a socket.
#[test]
fn watches_go_on_after_dropped_messages() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.create_veth(&Veth::new("left0", "right")).unwrap();
        let index = netlink.index("left0").unwrap();
        let (mut link, mut host) = (LinkWatch::new(index).unwrap(), HostWatch::new().unwrap());
        let address = prefix("192.0.2.1/24");
        for number in 0..400 {
            let (old, new) = (format!("left{number}"), format!("left{}", number + 1));
            netlink.rename(&old, &new).unwrap();
            netlink.add_address(&new, address).unwrap();
            netlink.delete_address(&new, address).unwrap();
        }
        events_until(&mut host, |event| *event == HostEvent::Lost);
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            assert!(Instant::now() < deadline, "the watch does not ask for the latest state");
            match link.latest() {
                Some(Watched::Here(link)) if link.name == "left400" => break,
                _ => {}
            }
        }
    });
}

#[test]
fn hardware_queues_are_counted_changed_and_watched() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        let pair = Veth { queues: Some(4), ..Veth::new("left", "right") };
        netlink.create_veth(&pair).unwrap();
        let (left, right) = (netlink.index("left").unwrap(), netlink.index("right").unwrap());
        let mut watch = match ChannelWatch::new(left) {
            Err(error) if error.not_found() => {
                return println!("SKIP hardware_queues: this kernel has no CONFIG_ETHTOOL_NETLINK");
            }
            made => made.unwrap(),
        };
        let queues = |receive, transmit| Channels { receive, transmit, combined: 0 };
        let mut latest = || {
            let deadline = Instant::now() + Duration::from_secs(5);
            loop {
                assert!(Instant::now() < deadline, "the watch reports nothing");
                if let Some(channels) = watch.latest() {
                    return channels;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert_eq!(latest(), queues(4, 4));
        // This change is not of the watched interface.
        Netlink::set_channels(right, queues(3, 3)).unwrap();
        for (receive, transmit) in [(2, 2), (4, 1)] {
            Netlink::set_channels(left, queues(receive, transmit)).unwrap();
            assert_eq!(latest(), queues(receive, transmit));
            assert_eq!(Netlink::channels(left).unwrap(), queues(receive, transmit));
        }
        let refused = Netlink::set_channels(left, queues(5, 1)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
        assert!(Netlink::channels(u32::MAX >> 1).unwrap_err().not_found());
    });
}

#[test]
fn a_limited_queue_drops_packets_that_do_not_fit() {
    isolated!(|| {
        let (here, there) = (Namespace::current().unwrap(), Namespace::create().unwrap());
        let addresses = [[prefix("192.0.2.1/24")], [prefix("192.0.2.2/24")]];
        connect(
            &End { namespace: &here, name: "near", addresses: &addresses[0] },
            &End { namespace: &there, name: "far", addresses: &addresses[1] },
            None,
        )
        .unwrap();
        Netlink::open().unwrap().limit_queue("near", 100).unwrap();
        let receiver = there.run(|| UdpSocket::bind("192.0.2.2:7").unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
        for payload in [&b"first"[..], &[0; 1000], b"last"] {
            sender.send_to(payload, "192.0.2.2:7").unwrap();
        }
        let mut buffer = [0; 2000];
        for expected in [&b"first"[..], b"last"] {
            let len = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
    });
}

#[test]
fn a_persistent_interface_stays() {
    isolated!(|| {
        if let Err(why) = towpath_testkit::check_tun() {
            return skip("a_persistent_interface_stays", &why);
        }
        let mut netlink = Netlink::open().unwrap();
        for (name, mode) in [("tun0", TunMode::Tun), ("tap0", TunMode::Tap)] {
            add_persistent_tun(name, mode, Some(0)).unwrap();
            let link = netlink.link(name).unwrap();
            assert_eq!(link.kind.as_deref(), Some("tun"));
            assert_eq!(link.mac.is_some(), mode == TunMode::Tap, "{name}");
        }
        // Another mode is no mode of an interface that exists.
        assert!(add_persistent_tun("tun0", TunMode::Tap, None).is_err());
        netlink.delete_link("tap0").unwrap();
    });
}

#[test]
fn hosts_answer_echo_requests() {
    isolated!(|| {
        let (here, there) = (Namespace::current().unwrap(), Namespace::create().unwrap());
        let ours = [prefix("192.0.2.1/24"), prefix("2001:db8::1/64")];
        let theirs = [prefix("192.0.2.2/24"), prefix("2001:db8::2/64")];
        connect(
            &End { namespace: &here, name: "near", addresses: &ours },
            &End { namespace: &there, name: "far", addresses: &theirs },
            None,
        )
        .unwrap();
        let limit = Duration::from_secs(5);
        for len in [0, 1, 56, 1473, 60_000] {
            // Its own addresses as well: there a socket also gets the request.
            for to in ["192.0.2.2", "2001:db8::2", "127.0.0.1"] {
                ping(address(to), len, limit).unwrap();
            }
            there.run(|| ping(address("192.0.2.1"), len, limit).unwrap()).unwrap();
        }
        let silent = ping(address("192.0.2.9"), 1, Duration::from_millis(100)).unwrap_err();
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut, "{silent}");
    });
}

#[test]
fn only_its_thread_sees_a_mount() {
    isolated!(|| {
        let place = std::env::temp_dir();
        let before = std::fs::read_dir(&place).unwrap().count();
        std::thread::spawn(move || {
            enter_own_mounts().unwrap();
            mount_tmpfs(&place, "mode=755,size=64k").unwrap();
            assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
            std::fs::write(place.join("full"), vec![1; 1 << 20]).unwrap_err();
            // Programs that the thread starts see it.
            let list = Command::new("/bin/sh").args(["-c", "echo \"$0\"/*"]).arg(&place).output();
            let list = String::from_utf8(list.unwrap().stdout).unwrap();
            assert_eq!(list.trim(), place.join("full").to_str().unwrap());
        })
        .join()
        .unwrap();
        assert!(before == 0 || std::fs::read_dir(std::env::temp_dir()).unwrap().count() > 0);
    });
}

#[test]
fn a_vlan_is_an_interface_on_another() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.create_veth(&Veth::new("left", "right")).unwrap();
        let left = netlink.index("left").unwrap();
        match netlink.create_vlan("left.5", "left", 5) {
            Err(error) if error.errno() == Some(Errno::OPNOTSUPP) => {
                let why =
                    Unavailable { cause: error.to_string(), remedy: "modprobe 8021q".to_owned() };
                skip("a_vlan_is_an_interface_on_another", &why);
                return;
            }
            made => made.unwrap(),
        }
        let vlan = netlink.link("left.5").unwrap();
        assert_eq!((vlan.kind.as_deref(), vlan.below), (Some("vlan"), Some(left)));
        assert!(netlink.create_vlan("left.five", "left", 5).unwrap_err().already_exists());
        netlink.delete_link("left").unwrap();
        assert!(netlink.link("left.5").unwrap_err().not_found());
    });
}

#[test]
fn addresses_routes_and_neighbours_come_and_go() {
    isolated!(|| {
        let namespace = Namespace::current().unwrap();
        namespace.silence().unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.create_veth(&Veth::new("left", "right")).unwrap();
        netlink.set_up("left").unwrap();
        netlink.set_up("right").unwrap();
        let left = netlink.index("left").unwrap();
        let own = |netlink: &mut Netlink| -> Vec<Prefix> {
            let all = netlink.addresses().unwrap();
            assert!(all.iter().all(|address| !address.tentative), "{all:?}");
            all.iter().filter(|a| a.index == left).map(|a| a.prefix).collect()
        };
        let (v4, v6) = (prefix("192.0.2.1/24"), prefix("2001:db8::1/64"));
        assert_eq!(own(&mut netlink), []);
        netlink.add_address("left", v4).unwrap();
        netlink.add_address("left", v6).unwrap();
        assert_eq!(own(&mut netlink), [v4, v6]);

        let routes = [
            Route::to(Prefix::DEFAULT_V4).via(address("192.0.2.254")),
            Route::to(Prefix::DEFAULT_V6).via(address("2001:db8::254")).on(left),
            Route { metric: Some(7), ..Route::to(prefix("198.51.100.99/24")).on(left) },
            Route { source: Some(v4.address()), ..Route::to(prefix("203.0.113.0/25")).on(left) },
            Route { table: 1000, ..Route::to(prefix("203.0.113.0/24")).on(left) },
            Route { metric: Some(9), ..Route::to(prefix("2001:db8:1::/48")).on(left) },
        ];
        for route in &routes {
            netlink.add_route(route).unwrap();
            let again = netlink.add_route(route).unwrap_err();
            assert!(again.already_exists(), "{again}");
            netlink.replace_route(route).unwrap();
        }
        let find = |netlink: &mut Netlink, wanted: &Route| {
            netlink.routes().unwrap().into_iter().find(|route| {
                route.destination == wanted.destination
                    && route.gateway == wanted.gateway
                    && route.link == Some(left)
                    && route.table == wanted.table
                    && (wanted.metric.is_none() || route.metric == wanted.metric)
                    && (wanted.source.is_none() || route.source == wanted.source)
            })
        };
        for route in &routes {
            assert!(find(&mut netlink, route).is_some(), "{route:?}");
            netlink.delete_route(route).unwrap();
            assert!(find(&mut netlink, route).is_none(), "{route:?}");
            assert!(netlink.delete_route(route).unwrap_err().not_found());
        }

        let (neighbour, mac) = (address("192.0.2.9"), [2, 1, 2, 3, 4, 5]);
        let known = || std::fs::read_to_string("/proc/thread-self/net/arp").unwrap();
        netlink.add_neighbour("left", neighbour, mac).unwrap();
        assert!(known().contains("02:01:02:03:04:05"), "{}", known());
        netlink.delete_neighbour("left", neighbour).unwrap();
        assert!(!known().contains("02:01:02:03:04:05"));
        netlink.add_neighbour("left", address("2001:db8::9"), mac).unwrap();

        netlink.delete_address("left", v4).unwrap();
        assert_eq!(own(&mut netlink), [v6]);
        assert!(netlink.delete_address("left", v4).unwrap_err().not_found());
    });
}

/// Waits for an event, and returns all up to it.
fn events_until(watch: &mut HostWatch, wanted: impl Fn(&HostEvent) -> bool) -> Vec<HostEvent> {
    let mut events = Vec::new();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !events.iter().any(&wanted) {
        assert!(std::time::Instant::now() < deadline, "{events:?}");
        std::thread::sleep(Duration::from_millis(1));
        watch.events(&mut events);
    }
    events
}

#[test]
fn the_kernels_ways_and_neighbours_are_followed() {
    isolated!(|| {
        let (near, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
        near.silence().unwrap();
        far.silence().unwrap();
        let ours = [prefix("192.0.2.1/24"), prefix("2001:db8::1/64")];
        let theirs = [prefix("192.0.2.2/24"), prefix("2001:db8::2/64")];
        connect(
            &End { namespace: &near, name: "near", addresses: &ours },
            &End { namespace: &far, name: "far", addresses: &theirs },
            None,
        )
        .unwrap();
        let mut netlink = Netlink::open().unwrap();
        // The kernel asks from a link-local address when it has no packet to send.
        netlink.add_address("near", prefix("fe80::1/64")).unwrap();
        let index = netlink.index("near").unwrap();
        let mac = far.netlink().unwrap().link("far").unwrap().mac.unwrap();
        let mut watch = HostWatch::new().unwrap();
        for (own, peer) in ours.iter().zip(&theirs) {
            let (own, peer) = (own.address(), peer.address());
            let direct = Some(RouteTo { link: index, gateway: None });
            assert_eq!(netlink.route_to(peer, Some(own)).unwrap(), direct);
            assert_eq!(netlink.route_to(peer, None).unwrap(), direct);
            // The kernel adds an IPv6 address's local route in a work queue, so the test waits for it.
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while let Some(route) = netlink.route_to(own, Some(own)).unwrap() {
                assert!(std::time::Instant::now() < deadline, "to the host itself: {route:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            let elsewhere = if own.is_ipv4() { "203.0.113.9" } else { "2001:db8:9::9" };
            let elsewhere = address(elsewhere);
            assert_eq!(netlink.route_to(elsewhere, Some(own)).unwrap(), None, "no route");
            let everywhere = if own.is_ipv4() { Prefix::DEFAULT_V4 } else { Prefix::DEFAULT_V6 };
            netlink.add_route(&Route::to(everywhere).via(peer).on(index)).unwrap();
            let via = Some(RouteTo { link: index, gateway: Some(peer) });
            assert_eq!(netlink.route_to(elsewhere, Some(own)).unwrap(), via);
            events_until(&mut watch, |event| *event == HostEvent::Routes);

            netlink.probe_neighbour(index, peer).unwrap();
            let confirmed = Reachability::Confirmed(mac);
            let known = Neighbour { index, address: peer, reachability: confirmed };
            let of_peer = |event: &HostEvent| *event == HostEvent::Neighbour(known);
            events_until(&mut watch, of_peer);
            assert_eq!(netlink.neighbour(index, peer).unwrap(), Some(known));
        }
        let silent = address("192.0.2.99");
        assert_eq!(netlink.neighbour(index, silent).unwrap(), None);
        netlink.probe_neighbour(index, silent).unwrap();
        let failed = Neighbour { index, address: silent, reachability: Reachability::Failed };
        events_until(&mut watch, |event| *event == HostEvent::Neighbour(failed));
        netlink.delete_address("near", ours[0]).unwrap();
        events_until(&mut watch, |event| *event == HostEvent::Addresses);
    });
}

#[test]
fn long_lists_are_read_to_their_end() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        let before = netlink.links().unwrap().len();
        for n in 0..150 {
            netlink.create_veth(&Veth::new(&format!("a{n}"), &format!("b{n}"))).unwrap();
        }
        let links = netlink.links().unwrap();
        assert_eq!(links.len(), before + 300);
        for n in 0..150 {
            assert!(links.iter().any(|link| link.name == format!("b{n}")));
        }
    });
}

#[test]
fn a_refusal_has_the_kernels_reason() {
    isolated!(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.create_bridge("taken").unwrap();
        let error = netlink.create_bridge("taken").unwrap_err();
        assert!(error.already_exists());
        assert!(error.to_string().starts_with("create bridge taken: "), "{error}");

        netlink.create_veth(&Veth::new("low", "wol")).unwrap();
        netlink.create_bridge("loop").unwrap();
        // A bridge in itself: every kernel with error messages refuses it with one.
        let error = netlink.enslave("loop", "loop").unwrap_err();
        let NetlinkError::Refused { detail: Some(detail), .. } = &error else {
            panic!("without the kernel's words: {error:?}");
        };
        assert!(error.to_string().contains(detail.as_str()));

        assert_eq!(
            netlink.set_up("nowhere"),
            Err(NetlinkError::NoSuchLink { name: "nowhere".to_owned() })
        );
        let far = Route::to(Prefix::DEFAULT_V4).via(address("198.51.100.1"));
        let error = netlink.add_route(&far).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NETUNREACH), "{error}");
    });
}

#[test]
fn refused_operations_name_the_missing_capability() {
    isolated!(|| {
        // Capabilities are a thread's own.
        std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            let error = Netlink::open().unwrap().set_down("lo").unwrap_err();
            assert!(error.not_permitted());
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            let error = Namespace::create().unwrap_err();
            let Error::Unavailable(unavailable) = error else { panic!("{error}") };
            assert!(unavailable.cause.contains("CAP_SYS_ADMIN"));
        })
        .join()
        .unwrap();
    });
}

#[test]
fn a_failure_in_a_namespace_is_seen_outside() {
    // Inside, the test catches the panic and the harness succeeds: only the missing line tells.
    let outcome = std::panic::catch_unwind(|| isolated!(|| panic!("on purpose")));
    if towpath_testkit::check_namespaces().is_ok() {
        let panic = outcome.unwrap_err();
        let said = panic.downcast_ref::<String>().map_or("on purpose", String::as_str);
        assert!(said.contains("did not come to its end") || said == "on purpose", "{said}");
    }
}

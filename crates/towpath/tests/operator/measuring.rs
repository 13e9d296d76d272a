//! Comparing the ways to serve an interface, on an interface whose peer sends datagrams back.

use std::net::UdpSocket;
use std::process::Stdio;

use rustix::process::Signal;

use crate::beside_the_kernel::{FAR, KernelTraffic, NEAR, may_attach, sockets, until_bare, user};
use crate::networks::wire;
use crate::running::*;

/// Arguments for little traffic.
const SHORT: [&str; 6] = ["--rounds", "1", "--time", "40", "--window", "4"];

#[test]
fn ways_are_compared_and_nothing_stays_attached() {
    towpath_testkit::isolated!(|| {
        if !may_attach("measuring::ways_are_compared_and_nothing_stays_attached") {
            return;
        }
        let far = wire(&FAR, &NEAR);
        let kernel = KernelTraffic::start(&far);
        let echo = far.run(|| UdpSocket::bind("192.0.2.200:7").unwrap()).unwrap();
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            while let Ok((len, from)) = echo.recv_from(&mut datagram) {
                let _ = echo.send_to(&datagram[..len], from);
            }
        });
        let arguments = ["measure", "uplink", "--peer", "192.0.2.200:7"];
        let said = fails(&mut towpath(&arguments), 2);
        assert!(said.contains("give --disturb"), "{said}");

        let text = prints(towpath(&arguments).arg("--disturb").args(SHORT));
        let json = prints(towpath(&arguments).args(["--disturb", "--json"]).args(SHORT));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let ways = json["ways"].as_array().unwrap();
        let names =
            ["kernel", "xdp:uplink,mode=native", "xdp:uplink,mode=generic", "packet:uplink"];
        assert_eq!(ways.len(), names.len(), "{json:#}");
        for (way, name) in ways.iter().zip(names) {
            assert_eq!(way["device"], name);
            assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
            let round = &way["rounds"][0];
            assert!(round["datagrams_per_second"].as_f64().unwrap() > 0.0, "{json:#}");
            assert!(round["round_trip_us"].as_f64().unwrap() > 0.0, "{json:#}");
        }
        for value in ["most datagrams", "shortest round trip", "least processor time"] {
            assert!(text.contains(value), "{text}");
        }
        until_bare();

        // A way that is impossible is left out, with the reason.
        let (directory, user) = (sockets(), user());
        let lease = ["--user", &user, "--lease", "192.0.2.64/28"];
        let device = ["--device", "packet:uplink"];
        let mut server = serve(&directory, "s.sock", &[&device[..], &lease[..]].concat());
        let said = fails(towpath(&arguments).arg("--disturb").args(SHORT), 1);
        assert!(said.contains("another Towpath server serves uplink"), "{said}");
        server.stop(Signal::TERM);

        // A measurement that is killed leaves no server behind.
        let mut measuring = towpath(&arguments);
        measuring.args(["--disturb", "--rounds", "100", "--time", "200"]);
        // The directory of the server's socket stays.
        measuring.env("TMPDIR", directory.join(""));
        let mut child = measuring.stdout(Stdio::null()).spawn().unwrap();
        until("a server is attached", || {
            let mut netlink = towpath_netlink::Netlink::open().unwrap();
            netlink.link("uplink").unwrap().xdp.is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        until_bare();
        assert_eq!(kernel.stop(), 0, "datagrams of the kernel's sockets were lost");
    });
}

#[test]
fn a_peer_that_cannot_answer_is_named() {
    towpath_testkit::isolated!(|| {
        let far = wire(&FAR, &NEAR);
        let measure = |arguments: &[&str]| {
            let mut command = towpath(&["measure"]);
            command.args(arguments).arg("--disturb").args(SHORT);
            fails(&mut command, 1)
        };
        let said = measure(&["absent", "--peer", "192.0.2.200:7"]);
        assert!(said.contains("no interface absent"), "{said}");
        let said = measure(&["uplink", "--peer", "198.51.100.1:7"]);
        assert!(said.contains("does not use uplink"), "{said}");
        let said = measure(&["uplink", "--peer", "192.0.2.200:7"]);
        assert!(said.contains("refuses datagrams; start a service there"), "{said}");
        // Missing rights come before a peer that does not answer.
        if let Some(users) = users() {
            let arguments = ["measure", "uplink", "--peer", "192.0.2.200:7", "--disturb"];
            let said = fails(&mut towpath_as(Some(&users.applications[0]), &arguments), 77);
            assert!(said.contains("; run towpath measure as root, or with CAP_"), "{said}");
        }
        drop(far);
    });
}

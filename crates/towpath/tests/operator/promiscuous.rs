//! What promiscuous endpoints see on an interface that applications share with the kernel.

use std::time::Duration;

use towpath_client::{Options, QueuePair, Rule, Session};
use towpath_net::SessionLink;
use towpath_packet::build::Flow;
use towpath_testkit::PacketSocket;

use crate::beside_the_kernel::{FAR, NEAR, device, may_attach, sockets, until_bare, user};
use crate::networks::{net, wire};
use crate::running::*;
use crate::sharing::remove_wire;

const PORT: u16 = 5000;
/// A priority without a VLAN (IEEE 802.1Q, 9.6).
const PRIORITY: u16 = 0xe000;

/// Sends frames to the kernel, to a group and to an application, each untagged, with only a priority, and with a VLAN's
/// tag behind that. The promiscuous endpoint sees all of them, without the priority tag.
#[test]
fn priority_tagged_frames_are_seen() {
    towpath_testkit::isolated!(|| {
        if !may_attach("promiscuous::priority_tagged_frames_are_seen") {
            return;
        }
        for mode in ["generic", "native", "packet"] {
            let far = wire(&FAR, &NEAR);
            let kernel = net().link("uplink").unwrap().mac.unwrap();
            let (directory, user, device) = (sockets(), user(), device(mode));
            let arguments = ["--device", &device, "--user", &user, "--lease", "192.0.2.64/28"];
            let server = serve(&directory, "s.sock", &arguments);
            let options = SessionLink::options("application");
            let mut application = Session::attach(&server.socket, &options).unwrap();
            application.open(&Rule::new().udp(PORT)).unwrap();
            let mut listener = Session::attach(&server.socket, &Options::default()).unwrap();
            listener.open(&Rule::promiscuous()).unwrap();
            let socket = far.run(|| PacketSocket::open("far", 0x0800).unwrap()).unwrap();
            let info = application.info();
            let own = info.ipv4.unwrap().0;
            let group = [0xff; 6];
            for (what, mac, ip) in [
                ("the kernel", kernel, "192.0.2.1".parse().unwrap()),
                ("a group", group, "192.0.2.255".parse().unwrap()),
                ("an application", info.mac.octets(), own),
            ] {
                let flow = Flow::v4().macs([2, 0, 0, 0, 0, 99], mac).ports(9, PORT);
                let flow = flow.addresses(std::net::Ipv4Addr::new(192, 0, 2, 200), ip);
                let untagged = flow.udp(b"promiscuous");
                let mut twice = flow.vlan(7).udp(b"promiscuous");
                let inside = twice.clone();
                twice.splice(12..12, [0x81, 0, 0xe0, 0]);
                let tagged = flow.vlan(PRIORITY).udp(b"promiscuous");
                for (frame, expected) in
                    [(&untagged, &untagged), (&tagged, &untagged), (&twice, &inside)]
                {
                    let mut seen = false;
                    until(&format!("{mode}: {} bytes to {what} are seen", frame.len()), || {
                        assert!(socket.send(frame).unwrap());
                        listener.wait(Some(Duration::from_millis(100))).unwrap();
                        while let Some(packet) =
                            listener.receiver().receive_one(QueuePair::FIRST).unwrap()
                        {
                            seen |= packet == *expected;
                        }
                        seen
                    });
                    // Later frames are other ones.
                    while listener.wait(Some(Duration::from_millis(20))).unwrap() {
                        while listener.receiver().receive_one(QueuePair::FIRST).unwrap().is_some() {
                        }
                    }
                }
            }
            drop((application, listener, server));
            until_bare();
            remove_wire();
        }
    });
}

//! Entering a namespace in place, first thing in `main`: a program without a test harness, since a
//! harness has threads.

use std::net::UdpSocket;
use std::time::Duration;

use towpath_netlink::{Netlink, Veth};
use towpath_testkit::{Entered, Namespace, User, enter, skip};

fn main() {
    let before = std::fs::read_link("/proc/self/ns/net").unwrap();
    let caller = User::caller();
    let entered = match enter() {
        Ok(entered) => entered,
        Err(error) => match error.unavailable() {
            Some(why) => return skip("entering", why),
            None => panic!("{error}"),
        },
    };
    assert_ne!(std::fs::read_link("/proc/self/ns/net").unwrap(), before);
    let now = User::caller();
    match entered {
        Entered::AsRoot => assert_eq!(now, caller),
        Entered::AsUser => assert_eq!((now.uid, now.gid), (0, 0)),
    }

    // The loopback carries, and interfaces can be made.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(b"self", socket.local_addr().unwrap()).unwrap();
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
    Netlink::open().unwrap().create_veth(&Veth::new("near", "far")).unwrap();
    assert!(Namespace::current().unwrap().netlink().unwrap().link("far").is_ok());

    // And once more, from inside.
    let inside = std::fs::read_link("/proc/self/ns/net").unwrap();
    enter().unwrap();
    assert_ne!(std::fs::read_link("/proc/self/ns/net").unwrap(), inside);
    assert!(Netlink::open().unwrap().link("far").is_err());
    println!("entering: ok, {entered:?}");
}

//! The sockets for tasks of tokio and for `mio`, between networks of two sessions of one server.

mod mio;
mod tokio;

use std::net::Ipv4Addr;

use towpath_client::Session;
use towpath_device_testing::loopback;
use towpath_net::{Driving, Network, SessionLink};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

/// A server, and a network with each address.
struct World {
    server: Server,
    _far: loopback::LoopbackDevice,
    a: Network,
    b: Network,
}

const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Starts a server with two networks; `driving` is that of the first one.
fn world(driving: Driving) -> World {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new("10.77.0.1".parse().unwrap(), 24));
    let config = Config { subnets: Subnets { ipv4, ipv6: None }, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let host = |name, driving| {
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options(name)).unwrap();
        Network::builder().driving(driving).over(session).unwrap()
    };
    let (a, b) = (host("a", driving), host("b", Driving::Thread));
    assert_eq!(a.addresses()[0], A);
    World { server, _far: far, a, b }
}

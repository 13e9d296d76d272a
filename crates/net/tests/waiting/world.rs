//! Two hosts at a switch in memory, and connections between them on which nothing happens.

use std::io::Write;

use towpath_net::testing::Switch;
use towpath_net::{Driving, Network, TcpListener, TcpStream};

/// Connections that are made at once.
const AT_ONCE: usize = 64;
/// The most rounds in which packets arrive and are answered.
const ROUNDS: usize = 1000;
const AT: &str = "10.0.0.1:7";

/// The hosts. One thread does everything: no thread of the library exists.
pub(crate) struct World {
    switch: Switch,
    pub(crate) server: Network,
    client: Network,
    clients: Vec<TcpStream>,
}

impl World {
    /// Makes the hosts, without connections. Each has room for `count` of them.
    pub(crate) fn new(count: usize) -> World {
        let switch = Switch::new();
        let host = || {
            let builder = Network::builder().driving(Driving::Application);
            switch.host_with(builder.stack(|config| config.seed = 7)).unwrap()
        };
        let (server, client) = (host(), host());
        World { switch, server, client, clients: Vec::with_capacity(count) }
    }

    /// Adds connections to `accepted`, whose other ends the world keeps.
    pub(crate) fn connect(&mut self, accepted: &mut Vec<TcpStream>, count: usize) {
        let listener = TcpListener::bind(&self.server, AT).unwrap();
        listener.set_nonblocking(true).unwrap();
        let until = accepted.len() + count;
        while accepted.len() < until {
            for _ in 0..AT_ONCE.min(until - accepted.len()) {
                let at = AT.parse().unwrap();
                let stream = TcpStream::connect_nonblocking(&self.client, at).unwrap();
                // No byte waits for an acknowledgement.
                stream.set_nodelay(true).unwrap();
                self.clients.push(stream);
            }
            self.settle();
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).unwrap();
                accepted.push(stream);
            }
        }
    }

    /// Has all packets arrive.
    pub(crate) fn settle(&self) {
        for _ in 0..ROUNDS {
            let before = self.switch.counters();
            self.server.turn().unwrap();
            self.client.turn().unwrap();
            if self.switch.counters() == before {
                return;
            }
        }
        panic!("the hosts talk without end");
    }

    /// Has the other end of the newest connection send a byte.
    pub(crate) fn send(&mut self) {
        self.clients.last_mut().unwrap().write_all(&[7]).unwrap();
    }
}

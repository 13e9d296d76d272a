//! The ports of closed UDP sockets that the link keeps open while the sockets' datagrams wait.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_stack::{Instant, Stack};

use crate::Link;

/// The interval at which a thread checks whether the server has sent the last frames. The server does not report that.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_micros(200);
/// The time for which a socket's port stays open for datagrams that wait for a neighbour: longer than the stack waits for
/// the answers to its requests, 3 s.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(4);
/// The interval at which the network checks whether the server has taken a port's last frames. A server that sleeps needs a
/// large part of it.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The interval at which it looks for ports without datagrams in the stack: a small part of the time that a neighbour
/// takes that does not answer the first request.
const STACK_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A port of a closed UDP socket whose datagrams still wait.
struct ClosingPort {
    local: SocketAddr,
    until: Instant,
    /// The number of frames that the link has accepted once the port's datagrams are among them; `None` while some wait
    /// in the stack.
    tx_frames: Option<u64>,
}

/// Such ports. With the port, the server would drop the packets that it has not taken.
#[derive(Default)]
pub(super) struct ClosingPorts {
    all: Vec<ClosingPort>,
    /// When the stack's frames are next searched.
    search_at: Instant,
}

/// Returns the ports of the datagrams that wait in the stack.
fn ports_in(stack: &Stack) -> HashSet<(bool, u16)> {
    if stack.unsent() == 0 { HashSet::new() } else { stack.unsent_udp_ports().collect() }
}

impl ClosingPorts {
    /// Enters the port of a closed socket if datagrams of it wait in the stack, or any frames in the link. Returns `false`
    /// if none do.
    pub(super) fn push(
        &mut self,
        local: SocketAddr,
        stack: &Stack,
        in_link: usize,
        now: Instant,
    ) -> bool {
        let in_stack = ports_in(stack).contains(&(local.is_ipv4(), local.port()));
        let tx_frames = (!in_stack).then(|| stack.counters().tx_frames);
        if in_stack || in_link > 0 {
            self.all.push(ClosingPort { local, until: now + NEIGHBOUR_WAIT, tx_frames });
        }
        in_stack || in_link > 0
    }

    /// Removes and returns the next port whose datagrams the server has taken, or whose time is over.
    pub(super) fn next(
        &mut self,
        stack: &Stack,
        link: &mut dyn Link,
        now: Instant,
    ) -> Option<SocketAddr> {
        if self.all.is_empty() {
            return None;
        }
        let tx_frames = stack.counters().tx_frames;
        if self.wait_in_stack() && (stack.unsent() == 0 || now >= self.search_at) {
            self.search_at = now + STACK_CHECK_INTERVAL;
            let ports = ports_in(stack);
            let is_sent = |port: &&mut ClosingPort| {
                port.tx_frames.is_none()
                    && !ports.contains(&(port.local.is_ipv4(), port.local.port()))
            };
            self.all.iter_mut().filter(is_sent).for_each(|port| port.tx_frames = Some(tx_frames));
        }
        // A dead link has nothing to send.
        let in_link = link.unsent().unwrap_or(0) as u64;
        // Of which frames those in the link are, only the order tells.
        let taken = if link.sends_in_order() { tx_frames.saturating_sub(in_link) } else { 0 };
        let is_over = |port: &ClosingPort| {
            now >= port.until || port.tx_frames.is_some_and(|own| in_link == 0 || taken >= own)
        };
        let over = self.all.iter().position(is_over)?;
        Some(self.all.swap_remove(over).local)
    }

    fn wait_in_stack(&self) -> bool {
        self.all.iter().any(|port| port.tx_frames.is_none())
    }

    /// Returns when to call [`ClosingPorts::next`] again, if ports wait: nothing else tells.
    pub(super) fn check_at(&self, now: Instant) -> Option<Instant> {
        let in_stack = self.wait_in_stack().then(|| self.search_at.max(now));
        let in_link = self.all.iter().any(|port| port.tx_frames.is_some());
        in_stack.into_iter().chain(in_link.then(|| now + LINK_CHECK_INTERVAL)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex};

    use towpath_packet::build::Flow;
    use towpath_stack::{Meta, Offload};

    use crate::UdpSocket;
    use crate::lock::lock;
    use crate::wire_tests::eventually;
    use crate::{Armed, Config, Link, LinkError, LinkInfo, Network, PortProtocol};

    /// The state of a server that takes frames only when the test says so.
    #[derive(Default)]
    struct Server {
        /// The frames that the link has accepted.
        accepted: usize,
        /// The accepted frames that the server has taken.
        taken: usize,
        closed: Vec<u16>,
        /// `true` if the server takes frames in no order.
        is_unordered: bool,
        /// A received frame, for a network that is awake.
        received: Option<Vec<u8>>,
    }

    /// A link to such a server, which opens each port.
    struct ToServer(Arc<Mutex<Server>>);

    impl Link for ToServer {
        fn info(&self) -> LinkInfo {
            LinkInfo { mac: [2; 6].into(), mtu: 1500, offload: Offload::default() }
        }

        fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
            Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
        }

        fn receive(
            &mut self,
            _: usize,
            take: &mut dyn FnMut(&[u8], Meta),
        ) -> Result<usize, LinkError> {
            let received = lock(&self.0).received.take();
            received.iter().for_each(|frame| take(frame, Meta::FULL));
            Ok(received.iter().count())
        }

        fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
            Ok(Some(false))
        }

        fn room(&mut self, _: usize) -> bool {
            true
        }

        fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
            fill(&mut vec![0; len]);
            lock(&self.0).accepted += 1;
            true
        }

        fn flush(&mut self) -> Result<(), LinkError> {
            Ok(())
        }

        fn unsent(&mut self) -> Result<usize, LinkError> {
            let server = lock(&self.0);
            Ok(server.accepted - server.taken)
        }

        fn sends_in_order(&self) -> bool {
            !lock(&self.0).is_unordered
        }

        fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
            Ok(Armed::Sleep { writable: false })
        }

        fn disarm(&mut self) {}

        fn opens_ports(&self) -> bool {
            true
        }

        fn open_port(
            &mut self,
            _: PortProtocol,
            local: std::net::SocketAddr,
        ) -> std::io::Result<(std::net::SocketAddr, bool)> {
            Ok((local, true))
        }

        fn close_port(&mut self, _: PortProtocol, local: std::net::SocketAddr) {
            lock(&self.0).closed.push(local.port());
        }
    }

    fn network(server: &Arc<Mutex<Server>>) -> Network {
        let mut config = Config::new([2; 6]);
        config.ipv4 = Some(("10.0.0.1".parse().unwrap(), 24));
        config.ipv6_link_local = false;
        let link = Box::new(ToServer(Arc::clone(server)));
        let network = Network::builder().on(link, config).unwrap();
        // The network announces its address first.
        eventually("the first frames", || {
            let mut server = lock(server);
            server.taken = server.accepted;
            network.shared().is_asleep() && server.accepted > 0
        });
        network
    }

    /// Sends from a socket of a port, and closes it.
    fn send(network: &Network, port: u16, count: usize, to: &str) {
        let socket = UdpSocket::bind(network, ("0.0.0.0", port)).unwrap();
        socket.set_broadcast(true).unwrap();
        (0..count).for_each(|_| assert_eq!(socket.send_to(b"x", to).unwrap(), 1));
    }

    /// A socket whose datagrams wait in the link closes its port once they are taken, though later ones still wait.
    #[test]
    fn a_port_closes_once_the_server_has_taken_its_datagrams() {
        let server = Arc::new(Mutex::new(Server::default()));
        let network = network(&server);
        let send = |port: u16, count: usize| {
            let before = lock(&server).accepted;
            send(&network, port, count, "10.0.0.255:9");
            eventually("the link accepts them", || lock(&server).accepted == before + count);
        };
        send(1, 0);
        assert_eq!(lock(&server).closed, [1], "nothing waits");
        send(2, 3);
        send(3, 2);
        std::thread::sleep(super::LINK_CHECK_INTERVAL * 5);
        assert_eq!(lock(&server).closed, [1], "the datagrams of 2 and 3 wait");
        lock(&server).taken += 3;
        eventually("port 2 closes", || lock(&server).closed == [1, 2]);
        lock(&server).taken += 1;
        std::thread::sleep(super::LINK_CHECK_INTERVAL * 5);
        assert_eq!(lock(&server).closed, [1, 2], "a datagram of 3 waits");
        lock(&server).taken += 1;
        eventually("port 3 closes", || lock(&server).closed == [1, 2, 3]);
    }

    /// Without an order, any frame in the link may be the port's.
    #[test]
    fn a_port_waits_for_all_lanes() {
        let server = Arc::new(Mutex::new(Server { is_unordered: true, ..Server::default() }));
        let network = network(&server);
        let take = |count| lock(&server).taken += count;
        send(&network, 1, 3, "10.0.0.255:9");
        send(&network, 2, 1, "10.0.0.255:9");
        eventually("the link accepts them", || {
            let server = lock(&server);
            server.accepted == server.taken + 4
        });
        take(3);
        std::thread::sleep(super::LINK_CHECK_INTERVAL * 5);
        assert!(lock(&server).closed.is_empty(), "the last one may be of port 1");
        take(1);
        eventually("the ports close", || lock(&server).closed.len() == 2);
    }

    /// A datagram that waits for a neighbour is overtaken by others. Its port waits for it, and no other port does.
    #[test]
    fn a_port_waits_for_its_own_neighbour_only() {
        let server = Arc::new(Mutex::new(Server::default()));
        let network = network(&server);
        let take = || {
            let mut server = lock(&server);
            server.taken = server.accepted;
        };
        send(&network, 4, 1, "10.0.0.7:9");
        eventually("the request", || {
            let server = lock(&server);
            server.accepted > server.taken
        });
        take();
        for count in 0..20 {
            send(&network, 5, count % 3, "10.0.0.255:9");
            take();
            eventually("port 5 closes", || {
                take();
                lock(&server).closed.len() == 1 + count
            });
        }
        std::thread::sleep(super::STACK_CHECK_INTERVAL * 2);
        assert!(lock(&server).closed.iter().all(|port| *port == 5));
        let answer = Flow::v4().macs([6; 6], [2; 6]);
        let answer = answer.addresses([10, 0, 0, 7], [10, 0, 0, 1]).i_have();
        let before = lock(&server).accepted;
        lock(&server).received = Some(answer);
        eventually("the datagram leaves", || lock(&server).accepted > before);
        std::thread::sleep(super::STACK_CHECK_INTERVAL * 2);
        assert_eq!(lock(&server).closed.last(), Some(&5), "the server has not taken it");
        take();
        eventually("port 4 closes", || lock(&server).closed.last() == Some(&4));
    }
}

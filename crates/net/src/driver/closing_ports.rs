//! The ports of closed UDP sockets that the link keeps open while the sockets' datagrams wait.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_stack::{Instant, Stack};

use crate::Link;

/// The interval at which a thread checks whether the server has sent the last frames. The server does not report it.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_micros(200);
/// The time for which a port stays open for datagrams that wait for a neighbour. The stack waits 3 s for the answers
/// to its requests.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(4);
/// The interval at which the network checks whether the server has taken a port's last frames. A server that sleeps
/// needs a large part of the interval.
const PORT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A port of a closed UDP socket whose datagrams still wait.
struct ClosingPort {
    local: SocketAddr,
    /// The port's datagrams are sent once the link has accepted this number of frames.
    tx_frames: u64,
    /// The time at which the port closes with datagrams that still wait.
    until: Instant,
}

impl ClosingPort {
    fn is_sent_by(&self, stack: &Stack) -> bool {
        stack.unsent() == 0 || stack.counters().tx_frames >= self.tx_frames
    }
}

/// The closing ports, oldest first. The server would drop the packets of a closed port that it has not taken.
#[derive(Default)]
pub(super) struct ClosingPorts {
    all: VecDeque<ClosingPort>,
}

impl ClosingPorts {
    /// Adds a port whose datagrams are among the frames that wait in the stack or in the link.
    pub(super) fn push(&mut self, local: SocketAddr, stack: &Stack, now: Instant) {
        let tx_frames = stack.counters().tx_frames + stack.unsent() as u64;
        let until = now + NEIGHBOUR_WAIT;
        self.all.push_back(ClosingPort { local, tx_frames, until });
    }

    /// Removes and returns the next port whose datagrams the server has taken, or whose time is over.
    pub(super) fn next(
        &mut self,
        stack: &Stack,
        link: &mut dyn Link,
        now: Instant,
    ) -> Option<SocketAddr> {
        let first = self.all.front()?;
        let is_taken = first.is_sent_by(stack) && {
            // A dead link has nothing to send.
            let in_link = link.unsent().unwrap_or(0) as u64;
            in_link == 0 || stack.counters().tx_frames.saturating_sub(in_link) >= first.tx_frames
        };
        if !is_taken && now < first.until {
            return None;
        }
        self.all.pop_front().map(|port| port.local)
    }

    /// Returns when to check the next port again, if the port waits for the server, which does not report that it has
    /// taken a frame. `None` if the port waits for the stack: then a sent frame is the occasion for the check.
    pub(super) fn check_at(&self, stack: &Stack, now: Instant) -> Option<Instant> {
        let first = self.all.front()?;
        first.is_sent_by(stack).then(|| now + PORT_CHECK_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex};

    use towpath_stack::{Meta, Offload};

    use crate::UdpSocket;
    use crate::lock::lock;
    use crate::testing::eventually;
    use crate::{Armed, Config, Driving, Link, LinkError, LinkInfo, Network, PortProtocol};

    /// The state of a server that takes frames only when the test says so.
    #[derive(Default)]
    struct Server {
        /// The frames that the link has accepted.
        accepted: usize,
        /// The accepted frames that the server has taken.
        taken: usize,
        closed: Vec<u16>,
    }

    /// A link to such a server, which opens each port.
    struct ToServer(Arc<Mutex<Server>>);

    impl Link for ToServer {
        fn info(&self) -> LinkInfo {
            LinkInfo { mac: [2; 6], mtu: 1500, offload: Offload::default() }
        }

        fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
            Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
        }

        fn receive(
            &mut self,
            _: usize,
            _: &mut dyn FnMut(&[u8], Meta),
        ) -> Result<usize, LinkError> {
            Ok(0)
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

    /// The network closes a socket's port once the server has taken the socket's datagrams, although later datagrams of
    /// another socket still wait.
    #[test]
    fn a_port_closes_once_the_server_has_taken_its_datagrams() {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut config = Config::new([2; 6]);
        config.ipv4 = Some(("10.0.0.1".parse().unwrap(), 24));
        config.ipv6_link_local = false;
        let link = Box::new(ToServer(Arc::clone(&server)));
        let network = Network::new(link, config, Driving::Thread).unwrap();
        let send = |port: u16, count: usize| {
            let socket = UdpSocket::bind(&network, ("0.0.0.0", port)).unwrap();
            socket.set_broadcast(true).unwrap();
            let before = lock(&server).accepted;
            (0..count).for_each(|_| assert_eq!(socket.send_to(b"x", "10.0.0.255:9").unwrap(), 1));
            eventually("the link accepts them", || lock(&server).accepted == before + count);
        };
        // The network announces its address first.
        eventually("the first frames", || {
            let mut server = lock(&server);
            server.taken = server.accepted;
            network.shared().is_asleep() && server.accepted > 0
        });
        send(1, 0);
        assert_eq!(lock(&server).closed, [1], "nothing waits");
        send(2, 3);
        send(3, 2);
        std::thread::sleep(super::PORT_CHECK_INTERVAL * 5);
        assert_eq!(lock(&server).closed, [1], "the datagrams of 2 and 3 wait");
        lock(&server).taken += 3;
        eventually("port 2 closes", || lock(&server).closed == [1, 2]);
        lock(&server).taken += 1;
        std::thread::sleep(super::PORT_CHECK_INTERVAL * 5);
        assert_eq!(lock(&server).closed, [1, 2], "a datagram of 3 waits");
        lock(&server).taken += 1;
        eventually("port 3 closes", || lock(&server).closed == [1, 2, 3]);
    }
}

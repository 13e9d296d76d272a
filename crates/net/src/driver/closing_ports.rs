//! The ports of closed UDP sockets that the link keeps open while the sockets' datagrams wait.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Instant, Stack};

use crate::{Link, PortProtocol};

/// The interval at which a thread checks whether the server has sent the last frames. The server does not report it.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_micros(200);
/// The time for which a port stays open for datagrams that wait for a neighbour. The stack waits 3 s for the answers
/// to its requests.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(4);
/// The time for which the close of a port waits for the server to send the queued datagrams. The close itself is a
/// request to the server, which takes a large part of a millisecond.
const SERVER_WAIT: Duration = Duration::from_millis(10);

/// A port of a closed UDP socket whose datagrams still wait.
struct ClosingPort {
    local: SocketAddr,
    /// The port's datagrams are sent once the link has accepted this number of frames.
    tx_frames: u64,
    /// The time at which the port closes with datagrams that still wait.
    until: Instant,
}

/// The closing ports, oldest first.
#[derive(Default)]
pub(super) struct ClosingPorts {
    all: VecDeque<ClosingPort>,
}

impl ClosingPorts {
    /// Adds a port whose datagrams are among the frames that wait in the stack.
    pub(super) fn push(&mut self, local: SocketAddr, stack: &Stack, now: Instant) {
        let tx_frames = stack.counters().tx_frames + stack.unsent() as u64;
        let until = now + NEIGHBOUR_WAIT;
        self.all.push_back(ClosingPort { local, tx_frames, until });
    }

    /// Removes and returns the next port whose datagrams the link has accepted, or whose time is over.
    pub(super) fn next(&mut self, stack: &Stack, now: Instant) -> Option<SocketAddr> {
        let first = self.all.front()?;
        let sent = stack.unsent() == 0 || stack.counters().tx_frames >= first.tx_frames;
        if !sent && now < first.until {
            return None;
        }
        self.all.pop_front().map(|port| port.local)
    }
}

/// Closes the port of a UDP socket. First waits a bounded time for the server to send the port's packets, because the
/// server drops the unsent packets of a closed port.
pub(super) fn close_udp(link: &mut dyn Link, local: SocketAddr) {
    let until = StdInstant::now() + SERVER_WAIT;
    // A dead link has nothing to send.
    while link.flush().and_then(|()| link.unsent()).is_ok_and(|unsent| unsent > 0)
        && StdInstant::now() < until
    {
        std::thread::sleep(CHECK_INTERVAL);
    }
    link.close_port(PortProtocol::Udp, local);
}

//! The ports of closed UDP sockets that the link must keep open for datagrams that still wait.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Instant, Stack};

use crate::{Link, PortProtocol};

/// The interval at which a thread asks whether the server has sent the last frames. The server does not report that.
pub(super) const ASK: Duration = Duration::from_micros(200);
/// The time for which a socket's port stays open for datagrams that wait for a neighbour: longer than the stack waits for
/// the answers to its requests, 3 s.
const PORT_SECONDS: u64 = 4;
/// The time for which the close of a port waits for the server to send the queued datagrams. The close asks the server
/// anyway, which takes a large part of a millisecond.
const PORT_TAKEN: Duration = Duration::from_millis(10);

/// A port of a closed UDP socket with datagrams that still wait.
struct ClosingPort {
    local: SocketAddr,
    /// The number of frames that the link has accepted once the port's datagrams are among them.
    tx_frames: u64,
    until: Instant,
}

/// Such ports, oldest first.
#[derive(Default)]
pub(super) struct ClosingPorts {
    all: VecDeque<ClosingPort>,
}

impl ClosingPorts {
    /// Enters a port whose datagrams are among the frames that wait in the stack.
    pub(super) fn push(&mut self, local: SocketAddr, stack: &Stack, now: Instant) {
        let tx_frames = stack.counters().tx_frames + stack.unsent() as u64;
        let until = now + Duration::from_secs(PORT_SECONDS);
        self.all.push_back(ClosingPort { local, tx_frames, until });
    }

    /// Returns the next port whose datagrams the link has accepted, or that waited for too long.
    pub(super) fn next(&mut self, stack: &Stack, now: Instant) -> Option<SocketAddr> {
        let first = self.all.front()?;
        let sent = stack.unsent() == 0 || stack.counters().tx_frames >= first.tx_frames;
        if !sent && now < first.until {
            return None;
        }
        self.all.pop_front().map(|port| port.local)
    }
}

/// Closes the port of a UDP socket. With the port, the server drops the packets that it has not taken: waits for it, a
/// bounded time.
pub(super) fn close_udp(link: &mut dyn Link, local: SocketAddr) {
    let until = StdInstant::now() + PORT_TAKEN;
    // A dead link has nothing to send.
    while link.flush().and_then(|()| link.unsent()).is_ok_and(|unsent| unsent > 0)
        && StdInstant::now() < until
    {
        std::thread::sleep(ASK);
    }
    link.close_port(PortProtocol::Udp, local);
}

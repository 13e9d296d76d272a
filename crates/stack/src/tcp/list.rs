//! The list of listeners and connections.

use super::state::State;
use super::table::Tcp;
use super::tuple::Tuple;
use super::{TcpState, connection::Connection};
use crate::host::Host;
use crate::ip;
use crate::{Flow, Instant, ListenerId, SocketError, SocketId, SocketInfo, TcpId};

impl Connection {
    /// Returns the state that applications see.
    pub(super) fn state(&self) -> TcpState {
        match self.state {
            State::SynSent | State::SynReceived => TcpState::Connecting,
            State::Established => TcpState::Established,
            State::CloseWait => TcpState::PeerClosed,
            State::FinWait1 | State::FinWait2 => TcpState::LocalClosed,
            State::Closing | State::LastAck | State::TimeWait | State::Closed => TcpState::Over,
        }
    }
}

fn flow(Tuple { local, remote }: Tuple) -> Flow {
    Flow { protocol: ip::TCP, local, remote }
}

impl Tcp {
    /// Returns the addresses of all connections that are not half-open.
    pub(crate) fn flows(&self) -> impl Iterator<Item = Flow> + '_ {
        self.by_tuple.keys().copied().map(flow)
    }

    /// Returns the addresses of half-open connections.
    pub(crate) fn half_open_flows(&self) -> impl Iterator<Item = Flow> + '_ {
        self.half_open.tuples().map(flow)
    }

    /// Fails a connection that has begun here, because its addresses and ports are in use elsewhere.
    pub(crate) fn refuse_flow(&mut self, now: Instant, host: &mut Host, flow: &Flow) {
        let tuple = Tuple { local: flow.local, remote: flow.remote };
        if let Some(index) = self.by_tuple.get(&tuple).copied() {
            self.fail(now, host, index, SocketError::AddressInUse);
        }
    }

    /// Returns all listeners and connections.
    pub(crate) fn list(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        let listeners = self.listeners.listeners.iter().zip(0..).filter_map(|(one, index)| {
            let one = one.as_ref()?;
            let id = SocketId::Listener(ListenerId { index, generation: one.generation });
            let received = one.accept.len();
            Some(SocketInfo {
                id,
                local: one.bound.local,
                peer: None,
                state: None,
                received,
                unsent: 0,
            })
        });
        let connections = self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let one = slot.connection.as_ref()?;
            Some(SocketInfo {
                id: SocketId::Tcp(TcpId { index, generation: slot.generation }),
                local: one.tuple.local,
                peer: Some(one.tuple.remote),
                state: Some(one.state()),
                received: one.receiving.buffer.len(),
                unsent: one.sending.buffer.len(),
            })
        });
        listeners.chain(connections)
    }
}

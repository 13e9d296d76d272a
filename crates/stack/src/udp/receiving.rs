//! The datagrams that an application takes from a socket.

use super::{Received, Udp};
use crate::{SocketError, UdpId};

impl Udp {
    pub(crate) fn recv(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
        peek: bool,
    ) -> Result<Received, SocketError> {
        let socket = self.get(id)?;
        socket.told = false;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let Some(datagram) = socket.queue.front() else {
            let handed_over = socket.is_handed_over().then_some(SocketError::HandedOver);
            return Err(socket.take_error().or(handed_over).unwrap_or(SocketError::WouldBlock));
        };
        let received = Received {
            len: datagram.copy_to(buffer),
            datagram_bytes: datagram.len(),
            from: datagram.arrived.from,
            to: datagram.arrived.to,
            traffic_class: datagram.arrived.traffic_class,
            hop_limit: datagram.arrived.hop_limit,
        };
        if !peek {
            socket.queue.pop();
        }
        Ok(received)
    }

    pub(crate) fn has_datagram(&mut self, id: UdpId) -> Result<bool, SocketError> {
        Ok(!self.get(id)?.queue.is_empty())
    }
}

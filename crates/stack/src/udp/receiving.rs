//! The datagrams that an application takes from a socket.

use super::queue::{Arrived, Datagram};
use super::{MOST_SEGMENTS, Received, Udp};
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
        let len = datagram.copy_to(buffer);
        let received = Received {
            len,
            stride: len,
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

    /// Takes the oldest datagram, and those behind it that may follow it in one buffer.
    pub(crate) fn recv_merged(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<Received, SocketError> {
        let mut received = self.recv(id, buffer, false)?;
        if received.datagram_bytes > received.len {
            return Ok(received);
        }
        let queue = &mut self.get(id)?.queue;
        for _ in 1..MOST_SEGMENTS {
            let room = &mut buffer[received.len..];
            let next = queue.front().filter(|next| may_follow(next, &received));
            let Some(next) = next.filter(|next| next.len() <= room.len()) else { break };
            let len = next.copy_to(room);
            received.len += len;
            queue.pop();
            if len < received.stride {
                break;
            }
        }
        received.datagram_bytes = received.len;
        Ok(received)
    }

    pub(crate) fn has_datagram(&mut self, id: UdpId) -> Result<bool, SocketError> {
        Ok(!self.get(id)?.queue.is_empty())
    }
}

/// Returns `true` if a datagram may follow others in one buffer: it has the same sender, destination, traffic class and hop
/// limit, is not empty, and is no longer than these.
fn may_follow(next: &Datagram<'_>, received: &Received) -> bool {
    let Received { stride, from, to, traffic_class, hop_limit, .. } = *received;
    next.arrived == Arrived { from, to, traffic_class, hop_limit }
        && (1..=stride).contains(&next.len())
}

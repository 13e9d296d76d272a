//! Hardware queues that this queue cedes to sessions, and gets back.

use std::any::Any;

use super::XdpQueue;
use super::chunks::Holder;
use crate::HardwareQueue;
use crate::xdp::ring::CONTINUES;
use crate::xdp::socket::{RX_ENTRIES, XdpSocket};

impl XdpQueue {
    /// Stops serving a hardware queue. Counts the packets that wait there as dropped.
    pub(super) fn give_up(&mut self, hardware: u32) -> Option<HardwareQueue> {
        if self.ceded.contains(&hardware) {
            // It could not be served again.
            return Some(HardwareQueue::new(hardware, Box::new(())));
        }
        let at = self.sockets.iter().position(|socket| socket.hardware == hardware)?;
        // The first one sends the packets of all.
        if at == 0 {
            return None;
        }
        self.count_kernel_drops();
        let mut socket = self.sockets.remove(at);
        let waiting = socket.rx.available(RX_ENTRIES);
        let ends = |ahead: &u32| socket.rx.peek(*ahead).options & CONTINUES == 0;
        self.counters.rx_dropped += (0..waiting).filter(ends).count() as u64;
        self.sleep.unwatch(&socket, &mut self.counters);
        self.ceded.push(hardware);
        Some(HardwareQueue::new(hardware, Box::new(socket)))
    }

    /// Serves a hardware queue again, by a new socket. The old one is closed, and so the engine
    /// gets the buffers that it had.
    pub(super) fn serve_again(&mut self, queue: HardwareQueue, buffers: &mut Vec<u32>) {
        let number = queue.number;
        let state: Box<dyn Any> = queue.into_state();
        let Ok(socket) = state.downcast::<XdpSocket>() else { return };
        self.ceded.retain(|one| *one != number);
        self.chunks.take_all(buffers, |holder| holder == Holder::Socket(number));
        // If the kernel refuses this, the engine hears of these packets when others come.
        let _ = self.sleep.watch_more(&socket, &mut self.counters);
        self.sockets.push(*socket);
    }
}

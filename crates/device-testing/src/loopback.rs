//! An in-memory pair of devices: each end receives the packets that the other end sends.
//!
//! The pair serves tests, benchmarks and programs with both ends in one process. Each direction is
//! two bounded single-producer single-consumer rings, one of bytes and one of packet boundaries, so
//! the ends may live in different threads without a lock. One store per ring publishes a batch.

mod cable;
mod config;
mod dma;
mod filters;
mod queue;
mod receive;
mod reception;
mod ring;
mod timing;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use towpath_device::{
    Capabilities, Device, DeviceError, DeviceQueue, Dma, Event, Filter, FilterError, Info, Limits,
    POOL_HEADROOM_BYTES, Spaces, longest_frame,
};

use cable::SharedCable;
use queue::LoopbackQueue;
use ring::{Receiver, Sender};

pub use cable::Cable;
pub use config::Config;
pub use reception::Reception;
pub use timing::Timing;

/// Creates a pair.
///
/// # Errors
/// `EINVAL` when the configuration is out of range; the error of `eventfd`.
pub fn pair(config: &Config) -> io::Result<(LoopbackDevice, LoopbackDevice)> {
    config.check()?;
    let queue = |_| SharedCable::new(config).map(Arc::new);
    let queues: Arc<[_]> = (0..config.queues).map(queue).collect::<io::Result<Vec<_>>>()?.into();
    let (mut wires_a, mut wires_b) = (Vec::new(), Vec::new());
    for _ in 0..config.queues {
        let ((sender_a, receiver_b), (sender_b, receiver_a)) =
            (direction(config), direction(config));
        wires_a.push((sender_a, receiver_a));
        wires_b.push((sender_b, receiver_b));
    }
    let a = LoopbackDevice::new(config, 0, wires_a, queues.clone());
    let b = LoopbackDevice::new(config, 1, wires_b, queues);
    Ok((a, b))
}

fn direction(config: &Config) -> (Sender, Receiver) {
    // Room for `ring_packets` frames of the MTU, and for at least two of the longest packets, so
    // that a large packet always finds room once the ring has drained.
    let frame = longest_frame(config.mtu);
    let bytes = (config.ring_packets * frame).max(2 * config.longest());
    let (bytes_in, bytes_out) = rtrb::RingBuffer::new(bytes);
    let (packets_in, packets_out) = rtrb::RingBuffer::new(config.ring_packets);
    (
        Sender { bytes: bytes_in, packets: packets_in },
        Receiver { bytes: bytes_out, packets: packets_out },
    )
}

/// One end of the pair.
pub struct LoopbackDevice {
    info: Info,
    /// The queues; `None` once a queue is open.
    queues: Vec<Option<LoopbackQueue>>,
    cable: Cable,
    reception: Reception,
}

impl LoopbackDevice {
    fn new(
        config: &Config,
        end: usize,
        wires: Vec<(Sender, Receiver)>,
        shared: Arc<[Arc<SharedCable>]>,
    ) -> LoopbackDevice {
        let letter = 0xa + end as u8;
        let longest = config.longest();
        let data_bytes = config.reception.data_bytes.unwrap_or(longest);
        let can = Capabilities {
            tx_in_place: config.tx_in_place,
            tx_checksum: config.offloads,
            tx_segmentation: config.offloads,
            tx_segmentation_ecn: config.offloads,
            tx_tag: config.tx_tags,
            rx_offload: config.offloads,
            tx_asynchronous: config.tx_asynchronous || config.timing.is_late(),
            ..Capabilities::default()
        };
        // Locally administered, unicast (IEEE 802, 8.2.2); the letters say "loop".
        let fixed = [0x02, b'l', b'o', b'o', b'p', letter];
        let info = Info {
            name: format!("{}-{letter:x}", config.name),
            mac: config.mac.filter(|_| end == 0).unwrap_or(fixed),
            mtu: config.mtu,
            can,
            queues: config.queues,
            limits: Limits {
                rx_alignment: config.rx_alignment,
                rx_headroom_bytes: POOL_HEADROOM_BYTES,
                rx_ring: config.rx_ring,
                tx_ring: config.tx_descriptors,
                address_bits: config.address_bits,
                rx_packet_buffers: config.reception.packet_buffers(config.ring_packets, longest),
                ..Limits::new((POOL_HEADROOM_BYTES + data_bytes).next_multiple_of(64))
            },
            rx_queue_packets: config.ring_packets,
        };
        let cable = Cable { shared: shared[0].clone(), queues: shared.clone(), end };
        let queue = |((tx, rx), shared): (_, &Arc<SharedCable>)| {
            Some(LoopbackQueue::new(config, info.clone(), longest, tx, rx, shared.clone(), end))
        };
        let queues = wires.into_iter().zip(&*shared).map(queue).collect();
        LoopbackDevice { info, queues, cable, reception: config.reception }
    }

    /// Returns a handle on this end's cable.
    #[must_use]
    pub fn cable(&self) -> Cable {
        self.cable.clone()
    }
}

impl Device for LoopbackDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let (name, exists) = (&self.info.name, index < self.queues.len());
        let queue = self.queues.get_mut(index).and_then(Option::take);
        let mut queue = queue.ok_or_else(|| DeviceError::no_queue(name, exists))?;
        queue.open()?;
        Ok(Box::new(queue))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        let dma = self.cable.shared.dma(self.cable.end)?;
        Some(dma.clone())
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.reception.check_filter(filter, &self.cable.filters())?;
        for queue in &*self.cable.queues {
            queue.filters[self.cable.end].add(*filter);
        }
        Ok(())
    }

    fn remove_filter(&mut self, filter: &Filter) {
        for queue in &*self.cable.queues {
            queue.filters[self.cable.end].remove(*filter);
        }
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        let mut has = self.cable.filters();
        has.retain(|one| !removed.contains(one));
        wanted.iter().all(|filter| {
            let outcome = self.reception.check_filter(filter, &has);
            has.push(*filter);
            !matches!(outcome, Err(FilterError::Full))
        })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.cable.shared.events[self.cable.end].fd())
    }

    fn take_event(&mut self) -> Option<Event> {
        self.cable.shared.events[self.cable.end].take()
    }
}

#[cfg(test)]
mod tests;

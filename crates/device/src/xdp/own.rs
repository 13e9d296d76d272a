//! Hardware queues that sessions have to themselves. Such a queue has one socket, and its memory is
//! that of the session: so the kernel copies packets to where the application reads them.
//!
//! The kernel allows one memory per hardware queue. So the server's socket is closed before the
//! session's is bound, and the other way round.

use std::sync::{Arc, Weak};

use super::info::{HEADROOM_BYTES, PACKET_PARTS, rx_packet_buffers};
use super::lane::{Lane, OwnBuffers};
use super::queue::XdpQueue;
use super::shared::SharedInterface;
use super::socket::TxChecksum;
use crate::dma::{Access, Dma, Registration};
use crate::{
    DeviceError, HardwareQueue, Info, Limits, OpenedOwnQueue, OwnMemory, OwnQueueError,
    OwnQueueLimits, OwnQueues,
};

/// The sizes of a receive buffer that the kernel allows (`XDP_UMEM_MIN_CHUNK_SIZE` to a page).
const LEAST_BUFFER_BYTES: usize = 2048;
const MOST_BUFFER_BYTES: usize = 4096;
/// Receive buffers begin at multiples of this many bytes.
const ALIGNMENT_BYTES: usize = 128;

/// Returns what the device can give a session to itself.
pub(super) fn limits(
    info: &Info,
    shared: &SharedInterface,
    is_exclusive: bool,
) -> Result<OwnQueueLimits, OwnQueueError> {
    let properties = shared.properties();
    let queues = properties.own_queues.clone();
    let (name, kept) = (info.name.clone(), properties.lanes);
    if is_exclusive {
        return Err(OwnQueueError::Exclusive { name });
    }
    if kept > 1 {
        return Err(OwnQueueError::Lanes { name });
    }
    if properties.tx_checksum != TxChecksum::Engine {
        return Err(OwnQueueError::TxChecksum { name });
    }
    if shared.is_zero_copy() {
        return Err(OwnQueueError::ZeroCopy { name });
    }
    if queues.is_empty() {
        return Err(OwnQueueError::TooFewQueues { name, queues: queues.end, kept });
    }
    if !properties.gives_queues {
        return Err(OwnQueueError::NotPrepared { name });
    }
    if !shared.has_sockets_for_session() {
        return Err(OwnQueueError::NoSockets { name });
    }
    let needed =
        (HEADROOM_BYTES + properties.frame_bytes).clamp(LEAST_BUFFER_BYTES, MOST_BUFFER_BYTES);
    let buffer_bytes = needed.next_multiple_of(ALIGNMENT_BYTES) as u32..=MOST_BUFFER_BYTES as u32;
    Ok(OwnQueueLimits { queues, buffer_bytes, takes_all: false })
}

/// Opens hardware queues among those of one lane.
pub(super) struct Opener {
    info: Info,
    among: Weak<Lane>,
}

impl Opener {
    pub(super) fn new(info: Info, among: &Arc<Lane>) -> Opener {
        Opener { info, among: Arc::downgrade(among) }
    }

    fn among(&self) -> Result<Arc<Lane>, DeviceError> {
        self.among.upgrade().ok_or_else(|| DeviceError::no_queue(&self.info.name, false))
    }
}

impl OwnQueues for Opener {
    fn open(
        &self,
        ceded: HardwareQueue,
        memory: &OwnMemory,
    ) -> Result<OpenedOwnQueue, DeviceError> {
        let (among, hardware) = (self.among()?, ceded.number);
        let own = OwnBuffers { bytes: memory.buffer_bytes, count: memory.buffers };
        let lane = Arc::new(Lane::own(&among, hardware, own));
        // From now on, packets of other flows do not reach the socket that is to come. The close of
        // the ceded one waits for the decisions before.
        among
            .shared
            .attached_program()
            .set_owner(hardware, true)
            .map_err(self.info.failed("giving a hardware queue an owner"))?;
        // The kernel allows one memory per hardware queue.
        drop(ceded);
        let dma: Arc<dyn Dma> = lane.clone();
        let registration = Registration::new(&dma, &memory.mapping, Access::ReadWrite)
            .map_err(self.info.failed("registering a session's memory"))?;
        let info = own_info(&self.info, &lane, own);
        let parts = info.limits.tx_packet_parts;
        let queue = XdpQueue::new(info, lane)?;
        Ok((Box::new(queue), registration, parts))
    }

    fn take_back(&self, hardware: u32) -> Result<HardwareQueue, DeviceError> {
        let among = self.among()?;
        let what = "serving a hardware queue again";
        let owned = among.shared.attached_program().set_owner(hardware, false);
        owned.map_err(self.info.failed(what))?;
        let socket = among.bind_again(hardware).map_err(self.info.failed(what))?;
        Ok(HardwareQueue::new(hardware, Box::new(socket)))
    }
}

fn own_info(info: &Info, lane: &Lane, own: OwnBuffers) -> Info {
    let bytes = own.bytes as usize;
    let spans = lane.binding.spans;
    let limits = Limits {
        rx_buffer_bytes: bytes,
        rx_alignment: ALIGNMENT_BYTES,
        rx_packet_buffers: rx_packet_buffers(spans, bytes - HEADROOM_BYTES),
        rx_ring: own.count as usize,
        tx_packet_parts: if spans { PACKET_PARTS } else { 1 },
        ..info.limits
    };
    Info { limits, queues: 1, ..info.clone() }
}

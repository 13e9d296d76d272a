//! The control part: both ends of a link.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use towpath_device::{
    Capabilities, Device, DeviceError, DeviceQueue, ETHERNET_HEADER_BYTES, Info, Limits,
    POOL_HEADROOM_BYTES, Spaces, VLAN_TAG_BYTES,
};
use towpath_pdu::atm::Adaptation;

use super::link::{Lost, direction};
use super::queue::CellQueue;
use super::sizes::{DATA_BYTES, RECEIVE_CELLS, TRANSMIT_PACKETS};

/// One end of the link.
pub(crate) struct CellDevice {
    info: Info,
    queue: Option<CellQueue>,
    lost: Arc<Lost>,
}

/// Creates both ends of a link.
pub(crate) fn pair(adaptation: Adaptation, cells_per_s: u32, mtu: usize) -> [CellDevice; 2] {
    let cell_time = Duration::from_nanos(1_000_000_000 / u64::from(cells_per_s.max(1)));
    let (to_b, from_a) = direction(cell_time);
    let (to_a, from_b) = direction(cell_time);
    let ends = [(to_b, from_b, b'a'), (to_a, from_a, b'b')];
    ends.map(|(to, from, letter)| {
        let longest = mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
        let info = Info {
            name: format!("cells-{}", char::from(letter)),
            // Locally administered, unicast.
            mac: [0x02, b'c', b'e', b'l', b'l', letter],
            mtu,
            can: Capabilities {
                tx_in_place: true,
                tx_asynchronous: true,
                ..Capabilities::default()
            },
            queues: 1,
            limits: Limits {
                rx_headroom_bytes: POOL_HEADROOM_BYTES,
                rx_alignment: 64,
                tx_ring: TRANSMIT_PACKETS,
                rx_packet_buffers: longest.div_ceil(DATA_BYTES),
                ..Limits::new(POOL_HEADROOM_BYTES + DATA_BYTES)
            },
            rx_queue_packets: RECEIVE_CELLS,
        };
        let lost = from.lost();
        let queue = CellQueue::new(info.clone(), longest, adaptation, to, from);
        CellDevice { info, queue: Some(queue), lost }
    })
}

impl Device for CellDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let queue = if index == 0 { self.queue.take() } else { None };
        let queue = queue.ok_or_else(|| DeviceError::Failed {
            name: self.info.name.clone(),
            what: "opening a queue",
            cause: Errno::BUSY.into(),
        })?;
        Ok(Box::new(queue))
    }

    fn statistics(&mut self) -> Vec<(&'static str, u64)> {
        vec![("cells_lost", self.lost.count())]
    }
}

#[cfg(test)]
mod tests {
    use towpath_device::Meta;
    use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd, Pair, run};

    use super::super::sizes::MTU_BYTES;
    use super::*;

    #[test]
    fn cells_that_find_the_card_full_are_lost_and_counted() {
        let [a, b] = pair(Adaptation::Aal5, 20_000_000, 1500);
        let lost = b.lost.clone();
        let mut far = DeviceFarEnd::new(Box::new(b));
        let mut near = DeviceFarEnd::new(Box::new(a));
        // 300 frames of 32 cells, before the far end looks.
        for number in 0..300_u32 {
            let mut frame = [7; 1500];
            frame[..4].copy_from_slice(&number.to_be_bytes());
            while !near.send(&frame, Meta::FULL) {}
        }
        // All have arrived by then: a cell takes 50 ns.
        std::thread::sleep(Duration::from_millis(10));
        let mut arrived = Vec::new();
        while let Some((frame, _)) = far.receive() {
            arrived.push(u32::from_be_bytes(frame[..4].try_into().unwrap()));
        }
        // 7 000 cells have 218 whole frames.
        assert_eq!(arrived, (0..218).collect::<Vec<u32>>());
        assert_eq!(lost.count(), 300 * 32 - RECEIVE_CELLS as u64);
    }

    #[test]
    fn both_layers_keep_the_contract_of_devices() {
        let both = [Adaptation::Aal5, Adaptation::Aal34];
        for (adaptation, mtu) in both.into_iter().flat_map(|one| [(one, 1500), (one, MTU_BYTES)]) {
            run(&format!("{adaptation:?}, MTU {mtu}"), 1, || {
                // Faster than the link: the suite's time is short.
                let [near, far] = pair(adaptation, 20_000_000, mtu);
                Pair { device: Box::new(near), far: Box::new(DeviceFarEnd::new(Box::new(far))) }
            });
        }
    }
}

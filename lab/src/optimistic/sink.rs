//! A device that only costs time.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use towpath_device::{
    Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, Info, Kick,
    Limits, Packet, Received, SpaceId, Spaces,
};

use crate::race::FRAME_BYTES;

/// A device that takes and completes everything at once.
pub(super) struct Sink {
    info: Info,
    queue: Option<SinkQueue>,
}

struct SinkQueue {
    done: Vec<Completion>,
    null: Option<std::os::fd::OwnedFd>,
    counters: Counters,
}

impl Sink {
    /// Returns a device; with `calls`, it makes a system call per packet.
    pub(super) fn boxed(calls: bool) -> anyhow::Result<Box<dyn Device>> {
        let null = calls.then(|| {
            rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        });
        Ok(Box::new(Sink {
            info: Info {
                name: "sink".to_owned(),
                mac: [2, 0, 0, 0, 0, 1],
                mtu: 1500,
                queues: 1,
                limits: Limits::new(2048),
                rx_queue_packets: 0,
                can: Capabilities::default(),
            },
            queue: Some(SinkQueue {
                done: Vec::with_capacity(1024),
                null: null.transpose()?,
                counters: Counters::default(),
            }),
        }))
    }
}

impl Device for Sink {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        _: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let failed = |cause| DeviceError::Failed {
            name: self.info.name.clone(),
            what: "opening a queue",
            cause,
        };
        let queue = self.queue.take().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        Ok(Box::new(queue))
    }
}

impl DeviceQueue for SinkQueue {
    fn rx_fill(&mut self, _: &Spaces, _: SpaceId, _: &[u32]) -> usize {
        0
    }

    fn rx_poll(
        &mut self,
        _: &mut Spaces,
        _: &mut Vec<Received>,
        _: usize,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        for packet in packets {
            let mut bytes = [0; FRAME_BYTES];
            for part in packet.parts {
                let len = (part.len as usize).min(FRAME_BYTES);
                if spaces.copy_out(part.space, part.offset, &mut bytes[..len]).is_err() {
                    self.counters.tx_dropped += 1;
                }
            }
            if let Some(null) = &self.null {
                let written = rustix::io::write(null, &bytes);
                written.map_err(|error| DeviceError::Failed {
                    name: "sink".to_owned(),
                    what: "writing",
                    cause: io::Error::from(error),
                })?;
            }
            self.counters.tx_packets += 1;
            self.done.push(Completion::sent(packet.token));
        }
        Ok(packets.len())
    }

    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let count = self.done.len().min(budget);
        out.extend(self.done.drain(..count));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: bool) -> Result<Armed, DeviceError> {
        Ok(Armed::Work)
    }

    fn reset(&mut self, _: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

//! The receive half of a driver: packets from the device, each to the caller or to a reader.

use std::panic::{AssertUnwindSafe, catch_unwind};

use towpath_device::{Armed, DeviceError, Event, Kick, Meta, Received};

use super::{BATCH, Driver};
use crate::packet::Packet;
use crate::reception::{Panic, Reception};

impl Driver {
    /// Receives at most `budget` packets, and at most one batch. Returns their number.
    ///
    /// If `each` panics, its packet is received, and the next call goes on with those behind it.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8], Meta)) -> usize {
        self.receive_while(budget, |packet, meta| {
            each(packet, meta);
            true
        })
    }

    /// Receives as [`Driver::receive`] does, until `each` returns `false`.
    pub(crate) fn receive_while(
        &mut self,
        budget: usize,
        mut each: impl FnMut(&[u8], Meta) -> bool,
    ) -> usize {
        self.fetch(budget);
        let mut packets = 0;
        while packets < budget {
            let Some(is_whole) = self.next_packet() else { break };
            packets += 1;
            let packet = &self.reception.packet;
            if is_whole && !each(packet.bytes(), packet.meta()) {
                break;
            }
        }
        packets
    }

    /// Takes at most `budget` packets from the device, and at most one batch, unless some are left
    /// from an earlier call.
    pub(crate) fn fetch(&mut self, budget: usize) {
        if self.is_broken || !self.reception.is_empty() {
            return;
        }
        self.provide();
        let Reception { received, next, .. } = &mut self.reception;
        received.clear();
        *next = 0;
        if let Err(error) = self.queue.rx_poll(&mut self.spaces, received, budget.min(BATCH)) {
            self.fail(error);
        }
    }

    /// Copies the next packet into the memory for one, and releases its buffers. Returns whether
    /// the packet is whole; `None` if there is none.
    pub(crate) fn next_packet(&mut self) -> Option<bool> {
        let Reception { received, next, packet, .. } = &mut self.reception;
        let buffers = Received::packets(received.get(*next..)?).next()?;
        *next += buffers.len();
        let is_whole = packet.copy(&self.spaces, buffers);
        for one in buffers {
            self.receive.release(self.buffers.receive_buffer(one.buffer));
        }
        self.counts.rx_malformed += u64::from(!is_whole);
        Some(is_whole)
    }

    /// Exchanges the packet that [`Driver::next_packet`] copied for another memory.
    pub(crate) fn exchange_packet(&mut self, other: &mut Packet) {
        std::mem::swap(&mut self.reception.packet, other);
    }

    /// Does the work of an interrupt: delivers at most one batch of packets to the readers, and
    /// arms the device.
    pub(crate) fn interrupt(&mut self) -> Armed {
        self.counts.interrupts += 1;
        if self.reception.readers.is_some() {
            self.fetch(BATCH);
            while let Some(is_whole) = self.next_packet() {
                if is_whole && !self.deliver() {
                    break;
                }
            }
            // A device without buffers receives nothing, and so would not interrupt.
            if !self.is_broken {
                self.provide();
            }
        }
        self.arm()
    }

    /// Delivers the packet in the memory for one. Returns `false` if the function that chooses its
    /// reader panicked.
    fn deliver(&mut self) -> bool {
        let Reception { readers: Some(readers), packet, panic, .. } = &mut self.reception else {
            return true;
        };
        // A panic of the program's function leaves the driver as it is.
        match catch_unwind(AssertUnwindSafe(|| readers.choose(packet.bytes()))) {
            Ok(Some(reader)) => reader.deliver(packet),
            Ok(None) => self.counts.rx_no_reader += 1,
            Err(payload) => {
                *panic = Some(payload);
                return false;
            }
        }
        true
    }

    /// Takes the panic that ended [`Driver::interrupt`] early.
    pub(crate) fn take_panic(&mut self) -> Option<Panic> {
        self.reception.panic.take()
    }

    fn provide(&mut self) {
        if self.fill()
            && let Err(error) = self.queue.kick(&mut self.spaces, Kick::Rx)
        {
            self.fail(error);
        }
    }

    /// Provides the device with empty buffers. Returns whether it took any.
    fn fill(&mut self) -> bool {
        let mut filled = false;
        loop {
            let mut starts = [0; BATCH];
            let mut count = 0;
            while count < BATCH {
                let Some(buffer) = self.receive.take() else { break };
                starts[count] = self.buffers.receive_start(buffer);
                count += 1;
            }
            let taken = self.queue.rx_fill(&self.spaces, self.space, &starts[..count]);
            for start in starts[taken..count].iter().rev() {
                self.receive.release(self.buffers.receive_buffer(*start));
            }
            filled |= taken > 0;
            if taken < BATCH {
                return filled;
            }
        }
    }

    /// Takes the device's events. Packets wait while the link is down.
    pub(crate) fn take_events(&mut self) {
        if self.is_broken {
            return;
        }
        while let Some(event) = self.device.take_event() {
            match event {
                Event::Link { up } => self.is_link_up = up,
                Event::Removed => {
                    let cause = std::io::Error::other("the device was removed");
                    self.fail(DeviceError::Gone { name: self.name.clone(), cause });
                }
                _ => {}
            }
        }
        self.flush();
    }

    /// Requests that the device wake the thread that is about to sleep. Returns [`Armed::Work`] for
    /// a device that failed, or that has no descriptor.
    pub(crate) fn arm(&mut self) -> Armed {
        let Some(bell) = &mut self.bell else { return Armed::Work };
        bell.silence();
        self.take_events();
        if self.has_failed() || !self.reception.is_empty() {
            return Armed::Work;
        }
        let owed = self.is_owed();
        match self.queue.arm(self.is_link_up && self.has_waiting()) {
            Ok(Armed::Sleep) => {
                if let Some(bell) = &mut self.bell {
                    bell.sleeps(owed);
                }
                Armed::Sleep
            }
            Ok(Armed::Work) => Armed::Work,
            Err(error) => {
                self.fail(error);
                Armed::Work
            }
        }
    }

    /// Wakes the thread that handles interrupts, which may sleep: this thread has work left that
    /// was that thread's.
    pub(crate) fn call_back(&mut self) {
        if let Some(bell) = &mut self.bell {
            bell.sleeps(true);
            bell.notify();
        }
    }
}

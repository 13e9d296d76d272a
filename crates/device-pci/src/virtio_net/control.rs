//! The control virtqueue: commands for the device, one after the other (virtio 1.2, 5.1.6.5).

use std::io;
use std::time::Duration;

use towpath_device::Registration;
use towpath_memory::{Region, peer_words};
use towpath_queue::PeerWords;

use super::filters::Filters;
use super::memory::{COMMAND_AT, RINGS_AT, SharedRings};
use super::names::*;
use super::ring::{Piece, Ring};
use super::structures::Notification;
use crate::signals::has_in_time;

/// The longest wait for a command's end.
const LIMIT: Duration = Duration::from_secs(1);
/// The place of the device's answer, behind the command: a word of its own.
const ANSWER_AT: usize = 2048;
/// A value that is no answer of the device (`VIRTIO_NET_OK` is 0, and `VIRTIO_NET_ERR` 1).
const NO_ANSWER: u8 = 0xff;

/// The control virtqueue.
#[derive(Debug)]
pub(super) struct Control {
    ring: Ring,
    command: Region,
    answer: PeerWords,
    /// The registration of the shared memory, which the device reaches until the last clone ends.
    registration: Registration,
    notification: Option<Notification>,
    /// `true` once the device did not execute a command in time: it may still read the memory.
    is_stuck: bool,
}

impl Control {
    /// Takes the parts of the shared memory that are for control; the rest is that of the packets.
    pub(super) fn new(shared: ControlParts, registration: Registration) -> Control {
        let ControlParts { ring, command, answer } = shared;
        Control { ring, command, answer, registration, notification: None, is_stuck: false }
    }

    /// Returns the ring, to be cleared, and the device address of its memory.
    pub(super) fn ring(&mut self) -> (&mut Ring, u64) {
        let at = self.registration.address() + RINGS_AT[usize::from(CONTROL)] as u64;
        (&mut self.ring, at)
    }

    /// Begins with a ring that the device has anew.
    pub(super) fn start(&mut self, notification: Notification) {
        self.ring.set_interrupts(false);
        (self.notification, self.is_stuck) = (Some(notification), false);
    }

    /// Has the device execute a command, and waits for its end.
    fn execute(&mut self, class: u8, command: u8, data: &[u8]) -> io::Result<()> {
        let stuck = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
        let Some(notification) = self.notification.as_ref().filter(|_| !self.is_stuck) else {
            return Err(stuck());
        };
        let bytes = [&[class, command][..], data].concat();
        let fits = bytes.len() <= ANSWER_AT
            && self.command.copy_in(0, &bytes)
            && self.command.copy_in(ANSWER_AT, &[NO_ANSWER; 8]);
        let at = self.registration.address() + COMMAND_AT as u64;
        let pieces = [
            Piece { address: at, len: bytes.len() as u32, is_written: false },
            Piece { address: at + ANSWER_AT as u64, len: 1, is_written: true },
        ];
        if !fits || self.ring.push(&pieces).is_none() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if self.ring.publish() {
            notification.send(CONTROL);
        }
        let ring = &self.ring;
        if !has_in_time(LIMIT, || ring.has_used()) || self.ring.take().is_err() {
            self.is_stuck = true;
            return Err(stuck());
        }
        match self.answer.fetch(0) as u8 {
            CONTROL_OK => Ok(()),
            other => Err(io::Error::other(format!("the card answered {other}"))),
        }
    }

    /// Has the device receive what these filters let in.
    pub(super) fn set_filters(&mut self, filters: &Filters) -> io::Result<()> {
        self.execute(CLASS_MAC, MAC_TABLE_SET, &filters.table())?;
        for (mode, is_on) in filters.modes() {
            self.execute(CLASS_RX, mode, &[u8::from(is_on)])?;
        }
        Ok(())
    }
}

/// The parts of the shared memory that are for control.
#[derive(Debug)]
pub(super) struct ControlParts {
    ring: Ring,
    command: Region,
    answer: PeerWords,
}

/// Takes the shared memory apart: the rings of received packets and of packets to send, and the parts for
/// control.
pub(super) fn take_apart(shared: SharedRings) -> (Ring, Ring, ControlParts) {
    let SharedRings { rx, tx, control, command, mapping } = shared;
    let answer = peer_words(&mapping).part((COMMAND_AT + ANSWER_AT) / 8, 1);
    (rx, tx, ControlParts { ring: control, command, answer })
}

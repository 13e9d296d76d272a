//! Hardware queues for sessions: which session gets one, and the exchange with the engine and the
//! device. What follows for the sessions is in [`crate::hardware_queue_results`].
//!
//! | step | thread | action |
//! |---|---|---|
//! | attach | control thread | chooses the hardware queue, joins the memories of the session |
//! | cede | engine | stops serving the hardware queue |
//! | open | thread `own-queues` | closes the server's socket, opens the session's |
//! | end | engine | returns the queue with the session |
//! | close | thread `own-queues` | closes the queue, and binds the server's socket |
//! | restore | engine | serves the hardware queue again |

use towpath_device::{DeviceError, HardwareQueue, OwnQueueError};
use towpath_engine::commands::Command;
use towpath_engine::session::Session;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{ATTACH_OWN_QUEUE, Refusal};
use tracing::warn;

use crate::connection::Connection;
use crate::control::Control;
use crate::device_control::DeviceControl;
use crate::engines::Reply;
use crate::own_queues::{MAX_BYTES, data_bytes};
use crate::policy::{Standing, Terms};
use crate::prepare::Mapped;
use crate::queue_opener::{Step, Task, Then};
use crate::refusal::Refused;

impl DeviceControl {
    /// Chooses a hardware queue for a session, if the flags of its request ask for one. `is_alone`: `true` if there is
    /// no other session.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn choose_own_queue(
        &self,
        flags: u32,
        standing: Standing,
        terms: &Terms,
        shape: &SessionShape,
        is_alone: bool,
    ) -> Result<Option<u32>, Refused> {
        if flags & ATTACH_OWN_QUEUE == 0 {
            return Ok(None);
        }
        let limits = self.device().own_queue_limits();
        let not_prepared = || OwnQueueError::NotPrepared { name: self.name().to_owned() };
        let limits = limits.and_then(|limits| {
            self.own_queues().are_ready().then_some(limits).ok_or_else(not_prepared)
        });
        let limits = limits.map_err(|error| (Refusal::NotFound, format!("attach: {error}")))?;
        if limits.takes_all && !is_alone {
            return Err((Refusal::InUse, not_alone(self.name())));
        }
        let granted = match standing {
            Standing::Administrator => limits.queues.clone().collect(),
            _ => terms.own_queues.clone(),
        };
        if granted.is_empty() {
            let text = "attach: your user may have no hardware queue of its own; attach without, or \
                        ask the administrator for a grant with own-queues";
            return Err((Refusal::Permission, text.to_owned()));
        }
        let name = self.name();
        let bytes = shape.receive_pool.frame_bytes();
        if !limits.buffer_bytes.contains(&bytes) {
            let (least, most) = data_bytes(limits.buffer_bytes.clone());
            let text = format!(
                "attach: receive buffers of {} bytes do not fit a hardware queue of {name}; ask for \
                 receive_buffer_bytes from {least} to {most}",
                shape.receive_pool.data_bytes()
            );
            return Err((Refusal::Limit, text));
        }
        let (receive, transmit) =
            (shape.receive_pool.pool_bytes(), shape.transmit_pool.pool_bytes());
        if receive + transmit > MAX_BYTES {
            let text = format!(
                "attach: {} KiB of receive and transmit buffers are more than the {} KiB that a \
                 session with a hardware queue may have; ask for fewer or smaller ones",
                (receive + transmit) >> 10,
                MAX_BYTES >> 10
            );
            return Err((Refusal::Limit, text));
        }
        let mut there = granted.iter().filter(|queue| limits.queues.contains(queue)).peekable();
        if there.peek().is_none() {
            let text = format!(
                "attach: the granted own-queues are not among the hardware queues {} to {} that \
                 {name} can give; ask the administrator to change the grant",
                limits.queues.start,
                limits.queues.end - 1
            );
            return Err((Refusal::NotFound, text));
        }
        let free = there.find(|queue| self.own_queues().is_free(**queue)).copied();
        free.map(Some).ok_or_else(|| {
            let text = "attach: other sessions have all hardware queues that your user may have; end \
                        one of them, or attach without an own queue";
            (Refusal::InUse, text.to_owned())
        })
    }
}

impl Control {
    /// Has the engine cede the hardware queue of a session whose memory is ready. Returns the
    /// session if it is to have none.
    pub(crate) fn ask_for_queue(&mut self, token: u64, mapped: Mapped) -> Option<Mapped> {
        let Some(hardware) = self.connections.session(token).and_then(|one| one.own_queue) else {
            return Some(mapped);
        };
        self.device.own_queues_mut().wait(hardware, token, mapped);
        self.engines.command(Command::CedeQueue { hardware }, Reply::Nothing);
        None
    }

    /// Has the hardware queue of a session closed that has ended. Returns the session if it has
    /// none.
    pub(crate) fn close_own_queue(&mut self, mut session: Box<Session>) -> Option<Box<Session>> {
        let Some(own) = session.take_own_queue() else { return Some(session) };
        // The kernel, or the device, writes to the session's memory until the queue is closed.
        let hardware = own.hardware;
        self.device.own_queues_mut().closes(hardware);
        self.direct_if_alone();
        let (step, then) = (Step::Close(own), Then::End(session));
        self.device.own_queues().push(Task { hardware, step, then });
        None
    }

    /// On a device that cannot choose packets by their flows: has the queue of the only session receive all of
    /// them, or none if there is another session.
    pub(crate) fn direct_if_alone(&mut self) {
        if !self.device.takes_all() {
            return;
        }
        let wanted = {
            let mut sessions = self.connections.sessions();
            let (first, second) = (sessions.next(), sessions.next());
            let only = first.filter(|_| second.is_none()).and_then(granted_queue);
            only.filter(|hardware| self.device.own_queues().is_open(*hardware))
        };
        self.device.direct(wanted);
    }

    /// Has the engine serve a hardware queue again that a session had.
    pub(crate) fn serve_again(&mut self, hardware: u32, back: Result<HardwareQueue, DeviceError>) {
        match back {
            Ok(queue) => self.engines.command(Command::RestoreQueue(queue), Reply::Nothing),
            Err(error) => {
                if self.access.allows_own_line() {
                    warn!(
                        hardware,
                        "the server does not serve this hardware queue again yet: {error}; packets \
                         of applications that arrive there are dropped and counted"
                    );
                }
                self.device.own_queues_mut().try_later(hardware);
            }
        }
    }
}

/// Returns the hardware queue of a session whose user may still have it.
fn granted_queue(connection: &Connection) -> Option<u32> {
    let is_granted = |queue: &u32| {
        connection.application.is_administrators()
            || connection.application.terms.own_queues.contains(queue)
    };
    connection.session()?.own_queue.filter(is_granted)
}

fn not_alone(name: &str) -> String {
    format!(
        "attach: {name} gives a session a hardware queue of its own only while there is no other session; \
         end the others, or attach without"
    )
}

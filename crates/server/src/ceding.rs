//! Hardware queues for sessions: who gets one, and the exchange with the engine and the device.
//!
//! | step | who | does |
//! |---|---|---|
//! | attach | control thread | chooses the hardware queue, joins the memories of the session |
//! | cede | engine | stops serving the hardware queue |
//! | open | control thread | closes the server's socket, opens the session's |
//! | end | engine, control thread | the engine returns the queue with the session; the control thread closes it, and has the engine serve the hardware queue again |

use towpath_device::{HardwareQueue, OwnMemory};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{ATTACH_OWN_QUEUE, Refusal};
use tracing::{info, warn};

use crate::connection::{Progress, Refused};
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::own::{Own, OwnQueue};
use crate::engine::session::Session;
use crate::engines::Reply;
use crate::own_queues::data_bytes;
use crate::policy::{Standing, Terms};
use crate::prepare::Mapped;
use crate::slow::Job;

impl Control {
    /// Chooses a hardware queue for a session, if the flags of its request ask for one.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn choose_own_queue(
        &self,
        flags: u32,
        standing: Standing,
        terms: &Terms,
        shape: &SessionShape,
    ) -> Result<Option<u32>, Refused> {
        if flags & ATTACH_OWN_QUEUE == 0 {
            return Ok(None);
        }
        let limits = self.parts.device.own_queue_limits();
        let limits = limits.map_err(|error| (Refusal::NotFound, format!("attach: {error}")))?;
        let granted = match standing {
            Standing::Administrator => limits.queues.clone().collect(),
            _ => terms.own_queues.clone(),
        };
        if granted.is_empty() {
            let text = "attach: your user may have no hardware queue of its own; attach without, or \
                        ask the administrator for a grant with own-queues";
            return Err((Refusal::Permission, text.to_owned()));
        }
        let name = &self.parts.info.name;
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
        let free = there.find(|queue| self.own_queues.is_free(**queue)).copied();
        free.map(Some).ok_or_else(|| {
            let text = "attach: other sessions have all hardware queues that your user may have; end \
                        one of them, or attach without an own queue";
            (Refusal::InUse, text.to_owned())
        })
    }

    /// Has the engine cede the hardware queue of a session whose memory is ready. Returns the session
    /// if it is to have none.
    pub(crate) fn ask_for_queue(&mut self, token: u64, mapped: Mapped) -> Option<Mapped> {
        let Some(hardware) = self.connections.get(token).and_then(|one| one.own_queue) else {
            return Some(mapped);
        };
        self.own_queues.wait(hardware, token, mapped);
        self.parts.engines.command(Command::CedeQueue { hardware }, Reply::Nothing);
        None
    }

    /// Opens the hardware queue of a session, which the engine has ceded.
    pub(crate) fn ceded(&mut self, hardware: u32, queue: Option<HardwareQueue>) {
        let was_ceded = queue.is_some();
        // The kernel allows one memory per hardware queue.
        drop(queue);
        let Some((token, mut mapped)) = self.own_queues.take_waiting(hardware) else { return };
        let is_gone = self.connections.get(token).is_none_or(|connection| connection.gone);
        let text = if is_gone {
            None
        } else if !was_ceded {
            Some(format!("the server cannot do without hardware queue {hardware}"))
        } else {
            match self.open_queue(hardware, &mut mapped) {
                Ok(()) => {
                    let session = mapped.sessions.first().map_or(0, |one| one.number);
                    self.begin_session(token, mapped);
                    let uid = self.connections.get(token).map_or(0, |one| one.account.uid);
                    if self.log.allows(uid) {
                        info!(session, hardware, "has a hardware queue");
                    }
                    return;
                }
                Err(text) => Some(text),
            }
        };
        if was_ceded {
            self.take_back_queue(hardware);
        }
        if let Some(connection) = self.connections.get_mut(token) {
            connection.progress = Progress::Over;
            let uid = connection.account.uid;
            let Mapped { sessions, mappings, .. } = mapped;
            self.slow.push(uid, Job::Release { token, mappings, sessions });
        }
        if let Some(text) = text {
            self.refuse(
                token,
                &(Refusal::Limit, format!("mapped: {text}; attach without an own queue")),
            );
        }
    }

    fn open_queue(&mut self, hardware: u32, mapped: &mut Mapped) -> Result<(), String> {
        let Some((mapping, offsets)) = mapped.joined.take() else {
            return Err("its memory is not joined".to_owned());
        };
        // The device has no such queues with several engines.
        let [session] = &mut mapped.sessions[..] else {
            return Err("the server has several engines".to_owned());
        };
        let pool = session.shape.receive_pool;
        let (buffer_bytes, buffers) = (pool.frame_bytes(), pool.buffers());
        let memory = OwnMemory { mapping: mapping.clone(), buffer_bytes, buffers };
        let opened = self.parts.device.open_own_queue(hardware, &memory);
        let (queue, registration, parts) = opened.map_err(|error| error.to_string())?;
        let memory = mapping;
        let own = OwnQueue { hardware, queue, registration, memory, offsets, parts };
        session.own = Own::Queue(Box::new(own));
        Ok(())
    }

    /// Closes the hardware queue of a session that has ended, and has the engine serve it again.
    pub(crate) fn close_own_queue(&mut self, session: &mut Session) {
        let Some(own) = session.own.take_queue() else { return };
        let hardware = own.hardware;
        // The kernel writes to the session's memory until then.
        drop(own);
        self.take_back_queue(hardware);
    }

    fn take_back_queue(&mut self, hardware: u32) {
        match self.parts.device.take_back_queue(hardware) {
            Ok(queue) => self.parts.engines.command(Command::RestoreQueue(queue), Reply::Nothing),
            Err(error) => {
                if self.log.allows(self.own_uid) {
                    warn!(
                        hardware,
                        "the server does not serve this hardware queue again yet: {error}; packets \
                         of applications that arrive there are dropped and counted"
                    );
                }
                self.own_queues.try_later(hardware);
            }
        }
    }

    /// Asks once more for hardware queues that the kernel did not give back.
    pub(crate) fn take_back_late_queues(&mut self) {
        for hardware in self.own_queues.take_late() {
            self.take_back_queue(hardware);
        }
    }
}

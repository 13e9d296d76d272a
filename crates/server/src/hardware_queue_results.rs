//! Continues or ends sessions once the engine or the device has ceded, opened or closed their hardware queues.

use towpath_device::{HardwareQueue, OpenedOwnQueue, OwnMemory};
use towpath_engine::own::OwnQueue;
use towpath_protocol::layout::CLOSED_QUEUE_BROKE;
use towpath_protocol::message::Refusal;
use tracing::{info, warn};

use crate::control::Control;
use crate::control_session::{Ending, SessionPhase};
use crate::mapping_jobs::Job;
use crate::prepare::Mapped;
use crate::queue_opener::{Done, Step, Task, Then};

impl Control {
    /// Opens the hardware queue of a session, which the engine has ceded.
    pub(crate) fn ceded(&mut self, hardware: u32, queue: Option<HardwareQueue>) {
        let Some((token, mapped)) = self.device.own_queues_mut().take_waiting(hardware) else {
            return;
        };
        let Some(queue) = queue else {
            let why = format!("the server needs hardware queue {hardware} itself");
            return self.do_not_begin(token, mapped, Some(why));
        };
        let is_gone = self.is_gone(token);
        let (step, then) = match memory_of(&mapped).filter(|_| !is_gone) {
            Some(memory) => (Step::Open(queue, memory), Then::Begin { token, mapped }),
            None => {
                let why = (!is_gone).then(|| "its memory is not joined".to_owned());
                (Step::Close(Box::new(queue)), Then::Refuse { token, mapped, why })
            }
        };
        self.device.own_queues().push(Task { hardware, step, then });
    }

    /// Handles the finished tasks of the thread `own-queues`.
    pub(crate) fn finish_queue_tasks(&mut self) {
        while let Some(Done { hardware, opened, back, then }) = self.device.own_queues().next_done()
        {
            if let Some(back) = back {
                self.serve_again(hardware, back);
            }
            match then {
                Then::Begin { token, mapped } => match opened {
                    Some(Ok(opened)) => self.begin_with_queue(token, hardware, mapped, opened),
                    Some(Err(error)) => self.do_not_begin(token, mapped, Some(error.to_string())),
                    None => self.do_not_begin(token, mapped, None),
                },
                Then::Refuse { token, mapped, why } => self.do_not_begin(token, mapped, why),
                Then::End(session) => self.session_ended(session),
                Then::Nothing => self.device.own_queues_mut().tried(hardware),
            }
        }
        for hardware in self.device.own_queues_mut().take_late() {
            self.device.own_queues().push(Task {
                hardware,
                step: Step::TakeBack,
                then: Then::Nothing,
            });
        }
    }

    fn is_gone(&self, token: u64) -> bool {
        self.connections.get(token).is_none_or(|connection| connection.gone)
    }

    /// Begins a session whose hardware queue is open, unless its application has gone.
    fn begin_with_queue(
        &mut self,
        token: u64,
        hardware: u32,
        mut mapped: Mapped,
        (queue, registration, parts): OpenedOwnQueue,
    ) {
        // With several engines, the device offers no own queues.
        let (Some((memory, offsets)), [session]) = (mapped.joined.take(), &mut mapped.sessions[..])
        else {
            let then = Then::Refuse { token, mapped, why: None };
            let step = Step::Close(Box::new((queue, registration)));
            return self.device.own_queues().push(Task { hardware, step, then });
        };
        let own = OwnQueue { hardware, queue, registration, memory, offsets, parts };
        let (number, own) = (session.number(), Box::new(own));
        if self.is_gone(token) {
            let then = Then::Refuse { token, mapped, why: None };
            return self.device.own_queues().push(Task { hardware, step: Step::Close(own), then });
        }
        session.set_own_queue(own);
        self.device.own_queues_mut().opened(hardware);
        self.begin_session(token, mapped);
        self.direct_if_alone();
        if self.log_allows_for(token) {
            info!(session = number, hardware, "the session has a hardware queue to itself");
        }
    }

    /// Releases the memory of a session that does not begin.
    fn do_not_begin(&mut self, token: u64, mapped: Mapped, why: Option<String>) {
        if let Some(connection) = self.connections.get_mut(token) {
            if let Some(session) = connection.mapped_mut() {
                session.phase = SessionPhase::Over;
            }
            let account = connection.application.account;
            let Mapped { sessions, mappings, .. } = mapped;
            self.mapping_jobs.push(account, Job::Release { token, mappings, sessions });
        }
        if let Some(why) = why {
            let uid = self.connections.get(token).map_or(0, |one| one.application.account.uid);
            if self.log_allows_for(token) {
                warn!(uid, "an application gets no hardware queue: {why}");
            }
            let text = format!("attach: {why}; attach without an own queue");
            self.refuse(token, &(Refusal::Limit, text));
        }
    }

    /// Ends a session whose hardware queue stopped working.
    pub(crate) fn own_queue_broke(&mut self, number: u32) {
        if let Some((token, connection)) = self.connections.of_session_mut(number)
            && connection.ending() != Ending::AtOnce
        {
            self.close_session(token, CLOSED_QUEUE_BROKE, "its hardware queue stopped working");
        }
    }
}

/// Returns the memory of a session's own queue, for the device.
fn memory_of(mapped: &Mapped) -> Option<OwnMemory> {
    let (mapping, _) = mapped.joined.as_ref()?;
    let pool = mapped.sessions.first()?.shape().receive_pool;
    let (buffer_bytes, buffers) = (pool.frame_bytes(), pool.buffers());
    Some(OwnMemory { mapping: mapping.clone(), buffer_bytes, buffers })
}

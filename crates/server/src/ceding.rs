//! Hardware queues for sessions: which session gets one, and the exchange with the engine and the
//! device.
//!
//! | step | thread | action |
//! |---|---|---|
//! | attach | control thread | chooses the hardware queue, joins the memories of the session |
//! | cede | engine | stops serving the hardware queue |
//! | open | thread `own-queues` | closes the server's socket, opens the session's |
//! | end | engine | returns the queue with the session |
//! | close | thread `own-queues` | closes the queue, and binds the server's socket |
//! | restore | engine | serves the hardware queue again |

use towpath_device::{DeviceError, HardwareQueue, OpenedOwnQueue, OwnMemory, OwnQueueError};
use towpath_protocol::layout::{CLOSED_QUEUE_BROKE, SessionShape};
use towpath_protocol::message::{ATTACH_OWN_QUEUE, Refusal};
use tracing::{info, warn};

use crate::account::Party;
use crate::connection::{Connection, Ending, Progress, Refused};
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::own::{Own, OwnQueue};
use crate::engine::session::Session;
use crate::engines::Reply;
use crate::own_queues::{MAX_BYTES, data_bytes};
use crate::policy::{Standing, Terms};
use crate::prepare::Mapped;
use crate::queue_opener::{Done, Step, Task, Then};
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
        let not_prepared = || OwnQueueError::NotPrepared { name: self.parts.info.name.clone() };
        let limits = limits.and_then(|limits| {
            self.own_queues.are_ready().then_some(limits).ok_or_else(not_prepared)
        });
        let limits = limits.map_err(|error| (Refusal::NotFound, format!("attach: {error}")))?;
        if limits.takes_all && self.connections.sessions().next().is_some() {
            return Err((Refusal::InUse, not_alone(&self.parts.info.name)));
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
        let free = there.find(|queue| self.own_queues.is_free(**queue)).copied();
        free.map(Some).ok_or_else(|| {
            let text = "attach: other sessions have all hardware queues that your user may have; end \
                        one of them, or attach without an own queue";
            (Refusal::InUse, text.to_owned())
        })
    }

    /// Has the engine cede the hardware queue of a session whose memory is ready. Returns the
    /// session if it is to have none.
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
        let Some((token, mapped)) = self.own_queues.take_waiting(hardware) else { return };
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
        self.own_queues.push(Task { hardware, step, then });
    }

    /// Goes on after what the other thread has done.
    pub(crate) fn go_on_with_queues(&mut self) {
        while let Some(Done { hardware, opened, back, then }) = self.own_queues.next_done() {
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
                Then::Nothing => self.own_queues.tried(hardware),
            }
        }
        for hardware in self.own_queues.take_late() {
            self.own_queues.push(Task { hardware, step: Step::TakeBack, then: Then::Nothing });
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
        // The device has no such queues with several engines.
        let (Some((memory, offsets)), [session]) = (mapped.joined.take(), &mut mapped.sessions[..])
        else {
            let then = Then::Refuse { token, mapped, why: None };
            let step = Step::Close(Box::new((queue, registration)));
            return self.own_queues.push(Task { hardware, step, then });
        };
        let own = OwnQueue { hardware, queue, registration, memory, offsets, parts };
        let (number, own) = (session.number, Box::new(own));
        if self.is_gone(token) {
            let then = Then::Refuse { token, mapped, why: None };
            return self.own_queues.push(Task { hardware, step: Step::Close(own), then });
        }
        session.own = Own::Queue(own);
        self.own_queues.opened(hardware);
        self.begin_session(token, mapped);
        self.direct_if_alone();
        if self.log_allows_for(token) {
            info!(session = number, hardware, "the session has a hardware queue to itself");
        }
    }

    /// Releases the memory of a session that does not begin.
    fn do_not_begin(&mut self, token: u64, mapped: Mapped, why: Option<String>) {
        if let Some(connection) = self.connections.get_mut(token) {
            connection.progress = Progress::Over;
            let user = connection.account.user();
            let Mapped { sessions, mappings, .. } = mapped;
            self.slow.push(user, Job::Release { token, mappings, sessions });
        }
        if let Some(why) = why {
            let uid = self.connections.get(token).map_or(0, |one| one.account.uid);
            if self.log_allows_for(token) {
                warn!(uid, "an application gets no hardware queue: {why}");
            }
            let text = format!("attach: {why}; attach without an own queue");
            self.refuse(token, &(Refusal::Limit, text));
        }
    }

    /// Has the hardware queue of a session closed that has ended. Returns the session if it has
    /// none.
    pub(crate) fn close_own_queue(&mut self, mut session: Box<Session>) -> Option<Box<Session>> {
        let Some(own) = session.own.take_queue() else { return Some(session) };
        // The kernel, or the device, writes to the session's memory until the queue is closed.
        let hardware = own.hardware;
        self.own_queues.closes(hardware);
        self.direct_if_alone();
        let (step, then) = (Step::Close(own), Then::End(session));
        self.own_queues.push(Task { hardware, step, then });
        None
    }

    /// On a device that cannot choose packets by their flows: has the queue of the only session receive all of
    /// them, or none if there is another session.
    pub(crate) fn direct_if_alone(&mut self) {
        if !self.own_queues.takes_all() {
            return;
        }
        let wanted = {
            let mut sessions = self.connections.sessions();
            let (first, second) = (sessions.next(), sessions.next());
            let only = first.filter(|_| second.is_none()).and_then(granted_queue);
            only.filter(|hardware| self.own_queues.is_open(*hardware))
        };
        self.direct(wanted);
    }

    /// Has a session's queue receive all packets, or none.
    pub(crate) fn direct(&mut self, hardware: Option<u32>) {
        if self.own_queues.direct(hardware) {
            self.parts.device.direct(hardware);
        }
    }

    /// Ends a session whose hardware queue stopped working.
    pub(crate) fn own_queue_broke(&mut self, number: u32) {
        if let Some(token) = self.connections.token_of(number)
            && self.connections.get(token).is_some_and(|one| one.ending != Ending::AtOnce)
        {
            self.close_session(token, CLOSED_QUEUE_BROKE, "its hardware queue stopped working");
        }
    }

    fn serve_again(&mut self, hardware: u32, back: Result<HardwareQueue, DeviceError>) {
        match back {
            Ok(queue) => self.parts.engines.command(Command::RestoreQueue(queue), Reply::Nothing),
            Err(error) => {
                if self.log.allows(Party::Administrator(self.own_uid)) {
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
}

/// Returns the hardware queue of a session whose user may still have it.
fn granted_queue(connection: &Connection) -> Option<u32> {
    let is_granted = |queue: &u32| {
        connection.standing == Standing::Administrator
            || connection.terms.own_queues.contains(queue)
    };
    connection.own_queue.filter(is_granted)
}

fn not_alone(name: &str) -> String {
    format!(
        "attach: {name} gives a session a hardware queue of its own only while there is no other session; \
         end the others, or attach without"
    )
}

/// Returns the memory of a session's own queue, for the device.
fn memory_of(mapped: &Mapped) -> Option<OwnMemory> {
    let (mapping, _) = mapped.joined.as_ref()?;
    let pool = mapped.sessions.first()?.shape.receive_pool;
    let (buffer_bytes, buffers) = (pool.frame_bytes(), pool.buffers());
    Some(OwnMemory { mapping: mapping.clone(), buffer_bytes, buffers })
}

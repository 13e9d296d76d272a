//! A session: attaching, endpoints, and its end.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use towpath_memory::{ForkGuard, own_words, peer_words};
use towpath_protocol::channel::Channel;
use towpath_protocol::layout::{
    CLOSED_ADDRESS_GONE, CLOSED_AFTER_CRASHES, CLOSED_BY_POLICY, CLOSED_QUEUE_BROKE,
};
use towpath_protocol::message;
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};
use towpath_queue::{PoolShape, Violation};

use crate::aperture_table::Apertures;
use crate::attach::{Attachment, Granted, ask_for_session, attach};
use crate::control::{Deadline, connect};
use crate::error::{AttachError, Lost, Refusal};
use crate::hold::DoorbellHold;
use crate::lanes::{FirstLaneParts, Lane, QueuePair, lanes};
use crate::oob_queues::Oob;
use crate::options::{Endpoint, Info, Options, Statistics, read_info};
use crate::pool::{ReceivePool, TransmitPool};
use crate::reconnect::Resumable;
use crate::waiter::Waiter;

/// An attachment to a driver server. The crate's documentation describes threads and `fork`.
pub struct Session {
    pub(crate) channel: Channel,
    /// How long the client waits for the answer to a request.
    pub(crate) answer_timeout: Duration,
    pub(crate) doorbell: OwnedFd,
    pub(crate) lanes: Box<[Lane]>,
    /// The queue pairs of all lanes: first all of the first lane, and so on.
    pub(crate) queue_pairs: Vec<QueuePair>,
    /// The number of queue pairs of each lane.
    pub(crate) per_lane: usize,
    /// The longest packet that [`Session::send`] writes without looking for its lane: a buffer's
    /// data bytes, or 0 if there are several lanes.
    pub(crate) direct_bytes: usize,
    /// The lane that the next call to receive begins with.
    pub(crate) next_lane: usize,
    pub(crate) transmit_pool: TransmitPool,
    pub(crate) receive_pool: ReceivePool,
    pub(crate) transmit_free: FreeBuffers,
    /// `true` for each transmit buffer that the application has reserved: neither free nor in a
    /// queue.
    pub(crate) reserved: Box<[bool]>,
    pub(crate) expedited_queue_pair: Option<u32>,
    pub(crate) provided: u32,
    pub(crate) waiter: Waiter,
    pub(crate) doorbell_hold: DoorbellHold,
    /// The queues of out-of-band messages, if the session has any.
    pub(crate) oob: Option<Box<Oob>>,
    /// The session's apertures and tripwires, if it can have any.
    pub(crate) apertures: Option<Box<Apertures>>,
    /// The number of endpoints that the server closed, as far as the client knows.
    revoked: u64,
    /// `true` if no wait has returned since that number rose.
    revoked_untold: bool,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) dirty: Vec<u32>,
    pub(crate) taken: [Descriptor; MAX_CHAIN],
    /// Length of the first buffer of the packet received last.
    pub(crate) length: usize,
    pub(crate) statistics: Statistics,
    pub(crate) lost: Option<Lost>,
    /// `true` if the doorbell's other end is closed. The application may still take the packets in
    /// the queues.
    pub(crate) hung_up: bool,
    /// What the client needs when the server is killed; `None` if no server resumes the session.
    pub(crate) resumable: Option<Resumable>,
    /// The number of requests for endpoints so far.
    pub(crate) requests: u32,
    info: Info,
    guard: ForkGuard,
    /// Not `Sync`: queues have one producer and one consumer.
    _one_thread: PhantomData<Cell<()>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The pauses before the client attaches again. A server closes unread connections when another server replaces it, or when
/// too many wait for admission.
const HANG_UP_PAUSES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The pause before the client asks again whether an earlier session has handed over.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(20);

/// Asks for a session, and again if the server hangs up.
fn ask_again(path: &Path, options: &Options, deadline: Deadline) -> Result<Granted, AttachError> {
    let mut pauses = HANG_UP_PAUSES.into_iter();
    loop {
        let granted = ask_for_session(connect(path, deadline)?, options, deadline);
        match (granted, pauses.next()) {
            (Err(AttachError::HungUp), Some(pause)) if deadline.is_after(pause) => {
                std::thread::sleep(pause);
            }
            (granted, _) => return granted,
        }
    }
}

/// Returns `true` if the session that a new one replaces has not handed over, and there is time left.
fn waits_for_hand_over(granted: &Result<Granted, AttachError>, until: Option<Deadline>) -> bool {
    let in_use = matches!(granted, Err(AttachError::Refused { refusal: Refusal::InUse, .. }));
    in_use && until.is_some_and(|until| until.is_after(HAND_OVER_PAUSE))
}

impl Session {
    /// Attaches to the server that listens at `path`. If the server hangs up before it answers, the client
    /// connects again, at most five times within 0.8 s.
    ///
    /// Root and the server's user have all rights over the server's administration socket. If there is one for this
    /// process ([`administration_socket`](crate::administration_socket)), the session uses it. Otherwise the session
    /// uses `path`, and has the rights that the server's policy grants.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(path: impl AsRef<Path>, options: &Options) -> Result<Session, AttachError> {
        let path = path.as_ref();
        let hand_over_by = options.replace.map(Deadline::after);
        let (granted, deadline) = loop {
            let deadline = Deadline::after(options.answer_timeout);
            let granted = ask_again(path, options, deadline);
            if !waits_for_hand_over(&granted, hand_over_by) {
                break (granted, deadline);
            }
            std::thread::sleep(HAND_OVER_PAUSE);
        };
        let attached = granted.and_then(|granted| Session::begin(granted, options, deadline));
        let (mut session, flags) = attached.map_err(|error| error.at(path))?;
        if flags & message::RESUMABLE != 0 && !options.resume_timeout.is_zero() {
            let doorbell = session.doorbell.as_fd();
            let resumable = Resumable::new(path, options.resume_timeout, doorbell);
            session.resumable = Some(resumable.map_err(AttachError::Descriptors)?);
        }
        Ok(session)
    }

    /// Attaches over a connected socket, from a server in this process or from another process.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_over(socket: OwnedFd, options: &Options) -> Result<Session, AttachError> {
        let deadline = Deadline::after(options.answer_timeout);
        let granted = ask_for_session(socket, options, deadline)?;
        Session::begin(granted, options, deadline).map(|(session, _)| session)
    }

    fn begin(
        granted: Granted,
        options: &Options,
        deadline: Deadline,
    ) -> Result<(Session, u32), AttachError> {
        let Attachment { channel, shape, granted, memories, doorbell, wakes } =
            attach(granted, deadline)?;
        let (server, state) = (peer_words(&memories.server), peer_words(&memories.state));
        let own = own_words(memories.application);
        let small = || AttachError::Protocol("a buffer pool is too small".into());
        let count = wakes.len() as u32;
        let buffers = shape.receive_pool.buffers() * count;
        let receive_pool =
            PoolShape::new(buffers, shape.receive_pool.data_bytes()).ok_or_else(small)?;
        let (lanes, mut queue_pairs, first) = lanes(&shape, wakes, own, &server, &state);
        let FirstLaneParts { oob, apertures, fired, requests } =
            first.ok_or_else(|| AttachError::Protocol("the session has no lanes".into()))?;
        let guard = ForkGuard::new()?;
        let apertures = Apertures::new(&shape, apertures, requests, memories.armed, fired, &guard);
        if granted.flags & message::OWN_QUEUE != 0
            && let Some(first) = queue_pairs.first_mut()
        {
            first.receive.allow_any_order();
        }
        let units = queue_pairs.len();
        let mut session = Session {
            channel,
            answer_timeout: options.answer_timeout,
            doorbell,
            lanes: lanes.into_boxed_slice(),
            queue_pairs,
            per_lane: shape.queue_pairs as usize,
            direct_bytes: if count > 1 { 0 } else { shape.transmit_pool.data_bytes() as usize },
            next_lane: 0,
            transmit_pool: TransmitPool::new(memories.transmit_pool, shape.transmit_pool)
                .ok_or_else(small)?,
            receive_pool: ReceivePool::new(memories.receive_pool, receive_pool)
                .ok_or_else(small)?,
            expedited_queue_pair: options.expedited_queue_pair,
            transmit_free: FreeBuffers::new(0, shape.transmit_pool.buffers()),
            reserved: vec![false; shape.transmit_pool.buffers() as usize].into_boxed_slice(),
            provided: options.provided.unwrap_or(u32::MAX).clamp(1, shape.queues.receive()),
            waiter: Waiter::new(options.wait_strategy),
            doorbell_hold: DoorbellHold::default(),
            oob,
            apertures,
            revoked: 0,
            revoked_untold: false,
            ready: VecDeque::with_capacity(units),
            dirty: Vec::with_capacity(units),
            taken: [Descriptor::default(); MAX_CHAIN],
            length: 64,
            statistics: Statistics::default(),
            lost: None,
            hung_up: false,
            resumable: None,
            requests: 0,
            info: read_info(&granted),
            guard,
            _one_thread: PhantomData,
        };
        for unit in 0..units {
            session.provide(unit);
            session.queue_pairs[unit].receive.publish();
        }
        Ok((session, granted.flags))
    }

    /// Returns the server's grant to the session.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    pub(crate) fn set_info(&mut self, info: Info) {
        self.info = info;
    }

    /// Returns the client's counts.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (before, ticks) = (self.statistics, self.waiter.ticks());
        Statistics {
            ticks: before.ticks + ticks.kept,
            ticks_missed: before.ticks_missed + ticks.missed,
            ticks_late_ns: before.ticks_late_ns + ticks.late,
            tick_latest_ns: before.tick_latest_ns.max(ticks.latest),
            ..before
        }
    }

    /// Returns how many bytes of packets the receive buffers of one lane hold. A flow uses one
    /// lane.
    #[must_use]
    pub fn receive_bytes(&self) -> usize {
        self.receive_pool.data_bytes() / self.lanes.len()
    }

    /// Returns `true` if the server closed an endpoint of this session because its policy changed.
    /// The endpoint receives and sends nothing any more, and keeps its number until the application
    /// closes it. The session learns of it with the next event or when it sends, and
    /// [`Session::wait`] returns once.
    #[inline]
    #[must_use]
    pub fn is_revoked(&self, endpoint: Endpoint) -> bool {
        self.revoked != 0 && self.has_revoked_word(endpoint)
    }

    /// Returns the number of endpoints that the server closed because its policy changed, as far as
    /// the client knows.
    #[must_use]
    pub fn revoked_endpoints(&self) -> u64 {
        self.revoked
    }

    #[cold]
    fn has_revoked_word(&self, endpoint: Endpoint) -> bool {
        self.guard.is_parent() && self.lanes.iter().all(|lane| lane.has_revoked(endpoint.number))
    }

    /// Checks whether the server has closed endpoints.
    pub(crate) fn update_revoked(&mut self) {
        // An endpoint is closed once every engine has closed it.
        let revoked = self.lanes.iter().map(Lane::revoked).min().unwrap_or(0);
        self.revoked_untold |= std::mem::replace(&mut self.revoked, revoked) != revoked;
    }

    /// Returns `true` once after the server has closed endpoints.
    pub(crate) fn take_revoked(&mut self) -> bool {
        std::mem::take(&mut self.revoked_untold)
    }

    /// Returns why the session is over, now that the server has hung up.
    pub(crate) fn over(&mut self) -> Lost {
        if let Some(lost) = self.lost {
            return lost;
        }
        // One engine writes the violation; the others then end the session without a reason.
        let word = self.lanes.iter().map(Lane::closed).find(|word| *word != 0).unwrap_or(0);
        let lost = match (word, Violation::from_number(word)) {
            (_, Some(violation)) => Lost::Violated(violation),
            (CLOSED_BY_POLICY, _) => Lost::Revoked,
            (CLOSED_ADDRESS_GONE, _) => Lost::AddressGone,
            (CLOSED_QUEUE_BROKE, _) => Lost::QueueBroke,
            (CLOSED_AFTER_CRASHES, _) => Lost::ServersCrashed,
            _ => Lost::ServerGone,
        };
        *self.lost.insert(lost)
    }

    /// `true` if this is the process that attached. A child made by `fork` does not have the
    /// session's memory, and messages on its descriptors are for the parent.
    #[inline]
    pub(crate) fn is_parents(&self) -> bool {
        self.guard.is_parent()
    }

    /// Returns the guard, which memory keeps because its accesses do not take the session.
    pub(crate) fn guard(&self) -> &ForkGuard {
        &self.guard
    }

    /// Returns an error if the session is over, as far as the client knows.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if !self.guard.is_parent() {
            return Err(Lost::Forked);
        }
        self.lost.map_or(Ok(()), Err)
    }

    /// Ends the session because the server wrote an impossible value.
    pub(crate) fn wrong(&mut self, violation: Violation) -> Lost {
        *self.lost.get_or_insert(Lost::ServerWrong(violation))
    }
}

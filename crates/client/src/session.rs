//! A session: attaching, endpoints, and its end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use towpath_memory::{ForkGuard, own_words, peer_words};
use towpath_protocol::channel::Channel;
use towpath_protocol::message;
use towpath_queue::PoolShape;
use towpath_queue::buffers::FreeBuffers;

use crate::aperture_table::Apertures;
use crate::attach::{Attachment, Granted, ask_for_session, attach};
use crate::control::{Deadline, connect};
use crate::error::{AttachError, Lost, Refusal};
use crate::hold::DoorbellHold;
use crate::lanes::{EventLane, FirstLaneParts, lanes};
use crate::oob::Oob;
use crate::oob_queues::OobQueues;
use crate::options::{Endpoint, Info, Options, Statistics, read_info};
use crate::pool::{ReceivePool, TransmitPool};
use crate::ready::Ready;
use crate::receive::{Receive, Receiver};
use crate::reconnect::Resumable;
use crate::requests::Requests;
use crate::send::Sender;
use crate::status::Status;
use crate::transmit::Transmit;
use crate::tripwires::Tripwires;
use crate::waiter::Waiter;

/// An attachment to a driver server. The crate's documentation describes threads and `fork`.
///
/// A session opens and closes endpoints, and waits for news. Its parts do the rest:
///
/// | part | of | for |
/// |---|---|---|
/// | [`Sender`] | [`Session::sender`], [`Session::split`] | packets to send, their buffers and their publication |
/// | [`Receiver`] | [`Session::receiver`], [`Session::split`] | received packets |
/// | [`Oob`] | [`Session::oob`] | out-of-band messages and connections |
/// | [`Requests`] | [`Session::requests`] | requests to the apertures of peers |
/// | [`Memories`](crate::Memories) | [`Session::memories`] | memory, apertures and tripwires at the server |
/// | [`Tripwires`] | [`Session::tripwires`] | arming and firing tripwires |
///
/// Dropping a session ends it, with all of its endpoints. The engine still sends the packets that are
/// published.
pub struct Session {
    pub(crate) channel: Channel,
    /// How long the client waits for the answer to a request.
    pub(crate) answer_timeout: Duration,
    pub(crate) doorbell: OwnedFd,
    pub(crate) status: Status,
    pub(crate) transmit: Transmit,
    pub(crate) receive: Receive,
    pub(crate) event_lanes: Box<[EventLane]>,
    pub(crate) ready: Ready,
    pub(crate) waiter: Waiter,
    /// The queues of out-of-band messages, if the session has any.
    pub(crate) oob: Option<Box<OobQueues>>,
    /// The session's apertures and tripwires, if it can have any.
    pub(crate) apertures: Option<Box<Apertures>>,
    /// The sleeps, wake-ups and resumptions; the other fields are zero.
    pub(crate) statistics: Statistics,
    /// What the client needs when the server is killed; `None` if no server resumes the session.
    pub(crate) resumable: Option<Resumable>,
    /// The number of requests for endpoints so far.
    pub(crate) requests: u32,
    info: Info,
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
    /// ```
    /// # use towpath_client::*;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options { queue_pairs: 4, ..Options::default() };
    /// let session = Session::attach("/run/towpath/tap0.sock", &options)?;
    /// # Ok(()) }
    /// ```
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
            session.status.set_resumable();
        }
        Ok(session)
    }

    /// Attaches over a connected socket, from a server in this process or from another process.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(socket: std::os::fd::OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
    /// let session = Session::attach_over(socket, &Options::default())?;
    /// # Ok(()) }
    /// ```
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
        let receive_pool = PoolShape::new(buffers, shape.receive_pool.data_bytes());
        let receive_pool = receive_pool.ok_or_else(small)?;
        let receive_pool = ReceivePool::new(memories.receive_pool, receive_pool);
        let pool = TransmitPool::new(memories.transmit_pool, shape.transmit_pool);
        let pool = pool.ok_or_else(small)?;
        let mut lanes = lanes(&shape, wakes, own, &server, &state);
        let FirstLaneParts { oob, apertures, fired, requests } =
            lanes.first.ok_or_else(|| AttachError::Protocol("the session has no lanes".into()))?;
        let guard = ForkGuard::new()?;
        let apertures = Apertures::new(&shape, apertures, requests, memories.armed, fired, &guard);
        if granted.flags & message::OWN_QUEUE != 0
            && let Some(first) = lanes.receive_pairs.first_mut()
        {
            first.queue.allow_any_order();
        }
        let units = lanes.receive_pairs.len();
        let provided = options.provided.unwrap_or(u32::MAX).clamp(1, shape.queues.receive());
        let session = Session {
            channel,
            answer_timeout: options.answer_timeout,
            doorbell,
            transmit: Transmit {
                lanes: lanes.transmit.into_boxed_slice(),
                pairs: lanes.transmit_pairs,
                per_lane: shape.queue_pairs as usize,
                direct_bytes: if count > 1 { 0 } else { pool.data_bytes() },
                lent: pool.lent(guard.clone()),
                pool,
                free: FreeBuffers::new(0, shape.transmit_pool.buffers()),
                expedited_queue_pair: options.expedited_queue_pair,
                hold: DoorbellHold::default(),
                dirty: Vec::with_capacity(units),
                statistics: Statistics::default(),
            },
            receive: Receive::new(
                lanes.receive_pairs,
                lanes.receive_free,
                receive_pool.ok_or_else(small)?,
                provided,
            ),
            status: Status::new(guard, lanes.words),
            event_lanes: lanes.events.into_boxed_slice(),
            ready: Ready::new(units),
            waiter: Waiter::new(options.wait_strategy),
            oob,
            apertures,
            statistics: Statistics::default(),
            resumable: None,
            requests: 0,
            info: read_info(&granted),
        };
        Ok((session, granted.flags))
    }

    /// Returns the part that sends.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// session.sender().send_bytes(endpoint, packet)?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn sender(&mut self) -> Sender<'_> {
        Sender::new(&mut self.transmit, &self.status, &mut self.ready)
    }

    /// Returns the part that receives.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// session.receiver().receive(QueuePair::FIRST, 64, |packet| println!("{}", packet.len()))?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn receiver(&mut self) -> Receiver<'_> {
        // Applications often answer, so this prefetches the next free transmit buffer.
        if let Some(next) = self.transmit.free.next(0) {
            self.transmit.pool.prefetch(next, self.receive.last_len());
        }
        Receiver::new(&mut self.receive, &self.status)
    }

    /// Returns the parts that send and receive, so that the application sends while it reads a
    /// received packet in place. Both belong to one thread. The session waits again once both are
    /// dropped.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut sender, mut receiver) = session.split();
    /// receiver.receive(endpoint.queue_pair(), 64, |packet| {
    ///     if let Some(packet) = packet.contiguous() {
    ///         let _ = sender.send_bytes(endpoint, packet);
    ///     }
    /// })?;
    /// sender.flush()?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn split(&mut self) -> (Sender<'_>, Receiver<'_>) {
        if let Some(next) = self.transmit.free.next(0) {
            self.transmit.pool.prefetch(next, self.receive.last_len());
        }
        let sender = Sender::new(&mut self.transmit, &self.status, &mut self.ready);
        (sender, Receiver::new(&mut self.receive, &self.status))
    }

    /// Returns the part for out-of-band messages and connections.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let message = session.oob().receive(endpoint)?;
    /// # Ok(()) }
    /// ```
    pub fn oob(&mut self) -> Oob<'_> {
        let (oob, apertures) = (self.oob.as_deref_mut(), self.apertures.as_deref_mut());
        Oob::new(&mut self.transmit, &self.status, oob, apertures)
    }

    /// Returns the part for requests to the apertures of peers.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = session.requests().queue(endpoint, &Request::send(b"hello"))?;
    /// # Ok(()) }
    /// ```
    pub fn requests(&mut self) -> Requests<'_> {
        let table = self.apertures.as_mut().map(|apertures| &mut apertures.requests);
        Requests::new(&mut self.transmit, &self.status, table)
    }

    /// Returns the part that arms and fires tripwires.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: Tripwire) {
    /// session.tripwires().arm(tripwire);
    /// # }
    /// ```
    #[inline]
    pub fn tripwires(&mut self) -> Tripwires<'_> {
        let table = self.apertures.as_mut().and_then(|apertures| apertures.tripwires.as_mut());
        Tripwires::new(&mut self.transmit, &self.status, table)
    }

    /// Returns the server's grant to the session.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// println!("{} at {}", session.info().mac, session.info().device);
    /// # }
    /// ```
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    pub(crate) fn set_info(&mut self, info: Info) {
        self.info = info;
    }

    /// Returns why the session is over, if it is, as far as the client knows.
    /// [`Session::wait`], [`Session::arm`] and requests to the server notice that the server has ended. Calls
    /// that send and receive do not.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// if let Some(lost) = session.lost() {
    ///     println!("{lost}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        self.status.check().err()
    }

    /// Returns the client's counts.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// println!("{} packets received", session.statistics().received);
    /// # }
    /// ```
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (sending, ticks) = (self.transmit.statistics, self.waiter.ticks());
        let waiting = self.statistics;
        Statistics {
            received: self.receive.received(),
            sleeps: waiting.sleeps,
            wake_ups: waiting.wake_ups,
            resumptions: waiting.resumptions,
            ticks: waiting.ticks + ticks.kept,
            ticks_missed: waiting.ticks_missed + ticks.missed,
            ticks_late_ns: waiting.ticks_late_ns + ticks.late,
            tick_latest_ns: waiting.tick_latest_ns.max(ticks.latest),
            ..sending
        }
    }

    /// Returns how many data bytes a transmit buffer holds. A longer packet takes several.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// let is_one_buffer = 1514 <= session.transmit_buffer_bytes();
    /// # }
    /// ```
    #[must_use]
    pub fn transmit_buffer_bytes(&self) -> usize {
        self.transmit.pool.data_bytes()
    }

    /// Returns how many bytes of packets the receive buffers of one lane hold. A flow uses one
    /// lane.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// println!("bursts of up to {} bytes", session.receive_bytes());
    /// # }
    /// ```
    #[must_use]
    pub fn receive_bytes(&self) -> usize {
        self.receive.lane_bytes()
    }

    /// Returns `true` if the server closed an endpoint of this session: its policy changed, another session
    /// took over the endpoint's flow rule ([`Session::hand_over`]), or an endpoint for link control has no
    /// more use ([`Rule::link_control`](crate::Rule::link_control)). The endpoint receives and sends nothing any more, and keeps its number until the application
    /// closes it. The session learns of it with the next event or when it sends, and
    /// [`Session::wait`] returns once.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session, endpoint: Endpoint) {
    /// if session.is_revoked(endpoint) {
    ///     println!("the server has closed the endpoint");
    /// }
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn is_revoked(&self, endpoint: Endpoint) -> bool {
        self.status.is_revoked(endpoint)
    }

    /// Returns the number of endpoints of which [`Session::is_revoked`] is `true`, as far as the client
    /// knows.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session) {
    /// println!("{} endpoints are closed", session.revoked_endpoints());
    /// # }
    /// ```
    #[must_use]
    pub fn revoked_endpoints(&self) -> u64 {
        self.status.revoked()
    }
}

//! The control thread: accepts applications, decides, prepares, and hands over.
//!
//! It waits in one epoll and wakes for nothing else. Each wake-up handles one message of a
//! connection, and none before the engine has followed what the last one ordered, so that nobody
//! who floods holds up the others; who sends what is no message, never reads its answers, or
//! attaches and does not go on, is cut off.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{SocketFlags, accept_with};
use towpath_device::{DeviceError, Info};
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::memory::{Mapping, SharedFile};
use towpath_protocol::message::{self, ErrorBody, Message, Refusal};
use towpath_protocol::peer::{Peer, every_user_has_a_number};
use towpath_protocol::settings::Values;
use towpath_protocol::store::Store;
use tracing::{info, warn};

use crate::addresses::{Holder, Pool};
use crate::connection::{Connection, Hearing, Progress};
use crate::connections::Connections;
use crate::demux::{Rule, Sets};
use crate::orders::{Event, Order};
use crate::policy::Policy;
use crate::prepare::stored_name;

/// Who attaches has this long for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections accepted at one wake-up.
const ACCEPTS: usize = 16;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// What the server's owner asks of the control thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// Serve the peer on this connected socket: an application in the same process, or one that
    /// was handed a socket.
    Adopt(OwnedFd),
    /// End.
    Stop,
}

/// What is answered when the engine has followed an order.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(u64),
    Opened(u64, u32),
    Nothing,
}

/// What the control thread is made with.
pub(crate) struct Parts {
    /// The listening socket, if applications may come from outside.
    pub(crate) listener: Option<OwnedFd>,
    /// The device.
    pub(crate) info: Info,
    /// The state page.
    pub(crate) state: SharedFile,
    /// The state page, mapped.
    pub(crate) state_mapping: Arc<Mapping>,
    /// Which server this is.
    pub(crate) epoch: u64,
    /// Who may what.
    pub(crate) policy: Policy,
    /// Addresses to give.
    pub(crate) pool: Pool,
    /// No subnet was given: administrators may use any address.
    pub(crate) free_addresses: bool,
    /// The device's settings.
    pub(crate) settings: Values,
    /// Packets of a turn that the engine has memory for.
    pub(crate) batch: usize,
    /// Keeps what must outlive the server.
    pub(crate) store: Box<dyn Store>,
    /// To the engine.
    pub(crate) orders: Sender<(u64, Order)>,
    /// From the engine.
    pub(crate) events: Receiver<Event>,
    /// From the owner.
    pub(crate) requests: Receiver<Request>,
    /// Wakes the engine.
    pub(crate) engine_wake: Arc<OwnedFd>,
    /// Wakes this thread.
    pub(crate) wake: Arc<OwnedFd>,
}

/// The control thread.
pub(crate) struct Control {
    pub(crate) parts: Parts,
    pub(crate) state: OwnedFd,
    pub(crate) epoll: OwnedFd,
    pub(crate) own_uid: u32,
    all_users_known: bool,
    pub(crate) started: Instant,
    pub(crate) connections: Connections,
    pub(crate) next_token: u64,
    pub(crate) next_number: u32,
    pub(crate) next_ticket: u64,
    pub(crate) replies: HashMap<u64, Reply>,
    /// Whose each flow rule is.
    pub(crate) rules: HashMap<Rule, u32>,
    pub(crate) rule_sets: Sets,
    pub(crate) ended: Option<Result<(), DeviceError>>,
    pub(crate) stopping: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("device", &self.parts.info.name).finish_non_exhaustive()
    }
}

impl Control {
    /// Prepares to run.
    ///
    /// # Errors
    /// When descriptors are not to be had.
    pub(crate) fn new(parts: Parts) -> io::Result<Control> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &*parts.wake, data(WAKE), epoll::EventFlags::IN)?;
        if let Some(listener) = &parts.listener {
            epoll::add(&epoll, listener, data(LISTENER), epoll::EventFlags::IN)?;
        }
        Ok(Control {
            state: parts.state.read_only()?,
            parts,
            epoll,
            own_uid: rustix::process::geteuid().as_raw(),
            all_users_known: every_user_has_a_number(),
            started: Instant::now(),
            connections: Connections::default(),
            next_token: 0,
            next_number: 1,
            next_ticket: 0,
            replies: HashMap::new(),
            rules: HashMap::new(),
            rule_sets: Sets::default(),
            ended: None,
            stopping: false,
        })
    }

    /// Runs until told to stop, or until the engine has ended by itself.
    ///
    /// # Errors
    /// What ended the engine.
    pub(crate) fn run(mut self) -> Result<(), DeviceError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        loop {
            if let Some(outcome) = self.ended.take() {
                return outcome;
            }
            let timeout = self.next_deadline().map(|after| Timespec {
                tv_sec: after.as_secs() as i64,
                tv_nsec: i64::from(after.subsec_nanos()),
            });
            let count = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(error) => {
                    warn!("control thread: epoll: {error}");
                    self.stop();
                    0
                }
            };
            for event in &events[..count] {
                match event.data.u64() {
                    WAKE => self.woken(),
                    LISTENER => self.accept(),
                    data => self.heard(data >> 1, data & 1 == 1),
                }
            }
            // The engine's answers, also when its wake-up came with other events.
            self.engine_events();
            self.cut_off_the_late();
        }
    }

    fn woken(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.parts.wake, &mut count);
        while let Ok(request) = self.parts.requests.try_recv() {
            match request {
                Request::Adopt(socket) => self.adopt(socket),
                Request::Stop => self.stop(),
            }
        }
    }

    fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.order(Order::Stop, Reply::Nothing);
        }
    }

    pub(crate) fn order(&mut self, order: Order, reply: Reply) {
        self.next_ticket += 1;
        if let Reply::Done(token) | Reply::Opened(token, _) = &reply
            && let Some(connection) = self.connections.get_mut(*token)
        {
            connection.hearing = Hearing::Ordered;
        }
        self.replies.insert(self.next_ticket, reply);
        // An engine that is gone says so by its last event.
        if self.parts.orders.send((self.next_ticket, order)).is_ok() {
            let _ = rustix::io::write(&*self.parts.engine_wake, &1u64.to_ne_bytes());
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let (since, _) = self.connections.slowest()?;
        Some(
            (since + STEP_TIMEOUT).saturating_duration_since(Instant::now())
                + Duration::from_millis(1),
        )
    }

    fn cut_off_the_late(&mut self) {
        while let Some((since, token)) = self.connections.slowest()
            && since.elapsed() > STEP_TIMEOUT
        {
            self.hang_up(token);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.parts.listener else { return };
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.adopt(socket),
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    warn!("no descriptors left for a new connection; raise the limit (ulimit -n)");
                    // The listener stays readable: not at once again.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn adopt(&mut self, socket: OwnedFd) {
        let _ = rustix::io::ioctl_fionbio(&socket, true);
        let channel = Channel::new(socket);
        let refuse = |channel: &Channel, refusal, text: &str| {
            let _ = channel.send(&Message::Error(Box::new(ErrorBody::new(refusal, text))), &[]);
        };
        let peer = match Peer::of(&channel) {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("the kernel does not say who you are: {error}");
                return refuse(&channel, Refusal::Permission, &text);
            }
        };
        let standing = match self.parts.policy.standing(&peer, self.own_uid, self.all_users_known) {
            Ok(standing) => standing,
            Err((refusal, text)) => return refuse(&channel, refusal, &text),
        };
        let theirs = self.connections.of_user(peer.uid);
        if self.connections.len() >= self.parts.policy.connections
            || theirs >= self.parts.policy.sessions_per_user * 2
        {
            let text = "too many connections to this server; end some applications";
            return refuse(&channel, Refusal::Limit, text);
        }
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64;
        let heard = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &channel, data(token << 1), heard).is_err() {
            return refuse(&channel, Refusal::Limit, "no room to watch another connection");
        }
        if let Some(process) = &peer.process {
            // A child that inherited the connection would keep it open: the process' own end counts.
            let _ = epoll::add(&self.epoll, process, data(token << 1 | 1), heard);
        }
        let trusted = peer.uid == self.own_uid || peer.uid == 0;
        let connection = Connection {
            channel,
            peer,
            standing,
            trusted,
            progress: Progress::New,
            hearing: Hearing::Heard,
            since: Instant::now(),
            number: 0,
            name: String::new(),
            lease: None,
            shape: None,
            pages: None,
            endpoints: Vec::new(),
            free: (BinaryHeap::new(), 0),
        };
        self.connections.insert(token, connection);
    }

    /// One message, or the end, of a connection.
    fn heard(&mut self, token: u64, process_ended: bool) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if process_ended {
            return self.hang_up(token);
        }
        if connection.hearing != Hearing::Heard {
            // A hang-up is told once more, as an edge.
            if connection.hearing == Hearing::Ordered {
                connection.hearing = Hearing::Unheard;
                let data = epoll::EventData::new_u64(token << 1);
                let _ = epoll::modify(&self.epoll, connection, data, epoll::EventFlags::ET);
            }
            return;
        }
        match connection.channel.receive() {
            Ok(Incoming::Message(message, descriptors)) => {
                drop(descriptors);
                self.connections.step(token);
                self.asked(token, message);
            }
            Ok(Incoming::Nothing) => {}
            Ok(Incoming::End) | Err(ChannelError::Socket(_)) => self.hang_up(token),
            Err(error) => {
                let refusal = match &error {
                    ChannelError::Message(message::MessageError::Version(_)) => Refusal::Version,
                    _ => Refusal::Malformed,
                };
                let _ = connection.refuse(&(refusal, error.to_string()));
                self.hang_up(token);
            }
        }
    }

    /// The peer is gone, or is no longer heard.
    pub(crate) fn hang_up(&mut self, token: u64) {
        self.connections.settle(token);
        let Some(connection) = self.connections.get_mut(token) else { return };
        let number = connection.number;
        match std::mem::replace(&mut connection.progress, Progress::Over) {
            Progress::New => {
                self.drop_connection(token);
            }
            Progress::Given(prepared) => {
                drop(prepared);
                self.forget_session(token);
                self.drop_connection(token);
            }
            Progress::Lives => {
                info!(session = number, name = connection.name, "detached");
                let _ = epoll::delete(&self.epoll, &connection.channel);
                if let Some(process) = &connection.peer.process {
                    let _ = epoll::delete(&self.epoll, process);
                }
                self.order(Order::RemoveSession { number }, Reply::Nothing);
            }
            Progress::Over => {
                let _ = epoll::delete(&self.epoll, &connection.channel);
                if let Some(process) = &connection.peer.process {
                    let _ = epoll::delete(&self.epoll, process);
                }
                if number == 0 {
                    self.drop_connection(token);
                }
            }
        }
    }

    fn drop_connection(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(token) {
            let _ = epoll::delete(&self.epoll, &connection.channel);
            if let Some(process) = &connection.peer.process {
                let _ = epoll::delete(&self.epoll, process);
            }
        }
    }

    /// Gives back what the control thread holds for a session.
    pub(crate) fn forget_session(&mut self, token: u64) {
        let number = self.connections.take_number(token);
        let Some(connection) = self.connections.get_mut(token) else { return };
        let endpoints = std::mem::take(&mut connection.endpoints);
        let lease = connection.lease.take();
        let holder = Holder { uid: connection.peer.uid, name: connection.name.clone() };
        connection.pages = None;
        for opened in endpoints.iter().flatten() {
            self.forget_rule(opened);
        }
        if let Some(lease) = lease {
            self.parts.pool.release(&lease, holder);
        }
        self.parts.store.remove(&stored_name(number));
    }

    fn engine_events(&mut self) {
        loop {
            let event = match self.parts.events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    // It ended without a word: by a panic, which whoever joins its thread gets.
                    // A server without an engine serves nobody, so it ends too.
                    let name = self.parts.info.name.clone();
                    let cause = io::Error::other("the engine's thread ended early");
                    let failed = DeviceError::Failed { name, what: "serving", cause };
                    self.ended.get_or_insert(Err(failed));
                    return;
                }
            };
            match event {
                Event::Done { ticket } => {
                    if let Some(reply) = self.replies.remove(&ticket) {
                        self.reply(&reply);
                    }
                }
                Event::Removed(session) => {
                    let number = session.number;
                    drop(session);
                    if let Some(token) = self.connections.token_of(number) {
                        self.forget_session(token);
                        self.drop_connection(token);
                    }
                }
                Event::Violated { session, violation } => {
                    let theirs = self.connections.token_of(session);
                    let name = theirs
                        .and_then(|token| self.connections.get(token))
                        .map_or("", |one| &one.name);
                    warn!(session, name, %violation, "closed: its application broke the protocol");
                }
                Event::Stalled { packets } => warn!(
                    device = self.parts.info.name,
                    packets, "the device stalled: it is reset, and what it kept is sent again"
                ),
                Event::Recovered { resets } => {
                    info!(device = self.parts.info.name, resets, "the device works again");
                }
                Event::Ended(outcome) => self.ended = Some(outcome),
            }
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let (token, message) = match reply {
            Reply::Done(token) => (*token, Message::Done),
            Reply::Opened(token, number) => {
                (*token, Message::Opened(message::Opened { endpoint: *number }))
            }
            Reply::Nothing => return,
        };
        let Some(connection) = self.connections.get_mut(token) else { return };
        if std::mem::replace(&mut connection.hearing, Hearing::Heard) == Hearing::Unheard {
            // Of one that was hung up on meanwhile nothing is heard any more.
            let data = epoll::EventData::new_u64(token << 1);
            let _ = epoll::modify(&self.epoll, &*connection, data, epoll::EventFlags::IN);
        }
        if connection.answer(&message).is_err() {
            self.hang_up(token);
        }
    }
}

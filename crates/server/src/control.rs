//! The control thread: accepts applications, decides, prepares, and hands over.
//!
//! It waits in one epoll and wakes for nothing else. Each wake-up handles one message of a
//! connection, so that nobody who floods holds up the others; who sends what is no message, never
//! reads its answers, or attaches and does not go on, is cut off.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{SocketFlags, accept_with};
use towpath_device::{DeviceError, Info};
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::memory::{Mapping, SharedFile};
use towpath_protocol::message::{self, Attached, ErrorBody, Message, Open, Refusal, Set};
use towpath_protocol::peer::Peer;
use towpath_protocol::store::Store;
use tracing::{info, warn};

use crate::addresses::Pool;
use crate::connection::{Connection, Opened, Progress, Refused, read_attach, read_open};
use crate::demux::Rule;
use crate::engine::Mode;
use crate::orders::{Event, Order, Tap, tap_rule};
use crate::policy::{Policy, Standing};
use crate::prepare::{Prepared, session_bytes, stored_name};
use crate::report;
use crate::rights::Rights;
use crate::session::Endpoint;

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
enum Reply {
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
    /// How the engine waits.
    pub(crate) mode: Mode,
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
    parts: Parts,
    state: OwnedFd,
    epoll: OwnedFd,
    own_uid: u32,
    started: Instant,
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    next_number: u32,
    next_ticket: u64,
    replies: HashMap<u64, Reply>,
    rules: HashMap<Rule, u32>,
    ended: Option<Result<(), DeviceError>>,
    stopping: bool,
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
            started: Instant::now(),
            connections: BTreeMap::new(),
            next_token: 0,
            next_number: 1,
            next_ticket: 0,
            replies: HashMap::new(),
            rules: HashMap::new(),
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

    fn order(&mut self, order: Order, reply: Reply) {
        self.next_ticket += 1;
        self.replies.insert(self.next_ticket, reply);
        // An engine that is gone says so by its last event.
        if self.parts.orders.send((self.next_ticket, order)).is_ok() {
            let _ = rustix::io::write(&*self.parts.engine_wake, &1u64.to_ne_bytes());
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let waiting =
            |one: &&Connection| matches!(one.progress, Progress::New | Progress::Given(_));
        let oldest = self.connections.values().filter(waiting).map(|one| one.since).min()?;
        Some(
            (oldest + STEP_TIMEOUT).saturating_duration_since(Instant::now())
                + Duration::from_millis(1),
        )
    }

    fn cut_off_the_late(&mut self) {
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, one)| {
                matches!(one.progress, Progress::New | Progress::Given(_))
                    && one.since.elapsed() > STEP_TIMEOUT
            })
            .map(|(token, _)| *token)
            .collect();
        for token in late {
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
        let standing = match self.parts.policy.standing(&peer, self.own_uid) {
            Ok(standing) => standing,
            Err((refusal, text)) => return refuse(&channel, refusal, &text),
        };
        let theirs = self.connections.values().filter(|one| one.peer.uid == peer.uid).count();
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
            since: Instant::now(),
            number: 0,
            name: String::new(),
            lease: None,
            shape: None,
            pages: None,
            endpoints: Vec::new(),
        };
        self.connections.insert(token, connection);
    }

    /// One message, or the end, of a connection.
    fn heard(&mut self, token: u64, process_ended: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if process_ended {
            return self.hang_up(token);
        }
        match connection.channel.receive() {
            Ok(Incoming::Message(message, descriptors)) => {
                drop(descriptors);
                connection.since = Instant::now();
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

    fn asked(&mut self, token: u64, message: Message) {
        let outcome = match message {
            Message::Attach(attach) => self.attach(token, &attach),
            Message::Mapped => self.mapped(token),
            Message::Open(open) => self.open(token, &open),
            Message::Close(close) => self.close(token, close.endpoint),
            Message::Report => self.report(token),
            Message::Set(set) => self.set(token, set),
            Message::Attached(_)
            | Message::Opened(_)
            | Message::Reported
            | Message::Done
            | Message::Error(_) => {
                Err((Refusal::State, "this message is the server's to send".into()))
            }
        };
        let Some(connection) = self.connections.get(&token) else { return };
        if let Err(refused) = outcome
            && connection.refuse(&refused).is_err()
        {
            self.hang_up(token);
        }
    }

    fn attach(&mut self, token: u64, attach: &message::Attach) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        if !matches!(connection.progress, Progress::New) {
            return Err((Refusal::State, "attach: this connection has a session already".into()));
        }
        let (shape, wanted, name) = read_attach(attach)?;
        let policy = &self.parts.policy;
        let bytes = session_bytes(&shape);
        if bytes > policy.session_bytes {
            let text = format!(
                "attach: the session needs {bytes} bytes, at most {} are allowed; ask for fewer \
                 or smaller queues and frames",
                policy.session_bytes
            );
            return Err((Refusal::Limit, text));
        }
        if shape.endpoints > policy.endpoints_per_session {
            let text = format!(
                "attach: {} endpoints; at most {} are allowed",
                shape.endpoints, policy.endpoints_per_session
            );
            return Err((Refusal::Limit, text));
        }
        let uid = connection.peer.uid;
        let theirs =
            self.connections.values().filter(|one| one.number != 0 && one.peer.uid == uid).count();
        if theirs >= self.parts.policy.sessions_per_user {
            let text = format!("attach: user {uid} has {theirs} sessions, which is the limit");
            return Err((Refusal::Limit, text));
        }
        let lease = self.parts.pool.lease(wanted).map_err(|error| {
            let refusal = match error {
                crate::addresses::PoolError::InUse(_) => Refusal::InUse,
                crate::addresses::PoolError::Outside(_) => Refusal::NotFound,
                _ => Refusal::Limit,
            };
            (refusal, format!("attach: {error}"))
        })?;
        let number = self.next_number;
        let outcome = Prepared::new(number, shape, self.parts.store.as_mut());
        let (prepared, handed) = match outcome {
            Ok(both) => both,
            Err(error) => {
                self.parts.pool.release(&lease);
                self.parts.store.remove(&stored_name(number));
                return Err((Refusal::Limit, format!("attach: memory for the session: {error}")));
            }
        };
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let attached = Attached {
            epoch: self.parts.epoch,
            session: number,
            mtu: self.parts.info.mtu as u32,
            capabilities: message::CAN_CHECKSUM | message::CAN_SEGMENT,
            flags: if connection.trusted { message::TRUSTED } else { 0 },
            mac: lease.mac,
            ipv4_prefix: lease.ipv4.map_or(0, |(_, prefix)| prefix),
            ipv6_prefix: lease.ipv6.map_or(0, |(_, prefix)| prefix),
            ipv4: lease.ipv4.map_or([0; 4], |(ip, _)| ip.octets()),
            ipv4_gateway: lease.ipv4_gateway.map_or([0; 4], |ip| ip.octets()),
            ipv6: lease.ipv6.map_or([0; 16], |(ip, _)| ip.octets()),
            ipv6_gateway: lease.ipv6_gateway.map_or([0; 16], |ip| ip.octets()),
            device: message::fixed_name(&self.parts.info.name),
        };
        connection.number = number;
        connection.name = name;
        connection.lease = Some(lease);
        connection.shape = Some(shape);
        connection.endpoints = vec![None; shape.endpoints as usize];
        let sent = {
            let descriptors = prepared.descriptors(&handed, &self.state);
            connection.send_attached(attached, &descriptors)
        };
        connection.progress = Progress::Given(Box::new(prepared));
        if sent.is_err() {
            self.hang_up(token);
        }
        Ok(())
    }

    fn mapped(&mut self, token: u64) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let prepared = match std::mem::replace(&mut connection.progress, Progress::Lives) {
            Progress::Given(prepared) => prepared,
            other => {
                connection.progress = other;
                return Err((Refusal::State, "mapped: nothing was given to be mapped".into()));
            }
        };
        match prepared.finish(connection.number) {
            Ok((session, pages)) => {
                connection.pages = Some(pages);
                info!(
                    session = connection.number,
                    name = connection.name,
                    uid = connection.peer.uid,
                    pid = connection.peer.pid,
                    trusted = connection.trusted,
                    "attached"
                );
                self.order(Order::AddSession(session), Reply::Done(token));
                Ok(())
            }
            Err(error) => {
                connection.progress = Progress::Over;
                self.forget_session(token);
                Err((Refusal::Limit, format!("mapped: sealing or mapping the memory: {error}")))
            }
        }
    }

    fn open(&mut self, token: u64, open: &Open) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(&token) else { return Ok(()) };
        if !matches!(connection.progress, Progress::Lives) {
            return Err((Refusal::State, "open: there is no session on this connection".into()));
        }
        let opened = read_open(open, connection, self.parts.free_addresses)?;
        let number = connection.free_endpoint().ok_or_else(|| {
            let text = "open: the session has all endpoints that it asked for; attach with more";
            (Refusal::Limit, text.to_owned())
        })?;
        let session = connection.number;
        if opened.tap.is_none()
            && let Some(owner) = self.rules.get(&opened.rule)
        {
            let text = format!("open: session {owner} has an endpoint with the same flow rule");
            return Err((Refusal::InUse, text));
        }
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let (Some(lease), Some(slot)) =
            (connection.lease, connection.endpoints.get_mut(number as usize))
        else {
            return Ok(());
        };
        let rights = match opened.tap {
            Some(Tap::Capture) => Rights::nothing(tap_rule(lease.mac)),
            _ => Rights::new(opened.rule, lease.addresses()),
        };
        let endpoint = Endpoint {
            queue_set: opened.queue_set,
            rule: opened.rule,
            rights,
            offload: opened.offload,
            tap: opened.tap.is_some(),
            turn: 0,
            received: 0,
        };
        let (tap, group) = (opened.tap, opened.group);
        if tap.is_none() {
            self.rules.insert(opened.rule, session);
        }
        *slot = Some(opened);
        let order = Order::AddEndpoint { session, number, endpoint, tap, group };
        self.order(order, Reply::Opened(token, number));
        Ok(())
    }

    fn close(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let opened = connection.endpoints.get_mut(number as usize).and_then(Option::take);
        let session = connection.number;
        let Some(opened) = opened else {
            return Err((Refusal::NotFound, format!("close: there is no endpoint {number}")));
        };
        self.forget_rule(&opened);
        self.order(Order::RemoveEndpoint { session, number }, Reply::Done(token));
        Ok(())
    }

    fn forget_rule(&mut self, opened: &Opened) {
        if opened.tap.is_none() {
            self.rules.remove(&opened.rule);
        }
    }

    fn report(&mut self, token: u64) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(&token) else { return Ok(()) };
        let all = connection.standing == Standing::Administrator;
        let uid = connection.peer.uid;
        let report = report::Report {
            device: report::Device {
                name: self.parts.info.name.clone(),
                mac: report::mac_text(self.parts.info.mac),
                mtu: self.parts.info.mtu,
                mode: report::mode_text(self.parts.mode),
                epoch: self.parts.epoch,
                uptime_s: self.started.elapsed().as_secs(),
                counters: report::device_counters(&self.parts.state_mapping),
            },
            sessions: self
                .connections
                .values()
                .filter(|one| all || one.peer.uid == uid)
                .filter_map(report::session)
                .collect(),
        };
        let failed = |error: io::Error| (Refusal::Limit, format!("report: {error}"));
        let text = serde_json::to_vec(&report).map_err(|error| failed(error.into()))?;
        let file = SharedFile::create("towpath-report", text.len()).map_err(failed)?;
        let mapping = file.map_writable().map_err(failed)?;
        // The rest of the last page stays zero: it ends the text.
        if !mapping.copy_in(0, &text) {
            return Err((Refusal::Limit, "report: it does not fit".into()));
        }
        let reader = file.read_only().map_err(failed)?;
        if connection.channel.send(&Message::Reported, &[reader.as_fd()]).is_err() {
            self.hang_up(token);
        }
        Ok(())
    }

    fn set(&mut self, token: u64, set: Set) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(&token) else { return Ok(()) };
        if connection.standing != Standing::Administrator {
            let text = "set: only root and the server's user may change settings";
            return Err((Refusal::Permission, text.into()));
        }
        let mode = match (set.setting, set.value) {
            (message::SETTING_MODE, message::MODE_POLL) => Mode::Poll,
            (message::SETTING_MODE, message::MODE_INTERRUPT) => Mode::Interrupt,
            (message::SETTING_MODE, value) => {
                return Err((Refusal::NotFound, format!("set: there is no mode {value}")));
            }
            (setting, _) => {
                return Err((Refusal::NotFound, format!("set: there is no setting {setting}")));
            }
        };
        info!(mode = report::mode_text(mode), uid = connection.peer.uid, "mode set");
        self.parts.mode = mode;
        self.order(Order::SetMode(mode), Reply::Done(token));
        Ok(())
    }

    /// The peer is gone, or is no longer heard.
    fn hang_up(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
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
        if let Some(connection) = self.connections.remove(&token) {
            let _ = epoll::delete(&self.epoll, &connection.channel);
            if let Some(process) = &connection.peer.process {
                let _ = epoll::delete(&self.epoll, process);
            }
        }
    }

    /// Gives back what the control thread holds for a session.
    fn forget_session(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let endpoints = std::mem::take(&mut connection.endpoints);
        let lease = connection.lease.take();
        let number = std::mem::take(&mut connection.number);
        connection.pages = None;
        for opened in endpoints.iter().flatten() {
            self.forget_rule(opened);
        }
        if let Some(lease) = lease {
            self.parts.pool.release(&lease);
        }
        self.parts.store.remove(&stored_name(number));
    }

    fn engine_events(&mut self) {
        while let Ok(event) = self.parts.events.try_recv() {
            match event {
                Event::Done { ticket } => {
                    if let Some(reply) = self.replies.remove(&ticket) {
                        self.reply(&reply);
                    }
                }
                Event::Removed(session) => {
                    let number = session.number;
                    drop(session);
                    let token = self
                        .connections
                        .iter()
                        .find(|(_, one)| one.number == number)
                        .map(|(token, _)| *token);
                    if let Some(token) = token {
                        self.forget_session(token);
                        self.drop_connection(token);
                    }
                }
                Event::Violated { session, violation } => {
                    let name = self
                        .connections
                        .values()
                        .find(|one| one.number == session)
                        .map_or("", |one| &one.name);
                    warn!(session, name, %violation, "closed: its application broke the protocol");
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
        if let Some(connection) = self.connections.get(&token)
            && connection.answer(&message).is_err()
        {
            self.hang_up(token);
        }
    }
}

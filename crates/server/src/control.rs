//! The control thread: it accepts applications, decides, prepares, and hands sessions over to the
//! engine.
//!
//! It waits in one epoll set and wakes for nothing else. It touches no object that an application
//! can reach: the workers of the applications' users do that for it (`worker`). Each wake-up
//! handles one message of each worker. The worker reads a connection's next message only after the
//! control thread has answered the last one, so a flooding user delays no other. A connection ends
//! when it sends an invalid message, does not read its answers, or does not finish attaching.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use towpath_device::{Device, DeviceError, HardwareQueues, Info, TakeOver};
use towpath_memory::{Mapping, SharedFile};
use towpath_protocol::message::{self, Message};
use towpath_protocol::oob::OobAddress;
use towpath_protocol::peer::every_user_has_a_number;
use towpath_protocol::settings::Values;
use towpath_protocol::store::Store;
use tracing::{error, info, warn};

use crate::account::Account;
use crate::account::Party;
use crate::addresses::Pool;
use crate::apertures::copy_areas::CopyAreas;
use crate::apertures::disposals::Disposals;
use crate::apertures::importers::TripwireImporters;
use crate::apertures::tables::{ExportedAperture, MEMORIES, Released};
use crate::config::PolicyError;
use crate::connections::Connections;
use crate::engine::commands::{Command, EngineReport};
use crate::engine::demux::{Rule, Sets};
use crate::engine::own::HeaderMemory;
use crate::engines::{Engines, Reply};
use crate::filters::Filters;
use crate::freed::FreedLeases;
use crate::host::Host;
use crate::listeners::{ADMIN_LISTENER, AdminWarnings, LISTENER, Listeners};
use crate::log::LogLimit;
use crate::own_queues::OwnQueues;
use crate::policy::{Entrance, Policy, PolicyChange};
use crate::ports_in_use::PortsInUse;
use crate::position::Position;
use crate::queue_opener::QueueOpener;
use crate::resume::settings::ChangedSettings;
use crate::shares::Shares;
use crate::slow::Slow;
use crate::user_page::UserPages;
use crate::worker::spawner::Spawner;
use crate::worker::wire::Descriptors;
use crate::worker::workers::{Owner, Workers};

/// The time after which the control thread goes on with removals that the keeper had no room for.
const FLUSH: Duration = Duration::from_millis(2);

/// The epoll data of the control thread's own descriptors. Other values are worker numbers.
const WAKE: u64 = u64::MAX - 1;
const DEVICE: u64 = u64::MAX - 2;
const HOST: u64 = u64::MAX - 3;
const KEEPER: u64 = u64::MAX - 4;
/// Added to a connection's token: the event is the end of an unclaimed session's process.
pub(crate) const UNCLAIMED: u64 = 1 << 62;

/// A request of the server's owner to the control thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// Serves the peer on this connected socket, with an administrator's rights: an application in the same
    /// process, or one that was given the socket.
    Adopt(OwnedFd),
    /// Serves under another policy from now on, and tells what became of the sessions.
    Policy(Box<Policy>, Sender<Result<PolicyChange, PolicyError>>),
    /// Ends the server, and leaves its sessions for the next one.
    Leave,
    /// Ends the server.
    Stop,
}

/// The parts from which a control thread is made.
pub(crate) struct Parts {
    /// The listening sockets, if applications may connect from outside.
    pub(crate) listeners: Option<Listeners>,
    /// The control part of the device, which lives as long as its queue.
    pub(crate) device: Box<dyn Device>,
    /// The device's name in the log.
    pub(crate) device_name: String,
    /// The device's properties, with the interface's present name.
    pub(crate) info: Info,
    /// The state page.
    pub(crate) state: SharedFile,
    /// The state page, mapped.
    pub(crate) state_mapping: Arc<Mapping>,
    /// The identity of this server's run.
    pub(crate) epoch: u64,
    /// The rights of users.
    pub(crate) policy: Policy,
    /// Addresses for sessions.
    pub(crate) pool: Pool,
    /// `true` if no subnet was given: administrators may use any address.
    pub(crate) free_addresses: bool,
    /// The ledger of connections with other hosts, if endpoints may have some.
    pub(crate) rdma: Option<Arc<Mapping>>,
    /// `true` if sessions get addresses of their own.
    pub(crate) gives_addresses: bool,
    /// The host whose addresses applications share, if they do.
    pub(crate) host: Option<Host>,
    /// The device's settings.
    pub(crate) settings: Values,
    /// The device's settings that requests have changed, for a successor.
    pub(crate) changed_settings: ChangedSettings,
    /// Packets per poll iteration that the engine has memory for.
    pub(crate) batch: usize,
    /// `true` if a successor resumes the sessions of a server that leaves.
    pub(crate) leaves_after_changes: bool,
    /// How long a session of an earlier server waits for its application.
    pub(crate) claim_timeout: Duration,
    /// Keeps everything that must outlive the server.
    pub(crate) store: Box<dyn Store>,
    /// The engines.
    pub(crate) engines: Engines,
    /// Requests from the owner.
    pub(crate) requests: Receiver<Request>,
    /// Wakes this thread.
    pub(crate) wake: Arc<OwnedFd>,
    /// The engines' epoll sets, in which workers enter sessions.
    pub(crate) engine_epolls: Vec<OwnedFd>,
    /// The bounce buffers, for the own queues of sessions.
    pub(crate) headers: Option<HeaderMemory>,
    /// `true` if session memory is locked, because there is a swap device.
    pub(crate) locks_memory: bool,
    /// Where this thread records its position.
    pub(crate) position: Position,
    /// The descriptors that keep the state page in place.
    pub(crate) _state_pins: Descriptors,
}

/// The control thread.
pub(crate) struct Control {
    pub(crate) parts: Parts,
    pub(crate) state: OwnedFd,
    pub(crate) user_pages: UserPages,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) workers: Workers,
    pub(crate) slow: Slow,
    pub(crate) log: LogLimit,
    pub(crate) says_it_cannot_lock: bool,
    /// Notification counters that no session uses.
    pub(crate) free_counters: Vec<u32>,
    /// The last command to the engine about how it notifies.
    pub(crate) notifies_directly: bool,
    /// The first untrusted user that had a session, and whether a second one had.
    untrusted: (Option<u32>, bool),
    pub(crate) own_uid: u32,
    pub(crate) all_users_known: bool,
    pub(crate) started: Instant,
    pub(crate) connections: Connections,
    pub(crate) next_token: u64,
    pub(crate) next_number: u32,
    /// The owner of each flow rule.
    pub(crate) rules: HashMap<Rule, u32>,
    pub(crate) rule_sets: Sets,
    /// The ports of flow rules, by the rules without their ports.
    pub(crate) rule_ports: PortsInUse<Rule>,
    /// The ports at which endpoints take out-of-band messages, by the addresses without their ports.
    pub(crate) oob_ports: PortsInUse<OobAddress>,
    /// The apertures by their keys.
    pub(crate) exported_apertures: HashMap<u32, ExportedAperture>,
    pub(crate) tripwire_importers: TripwireImporters,
    /// Memories whose owners have released them, and which importers still map, by their ids, with
    /// the accounts of the importers as whose the memories count.
    pub(crate) released_memories: HashMap<u64, (Released, Account)>,
    pub(crate) copy_areas: CopyAreas,
    pub(crate) disposals: Disposals,
    pub(crate) memories: Shares,
    pub(crate) filters: Filters,
    pub(crate) own_queues: OwnQueues,
    pub(crate) freed: FreedLeases,
    /// The sessions that this server resumed, each with the time by which its application must have
    /// claimed it. An entry may be stale.
    pub(crate) unclaimed: VecDeque<(Instant, u64)>,
    pub(crate) ended: Option<Result<(), DeviceError>>,
    pub(crate) stopping: bool,
    /// The warnings to root and the server's user about the applications' socket.
    pub(crate) admin_warnings: AdminWarnings,
    /// When the thread listens for connections again, after it could not accept one.
    pub(crate) listens_again: Option<Instant>,
    /// The hardware queues at the last change of their number; `None` before a change.
    pub(crate) hardware_queues: Option<HardwareQueues>,
    /// `true` if the server leaves its sessions to the next one: for an upgrade, or after a
    /// failure.
    pub(crate) leaves: bool,
    /// The error that stops the control thread, if it stops without a request.
    pub(crate) failed: Option<DeviceError>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("device", &self.parts.info.name).finish_non_exhaustive()
    }
}

impl Control {
    /// Returns what has the device take over from that of an earlier server, whose flows it has by
    /// now.
    pub(crate) fn take_over_device(&mut self) -> Option<TakeOver> {
        self.parts.device.take_over()
    }

    /// Prepares to run.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn new(mut parts: Parts, spawner: Spawner) -> io::Result<Control> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let data = epoll::EventData::new_u64;
        epoll::add(&*epoll, &*parts.wake, data(WAKE), epoll::EventFlags::IN)?;
        if let Some(listeners) = &parts.listeners {
            listeners.watch(&epoll)?;
        }
        if let Some(fd) = parts.device.event_fd() {
            epoll::add(&*epoll, fd, data(DEVICE), epoll::EventFlags::IN)?;
        }
        if let Some(host) = &parts.host {
            epoll::add(&*epoll, host.event_fd(), data(HOST), epoll::EventFlags::IN)?;
        }
        if let Some(keeper) = parts.store.end_fd() {
            // Once, when the other side hangs up.
            let flags = epoll::EventFlags::HUP | epoll::EventFlags::ONESHOT;
            epoll::add(&*epoll, keeper, data(KEEPER), flags)?;
        }
        let takes_all = parts.device.own_queue_limits().is_ok_and(|limits| limits.takes_all);
        let opener = parts.device.own_queues();
        let opener = opener.map(|queues| QueueOpener::start(queues, parts.wake.clone()));
        let opener = opener.transpose()?;
        let engine_epolls = std::mem::take(&mut parts.engine_epolls);
        let sessions = parts.policy.connections as u32;
        Ok(Control {
            state: parts.state.read_only()?,
            user_pages: UserPages::new(),
            workers: Workers::new(spawner, engine_epolls, epoll.clone())?,
            epoll,
            slow: Slow::new(parts.locks_memory),
            says_it_cannot_lock: false,
            log: LogLimit::default(),
            free_counters: (0..sessions).rev().collect(),
            notifies_directly: true,
            untrusted: (None, false),
            own_uid: rustix::process::geteuid().as_raw(),
            all_users_known: every_user_has_a_number(),
            started: Instant::now(),
            connections: Connections::default(),
            // No connection has token 0: a report's cursor starts there.
            next_token: 1,
            next_number: 1,
            rules: HashMap::new(),
            rule_sets: Sets::default(),
            rule_ports: PortsInUse::default(),
            oob_ports: PortsInUse::default(),
            exported_apertures: HashMap::new(),
            tripwire_importers: TripwireImporters::default(),
            released_memories: HashMap::new(),
            copy_areas: CopyAreas::default(),
            disposals: Disposals::new(),
            memories: Shares::new(MEMORIES),
            filters: Filters::default(),
            own_queues: OwnQueues::new(parts.headers.take(), opener, takes_all),
            freed: FreedLeases::default(),
            unclaimed: VecDeque::new(),
            ended: None,
            stopping: false,
            admin_warnings: AdminWarnings::default(),
            listens_again: None,
            hardware_queues: None,
            leaves: false,
            failed: None,
            parts,
        })
    }

    /// Runs until a request stops it, or until the engine has ended by itself.
    ///
    /// # Errors
    /// Fails with the error that ended the engine.
    pub(crate) fn run(mut self) -> Result<(), DeviceError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        loop {
            if let Some(outcome) = self.ended.take() {
                self.end_all();
                return self.failed.take().map_or(outcome, Err);
            }
            let flush = self.parts.store.flush().then_some(FLUSH);
            let timeout = self.next_deadline().into_iter().chain(flush).min();
            let timeout = timeout.map(|after| Timespec {
                tv_sec: after.as_secs() as i64,
                tv_nsec: i64::from(after.subsec_nanos()),
            });
            let count = match epoll::wait(&*self.epoll, &mut events[..], timeout.as_ref()) {
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
                    LISTENER => self.accept(Entrance::Applications),
                    ADMIN_LISTENER => self.accept(Entrance::Administrators),
                    DEVICE => self.device_events(),
                    HOST => self.host_events(),
                    KEEPER => self.keeper_ended(),
                    unclaimed if unclaimed & UNCLAIMED != 0 => {
                        self.end_unclaimed(unclaimed & !UNCLAIMED, "its application has ended");
                    }
                    worker => self.hear(worker, event.flags),
                }
            }
            // This thread reads the engine's replies even if its wake-up came with other events.
            self.engine_events();
            self.go_on_slowly();
            self.expire_unclaimed();
            self.expire_freed();
            self.go_on_with_host();
            self.go_on_with_queues();
            self.give_up_workers();
            self.go_on_with_disposals();
            self.end_failed_connections();
            self.leave_for_added_queues();
            self.listen_again();
            self.look_at_earlier_workers();
        }
    }

    fn woken(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.parts.wake, &mut count);
        while let Ok(request) = self.parts.requests.try_recv() {
            match request {
                Request::Adopt(socket) => self.adopt(socket, Entrance::Administrators),
                Request::Policy(policy, answer) => {
                    let _ = answer.send(self.set_policy(*policy));
                }
                Request::Leave => {
                    self.leave();
                }
                Request::Stop => self.stop(),
            }
        }
    }

    /// Ends the server, and leaves sessions and device to the next one if there is one. The device
    /// works.
    pub(crate) fn leave(&mut self) {
        self.leaves = self.parts.store.outlives_server();
        if self.leaves {
            self.parts.device.leave();
        }
        self.stop();
    }

    /// Ends the server: without a keeper, nothing could resume its sessions.
    fn keeper_ended(&mut self) {
        error!(
            "the keeper has ended, and so this server ends; start the keeper again (towpath serve or up)"
        );
        self.stop();
    }

    pub(crate) fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            let stop = if self.leaves { Command::Leave } else { Command::Stop };
            self.command(stop, Reply::Nothing);
        }
    }

    pub(crate) fn command(&mut self, command: Command, reply: Reply) {
        self.parts.engines.command(command, reply);
    }

    /// Decides whether the engine itself notifies applications, after a connection gained or lost
    /// its session. An application can make a notification take arbitrarily long. The engine
    /// therefore notifies only if no other user has to wait meanwhile. Once two untrusted users
    /// have had sessions, the decision stays negative, because they could come and go.
    pub(crate) fn decide_who_notifies(&mut self, token: u64) {
        if let Some(connection) = self.connections.get(token)
            && !connection.is_administrators()
        {
            let (first, several) = &mut self.untrusted;
            let uid = connection.account.uid;
            *several |= *first.get_or_insert(uid) != uid;
        }
        let directly = !self.untrusted.1 && !self.connections.serve_several();
        if directly != self.notifies_directly {
            self.notifies_directly = directly;
            self.command(Command::Notify { directly }, Reply::Nothing);
            if !directly {
                self.stop_mapping();
            }
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        if !self.slow.is_empty() {
            return Some(Duration::ZERO);
        }
        let host = self.parts.host.as_ref().and_then(Host::next_deadline);
        let workers = self.workers.next_deadline().map(|deadline| {
            deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let queues = self.own_queues.next_deadline();
        let unclaimed = self.unclaimed.front().map(|(deadline, _)| {
            deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let freed = self.freed.next_deadline();
        let listens = self.listens_again.map(|at| at.saturating_duration_since(Instant::now()));
        let copies = self.copy_areas.next_deadline();
        let disposals = self.disposals.next_deadline();
        [host, workers, queues, unclaimed, freed, listens, copies, disposals]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the worker of a user. Without the spawner process the server ends, because it could
    /// serve no new user.
    pub(crate) fn worker_of(&mut self, owner: Owner) -> Option<u64> {
        match self.workers.of(owner) {
            Ok(worker) => Some(worker),
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                let name = self.parts.info.name.clone();
                let what = "making worker processes";
                let cause = io::Error::other("the process that they are made from has ended");
                self.failed.get_or_insert(DeviceError::Failed { name, what, cause });
                self.leave();
                None
            }
            Err(cause) => {
                if self.log.allows(Party::Administrator(self.own_uid)) {
                    warn!("no worker process for a user: {cause}");
                }
                None
            }
        }
    }

    fn engine_events(&mut self) {
        while let Some(report) = self.parts.engines.next_report(&self.parts.info.name) {
            match report {
                EngineReport::Done { ticket } => {
                    if let Some(reply) = self.parts.engines.executed(ticket) {
                        self.reply(reply);
                    }
                }
                EngineReport::Closed { session, doorbell } => {
                    self.lane_closed(session, doorbell);
                }
                EngineReport::Removed(session) => self.session_ended(session),
                EngineReport::NeighbourWanted(request) => self.queue_neighbour_request(request),
                EngineReport::Violated { session, violation } => {
                    self.log_violation(session, violation)
                }
                EngineReport::Stalled { packets } => warn!(
                    device = self.parts.device_name,
                    packets, "the device stalled: it is reset, and what it kept is sent again"
                ),
                EngineReport::Recovered { resets } => {
                    info!(device = self.parts.device_name, resets, "the device works again");
                }
                // Only this lane's engine knows of the claim: announcements arrive on one lane.
                EngineReport::FreedClaimed { mac } => self.stop_answering_for(mac),
                EngineReport::Aperture(report) => self.aperture_report(&report),
                EngineReport::Ceded { hardware, queue } => self.ceded(hardware, queue),
                EngineReport::OwnQueueBroke { session } => self.own_queue_broke(session),
                EngineReport::Ended(outcome) => {
                    self.leaves |= self.parts.store.outlives_server()
                        && outcome.as_ref().is_err_and(|error| !error.is_gone());
                    self.ended = self.parts.engines.engine_ended(outcome);
                    // The others end, too: every session needs all engines.
                    self.stop();
                }
            }
        }
    }

    fn reply(&mut self, reply: Reply) {
        let (token, message) = match reply {
            Reply::Done(token) => (token, Message::Done),
            Reply::Closed(token, rule) => {
                if let (Some(host), Some(rule)) = (&mut self.parts.host, rule) {
                    host.release(&rule);
                }
                let Some(token) = token else { return };
                (token, Message::Done)
            }
            Reply::Opened(token, endpoint, port) => {
                let port = u32::from(port);
                (token, Message::Opened(message::Opened { endpoint, port }))
            }
            Reply::MemoryCreated(token, number) => return self.answer_memory(token, number),
            Reply::MemoryUnused(memory) => return self.unmap(memory),
            Reply::MemoryRemoved(token, number) => {
                self.release_memory(token, number);
                (token, Message::Done)
            }
            Reply::Exported(token, number) => return self.answer_export(token, number),
            Reply::Imported(token, number) => return self.answer_import(token, number),
            Reply::TripwireSet(token, number) => {
                (token, Message::Created(message::Created { number, key: 0 }))
            }
            Reply::TripwireImported(token, created, armed) => {
                return self.answer_with(token, &Message::Created(created), vec![armed], 0);
            }
            Reply::Claimed(token, handed) => return self.answer_claimed(token, handed),
            Reply::FlagRemoved(uid, page) => return self.dispose_of_user_page(uid, *page),
            Reply::Nothing => return,
        };
        self.answer(token, &message);
    }
}

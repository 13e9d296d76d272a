//! The control thread's part, as far as the simulation needs it: sessions are prepared, restored
//! and claimed by the functions that the control thread uses.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with};
use towpath_client::{Access, Endpoint, OobAddress, Options, Rule, Session};
use towpath_engine::account::Account;
use towpath_engine::apertures::commands::{ApertureCommand, Exporting};
use towpath_engine::apertures::memory::EngineMemory;
use towpath_engine::commands::{Claim, Command, EngineReport};
use towpath_engine::oob::connection::EndpointName;
use towpath_engine::reach::Reach;
use towpath_engine::session::doorbell::Doorbell;
use towpath_engine::testing::{self, MAC, endpoint};
use towpath_engine::wake_data;
use towpath_memory::SharedFile;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::layout::{STATE_WORDS, SessionShape};
use towpath_protocol::message::{self, Attached, Created, Message, Opened};
use towpath_protocol::store::{MemoryStore, Store};
use towpath_queue::OwnWords;

use super::messages::{address, port, second_port};
use super::transfers::{INBOX_BYTES, MEMORY_BYTES, Means, key, means};
use crate::prepare::{ARMED, Files, MEMORIES, Mapped, Prepared, wake};

/// An application with a session.
pub(super) struct AttachedApplication {
    pub(super) session: Session,
    pub(super) endpoint: Endpoint,
    pub(super) means: Means,
    /// The words that the application writes.
    pub(super) words: OwnWords,
}

/// The control thread's ends of the channels to an engine.
pub(super) struct EngineEnds {
    pub(super) commands: Sender<(u64, Command)>,
    pub(super) reports: Receiver<EngineReport>,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) epoll: OwnedFd,
}

/// A claim that the engine has yet to execute.
struct Claiming {
    ticket: u64,
    number: u32,
    channel: Channel,
    handed: Vec<OwnedFd>,
}

/// A server's own part, which ends with it.
#[derive(Default)]
pub(super) struct Server {
    pub(super) ends: Option<EngineEnds>,
    ticket: u64,
    asking: Vec<Channel>,
    claiming: Vec<Claiming>,
    /// The connections of claimed sessions.
    claimed: Vec<Channel>,
    /// The numbers of the sessions whose applications know this server.
    pub(super) served: Vec<u32>,
    pub(super) resets: u64,
}

/// What outlives a server.
pub(super) struct Keeper {
    listener: OwnedFd,
    shape: SessionShape,
    store: MemoryStore,
    state: SharedFile,
    sessions: u32,
    /// The memories of the sessions, for requests.
    memories: Vec<SharedFile>,
    /// Sessions that violated the protocol.
    over: Vec<u32>,
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

fn received(channel: &Channel) -> Option<Incoming> {
    let mut polled = [PollFd::new(channel, PollFlags::IN)];
    let some = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0);
    some.then(|| channel.receive().unwrap())
}

impl Keeper {
    /// Listens at a path for the applications of sessions with these options.
    pub(super) fn new(path: &Path, options: &Options) -> Keeper {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&listener, 64).unwrap();
        let shape = options.shape().unwrap();
        let state = SharedFile::create("simulated-state", STATE_WORDS * 8).unwrap();
        let (store, memories) = (MemoryStore::default(), Vec::new());
        Keeper { listener, shape, store, state, sessions: 0, memories, over: Vec::new() }
    }

    pub(super) fn state(&self) -> &SharedFile {
        &self.state
    }

    fn attached(&self, number: u32) -> Attached {
        Attached {
            epoch: 1,
            session: number,
            mtu: 1500,
            lanes: 1,
            capabilities: 0,
            flags: message::TRUSTED | message::RESUMABLE,
            mac: MAC,
            ipv4_prefix: 24,
            ipv6_prefix: 0,
            ipv4: [192, 0, 2, 2],
            ipv4_gateway: [0; 4],
            ipv6: [0; 16],
            ipv6_gateway: [0; 16],
            device: message::fixed_name("simulated"),
        }
    }

    /// Attaches an application, by the client library, and opens its endpoints. Returns the application
    /// with the words that it writes.
    pub(super) fn attach(&mut self, path: &Path, options: &Options) -> AttachedApplication {
        self.sessions += 1;
        let number = self.sessions;
        let (path, options) = (path.to_owned(), options.clone());
        let own = number as usize - 1;
        let [rule, second] =
            [port(own), second_port(own)].map(|port| Rule::new().udp(port).out_of_band());
        let application = std::thread::spawn(move || {
            let mut session = Session::attach(path, &options).unwrap();
            let endpoint = session.open(&rule).unwrap();
            let second = session.open(&second).unwrap();
            let means = means(&mut session, second);
            (session, endpoint, means)
        });
        let socket = accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap();
        let channel = Channel::new(socket);
        let next = || match channel.receive().unwrap() {
            Incoming::Message(message, _) => message,
            other => panic!("{other:?}"),
        };
        assert!(matches!(next(), Message::Attach(_)));
        let state = self.state.read_only().unwrap();
        let (prepared, handed) =
            Prepared::new(number, (self.shape, 1), &state, &mut self.store).unwrap();
        let handed: Vec<_> = handed.iter().map(AsFd::as_fd).collect();
        channel.send(&Message::Attached(self.attached(number)), &handed).unwrap();
        assert!(matches!(next(), Message::Mapped));
        // As the worker does, once the application has mapped what it writes.
        let words = prepared.application_words().unwrap();
        let files = prepared.files_to_prepare().unwrap();
        let armed = prepared.armed().unwrap();
        for theirs in files[3..5].iter().chain(&armed) {
            let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(theirs, seals).unwrap();
        }
        channel.send(&Message::Done, &[]).unwrap();
        for (endpoint, port) in [(0, port(own)), (1, second_port(own))] {
            assert!(matches!(next(), Message::Open(_)));
            let opened = Opened { endpoint, port: u32::from(port) };
            channel.send(&Message::Opened(opened), &[]).unwrap();
        }
        assert!(matches!(next(), Message::CreateMemory(_)));
        let memory = SharedFile::create("simulated-memory", MEMORY_BYTES).unwrap();
        let created = Message::Created(Created { number: 0, key: 0 });
        channel.send(&created, &[memory.as_fd()]).unwrap();
        self.memories.push(memory);
        assert!(matches!(next(), Message::SetTripwire(_)));
        channel.send(&created, &[]).unwrap();
        // The server that the application attached to ends here: the first one of the simulation
        // resumes the session, as every other does.
        let (session, endpoint, means) = application.join().unwrap();
        AttachedApplication { session, endpoint, means, words }
    }

    /// Connects the second endpoints of the first two sessions, and exports their inboxes, as if a
    /// server had done so.
    pub(super) fn connect(&self) {
        for number in 1..=self.sessions.min(2) {
            let (_, mut mapped) = self.map(number);
            let session = &mut mapped.sessions[0];
            let peer = EndpointName { session: 3 - number, endpoint: 1 };
            testing::set_connected(session, 1, peer);
            testing::set_valid(session, 0);
        }
    }

    /// Maps the sessions of the server before, and has the engine serve them.
    pub(super) fn restore(&self, server: &mut Server) -> Vec<Mapped> {
        let numbers = (1..=self.sessions).filter(|number| !self.over.contains(number));
        numbers.filter_map(|number| self.restore_one(number, server)).collect()
    }

    fn map(&self, number: u32) -> (Files, Mapped) {
        let contents = self.store.contents().unwrap();
        let (mut files, mut armed) = (MEMORIES.map(|_| None), None);
        for (name, file) in contents {
            let at = MEMORIES.iter().position(|one| name == format!("session-{number}-{one}"));
            if let Some(at) = at {
                files[at] = Some(file);
            } else if name == format!("session-{number}-{ARMED}") {
                armed = Some(file);
            }
        }
        let files = Files::adopt(files, armed, &self.shape, 1).unwrap();
        let mapped = files.map_unclaimed(number, self.shape, 1).unwrap();
        (files, mapped)
    }

    fn restore_one(&self, number: u32, server: &mut Server) -> Option<Mapped> {
        let (_files, mut mapped) = self.map(number);
        if mapped.sessions[0].is_closed() {
            return None;
        }
        let mut session = Box::new(mapped.sessions.pop().unwrap());
        let account = Account { uid: u32::MAX, group: None, is_limited: true };
        session.set_terms(account, Reach::All, None);
        server.command(Command::AddSession(session));
        let own = number as usize - 1;
        for (endpoint_number, port) in [(0, port(own)), (1, second_port(own))] {
            let mut opened = endpoint(port);
            opened.is_resumed = true;
            opened.oob = [OobAddress { port, ..address(own) }].into();
            let (listening, group) = (None, false);
            let endpoint = Box::new(opened);
            server.command(Command::AddEndpoint {
                session: number,
                number: endpoint_number,
                endpoint,
                listening,
                group,
            });
        }
        self.restore_memory(number, server);
        Some(mapped)
    }

    /// Enters a session's memory, its tripwire and its aperture, as `Control::restore_exports`
    /// does.
    fn restore_memory(&self, number: u32, server: &mut Server) {
        let memory = self.memories[number as usize - 1].map_common(true).unwrap();
        let memory = EngineMemory::Mapped(memory);
        let add = ApertureCommand::AddMemory { session: number, number: 0, memory };
        let range = (0, INBOX_BYTES as u64);
        let access = Some(Access::Write);
        let set =
            ApertureCommand::SetTripwire { session: number, number: 0, memory: 0, range, access };
        let mut all = vec![add, set];
        if self.sessions > 1 && number <= 2 {
            all.push(ApertureCommand::Export(Box::new(Exporting {
                key: key(number as usize - 1).0,
                owner: EndpointName { session: number, endpoint: 1 },
                number: 0,
                memory: 0,
                offset: 0,
                len: INBOX_BYTES as u64,
                access: Access::Write,
                resumed_for: Some(EndpointName { session: 3 - number, endpoint: 1 }),
            })));
        }
        for command in all {
            server.command(Command::Aperture(command));
        }
    }

    /// Returns `true` if the control thread has something to do.
    pub(super) fn can_act(&self, server: &Server) -> bool {
        is_readable(&self.listener)
            || server.asking.iter().any(|channel| {
                let mut polled = [PollFd::new(channel, PollFlags::IN)];
                poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
            })
    }

    /// Accepts connections, and passes claims to the engine.
    pub(super) fn act(&mut self, server: &mut Server) {
        if is_readable(&self.listener) {
            let socket = accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap();
            server.asking.push(Channel::new(socket));
        }
        for channel in std::mem::take(&mut server.asking) {
            match received(&channel) {
                None => server.asking.push(channel),
                Some(Incoming::Message(Message::Resume(resume), _)) => {
                    server.claim(resume.session, channel);
                }
                // The application asked a server before this one.
                Some(Incoming::End) => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// Returns the sessions that violated the protocol.
    pub(super) fn over(&self) -> &[u32] {
        &self.over
    }

    /// Reads the engine's reports, and answers the applications whose sessions it serves. Returns
    /// `true` once the engine has ended.
    pub(super) fn handle_reports(&mut self, server: &mut Server) -> bool {
        while let Some(report) = server.ends.as_ref().and_then(|ends| ends.reports.try_recv().ok())
        {
            match report {
                EngineReport::Done { ticket } => {
                    let at = server.claiming.iter().position(|one| one.ticket == ticket);
                    if let Some(claiming) = at.map(|at| server.claiming.remove(at)) {
                        let answer = Message::Attached(self.attached(claiming.number));
                        let handed: Vec<_> = claiming.handed.iter().map(AsFd::as_fd).collect();
                        let sent = claiming.channel.send(&answer, &handed);
                        sent.unwrap();
                        server.claimed.push(claiming.channel);
                        server.served.push(claiming.number);
                    }
                }
                EngineReport::Stalled { .. } => server.resets += 1,
                EngineReport::Violated { session, .. } => {
                    self.over.push(session);
                    server.claiming.retain(|one| one.number != session);
                }
                EngineReport::Recovered { .. }
                | EngineReport::Aperture(_)
                | EngineReport::Closed { .. }
                | EngineReport::Removed(_) => {}
                EngineReport::Ended(outcome) => {
                    outcome.unwrap();
                    return true;
                }
                other => panic!("{other:?}"),
            }
        }
        false
    }
}

impl Server {
    pub(super) fn new(ends: EngineEnds) -> Server {
        Server { ends: Some(ends), ..Server::default() }
    }

    pub(super) fn command(&mut self, command: Command) -> u64 {
        self.ticket += 1;
        if let Some(ends) = &self.ends {
            ends.commands.send((self.ticket, command)).unwrap();
            rustix::io::write(&*ends.wake, &1u64.to_ne_bytes()).unwrap();
        }
        self.ticket
    }

    /// Gives a session to its application, as `Control::hand_to_application` does.
    fn claim(&mut self, number: u32, channel: Channel) {
        let (ours, theirs) = towpath_protocol::doorbell::pair().unwrap();
        let (wake, event) = wake().unwrap();
        let Some(ends) = &self.ends else { return };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(wake_data(number));
        epoll::add(&ends.epoll, &wake, data, flags).unwrap();
        let claim =
            Claim { session: number, doorbell: Doorbell::direct(ours), wake, account: None };
        let ticket = self.command(Command::ClaimSession(Box::new(claim)));
        self.claiming.push(Claiming { ticket, number, channel, handed: vec![theirs, event] });
    }
}

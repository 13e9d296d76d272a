//! A server: engines and a control thread around a device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use towpath_device::{Device, DeviceError, Info};
use towpath_memory::{ForkGuard, HUGE_PAGE_BYTES, Mapping, Region, SharedFile};
use towpath_protocol::layout::STATE_WORDS;
use towpath_protocol::settings::Values;
use towpath_protocol::store::Store;
use towpath_queue::PeerWords;
use towpath_waiting::Costs;
use tracing::info;

use crate::addresses::{Pool, Subnets};
use crate::apertures::tables::MEMORIES;
use crate::config::{Config, FORKED, LEAST_RDMA_MTU, PolicyError, StartError, bind_to_processor};
use crate::control::{Control, Parts, Request};
use crate::engine::relays::Relays;
use crate::engine::remote::LEDGER_BYTES;
use crate::engine::{Budgets, Engine, Link};
use crate::engines::{EngineEnd, Engines};
use crate::host::Host;
use crate::keeper::stored_name;
use crate::listeners::Listeners;
use crate::policy::{Policy, PolicyChange};
use crate::position::{self, POSITIONS, Position};
use crate::resume::left::{Left, RDMA, STATE};
use crate::resume::settings::ChangedSettings;
use crate::socket::{Bound, STORED_ADMIN_NAME, STORED_NAME, bind, bind_admin};
use crate::worker::copies::Copies;
use crate::worker::held::{Doorbells, Entries};
use crate::worker::pin::pin;
use crate::worker::process::Tables;
use crate::worker::spawner::Spawner;
use crate::worker::wire::Descriptors;

/// The time limit of each step of an application that attaches: a silent connection holds a
/// descriptor.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops the server and waits.
///
/// A server belongs to the process that started it. In a child made by `fork`, calls fail at once, and a drop has no
/// effect.
#[derive(Debug)]
pub struct Server {
    guard: ForkGuard,
    /// The device's name.
    name: String,
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    control: Option<ControlThread>,
    engines: Vec<JoinHandle<()>>,
    over: OwnedFd,
    bound: Vec<Bound>,
    /// `true` if a next server can resume the sessions when this one fails.
    has_successor: bool,
}

type ControlThread = JoinHandle<Result<(), DeviceError>>;

/// Wakes the control thread when the engine's thread ends for any reason.
struct WakesAtTheEnd(Arc<OwnedFd>);

impl Drop for WakesAtTheEnd {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Server {
    /// Starts to serve a device.
    ///
    /// # Errors
    /// [`StartError`] names the obstacle.
    pub fn start(
        config: &Config,
        device: Box<dyn Device>,
        store: Box<dyn Store>,
    ) -> Result<Server, StartError> {
        let Unstarted { mut control, engines, requests, wake, mut bound, has_successor } =
            Unstarted::new(config, device, store)?;
        let guard = ForkGuard::new().map_err(resources("the guard against forks"))?;
        let name = control.parts.info.name.clone();
        let engines = run_engines(engines, &config.engine_cpus, &wake)?;
        let take_over = control.take_over_device();
        let (control, over) = run_control(control)?;
        bound.iter_mut().for_each(Bound::take);
        let control = Some(control);
        let server =
            Server { guard, name, requests, wake, control, engines, over, bound, has_successor };
        // Resumed sessions are served meanwhile.
        if let Some(Err(error)) = take_over.map(|take_over| take_over()) {
            let _ = server.leave();
            return Err(StartError::Device(error));
        }
        Ok(server)
    }

    fn request(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns a control connection for an application in this process, or for handing to another
    /// process. The connection has an administrator's rights.
    ///
    /// # Errors
    /// Fails with the error of `socketpair`, and in a child made by `fork`.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        if !self.guard.is_parent() {
            return Err(forked());
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let _ = towpath_protocol::peer::refuse_descriptors(&ours);
        self.request(Request::Adopt(ours));
        Ok(theirs)
    }

    /// Serves under another policy from now on. Sessions of users who may not attach any more are
    /// closed, and so are endpoints that their users' terms do not allow. The new limits hold for
    /// later requests, and the new settings for endpoints opened later. [`Policy::connections`]
    /// stays as it was, and [`Policy::may_change`] must have been `true` at the start, for other
    /// users to reach the socket.
    ///
    /// # Errors
    /// [`PolicyError`]; then the old policy stays in force.
    pub fn set_policy(&self, policy: Policy) -> Result<PolicyChange, PolicyError> {
        if !self.guard.is_parent() {
            return Err(PolicyError::Forked);
        }
        let (answer, answered) = channel();
        self.request(Request::Policy(Box::new(policy), answer));
        answered.recv().unwrap_or(Err(PolicyError::Ended))
    }

    /// Returns a descriptor that hangs up when the server has ended for any reason, for use with
    /// `poll`.
    #[must_use]
    pub fn over(&self) -> &OwnedFd {
        &self.over
    }

    /// Stops the server, and leaves its sessions and its socket for the next one, if its store
    /// outlives it. Nothing is lost: the engines carry out what they have begun.
    ///
    /// # Errors
    /// Fails with the device's error.
    ///
    /// # Panics
    /// If a thread of the server has panicked.
    pub fn leave(mut self) -> Result<(), DeviceError> {
        if self.guard.is_parent() {
            if self.has_successor {
                self.bound.iter_mut().for_each(Bound::leave);
            }
            self.request(Request::Leave);
        }
        self.end()
    }

    /// Stops the server, if it has not ended by itself, and returns how it ended. A server that
    /// failed leaves its sessions and its socket for the next one, if its store outlives it.
    ///
    /// # Errors
    /// Fails with the device's error.
    ///
    /// # Panics
    /// If a thread of the server has panicked.
    pub fn stop(mut self) -> Result<(), DeviceError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        if !self.guard.is_parent() {
            self.forget();
            let (name, cause) = (self.name.clone(), forked());
            return Err(DeviceError::Failed { name, what: "ending the server", cause });
        }
        self.request(Request::Stop);
        let outcome = self.control.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ends: Vec<_> = self.engines.drain(..).map(JoinHandle::join).collect();
        let ends_in_order = match &outcome {
            Ok(outcome) => outcome.as_ref().err().is_none_or(DeviceError::is_gone),
            Err(_) => false,
        };
        if self.has_successor && !ends_in_order {
            self.bound.iter_mut().for_each(Bound::leave);
        }
        let panic = ends.into_iter().find_map(Result::err);
        match (outcome, panic) {
            (Err(panic), _) | (_, Some(panic)) => std::panic::resume_unwind(panic),
            (Ok(outcome), None) => outcome,
        }
    }

    /// Leaves threads, channel and socket to the parent of this process. This process must not close the channel: a
    /// thread of the parent may have held the channel's lock at the fork.
    fn forget(&mut self) {
        let threads = (self.control.take(), std::mem::take(&mut self.engines));
        std::mem::forget((threads, self.requests.clone()));
        self.bound.iter_mut().for_each(Bound::leave);
    }
}

/// Returns the error of a call in a child made by `fork`.
fn forked() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, FORKED)
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.guard.is_parent() {
            return self.forget();
        }
        if self.control.is_some() && !std::thread::panicking() {
            let _ = self.end();
        }
    }
}

/// The parts of a server whose threads have not started.
struct Unstarted {
    control: Control,
    engines: Vec<Engine>,
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    bound: Vec<Bound>,
    has_successor: bool,
}

impl Unstarted {
    /// Makes the parts of a server, with the sessions of an earlier one.
    fn new(
        config: &Config,
        mut device: Box<dyn Device>,
        mut store: Box<dyn Store>,
    ) -> Result<Unstarted, StartError> {
        config.check_ranges()?;
        let mut settings = config.initial_settings()?;
        check_lanes(config, device.as_ref())?;
        let (relays, spawner) = start_spawner(&config.policy, config.lanes)?;
        let mut left =
            Left::sort(store.contents().map_err(resources("what an earlier server left"))?);
        let mut positions = examine(config, &left, store.as_mut())?;
        let info = device.info().clone();
        let has_successor = store.outlives_server();
        let pool = address_pool(config, info.mac)?;
        let host = open_host(config, device.as_ref())?;
        let (listeners, bound) = listen(config, &mut left, store.as_mut())?;
        let state = StatePage::adopt_or_create(&mut left, store.as_mut(), config.lanes)?;
        keep(store.as_mut(), &state, listeners.as_ref())?;
        let mut changed = changed_settings(&mut left, store.as_mut(), &mut settings)?;
        let (control_wake, (requests, control_requests)) = (event()?, channel());
        // The server measures before its threads could disturb the result.
        changed.set_costs(Costs::of_this_machine());
        let StatePage { file, region, mapping, pins } = state;
        let identity = epoch_and_seed()?;
        let maker = EngineMaker {
            settings: &settings,
            budgets: config.budgets(),
            identity,
            control_wake: &control_wake,
            has_successor,
        };
        let position = positions.pop().unwrap_or_default();
        let (rdma, rdma_mapping) = rdma_ledger(config, &mut left, store.as_mut())?.unzip();
        let relays = relays.into_iter().zip(positions);
        let (mut engines, ends) = maker.all(&mut *device, region, relays, rdma)?;
        keep_device(store.as_mut(), device.as_ref(), config.server_number, &engines)?;
        let parts = Parts {
            listeners,
            device,
            device_name: set_engine_device_names(&mut engines, config, &info.name),
            info,
            state: file,
            state_mapping: mapping,
            epoch: identity.0,
            policy: config.policy.clone(),
            pool,
            free_addresses: config.subnets == Subnets::default() && host.is_none(),
            rdma: rdma_mapping,
            gives_addresses: config.subnets != Subnets::default() || host.is_none(),
            host,
            settings,
            changed_settings: changed,
            batch: config.batch,
            claim_timeout: config.claim_timeout,
            leaves_after_changes: config.leaves_after_changes && has_successor,
            store,
            engines: Engines::new(ends),
            requests: control_requests,
            wake: control_wake.clone(),
            engine_epolls: epolls(&engines)?,
            headers: engines.first_mut().and_then(Engine::take_headers),
            locks_memory: has_swap(),
            position,
            _state_pins: pins,
        };
        let mut control = Control::new(parts, spawner).map_err(resources("the control thread"))?;
        control.restore(left);
        Ok(Unstarted { control, engines, requests, wake: control_wake, bound, has_successor })
    }
}

/// Checks what an earlier server left, and counts its crash. Returns where each engine, and at last
/// the control thread, records its position.
fn examine(
    config: &Config,
    left: &Left,
    store: &mut dyn Store,
) -> Result<Vec<Position>, StartError> {
    if config.resumes_all {
        left.check(config.lanes)?;
    }
    if let Some(crash) = config.crash {
        left.count_crash(crash);
    }
    let (page, positions) =
        position::create(config.lanes).map_err(resources("the position page"))?;
    store.remove(POSITIONS);
    store.put(POSITIONS, page.as_fd()).map_err(resources("keeping the position page"))?;
    Ok(positions)
}

/// Returns the error for a resource that is not available.
fn resources<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> StartError {
    move |cause| StartError::Resources { what, cause: cause.into() }
}

/// Checks that the device has a queue for each engine thread, and that the processors fit them.
fn check_lanes(config: &Config, device: &dyn Device) -> Result<(), StartError> {
    let Info { name, queues, mtu, .. } = device.info();
    let (name, queues, lanes) = (name.clone(), *queues, config.lanes);
    if config.rdma && lanes > 1 {
        return Err(StartError::RdmaLanes { lanes });
    }
    if config.rdma && config.subnets == Subnets::default() {
        return Err(StartError::RdmaAddresses);
    }
    if config.rdma && *mtu < LEAST_RDMA_MTU {
        return Err(StartError::RdmaMtu { name, mtu: *mtu });
    }
    if lanes > queues {
        return Err(StartError::Lanes { name, queues, lanes });
    }
    match config.engine_cpus.len() {
        given if given != 0 && given != lanes => Err(StartError::Processors { given, lanes }),
        _ => Ok(()),
    }
}

/// Makes the spawner of workers, before any object exists that an application could reach; and what
/// the engines notify workers by.
fn start_spawner(policy: &Policy, lanes: usize) -> Result<(Vec<Relays>, Spawner), StartError> {
    let relays = (0..lanes).map(|_| Relays::new(policy.connections)).collect::<io::Result<_>>();
    let relays: Vec<_> = relays.map_err(resources("notification counters"))?;
    let (relays, counters) = relays.into_iter().unzip();
    let spawner =
        Spawner::start(tables(policy, counters)).map_err(resources("worker processes"))?;
    Ok((relays, spawner))
}

/// What all engines of a server are made with.
struct EngineMaker<'a> {
    settings: &'a Values,
    budgets: Budgets,
    /// The server's epoch, and the seed of hash functions.
    identity: (u64, u64),
    control_wake: &'a Arc<OwnedFd>,
    has_successor: bool,
}

impl EngineMaker<'_> {
    /// Makes one engine for each of `relays`, which come with the engine's position, each with its
    /// part of the state page. Also returns the control thread's ends of their channels.
    fn all(
        &self,
        device: &mut dyn Device,
        mut state: Region,
        relays: impl Iterator<Item = (Relays, Position)>,
        mut rdma: Option<Region>,
    ) -> Result<(Vec<Engine>, Vec<EngineEnd>), StartError> {
        let (mut engines, mut ends) = (Vec::new(), Vec::new());
        let (epoch, seed) = self.identity;
        for (lane, (relays, position)) in relays.enumerate() {
            let (commands, engine_commands) = channel();
            let (events, reports) = channel();
            let wake = event()?;
            let link = Link {
                lane,
                commands: engine_commands,
                events,
                wake: wake.clone(),
                control_wake: self.control_wake.clone(),
                relays,
                has_successor: self.has_successor,
                position,
                rdma: rdma.take(),
            };
            let state = state.split_off_front(STATE_WORDS * 8);
            let (settings, budgets) = (self.settings, self.budgets);
            engines.push(Engine::new(device, state, epoch, seed, settings, budgets, link)?);
            ends.push(EngineEnd { commands, reports, wake, has_ended: false });
        }
        Ok((engines, ends))
    }
}

/// The state page, which the engines write and every session maps.
struct StatePage {
    file: SharedFile,
    region: Region,
    mapping: Arc<Mapping>,
    /// The descriptors that keep the page in place.
    pins: Descriptors,
}

impl StatePage {
    /// Takes over the page of an earlier server, which applications have mapped, or creates one.
    fn adopt_or_create(
        left: &mut Left,
        store: &mut dyn Store,
        lanes: usize,
    ) -> Result<StatePage, StartError> {
        let Some(file) = left.state.take() else { return StatePage::create(lanes) };
        match SharedFile::adopt(file) {
            Ok(file) if file.len() >= lanes * STATE_WORDS * 8 => StatePage::map(file),
            Ok(file) => {
                // A server of fewer lanes made it.
                store.remove(STATE);
                drop(file);
                StatePage::create(lanes)
            }
            Err(cause) => Err(resources("the state page of an earlier server")(cause)),
        }
    }

    fn create(lanes: usize) -> Result<StatePage, StartError> {
        let (what, bytes) = ("the state page", lanes * STATE_WORDS * 8);
        let file = SharedFile::create("towpath-state", bytes).map_err(resources(what))?;
        file.seal_seals().map_err(resources(what))?;
        StatePage::map(file)
    }

    fn map(file: SharedFile) -> Result<StatePage, StartError> {
        let what = "the state page";
        let region = file.map_writable().map_err(resources(what))?;
        let mapping = region.mapping().clone();
        let pins = pin(&[file.as_fd()]).map_err(resources(what))?;
        Ok(StatePage { file, region, mapping, pins })
    }
}

/// Returns the addresses for sessions, those reserved by the policy among them.
fn address_pool(config: &Config, mac: [u8; 6]) -> Result<Pool, StartError> {
    let mut pool = Pool::new(config.subnets, mac)?;
    match pool.reserve(&config.policy.reservations) {
        Ok(()) => Ok(pool),
        Err(error) => Err(PolicyError::of(error, &pool).into()),
    }
}

/// Takes over the ledger of connections with other hosts, or creates one, if there may be some.
fn rdma_ledger(
    config: &Config,
    left: &mut Left,
    store: &mut dyn Store,
) -> Result<Option<(Region, Arc<Mapping>)>, StartError> {
    let what = "the ledger of connections with other hosts";
    let adopted = left.rdma.take().and_then(|file| SharedFile::adopt(file).ok());
    let adopted = adopted.filter(|file| config.rdma && file.len() >= LEDGER_BYTES);
    if adopted.is_none() && store.holds(RDMA) {
        store.remove(RDMA);
    }
    if !config.rdma {
        return Ok(None);
    }
    let file = match adopted {
        Some(file) => file,
        None => {
            let file = SharedFile::create("towpath-rdma", LEDGER_BYTES).map_err(resources(what))?;
            file.seal_seals().map_err(resources(what))?;
            file
        }
    };
    if !store.holds(RDMA) {
        store.put(RDMA, file.as_fd()).map_err(resources(what))?;
    }
    let region = file.map_writable().map_err(resources(what))?;
    let mapping = region.mapping().clone();
    Ok(Some((region, mapping)))
}

/// Applies the settings that were changed while an earlier server ran, and records changes from now
/// on.
fn changed_settings(
    left: &mut Left,
    store: &mut dyn Store,
    settings: &mut Values,
) -> Result<ChangedSettings, StartError> {
    ChangedSettings::adopt_or_create(left.settings.take(), store, settings)
        .map_err(resources("keeping changed settings"))
}

/// Begins to follow the host, if applications share its addresses.
fn open_host(config: &Config, device: &dyn Device) -> Result<Option<Host>, StartError> {
    let Some(access) = &config.host else { return Ok(None) };
    let opened = Host::open(access, device.info());
    opened.map(Some).map_err(resources("following the host's addresses"))
}

/// Listens for applications and administrators, if they may connect from outside.
fn listen(
    config: &Config,
    left: &mut Left,
    store: &mut dyn Store,
) -> Result<(Option<Listeners>, Vec<Bound>), StartError> {
    let (mut listeners, mut all) = (None, Vec::new());
    if let Some(path) = &config.socket {
        let (applications, bound) = bind(path, &config.policy, &mut left.listener)?;
        all.push(bound);
        let own = config.admin_socket.as_deref();
        let (administrators, bound, admin_path) = bind_admin(path, own, &mut left.admin_listener)?;
        all.push(bound);
        listeners = Some(Listeners { applications, administrators, admin_path });
    }
    let unused = [(STORED_NAME, &mut left.listener), (STORED_ADMIN_NAME, &mut left.admin_listener)];
    for (name, unused) in unused {
        if unused.take().is_some() {
            // Another socket listens from now on.
            store.remove(name);
        }
    }
    Ok((listeners, all))
}

/// Puts the server's own objects that must outlive it into the store.
fn keep(
    store: &mut dyn Store,
    state: &StatePage,
    listeners: Option<&Listeners>,
) -> Result<(), StartError> {
    if !store.holds(STATE) {
        store.put(STATE, state.file.as_fd()).map_err(resources("keeping the state page"))?;
    }
    let Some(Listeners { applications, administrators, .. }) = listeners else { return Ok(()) };
    for (name, listener) in [(STORED_NAME, applications), (STORED_ADMIN_NAME, administrators)] {
        if !store.holds(name) {
            store.put(name, listener.as_fd()).map_err(resources("keeping the sockets"))?;
        }
    }
    Ok(())
}

/// Tells the engines the device's name in the log, and returns it.
fn set_engine_device_names(engines: &mut [Engine], config: &Config, interface: &str) -> String {
    let name = config.device_name.as_deref().unwrap_or(interface);
    engines.iter_mut().for_each(|engine| engine.set_device_name(name));
    name.to_owned()
}

/// Puts the device's objects that must outlive the server into the store, and the file of its
/// memory.
fn keep_device(
    store: &mut dyn Store,
    device: &dyn Device,
    server: u32,
    engines: &[Engine],
) -> Result<(), StartError> {
    let failed = resources("keeping the device");
    for (name, object) in device.objects() {
        store.put(&stored_name(name, server), object).map_err(&failed)?;
    }
    for (lane, file) in engines.iter().map(Engine::memory_file).enumerate() {
        let Some(file) = file else { continue };
        let name = stored_name(&format!("{}-{lane}", device.memory_name()), server);
        store.put(&name, file).map_err(&failed)?;
    }
    Ok(())
}

/// Tells the operator which pages the memory of the device's packets has.
fn log_memory(engine: &Engine) {
    let (device, memory) = engine.packet_memory();
    let (kib, page_bytes) = (memory.len() >> 10, memory.page_bytes());
    if engine.goes_on() {
        info!(device, "the engine goes on with the memory of the earlier server, of {kib} KiB");
    } else if page_bytes == HUGE_PAGE_BYTES {
        let pages = memory.len().div_ceil(page_bytes);
        info!(device, "{kib} KiB for packets, in {pages} huge pages of 2 MiB");
    } else {
        info!(
            device,
            "{kib} KiB for packets, in ordinary pages (too few of 2 MiB are free, or the memory is small)"
        );
    }
}

fn event() -> Result<Arc<OwnedFd>, StartError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map(Arc::new)
        .map_err(resources("an eventfd"))
}

/// Returns copies of the engines' epoll sets.
fn epolls(engines: &[Engine]) -> Result<Vec<OwnedFd>, StartError> {
    let copies = engines.iter().map(|engine| engine.epoll().try_clone());
    copies.collect::<Result<_, _>>().map_err(resources("an epoll"))
}

/// Returns two random numbers: the identity of this server's run, which is not 0, and the seed of
/// the engine's hash functions.
fn epoch_and_seed() -> Result<(u64, u64), StartError> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(resources("random numbers"))?;
    let (epoch, seed) = random.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(1, u64::from_ne_bytes);
    Ok((number(epoch).max(1), number(seed)))
}

/// Starts the engines' threads, each bound to its processor if there are any.
fn run_engines(
    engines: Vec<Engine>,
    cpus: &[usize],
    control_wake: &Arc<OwnedFd>,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let run = |(lane, engine)| run_engine(engine, cpus.get(lane).copied(), control_wake.clone());
    engines.into_iter().enumerate().map(run).collect()
}

/// Starts the engine's thread, bound to the processor `cpu`. The thread wakes the control thread
/// when it ends.
fn run_engine(
    engine: Engine,
    cpu: Option<usize>,
    control_wake: Arc<OwnedFd>,
) -> Result<JoinHandle<()>, StartError> {
    log_memory(&engine);
    let (binds, binding) = channel();
    let wakes = WakesAtTheEnd(control_wake);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            let _wakes = wakes;
            let outcome = cpu.map_or(Ok(()), bind_to_processor);
            let is_bound = outcome.is_ok();
            if binds.send(outcome).is_ok() && is_bound {
                engine.run();
            }
        })
        .map_err(resources("the engine thread"))?;
    if let Ok(Err(error)) = binding.recv() {
        let _ = thread.join();
        return Err(error);
    }
    Ok(thread)
}

/// Starts the control thread. Also returns a descriptor that hangs up when the thread ends.
fn run_control(control: Control) -> Result<(ControlThread, OwnedFd), StartError> {
    let (over, over_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(resources("a pipe"))?;
    let thread = std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            let outcome = control.run();
            drop(over_write);
            outcome
        })
        .map_err(resources("the control thread"))?;
    Ok((thread, over))
}

/// Returns the tables that every worker begins with.
fn tables(policy: &Policy, counters: Vec<PeerWords>) -> Tables {
    let connections = policy.connections.min(policy.connections_per_user());
    Tables {
        entries: Entries::with_room(connections),
        doorbells: Doorbells::new(counters),
        copies: Copies::with_room(MEMORIES.user),
        step_ns: STEP_TIMEOUT.as_nanos() as u64,
    }
}

/// Returns `true` if the kernel can page memory out. An application could then have its memory
/// paged out and make the engine wait for it.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().nth(1).is_some())
}

//! The parts of a server before its threads start, with the sessions of an earlier one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use towpath_device::{Device, EndPipe, Info};
use towpath_engine::relays::Relays;
use towpath_engine::remote::LEDGER_BYTES;
use towpath_engine::{Budgets, ControlLink, Engine};
use towpath_memory::copies::Copies;
use towpath_memory::{HUGE_PAGE_BYTES, Mapping, Region, SharedFile};
use towpath_protocol::layout::STATE_WORDS;
use towpath_protocol::settings::Values;
use towpath_protocol::store::Store;
use towpath_queue::PeerWords;
use towpath_waiting::Costs;
use tracing::info;

use crate::access::Access;
use crate::addresses::{Pool, Subnets};
use crate::apertures::SharedMemories;
use crate::apertures::tables::MEMORIES;
use crate::config::{Config, LEAST_RDMA_MTU, PolicyError, StartError, resources};
use crate::connections::Connections;
use crate::control::Control;
use crate::control_request::Request;
use crate::device_control::DeviceControl;
use crate::device_settings::DeviceSettings;
use crate::engines::{EngineEnd, Engines};
use crate::host::Host;
use crate::listeners::Listeners;
use crate::mapping_jobs::MappingJobs;
use crate::own_queues::OwnQueues;
use crate::policy::Policy;
use crate::queue_opener::QueueOpener;
use crate::resume::left::{Left, RDMA, STATE};
use crate::resume::settings::ChangedSettings;
use crate::server::state_page::StatePage;
use crate::server_run::ServerRun;
use crate::session_addresses::SessionAddresses;
use crate::socket::{Bound, STORED_ADMIN_NAME, STORED_NAME, bind, bind_admin};
use crate::user_page::StatePages;
use crate::wakeups::Wakeups;
use crate::worker::held::{Doorbells, Entries};
use crate::worker::process::Tables;
use crate::worker::spawner::Spawner;
use crate::worker::workers::Workers;
use towpath_keeper::{END_OF_SERVER, stored_name};
use towpath_protocol::position::{self, POSITIONS, Position};

/// The time limit of each step of an application that attaches: a silent connection holds a
/// descriptor.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which a worker reports executed commands while more wait. Far shorter than a worker has for one.
const REPORT_TIME: Duration = Duration::from_secs(1);

/// The parts of a server whose threads have not started.
pub(super) struct Unstarted {
    pub(super) control: Control,
    pub(super) engines: Vec<Engine>,
    pub(super) requests: Sender<Request>,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) bound: Vec<Bound>,
    pub(super) has_successor: bool,
}

impl Unstarted {
    /// Makes the parts of a server, with the sessions of an earlier one.
    pub(super) fn new(
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
        let addresses = session_addresses(config, device.as_ref())?;
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
        let failed = resources("the control thread");
        let device_name = set_engine_device_names(&mut engines, config, &info.name);
        let settings = DeviceSettings::new(settings, changed, config.batch);
        let own_queues = own_queues(device.as_ref(), &mut engines, &control_wake)?;
        let wakeups = Wakeups::new(control_wake.clone(), control_requests).map_err(&failed)?;
        let control_epoll = wakeups.set().clone();
        let leaves_after_changes = config.leaves_after_changes && has_successor;
        let mut control = Control {
            server_run: ServerRun::new(identity.0, leaves_after_changes),
            access: Access::new(config.policy.clone(), listeners),
            device: DeviceControl::new(device, device_name, info, settings, own_queues),
            pages: StatePages::new(&file, mapping, pins, rdma_mapping).map_err(&failed)?,
            addresses,
            store,
            engines: Engines::new(ends),
            wakeups,
            workers: Workers::new(spawner, epolls(&engines)?, control_epoll).map_err(&failed)?,
            mapping_jobs: MappingJobs::new(has_swap()),
            connections: Connections::new(config.policy.connections as u32, config.claim_timeout),
            shared: SharedMemories::new(),
        };
        control.watch().map_err(failed)?;
        control.restore(left, position);
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
    store_end_pipe(store).map_err(resources("the pipe that tells the keeper of the end"))?;
    Ok(positions)
}

/// Gives the keeper a pipe that ends with this process, before the kernel has closed all of its descriptors.
fn store_end_pipe(store: &mut dyn Store) -> io::Result<()> {
    if !store.outlives_server() {
        return Ok(());
    }
    store.remove(END_OF_SERVER);
    let EndPipe { reading, writing } = EndPipe::new()?;
    store.put(END_OF_SERVER, reading.as_fd())?;
    // Only the end of the process closes it: until then, some of its threads may run.
    std::mem::forget(writing);
    Ok(())
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
            let (engine_reports, reports) = channel();
            let wake = event()?;
            let link = ControlLink {
                lane,
                commands: engine_commands,
                reports: engine_reports,
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

/// Returns the addresses for sessions. Begins to follow the host, if applications share its addresses.
fn session_addresses(config: &Config, device: &dyn Device) -> Result<SessionAddresses, StartError> {
    let mut pool = Pool::new(config.subnets, device.info().mac)?;
    if let Err(error) = pool.reserve(&config.policy.reservations) {
        return Err(PolicyError::of(error, &pool).into());
    }
    let host = config.host.as_ref().map(|access| Host::open(access, device.info())).transpose();
    let host = host.map_err(resources("following the host's addresses"))?;
    let has_subnets = config.subnets != Subnets::default();
    Ok(SessionAddresses::new(pool, host, has_subnets, config.rdma))
}

/// Starts the thread that opens hardware queues for sessions, if the device has such queues.
fn own_queues(
    device: &dyn Device,
    engines: &mut [Engine],
    wake: &Arc<OwnedFd>,
) -> Result<OwnQueues, StartError> {
    let opener = device.own_queues().map(|queues| QueueOpener::start(queues, wake.clone()));
    let opener = opener.transpose().map_err(resources("the control thread"))?;
    Ok(OwnQueues::new(engines.first_mut().and_then(Engine::take_bounce_file), opener))
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
pub(super) fn log_memory(engine: &Engine) {
    let (device, memory) = engine.packet_memory();
    let (kib, page_bytes) = (memory.len() >> 10, memory.page_bytes());
    if engine.has_earlier_memory() {
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

pub(super) fn event() -> Result<Arc<OwnedFd>, StartError> {
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

/// Returns the tables that every worker begins with.
fn tables(policy: &Policy, counters: Vec<PeerWords>) -> Tables {
    let connections = policy.connections.min(policy.connections_per_user());
    Tables {
        entries: Entries::with_room(connections),
        doorbells: Doorbells::new(counters),
        copies: Copies::with_room(MEMORIES.user),
        step_ns: STEP_TIMEOUT.as_nanos() as u64,
        report_ns: REPORT_TIME.as_nanos() as u64,
    }
}

/// Returns `true` if the kernel can page memory out. An application could then have its memory
/// paged out and make the engine wait for it.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().nth(1).is_some())
}

//! A server: an engine and a control thread around a device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socketpair};
use rustix::thread::CpuSet;
use towpath_device::{Device, DeviceError};
use towpath_memory::SharedFile;
use towpath_protocol::layout::STATE_WORDS;
use towpath_protocol::settings::{Setting, Values};
use towpath_protocol::store::Store;
use towpath_queue::PeerWords;

use crate::addresses::{Pool, PoolError, Subnets};
use crate::control::{Control, Parts, Request};
use crate::engine::relays::Relays;
use crate::engine::{Budgets, Engine, Link};
use crate::policy::Policy;
use crate::worker::held::{Doorbells, Entries};
use crate::worker::pin::pin;
use crate::worker::process::Tables;
use crate::worker::spawner::Spawner;

/// The time limit of each step of an application that attaches: a silent connection holds a
/// descriptor.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket's path for applications; `None` allows only those of [`Server::connect`].
    pub socket: Option<PathBuf>,
    /// The rights of users.
    pub policy: Policy,
    /// Addresses for sessions.
    pub subnets: Subnets,
    /// All settings that can also change later, first of all the engine's wait strategy:
    /// `WaitStrategy::Poll.into()`, or [`Values::set`]. A default `rx_batch` is at most `batch`.
    pub settings: Values,
    /// Packets that the engine takes from the device per poll iteration, 1 to 1024. A larger batch
    /// shares fences and notifications among more packets, and adds latency.
    pub batch: usize,
    /// Packets that one endpoint may receive per poll iteration. The engine drops further packets
    /// before it copies them, so a flood of one endpoint costs the others little.
    pub receive_budget: u32,
    /// Packets that the engine takes per poll iteration for each queue pair in line, 1 to 65536,
    /// and eight times as many from all of them. One sender's bulk therefore does not delay the
    /// others. With round robin, the engine takes those of one queue pair before the next one's.
    pub transmit_budget: usize,
    /// The processor that the engine's thread is bound to; a missing processor is an error.
    pub engine_cpu: Option<usize>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: None,
            policy: Policy::default(),
            subnets: Subnets::default(),
            settings: Values::default(),
            batch: 64,
            receive_budget: 1024,
            transmit_budget: 64,
            engine_cpu: None,
        }
    }
}

/// The reasons for which a server cannot start. A failed start leaves nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server holds the socket.
    #[error("{0}: another server serves here; stop it, or choose another socket path")]
    InUse(PathBuf),
    /// The socket's path cannot be used.
    #[error("{path}: {cause}; choose a socket path that this user may write")]
    Socket {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The subnet leaves no addresses.
    #[error(transparent)]
    Subnet(#[from] PoolError),
    /// The device did not start.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A number is out of its range.
    #[error("{name} is {value}; {range} is possible")]
    Range {
        /// The number's name.
        name: &'static str,
        /// The given value.
        value: usize,
        /// The permitted range.
        range: &'static str,
    },
    /// `rx_batch` exceeds the number of packets per poll iteration that the server has memory for.
    #[error(
        "rx_batch={rx_batch} with a batch of {batch}; set rx_batch to 1 to {batch}, or choose a \
         larger batch"
    )]
    Batch {
        /// The value of the setting.
        rx_batch: u64,
        /// The given `batch`.
        batch: usize,
    },
    /// The engine cannot be bound to the processor.
    #[error("the engine cannot run on processor {cpu}; this server may use {usable}")]
    Processor {
        /// The processor.
        cpu: usize,
        /// The usable processors, such as `0-3,8`.
        usable: String,
    },
    /// Memory, descriptors or threads are not available.
    #[error("{what}: {cause}")]
    Resources {
        /// The missing resource.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// A running server. Dropping it stops the server and waits.
#[derive(Debug)]
pub struct Server {
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    control: Option<JoinHandle<Result<(), DeviceError>>>,
    engine: Option<JoinHandle<()>>,
    over: OwnedFd,
    _bound: Option<Bound>,
}

/// A socket's path and the lock that claims it. Dropping this removes both.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: OwnedFd,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.lock_path);
    }
}

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
        mut store: Box<dyn Store>,
    ) -> Result<Server, StartError> {
        let resources = |what| move |cause: io::Error| StartError::Resources { what, cause };
        if !(1..=1024).contains(&config.batch) {
            let (name, value, range) = ("batch", config.batch, "1 to 1024");
            return Err(StartError::Range { name, value, range });
        }
        if !(1..=65_536).contains(&config.transmit_budget) {
            let (name, value, range) = ("transmit_budget", config.transmit_budget, "1 to 65536");
            return Err(StartError::Range { name, value, range });
        }
        let settings = settings_of(config)?;
        // The server makes the spawner of workers before any object exists that an application
        // could reach.
        let (relays, counters) =
            Relays::new(config.policy.connections).map_err(resources("notification counters"))?;
        let spawner = Spawner::start(tables(&config.policy, counters))
            .map_err(resources("worker processes"))?;
        let bound = config.socket.as_deref().map(|path| bind(path, &config.policy)).transpose()?;
        let (listener, bound) = bound.map_or((None, None), |(a, b)| (Some(a), Some(b)));
        let state = SharedFile::create("towpath-state", STATE_WORDS * 8)
            .map_err(resources("the state page"))?;
        state.seal_seals().map_err(resources("the state page"))?;
        let state_region = state.map_writable().map_err(resources("the state page"))?;
        let state_mapping = state_region.mapping().clone();
        // The engine writes the state page, and every session maps it.
        let state_pins =
            pin(&[state.as_fd()]).map_err(|error| resources("the state page")(error.into()))?;
        store.put("state", state.as_fd()).map_err(resources("keeping the state page"))?;
        if let Some(listener) = &listener {
            store.put("listener", listener.as_fd()).map_err(resources("keeping the socket"))?;
        }
        for (name, object) in device.objects() {
            store.put(name, object).map_err(resources("keeping the device"))?;
        }
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map(Arc::new)
                .map_err(|error| resources("an eventfd")(error.into()))
        };
        let (engine_wake, control_wake) = (event()?, event()?);
        let (commands, engine_commands) = channel();
        let (engine_events, events) = channel();
        let (requests, control_requests) = channel();
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| resources("random numbers")(error.into()))?;
        let (epoch, seed) = random.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map_or(1, u64::from_ne_bytes);
        let (epoch, seed) = (number(epoch).max(1), number(seed));
        let info = device.info().clone();
        let pool = Pool::new(config.subnets, info.mac)?;
        let budgets = Budgets {
            batch: config.batch,
            receive_budget: config.receive_budget.max(1),
            transmit_budget: config.transmit_budget,
            // 512 by default, however many queue pairs are in line.
            iteration_budget: config.transmit_budget * 8,
        };
        let link = Link {
            commands: engine_commands,
            events: engine_events,
            wake: engine_wake.clone(),
            control_wake: control_wake.clone(),
            relays,
        };
        // The server measures before its threads could disturb the result.
        let _ = towpath_waiting::Costs::of_this_machine();
        let engine = Engine::new(device, state_region, epoch, seed, &settings, budgets, link)?;
        let engine_epoll = engine.epoll().try_clone().map_err(resources("an epoll"))?;
        let parts = Parts {
            listener,
            info,
            state,
            state_mapping,
            epoch,
            policy: config.policy.clone(),
            pool,
            free_addresses: config.subnets == Subnets::default(),
            settings,
            batch: config.batch,
            store,
            commands,
            events,
            requests: control_requests,
            engine_wake,
            wake: control_wake.clone(),
            engine_epoll,
            locks_memory: has_swap(),
            _state_pins: state_pins,
        };
        let control = Control::new(parts, spawner).map_err(resources("the control thread"))?;
        let cpu = config.engine_cpu;
        let (binds, binding) = channel();
        let wakes = WakesAtTheEnd(control_wake.clone());
        let engine = std::thread::Builder::new()
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
            let _ = engine.join();
            return Err(error);
        }
        // The read end hangs up when the control thread ends.
        let (over, over_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| resources("a pipe")(error.into()))?;
        let control = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                let outcome = control.run();
                drop(over_write);
                outcome
            })
            .map_err(resources("the control thread"))?;
        Ok(Server {
            requests,
            wake: control_wake,
            control: Some(control),
            engine: Some(engine),
            over,
            _bound: bound,
        })
    }

    fn request(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns a control connection for an application in this process, or for handing to another
    /// process.
    ///
    /// # Errors
    /// Fails with the error of `socketpair`.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let _ = towpath_protocol::peer::refuse_descriptors(&ours);
        self.request(Request::Adopt(ours));
        Ok(theirs)
    }

    /// Returns a descriptor that hangs up when the server has ended for any reason, for use with
    /// `poll`.
    #[must_use]
    pub fn over(&self) -> &OwnedFd {
        &self.over
    }

    /// Stops the server, if it has not ended by itself, and returns how it ended.
    ///
    /// # Errors
    /// Fails with the device's error.
    pub fn stop(mut self) -> Result<(), DeviceError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        self.request(Request::Stop);
        let outcome = match self.control.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        };
        if let Some(Err(panic)) = self.engine.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.control.is_some() && !std::thread::panicking() {
            let _ = self.end();
        }
    }
}

/// Returns the tables that every worker begins with.
fn tables(policy: &Policy, counters: PeerWords) -> Tables {
    let connections = policy.connections.min(policy.connections_per_user());
    Tables {
        entries: Entries::with_room(connections),
        doorbells: Doorbells::new(counters),
        step_ns: STEP_TIMEOUT.as_nanos() as u64,
    }
}

/// Returns `true` if the kernel can page memory out. An application could then have its memory
/// paged out and make the engine wait for it.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().nth(1).is_some())
}

impl Config {
    /// Checks the values that depend on each other or on this machine, as [`Server::start`] does.
    /// A program can do so before it makes the device.
    ///
    /// # Errors
    /// [`StartError::Batch`], [`StartError::Processor`].
    pub fn check(&self) -> Result<(), StartError> {
        settings_of(self)?;
        let Some(cpu) = self.engine_cpu else { return Ok(()) };
        let usable = rustix::thread::sched_getaffinity(None)
            .is_ok_and(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        if usable {
            Ok(())
        } else {
            Err(StartError::Processor { cpu, usable: usable_processors() })
        }
    }
}

/// Returns the initial settings. The default `rx_batch` is limited to `batch`, for which there
/// is memory; a larger one that the configuration chose is an error, also of the default value.
fn settings_of(config: &Config) -> Result<Values, StartError> {
    let mut settings = config.settings.clone();
    let (rx_batch, batch) = (settings.get(Setting::RxBatch), config.batch);
    if rx_batch > batch as u64 {
        let fits = !settings.is_chosen(Setting::RxBatch)
            && settings.set(Setting::RxBatch, batch as u64).is_ok();
        return if fits { Ok(settings) } else { Err(StartError::Batch { rx_batch, batch }) };
    }
    Ok(settings)
}

/// Binds this thread to a processor.
fn bind_to_processor(cpu: usize) -> Result<(), StartError> {
    let mut only = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        only.set(cpu);
        if rustix::thread::sched_setaffinity(None, &only).is_ok() {
            return Ok(());
        }
    }
    Err(StartError::Processor { cpu, usable: usable_processors() })
}

/// Returns the processors that this thread may run on, in the kernel's format: `0-3,8`.
fn usable_processors() -> String {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return "others".into() };
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// Binds the socket, after checking that no living server holds it.
fn bind(path: &Path, policy: &Policy) -> Result<(OwnedFd, Bound), StartError> {
    let failed = |cause: io::Error| StartError::Socket { path: path.to_owned(), cause };
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = rustix::fs::open(
        &lock_path,
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        FileMode::RUSR | FileMode::WUSR,
    )
    .map_err(|error| failed(error.into()))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(
        |error| match error {
            rustix::io::Errno::WOULDBLOCK => StartError::InUse(path.to_owned()),
            other => failed(other.into()),
        },
    )?;
    let bound = Bound { path: path.to_owned(), lock_path, _lock: lock };
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            use std::os::unix::fs::FileTypeExt;
            if !found.file_type().is_socket() {
                let cause =
                    io::Error::new(io::ErrorKind::AlreadyExists, "exists, and is no socket");
                std::mem::forget(bound);
                return Err(failed(cause));
            }
            // A killed server left the socket behind: its lock is free.
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    // Before Linux 6.16, the workers close descriptors that a peer sends.
    let _ = towpath_protocol::peer::refuse_descriptors(&socket);
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    // The server decides by the kernel's peer credentials. The file's mode only rejects users
    // without any right early.
    let open = !policy.users.is_empty() || !policy.groups.is_empty();
    let mode = if open { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    rustix::net::listen(&socket, 128).map_err(|error| failed(error.into()))?;
    Ok((socket, bound))
}

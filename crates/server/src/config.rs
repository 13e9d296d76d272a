//! The configuration of a server, and the reasons for which a server cannot start.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::thread::CpuSet;
use towpath_device::DeviceError;
use towpath_engine::Budgets;
use towpath_protocol::admin_socket::MOST_PATH_BYTES;
use towpath_protocol::layout::MAX_LANES;
use towpath_protocol::settings::{Setting, Values};

use crate::addresses::{Pool, PoolError, Subnets};
use crate::host::HostAccess;
use crate::policy::Policy;
use towpath_protocol::position::Crash;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket's path for applications; `None` allows only those of
    /// [`Server::connect`](crate::Server::connect).
    pub socket: Option<PathBuf>,
    /// The path of the socket for administrators, which no other user can open; `None`: that of `socket` with `.admin`
    /// behind it. Over `socket`, root and the server's user have only the rights that the policy grants.
    pub admin_socket: Option<PathBuf>,
    /// The rights of users.
    pub policy: Policy,
    /// Addresses for sessions.
    pub subnets: Subnets,
    /// Access to the host, if applications may share its own addresses.
    pub host: Option<HostAccess>,
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
    /// The number of engine threads, each with a queue of the device: 1 to 8, at most as many as
    /// the device offers. The packets of one direction of a flow stay
    /// on one lane.
    pub lanes: usize,
    /// The processors that the engine threads are bound to, one for each lane; none to bind no
    /// thread. A missing processor is an error.
    pub engine_cpus: Vec<usize>,
    /// `true` if endpoints may have connections with other hosts, by RoCEv2, with the right to it
    /// ([`Terms::rdma`](crate::Terms::rdma)); with one lane, and addresses for applications.
    pub rdma: bool,
    /// How long a resumed session waits for its application to claim it, if the application's process
    /// still runs; 60 s by default.
    pub claim_timeout: Duration,
    /// How the predecessor crashed or hung, if it did; `None` by default. The server does not resume a
    /// session that two servers served when they crashed or hung within ten minutes.
    pub crash: Option<Crash>,
    /// The number of this server: higher than the number of each earlier server that left objects of
    /// the device ([`KeeperAccess::server_number`](towpath_keeper::KeeperAccess::server_number)); 0 by default.
    /// The device's objects have it at the end of their names in the store.
    pub server_number: u32,
    /// `true` if a successor resumes the sessions of a server that leaves; `false` by default. If `true`, the server
    /// leaves when the interface gets more hardware queues.
    pub leaves_after_changes: bool,
    /// The device's name in the log, which stays when the interface gets another name; `None`, the default: the
    /// interface's name at the start.
    pub device_name: Option<String>,
    /// `true` if the server must be able to resume every session that an earlier one left. If it is
    /// not, its start fails before it changes anything.
    pub resumes_all: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: None,
            admin_socket: None,
            policy: Policy::default(),
            subnets: Subnets::default(),
            host: None,
            settings: Values::default(),
            batch: 64,
            receive_budget: 1024,
            transmit_budget: 64,
            lanes: 1,
            engine_cpus: Vec::new(),
            rdma: false,
            claim_timeout: Duration::from_secs(60),
            crash: None,
            server_number: 0,
            leaves_after_changes: false,
            device_name: None,
            resumes_all: false,
        }
    }
}

/// The reason for which a call fails in a child made by `fork`.
pub(crate) const FORKED: &str =
    "this process was forked, and the server belongs to its parent; start another server";

/// The reasons for which the server does not take a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A reservation of an address that the device does not give to applications.
    #[error("reservation of {address}: this device gives {given}")]
    NotGiven {
        /// The reserved address.
        address: IpAddr,
        /// The addresses that the device gives, in words.
        given: String,
    },
    /// Two reservations of one address.
    #[error("a reservation: {0}")]
    Reservation(PoolError),
    /// The server has ended.
    #[error("the server has ended")]
    Ended,
    /// This process is a child made by `fork`, and the server is its parent's.
    #[error("{FORKED}")]
    Forked,
}

impl PolicyError {
    /// Returns the error of a pool that cannot reserve the addresses of a policy.
    pub(crate) fn of(error: PoolError, pool: &Pool) -> PolicyError {
        match error {
            PoolError::Outside(address) => PolicyError::NotGiven { address, given: pool.offered() },
            other => PolicyError::Reservation(other),
        }
    }
}

/// Returns the error for a resource that is not available.
pub(crate) fn resources<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> StartError {
    move |cause| StartError::Resources { what, cause: cause.into() }
}

/// The least MTU with connections to other hosts: 256 bytes of payload, and 80 of headers.
pub(crate) const LEAST_RDMA_MTU: usize = 336;

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
    /// The administration socket would have a path that is too long.
    #[error(
        "{path}: the administration socket would have a path of {length} bytes; {MOST_PATH_BYTES} are possible: \
         choose a shorter path for the socket, or another one for the administration socket"
    )]
    LongAdminPath {
        /// The path.
        path: PathBuf,
        /// Its length, in bytes.
        length: usize,
    },
    /// The administration socket has the path of the applications' socket.
    #[error(
        "{0}: one path for the socket and for the administration socket; choose another path for the administration socket"
    )]
    OneSocket(PathBuf),
    /// The subnet leaves no addresses.
    #[error(transparent)]
    Subnet(#[from] PoolError),
    /// The policy does not fit the device.
    #[error("the policy: {0}")]
    Policy(#[from] PolicyError),
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
    /// A session of an earlier server cannot be resumed.
    #[error(
        "session {number} cannot be resumed: {why}; end its application, or restart the server, which ends all sessions"
    )]
    NotResumed {
        /// The session's number.
        number: u32,
        /// The reason.
        why: String,
    },
    /// More lanes than the device has queues.
    #[error(
        "{name} offers {queues} queue(s), so {lanes} engine threads cannot share it; set lanes to \
         at most {queues}"
    )]
    Lanes {
        /// The device.
        name: String,
        /// The queues that the device offers.
        queues: usize,
        /// The given `lanes`.
        lanes: usize,
    },
    /// Connections with other hosts, and more than one lane.
    #[error(
        "connections with other hosts (rdma) are served by one engine thread; leave out either rdma or \
         the {lanes} lanes"
    )]
    RdmaLanes {
        /// The given `lanes`.
        lanes: usize,
    },
    /// Connections with other hosts, without addresses of applications' own.
    #[error(
        "connections with other hosts (rdma) need addresses of applications' own, not the host's; give \
         --address, --subnet or --lease, or leave out rdma"
    )]
    RdmaAddresses,
    /// Connections with other hosts, and a device whose packets are too short.
    #[error(
        "connections with other hosts (rdma) need an MTU of at least {LEAST_RDMA_MTU}, and {name} has \
         {mtu}; raise it, or leave out rdma"
    )]
    RdmaMtu {
        /// The device.
        name: String,
        /// Its MTU, in bytes.
        mtu: usize,
    },
    /// The number of processors is not that of the engine threads.
    #[error("{given} processors for {lanes} engine threads; name one for each, or none")]
    Processors {
        /// The number of given processors.
        given: usize,
        /// The number of engine threads.
        lanes: usize,
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

impl Config {
    /// Checks the numbers that have a range.
    pub(crate) fn check_ranges(&self) -> Result<(), StartError> {
        if !(1..=1024).contains(&self.batch) {
            let (name, value, range) = ("batch", self.batch, "1 to 1024");
            return Err(StartError::Range { name, value, range });
        }
        if !(1..=65_536).contains(&self.transmit_budget) {
            let (name, value, range) = ("transmit_budget", self.transmit_budget, "1 to 65536");
            return Err(StartError::Range { name, value, range });
        }
        if !(1..=MAX_LANES).contains(&self.lanes) {
            let (name, value, range) = ("lanes", self.lanes, "1 to 8");
            return Err(StartError::Range { name, value, range });
        }
        Ok(())
    }

    /// Returns the engine's budgets.
    pub(crate) fn budgets(&self) -> Budgets {
        Budgets {
            batch: self.batch,
            receive_budget: self.receive_budget.max(1),
            transmit_budget: self.transmit_budget,
            // 512 by default, however many queue pairs are in line.
            iteration_budget: self.transmit_budget * 8,
        }
    }

    /// Checks the values that depend on each other or on this machine, as
    /// [`Server::start`](crate::Server::start) does. A program can do so before it makes the
    /// device.
    ///
    /// # Errors
    /// [`StartError::Batch`], [`StartError::Processor`], [`StartError::Processors`].
    pub fn check(&self) -> Result<(), StartError> {
        self.initial_settings()?;
        let (given, lanes) = (self.engine_cpus.len(), self.lanes);
        if given != 0 && given != lanes {
            return Err(StartError::Processors { given, lanes });
        }
        let own = rustix::thread::sched_getaffinity(None);
        let is_usable =
            |cpu: usize| own.as_ref().is_ok_and(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        match self.engine_cpus.iter().find(|cpu| !is_usable(**cpu)) {
            Some(cpu) => Err(StartError::Processor { cpu: *cpu, usable: usable_processors() }),
            None => Ok(()),
        }
    }

    /// Returns the initial settings. The default `rx_batch` is limited to `batch`, for which there
    /// is memory; a larger one that the configuration chose is an error, also of the default value.
    pub(crate) fn initial_settings(&self) -> Result<Values, StartError> {
        let mut settings = self.settings.clone();
        let (rx_batch, batch) = (settings.get(Setting::RxBatch), self.batch);
        if rx_batch > batch as u64 {
            let fits = !settings.is_chosen(Setting::RxBatch)
                && settings.set(Setting::RxBatch, batch as u64).is_ok();
            return if fits { Ok(settings) } else { Err(StartError::Batch { rx_batch, batch }) };
        }
        Ok(settings)
    }
}

/// Binds this thread to a processor.
pub(crate) fn bind_to_processor(cpu: usize) -> Result<(), StartError> {
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

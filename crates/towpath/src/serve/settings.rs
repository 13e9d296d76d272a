//! Settings of a server, from options and a file. Options override the file.
#![forbid(unsafe_code)]

mod checks;
mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use towpath_protocol::admin_socket::admin_socket;
use towpath_server::{Config, Policy, Setting};

use super::confine::Confinement;
use super::memory_limit::default_total_bytes;
use super::values::{
    Assignment, DeviceSpec, Driver, Fault, Group, Identity, Lease, Processors, Subnet, User, Wait,
    limit, subnets,
};
use crate::failure::Failure;
use crate::number::Number;
use crate::policy::file::PolicyFile;
use crate::text_file;

/// The amount of logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// Errors that end the server.
    Error,
    /// Conditions that need an operator's attention.
    Warn,
    /// Sessions that come and go.
    Info,
    /// The server's own steps.
    Debug,
    /// Everything.
    Trace,
}

/// The default of `hold`, in seconds.
pub(super) const HOLD_S: u64 = 10;

/// All settings of a server. Each key of the file is the option of the same name.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// Device to serve: tap:NAME, xdp:INTERFACE, packet:INTERFACE, pci:ADDRESS or auto:INTERFACE. tap: the
    /// server creates a missing TAP interface, and then removes it at the end. xdp: an interface of
    /// the kernel, which keeps all that no application owns. Options of xdp follow after commas:
    /// mode=native, mode=generic, copy, zero-copy, tx-checksum, busy-poll, exclusive. packet: as
    /// xdp, by packet sockets; slower; Linux 6.6; for kernels without AF_XDP, or beside another XDP
    /// program. pci: a network card that the server drives itself, without an interface of the kernel; the
    /// Intel 82574L, or a virtio card, given to this server by towpath device claim; options: rx-usecs=N, tx-usecs=N,
    /// also interrupts=msi with rx-usecs-max=N and tx-usecs-max=N. auto: tap for a TAP interface; for any other
    /// interface xdp, or packet if xdp is impossible
    #[arg(long, value_name = "DRIVER:INTERFACE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceSpec>,
    /// The kernel's own address on a TAP interface; applications get addresses from the same
    /// network; at most one for IPv4 and one for IPv6
    #[arg(long, value_name = "ADDRESS/BITS")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) address: Vec<Subnet>,
    /// A network from which applications get addresses, given by its gateway's address; unlike with
    /// --address, the interface itself gets no address, as in a bridge
    #[arg(long, value_name = "GATEWAY/BITS")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) subnet: Vec<Subnet>,
    /// Range of addresses for applications, which no other host may have. tap: by default the whole
    /// network. xdp and packet: required without --share-host, inside of the interface's network or
    /// of that of --subnet. At most one range per address family
    #[arg(long, value_name = "ADDRESS/BITS|FIRST-LAST")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lease: Vec<Lease>,
    /// Let applications use TCP and UDP ports of the interface's own addresses, beside the kernel
    /// and each other; with xdp, packet, and auto unless it chooses a TAP. The keeper, the process
    /// that starts the server, binds the ports, has the kernel confirm neighbours, and holds the ports
    /// if the server is killed
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) share_host: bool,
    /// Let endpoints connect with those of other hosts, by RoCEv2, without cryptography: see docs/hosts.md.
    /// The server takes UDP port 4791 of the applications' addresses. All hosts need the option. With a
    /// policy file, a user's grant needs rdma = true. Sessions that share the host's addresses do not connect with
    /// other hosts. One engine thread
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) rdma: bool,
    /// At SIGTERM, leave all sessions to systemd's descriptor store (FileDescriptorStoreMax=).
    /// Applications then keep their connections over a restart of the service. A stop ends them.
    /// Without NOTIFY_SOCKET, the option has no effect
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fd_store: bool,
    /// Seconds, 0 to 3600, for which the keeper holds applications' flows, ports and sessions while
    /// no server serves, so that the kernel does not answer for them; 10 by default. 0: no server
    /// follows one that is killed
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<Number<0, 3600>>,
    /// MTU of a TAP interface or a PCI card: the largest IP packet, 68 to 65521 bytes, for a card up to 9000;
    /// by default the interface's MTU, and 1500 for a card. Other interfaces keep theirs
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<Number<68, 65521>>,
    /// Socket on which the server listens; by default /run/towpath/DEVICE.sock for root,
    /// $XDG_RUNTIME_DIR/towpath/DEVICE.sock for other users, and /tmp/towpath-UID/DEVICE.sock
    /// without that variable. The server makes a missing directory, which stays
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<PathBuf>,
    /// Socket for administrators, root and the server's user, whose path ends in .admin; by default the path of the
    /// socket with .admin behind it. With this option, the keeper's socket, at which an administrator asks for an
    /// upgrade, is in the same directory. Over --socket, all users, root included, have only the rights that
    /// --allow-user,
    /// --allow-group or --policy grant, since root of a container may have --socket
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_socket: Option<PathBuf>,
    /// User that the server changes to, for good, after it has set up the interface
    #[arg(long, value_name = "USER[:GROUP]")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<Identity>,
    /// What happens to system calls that a server does not need: refuse, kill or off; refuse by
    /// default. With kill, such a call ends the server, and another one follows. With off, the server
    /// may make all calls, and reach all files of its user
    #[arg(long, value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) confine: Option<Confinement>,
    /// A user whose applications may attach; may be given several times
    #[arg(long, value_name = "USER", value_hint = clap::ValueHint::Username)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_user: Vec<User>,
    /// A group whose members' applications may attach; may be given several times
    #[arg(long, value_name = "GROUP")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_group: Vec<Group>,
    /// File of users' rights, in place of --allow-user and --allow-group; the server reads it again
    /// at SIGHUP. See: towpath policy --help
    #[arg(long, value_name = "FILE", conflicts_with_all = ["allow_user", "allow_group"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<PathBuf>,
    /// How the engine waits for work: poll, block, spin-then-block, timer-driven or auto;
    /// spin-then-block by default
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<Wait>,
    /// Initial value of another setting of the device, as for towpath set; may be given several
    /// times
    #[arg(long, value_name = "SETTING=VALUE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<Assignment>,
    /// Engine threads, 1 to 8; 1 by default. Several threads serve more packets per second, if each has a processor
    /// (--engine-cpu). Each thread serves some of the interface's hardware queues, and each direction of a flow stays
    /// on one thread. xdp has at most as many threads as the interface has queues (ethtool -l), an Intel 82574L at
    /// most 2, and tap and packet have one
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lanes: Option<Number<1, 8>>,
    /// Processors of the engine threads, 0 to 1023, one for each lane; any processor by default
    #[arg(long, value_name = "NUMBER[,NUMBER]")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engine_cpu: Option<Processors>,
    /// Inject faults, to test applications: see docs/testing.md
    #[arg(long, value_name = "SPEC", hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<Fault>,
    /// Write every packet between server and device to a pcapng file, for wireshark and tcpdump -r. The capture lasts
    /// from the start of the server to its end, and the file's size has no limit. The server empties an existing file.
    /// It makes a missing file, which only the server's user may read. A server that follows a killed server appends.
    /// FILE may be a FIFO. If the server cannot write the file any more, the capture ends, and the server continues.
    /// towpath capture captures from a running server
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pcap: Option<PathBuf>,
    /// Level of the log on standard error; info by default; RUST_LOG overrides it
    #[arg(long, value_name = "LEVEL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<Level>,
    /// Sessions that one user may have at a time, 1 to 16384; 64 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sessions_per_user: Option<Number<1, 16_384>>,
    /// Sessions that all users of one group of --allow-group or of the policy may have together at
    /// a time, 1 to 65536; 256 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sessions_per_group: Option<Number<1, 65_536>>,
    /// Bytes of memory that all sessions of one user may have together, 65536 to 1099511627776;
    /// 4294967296 by default. Root and the server's user have no such limit over --admin-socket
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_user: Option<Number<65_536, 1_099_511_627_776>>,
    /// Bytes of memory that one session may have, 65536 to 4294967295; 268435456 by default
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_bytes: Option<Number<65_536, 4_294_967_295>>,
    /// Bytes of memory that all sessions of all users may have together, 0 to 1099511627776; 0 by default: half
    /// of the memory of the machine, or of the server's control group (cgroup) if that is less. The server logs the
    /// value, and towpath stat shows it. Over --admin-socket, root and the server's user may have all of it. Each user
    /// and each group over --socket has at most half of it, and all of these users together have at most seven eighths
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_bytes: Option<Number<0, 1_099_511_627_776>>,
    /// Endpoints that one session may have, 1 to 16384; 16384 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints_per_session: Option<Number<1, 16_384>>,
    /// Ports of the host's own addresses that one user may have at a time, 1 to 65536; 4096 by
    /// default. Root and the server's user have no such limit over --admin-socket
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_ports_per_user: Option<Number<1, 65_536>>,
    /// Control connections that all users may have together at a time, 1 to 65536; 2048 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<Number<1, 65_536>>,
    /// Upper limit of the setting rx_batch: packets that the engine takes from the device per poll
    /// iteration, 1 to 1024; 64 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<Number<1, 1024>>,
    /// Packets that one endpoint may receive per poll iteration of the engine, 1 to 65536; 1024 by
    /// default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receive_budget: Option<Number<1, 65_536>>,
    /// Packets that the engine takes from all queue pairs together per poll iteration: this number
    /// times the queue pairs with packets to send, at most times eight. 1 to 65536; 64 by default
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transmit_budget: Option<Number<1, 65_536>>,
}

impl Settings {
    /// Returns the device to serve.
    pub(super) fn served(&self) -> Result<&DeviceSpec, Failure> {
        self.device.as_ref().ok_or_else(|| {
            Failure::usage(
                "no device to serve; give --device tap:NAME, xdp:INTERFACE, packet:INTERFACE or \
                 auto:INTERFACE, or device = \"tap:NAME\" in a file",
            )
        })
    }

    /// Returns `true` if the interface is, or may be, one that the kernel keeps.
    fn uses_host_interface(&self) -> bool {
        self.device.as_ref().is_some_and(|served| served.driver != Driver::Tap)
    }

    /// Adds the grants of the policy file.
    fn read_policy(&self, policy: &mut Policy, text: Option<&str>) -> Result<(), Failure> {
        let (Some(path), Some(text)) = (&self.policy, text) else { return Ok(()) };
        if !self.allow_user.is_empty() || !self.allow_group.is_empty() {
            return Err(Failure::usage(format!(
                "--policy cannot be used with --allow-user or --allow-group; name users and groups \
                 in {}",
                path.display()
            )));
        }
        let device = self.device.as_ref().map_or("", |device| &device.interface);
        PolicyFile::of_text(path, text)?.apply(policy, device);
        Ok(())
    }

    /// Returns the number of engine threads.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.map_or(1, Number::get)
    }

    /// Returns the path of the administration socket.
    pub(super) fn admin_path(&self) -> PathBuf {
        let socket = self.socket.as_deref().unwrap_or(Path::new(""));
        self.admin_socket.clone().unwrap_or_else(|| admin_socket(socket))
    }

    /// Returns the configuration to start the server with.
    pub(crate) fn config(&self, socket: PathBuf) -> Result<Config, Failure> {
        self.config_with(socket, self.policy_text()?.as_deref())
    }

    /// Returns the text of the policy file, if there is one.
    pub(super) fn policy_text(&self) -> Result<Option<String>, Failure> {
        self.policy.as_deref().map(text_file::read).transpose()
    }

    /// Returns the configuration as [`Settings::config`] does, with this text as the policy file's.
    pub(super) fn config_with(
        &self,
        socket: PathBuf,
        policy_text: Option<&str>,
    ) -> Result<Config, Failure> {
        let users = self.allow_user.iter().map(|user| user.uid).collect();
        let groups = self.allow_group.iter().map(|group| group.gid).collect();
        let (mut policy, mut config) = (Policy::granting(users, groups), Config::default());
        let set = |place: &mut usize, value: Option<usize>| *place = value.unwrap_or(*place);
        // Without a policy file, each user that may attach has the right if the server has it.
        policy.grants.iter_mut().for_each(|one| Arc::make_mut(&mut one.terms).rdma = self.rdma);
        self.read_policy(&mut policy, policy_text)?;
        set(&mut policy.sessions_per_user, self.sessions_per_user.map(Number::get));
        set(&mut policy.sessions_per_group, self.sessions_per_group.map(Number::get));
        set(&mut policy.bytes_per_user, self.bytes_per_user.map(Number::get));
        set(&mut policy.session_bytes, self.session_bytes.map(Number::get));
        let total = self.total_bytes.map(Number::get).filter(|bytes| *bytes > 0);
        policy.total_bytes = total.unwrap_or_else(default_total_bytes);
        set(&mut policy.host_ports_per_user, self.host_ports_per_user.map(Number::get));
        set(&mut policy.connections, self.connections.map(Number::get));
        set(&mut config.batch, self.batch.map(Number::get));
        set(&mut config.transmit_budget, self.transmit_budget.map(Number::get));
        let set = |place: &mut u32, value: Option<usize>| {
            *place = value.map_or(*place, |value| value as u32);
        };
        set(&mut policy.endpoints_per_session, self.endpoints_per_session.map(Number::get));
        set(&mut config.receive_budget, self.receive_budget.map(Number::get));
        config.socket = Some(socket);
        config.admin_socket.clone_from(&self.admin_socket);
        config.policy = policy;
        let given: Vec<Subnet> = self.address.iter().chain(&self.subnet).copied().collect();
        config.subnets = subnets(&given)
            .map_err(|text| Failure::usage(format!("--address and --subnet: {text}")))?;
        // A kernel's interface has networks of its own.
        if !self.uses_host_interface() || !given.is_empty() {
            limit(&mut config.subnets, &self.lease)
                .map_err(|text| Failure::usage(format!("--lease: {text}")))?;
        }
        let wait = self.wait.map(|Wait(value)| (Setting::Wait, value));
        let first = self.set.iter().map(|Assignment(setting, value)| (*setting, *value));
        for (setting, value) in first.chain(wait) {
            config
                .settings
                .set(setting, value)
                .map_err(|error| Failure::usage(error.to_string()))?;
        }
        config.lanes = self.lanes();
        config.rdma = self.rdma;
        config.engine_cpus = self.engine_cpu.as_ref().map_or(Vec::new(), |cpus| cpus.0.clone());
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
device = "tap:tap7"
address = ["10.77.0.1/24"]
subnet = ["fd77::1/64"]
lease = ["10.77.0.64/28"]
share-host = true
rdma = true
hold = 3
mtu = 9000
socket = "/run/towpath/seven.sock"
admin-socket = "/run/admin/seven.sock.admin"
user = "61001:61001"
allow-user = ["root", 61002]
allow-group = [61003]
wait = "poll"
set = ["rx_batch=17", "tick_hz=300"]
lanes = 2
engine-cpu = "1,3"
fault = "drop=0.01,seed=42"
pcap = "/var/tmp/seven.pcapng"
log = "warn"
sessions-per-user = 5
sessions-per-group = 6
bytes-per-user = 2000000
session-bytes = 1000000
total-bytes = 3000000
endpoints-per-session = 7
host-ports-per-user = 12
connections = 8
batch = 19
receive-budget = 10
transmit-budget = 11
"#;

    #[test]
    fn printed_settings_equal_the_parsed_file() {
        let settings = Settings::parse(ALL).unwrap();
        let printed = settings.to_text().unwrap();
        let again = Settings::parse(&printed).unwrap();
        assert_eq!(again.to_text().unwrap(), printed);
        // The output has each key of the file: the parser drops none.
        assert_eq!(printed.lines().count(), ALL.trim().lines().count());
        let config = settings.config("/x".into()).unwrap();
        let grant = &config.policy.grants[0];
        assert_eq!((&*grant.users, &*grant.groups), (&[0, 61002][..], &[61003][..]));
        assert_eq!((config.batch, config.receive_budget, config.transmit_budget), (19, 10, 11));
        assert!(config.subnets.ipv4.is_some() && config.subnets.ipv6.is_some());
        assert_eq!((config.settings.get(Setting::Wait), config.engine_cpus), (0, vec![1, 3]));
        let set = [Setting::RxBatch, Setting::TickHz].map(|one| config.settings.get(one));
        assert_eq!(set, [17, 300]);
        assert_eq!((config.policy.sessions_per_user, config.policy.sessions_per_group), (5, 6));
        let bytes = (config.policy.bytes_per_user, config.policy.session_bytes);
        assert_eq!((bytes, config.policy.total_bytes), ((2_000_000, 1_000_000), 3_000_000));
        assert_eq!((config.policy.endpoints_per_session, config.policy.connections), (7, 8));
        assert_eq!(config.policy.host_ports_per_user, 12);
    }

    #[test]
    fn help_gives_each_limits_default() {
        let printed = Settings::default().with_defaults().to_text().unwrap();
        let defaults: toml::Table = printed.parse().unwrap();
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("serve"));
        let limits: Vec<_> = command
            .get_arguments()
            .filter(|argument| argument.get_help_heading() == Some("Limits"))
            .collect();
        assert!(limits.len() >= 9);
        for limit in limits {
            let name = limit.get_long().unwrap();
            let help = limit.get_help().unwrap().to_string();
            let default = format!("; {} by default", defaults[name]);
            assert!(help.contains(&default), "--{name}: {help:?} lacks {default:?}");
        }
    }

    #[test]
    fn help_gives_each_numbers_range() {
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("serve"));
        let mut ranges = 0;
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long() else { continue };
            let wrong = ["serve".to_owned(), format!("--{name}=x")];
            let Err(error) = command.clone().try_get_matches_from(wrong) else { continue };
            let error = error.to_string();
            let Some((_, range)) = error.split_once("not a whole number; ") else { continue };
            let (range, _) = range.split_once(" is possible").unwrap();
            let help = argument.get_help().unwrap().to_string();
            assert!(help.contains(range), "--{name}: {help:?} lacks {range:?}");
            ranges += 1;
        }
        assert!(ranges >= 12, "{ranges}");
    }

    #[test]
    fn options_overrule_the_file_and_defaults_fill_the_rest() {
        let file = Settings::parse(ALL).unwrap();
        let options = Settings::parse("mtu = 1500\nallow-user = [7]\n").unwrap();
        let both = options.over(file);
        assert_eq!(both.mtu.unwrap().get(), 1500);
        assert_eq!(both.allow_user.len(), 1);
        assert_eq!(both.device.unwrap().to_string(), "tap:tap7");
        // The printed settings are those in effect, whether from a file or the command line: each
        // setting has one place.
        let file = || Settings::parse(ALL).unwrap();
        for (own, wait, batch) in [
            ("", "poll", 17),
            ("wait = \"timer-driven\"", "timer-driven", 17),
            ("set = [\"rx_batch=3\"]", "poll", 3),
            ("wait = \"auto\"\nset = [\"rx_batch=3\", \"rx_batch=4\"]", "auto", 4),
        ] {
            let both = Settings::parse(own).unwrap().over(file());
            let printed = both.clone().with_defaults().to_text().unwrap();
            for settings in [both, Settings::parse(&printed).unwrap()] {
                let values = settings.config("/x".into()).unwrap().settings;
                let shown = Setting::Wait.show(values.get(Setting::Wait));
                assert_eq!((&*shown, values.get(Setting::RxBatch)), (wait, batch), "{own}");
            }
            assert!(printed.contains(&format!("wait = {wait:?}")), "{own}: {printed}");
        }
        // Every default is printed, so each lies within its limits.
        let defaults = Settings::default().with_defaults();
        assert_eq!(defaults.to_text().unwrap().lines().count(), 16);
        let config = Settings::default().config("/x".into()).unwrap();
        // This limit depends on the machine.
        let total_bytes = default_total_bytes();
        assert_eq!(config.policy, Policy { total_bytes, ..Policy::default() });
    }

    #[test]
    fn a_settings_error_names_its_line() {
        for (text, line, part) in [
            ("device = \"tap:a\"\ncolour = 1\n", 2, "unknown key `colour`"),
            ("\n\nmtu = 5\n", 3, "68 to 65521"),
            ("mtu = \"x\"", 1, "invalid type"),
            ("address = [\n \"10.0.0.1/24\",\n \"10.0.0.1\",\n]", 3, "10.77.0.1/24"),
            ("user = \"no-such-user-here\"", 1, "no user no-such-user-here"),
            ("allow-group = [-1]", 1, "no group -1"),
            ("wait = \"fast\"", 1, "block"),
            ("device = \"tap:a\"\nset = [\"wait=poll\"]", 2, "wait = \"poll\""),
            ("device = \n", 1, ""),
            ("device = \"tap:a\"\ndevice = \"tap:b\"", 2, "duplicate key"),
            ("fault = \"lose=1\"", 1, "\"lose\""),
            ("rx_batch = 32", 1, "set = [\"rx_batch=VALUE\"]"),
            ("device = tap7", 1, "a string needs quotes"),
            ("device = \"tap:a\"\nallow-user = \"root\"", 2, "a list is expected"),
            ("[limits]\nbatch = 1", 1, "unknown key `limits`"),
        ] {
            let wrong = Settings::parse(text).map(|_| text);
            let (at, message) = wrong.expect_err("it is wrong");
            assert_eq!(at, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}

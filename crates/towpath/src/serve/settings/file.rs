//! Settings as a TOML file, and their defaults.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::Path;

use towpath_protocol::admin_socket::admin_socket;
use towpath_server::{Config, Policy, Setting};

use super::{HOLD_S, Level, Settings};
use crate::failure::Failure;
use crate::number::Number;
use crate::serve::confine::Confinement;
use crate::serve::toml_text::from_toml;
use crate::serve::values::Wait;
use crate::text_file;

impl Settings {
    /// Reads a file of settings.
    pub(crate) fn read(path: &Path) -> Result<Settings, Failure> {
        let (text, shown) = (text_file::read(path)?, path.display());
        Settings::parse(&text).map_err(|(line, message)| {
            Failure::usage(format!("{shown}:{line}: {message}; see: towpath serve --help"))
        })
    }

    /// Reads the settings that a keeper holds.
    pub(in crate::serve) fn from_keeper(object: OwnedFd) -> io::Result<Settings> {
        let mut file = File::from(object);
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Settings::parse(&text).map_err(|(line, message)| {
            io::Error::new(io::ErrorKind::InvalidData, format!("settings:{line}: {message}"))
        })
    }

    /// Parses settings as [`Settings::read`] does, from a text. An error has the number of its
    /// line, from 1, and a message.
    pub(in crate::serve) fn parse(text: &str) -> Result<Settings, (usize, String)> {
        from_toml(text)
    }

    /// Returns these settings, completed by those of `file`.
    pub(crate) fn over(self, file: Settings) -> Settings {
        fn list<T>(own: Vec<T>, file: Vec<T>) -> Vec<T> {
            if own.is_empty() { file } else { own }
        }
        Settings {
            device: self.device.or(file.device),
            address: list(self.address, file.address),
            subnet: list(self.subnet, file.subnet),
            lease: list(self.lease, file.lease),
            share_host: self.share_host || file.share_host,
            rdma: self.rdma || file.rdma,
            fd_store: self.fd_store || file.fd_store,
            hold: self.hold.or(file.hold),
            mtu: self.mtu.or(file.mtu),
            socket: self.socket.or(file.socket),
            admin_socket: self.admin_socket.or(file.admin_socket),
            user: self.user.or(file.user),
            confine: self.confine.or(file.confine),
            allow_user: list(self.allow_user, file.allow_user),
            allow_group: list(self.allow_group, file.allow_group),
            policy: self.policy.or(file.policy),
            wait: self.wait.or(file.wait),
            set: list(self.set, file.set),
            lanes: self.lanes.or(file.lanes),
            engine_cpu: self.engine_cpu.or(file.engine_cpu),
            fault: self.fault.or(file.fault),
            pcap: self.pcap.or(file.pcap),
            log: self.log.or(file.log),
            sessions_per_user: self.sessions_per_user.or(file.sessions_per_user),
            sessions_per_group: self.sessions_per_group.or(file.sessions_per_group),
            bytes_per_user: self.bytes_per_user.or(file.bytes_per_user),
            session_bytes: self.session_bytes.or(file.session_bytes),
            total_bytes: self.total_bytes.or(file.total_bytes),
            endpoints_per_session: self.endpoints_per_session.or(file.endpoints_per_session),
            host_ports_per_user: self.host_ports_per_user.or(file.host_ports_per_user),
            connections: self.connections.or(file.connections),
            batch: self.batch.or(file.batch),
            receive_budget: self.receive_budget.or(file.receive_budget),
            transmit_budget: self.transmit_budget.or(file.transmit_budget),
        }
    }

    /// Fills in the defaults of unset values, for people to read.
    pub(crate) fn with_defaults(self) -> Settings {
        let (policy, config) = (Policy::default(), Config::default());
        // The defaults are within the limits; a default outside would show as unset.
        fn number<const L: u64, const M: u64>(value: usize) -> Option<Number<L, M>> {
            Number::new(value as u64).ok()
        }
        let served = self.device.as_ref();
        let socket = served.map(|served| towpath_client::default_socket(&served.interface));
        let admin_socket = self.socket.as_ref().or(socket.as_ref()).map(|one| admin_socket(one));
        let defaults = Settings {
            socket,
            admin_socket,
            wait: Some(Wait(Setting::Wait.spec().default)),
            hold: Number::new(HOLD_S).ok(),
            log: Some(Level::Info),
            confine: Some(Confinement::default()),
            sessions_per_user: number(policy.sessions_per_user),
            sessions_per_group: number(policy.sessions_per_group),
            bytes_per_user: number(policy.bytes_per_user),
            session_bytes: number(policy.session_bytes),
            total_bytes: number(0),
            endpoints_per_session: number(policy.endpoints_per_session as usize),
            host_ports_per_user: number(policy.host_ports_per_user),
            connections: number(policy.connections),
            lanes: number(config.lanes),
            batch: number(config.batch),
            receive_budget: number(config.receive_budget as usize),
            transmit_budget: number(config.transmit_budget),
            ..Settings::default()
        };
        self.over(defaults)
    }

    /// Returns a file with the same settings.
    pub(crate) fn to_text(&self) -> Result<String, Failure> {
        toml::to_string(self).map_err(|error| Failure::new(format!("the configuration: {error}")))
    }
}

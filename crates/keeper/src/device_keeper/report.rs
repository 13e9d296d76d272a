//! What a keeper tells users of a device: a record of the ends of servers, in the status file.

use std::io;

use crate::keeper_state::KeeperState;
use crate::options::KeeperOptions;
use crate::status::{DeviceState, DeviceStatus, ServerEnd, StatusFile, seconds};

/// The record.
#[derive(Debug)]
pub(super) struct Report {
    /// `None` where the keeper may not make the file after an upgrade.
    file: Option<StatusFile>,
    restarts: u64,
    last_end: Option<ServerEnd>,
    /// The state, the number of restarts and the interface's other name in the file.
    published: Option<(DeviceState, u64, Option<String>)>,
}

impl Report {
    /// Begins a record.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub(super) fn new(options: &KeeperOptions) -> io::Result<Report> {
        let file = StatusFile::create(&options.status, options.owner)?;
        Ok(Report { file: Some(file), restarts: 0, last_end: None, published: None })
    }

    /// Goes on with the record of an earlier program of this process, in a file of its own: an older
    /// program would keep the lock of an inherited one, and not write it.
    pub(super) fn of_earlier(left: &KeeperState, options: &KeeperOptions) -> Report {
        let file = StatusFile::create(&options.status, options.owner);
        let file = file.inspect_err(|error| tracing::warn!("no status for towpath ls: {error}"));
        let (restarts, last_end) = (left.restarts, left.last_end.clone());
        Report { file: file.ok(), restarts, last_end, published: None }
    }

    /// Adds the record to the state for the next program of this process.
    pub(super) fn add_to(&self, state: KeeperState) -> KeeperState {
        KeeperState { restarts: self.restarts, last_end: self.last_end.clone(), ..state }
    }

    /// Adds the end of a server that another one follows.
    pub(super) fn add_end(&mut self, reason: &str) {
        self.restarts += 1;
        self.last_end = Some(ServerEnd::now(reason));
    }

    /// Writes the record, if it has changed.
    pub(super) fn publish(&mut self, device: &str, name: Option<&str>, state: DeviceState) {
        let published = Some((state, self.restarts, name.map(str::to_owned)));
        let Some(file) = self.file.as_mut().filter(|_| self.published != published) else { return };
        self.published = published;
        let status = DeviceStatus {
            device: device.to_owned(),
            interface: name.map(str::to_owned),
            keeper: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state,
            since: seconds(),
            restarts: self.restarts,
            last_end: self.last_end.clone(),
        };
        if let Err(error) = file.write(&status) {
            tracing::error!(device, "the status for towpath ls is not written: {error}");
        }
    }
}

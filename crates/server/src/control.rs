//! The control thread: it accepts applications, decides, prepares, and hands sessions over to the
//! engine.
//!
//! It waits in one epoll set and wakes for nothing else. It touches no object that an application
//! can reach: the workers of the applications' users do that for it (`worker`). Each wake-up
//! handles one message of each worker. The worker reads the next message of a connection only after the
//! control thread has answered the last message, so a flooding user delays no other user. A connection ends
//! when it sends an invalid message, does not read its answers, or does not finish attaching.

use std::io;

use towpath_device::DeviceError;
use towpath_engine::apertures::commands::ApertureCommand;
use towpath_engine::commands::Command;
use towpath_protocol::store::Store;
use tracing::{error, warn};

use crate::access::Access;
use crate::apertures::SharedMemories;
use crate::connections::Connections;
use crate::device_control::DeviceControl;
use crate::engines::{Engines, Reply};
use crate::mapping_jobs::MappingJobs;
use crate::server_run::ServerRun;
use crate::session_addresses::SessionAddresses;
use crate::user_page::StatePages;
use crate::wakeups::{DEVICE, HOST, KEEPER, Wakeups};
use crate::worker::owner::Owner;
use crate::worker::workers::Workers;

/// The control thread.
pub(crate) struct Control {
    pub(crate) server_run: ServerRun,
    pub(crate) access: Access,
    pub(crate) device: DeviceControl,
    pub(crate) pages: StatePages,
    pub(crate) addresses: SessionAddresses,
    /// Keeps everything that must outlive the server.
    pub(crate) store: Box<dyn Store>,
    pub(crate) engines: Engines,
    pub(crate) wakeups: Wakeups,
    pub(crate) workers: Workers,
    pub(crate) mapping_jobs: MappingJobs,
    pub(crate) connections: Connections,
    pub(crate) shared: SharedMemories,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Control {
    /// Watches the descriptors that wake the control thread.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub(crate) fn watch(&self) -> io::Result<()> {
        self.access.watch(self.wakeups.set())?;
        if let Some(fd) = self.device.device().event_fd() {
            self.wakeups.watch(fd, DEVICE)?;
        }
        if let Some(host) = self.addresses.host() {
            self.wakeups.watch(host.event_fd(), HOST)?;
        }
        if let Some(keeper) = self.store.end_fd() {
            self.wakeups.watch_end(keeper, KEEPER)?;
        }
        Ok(())
    }

    /// Ends the server, and leaves sessions and device to the next server, if a keeper starts one. The device
    /// works.
    pub(crate) fn leave(&mut self) {
        let leaves = self.store.outlives_server();
        self.server_run.set_leaves(leaves);
        if leaves {
            self.device.device_mut().leave();
        }
        self.stop();
    }

    pub(crate) fn stop(&mut self) {
        if self.server_run.begin_end() {
            self.access.stop_accepting(self.wakeups.set());
            // Their applications attach again.
            let waiting = std::iter::from_fn(|| self.access.arrivals.next());
            let waiting = waiting.map(|(socket, _)| socket).collect();
            self.workers.close_unread(waiting);
            let stop = if self.server_run.leaves() { Command::Leave } else { Command::Stop };
            self.command(stop, Reply::Nothing);
        }
    }

    /// Logs and counts a state that cannot be. At most one session ends because of it.
    pub(crate) fn internal_error(&mut self, what: &str) {
        let errors = self.server_run.count_error();
        error!(errors, "internal error: {what}; please report it");
    }

    /// Gives a command for an aperture to the first lane's engine, which has all connections.
    pub(crate) fn command_first_lane(&mut self, command: ApertureCommand, reply: Reply) {
        self.engines.command_each(vec![Command::Aperture(command)], reply);
    }

    /// Gives a command to all engines.
    pub(crate) fn command(&mut self, command: Command, reply: Reply) {
        self.engines.command(command, reply);
    }

    /// Returns the worker of an owner. Without the spawner process the server ends, because it could
    /// serve no new user.
    pub(crate) fn worker_of(&mut self, owner: Owner) -> Option<u64> {
        match self.workers.of(owner) {
            Ok(worker) => Some(worker),
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                let name = self.device.name().to_owned();
                let what = "making worker processes";
                let cause = io::Error::other("the process that they are made from has ended");
                self.server_run.fail(DeviceError::Failed { name, what, cause });
                self.leave();
                None
            }
            Err(cause) => {
                if self.access.allows_own_line() {
                    warn!("no worker process for a user: {cause}");
                }
                None
            }
        }
    }
}

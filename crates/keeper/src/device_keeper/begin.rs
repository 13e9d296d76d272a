//! How the keeper of a device begins: with a server that is to start, or with one that serves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::process::Pid;

use super::{DeviceKeeper, Handover, Report, Server, Stage};
use crate::ends::Ends;
use crate::interface::INTERFACE;
use crate::keeper_state::KeeperState;
use crate::listener::Listener;
use crate::options::{Follows, KeeperOptions, OWN, keeper_connection};
use crate::process::Keeper;
use crate::server_process::ServerProcess;
use crate::supervised::{Begin, Continued, LeftObjects};

impl DeviceKeeper {
    /// Begins the supervision of the device with this number.
    pub(crate) fn new(
        number: usize,
        options: KeeperOptions,
        begin: Begin,
    ) -> io::Result<DeviceKeeper> {
        match begin {
            Begin::First { own, left } => DeviceKeeper::first(number, options, own, left),
            Begin::Continued(Continued(left)) => DeviceKeeper::continued(number, options, &left),
        }
    }

    /// Begins with a server that is to start.
    fn first(
        number: usize,
        options: KeeperOptions,
        own: Vec<(String, OwnedFd)>,
        LeftObjects { objects, crash }: LeftObjects,
    ) -> io::Result<DeviceKeeper> {
        let (ours, theirs) = keeper_connection()?;
        let listener = Listener::bind(&options.path, options.owner)?;
        let mut keeper = Keeper::new(ours, &options)?;
        let mut count = 0;
        for (name, object) in objects {
            if name == INTERFACE && options.follows != Follows::Nothing {
                keeper.interface.adopt(object.as_fd());
            } else if name.starts_with(OWN) {
                continue;
            } else {
                count += 1;
            }
            keeper.held.put(name, object);
        }
        for (name, object) in own {
            keeper.held.put(name, object);
        }
        let stage = Stage::Waits(Instant::now());
        let status = Report::new(&options)?;
        let mut made = DeviceKeeper::with(number, options, listener, keeper, stage, status);
        (made.first, made.crash) = (Some(theirs), crash);
        if count > 0 {
            // With objects of earlier servers, a first start that fails does not end the supervision.
            (made.ends, made.servers_started) = (Ends::from_now(), 1);
        }
        Ok(made)
    }

    /// Goes on with a server that serves.
    fn continued(
        number: usize,
        options: KeeperOptions,
        left: &KeeperState,
    ) -> io::Result<DeviceKeeper> {
        let listener = Listener::from_state(KeeperState::take(left.listener)?, &options.path);
        let process = KeeperState::take(left.server)?;
        let process = ServerProcess::from_state(left.server_pid, process)?;
        let mut keeper = Keeper::from_state(left, &options)?;
        if let Err(error) = keeper.held.start_closers() {
            // The keeper closes the objects itself, then.
            tracing::error!(device = options.interface, "no thread for closing: {error}");
        }
        if let Some(asking) = keeper.upgrade_request.take() {
            asking.answer(Ok(None));
        }
        let stage = Stage::Runs(Server::new(process));
        let status = Report::of_earlier(left, &options);
        let mut made = DeviceKeeper::with(number, options, listener, keeper, stage, status);
        (made.ends, made.servers_started) = (Ends::from_now(), left.servers_started);
        made.unreaped = left.unreaped.iter().filter_map(|pid| Pid::from_raw(*pid)).collect();
        made.serve_by = made.ends.serve_by(made.options.hold);
        Ok(made)
    }

    fn with(
        number: usize,
        options: KeeperOptions,
        listener: Listener,
        keeper: Keeper,
        stage: Stage,
        status: Report,
    ) -> DeviceKeeper {
        DeviceKeeper {
            number,
            options,
            listener,
            keeper,
            stage,
            first: None,
            ends: Ends::default(),
            crash: None,
            handover: Handover::None,
            program: String::new(),
            is_upgraded: false,
            hung: None,
            is_late: false,
            is_closing: false,
            unreaped: Vec::new(),
            crash_reaped: None,
            is_leaving: false,
            servers_started: 0,
            serve_by: None,
            has_failed: false,
            status,
        }
    }
}

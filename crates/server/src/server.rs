//! A server: engines and a control thread around a device.

mod state_page;
mod threads;
mod unstarted;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use towpath_device::{Device, DeviceError};
use towpath_memory::ForkGuard;
use towpath_protocol::store::Store;

use crate::config::{Config, FORKED, PolicyError, StartError, resources};
use crate::control_request::Request;
use crate::policy::{Policy, PolicyChange};
use crate::server::threads::{ControlThread, run_control, run_engines};
use crate::server::unstarted::Unstarted;
use crate::socket::Bound;

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
        let name = control.device.name().to_owned();
        let engines = run_engines(engines, &config.engine_cpus, &wake)?;
        let take_over = control.device.device_mut().take_over();
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

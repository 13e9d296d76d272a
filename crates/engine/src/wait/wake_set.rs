//! The descriptors that end the engine's sleep: those of commands, of the device and of sessions.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use towpath_device::DeviceError;

use crate::clock::timespec;
use crate::port::DevicePort;
use crate::sessions::SessionTable;

/// The epoll data of the engine's own eventfd, which signals commands.
const COMMANDS: u64 = 0;
/// The epoll data of the device.
const DEVICE: u64 = 1;
/// From this value on, the epoll data names sessions by their numbers.
const SESSIONS: u64 = 2;

/// Notifications that the engine takes from the epoll set at once, so that many notifying clients
/// cannot prolong a poll iteration. The rest stays in the epoll set for the next one.
const NOTIFICATIONS: usize = 64;

/// Returns the data that the engine's epoll set reports when a session's application notifies the
/// engine.
#[must_use]
pub fn wake_data(session: u32) -> u64 {
    SESSIONS + u64::from(session)
}

/// The epoll set.
#[derive(Debug)]
pub(crate) struct WakeSet {
    epoll: OwnedFd,
    /// Readable when there are commands.
    wake: Arc<OwnedFd>,
    /// `true` if the device can end the engine's sleep.
    device_watched: bool,
    /// `true` if a notification of commands was taken.
    commands: bool,
}

impl WakeSet {
    /// Makes the epoll set, which `wake` and the device's descriptor can end.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(super) fn new(port: &DevicePort, wake: Arc<OwnedFd>) -> Result<WakeSet, DeviceError> {
        let failed = |error: Errno| port.failed("epoll", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let watch = |fd: &dyn AsFd, data| {
            let data = epoll::EventData::new_u64(data);
            epoll::add(&epoll, fd.as_fd(), data, epoll::EventFlags::IN).map_err(failed)
        };
        watch(&wake, COMMANDS)?;
        if let Some(fd) = port.sleep_fd() {
            watch(&fd, DEVICE)?;
        }
        Ok(WakeSet { epoll, wake, device_watched: true, commands: false })
    }

    /// Returns the epoll set.
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Adds the descriptor of a session's own queue. The kernel refuses only for lack of memory;
    /// then the engine polls that queue when others wake it.
    pub(crate) fn watch_own(&self, fd: BorrowedFd<'_>) {
        let flags = device_events(self.device_watched);
        let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(DEVICE), flags);
    }

    /// Removes the descriptor of a session's own queue.
    pub(crate) fn forget_own(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Removes a session's descriptor. The call uses only the server's own objects, so no
    /// application can prolong it.
    pub(crate) fn forget(&self, wake: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, wake.as_fd());
    }

    /// Returns `true` if there may be commands whose notification the engine took, and forgets it.
    pub(super) fn take_commands(&mut self) -> bool {
        std::mem::take(&mut self.commands)
    }

    /// Sleeps for a time, in nanoseconds, or until a command arrives if the engine is to hear
    /// commands (`takes_commands`). Returns `true` if there are commands.
    pub(super) fn has_command(
        &self,
        takes_commands: bool,
        left: u64,
        port: &DevicePort,
    ) -> Result<bool, DeviceError> {
        let mut polled = [PollFd::new(&*self.wake, PollFlags::IN)];
        let polled = if takes_commands { &mut polled[..] } else { &mut [] };
        match poll(polled, Some(&timespec(left))) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => {
                self.clear_wake();
                Ok(true)
            }
            Err(cause) => Err(port.failed("waiting", cause)),
        }
    }

    fn clear_wake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
    }

    /// Waits for notifications for at most `timeout`; zero only asks. Edges stay in the epoll set
    /// until the engine takes them, at most one per session. A client that notifies constantly is
    /// therefore handled no more often than the others.
    pub(super) fn take_notifications(
        &mut self,
        timeout: Option<&Timespec>,
        port: &DevicePort,
        sessions: &mut SessionTable,
    ) -> Result<(), DeviceError> {
        #[cfg(towpath_simulation)]
        let timeout = self.simulate(timeout);
        let mut events = [const { MaybeUninit::uninit() }; NOTIFICATIONS];
        let taken = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((taken, _)) => taken,
            Err(Errno::INTR) => return Ok(()),
            Err(cause) => return Err(port.failed("waiting", cause)),
        };
        // If there may be more notifications, the next poll iteration asks for them.
        sessions.asked(taken.len() == NOTIFICATIONS);
        for event in taken {
            match event.data.u64() {
                COMMANDS => {
                    self.clear_wake();
                    // Commands may have arrived after this iteration's check for them, and no
                    // further notification follows.
                    self.commands = true;
                }
                DEVICE => {}
                session => {
                    if let Ok(number) = u32::try_from(session - SESSIONS) {
                        sessions.notified(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sleeps in the simulation's time. Returns the timeout that is left for the kernel: none.
    #[cfg(towpath_simulation)]
    fn simulate(&self, timeout: Option<&Timespec>) -> Option<&'static Timespec> {
        let ns = timeout.map(|at| at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64);
        let is_ready = || {
            let mut polled = [PollFd::new(&self.epoll, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
        };
        towpath_queue::simulation::sleep(ns, &is_ready);
        Some(&Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    /// Sets whether the device wakes the engine. The setting changes only with the kind of sleep.
    pub(super) fn watch_device(
        &mut self,
        watched: bool,
        port: &DevicePort,
    ) -> Result<(), DeviceError> {
        if self.device_watched == watched {
            return Ok(());
        }
        let (flags, data) = (device_events(watched), epoll::EventData::new_u64(DEVICE));
        if let Some(fd) = port.sleep_fd() {
            epoll::modify(&self.epoll, fd, data, flags)
                .map_err(|cause| port.failed("waiting", cause))?;
        }
        for fd in port.own_sleep_fds() {
            // One that the kernel refused to add, or that stopped working, is not there.
            let _ = epoll::modify(&self.epoll, fd, data, flags);
        }
        self.device_watched = watched;
        Ok(())
    }
}

/// Returns the events of the device's descriptors that end a sleep.
fn device_events(watched: bool) -> epoll::EventFlags {
    if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() }
}

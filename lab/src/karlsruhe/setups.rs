//! The set-ups of the paper's table: an application's TCP behind a driver server with one notification
//! for each packet, with each saving alone, and with all.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use towpath_client::{EndpointId, Meta, Session, Setting};
use towpath_net::{Armed, Link, LinkError, LinkInfo, Network, SessionLink};

use crate::process::Process;

/// Ticks per second of the engine with timers.
pub(super) const TICK_HZ: u64 = 1000;
/// Coalesced notifications: after so many packets, or so many microseconds.
const FRAMES: u64 = 16;
const USECS: u64 = 1000;

/// The places of two set-ups among all.
pub(super) const ALL: usize = 3;
pub(super) const NONE: usize = 4;

/// A set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetUp {
    pub(super) name: &'static str,
    /// `true` if neither side notifies the other one while that is awake (consumer IPC saving).
    suppresses: bool,
    /// `true` if a notification serves several packets (producer IPC saving): the application notifies
    /// after the last packet of a round, and the engine after some packets or a time.
    coalesces: bool,
    /// `true` if the engine polls its queues at ticks, and needs no notification.
    has_timers: bool,
}

impl SetUp {
    /// Returns all set-ups: with each saving alone, with all, and with none.
    pub(super) fn all() -> Vec<SetUp> {
        let name = "one IPC per packet";
        let none = SetUp { name, suppresses: false, coalesces: false, has_timers: false };
        let with = |name| SetUp { name, ..none.clone() };
        vec![
            SetUp { suppresses: true, ..with("suppressed notifications") },
            SetUp { coalesces: true, ..with("coalesced notifications") },
            SetUp { has_timers: true, ..with("timers") },
            SetUp { name: "all savings", suppresses: true, coalesces: true, has_timers: true },
            none,
        ]
    }

    /// Returns the device's settings.
    fn settings(&self) -> anyhow::Result<Vec<(Setting, u64)>> {
        let wait = if self.has_timers { "timer-driven" } else { "block" };
        let batch = if self.coalesces { Setting::RxBatch.spec().default } else { 1 };
        Ok(vec![
            (Setting::Wait, Setting::Wait.parse(wait)?),
            (Setting::TickHz, TICK_HZ),
            (Setting::RxBatch, batch),
            (Setting::NotificationSuppression, u64::from(self.suppresses)),
        ])
    }

    /// Attaches an application, and changes the server's settings for it. The next set-up changes them
    /// again.
    pub(super) fn attach(&self, process: &Process) -> anyhow::Result<Attached> {
        for (setting, value) in self.settings()? {
            process.set(setting, value)?;
        }
        let socket = process.socket();
        let mut session = Session::attach(&socket, &SessionLink::options("karlsruhe"))?;
        // A timer-driven engine looks at its queues anyway.
        session.sender().set_notification_suppression(self.suppresses || self.has_timers);
        let number = session.info().session;
        let link = SessionLink::new(session)?;
        if self.coalesces {
            coalesce(&socket, number)?;
        }
        let config = link.config();
        let notifications = Arc::new(AtomicU64::new(0));
        let link =
            EachLink { link, flushes_each: !self.coalesces, notifications: notifications.clone() };
        let network = Network::builder().on(Box::new(link), config)?;
        Ok(Attached { network, notifications })
    }
}

/// Sets the coalescing of a host's only endpoint.
fn coalesce(socket: &Path, session: u32) -> anyhow::Result<()> {
    for (setting, value) in [(Setting::RxFrames, FRAMES), (Setting::RxUsecs, USECS)] {
        towpath_client::set(socket, Some((session, EndpointId::new(0))), setting, value)
            .with_context(|| format!("setting {}", setting.spec().name))?;
    }
    Ok(())
}

/// An application of a server.
pub(super) struct Attached {
    pub(super) network: Network,
    notifications: Arc<AtomicU64>,
}

impl Attached {
    /// Returns how often the application has notified the server.
    pub(super) fn notifications(&self) -> u64 {
        self.notifications.load(Ordering::Relaxed)
    }
}

/// A session's link, which can hand over each packet by itself, and counts notifications.
struct EachLink {
    link: SessionLink,
    /// `true` if each packet is published, and notified, by itself. That is a system call under the
    /// stack's lock, which only delays other threads of the application.
    flushes_each: bool,
    notifications: Arc<AtomicU64>,
}

impl EachLink {
    fn count(&self) {
        self.notifications.store(self.link.statistics().notifications, Ordering::Relaxed);
    }
}

impl Link for EachLink {
    fn info(&self) -> LinkInfo {
        self.link.info()
    }

    fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
        self.link.sleep_fd()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        self.link.prepare()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        self.link.receive(budget, take)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        self.link.has_news()
    }

    fn room(&mut self, len: usize) -> bool {
        self.link.room(len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let accepted = self.link.transmit(len, meta, fill);
        // The network's own flush returns the error of a dead link.
        if accepted && self.flushes_each && self.link.flush().is_ok() {
            self.count();
        }
        accepted
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let flushed = self.link.flush();
        self.count();
        flushed
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        self.link.arm(blocked)
    }

    fn disarm(&mut self) {
        self.link.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_saving_is_alone_in_one_set_up() {
        let all = SetUp::all();
        let savings = |one: &SetUp| [one.suppresses, one.coalesces, one.has_timers];
        assert_eq!(savings(&all[NONE]), [false; 3]);
        assert_eq!(savings(&all[ALL]), [true; 3]);
        for place in 0..3 {
            let alone: [bool; 3] = std::array::from_fn(|other| other == place);
            assert_eq!(all.iter().filter(|one| savings(one) == alone).count(), 1);
        }
        assert_eq!(all.len(), 5);
    }
}

//! The engines as the control thread sees them: one for each lane of the device.
//!
//! A lane is an engine thread and the device's queue that it serves. Every engine has all sessions,
//! each with its own part of the session's memory, and all flow rules. So the control thread sends
//! each command to every engine, and a command is done once all of them have executed it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use towpath_device::DeviceError;
use towpath_engine::apertures::memory::EngineMemory;
use towpath_engine::commands::{Command, EngineReport};
use towpath_packet::FlowRule;
use towpath_protocol::message::Created;

use crate::direct_notification::DirectNotification;
use crate::user_page::UserPage;

/// The reply to a connection once all engines have executed a command.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(u64),
    /// The engines have removed an endpoint: for a connection that asked, and with the rule whose
    /// port is free now.
    Closed(Option<u64>, Option<FlowRule>),
    /// The endpoint's number, and its port if it has one.
    Opened(u64, u32, u16),
    /// The engine has entered a memory.
    MemoryCreated(u64, u32),
    /// The engine has removed a memory, which a connection released.
    MemoryRemoved(u64, u32),
    /// The engine reaches a memory in another way now, and no longer in this one.
    MemoryUnused(EngineMemory),
    /// The engine has entered an aperture, or reported why not.
    Exported(u64, u32),
    Imported(u64, u32),
    /// The engine has entered a tripwire that the session set.
    TripwireSet(u64, u32),
    /// The session has imported a tripwire of this number, which another session set, and whose
    /// armed words it gets.
    TripwireImported(u64, Created, OwnedFd),
    /// The application has claimed its session, and gets these descriptors.
    Claimed(u64, Vec<OwnedFd>),
    /// The engines no longer write the sleep flags of a user's state page.
    FlagRemoved(u32, Box<UserPage>),
    Nothing,
}

/// The control thread's end of the channels to one engine.
pub(crate) struct EngineEnd {
    /// Commands to the engine.
    pub(crate) commands: Sender<(u64, Command)>,
    /// Replies and reports from the engine.
    pub(crate) reports: Receiver<EngineReport>,
    /// Wakes the engine.
    pub(crate) wake: Arc<OwnedFd>,
    /// `true` if the engine has ended.
    pub(crate) has_ended: bool,
}

impl Drop for EngineEnd {
    /// Ends an engine that still runs, such as when a further one could not start. Its sessions may
    /// be an earlier server's.
    fn drop(&mut self) {
        if self.commands.send((0, Command::Leave)).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// All engines of a server.
pub(crate) struct Engines {
    ends: Vec<EngineEnd>,
    next_ticket: u64,
    /// The replies to commands, each with the number of engines that have yet to execute it.
    replies: HashMap<u64, (Reply, usize)>,
    /// The first error that ended an engine.
    failure: Option<DeviceError>,
    /// Whether the engines themselves notify applications, by the last command about it.
    notification: DirectNotification,
}

impl Engines {
    pub(crate) fn new(ends: Vec<EngineEnd>) -> Engines {
        let notification = DirectNotification::new();
        Engines { ends, next_ticket: 0, replies: HashMap::new(), failure: None, notification }
    }

    /// Returns the number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if the engines themselves notify applications.
    pub(crate) fn notify_directly(&self) -> bool {
        self.notification.is_direct()
    }

    /// Decides whether the engines themselves notify applications, and tells them if that changes. `untrusted`: an
    /// untrusted user that has or had a session; `serve_several`: `true` if several users have sessions. Returns `true`
    /// if the engines do not notify any more.
    pub(crate) fn decide_notification(
        &mut self,
        untrusted: Option<u32>,
        serve_several: bool,
    ) -> bool {
        if let Some(uid) = untrusted {
            self.notification.note_untrusted(uid);
        }
        if !self.notification.decide(serve_several) {
            return false;
        }
        let directly = self.notification.is_direct();
        self.command(Command::Notify { directly }, Reply::Nothing);
        !directly
    }

    /// Gives a command to all engines. [`Engines::executed`] returns the reply once all have
    /// executed it.
    pub(crate) fn command(&mut self, command: Command, reply: Reply) {
        let commands = command.for_lanes(self.lanes());
        self.command_each(commands, reply);
    }

    /// Gives each engine its own command: the first command to the first engine, and so on.
    /// Engines beyond these get none.
    pub(crate) fn command_each(&mut self, commands: Vec<Command>, reply: Reply) {
        self.next_ticket += 1;
        self.replies.insert(self.next_ticket, (reply, commands.len()));
        for (end, command) in self.ends.iter().zip(commands) {
            // An engine that has ended has said so in its last report.
            if end.commands.send((self.next_ticket, command)).is_ok() {
                let _ = rustix::io::write(&*end.wake, &1u64.to_ne_bytes());
            }
        }
    }

    /// Records that one engine has executed a command. Returns the reply after the last one.
    pub(crate) fn executed(&mut self, ticket: u64) -> Option<Reply> {
        let (_, left) = self.replies.get_mut(&ticket)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.replies.remove(&ticket).map(|(reply, _)| reply)
    }

    /// Returns the next reply or report of an engine, if there is one. The last report of each
    /// engine is its end. `device`: the device's name.
    pub(crate) fn next_report(&mut self, device: &str) -> Option<EngineReport> {
        self.ends.iter_mut().filter(|end| !end.has_ended).find_map(|end| {
            let report = match end.reports.try_recv() {
                Ok(report) => report,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    // The engine ended without a report: it panicked, and the thread's joiner
                    // receives the panic. The server then ends, too, since its sessions need all
                    // engines.
                    let cause = io::Error::other("the engine's thread ended early");
                    let name = device.to_owned();
                    EngineReport::Ended(Err(DeviceError::Failed { name, what: "serving", cause }))
                }
            };
            end.has_ended = matches!(report, EngineReport::Ended(_));
            Some(report)
        })
    }

    /// Records the end of an engine. Returns the outcome once all engines have ended: the first
    /// error, if there is one.
    pub(crate) fn engine_ended(
        &mut self,
        outcome: Result<(), DeviceError>,
    ) -> Option<Result<(), DeviceError>> {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
        let all = self.ends.iter().all(|end| end.has_ended);
        all.then(|| self.failure.take().map_or(Ok(()), Err))
    }
}

/// The engine's side of the channels, in tests.
#[cfg(test)]
pub(crate) type EngineSide = (Receiver<(u64, Command)>, Sender<EngineReport>);

#[cfg(test)]
impl Engines {
    /// Makes channels to engines that a test plays.
    pub(crate) fn of_test(lanes: usize) -> (Engines, Vec<EngineSide>) {
        let end = |_| {
            let (commands, theirs) = std::sync::mpsc::channel();
            let (reporter, reports) = std::sync::mpsc::channel();
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            let wake = Arc::new(rustix::event::eventfd(0, flags).unwrap());
            (EngineEnd { commands, reports, wake, has_ended: false }, (theirs, reporter))
        };
        let (ends, sides) = (0..lanes).map(end).unzip();
        (Engines::new(ends), sides)
    }
}

#[cfg(test)]
mod tests {
    use towpath_protocol::settings::Setting;

    use super::*;

    #[test]
    fn a_command_is_done_once_all_engines_have_executed_it() {
        let (mut engines, sides) = Engines::of_test(2);
        engines.command(Command::Link { up: true }, Reply::Done(7));
        let tickets = sides.iter().map(|(commands, _)| commands.try_recv().unwrap().0);
        let tickets: Vec<u64> = tickets.collect();
        assert_eq!(tickets, [1, 1]);
        assert!(engines.executed(1).is_none());
        assert!(matches!(engines.executed(1), Some(Reply::Done(7))));
        assert!(engines.executed(1).is_none(), "once");
    }

    #[test]
    fn each_lane_has_an_equal_share_of_a_rate() {
        let (mut engines, sides) = Engines::of_test(2);
        for (setting, value) in [(Setting::RatePps, 9), (Setting::Weight, 9)] {
            let set = Command::Set { setting, session: 1, endpoint: 0, value };
            engines.command(set, Reply::Nothing);
        }
        for (commands, _) in &sides {
            let values = commands.try_iter().map(|(_, command)| match command {
                Command::Set { value, .. } => value,
                other => panic!("{other:?}"),
            });
            assert_eq!(values.collect::<Vec<_>>(), [5, 9]);
        }
    }

    #[test]
    fn the_engines_are_told_once_that_workers_notify() {
        let (mut engines, sides) = Engines::of_test(1);
        assert!(!engines.decide_notification(Some(7), false) && engines.notify_directly());
        assert!(sides[0].0.try_recv().is_err());
        assert!(engines.decide_notification(Some(8), false) && !engines.notify_directly());
        let (_, command) = sides[0].0.try_recv().unwrap();
        assert!(matches!(command, Command::Notify { directly: false }), "{command:?}");
        assert!(!engines.decide_notification(None, true));
        assert!(sides[0].0.try_recv().is_err());
    }

    #[test]
    fn the_first_error_counts_once_all_engines_have_ended() {
        let (mut engines, mut sides) = Engines::of_test(2);
        // An engine that panics only drops its ends.
        drop(sides.pop());
        let Some(EngineReport::Ended(outcome)) = engines.next_report("tap7") else { panic!() };
        assert!(engines.engine_ended(outcome).is_none());
        assert!(engines.next_report("tap7").is_none());
        sides[0].1.send(EngineReport::Ended(Ok(()))).unwrap();
        let Some(EngineReport::Ended(outcome)) = engines.next_report("tap7") else { panic!() };
        let error = engines.engine_ended(outcome).unwrap().unwrap_err().to_string();
        assert!(error.contains("tap7") && error.contains("ended early"), "{error}");
    }
}

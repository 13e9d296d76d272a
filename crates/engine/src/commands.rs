//! Commands from the control thread to the engine, and the engine's replies and reports. The
//! control thread checks everything beforehand, and sends finished objects.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use towpath_device::{DeviceError, HardwareQueue};
use towpath_protocol::settings::Setting;
use towpath_queue::{OwnWords, Violation};

use crate::account::Account;
use crate::apertures::commands::{ApertureCommand, ApertureReport};
use crate::freed::FreedLease;
use crate::neighbours::NeighbourRequest;
use crate::reach::Reach;
use crate::session::Session;
use crate::session::doorbell::Doorbell;
use crate::session::endpoints::Endpoint;

/// A command of the control thread. The engine answers each with `EngineReport::Done` and the
/// command's ticket.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum Command {
    AddSession(Box<Session>),
    /// Ends a session; the application reads the reason, 0 for none. Unless `at_once`, the engine first sends the
    /// session's last packets.
    RemoveSession {
        number: u32,
        reason: u32,
        at_once: bool,
    },
    AddEndpoint {
        session: u32,
        number: u32,
        endpoint: Box<Endpoint>,
        listening: Option<Listening>,
        group: bool,
    },
    /// Adds an endpoint with the flow rule of another session's endpoint, which it closes. The other application learns
    /// of the end as of [`Command::RevokeEndpoint`]. No packet comes between the two steps.
    TakeOverEndpoint {
        /// The session and the endpoint that has the rule.
        from: (u32, u32),
        session: u32,
        number: u32,
        endpoint: Box<Endpoint>,
        group: bool,
    },
    RemoveEndpoint {
        session: u32,
        number: u32,
    },
    /// Closes an endpoint because the policy changed, and tells the application.
    RevokeEndpoint {
        session: u32,
        number: u32,
    },
    /// Tells an application that an endpoint which an earlier server opened is closed.
    TellRevoked {
        session: u32,
        number: u32,
    },
    /// Delivers an answer about a link address, and allows as many further requests as were
    /// answered.
    AnswerNeighbour {
        session: u32,
        endpoint: u32,
        packet: Option<Box<[u8]>>,
        answered: u32,
    },
    /// Sets the limit of forbidden packets per second, and the users with whose sessions this one
    /// exchanges out-of-band messages.
    SetTerms {
        session: u32,
        forbidden: Option<u32>,
        reach: Reach,
    },
    /// Sets a checked value; session 0 means the device.
    Set {
        setting: Setting,
        session: u32,
        endpoint: u32,
        value: u64,
    },
    /// Sets whether the engine itself notifies applications. If the server serves applications of
    /// several users, the engine notifies only the trusted ones.
    Notify {
        directly: bool,
    },
    /// Also writes the sleep flag into the state page of a user.
    AddFlag {
        user: u32,
        flag: Box<OwnWords>,
    },
    /// Writes the sleep flag into the state page of a user no more.
    RemoveFlag {
        user: u32,
    },
    /// The device's link came up or went down.
    Link {
        up: bool,
    },
    /// The largest IP packet that the device sends changed, in bytes.
    Mtu {
        bytes: usize,
    },
    /// Stops serving a hardware queue, which a session is to have to itself.
    CedeQueue {
        hardware: u32,
    },
    /// Serves a hardware queue again.
    RestoreQueue(HardwareQueue),
    /// Gives a session of an earlier server to its application.
    ClaimSession(Box<Claim>),
    /// Adds a freed lease: the engine answers for its addresses.
    AnswerFor(FreedLease),
    /// Removes the freed lease with this MAC address.
    StopAnsweringFor {
        mac: [u8; 6],
    },
    /// Changes memories, apertures and tripwires, in the first lane, which has them.
    Aperture(ApertureCommand),
    /// Ends the engine and its sessions.
    Stop,
    /// Ends the engine, and leaves its sessions for the next server.
    Leave,
}

impl Command {
    /// Returns the same command for another lane; `None` for a session and for a sleep flag, of which each lane gets
    /// its own part, and for hardware queues, apertures and tripwires, which only the first lane has.
    fn again(&self) -> Option<Command> {
        Some(match self {
            Command::AddSession(_)
            | Command::ClaimSession(_)
            | Command::AddFlag { .. }
            | Command::CedeQueue { .. }
            | Command::RestoreQueue(_)
            | Command::Aperture(_) => {
                return None;
            }
            Command::RemoveSession { number, reason, at_once } => {
                Command::RemoveSession { number: *number, reason: *reason, at_once: *at_once }
            }
            Command::AddEndpoint { session, number, endpoint, listening, group } => {
                let (endpoint, listening) = (endpoint.clone(), *listening);
                Command::AddEndpoint {
                    session: *session,
                    number: *number,
                    endpoint,
                    listening,
                    group: *group,
                }
            }
            Command::TakeOverEndpoint { from, session, number, endpoint, group } => {
                let (from, session, number) = (*from, *session, *number);
                let (endpoint, group) = (endpoint.clone(), *group);
                Command::TakeOverEndpoint { from, session, number, endpoint, group }
            }
            Command::RemoveEndpoint { session, number } => {
                Command::RemoveEndpoint { session: *session, number: *number }
            }
            Command::RevokeEndpoint { session, number } => {
                Command::RevokeEndpoint { session: *session, number: *number }
            }
            Command::TellRevoked { session, number } => {
                Command::TellRevoked { session: *session, number: *number }
            }
            Command::AnswerNeighbour { session, endpoint, packet, answered } => {
                let (session, endpoint, answered) = (*session, *endpoint, *answered);
                Command::AnswerNeighbour { session, endpoint, packet: packet.clone(), answered }
            }
            Command::SetTerms { session, forbidden, reach } => {
                Command::SetTerms { session: *session, forbidden: *forbidden, reach: *reach }
            }
            Command::Set { setting, session, endpoint, value } => {
                let (setting, session) = (*setting, *session);
                Command::Set { setting, session, endpoint: *endpoint, value: *value }
            }
            Command::Notify { directly } => Command::Notify { directly: *directly },
            Command::RemoveFlag { user } => Command::RemoveFlag { user: *user },
            Command::Link { up } => Command::Link { up: *up },
            Command::Mtu { bytes } => Command::Mtu { bytes: *bytes },
            Command::AnswerFor(freed) => Command::AnswerFor(*freed),
            Command::StopAnsweringFor { mac } => Command::StopAnsweringFor { mac: *mac },
            Command::Stop => Command::Stop,
            Command::Leave => Command::Leave,
        })
    }

    /// Returns the command for each of so many lanes. Each lane gets an equal share of a rate, and
    /// the first one all requests for link addresses, which applications send there.
    pub fn for_lanes(mut self, lanes: usize) -> Vec<Command> {
        if let Command::Set {
            setting: Setting::RateBps | Setting::RatePps | Setting::Quota,
            value,
            ..
        } = &mut self
        {
            *value = value.div_ceil(lanes as u64);
        }
        let mut all = Vec::with_capacity(lanes);
        for _ in 1..lanes {
            let Some(mut again) = self.again() else { break };
            if let Command::AddEndpoint { endpoint, .. } = &mut again
                && let Some(left) = &mut endpoint.requests_left
            {
                *left = 0;
            }
            all.push(again);
        }
        all.insert(0, self);
        all
    }
}

/// What an engine needs to give a session to its application.
#[derive(Debug)]
pub struct Claim {
    /// The session's number.
    pub session: u32,
    /// The way to notify the application.
    pub doorbell: Doorbell,
    /// As `Session::wake`.
    pub wake: OwnedFd,
    /// The application's account, whose group may be another one than when the session began.
    pub account: Option<Account>,
}

/// The way in which an endpoint without a flow rule listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The endpoint receives every packet of the device.
    Promiscuous,
    /// The endpoint receives a copy of every packet in either direction.
    Capture,
    /// The endpoint receives a copy of each ARP, ICMP and ICMPv6 packet, and of each later fragment, to its session's MAC
    /// address that an endpoint of another session receives.
    LinkControl,
}

/// A reply or report of the engine to the control thread.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum EngineReport {
    Done {
        ticket: u64,
    },
    /// The session receives and sends nothing any more; the control thread has its doorbell closed.
    Closed {
        session: u32,
        doorbell: Arc<OwnedFd>,
    },
    /// No part of the session is in use any more.
    Removed(Box<Session>),
    /// The engine closed the session because its application violated the protocol.
    Violated {
        session: u32,
        violation: Violation,
    },
    /// A session asks for a link address.
    NeighbourWanted(NeighbourRequest),
    /// The device completed none of `packets` packets for a window. The engine resets it, and
    /// repeats this each window until the device completes some.
    Stalled {
        packets: u64,
    },
    /// The device works again, after `resets` resets.
    Recovered {
        resets: u64,
    },
    /// The engine serves a hardware queue no more, and returns it to be closed; `None` if it cannot
    /// do without.
    Ceded {
        hardware: u32,
        queue: Option<HardwareQueue>,
    },
    /// Another host claims an address of a freed lease. The engine has removed the lease.
    FreedClaimed {
        mac: [u8; 6],
    },
    /// What became of a command for an aperture.
    Aperture(ApertureReport),
    /// A session's own queue stopped working, and the session has to end.
    OwnQueueBroke {
        session: u32,
    },
    /// The engine ended, by command or because the device failed.
    Ended(Result<(), DeviceError>),
}

/// The engine's end of the channels between it and the control thread.
#[derive(Debug)]
pub(crate) struct CommandPort {
    commands: Receiver<(u64, Command)>,
    reports: Sender<EngineReport>,
    control_wake: Arc<OwnedFd>,
    /// `true` if there may be commands that the engine has not read.
    left: bool,
    /// `true` if the control thread is gone.
    disconnected: bool,
}

impl CommandPort {
    /// Creates the engine's end. The engine writes `control_wake` after each reply and report.
    pub(crate) fn new(
        commands: Receiver<(u64, Command)>,
        reports: Sender<EngineReport>,
        control_wake: Arc<OwnedFd>,
    ) -> CommandPort {
        CommandPort { commands, reports, control_wake, left: false, disconnected: false }
    }

    /// Returns the next command with its ticket.
    pub(crate) fn next(&mut self) -> Option<(u64, Command)> {
        match self.commands.try_recv() {
            Ok(next) => {
                self.left = true;
                Some(next)
            }
            Err(error) => {
                self.left = false;
                self.disconnected |= error == TryRecvError::Disconnected;
                None
            }
        }
    }

    /// Records that commands may have arrived whose notification the engine has taken.
    pub(crate) fn arrived(&mut self) {
        self.left = true;
    }

    /// Returns `true` if there may be commands that the engine has not read.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Returns `true` if the control thread is gone.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected
    }

    /// Sends a reply or report.
    pub(crate) fn tell(&self, report: EngineReport) {
        // The channel is closed once the control thread is gone; then the engine ends too.
        if self.reports.send(report).is_ok() {
            let _ = rustix::io::write(&*self.control_wake, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod port_tests {
    use std::sync::mpsc::channel;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn commands_are_left_until_none_comes() {
        let (commands, theirs) = channel();
        let (reports, events) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let mut port = CommandPort::new(theirs, reports, wake.clone());
        commands.send((7, Command::Stop)).unwrap();
        assert!(!port.has_left());
        assert!(matches!(port.next(), Some((7, Command::Stop))));
        assert!(port.has_left() && port.next().is_none() && !port.has_left());
        port.arrived();
        assert!(port.has_left() && !port.is_disconnected());
        port.tell(EngineReport::Done { ticket: 7 });
        assert!(matches!(events.try_recv(), Ok(EngineReport::Done { ticket: 7 })));
        assert_eq!(rustix::io::read(&*wake, &mut [0; 8]), Ok(8), "the control thread is woken");
        drop(commands);
        assert!(port.next().is_none() && port.is_disconnected());
    }
}

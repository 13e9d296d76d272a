//! Commands of the control thread: they add and remove sessions and endpoints.
//!
//! The control thread has already done everything that takes time. The engine enters finished
//! objects, and removes them once none of their packets is in flight.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::TryRecvError;

use rustix::event::epoll;
use towpath_device::{DeviceError, Space};
use towpath_memory::peer_words;
use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::layout::ENDPOINT_COUNTERS;
use towpath_protocol::settings::{Scope, Setting};
use towpath_queue::Violation;

use crate::engine::Engine;
use crate::engine::demux::{Destination, FlowCache};
use crate::engine::schedule::shape::Shape;
use crate::engine::session::{Endpoint, Session};

/// A command of the control thread. The engine answers each with `EngineReport::Done` and the
/// command's ticket.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum Command {
    AddSession(Box<Session>),
    RemoveSession {
        number: u32,
    },
    AddEndpoint {
        session: u32,
        number: u32,
        endpoint: Box<Endpoint>,
        listening: Option<Listening>,
        group: bool,
    },
    RemoveEndpoint {
        session: u32,
        number: u32,
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
    Stop,
}

/// The way in which an endpoint without a flow rule listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The endpoint receives every packet of the device.
    Promiscuous,
    /// The endpoint receives a copy of every packet in either direction.
    Capture,
}

/// A reply or report of the engine to the control thread.
#[derive(Debug)]
pub enum EngineReport {
    Done {
        ticket: u64,
    },
    /// The session receives and sends nothing any more; the control thread has its doorbell closed.
    Closed {
        session: u32,
        doorbell: OwnedFd,
    },
    /// No part of the session is in use any more.
    Removed(Box<Session>),
    /// The engine closed the session because its application violated the protocol.
    Violated {
        session: u32,
        violation: Violation,
    },
    /// The device completed none of `packets` packets for a window. The engine resets it, and
    /// repeats this each window until the device completes some.
    Stalled {
        packets: u64,
    },
    /// The device works again, after `resets` resets.
    Recovered {
        resets: u64,
    },
    /// The engine ended, by command or because the device failed.
    Ended(Result<(), DeviceError>),
}

/// Commands that the engine executes per poll iteration, so that a connection that opens or sets
/// endlessly does not delay other sessions. An engine with commands left does not sleep.
const COMMANDS_PER_ITERATION: usize = 16;

/// Endpoints of ending sessions that the engine removes per poll iteration, so that one session's
/// ten thousand do not delay other sessions.
const CLOSED_PER_ITERATION: usize = 64;

/// An ending session and its endpoints that still have flow rules.
#[derive(Debug)]
pub(crate) struct Closing {
    key: u32,
    /// The number of the next endpoint.
    number: u32,
    endpoints: std::vec::IntoIter<Option<Endpoint>>,
    shapes: std::vec::IntoIter<Option<Box<Shape>>>,
}

impl Engine {
    /// Executes commands, a few per poll iteration, and returns the amount of work done.
    pub(crate) fn execute_commands(&mut self) -> usize {
        let mut work = 0;
        self.commands_left = true;
        while work < COMMANDS_PER_ITERATION {
            match self.commands.try_recv() {
                Ok((ticket, command)) => {
                    self.execute(command);
                    self.tell(EngineReport::Done { ticket });
                    work += 1;
                }
                Err(error) => {
                    self.commands_left = false;
                    self.stop |= error == TryRecvError::Disconnected;
                    break;
                }
            }
        }
        work + self.go_on_hurrying()
    }

    /// Returns `true` if commands, or work that follows from them, continue in the next poll
    /// iteration. The engine must then not wait for a notification or a tick: it may have consumed
    /// the notification of the remaining commands already.
    pub(crate) fn has_commands_left(&self) -> bool {
        self.commands_left || !self.closing.is_empty() || !self.hurrying.is_empty()
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::AddSession(session) => self.add_session(session),
            Command::RemoveSession { number } => {
                if let Some(key) = self.key(number) {
                    self.begin_closing(key, 0);
                }
            }
            Command::AddEndpoint { session, number, endpoint, listening, group } => {
                let Some(key) = self.key(session) else { return };
                // The control thread sends commands for a session that ends with a violation until
                // it learns of the end. A rule entered now would outlive the session and lead to
                // the next session with its key.
                if self.sessions[key as usize].as_ref().is_none_or(|one| one.closing) {
                    return;
                }
                let destination = Destination { session: key, endpoint: number };
                match listening {
                    None => {
                        self.flows.insert(&endpoint.rule, group, destination);
                    }
                    Some(Listening::Promiscuous) => self.flows.promiscuous.push(destination),
                    Some(Listening::Capture) => self.flows.captures.push(destination),
                }
                if let Some(session) = &mut self.sessions[key as usize] {
                    // The counters of a reused number start at zero.
                    let first = number as usize * ENDPOINT_COUNTERS;
                    for word in first..first + ENDPOINT_COUNTERS {
                        session.counters.store(word, 0);
                    }
                    session.put_in(number, *endpoint);
                }
            }
            Command::RemoveEndpoint { session, number } => {
                if let Some(key) = self.key(session) {
                    self.remove_endpoint(key, number);
                }
            }
            Command::Set { setting, session, endpoint, value } => {
                self.set(setting, session, endpoint, value);
            }
            Command::Notify { directly } => self.notifies_directly = directly,
            Command::Stop => self.stop = true,
        }
    }

    /// Sets a value that the sender of the command has checked.
    fn set(&mut self, setting: Setting, session: u32, endpoint: u32, value: u64) {
        if setting.spec().scope == Scope::Device {
            // A value out of range leaves the old one.
            let _ = self.values.set(setting, value);
        }
        match setting {
            Setting::Wait
            | Setting::TickHz
            | Setting::LatencyUs
            | Setting::CpuPercent
            | Setting::TimerSlackUs => self.set_wait_strategy(setting),
            Setting::Watchdog | Setting::WatchdogMs => self.set_watchdog(),
            Setting::RxBatch => self.rx_batch = (value as usize).min(self.budgets.batch),
            Setting::NotificationSuppression => self.notification_suppression = value != 0,
            Setting::EarlyNotification => self.early_notification = value != 0,
            Setting::Notify => self.always_by_worker = value != 0,
            Setting::FlowCache => self.flows.set_cache(FlowCache::of(value)),
            Setting::Scheduler | Setting::Handoff | Setting::Expedited => {
                self.set_sending(setting, value);
            }
            Setting::RxFrames | Setting::RxUsecs => {
                let Some(key) = self.key(session) else { return };
                if let Some(session) = &mut self.sessions[key as usize] {
                    session.set_coalescing(endpoint, setting, value as u32);
                    // A deferred notification may already have waited long enough under the new
                    // setting.
                    if self.deferred.has(key) {
                        self.deferred.put(0, key);
                    }
                }
            }
            Setting::Priority
            | Setting::Weight
            | Setting::RateBps
            | Setting::RatePps
            | Setting::BurstBytes
            | Setting::BurstPackets
            | Setting::Pacing
            | Setting::MaxDelayUs
            | Setting::MaxMessageBytes
            | Setting::Quota
            | Setting::TickMultiple => {
                if let Some(key) = self.key(session) {
                    self.set_shape(key, endpoint, setting, value);
                }
            }
        }
    }

    pub(crate) fn key(&self, number: u32) -> Option<u32> {
        self.keys.get(&number).copied()
    }

    fn add_session(&mut self, mut session: Box<Session>) {
        let key = self.free_keys.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.transmit_pools.push(None);
            self.deferred.reserve(self.sessions.len());
            self.sessions.len() as u32 - 1
        });
        session.transmit_space = self.spaces.add(Space::new(session.transmit_pool.clone()));
        let words = peer_words(&session.transmit_pool);
        // Both views are read by atomics: the engine fetches headers as words, and copies payload.
        self.transmit_pools[key as usize] = Some((session.transmit_pool.clone(), words));
        for (number, set) in session.queue_pairs.iter_mut().enumerate() {
            set.unit = self.schedule.add(key, number as u32);
        }
        self.keys.insert(session.number, key);
        self.sessions[key as usize] = Some(session);
        self.make_active(key);
    }

    fn remove_endpoint(&mut self, key: u32, number: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        let Some(endpoint) = session.take_out(number) else { return };
        let queue_pair = endpoint.queue_pair;
        self.forget(&endpoint, Destination { session: key, endpoint: number });
        self.forget_shape(key, number, queue_pair);
    }

    /// Stops delivery to an endpoint.
    fn forget(&mut self, endpoint: &Endpoint, destination: Destination) {
        if endpoint.captures {
            self.flows.remove_captures(destination);
        } else {
            self.flows.remove(&endpoint.rule, destination);
        }
    }

    /// Ends a session, which from now on receives and sends nothing. The engine waits for the
    /// session's packets in flight, and removes its flow rules a few per poll iteration.
    pub(crate) fn begin_closing(&mut self, key: u32, reason: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        if session.closing {
            return;
        }
        let (number, doorbell) = (session.number, session.close(reason));
        let endpoints = std::mem::take(&mut session.endpoints).into_iter();
        let shapes = std::mem::take(&mut session.shapes).into_iter();
        self.closing.push_back(Closing { key, number: 0, endpoints, shapes });
        self.schedule.remove(session.queue_pairs.iter().map(|set| set.unit));
        self.remove_active(key);
        self.deferred.forget(key);
        self.hurrying.retain(|one| *one != key);
        self.touched.retain(|(session, _)| *session != key);
        // Another session may have the key before the engine publishes these completions.
        self.completed.retain(|one| one.key != key);
        let mut gone = Vec::new();
        let (bounce, in_flight) = (&self.bounce, &self.in_flight);
        self.handoff.forget(|slot| {
            let theirs =
                in_flight[bounce.slots[slot as usize].in_flight_slot as usize].session == key;
            if theirs {
                gone.push(slot);
            }
            theirs
        });
        counters::add(&mut self.counters, Count::TxEnded as usize, gone.len() as u64);
        for slot in gone {
            self.land(slot);
        }
        if let Some(doorbell) = doorbell {
            self.tell(EngineReport::Closed { session: number, doorbell });
        }
    }

    /// Removes flow rules of ending sessions, and sessions that have ended. Returns the amount of
    /// work done.
    pub(crate) fn go_on_closing(&mut self) -> usize {
        while let Some(key) = self.landed.pop() {
            self.take_out(key);
        }
        let mut work = 0;
        while let Some(closing) = self.closing.front_mut() {
            let key = closing.key;
            let Some(endpoint) = closing.endpoints.next() else {
                self.closing.pop_front();
                if let Some(session) = &mut self.sessions[key as usize] {
                    session.emptied = true;
                }
                self.take_out(key);
                continue;
            };
            let number = closing.number;
            closing.number += 1;
            let shape = closing.shapes.next().flatten();
            self.timed -= usize::from(shape.is_some_and(|shape| shape.takes_time()));
            if let Some(endpoint) = endpoint {
                self.forget(&endpoint, Destination { session: key, endpoint: number });
            }
            work += 1;
            if work == CLOSED_PER_ITERATION {
                break;
            }
        }
        work
    }

    /// Removes a session of which nothing is left, and hands it back.
    fn take_out(&mut self, key: u32) {
        let theirs = &mut self.sessions[key as usize];
        let Some(session) = theirs.take_if(|one| one.closing && one.emptied && one.in_flight == 0)
        else {
            return;
        };
        // This call uses only the server's own objects, so no application can prolong it.
        let _ = epoll::delete(&self.epoll, session.wake.as_fd());
        self.spaces.remove(session.transmit_space);
        self.transmit_pools[key as usize] = None;
        self.keys.remove(&session.number);
        self.free_keys.push(key);
        self.tell(EngineReport::Removed(session));
    }

    /// Closes a session that violated the protocol.
    pub(crate) fn end_if_violated(&mut self, key: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        let Some(violation) = session.violation else { return };
        if !session.closing {
            let number = session.number;
            counters::add(&mut self.counters, Count::Violations as usize, 1);
            self.begin_closing(key, violation as u32);
            self.tell(EngineReport::Violated { session: number, violation });
        }
    }
}

#[cfg(test)]
mod tests;

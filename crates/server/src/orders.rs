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

use crate::demux::{Destination, FlowCache};
use crate::engine::Engine;
use crate::schedule::shape::Shape;
use crate::session::{Endpoint, Session};

/// A command of the control thread. The engine answers each with `Event::Done` and the command's
/// ticket.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum Order {
    AddSession(Box<Session>),
    RemoveSession {
        number: u32,
    },
    AddEndpoint {
        session: u32,
        number: u32,
        endpoint: Box<Endpoint>,
        tap: Option<Tap>,
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
pub enum Tap {
    /// The endpoint receives every packet of the device.
    Promiscuous,
    /// The endpoint receives a copy of every packet in either direction.
    Capture,
}

/// A reply or report of the engine to the control thread.
#[derive(Debug)]
pub enum Event {
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
const ORDERS_A_TURN: usize = 16;

/// Endpoints of ending sessions that the engine removes per poll iteration, so that one session's
/// ten thousand do not delay other sessions.
const CLOSED_A_TURN: usize = 64;

/// An ending session and its endpoints that still have flow rules.
#[derive(Debug)]
pub(crate) struct Closing {
    place: u32,
    /// The number of the next endpoint.
    number: u32,
    endpoints: std::vec::IntoIter<Option<Endpoint>>,
    shapes: std::vec::IntoIter<Option<Box<Shape>>>,
}

impl Engine {
    /// Executes commands, a few per poll iteration, and returns the amount of work done.
    pub(crate) fn follow_orders(&mut self) -> usize {
        let mut work = 0;
        self.orders_left = true;
        while work < ORDERS_A_TURN {
            match self.orders.try_recv() {
                Ok((ticket, order)) => {
                    self.follow(order);
                    self.tell(Event::Done { ticket });
                    work += 1;
                }
                Err(error) => {
                    self.orders_left = false;
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
    pub(crate) fn has_orders_left(&self) -> bool {
        self.orders_left || !self.closing.is_empty() || !self.hurrying.is_empty()
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::AddSession(session) => self.add_session(session),
            Order::RemoveSession { number } => {
                if let Some(place) = self.place(number) {
                    self.begin_closing(place, 0);
                }
            }
            Order::AddEndpoint { session, number, endpoint, tap, group } => {
                let Some(place) = self.place(session) else { return };
                // The control thread sends commands for a session that ends with a violation until
                // it learns of the end. A rule entered now would outlive the session and lead to
                // the next session with its key.
                if self.sessions[place as usize].as_ref().is_none_or(|one| one.closing) {
                    return;
                }
                let destination = Destination { session: place, endpoint: number };
                match tap {
                    None => {
                        self.flows.insert(&endpoint.rule, group, destination);
                    }
                    Some(Tap::Promiscuous) => self.flows.promiscuous.push(destination),
                    Some(Tap::Capture) => self.flows.captures.push(destination),
                }
                if let Some(session) = &mut self.sessions[place as usize] {
                    // The counters of a reused number start at zero.
                    let first = number as usize * ENDPOINT_COUNTERS;
                    for word in first..first + ENDPOINT_COUNTERS {
                        session.counters.store(word, 0);
                    }
                    session.put_in(number, *endpoint);
                }
            }
            Order::RemoveEndpoint { session, number } => {
                if let Some(place) = self.place(session) {
                    self.remove_endpoint(place, number);
                }
            }
            Order::Set { setting, session, endpoint, value } => {
                self.set(setting, session, endpoint, value);
            }
            Order::Notify { directly } => self.notifies_directly = directly,
            Order::Stop => self.stop = true,
        }
    }

    /// Sets a value that the sender of the command has checked.
    fn set(&mut self, setting: Setting, session: u32, endpoint: u32, value: u64) {
        if setting.spec().scope == Scope::Device {
            // A value out of range leaves the old one.
            let _ = self.values.set(setting, value);
        }
        match setting {
            Setting::Mode
            | Setting::ClockHz
            | Setting::LatencyUs
            | Setting::CpuPercent
            | Setting::TimerSlackUs => self.set_waiting(setting),
            Setting::Watchdog | Setting::WatchdogMs => self.set_watchdog(),
            Setting::RxBatch => self.batch = (value as usize).min(self.budgets.batch),
            Setting::RingSaving => self.ring_saving = value != 0,
            Setting::RingHalf => self.ring_half = value != 0,
            Setting::Notify => self.always_by_worker = value != 0,
            Setting::FlowCache => self.flows.set_cache(FlowCache::of(value)),
            Setting::Scheduler | Setting::Handoff | Setting::Small => {
                self.set_sending(setting, value);
            }
            Setting::RxFrames | Setting::RxUsecs => {
                let Some(place) = self.place(session) else { return };
                if let Some(session) = &mut self.sessions[place as usize] {
                    session.set_coalescing(endpoint, setting, value as u32);
                    // A deferred notification may already have waited long enough under the new
                    // setting.
                    if self.held.has(place) {
                        self.held.put(0, place);
                    }
                }
            }
            Setting::Priority
            | Setting::Weight
            | Setting::RateBps
            | Setting::RateFps
            | Setting::BurstBytes
            | Setting::BurstFrames
            | Setting::Pacing
            | Setting::MaxDelayUs
            | Setting::MaxRunBytes
            | Setting::Quota
            | Setting::TickMultiple => {
                if let Some(place) = self.place(session) {
                    self.set_shape(place, endpoint, setting, value);
                }
            }
        }
    }

    pub(crate) fn place(&self, number: u32) -> Option<u32> {
        self.places.get(&number).copied()
    }

    fn add_session(&mut self, mut session: Box<Session>) {
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.heaps.push(None);
            self.held.reserve(self.sessions.len());
            self.sessions.len() as u32 - 1
        });
        session.transmit_space = self.spaces.add(Space::new(session.transmit_heap.clone()));
        let words = peer_words(&session.transmit_heap);
        // Both views are read by atomics: the engine fetches headers as words, and copies payload.
        self.heaps[place as usize] = Some((session.transmit_heap.clone(), words));
        for (number, set) in session.queue_sets.iter_mut().enumerate() {
            set.unit = self.schedule.add(place, number as u32);
        }
        self.places.insert(session.number, place);
        self.sessions[place as usize] = Some(session);
        self.watch(place);
    }

    fn remove_endpoint(&mut self, place: u32, number: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        let Some(endpoint) = session.take_out(number) else { return };
        let queue_set = endpoint.queue_set;
        self.forget(&endpoint, Destination { session: place, endpoint: number });
        self.forget_shape(place, number, queue_set);
    }

    /// Stops delivery to an endpoint.
    fn forget(&mut self, endpoint: &Endpoint, destination: Destination) {
        if endpoint.tap {
            self.flows.remove_taps(destination);
        } else {
            self.flows.remove(&endpoint.rule, destination);
        }
    }

    /// Ends a session, which from now on receives and sends nothing. The engine waits for the
    /// session's packets in flight, and removes its flow rules a few per poll iteration.
    pub(crate) fn begin_closing(&mut self, place: u32, reason: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        if session.closing {
            return;
        }
        let (number, doorbell) = (session.number, session.close(reason));
        let endpoints = std::mem::take(&mut session.endpoints).into_iter();
        let shapes = std::mem::take(&mut session.shapes).into_iter();
        self.closing.push_back(Closing { place, number: 0, endpoints, shapes });
        self.schedule.remove(session.queue_sets.iter().map(|set| set.unit));
        self.unwatch(place);
        self.held.forget(place);
        self.hurrying.retain(|one| *one != place);
        self.touched.retain(|(session, _)| *session != place);
        // Another session may have the key before the engine looks at it again.
        self.finished.retain(|one| one.place != place);
        let mut gone = Vec::new();
        let (stage, flights) = (&self.stage, &self.flights);
        self.handoff.forget(|slot| {
            let theirs = flights[stage.slots[slot as usize].flight as usize].session == place;
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
            self.tell(Event::Closed { session: number, doorbell });
        }
    }

    /// Removes flow rules of ending sessions, and sessions that have ended. Returns the amount of
    /// work done.
    pub(crate) fn go_on_closing(&mut self) -> usize {
        while let Some(place) = self.landed.pop() {
            self.take_out(place);
        }
        let mut work = 0;
        while let Some(closing) = self.closing.front_mut() {
            let place = closing.place;
            let Some(endpoint) = closing.endpoints.next() else {
                self.closing.pop_front();
                if let Some(session) = &mut self.sessions[place as usize] {
                    session.emptied = true;
                }
                self.take_out(place);
                continue;
            };
            let number = closing.number;
            closing.number += 1;
            let shape = closing.shapes.next().flatten();
            self.timed -= usize::from(shape.is_some_and(|shape| shape.takes_time()));
            if let Some(endpoint) = endpoint {
                self.forget(&endpoint, Destination { session: place, endpoint: number });
            }
            work += 1;
            if work == CLOSED_A_TURN {
                break;
            }
        }
        work
    }

    /// Removes a session of which nothing is left, and hands it back.
    fn take_out(&mut self, place: u32) {
        let theirs = &mut self.sessions[place as usize];
        let Some(session) = theirs.take_if(|one| one.closing && one.emptied && one.flights == 0)
        else {
            return;
        };
        // This call uses only the server's own objects, so no application can prolong it.
        let _ = epoll::delete(&self.epoll, session.wake.as_fd());
        self.spaces.remove(session.transmit_space);
        self.heaps[place as usize] = None;
        self.places.remove(&session.number);
        self.free_places.push(place);
        self.tell(Event::Removed(session));
    }

    /// Closes a session that violated the protocol.
    pub(crate) fn end_if_violated(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        let Some(violation) = session.violation else { return };
        if !session.closing {
            let number = session.number;
            counters::add(&mut self.counters, Count::Violations as usize, 1);
            self.begin_closing(place, violation as u32);
            self.tell(Event::Violated { session: number, violation });
        }
    }
}

#[cfg(test)]
mod tests;

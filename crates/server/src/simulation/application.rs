//! An application: the client library's own session, over which numbered packets come and go.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, Lost, QueuePair, SendError, Session};
use towpath_engine::testing::{MAC, inward, outward};
use towpath_packet::build::Flow;
use towpath_queue::OwnWords;

use super::control::AttachedApplication;
use super::messages::{Messages, lost, port};
use super::plan::Plan;
use super::random::Random;
use super::transfers::Transfers;

/// The bytes of all headers of a packet.
const HEADERS: usize = 42;
/// The longest payload.
const LONGEST: u64 = 1400;
/// The longest time for which an application does something else.
const LONGEST_PAUSE_NS: u64 = 20_000_000;

/// The sender of a packet, in its payload.
pub(super) const FAR: u8 = 0xfa;

/// Returns the payload of a packet: its sender, its number, and bytes that follow from
/// both.
pub(super) fn payload(from: u8, number: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(from) << 32 | u64::from(number));
    let len = random.below(LONGEST) as usize + 5;
    let mut bytes = vec![from];
    bytes.extend(number.to_le_bytes());
    bytes.resize_with(len, || random.next() as u8);
    bytes
}

/// Returns the sender and the number of a packet, whose every byte it checks.
pub(super) fn read(packet: &[u8]) -> (u8, u32) {
    let bytes = &packet[HEADERS..];
    let (from, number) = (bytes[0], u32::from_le_bytes(bytes[1..5].try_into().unwrap()));
    assert!(bytes == payload(from, number), "packet {number} of {from} is not what was sent");
    (from, number)
}

/// The packets of one sender that one receiver has got.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// The number after the highest one so far.
    pub(super) next: u32,
    pub(super) lost: u32,
    pub(super) repeated: u32,
}

impl Arrivals {
    pub(super) fn arrived(&mut self, number: u32) {
        match number.checked_sub(self.next) {
            Some(missing) => (self.lost, self.next) = (self.lost + missing, number + 1),
            None => self.repeated += 1,
        }
    }
}

/// The packets that one sender is to send to one receiver.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) sent: u32,
    pub(super) all: u32,
}

pub(super) struct Application {
    pub(super) session: Session,
    pub(super) endpoint: Endpoint,
    number: usize,
    neighbour: usize,
    pub(super) to_far: Outgoing,
    pub(super) to_neighbour: Outgoing,
    pub(super) from_far: Arrivals,
    pub(super) from_neighbour: Arrivals,
    pub(super) messages: Messages,
    pub(super) transfers: Transfers,
    asleep: bool,
    busy_until: u64,
    /// The hostile application, whose packets may hold anything.
    hostile_one: Option<usize>,
    /// If it is this one, the words that it overwrites at random.
    hostile: Option<OwnWords>,
    /// `true` once the session of a hostile application has ended.
    pub(super) over: bool,
}

impl Application {
    pub(super) fn new(attached: AttachedApplication, number: usize, plan: &Plan) -> Application {
        let AttachedApplication { session, endpoint, means, words } = attached;
        let Plan { applications, packets, hostile: hostile_one, .. } = *plan;
        let hostile = (Some(number) == hostile_one).then_some(words);
        let to_neighbour = if applications > 1 { packets } else { 0 };
        let is_pair = applications > 1 && hostile_one.is_none_or(|one| one > 1) && number < 2;
        let transfers = Transfers::new(means, number, if is_pair { packets / 6 } else { 0 });
        Application {
            session,
            endpoint,
            number,
            neighbour: (number + 1) % applications,
            to_far: Outgoing { sent: 0, all: packets },
            to_neighbour: Outgoing { sent: 0, all: to_neighbour },
            from_far: Arrivals::default(),
            from_neighbour: Arrivals::default(),
            messages: Messages::new(number, applications, packets / 2, hostile_one),
            transfers,
            asleep: false,
            busy_until: 0,
            hostile_one,
            hostile,
            over: false,
        }
    }

    pub(super) fn is_hostile(&self) -> bool {
        self.hostile.is_some()
    }

    /// Returns `true` if the application may act. `is_served`: it knows the server that runs.
    pub(super) fn can_act(&self, now: u64, is_served: bool) -> bool {
        !self.over && self.busy_until <= now && (!self.asleep || !is_served || self.is_notified())
    }

    /// Returns the time at which a busy application acts again.
    pub(super) fn busy_until(&self, now: u64) -> Option<u64> {
        (self.busy_until > now).then_some(self.busy_until)
    }

    fn is_notified(&self) -> bool {
        let mut polled = [PollFd::new(&self.session, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Does one thing. Returns a word about it for the trace.
    pub(super) fn act(&mut self, now: u64, random: &mut Random) -> u64 {
        if self.is_hostile() && random.once_in(20) {
            self.overwrite(random);
        }
        match self.try_to_act(now, random) {
            Ok(what) => what,
            Err(_) if self.is_hostile() => {
                self.over = true;
                7
            }
            Err(lost) => panic!("application {}: {lost}", self.number),
        }
    }

    /// Overwrites a word of the application pages.
    fn overwrite(&mut self, random: &mut Random) {
        let Some(words) = &mut self.hostile else { return };
        let at = random.below(words.len() as u64) as usize;
        let change = random.one_of(&[0, 1, u64::MAX, 1 << 32, u64::MAX >> 32]);
        let value = if random.once_in(2) { random.next() } else { words.get(at) ^ change };
        words.store(at, value);
    }

    fn try_to_act(&mut self, now: u64, random: &mut Random) -> Result<u64, Lost> {
        if std::mem::take(&mut self.asleep) {
            if self.is_notified() {
                self.session.take_notifications();
            }
            self.session.disarm();
        }
        match random.below(22) {
            0..6 => self.send(random),
            6..11 => self.receive(random.below(12) as usize),
            11 => self.session.sender().flush().map(|()| 1),
            12 => self.session.wait(Some(Duration::ZERO)).map(u64::from),
            16 => self.messages.send(&mut self.session, self.endpoint, random),
            17 | 18 => self.messages.receive(&mut self.session, self.endpoint, random.below(12)),
            19 => self.transfers.send(&mut self.session, random),
            20 | 21 => self.transfers.receive(&mut self.session, random.below(6)),
            13 if random.once_in(20) => {
                self.busy_until = now + random.below(LONGEST_PAUSE_NS);
                Ok(2)
            }
            _ => self.sleep(),
        }
    }

    fn send(&mut self, random: &mut Random) -> Result<u64, Lost> {
        let mut sent = 0;
        for _ in 0..=random.below(8) {
            let to_far = self.to_neighbour.sent == self.to_neighbour.all || random.once_in(2);
            let outgoing = if to_far { &mut self.to_far } else { &mut self.to_neighbour };
            if outgoing.sent == outgoing.all {
                break;
            }
            let bytes = payload(self.number as u8, outgoing.sent);
            let len = bytes.len() + HEADERS;
            if !self.session.sender().has_room(self.endpoint, len).map_err(lost)? {
                self.session.sender().want_room(QueuePair::FIRST).map_err(lost)?;
                break;
            }
            let own = inward(port(self.number));
            let flow = if to_far {
                own.reversed()
            } else {
                let here = Flow { source: own.destination, source_mac: MAC, ..own };
                here.ports(port(self.number), port(self.neighbour))
            };
            match self.session.sender().send_bytes(self.endpoint, &flow.udp(&bytes)) {
                Ok(()) => {}
                Err(SendError::Lost(lost)) => return Err(lost),
                Err(other) => panic!("{other}"),
            }
            outgoing.sent += 1;
            sent += 1;
        }
        Ok(sent << 8)
    }

    fn receive(&mut self, most: usize) -> Result<u64, Lost> {
        let mut trace = 3;
        for _ in 0..most {
            let packet = self.session.receiver().receive_one(QueuePair::FIRST);
            let Some(packet) = packet.map_err(lost)? else { break };
            if self.is_hostile() || Some(source(&packet)) == self.hostile_one {
                continue;
            }
            let (from, number) = read(&packet);
            match from {
                FAR => self.from_far.arrived(number),
                _ => self.from_neighbour.arrived(number),
            }
            trace = trace * 31 + u64::from(from) + u64::from(number);
        }
        Ok(trace)
    }

    /// Sleeps, once everything is sent and received, or there is no room.
    fn sleep(&mut self) -> Result<u64, Lost> {
        // What a wait has told of, the application looks at before it sleeps.
        self.transfers.collect(&mut self.session);
        let has_more = self.to_far.sent < self.to_far.all
            || self.to_neighbour.sent < self.to_neighbour.all
            || !self.messages.is_sent()
            || self.transfers.sent < self.transfers.all;
        if has_more {
            let len = HEADERS + LONGEST as usize + 5;
            if self.session.sender().has_room(self.endpoint, len).map_err(lost)? {
                return Ok(4);
            }
            self.session.sender().want_room(QueuePair::FIRST).map_err(lost)?;
        }
        self.asleep = !self.session.arm()?;
        Ok(5 + u64::from(self.asleep))
    }

    /// Checks the final state of a session.
    pub(super) fn check(&mut self) {
        assert!(
            self.session.receiver().receive_one(QueuePair::FIRST).unwrap().is_none(),
            "a packet was left"
        );
        assert_eq!(self.session.oob().receive(self.endpoint), Ok(None), "a message was left");
        assert_eq!(self.session.sender().unsent(QueuePair::FIRST).unwrap(), 0);
        if !self.is_hostile() {
            self.transfers.check();
        }
        assert_eq!(
            (self.to_far.sent, self.to_neighbour.sent),
            (self.to_far.all, self.to_neighbour.all)
        );
    }

    /// Returns a counter of the endpoint.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.session.counters(self.endpoint).get(name).unwrap()
    }
}

/// Returns the packet of the far end for an application.
pub(super) fn from_far(application: usize, number: u32) -> Vec<u8> {
    inward(port(application)).udp(&payload(FAR, number))
}

/// Returns the application that sent a packet, by its source port.
pub(super) fn source(packet: &[u8]) -> usize {
    let port_bytes: [u8; 2] = packet[34..36].try_into().unwrap();
    usize::from(u16::from_be_bytes(port_bytes).wrapping_sub(port(0)))
}

#[test]
fn the_flows_are_those_of_the_endpoints() {
    let packet = inward(port(1)).reversed().udp(&[7; 22]);
    assert_eq!(packet, outward(port(1)));
}

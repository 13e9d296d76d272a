//! All parties but the server, the choice of the next one, and the checks at the end.

use std::sync::{Arc, Mutex};

use towpath_client::PeerState;
use towpath_engine::commands::Command;
use towpath_engine::testing::MAC;
use towpath_queue::simulation;

use super::application::{self, Application, Arrivals, FAR};
use super::control::{Keeper, Server};
use super::plan::{Outcome, Plan};
use super::random::Random;
use super::wire::Wire;

/// Turns without an act after which everything is over, unless something happens at a later time.
const QUIET_TURNS: u32 = 300;
/// The time that has to pass meanwhile: a request waits up to 10 ms until the engine looks again
/// for room.
const QUIET_NS: u64 = 25_000_000;

/// The simulation's time after which a seed counts as one that hangs: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;

/// Everything but the server.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) plan: Plan,
    pub(super) wire: Arc<Mutex<Wire>>,
    pub(super) keeper: Keeper,
    pub(super) server: Server,
    pub(super) applications: Vec<Application>,
    /// What the far end has sent to each application, and got from it.
    pub(super) sent: Vec<u32>,
    pub(super) arrived: Vec<Arrivals>,
    /// Points until this server is killed or asked to leave; `None` if it stays.
    pub(super) end_at: Option<(u64, bool)>,
    pub(super) leaves: bool,
    /// Turns in a row in which none could act.
    pub(super) quiet: u32,
    /// When the last one acted.
    pub(super) acted_at: u64,
    pub(super) outcome: Outcome,
}

impl World {
    pub(super) fn note(&mut self, who: u64, what: u64) {
        let value = who << 56 ^ what ^ simulation::now().rotate_left(20);
        self.outcome.trace = (self.outcome.trace ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    /// Lets one of the others act. Returns `false` if there is nothing to do now.
    pub(super) fn turn(&mut self) -> bool {
        let now = simulation::now();
        assert!(now < LONGEST_NS, "hangs: {:?}", self.state());
        let others = self.applications.len();
        let first = self.random.below(others as u64 + 3) as usize;
        self.quiet += 1;
        for who in (0..others + 3).map(|step| (first + step) % (others + 3)) {
            if self.acts(who, now) {
                (self.quiet, self.acted_at) = (0, now);
                return true;
            }
        }
        if self.next_time().is_some() {
            (self.quiet, self.acted_at) = (0, now);
        }
        if self.quiet > QUIET_TURNS && now - self.acted_at > QUIET_NS {
            match &mut self.end_at {
                Some((left, _)) => *left = 0,
                None => self.leave(),
            }
        }
        false
    }

    fn acts(&mut self, who: usize, now: u64) -> bool {
        let others = self.applications.len();
        if who < others {
            let is_served = self.server.served.contains(&(who as u32 + 1));
            if !self.applications[who].can_act(now, is_served) {
                return false;
            }
            let what = self.applications[who].act(now, &mut self.random);
            self.note(who as u64, what);
            return true;
        }
        match who - others {
            0 => self.far_end_acts(),
            1 => {
                let mut wire = self.wire.lock().unwrap();
                let can = wire.can_complete(now);
                if can {
                    wire.complete_or_stall(now);
                }
                can
            }
            _ => {
                self.keeper.handle_reports(&mut self.server);
                let can = self.server.ends.is_some() && self.keeper.can_act(&self.server);
                if can {
                    self.keeper.act(&mut self.server);
                    self.note(0xc0, 0);
                }
                can
            }
        }
    }

    fn far_end_acts(&mut self) -> bool {
        let mut wire = self.wire.lock().unwrap();
        let got = std::mem::take(&mut wire.to_far);
        let to = self.random.below(self.applications.len() as u64) as usize;
        let sends = self.sent[to] < self.plan.packets && wire.has_room();
        if sends {
            wire.send(application::from_far(to, self.sent[to]));
            self.sent[to] += 1;
        }
        drop(wire);
        let acts = sends || !got.is_empty();
        for packet in got {
            let from = application::source(&packet);
            // A packet for an application whose session has ended goes out.
            if Some(from) == self.plan.hostile || packet[..6] == MAC {
                continue;
            }
            let (_, number) = application::read(&packet);
            self.arrived[from].arrived(number);
            self.note(u64::from(FAR), u64::from(number));
        }
        acts || self.sent.iter().any(|sent| *sent < self.plan.packets) && self.far_end_has_room()
    }

    fn far_end_has_room(&self) -> bool {
        self.wire.lock().unwrap().has_room()
    }

    /// Returns the next time at which something happens by itself.
    pub(super) fn next_time(&self) -> Option<u64> {
        let now = simulation::now();
        let busy = self.applications.iter().filter_map(|one| one.busy_until(now));
        busy.chain(self.wire.lock().unwrap().stalled_until()).min()
    }

    fn state(&self) -> impl std::fmt::Debug {
        let apps = |one: &Application| {
            let requests = (one.transfers.sent, one.transfers.is_sent());
            (one.to_far.clone(), one.to_neighbour.clone(), one.from_far.clone(), requests)
        };
        let all: Vec<_> = self.applications.iter().map(apps).collect();
        (self.plan, all, self.sent.clone(), self.arrived.clone(), self.server.served.clone())
    }

    /// Returns `true` if every packet has been sent.
    fn has_sent_everything(&self) -> bool {
        self.sent.iter().all(|sent| *sent == self.plan.packets)
            && self.applications.iter().filter(|one| !one.is_hostile()).all(|one| {
                one.to_far.sent == one.to_far.all
                    && one.to_neighbour.sent == one.to_neighbour.all
                    && one.messages.is_sent()
                    && one.transfers.is_sent()
            })
    }

    /// Checks the outcome once no party has anything to do.
    pub(super) fn check(&mut self) {
        assert!(self.has_sent_everything(), "stands still: {:?}", self.state());
        let killed = self.outcome.kills > 0;
        let lost_in_hand = self.wire.lock().unwrap().lost;
        let (mut from_wire, mut dropped, lives) = (0, 0, self.lives());
        let applications = self.plan.applications;
        let hostile = self.plan.hostile;
        self.outcome.violations += self.keeper.over().len() as u32;
        let good = self.applications.iter_mut().enumerate().filter(|(_, one)| !one.is_hostile());
        for (number, one) in good {
            one.check();
            let drops =
                one.counter("rx_dropped_no_buffers") + one.counter("rx_dropped_over_budget");
            let missing = |arrivals: &Arrivals, all: u32| all - (arrivals.next - arrivals.lost);
            let far = missing(&one.from_far, self.plan.packets);
            let before = (number + applications - 1) % applications;
            let has_neighbour = applications > 1 && Some(before) != hostile;
            let neighbour_sends = if has_neighbour { self.plan.packets } else { 0 };
            let near = missing(&one.from_neighbour, neighbour_sends);
            assert!(
                u64::from(near) <= drops,
                "{near} of a neighbour's packets are lost, and {drops} dropped at {number}"
            );
            from_wire += far + near;
            dropped += drops;
            // What a killed server had not completed comes again: at most a batch, or a queue.
            let repeated = one.from_far.repeated + one.from_neighbour.repeated;
            let most = self.outcome.kills * (self.plan.batch as u32 + self.plan.slots);
            assert!(repeated <= most, "{repeated} packets came twice at {number}, {most} may");
            self.outcome.repeated += repeated;
            self.outcome.lost += far + near;
            self.outcome.packets += one.from_far.next + one.from_neighbour.next;
            let sent = &self.arrived[number];
            assert_eq!((sent.next, sent.lost), (self.plan.packets, 0), "at the far end");
            // A stalled device may still have packets when a server leaves.
            let ends = self.outcome.kills
                + if self.plan.manner.stalls { self.outcome.upgrades } else { 0 };
            let most = ends * self.plan.slots;
            assert!(sent.repeated <= most, "{} packets went out twice, {most} may", sent.repeated);
            self.outcome.repeated += sent.repeated;
            self.outcome.packets += sent.next;
            let resumptions = one.session.statistics().resumptions;
            assert!((1..=u64::from(lives)).contains(&resumptions), "{resumptions} of {lives}");
        }
        self.check_messages();
        assert!(
            u64::from(from_wire) <= dropped + lost_in_hand,
            "{from_wire} packets are lost, {dropped} dropped, {lost_in_hand} in hand"
        );
        assert!(
            killed || hostile.is_some() || u64::from(from_wire) == dropped,
            "{from_wire} lost, {dropped} dropped"
        );
    }

    /// Checks that each message came, or was dropped and counted, and that both ends of a
    /// connection say the same of it.
    fn check_messages(&mut self) {
        let is_good = |number: usize| Some(number) != self.plan.hostile;
        let applications = self.plan.applications;
        for number in 0..applications {
            let (from, to) = (number, (number + 1) % applications);
            if from == to || !is_good(from) || !is_good(to) {
                continue;
            }
            let (sender, receiver) = (&self.applications[from], &self.applications[to]);
            let drops =
                receiver.counter("oob_dropped_full") + receiver.counter("oob_dropped_share");
            let missing = sender.messages.all - receiver.messages.received;
            assert!(u64::from(missing) <= drops, "{missing} messages are lost, {drops} dropped");
            self.outcome.messages += receiver.messages.received;
        }
        if applications > 1 && is_good(0) && is_good(1) {
            let peer = |one: &Application| one.session.peer_state(one.endpoint);
            let states = (peer(&self.applications[0]), peer(&self.applications[1]));
            let connected = |state| state == PeerState::Connected;
            assert_eq!(connected(states.0), connected(states.1), "{states:?}");
            assert!(![states.0, states.1].contains(&PeerState::Requested), "{states:?}");
            self.outcome.connections += self.applications[0].messages.connections;
            self.outcome.requests +=
                self.applications[..2].iter().map(|one| one.transfers.sent).sum::<u32>();
        }
    }

    /// Returns the number of servers so far.
    fn lives(&self) -> u32 {
        1 + self.outcome.kills + self.outcome.upgrades
    }

    /// Decides when the next server ends.
    pub(super) fn plan_end(&mut self) {
        let Plan { kills, upgrades, .. } = self.plan;
        let left = (kills - self.outcome.kills, upgrades - self.outcome.upgrades);
        let all = u64::from(left.0 + left.1);
        self.end_at = (all > 0).then(|| {
            let is_kill = self.random.below(all) < u64::from(left.0);
            let scale = self.random.one_of(&[100, 2_000, 20_000]);
            (self.random.below(scale), is_kill)
        });
        self.leaves = false;
    }

    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaves, true) {
            self.server.command(Command::Leave);
        }
    }
}

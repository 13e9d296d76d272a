//! The plan and the outcome of a seed.

use towpath_protocol::settings::Setting;

use super::random::Random;
use super::wire::Manner;

/// The plan of a seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) applications: usize,
    /// The application that overwrites random words of the memory that it writes, if any.
    pub(super) hostile: Option<usize>,
    /// The packets of each flow.
    pub(super) packets: u32,
    /// Servers that are killed, and servers that leave in order.
    pub(super) kills: u32,
    pub(super) upgrades: u32,
    pub(super) manner: Manner,
    pub(super) wait: u64,
    pub(super) batch: usize,
    pub(super) slots: u32,
    /// The other parties act at one of this many points, on average.
    pub(super) points: u64,
}

impl Plan {
    pub(super) fn new(random: &mut Random) -> Plan {
        let is_on = |random: &mut Random| random.once_in(2);
        let manner = Manner {
            asynchronous: is_on(random),
            in_place: is_on(random),
            keeps: is_on(random),
            stalls: random.once_in(4),
        };
        let wait = random.one_of(&["block", "block", "poll", "timer-driven"]);
        let applications = 1 + random.below(3) as usize;
        let is_attacked = applications > 1 && random.once_in(3);
        Plan {
            applications,
            hostile: is_attacked.then(|| random.below(applications as u64) as usize),
            packets: 20 + random.below(80) as u32,
            kills: random.below(6) as u32,
            upgrades: random.below(3) as u32,
            manner: Manner { stalls: manner.stalls && manner.asynchronous, ..manner },
            wait: Setting::Wait.parse(wait).unwrap(),
            batch: random.one_of(&[1, 4, 64]),
            slots: random.one_of(&[8, 16, 64]),
            points: random.one_of(&[3, 20, 100]),
        }
    }
}

/// The outcome of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// A digest of everything in its order.
    pub(super) trace: u64,
    pub(super) kills: u32,
    pub(super) upgrades: u32,
    /// Kills with packets in the server.
    pub(super) busy_kills: u32,
    pub(super) packets: u32,
    pub(super) repeated: u32,
    pub(super) lost: u32,
    pub(super) violations: u32,
    pub(super) resets: u64,
    /// Out-of-band messages that came, and connections.
    pub(super) messages: u32,
    pub(super) connections: u32,
    /// Requests that are complete.
    pub(super) requests: u32,
    pub(super) time_ns: u64,
}

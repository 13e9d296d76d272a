//! Techniques that can be switched on and off, each as a pair of configurations that differ in
//! nothing else.

use towpath_client::{Endpoint, Kind, Scope, Session, Setting};
use towpath_server::WaitStrategy as EngineStrategy;

use crate::process::{Process, Serving, Wire};

/// The way in which an application waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It polls without end.
    Polls,
    /// It sleeps until a notification.
    Blocks,
    /// It polls for as long as that is likely to pay, then sleeps (`WaitStrategy::SpinThenBlock`).
    Spins,
}

/// A configuration of a server and its application.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) serving: Serving,
    /// Settings of the device and of the application's endpoint, changed while the server runs.
    pub(crate) settings: Vec<(Setting, u64)>,
    pub(crate) waits: Waits,
    /// The application sends expedited messages.
    pub(crate) small: bool,
}

impl Way {
    pub(crate) fn new(serving: Serving, waits: Waits) -> Way {
        Way { serving, settings: Vec::new(), waits, small: false }
    }

    pub(crate) fn with(&self, setting: Setting, value: u64) -> Way {
        let mut way = self.clone();
        way.settings.push((setting, value));
        way
    }

    /// Applies the settings of the device and of an endpoint.
    pub(crate) fn apply(
        &self,
        process: &Process,
        session: &mut Session,
        endpoint: Endpoint,
    ) -> anyhow::Result<()> {
        for &(setting, value) in &self.settings {
            match setting.spec().scope {
                Scope::Device => process.set(setting, value)?,
                Scope::Endpoint | Scope::OwnEndpoint => {
                    let of = Some((session.info().session, endpoint.id()));
                    towpath_client::set(process.socket(), of, setting, value)?;
                }
            }
        }
        Ok(())
    }
}

/// A technique: a row of a table.
#[derive(Clone, Debug)]
pub(crate) struct Technique {
    pub(crate) name: String,
    pub(crate) on: Way,
    pub(crate) off: Way,
    /// The core of a process that sends frames back. With `None` the application's own thread sends
    /// them back, for which it has to stay awake.
    pub(crate) echo_cpu: Option<usize>,
}

impl Technique {
    fn new(name: &str, on: Way, off: Way) -> Technique {
        Technique { name: name.to_owned(), on, off, echo_cpu: None }
    }
}

/// The value of `wait` for a timer-driven engine.
const TIMER_DRIVEN: u64 = 3;
/// A rate at which a frame of 60 bytes takes half a microsecond.
const FAST_BPS: u64 = 1_000_000_000;

/// Returns all techniques, for small frames over TAPs. The names of the interfaces begin with `tap`;
/// each configuration has an interface of its own, so all of them can be there at the same time.
///
/// Each word in the table of settings is a technique without further code: each of its words
/// against the default, or on against off.
pub(crate) fn all(tap: &str, engine_cpu: usize) -> Vec<Technique> {
    let asleep = Serving::tap(tap).on(engine_cpu);
    let other = asleep.clone();
    let polling = |serving: &Serving, waits| Way::new(serving.clone().polling(), waits);
    let both_poll = polling(&asleep, Waits::Polls);
    let base = polling(&other, Waits::Polls);
    let without_offloads = |serving: &Serving| match &serving.wire {
        Wire::Tap { name, .. } => Wire::Tap { name: name.clone(), offloads: false },
        other => other.clone(),
    };
    let mut techniques = vec![
        Technique::new(
            "the engine polls, does not sleep",
            both_poll.clone(),
            Way::new(other.clone(), Waits::Polls),
        ),
        Technique::new(
            "the application polls, does not block",
            both_poll.clone(),
            polling(&other, Waits::Blocks),
        ),
        Technique::new(
            "both poll, neither sleeps",
            both_poll.clone(),
            Way::new(other.clone(), Waits::Blocks),
        ),
        Technique::new("offloads granted, not refused", both_poll.clone(), {
            let serving = Serving { wire: without_offloads(&other), ..other.clone().polling() };
            Way::new(serving, Waits::Polls)
        }),
        Technique::new(
            "batches of 64, not 1",
            both_poll.clone(),
            Way::new(Serving { batch: 1, ..other.clone().polling() }, Waits::Polls),
        ),
    ];
    techniques.push(Technique::new(
        "an expedited message is sent ahead of others (send_expedited)",
        Way { small: true, ..both_poll.clone() },
        base.clone(),
    ));
    // Notifications matter only to sleeping sides: a single frame waits for the notification that
    // the engine deferred for more frames.
    let (deferred, at_once) = (polling(&asleep, Waits::Blocks), polling(&other, Waits::Blocks));
    techniques.push(Technique::new(
        "rx_frames=16 rx_usecs=50, not 0 and 0",
        deferred.with(Setting::RxFrames, 16).with(Setting::RxUsecs, 50),
        at_once,
    ));
    // A timer ends each sleep of a timer-driven engine.
    let clocked = |serving: &Serving| {
        Way::new(serving.clone(), Waits::Polls).with(Setting::Wait, TIMER_DRIVEN)
    };
    techniques.push(Technique::new(
        "timer_slack_us=500, not 5, with wait=timer-driven",
        clocked(&asleep).with(Setting::TimerSlackUs, 500),
        clocked(&other).with(Setting::TimerSlackUs, 5),
    ));
    techniques.push(Technique {
        echo_cpu: Some(engine_cpu),
        ..Technique::new(
            "the application spins before it sleeps (WaitStrategy::SpinThenBlock), sent back by a process",
            Way::new(asleep.clone(), Waits::Spins),
            Way::new(other.clone(), Waits::Blocks),
        )
    });
    techniques.extend(of_settings(&asleep, &other));
    name_interfaces(&mut techniques);
    techniques
}

/// Gives each configuration an interface of its own.
fn name_interfaces(techniques: &mut [Technique]) {
    for (number, Technique { on, off, .. }) in techniques.iter_mut().enumerate() {
        for (way, letter) in [(on, 'a'), (off, 'b')] {
            if let Wire::Tap { name, .. } = &mut way.serving.wire {
                *name += &format!("{number}{letter}");
            }
        }
    }
}

/// Returns the techniques of the table of settings: each word of a setting against another.
fn of_settings(asleep: &Serving, other: &Serving) -> Vec<Technique> {
    let polling = |serving: &Serving| Way::new(serving.clone().polling(), Waits::Polls);
    let sleeping = |serving: &Serving| Way::new(serving.clone(), Waits::Polls);
    let mut techniques = Vec::new();
    for (setting, spec) in Setting::ALL {
        let Kind::Word(words) = spec.kind else { continue };
        for (value, against) in compared(words, base(*setting)) {
            let (on, off) = (setting.show(value), setting.show(against));
            // Poll and block have rows of their own; the other wait strategies are compared with
            // block.
            let known = *setting == Setting::Wait && ["poll", "block"].contains(&on.as_str());
            if known {
                continue;
            }
            let way = |serving| match setting {
                Setting::Wait => sleeping(serving),
                // Without a rate, pacing has no effect; this rate delays no frame of a round trip.
                Setting::Pacing => polling(serving).with(Setting::RateBps, FAST_BPS),
                _ => polling(serving),
            };
            techniques.push(Technique::new(
                &format!("{}={on}, not {off}", spec.name),
                way(asleep).with(*setting, value),
                way(other).with(*setting, against),
            ));
        }
    }
    techniques
}

/// Returns the word of a setting that the others are compared with: the default; of the wait
/// strategies `block`, which adds nothing to sleep.
pub(crate) fn base(setting: Setting) -> u64 {
    match setting {
        Setting::Wait => EngineStrategy::Block as u64,
        _ => setting.spec().default,
    }
}

/// Returns the words of a setting to compare: on with off, and any other word with the base.
pub(crate) fn compared(words: &[&str], base: u64) -> Vec<(u64, u64)> {
    if words == ["off", "on"] {
        return vec![(1, 0)];
    }
    (0..words.len() as u64).filter(|value| *value != base).map(|value| (value, base)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_is_compared_with_off_for_any_default() {
        for default in 0..2 {
            assert_eq!(compared(&["off", "on"], default), [(1, 0)]);
        }
        assert_eq!(compared(&["a", "b", "c"], 1), [(0, 1), (2, 1)]);
    }

    #[test]
    fn timer_driven_is_the_value_of_that_word() {
        assert_eq!(Setting::Wait.show(TIMER_DRIVEN), "timer-driven");
    }

    #[test]
    fn each_technique_is_a_row_of_its_own() {
        let all = all("tpx", 0);
        let mut interfaces = std::collections::BTreeSet::new();
        for (place, one) in all.iter().enumerate() {
            assert!(all[..place].iter().all(|other| other.name != one.name), "{}", one.name);
            for way in [&one.on, &one.off] {
                let interface = way.serving.wire.tap().unwrap();
                assert!(interface.len() < 16, "{interface} is too long for Linux");
                assert!(interfaces.insert(interface), "all are there at the same time");
            }
            let differs = one.on.serving.polls != one.off.serving.polls
                || one.on.serving.batch != one.off.serving.batch
                || one.on.waits != one.off.waits
                || one.on.settings != one.off.settings
                || one.on.small != one.off.small
                || matches!(
                    (&one.on.serving.wire, &one.off.serving.wire),
                    (Wire::Tap { offloads: on, .. }, Wire::Tap { offloads: off, .. }) if on != off
                );
            assert!(differs, "{} compares like with like", one.name);
        }
        for (setting, spec) in Setting::ALL {
            if *setting != Setting::Wait && matches!(spec.kind, Kind::Word(_)) {
                let named = |one: &&Technique| one.name.starts_with(&format!("{}=", spec.name));
                assert!(all.iter().find(named).is_some(), "{} has no row", spec.name);
            }
        }
    }
}

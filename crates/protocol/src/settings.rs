//! The settings that can be changed while a server runs: names, units, ranges, and the users that
//! may change them.
//!
//! A setting belongs to the device or to one endpoint. Its value travels as a number
//! ([`crate::message::Set`]); people write numbers, or one of a few words.

mod table;

/// A setting. Its number is its index in [`Setting::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[expect(missing_docs, reason = "the table describes each")]
pub enum Setting {
    Wait,
    TickHz,
    LatencyUs,
    CpuPercent,
    TimerSlackUs,
    RxBatch,
    NotificationSuppression,
    RxFrames,
    RxUsecs,
    FlowCache,
    Scheduler,
    Handoff,
    Expedited,
    Priority,
    Weight,
    RateBps,
    RatePps,
    BurstBytes,
    Pacing,
    MaxDelayUs,
    MaxMessageBytes,
    Quota,
    TickMultiple,
    Watchdog,
    WatchdogMs,
    BurstPackets,
    EarlyNotification,
    Notify,
    LinkDown,
}

/// The object that a setting belongs to, and the users that may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The device's: administrators change it.
    Device,
    /// An endpoint's: only administrators change it, since a change takes from other endpoints.
    Endpoint,
    /// An endpoint's: its application may change it as well.
    OwnEndpoint,
}

/// The people to whom a program shows a setting. The server accepts every setting in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Operators: the value depends on the machine and on its applications.
    Operators,
    /// Operators, apart from some values.
    OperatorsExcept {
        /// The values that only experiments need.
        values: &'static [&'static str],
        /// Their effect.
        help: &'static str,
    },
    /// Those who repeat the papers' experiments: the value by default suits every operator.
    Experimenters,
}

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Number {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// The unit: "Hz", "us", "packets".
        unit: &'static str,
    },
    /// One of a few words; the value is the word's index.
    Word(&'static [&'static str]),
}

/// A setting's description.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, as people write it.
    pub name: &'static str,
    /// The people to whom a program shows it.
    pub audience: Audience,
    /// The object that it belongs to.
    pub scope: Scope,
    /// The values that it takes.
    pub kind: Kind,
    /// The value by default.
    pub default: u64,
    /// Its effect, in one line.
    pub help: &'static str,
}

impl Spec {
    /// `true` if only experiments need the setting.
    #[must_use]
    pub fn is_experimental(&self) -> bool {
        self.audience == Audience::Experimenters
    }

    /// Returns the words among its values that only experiments need.
    #[must_use]
    pub fn experimental_values(&self) -> &'static [&'static str] {
        match (self.audience, self.kind) {
            (Audience::OperatorsExcept { values, .. }, _) => values,
            (Audience::Experimenters, Kind::Word(words)) => words,
            _ => &[],
        }
    }
}

/// Switched off and on.
const OFF_ON: Kind = Kind::Word(&["off", "on"]);

impl Setting {
    /// Returns the setting of this number, which a peer may have sent; `None` if there is none.
    #[must_use]
    pub fn numbered(number: u32) -> Option<Setting> {
        Setting::ALL.get(number as usize).map(|(setting, _)| *setting)
    }

    /// Returns the setting of this name.
    ///
    /// # Errors
    /// [`SettingError::Unknown`].
    pub fn named(name: &str) -> Result<Setting, SettingError> {
        Setting::ALL
            .iter()
            .find(|(_, spec)| spec.name == name)
            .map(|(setting, _)| *setting)
            .ok_or_else(|| SettingError::Unknown(name.to_owned()))
    }

    /// Returns its description.
    #[must_use]
    pub fn spec(self) -> &'static Spec {
        &Setting::ALL[self as usize].1
    }

    /// Reads a value as people write it.
    ///
    /// # Errors
    /// [`SettingError::Value`], which names the possible values.
    pub fn parse(self, text: &str) -> Result<u64, SettingError> {
        let value = match self.spec().kind {
            Kind::Number { .. } => text.parse().ok(),
            Kind::Word(words) => {
                words.iter().position(|word| *word == text).map(|place| place as u64)
            }
        };
        let value = value.ok_or_else(|| self.wrong(text))?;
        self.check(value).map(|()| value)
    }

    /// Checks that a value, which a peer may have sent, is in range.
    ///
    /// # Errors
    /// [`SettingError::Value`], which names the possible values.
    pub fn check(self, value: u64) -> Result<(), SettingError> {
        let possible = match self.spec().kind {
            Kind::Number { least, most, .. } => (least..=most).contains(&value),
            Kind::Word(words) => value < words.len() as u64,
        };
        if possible { Ok(()) } else { Err(self.wrong(&value.to_string())) }
    }

    /// Returns a value as people write it.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        match self.spec().kind {
            Kind::Number { .. } => value.to_string(),
            Kind::Word(words) => {
                words.get(value as usize).map_or_else(|| value.to_string(), ToString::to_string)
            }
        }
    }

    /// Returns the possible values, in words.
    #[must_use]
    pub fn possible(self) -> String {
        match self.spec().kind {
            Kind::Number { least, most, unit } => format!("{least} to {most} {unit}"),
            Kind::Word(words) => listed(words.iter().copied()),
        }
    }

    /// Returns the possible values that operators need, in words.
    #[must_use]
    pub fn possible_for_operators(self) -> String {
        let experimental = self.spec().experimental_values();
        match self.spec().kind {
            Kind::Number { .. } => self.possible(),
            Kind::Word(words) => {
                listed(words.iter().copied().filter(|word| !experimental.contains(word)))
            }
        }
    }

    fn wrong(self, value: &str) -> SettingError {
        SettingError::Value {
            name: self.spec().name,
            value: value.to_owned(),
            possible: self.possible(),
        }
    }
}

/// Joins words for a sentence: "off, lazy or eager".
fn listed(words: impl Iterator<Item = &'static str>) -> String {
    let mut words: Vec<_> = words.collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last.to_owned() } else { format!("{} or {last}", words.join(", ")) }
}

/// Why a setting was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No setting has this name.
    #[error("there is no setting {0:?}")]
    Unknown(String),
    /// The setting does not take this value.
    #[error("{name}={value}: {possible} is possible")]
    Value {
        /// The setting's name.
        name: &'static str,
        /// The value that was asked for.
        value: String,
        /// The possible values.
        possible: String,
    },
}

/// Values of all settings, of either scope. For a device only the device's settings have a meaning,
/// and for an endpoint only an endpoint's; the others keep their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    values: [u64; Setting::ALL.len()],
    /// A bit for each setting that was set, by the setting's number.
    chosen: u64,
}

const _: () = assert!(Setting::ALL.len() <= u64::BITS as usize);

impl Default for Values {
    fn default() -> Values {
        let values = std::array::from_fn(|index| Setting::ALL[index].1.default);
        Values { values, chosen: 0 }
    }
}

impl Values {
    /// Returns a setting's value.
    #[must_use]
    pub fn get(&self, setting: Setting) -> u64 {
        self.values[setting as usize]
    }

    /// `true` if [`Values::set`] gave the setting its value, even if that is the default value.
    #[must_use]
    pub fn is_chosen(&self, setting: Setting) -> bool {
        self.chosen & 1 << setting as u32 != 0
    }

    /// `true` if a setting is switched on.
    #[must_use]
    pub fn is_on(&self, setting: Setting) -> bool {
        self.get(setting) != 0
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// [`SettingError::Value`]; the setting then keeps its old value.
    pub fn set(&mut self, setting: Setting, value: u64) -> Result<(), SettingError> {
        setting.check(value)?;
        self.values[setting as usize] = value;
        self.chosen |= 1 << setting as u32;
        Ok(())
    }

    /// Returns names and values of the device's settings, or of an endpoint's.
    pub fn shown(&self, device: bool) -> impl Iterator<Item = (&'static str, String)> + '_ {
        Setting::ALL
            .iter()
            .filter(move |(_, spec)| (spec.scope == Scope::Device) == device)
            .map(|(setting, spec)| (spec.name, setting.show(self.get(*setting))))
    }

    /// Returns the endpoint settings that differ from their defaults.
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let changed = |(setting, spec): &&(Setting, Spec)| {
            spec.scope != Scope::Device && self.get(*setting) != spec.default
        };
        let shown =
            |(setting, spec): &(Setting, Spec)| (spec.name, setting.show(self.get(*setting)));
        Setting::ALL.iter().filter(changed).map(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_its_defaults_are_possible() {
        let mut names = std::collections::BTreeSet::new();
        for (place, (setting, spec)) in Setting::ALL.iter().enumerate() {
            assert_eq!(*setting as usize, place);
            assert_eq!(Setting::numbered(place as u32), Some(*setting));
            assert_eq!(Setting::named(spec.name), Ok(*setting));
            assert_eq!(setting.check(spec.default), Ok(()));
            assert_eq!(setting.parse(&setting.show(spec.default)), Ok(spec.default));
            assert!(names.insert(spec.name), "{} twice", spec.name);
        }
        assert_eq!(Setting::numbered(Setting::ALL.len() as u32), None);
    }

    /// The unit appears in each error; the help text is the place for the meaning of a value.
    #[test]
    fn the_help_says_what_zero_means() {
        let mut with_zero = 0;
        for (_, spec) in Setting::ALL {
            let Kind::Number { least: 0, unit, .. } = spec.kind else { continue };
            with_zero += 1;
            assert!(spec.help.contains("0: ") || spec.help.contains(": 0 "), "{}", spec.name);
            assert!(!unit.contains('0'), "{}: {unit}", spec.name);
        }
        assert!(with_zero > 10, "{with_zero} settings have a zero");
    }

    /// An operator reads of no setting and of no value that the list does not show.
    #[test]
    fn operators_read_of_no_experiment() {
        let (experiments, operators): (Vec<_>, Vec<_>) =
            Setting::ALL.iter().partition(|(_, spec)| spec.is_experimental());
        assert_eq!((operators.len(), experiments.len()), (21, 8));
        for (setting, spec) in operators {
            for (_, hidden) in &experiments {
                // "notify" is a word as well.
                let named = hidden.name.contains('_') && spec.help.contains(hidden.name);
                let set = spec.help.contains(&format!("{}=", hidden.name));
                assert!(!named && !set, "{}: {}", spec.name, hidden.name);
            }
            for value in spec.experimental_values() {
                assert!(!spec.help.contains(value), "{}: {value}", spec.name);
            }
            let first = setting.show(spec.default);
            assert!(!spec.experimental_values().contains(&&*first), "{}={first}", spec.name);
        }
        assert_eq!(Setting::Watchdog.possible_for_operators(), "off or lazy");
        assert_eq!(Setting::Watchdog.possible(), "off, lazy, eager or timestamp");
    }

    #[test]
    fn setting_errors_name_the_possible_values() {
        let error = Setting::Wait.parse("fast").unwrap_err().to_string();
        assert!(error.starts_with("wait=fast: poll") && error.ends_with("is possible"), "{error}");
        assert!(Setting::Wait.check(99).is_err() && Setting::named("speed").is_err());
        let mut values = Values::default();
        assert!(values.set(Setting::Wait, 99).is_err());
        assert_eq!(values, Values::default(), "the old value remains");
    }
}

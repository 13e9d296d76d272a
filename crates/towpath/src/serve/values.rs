//! Types of option values. Each type checks its value while it reads it, so that an error on the
//! command line names its option, and an error in a file its line.
#![forbid(unsafe_code)]

mod accounts;
mod addresses;
mod as_text;
mod device_spec;

use std::fmt;
use std::str::FromStr;

use towpath_client::{Scope, Setting};

pub(crate) use accounts::{Group, Identity, User};
pub(crate) use addresses::{Lease, Subnet, limit, subnets};
pub(crate) use as_text::as_text;
pub(crate) use device_spec::{DeviceSpec, Driver, InterfaceName};

/// How the engine waits: a value of the setting `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait(pub(crate) u64);

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Wait, String> {
        Setting::Wait.parse(text).map(Wait).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Setting::Wait.show(self.0))
    }
}

as_text!(Wait, "a wait strategy, such as \"poll\"");

/// The processors of the engine threads, one for each lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processors(pub(crate) Vec<usize>);

impl FromStr for Processors {
    type Err = String;

    fn from_str(text: &str) -> Result<Processors, String> {
        let number = |one: &str| one.parse().ok().filter(|number| *number < 1024);
        let all: Option<Vec<usize>> = text.split(',').map(number).collect();
        all.map(Processors).ok_or_else(|| {
            format!("{text:?}: not processors from 0 to 1023, such as 3, or 2,3 for two lanes")
        })
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&all.join(","))
    }
}

as_text!(Processors, "processors, such as 3 or \"2,3\"");

/// A setting of the device with its initial value. Excludes `wait`, which has a key of its own: of
/// two values, one would override the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment(pub(crate) Setting, pub(crate) u64);

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment, String> {
        let (name, value) = text.split_once('=').ok_or("not SETTING=VALUE, such as rx_batch=32")?;
        let setting = Setting::named(name)
            .map_err(|error| format!("{error}; towpath set --list shows the settings"))?;
        if setting.spec().scope != Scope::Device {
            return Err(format!("{name} is a setting of endpoints; change it with towpath set"));
        }
        let number = setting.parse(value).map_err(|error| error.to_string())?;
        if setting == Setting::Wait {
            return Err(format!(
                "wait has its own option: --wait {value}, in a file wait = {value:?}"
            ));
        }
        Ok(Assignment(setting, number))
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.0.spec().name, self.0.show(self.1))
    }
}

as_text!(Assignment, "a setting with its value, such as \"rx_batch=32\"");

/// The faults of the wire, with their text as given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    text: String,
    pub(crate) spec: towpath_device_testing::fault::Spec,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let spec = text
            .parse()
            .map_err(|error: towpath_device_testing::fault::SpecError| error.to_string())?;
        Ok(Fault { text: text.to_owned(), spec })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Fault, "faults, such as \"drop=0.01,seed=42\"");

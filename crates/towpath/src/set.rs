//! `towpath set`: changes the settings of a running server.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use towpath_client::{Audience, EndpointId, Scope, Setting, Spec};

use crate::failure::{Failure, print};
use crate::find::{self, Target};

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Only root and the server's user may change settings, over SOCKET.admin. The server changes them one
by one, in the given order. After the first change that the server refuses, the command ends. towpath ls shows the
numbers of sessions and endpoints; towpath ls --json shows the values in effect.

Examples:
  towpath set tap0 wait=poll
  towpath set --socket /run/towpath/tap0.sock wait=block
  towpath set tap0 1/0 weight=200
  towpath set --list
  towpath set --list --all                     with the settings and values for experiments";

/// Options of `towpath set`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The device, or the path of its server's socket; not with --device or --socket
    #[arg(value_name = "DEVICE", required_unless_present_any = ["list", "device", "socket"])]
    server: Option<String>,
    #[command(flatten)]
    target: Target,
    /// The changes; SESSION/ENDPOINT names the endpoint that the settings after it belong to
    #[arg(value_name = "SETTING=VALUE|SESSION/ENDPOINT")]
    changes: Vec<Change>,
    /// List the settings with their defaults, ranges and units
    #[arg(long, conflicts_with_all = ["server", "device", "socket", "changes"])]
    list: bool,
    /// With --list: also list settings and values for experiments
    #[arg(long, requires = "list")]
    all: bool,
}

impl Args {
    /// Returns the changes. With `--device` or `--socket`, the first word is also a change.
    fn changes(&self) -> Result<Vec<Change>, Failure> {
        let mut changes = Vec::new();
        match &self.server {
            Some(first) if self.target.is_given() => {
                changes.push(first.parse().map_err(Failure::usage)?);
            }
            Some(name) => refuse_setting(name)?,
            None => {}
        }
        changes.extend(&self.changes);
        if changes.is_empty() {
            return Err(Failure::usage(
                "nothing to set: add SETTING=VALUE; towpath set --list shows the settings"
                    .to_owned(),
            ));
        }
        Ok(changes)
    }

    /// Returns the server's socket.
    fn socket(&self) -> Result<PathBuf, Failure> {
        match &self.server {
            Some(name) if !self.target.is_given() => find::named(name),
            _ => self.target.resolve(),
        }
    }
}

/// Refuses a setting in the place of the device's name.
fn refuse_setting(text: &str) -> Result<(), Failure> {
    // A path of a socket may have an equals sign; an interface with one is served by its path.
    if text.contains('=') && !text.contains('/') || Setting::named(text).is_ok() {
        return Err(Failure::usage(format!(
            "{text} is in the place of the device; name the device first, as in towpath set tap0 \
             wait=poll; towpath ls shows its name, towpath set --list the settings"
        )));
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The following settings are this endpoint's.
    Of(u32, EndpointId),
    Set(Setting, u64),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        if let Some((name, value)) = text.split_once('=') {
            let setting = Setting::named(name)
                .map_err(|error| format!("{error}; towpath set --list shows the settings"))?;
            let value = setting.parse(value).map_err(|error| error.to_string())?;
            return Ok(Change::Set(setting, value));
        }
        let endpoint = || {
            let (session, endpoint) = text.split_once('/')?;
            let session = session.parse().ok().filter(|number| *number > 0)?;
            Some((session, EndpointId::new(endpoint.parse().ok()?)))
        };
        endpoint().map(|(session, endpoint)| Change::Of(session, endpoint)).ok_or_else(|| {
            "neither SETTING=VALUE, like wait=poll, nor SESSION/ENDPOINT, like 3/0".to_owned()
        })
    }
}

/// Changes settings in their given order. Errors that need no server are reported before the first
/// change.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.list {
        return print(&list(args.all));
    }
    let asked = asked(&args.changes()?)?;
    let socket = args.socket()?;
    for (of, setting, value) in asked {
        towpath_client::set(&socket, of, setting, value)
            .map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(())
}

/// A change, and the session and endpoint that it is for; `None` for the device.
type Asked = (Option<(u32, EndpointId)>, Setting, u64);

/// Returns the requested changes. Each named endpoint has to have a setting.
fn asked(changes: &[Change]) -> Result<Vec<Asked>, Failure> {
    let idle = |(session, endpoint)| {
        Failure::usage(format!(
            "nothing to set for {session}/{endpoint}: put an endpoint's SETTING=VALUE after it, and \
             the device's before it; towpath set --list shows whose each setting is"
        ))
    };
    let mut asked = Vec::new();
    let mut of = None;
    // The last endpoint named, until a setting follows.
    let mut unused = None;
    for change in changes {
        match *change {
            Change::Of(session, endpoint) => {
                if let Some(unused) = unused {
                    return Err(idle(unused));
                }
                of = Some((session, endpoint));
                unused = of;
            }
            Change::Set(setting, value) if setting.spec().scope == Scope::Device => {
                asked.push((None, setting, value));
            }
            Change::Set(setting, value) if of.is_some() => {
                asked.push((of, setting, value));
                unused = None;
            }
            Change::Set(setting, _) => {
                let name = setting.spec().name;
                let text =
                    format!("{name} is a setting of endpoints: put SESSION/ENDPOINT before it");
                return Err(Failure::usage(text));
            }
        }
    }
    match unused {
        Some(unused) => Err(idle(unused)),
        None => Ok(asked),
    }
}

/// Returns the list of settings; `all` adds those for experiments, and marks them.
fn list(all: bool) -> String {
    let mut text = String::new();
    for (title, device) in [("Settings of the device", true), ("Settings of an endpoint", false)] {
        let _ = writeln!(text, "{title}:");
        for (setting, spec) in Setting::ALL {
            if (spec.scope == Scope::Device) == device && (all || !spec.is_experimental()) {
                let possible =
                    if all { setting.possible() } else { setting.possible_for_operators() };
                let first = setting.show(spec.default);
                let mark = if all { mark(spec) } else { String::new() };
                let _ = writeln!(text, "  {}={first} by default; {possible}{mark}", spec.name);
                let _ = writeln!(text, "      {}", spec.help);
                if let (true, Audience::OperatorsExcept { help, .. }) = (all, spec.audience) {
                    let _ = writeln!(text, "      {help}");
                }
            }
        }
    }
    text
}

/// Returns what the list says behind a setting with something for experiments.
fn mark(spec: &Spec) -> String {
    match spec.audience {
        Audience::Operators => String::new(),
        Audience::OperatorsExcept { values, .. } => {
            format!(" (experimental: {})", values.join(", "))
        }
        Audience::Experimenters => " (experimental)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read() {
        assert_eq!("wait=poll".parse(), Ok(Change::Set(Setting::Wait, 0)));
        assert_eq!("3/0".parse(), Ok(Change::Of(3, EndpointId::new(0))));
        for wrong in ["0/1", "3", "3/x", "wait", "speed=1", "wait=fast"] {
            let error = wrong.parse::<Change>().unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{wrong}: {error}");
        }
    }

    #[test]
    fn every_endpoint_named_has_a_setting() {
        let asked = |text: &str| {
            let changes: Vec<Change> = text.split(' ').map(|one| one.parse().unwrap()).collect();
            asked(&changes)
        };
        let all = asked("wait=poll 3/1 weight=2 wait=auto priority=1 4/0 weight=3").unwrap();
        let of: Vec<_> = all.iter().map(|(of, setting, _)| (*of, setting.spec().name)).collect();
        let (first, second) = (Some((3, EndpointId::new(1))), Some((4, EndpointId::new(0))));
        assert_eq!(
            of,
            [
                (None, "wait"),
                (first, "weight"),
                (None, "wait"),
                (first, "priority"),
                (second, "weight")
            ]
        );
        for (text, part) in [
            ("wait=poll 3/1", "3/1"),
            ("3/1 wait=poll", "3/1"),
            ("3/1 4/0 weight=1", "3/1"),
            ("3/1 weight=1 4/0", "4/0"),
            ("3/1 4/0 3/1", "3/1"),
            ("weight=1 3/1", "put SESSION/ENDPOINT before it"),
        ] {
            let said = format!("{:?}", asked(text).unwrap_err());
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn settings_for_experiments_are_listed_on_demand() {
        let (operators, all) = (list(false), list(true));
        for (_, spec) in Setting::ALL {
            let line = format!("  {}=", spec.name);
            let marked = all.lines().find(|listed| listed.starts_with(&line)).unwrap();
            let is_marked = marked.contains("(experimental");
            assert_eq!(is_marked, spec.audience != Audience::Operators, "{marked}");
            assert_ne!(operators.contains(&line), spec.is_experimental(), "{}", spec.name);
        }
        for word in ["eager", "timestamp", "experimental"] {
            assert!(!operators.contains(word) && all.contains(word), "{word}");
        }
    }
}

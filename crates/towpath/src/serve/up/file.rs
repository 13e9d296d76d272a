//! The file of `towpath up`: a table for each device, whose keys are the options of `towpath serve`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::super::confine::Confinement;
use super::super::settings::{Level, Settings};
use super::super::toml_text::from_toml;
use super::super::values::{DeviceSpec, Driver, Identity};
use crate::failure::Failure;
use crate::text_file::{self, line_of};

/// The most devices of a file. Each has processes of its own, and a share of the keeper's descriptors.
const MOST_DEVICES: usize = 64;

/// A file that has been read.
#[derive(Debug)]
pub(super) struct UpFile {
    pub(super) log: Option<Level>,
    pub(super) devices: Vec<DeviceTable>,
}

/// A device of the file.
#[derive(Debug)]
pub(super) struct DeviceTable {
    /// Complete settings: they name the device and the socket.
    pub(super) settings: Settings,
    /// The file and the line of the table, for messages.
    pub(super) place: String,
}

/// The file's contents.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contents {
    user: Option<Identity>,
    confine: Option<Confinement>,
    log: Option<Level>,
    device: Vec<Settings>,
}

/// Where the contents stand.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Places {
    device: Vec<Spanned<BTreeMap<String, Spanned<toml::Value>>>>,
}

impl UpFile {
    /// Reads a file, and checks the devices against each other.
    pub(super) fn read(path: &Path) -> Result<UpFile, Failure> {
        let text = text_file::read(path)?;
        let shown = path.display().to_string();
        UpFile::parse(&text, &shown)
            .map_err(|(line, message)| Failure::usage(format!("{shown}:{line}: {message}")))
    }

    /// Parses a text. An error has the number of its line, from 1, and a message.
    fn parse(text: &str, shown: &str) -> Result<UpFile, (usize, String)> {
        let contents: Contents = from_toml(text).map_err(|(line, message)| {
            (line, format!("{message}; see: towpath up --help, towpath serve --help"))
        })?;
        let places: Places = from_toml(text)?;
        let count = contents.device.len();
        if count == 0 {
            let text = "no device to serve; add a table: [[device]], device = \"tap:NAME\"";
            return Err((line_of(text, text.len()), text.to_owned()));
        }
        if count > MOST_DEVICES {
            let line = line_of(text, places.device[MOST_DEVICES].span().start);
            let message = format!("{count} devices; at most {MOST_DEVICES} are possible");
            return Err((line, format!("{message}: give the others to another towpath up")));
        }
        let mut devices: Vec<DeviceTable> = Vec::new();
        let mut known = Known::default();
        for (mut settings, place) in contents.device.into_iter().zip(&places.device) {
            let line_of_key = |key: &str| {
                let keys = place.get_ref();
                let value = keys.get(key).or(keys.get("device")).map(Spanned::span);
                line_of(text, value.unwrap_or(place.span()).start)
            };
            check_keys(&settings).map_err(|(key, message)| (line_of_key(key), message))?;
            settings.user.clone_from(&contents.user);
            (settings.confine, settings.log) = (contents.confine, contents.log);
            let served = settings.device.clone().ok_or_else(|| {
                (line_of_key("device"), "no device in this table; add device = \"tap:NAME\"".into())
            })?;
            let own = settings.socket.take();
            let socket = own.unwrap_or_else(|| towpath_client::default_socket(&served.interface));
            let lines = (line_of_key("device"), line_of_key("socket"));
            known.add(&served, &socket, lines)?;
            settings.socket = Some(socket);
            devices.push(DeviceTable { settings, place: format!("{shown}:{}", lines.0) });
        }
        Ok(UpFile { log: contents.log, devices })
    }
}

/// Checks that a table has no key that it cannot have. An error has the key, and a message.
fn check_keys(settings: &Settings) -> Result<(), (&'static str, String)> {
    let common = [
        ("user", settings.user.is_some()),
        ("confine", settings.confine.is_some()),
        ("log", settings.log.is_some()),
    ];
    if let Some((key, _)) = common.into_iter().find(|(_, is_given)| *is_given) {
        let text = format!("{key} is of all devices together; give it before the first [[device]]");
        return Err((key, text));
    }
    if settings.fd_store {
        let text = "fd-store is for a service of one device; leave it out, or serve the device with \
                    towpath serve --fd-store";
        return Err(("fd-store", text.to_owned()));
    }
    Ok(())
}

/// The devices and the sockets of earlier tables, with their lines.
#[derive(Debug, Default)]
struct Known {
    devices: Vec<(DeviceSpec, usize)>,
    sockets: BTreeMap<PathBuf, usize>,
}

impl Known {
    /// Adds a table, if it has neither the device nor the socket of an earlier one. `lines`: those of
    /// the device and of the socket.
    fn add(
        &mut self,
        served: &DeviceSpec,
        socket: &Path,
        lines: (usize, usize),
    ) -> Result<(), (usize, String)> {
        // The host's end of a TAP is an interface like others.
        let is_tap = |one: &DeviceSpec| one.driver == Driver::Tap;
        let is_same =
            |one: &DeviceSpec| *one.interface == *served.interface && is_tap(one) == is_tap(served);
        if let Some((one, line)) = self.devices.iter().find(|(one, _)| is_same(one)) {
            let name = &*one.interface;
            let text = format!("line {line} has a table for {name} already; leave one of them out");
            return Err((lines.0, text));
        }
        if let Some(line) = self.sockets.get(socket) {
            let text = format!(
                "the device of line {line} has the socket {}, too; give this one another socket",
                socket.display()
            );
            return Err((lines.1, text));
        }
        self.devices.push((served.clone(), lines.0));
        self.sockets.insert(socket.to_owned(), lines.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (usize, String) {
        UpFile::parse(text, "up.toml").expect_err(text)
    }

    #[test]
    fn the_keys_before_the_tables_are_of_all_devices() {
        let text = "user = \"61001:61001\"\nconfine = \"kill\"\nlog = \"warn\"\n\n\
                    [[device]]\ndevice = \"tap:a\"\nmtu = 1400\n\n\
                    [[device]]\nsocket = \"/tmp/b\"\ndevice = \"xdp:a\"\nhold = 3\n";
        let file = UpFile::parse(text, "up.toml").unwrap();
        assert_eq!(file.log, Some(Level::Warn));
        let [a, b] = &file.devices[..] else { panic!("{file:?}") };
        assert_eq!((&*a.place, &*b.place), ("up.toml:6", "up.toml:11"));
        for DeviceTable { settings, .. } in [a, b] {
            assert_eq!(settings.user.as_ref().unwrap().uid, 61001);
            assert_eq!(settings.confine, Some(Confinement::Kill));
        }
        assert_eq!(a.settings.mtu.unwrap().get(), 1400);
        assert_eq!(a.settings.socket, Some(towpath_client::default_socket("a")));
        assert_eq!(b.settings.socket.as_deref(), Some(Path::new("/tmp/b")));
    }

    #[test]
    fn the_examples_of_package_and_page_are_valid() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let example =
            std::fs::read_to_string(format!("{root}/packaging/examples/up.toml")).unwrap();
        assert_eq!(UpFile::parse(&example, "up.toml").unwrap().devices.len(), 2);
        let page = std::fs::read_to_string(format!("{root}/docs/operations.md")).unwrap();
        let (_, part) = page.split_once("\n## Several devices\n").unwrap();
        let example = part.split("```").nth(1).unwrap().strip_prefix("toml\n").unwrap();
        // Accounts that this machine need not have, and a policy that is read later.
        let example =
            example.replace("\"towpath\"", "\"61001:61001\"").replace("\"alice\"", "61002");
        assert_eq!(UpFile::parse(&example, "up.toml").unwrap().devices.len(), 2);
    }

    #[test]
    fn an_error_names_its_line_and_the_remedy() {
        let a = "[[device]]\ndevice = \"tap:a\"\n";
        for (text, line, part) in [
            ("".to_owned(), 1, "no device to serve; add a table"),
            ("log = \"warn\"\n".to_owned(), 1, "add a table: [[device]]"),
            ("[[device]]\nmtu = 1400\n".to_owned(), 1, "add device = \"tap:NAME\""),
            (format!("{a}colour = 1\n"), 3, "unknown key `colour`"),
            (format!("{a}mtu = 5\n"), 3, "68 to 65521"),
            (format!("policy = \"/p\"\n{a}"), 1, "unknown key `policy`"),
            (format!("{a}rx_batch = 3\n"), 3, "set = [\"rx_batch=VALUE\"]"),
            (format!("{a}user = \"0\"\n"), 3, "give it before the first [[device]]"),
            (format!("{a}\nlog = \"warn\"\n"), 4, "give it before the first [[device]]"),
            (format!("{a}fd-store = true\n"), 3, "towpath serve --fd-store"),
            (format!("{a}{a}"), 4, "line 2 has a table for a already"),
            (format!("{a}[[device]]\ndevice = \"auto:a\"\n"), 4, "line 2 has the socket"),
            (
                format!("{a}socket = \"/s\"\n[[device]]\ndevice = \"tap:b\"\nsocket = \"/s\"\n"),
                6,
                "give this one another socket",
            ),
            ("[device]\ndevice = \"tap:a\"\n".to_owned(), 1, ""),
        ] {
            let (at, message) = wrong(&text);
            assert_eq!(at, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
        let many =
            (0..=MOST_DEVICES).map(|number| format!("[[device]]\ndevice = \"tap:t{number}\"\n"));
        let (line, message) = wrong(&many.collect::<String>());
        assert_eq!(line, MOST_DEVICES * 2 + 1, "{message}");
    }
}

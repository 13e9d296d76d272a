//! The format of a policy file.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use towpath_client::Setting;
use towpath_server::{AddressRange, Policy, PortRange, Reach, Terms};

use super::values::{EndpointSetting, Ethertype, Ports, RoleName};
use crate::failure::Failure;
use crate::number::Number;
use crate::serve::values::{Group, InterfaceName, Lease, User};
use crate::text_file::{self, line_of};

/// A policy file, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyFile {
    pub(crate) grants: Vec<Grant>,
    pub(crate) reservations: Vec<Reservation>,
}

/// The tables of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Tables {
    grant: Vec<Spanned<Grant>>,
    reservation: Vec<Spanned<Reservation>>,
}

/// A table `[[grant]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Grant {
    pub(crate) users: Vec<User>,
    pub(crate) groups: Vec<Group>,
    devices: Option<Vec<InterfaceName>>,
    addresses: Option<Vec<Lease>>,
    ports: Option<Vec<Ports>>,
    ethertypes: Option<Vec<Ethertype>>,
    roles: Vec<RoleName>,
    out_of_band: OutOfBand,
    rdma: bool,
    capture: bool,
    promiscuous: bool,
    own_queues: Vec<Number<0, 65_535>>,
    sessions_per_user: Option<Number<1, 16_384>>,
    endpoints_per_session: Option<Number<1, 16_384>>,
    host_ports_per_user: Option<Number<1, 65_536>>,
    bytes_per_user: Option<Number<65_536, 1_099_511_627_776>>,
    session_bytes: Option<Number<65_536, 4_294_967_295>>,
    settings: Vec<EndpointSetting>,
    forbidden_packets_per_second: Option<Number<0, 4_294_967_295>>,
    /// The line of the file, from 1.
    #[serde(skip)]
    pub(crate) line: usize,
}

/// With whose sessions endpoints exchange out-of-band messages.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum OutOfBand {
    None,
    #[default]
    Own,
    All,
}

impl OutOfBand {
    fn text(self) -> &'static str {
        match self {
            OutOfBand::None => "none",
            OutOfBand::Own => "with sessions of the same user",
            OutOfBand::All => "with sessions of all users that have this grant",
        }
    }
}

/// A table `[[reservation]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Reservation {
    pub(crate) user: User,
    pub(crate) name: String,
    pub(crate) address: std::net::IpAddr,
    devices: Option<Vec<InterfaceName>>,
    /// The line of the file, from 1.
    #[serde(skip)]
    pub(crate) line: usize,
}

/// The most bytes of a session's name.
const MAX_NAME_BYTES: usize = 32;

impl PolicyFile {
    /// Reads a policy file.
    pub(crate) fn read(path: &Path) -> Result<PolicyFile, Failure> {
        PolicyFile::of_text(path, &text_file::read(path)?)
    }

    /// Reads a policy file with this text.
    pub(crate) fn of_text(path: &Path, text: &str) -> Result<PolicyFile, Failure> {
        PolicyFile::parse(text).map_err(|(line, message)| {
            let shown = path.display();
            Failure::usage(format!("{shown}:{line}: {message}; see: towpath policy --help"))
        })
    }

    /// Parses a policy. An error has the number of its line, from 1, and a message.
    pub(super) fn parse(text: &str) -> Result<PolicyFile, (usize, String)> {
        let tables: Tables = toml::from_str(text).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            (line_of(text, at), in_words(error.message()))
        })?;
        let mut file = PolicyFile::default();
        for grant in tables.grant {
            let line = line_of(text, grant.span().start);
            let grant = Grant { line, ..grant.into_inner() };
            file.check(&grant).map_err(|message| (line, message))?;
            file.grants.push(grant);
        }
        for reservation in tables.reservation {
            let line = line_of(text, reservation.span().start);
            let reservation = Reservation { line, ..reservation.into_inner() };
            file.check_reservation(&reservation).map_err(|message| (line, message))?;
            file.reservations.push(reservation);
        }
        Ok(file)
    }

    /// Checks a grant by itself and against those before.
    fn check(&self, grant: &Grant) -> Result<(), String> {
        check_devices(grant.devices.as_ref())?;
        if grant.users.is_empty() && grant.groups.is_empty() {
            return Err(
                "a grant without users and groups; give users = [\"NAME\"] or groups = [\"NAME\"]"
                    .into(),
            );
        }
        let named_by = |other: &Grant, what: String| {
            format!(
                "{what} has another grant for the same device, in line {}; give one grant",
                other.line
            )
        };
        for other in
            self.grants.iter().filter(|one| overlap(one.devices.as_ref(), grant.devices.as_ref()))
        {
            if let Some(user) = grant.users.iter().find(|user| other.names_user(user.uid)) {
                return Err(named_by(other, format!("user {user}")));
            }
            if let Some(group) = grant.groups.iter().find(|group| other.names_group(group.gid)) {
                return Err(named_by(other, format!("group {group}")));
            }
        }
        Ok(())
    }

    fn check_reservation(&self, reservation: &Reservation) -> Result<(), String> {
        let Reservation { name, address, .. } = reservation;
        check_devices(reservation.devices.as_ref())?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let text = "a session's name has 1 to 32 bytes; give the name of the application";
            return Err(text.into());
        }
        let twice = self.reservations.iter().any(|one| {
            one.address == *address && overlap(one.devices.as_ref(), reservation.devices.as_ref())
        });
        if twice {
            return Err(format!("address {address} is reserved already; give another one"));
        }
        self.check_owner(reservation)
    }

    /// Checks that a reservation's user may have the address.
    fn check_owner(&self, reservation: &Reservation) -> Result<(), String> {
        let Reservation { address, user, devices, .. } = reservation;
        let theirs: Vec<&Grant> = self
            .grants
            .iter()
            .filter(|grant| overlap(grant.devices.as_ref(), devices.as_ref()))
            .collect();
        let mut by_name = theirs.iter().filter(|grant| grant.names_user(user.uid)).peekable();
        let Some(first) = by_name.peek().map(|grant| grant.line) else {
            // The members of a group may change, so this check cannot decide.
            let by_group = theirs.iter().any(|grant| !grant.groups.is_empty());
            return match by_group || user.uid == 0 {
                true => Ok(()),
                false => Err(format!("user {user} has no grant; give one")),
            };
        };
        match by_name.any(|grant| grant.terms().allow_address(*address)) {
            true => Ok(()),
            false => Err(format!(
                "user {user} has no grant of address {address} in line {first}; add it there"
            )),
        }
    }

    /// Adds the grants and reservations for a device to a policy.
    pub(crate) fn apply(&self, policy: &mut Policy, device: &str) {
        policy.may_change = true;
        let grants = self.grants.iter().filter(|grant| grant.is_for(device));
        policy.grants = grants.map(Grant::to_server).collect();
        let reservations = self.reservations.iter().filter(|one| one.is_for(device));
        policy.reservations = reservations.map(Reservation::to_server).collect();
    }

    /// Returns the names of all devices in the file.
    pub(super) fn devices(&self) -> Vec<String> {
        let grants = self.grants.iter().flat_map(|grant| &grant.devices);
        let all = grants.chain(self.reservations.iter().flat_map(|one| &one.devices)).flatten();
        let mut names: Vec<String> = all.map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Grant {
    /// Returns `true` if the grant is for a device.
    pub(super) fn is_for(&self, device: &str) -> bool {
        includes(self.devices.as_ref(), device)
    }

    fn names_user(&self, uid: u32) -> bool {
        self.users.iter().any(|user| user.uid == uid)
    }

    fn names_group(&self, gid: u32) -> bool {
        self.groups.iter().any(|group| group.gid == gid)
    }

    fn to_server(&self) -> towpath_server::Grant {
        towpath_server::Grant {
            users: self.users.iter().map(|user| user.uid).collect(),
            groups: self.groups.iter().map(|group| group.gid).collect(),
            terms: Arc::new(self.terms()),
        }
    }

    /// Returns the terms of the grant.
    pub(super) fn terms(&self) -> Terms {
        let addresses = |ranges: &Vec<Lease>| {
            let range = |one: &Lease| AddressRange { first: one.first, last: one.last };
            ranges.iter().map(range).collect()
        };
        let ports = |ports: &Vec<Ports>| -> Vec<PortRange> {
            ports.iter().map(|ports| ports.range).collect()
        };
        let settings = |one: &EndpointSetting| -> (Setting, u64) { (one.setting, one.value) };
        Terms {
            addresses: self.addresses.as_ref().map(addresses),
            ports: self.ports.as_ref().map(ports),
            ethertypes: self.ethertypes.as_ref().map(|all| all.iter().map(|one| one.0).collect()),
            roles: self.roles.iter().map(|role| role.0).collect(),
            out_of_band: match self.out_of_band {
                OutOfBand::None => Reach::None,
                OutOfBand::Own => Reach::Own,
                OutOfBand::All => Reach::All,
            },
            rdma: self.rdma,
            capture: self.capture,
            promiscuous: self.promiscuous,
            own_queues: self.own_queues.iter().map(|queue| queue.get() as u32).collect(),
            sessions_per_user: self.sessions_per_user.map(Number::get),
            endpoints_per_session: self
                .endpoints_per_session
                .map(|endpoints| endpoints.get() as u32),
            host_ports_per_user: self.host_ports_per_user.map(Number::get),
            bytes_per_user: self.bytes_per_user.map(Number::get),
            session_bytes: self.session_bytes.map(Number::get),
            settings: self.settings.iter().map(settings).collect(),
            forbidden_packets_per_second: self
                .forbidden_packets_per_second
                .map(|packets| packets.get() as u32),
        }
    }

    /// Returns the terms as lines of a name and a text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        fn list<T: ToString>(items: &[T]) -> String {
            match items {
                [] => "none".to_owned(),
                items => items.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
            }
        }
        fn or_all<T: ToString>(items: Option<&Vec<T>>) -> String {
            items.map_or("all".to_owned(), |items| list(items))
        }
        fn limit<const L: u64, const M: u64>(
            limit: Option<Number<L, M>>,
            unit: &str,
            default: &str,
        ) -> String {
            limit.map_or(default.to_owned(), |limit| format!("{}{unit}", limit.get()))
        }
        let servers = "the server's";
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let settings = match &self.settings[..] {
            [] => "the defaults".to_owned(),
            settings => list(settings),
        };
        vec![
            ("addresses", or_all(self.addresses.as_ref())),
            (
                "ports",
                self.ports.as_ref().map_or_else(
                    || "all; of the host's own addresses, those from 1024 on".to_owned(),
                    |ports| list(ports),
                ),
            ),
            ("ethertypes", or_all(self.ethertypes.as_ref())),
            ("roles", list(&self.roles)),
            ("out-of-band", self.out_of_band.text().to_owned()),
            ("rdma", yes(self.rdma)),
            ("capture", yes(self.capture)),
            ("promiscuous", yes(self.promiscuous)),
            ("own-queues", {
                let queues: Vec<_> = self.own_queues.iter().map(|queue| queue.get()).collect();
                list(&queues)
            }),
            ("sessions-per-user", limit(self.sessions_per_user, "", servers)),
            ("endpoints-per-session", limit(self.endpoints_per_session, "", servers)),
            ("host-ports-per-user", limit(self.host_ports_per_user, "", servers)),
            ("bytes-per-user", limit(self.bytes_per_user, " bytes", servers)),
            ("session-bytes", limit(self.session_bytes, " bytes", servers)),
            ("settings", settings),
            (
                "forbidden-packets-per-second",
                limit(self.forbidden_packets_per_second, "", "no limit"),
            ),
        ]
    }
}

impl Reservation {
    /// Returns `true` if the reservation is for a device.
    pub(crate) fn is_for(&self, device: &str) -> bool {
        includes(self.devices.as_ref(), device)
    }

    fn to_server(&self) -> towpath_server::Reservation {
        let (uid, name) = (self.user.uid, self.name.clone());
        towpath_server::Reservation { uid, name, address: self.address }
    }
}

/// Returns `true` if a list of devices includes a device. Without a list, all are included.
fn includes(devices: Option<&Vec<InterfaceName>>, device: &str) -> bool {
    devices.is_none_or(|devices| devices.iter().any(|one| **one == *device))
}

/// Returns `true` if a device is in both lists.
fn overlap(one: Option<&Vec<InterfaceName>>, other: Option<&Vec<InterfaceName>>) -> bool {
    let Some((one, other)) = one.zip(other) else { return true };
    one.iter().any(|device| other.contains(device))
}

fn check_devices(devices: Option<&Vec<InterfaceName>>) -> Result<(), String> {
    match devices {
        Some(devices) if devices.is_empty() => {
            Err("devices is empty; name some, or leave devices out for every device".into())
        }
        _ => Ok(()),
    }
}

/// Returns the parser's message in the words of the documents.
fn in_words(message: &str) -> String {
    if let Some(unknown) = message.strip_prefix("unknown field ") {
        return format!("unknown key {unknown}");
    }
    if message.contains("expected a sequence") {
        return "a list is expected: [[grant]] with two brackets, and users = [\"NAME\"]"
            .to_owned();
    }
    message.to_owned()
}

#[cfg(test)]
mod tests {
    use towpath_server::Role;

    use super::*;

    const ALL: &str = r#"
[[grant]]
users = ["root", 1001]
groups = [70]
devices = ["eth0"]
addresses = ["192.0.2.70", "192.0.2.72-192.0.2.79", "2001:db8::40/124"]
ports = ["tcp:80", "udp:5000-5999"]
ethertypes = ["ipv4", 0x88b5, "arp"]
roles = ["router", "dhcp-server"]
capture = true
promiscuous = true
own-queues = [3, 5]
sessions-per-user = 4
endpoints-per-session = 64
bytes-per-user = 67108864
session-bytes = 16777216
settings = ["weight=4", "rate_bps=100000000"]
forbidden-packets-per-second = 100

[[grant]]
groups = [71]

[[reservation]]
user = 1001
name = "web"
address = "192.0.2.70"
devices = ["eth0"]
"#;

    #[test]
    fn every_key_has_an_effect() {
        let file = PolicyFile::parse(ALL).unwrap();
        let mut policy = Policy::default();
        file.apply(&mut policy, "eth0");
        assert_eq!((policy.grants.len(), policy.reservations.len()), (2, 1));
        assert!(policy.may_change);
        let grant = &policy.grants[0];
        assert_eq!((&grant.users[..], &grant.groups[..]), (&[0, 1001][..], &[70][..]));
        let terms = &grant.terms;
        assert_eq!(terms.addresses.as_ref().unwrap().len(), 3);
        assert!(terms.allow_address("192.0.2.79".parse().unwrap()));
        let range = |protocol, first, last| PortRange { protocol, first, last };
        assert_eq!(terms.ports, Some(vec![range(6, 80, 80), range(17, 5000, 5999)]));
        assert_eq!(terms.ethertypes, Some(vec![0x800, 0x88b5, 0x806]));
        assert_eq!(terms.roles, [Role::Router, Role::DhcpServer].into_iter().collect());
        assert!(terms.capture && terms.promiscuous);
        assert_eq!(terms.own_queues, [3, 5]);
        assert_eq!((terms.sessions_per_user, terms.endpoints_per_session), (Some(4), Some(64)));
        assert_eq!((terms.bytes_per_user, terms.session_bytes), (Some(64 << 20), Some(16 << 20)));
        assert_eq!(terms.settings, [(Setting::Weight, 4), (Setting::RateBps, 100_000_000)]);
        assert_eq!(terms.forbidden_packets_per_second, Some(100));
        assert_eq!(*policy.grants[1].terms, Terms::default());
        assert_eq!((policy.reservations[0].uid, &*policy.reservations[0].name), (1001, "web"));
        file.apply(&mut policy, "eth1");
        assert_eq!((policy.grants.len(), policy.reservations.len()), (1, 0));
        assert_eq!(file.devices(), ["eth0"]);
        // Every value is shown.
        let shown: Vec<String> = file.grants[0].lines().into_iter().map(|(_, text)| text).collect();
        let shown = shown.join("\n");
        for part in [
            "192.0.2.72-192.0.2.79",
            "udp:5000-5999",
            "0x88b5",
            "router, dhcp-server",
            "yes",
            "3, 5",
            "64",
            "weight=4",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn an_error_names_its_line_and_the_remedy() {
        let grant = |line: &str| format!("[[grant]]\nusers = [1001]\n{line}\n");
        let two =
            |first: &str, second: &str| format!("[[grant]]\n{first}\n\n[[grant]]\n{second}\n");
        let reserve = "[[reservation]]\nuser = 1001\nname = \"web\"\naddress = \"192.0.2.70\"\n";
        for (text, line, part) in [
            ("[[grant]]\ncapture = true\n".to_owned(), 1, "without users and groups"),
            (grant("colour = 1"), 3, "unknown key `colour`"),
            (grant("groups = \"web\""), 3, "a list is expected"),
            (grant("roles = [\"king\"]"), 3, "the roles are router, dhcp-server"),
            (grant("groups = [\"no-such-group\"]"), 3, "no group no-such-group"),
            (grant("addresses = [\"192.0.2.300\"]"), 3, "range of addresses"),
            (grant("ports = [80]"), 3, "tcp:80"),
            (grant("ports = [\"tcp:0\"]"), 3, "1 to 65535"),
            (grant("ports = [\"tcp:90-80\"]"), 3, "tcp:80"),
            (grant("ethertypes = [0x100]"), 3, "0x0600"),
            (grant("sessions-per-user = 0"), 3, "1 to 16384"),
            (grant("own-queues = [70000]"), 3, "0 to 65535"),
            (grant("settings = [\"rx_batch=1\"]"), 3, "device"),
            (grant("settings = [\"weight=0\"]"), 3, "weight"),
            (two("users = [7]", "users = [8, 7]"), 4, "user 7 has another grant"),
            (two("groups = [7]", "users = [1]\ngroups = [7]"), 4, "line 1"),
            (two("users = [7]\ndevices = [\"a\"]", "users = [7]"), 5, "another grant"),
            (format!("{}{reserve}{reserve}", grant("")), 8, "reserved already"),
            (reserve.replace("web", ""), 1, "1 to 32 bytes"),
            (reserve.to_owned(), 1, "has no grant"),
            (format!("{}{reserve}", grant("addresses = [\"192.0.2.71\"]")), 4, "in line 1"),
            (grant("devices = []"), 1, "devices is empty"),
            ("[[reservation]]\nuser = 1001\n".to_owned(), 1, "missing field"),
            ("grant = 1".to_owned(), 1, "a list is expected"),
            ("[limits]\n".to_owned(), 1, "unknown key `limits`"),
        ] {
            let (at, message) = PolicyFile::parse(&text).expect_err(&text);
            assert_eq!(at, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
        let apart = two("users = [7]\ndevices = [\"a\"]", "users = [7]\ndevices = [\"b\"]");
        assert_eq!(PolicyFile::parse(&apart).unwrap().grants.len(), 2);
        assert!(PolicyFile::parse("").unwrap().grants.is_empty());
    }
}

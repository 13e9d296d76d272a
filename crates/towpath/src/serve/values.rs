//! Types of option values. Each type checks its value while it reads it, so that an error on the
//! command line names its option, and an error in a file its line.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::str::FromStr;

use towpath_client::{Scope, Setting};
use towpath_device::pci::e1000e::{self, Moderation};
use towpath_device::pci::{PciAddress, PciAddressError};
use towpath_device::tap::TapError;
use towpath_device::xdp;
use towpath_netlink::Prefix;
use towpath_server::Subnets;

/// Serializes a value as text, in files as on the command line.
macro_rules! as_text {
    ($name:ty, $what:literal) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.to_string())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    // A number stands for its text: `user = 997`.
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                from.deserialize_any(Visitor)
            }
        }
    };
}

pub(crate) use as_text;

/// The name of the interface, or the address of a PCI card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceName(String);

impl FromStr for InterfaceName {
    type Err = String;

    /// Accepts the names of the kernel's `dev_valid_name` (net/core/dev.c) without a percent sign, and
    /// the addresses of PCI cards.
    fn from_str(text: &str) -> Result<InterfaceName, String> {
        let is_name = (1..libc::IFNAMSIZ).contains(&text.len())
            && text != "."
            && text != ".."
            // The kernel would replace %d by a number.
            && !text.bytes().any(|byte| matches!(byte, b'/' | b':' | b'%') || byte <= b' ');
        if is_name || text.parse::<PciAddress>().is_ok() {
            Ok(InterfaceName(text.to_owned()))
        } else {
            Err(TapError::BadName { name: text.to_owned() }.to_string())
        }
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for InterfaceName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

as_text!(InterfaceName, "an interface's name, such as \"eth0\", or a card's address");

/// The device to serve: a driver, an interface, and options of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpec {
    text: String,
    pub(crate) driver: Driver,
    pub(crate) interface: InterfaceName,
}

/// The driver of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// A TAP interface, which the server may create.
    Tap,
    /// AF_XDP on an interface of the kernel.
    Xdp(xdp::Options),
    /// Packet sockets on an interface of the kernel.
    Packet,
    /// A network card that the server drives itself. Another card than an 82574L takes the address alone.
    Pci(e1000e::Options),
    /// TAP for a TAP interface; for any other one AF_XDP, or packet sockets where that is
    /// impossible.
    Auto,
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let bad = || {
            format!(
                "{text:?} is not tap:NAME, xdp:INTERFACE, packet:INTERFACE, pci:ADDRESS or auto:INTERFACE"
            )
        };
        let (driver, rest) = text.split_once(':').ok_or_else(bad)?;
        let mut parts = rest.split(',');
        let name = parts.next().unwrap_or_default();
        let interface: InterfaceName = match driver {
            // The same card always has the same name.
            "pci" => InterfaceName(card(name)?.to_string()),
            _ if name.parse::<PciAddress>().is_ok() => {
                return Err(format!("{name} is a PCI card, no interface; use pci:{name}"));
            }
            _ => name.parse()?,
        };
        let driver = match driver {
            "tap" => Driver::Tap,
            "xdp" => {
                let mut options =
                    xdp::Options { interface: interface.to_string(), ..Default::default() };
                let mut given = Vec::new();
                for part in parts.by_ref() {
                    set_option(&mut options, part)?;
                    given.push(part);
                }
                check_options(&given)?;
                Driver::Xdp(options)
            }
            "packet" => Driver::Packet,
            "pci" => {
                let mut options = e1000e::Options::new(card(name)?);
                options.moderation = moderation(&mut parts)?;
                Driver::Pci(options)
            }
            "auto" => Driver::Auto,
            _ => return Err(bad()),
        };
        match parts.next() {
            Some(option) => Err(format!("{option:?}: only xdp and pci have options")),
            None => Ok(DeviceSpec { text: text.to_owned(), driver, interface }),
        }
    }
}

/// Reads how a card moderates its interrupts.
fn moderation<'a>(options: impl Iterator<Item = &'a str>) -> Result<Moderation, String> {
    let mut is_one = false;
    let names = ["rx-usecs", "rx-usecs-max", "tx-usecs", "tx-usecs-max"];
    let mut given: [Option<u32>; 4] = [None; 4];
    for text in options {
        let bad = || {
            format!(
                "{text:?} is not an option of pci: interrupts=msi, interrupts=msi-x, rx-usecs=N, tx-usecs=N, \
                 rx-usecs-max=N or tx-usecs-max=N"
            )
        };
        match text.split_once('=').ok_or_else(bad)? {
            ("interrupts", "msi") => is_one = true,
            ("interrupts", "msi-x") => is_one = false,
            (name, value) => {
                let place = names.iter().position(|one| *one == name).ok_or_else(bad)?;
                given[place] = Some(value.parse().map_err(|_| bad())?);
            }
        }
    }
    let most = if is_one { e1000e::MOST_DELAY_USECS } else { e1000e::MOST_USECS };
    for (name, usecs) in names.iter().zip(given) {
        if let Some(usecs) = usecs.filter(|usecs| *usecs > most) {
            return Err(format!("{name}={usecs}: 0 to {most} microseconds are possible"));
        }
        if usecs.is_some() && !is_one && name.ends_with("-max") {
            return Err(format!(
                "{name} needs interrupts=msi: with MSI-X, the card defers by a least time alone"
            ));
        }
    }
    let [rx, rx_max, tx, tx_max] = given.map(Option::unwrap_or_default);
    for (name, delay, longest) in [("rx-usecs", rx, rx_max), ("tx-usecs", tx, tx_max)] {
        if longest > 0 && delay == 0 {
            return Err(format!("{name}-max needs {name}: the card delays nothing without"));
        }
    }
    Ok(if is_one {
        Moderation::One { rx_usecs: [rx, rx_max], tx_usecs: [tx, tx_max] }
    } else {
        Moderation::Vectors { rx_usecs: rx, tx_usecs: tx }
    })
}

fn card(text: &str) -> Result<PciAddress, String> {
    text.parse().map_err(|error: PciAddressError| error.to_string())
}

/// Checks the options of the AF_XDP driver against each other.
fn check_options(given: &[&str]) -> Result<(), String> {
    let has = |option: &str| given.contains(&option);
    if given.iter().filter(|option| option.starts_with("mode=")).count() > 1 {
        return Err("xdp has one mode; give mode= once".to_owned());
    }
    if has("zero-copy") && (has("copy") || has("mode=generic")) {
        return Err("zero-copy contradicts copy and mode=generic; leave one of them out".to_owned());
    }
    if has("tx-checksum=kernel") && (has("zero-copy") || has("tx-checksum")) {
        return Err(
            "tx-checksum=kernel contradicts zero-copy and tx-checksum; leave one of them out"
                .to_owned(),
        );
    }
    Ok(())
}

/// Sets an option of the AF_XDP driver.
fn set_option(options: &mut xdp::Options, text: &str) -> Result<(), String> {
    match text {
        "mode=auto" => options.mode = xdp::Mode::Auto,
        "mode=native" => options.mode = xdp::Mode::Native,
        "mode=generic" => options.mode = xdp::Mode::Generic,
        "copy" => options.copying = xdp::CopyMode::Copy,
        "zero-copy" => options.copying = xdp::CopyMode::ZeroCopy,
        "tx-checksum" => options.tx_checksum = xdp::TxChecksum::Interface,
        "tx-checksum=kernel" => options.tx_checksum = xdp::TxChecksum::Kernel,
        "busy-poll" => options.busy_poll = true,
        "exclusive" => options.exclusive = true,
        _ => {
            return Err(format!(
                "{text:?} is not an option of xdp: mode=native, mode=generic, copy, zero-copy, \
                 tx-checksum, tx-checksum=kernel, busy-poll or exclusive"
            ));
        }
    }
    Ok(())
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(DeviceSpec, "a driver and an interface, such as \"tap:tap0\"");

/// Addresses for applications: the first and the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    text: String,
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
}

impl FromStr for Lease {
    type Err = String;

    fn from_str(text: &str) -> Result<Lease, String> {
        let bad = || {
            format!(
                "{text:?} is no range of addresses, such as 192.0.2.64/28 or \
                 192.0.2.100-192.0.2.119"
            )
        };
        let address = |text: &str| text.parse::<IpAddr>().map_err(|_| bad());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (address(first)?, address(last)?)
        } else if text.contains('/') {
            let prefix: Prefix = text.parse().map_err(|_| bad())?;
            let network = prefix.network();
            if network.address() != prefix.address() {
                return Err(format!("{text:?} has host bits; write {network}"));
            }
            (network.address(), last_of(network))
        } else {
            (address(text)?, address(text)?)
        };
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(bad());
        }
        let is_no_hosts = match (first, last) {
            (IpAddr::V6(first), _) if first.is_unicast_link_local() => true,
            _ => last.is_multicast() || first.is_loopback(),
        };
        if is_no_hosts {
            return Err(format!("{text} has no addresses for hosts of a network"));
        }
        Ok(Lease { text: text.to_owned(), first, last })
    }
}

/// Returns the last address of a network.
fn last_of(network: Prefix) -> IpAddr {
    let bits = u32::from(network.len_bits());
    match network.address() {
        IpAddr::V4(ip) => {
            IpAddr::V4((ip.to_bits() | u32::MAX.checked_shr(bits).unwrap_or(0)).into())
        }
        IpAddr::V6(ip) => {
            IpAddr::V6((ip.to_bits() | u128::MAX.checked_shr(bits).unwrap_or(0)).into())
        }
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Lease, "a range of addresses, such as \"192.0.2.64/28\"");

/// An address of the interface, with the prefix length of the network that applications get
/// addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet(pub(crate) Prefix);

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let prefix: Prefix = text.parse().map_err(|_| {
            format!("{text:?} is not an address with a prefix length, such as 10.77.0.1/24")
        })?;
        let (address, bits) = (prefix.address(), prefix.len_bits());
        let most = if address.is_ipv4() { 30 } else { 120 };
        if !(1..=most).contains(&bits) {
            return Err(format!("{text} leaves no addresses for applications; use /1 to /{most}"));
        }
        let own = prefix.network().address() != address;
        let broadcast = match address {
            std::net::IpAddr::V4(ip) => (ip.to_bits() | u32::MAX >> bits) == ip.to_bits(),
            std::net::IpAddr::V6(_) => false,
        };
        if !own || broadcast || address.is_multicast() || address.is_loopback() {
            return Err(format!("{text} is not a host's address; use the first of its network"));
        }
        Ok(Subnet(prefix))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(Subnet, "an address with a prefix length, such as \"10.77.0.1/24\"");

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
            .map_err(|error| format!("{error}; towpath set --list shows all settings"))?;
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

/// Returns the networks whose gateways have these addresses: at most one per family.
pub(crate) fn subnets(given: &[Subnet]) -> Result<Subnets, String> {
    let mut subnets = Subnets::default();
    for Subnet(prefix) in given {
        let bits = prefix.len_bits();
        let twice = match prefix.address() {
            IpAddr::V4(ip) => {
                subnets.ipv4.replace(towpath_server::Subnet::new(ip, bits)).map(|_| "IPv4")
            }
            IpAddr::V6(ip) => {
                subnets.ipv6.replace(towpath_server::Subnet::new(ip, bits)).map(|_| "IPv6")
            }
        };
        if let Some(family) = twice {
            return Err(format!(
                "{family} has two networks; give one, and add other addresses with ip address add"
            ));
        }
    }
    Ok(subnets)
}

/// Limits the addresses for applications to these ranges: at most one per family, in a network of
/// `subnets`.
pub(crate) fn limit(subnets: &mut Subnets, leases: &[Lease]) -> Result<(), String> {
    for lease in leases {
        let twice = match (lease.first, lease.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let subnet = subnets.ipv4.as_mut().ok_or_else(|| outside(lease))?;
                let network = Prefix::new(subnet.own.into(), subnet.bits);
                inside(lease, network)?;
                subnet.leases.replace((first, last)).is_some()
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let subnet = subnets.ipv6.as_mut().ok_or_else(|| outside(lease))?;
                let network = Prefix::new(subnet.own.into(), subnet.bits);
                inside(lease, network)?;
                subnet.leases.replace((first, last)).is_some()
            }
            // `Lease` has two addresses of one family.
            _ => false,
        };
        if twice {
            return Err("at most one range per address family".to_owned());
        }
    }
    Ok(())
}

fn inside(lease: &Lease, network: Result<Prefix, towpath_netlink::Error>) -> Result<(), String> {
    let network = network.map_err(|error| error.to_string())?.network();
    match network.contains(lease.first) && network.contains(lease.last) {
        true => Ok(()),
        false => Err(format!("{lease} is not in the network {network}; choose addresses of it")),
    }
}

fn outside(lease: &Lease) -> String {
    format!("{lease} is in no network of the device; give the network with --address or --subnet")
}

/// A user, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    text: String,
    pub(crate) uid: u32,
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        let uid = match text.parse() {
            Ok(uid) => uid,
            Err(_) => uzers::get_user_by_name(text)
                .ok_or_else(|| format!("no user {text}; see: getent passwd"))?
                .uid(),
        };
        Ok(User { text: text.to_owned(), uid: possible(uid, text)? })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(User, "a user's name or number");

/// A group, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    text: String,
    pub(crate) gid: u32,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Group, String> {
        let gid = match text.parse() {
            Ok(gid) => gid,
            Err(_) => uzers::get_group_by_name(text)
                .ok_or_else(|| format!("no group {text}; see: getent group"))?
                .gid(),
        };
        Ok(Group { text: text.to_owned(), gid: possible(gid, text)? })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Group, "a group's name or number");

/// The user that the server itself runs as, and its group: the account's group by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    text: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Identity, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.parse::<Group>()?)),
            None => (text, None),
        };
        let user: User = user.parse()?;
        let gid = match group {
            Some(group) => group.gid,
            None => uzers::get_user_by_uid(user.uid)
                .ok_or_else(|| {
                    format!("user {} has no account with a default group; give USER:GROUP", user)
                })?
                .primary_group_id(),
        };
        Ok(Identity { text: text.to_owned(), uid: user.uid, gid })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Identity, "a user, or USER:GROUP, by names or numbers");

/// The faults of the wire, with their text as given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    text: String,
    pub(crate) spec: towpath_device::fault::Spec,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let spec =
            text.parse().map_err(|error: towpath_device::fault::SpecError| error.to_string())?;
        Ok(Fault { text: text.to_owned(), spec })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Fault, "faults, such as \"drop=0.01,seed=42\"");

/// Refuses -1, which is not a user or group: system calls take it for "leave as it is".
fn possible(id: u32, text: &str) -> Result<u32, String> {
    if id == u32::MAX { Err(format!("{text} is not a user's or group's number")) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_must_be_hosts_in_networks_with_room() {
        for good in ["10.77.0.1/24", "10.77.0.254/24", "fd77::1/64", "192.0.2.1/30"] {
            assert_eq!(good.parse::<Subnet>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "10.77.0.1",
            "10.77.0.1/33",
            "10.77.0.0/24",
            "10.77.0.255/24",
            "10.77.0.1/31",
            "10.77.0.1/0",
            "224.0.0.1/24",
            "127.0.0.1/8",
            "fd77::/64",
            "fd77::1/121",
            "ff02::1/64",
            "x/24",
            "10.77.0.1/24/1",
        ] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
        let both = ["10.77.0.1/24", "fd77::1/64", "10.78.0.1/24"].map(|one| one.parse().unwrap());
        assert!(subnets(&both[..2]).unwrap().ipv6.is_some());
        assert!(subnets(&both).unwrap_err().contains("IPv4 has two networks"));
    }

    #[test]
    fn interface_names_are_the_kernels() {
        for good in ["tap0", "a", "fifteen-bytes-x", "br.5"] {
            assert_eq!(good.parse::<InterfaceName>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "a:b", "a\n", "tap%d", "sixteen-bytes-xx"] {
            let error = bad.parse::<InterfaceName>().unwrap_err();
            assert!(error.contains("1 to 15 bytes, no slash, colon, percent"), "{error}");
        }
    }

    #[test]
    fn a_device_is_a_driver_and_an_interface() {
        for good in [
            "tap:tap0",
            "auto:eth0",
            "packet:eth0",
            "xdp:eth0",
            "xdp:eth0,mode=native,copy,busy-poll",
            "pci:0000:00:03.0",
            "pci:0000:00:03.0,rx-usecs=50,tx-usecs=100",
            "pci:0000:00:03.0,interrupts=msi,rx-usecs=20000,rx-usecs-max=67106",
            "xdp:eth0,zero-copy,tx-checksum",
            "xdp:eth0,tx-checksum=kernel",
        ] {
            assert_eq!(good.parse::<DeviceSpec>().unwrap().to_string(), good);
        }
        let Driver::Xdp(options) =
            "xdp:a,mode=generic,exclusive".parse::<DeviceSpec>().unwrap().driver
        else {
            panic!("another driver");
        };
        assert_eq!(options.interface, "a");
        assert!(options.mode == xdp::Mode::Generic && options.exclusive && !options.busy_poll);
        for (bad, part) in [
            ("tap0", "tap:NAME"),
            ("eth:eth0", "tap:NAME"),
            ("tap:", "1 to 15 bytes"),
            ("xdp:a/b", "no slash"),
            ("pci:eth0", "lspci -D"),
            ("pci:0000:00:03.0,copy", "rx-usecs=N"),
            ("pci:0000:00:03.0,interrupts=intx", "interrupts=msi"),
            ("pci:0000:00:03.0,rx-usecs=16777", "0 to 16776"),
            ("pci:0000:00:03.0,rx-usecs-max=9", "interrupts=msi"),
            ("pci:0000:00:03.0,interrupts=msi,rx-usecs-max=9", "rx-usecs-max needs rx-usecs"),
            ("pci:0000:00:03.0,interrupts=msi,tx-usecs=67108", "0 to 67107"),
            ("xdp:0000:00:03.0", "pci:0000:00:03.0"),
            ("xdp:eth0,fast", "zero-copy"),
            ("tap:tap0,copy", "only xdp and pci have options"),
            ("xdp:a,copy,zero-copy", "contradicts"),
            ("xdp:a,mode=generic,zero-copy", "contradicts"),
            ("xdp:a,mode=generic,mode=native", "mode= once"),
            ("xdp:a,tx-checksum=kernel,zero-copy", "contradicts zero-copy"),
            ("xdp:a,tx-checksum,tx-checksum=kernel", "contradicts"),
            ("xdp:a,tx-checksum=none", "tx-checksum=kernel"),
        ] {
            let error = bad.parse::<DeviceSpec>().unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    #[test]
    fn leases_are_blocks_and_ranges() {
        let range = |text: &str| {
            let lease: Lease = text.parse().unwrap();
            format!("{} {}", lease.first, lease.last)
        };
        assert_eq!(range("192.0.2.64/28"), "192.0.2.64 192.0.2.79");
        assert_eq!(range("192.0.2.7"), "192.0.2.7 192.0.2.7");
        assert_eq!(range("192.0.2.7-192.0.2.9"), "192.0.2.7 192.0.2.9");
        assert_eq!(range("2001:db8::100/120"), "2001:db8::100 2001:db8::1ff");
        assert_eq!(range("0.0.0.0/1"), "0.0.0.0 127.255.255.255");
        for bad in [
            "",
            "x",
            "192.0.2.65/28",
            "192.0.2.9-192.0.2.7",
            "192.0.2.7-::1",
            "1.2.3.4/33",
            "fe80::1/124",
            "224.0.0.1",
        ] {
            assert!(bad.parse::<Lease>().is_err(), "{bad}");
        }
        let networks = ["192.0.2.1/24", "2001:db8::1/64"].map(|one| one.parse().unwrap());
        let limited = |leases: &[&str]| {
            let leases: Vec<Lease> = leases.iter().map(|one| one.parse().unwrap()).collect();
            let mut subnets = subnets(&networks[..1]).unwrap();
            limit(&mut subnets, &leases).map(|()| subnets)
        };
        let subnets = limited(&["192.0.2.64/28"]).unwrap();
        assert!(subnets.ipv4.unwrap().leases.is_some());
        for (wrong, part) in [
            (&["2001:db8::7"][..], "no network"),
            (&["192.0.3.7"], "192.0.2.0/24"),
            (&["192.0.2.250-192.0.3.2"], "192.0.2.0/24"),
            (&["192.0.2.7", "192.0.2.9"], "one range"),
        ] {
            let error = limited(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn accounts_by_name_and_number() {
        assert_eq!("root".parse::<User>().unwrap().uid, 0);
        assert_eq!("61001".parse::<User>().unwrap().uid, 61001);
        assert_eq!("root".parse::<Group>().unwrap().gid, 0);
        let identity: Identity = "61001:61002".parse().unwrap();
        assert_eq!((identity.uid, identity.gid), (61001, 61002));
        assert_eq!("root".parse::<Identity>().unwrap().gid, 0);
        for bad in ["", "no-such-user-here", "-1", "4294967295", "4294967296"] {
            assert!(bad.parse::<User>().is_err() && bad.parse::<Group>().is_err(), "{bad:?}");
            assert!(bad.parse::<Identity>().is_err());
        }
        assert!("61001".parse::<Identity>().unwrap_err().contains("USER:GROUP"));
        assert!("61001:".parse::<Identity>().is_err());
    }
}

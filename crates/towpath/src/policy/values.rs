//! Types of the values in a policy file.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use towpath_client::{Scope, Setting};
use towpath_server::{PortRange, Role};

use crate::serve::values::as_text;

/// The protocols that have ports (IANA, protocol numbers).
const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("sctp", 132)];
/// Ethertypes with a name (IEEE 802 numbers).
const ETHERTYPES: [(&str, u16); 3] = [("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd)];

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    text: String,
    pub(super) range: PortRange,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let bad = || {
            format!(
                "{text:?} is no range of ports, such as tcp:80 or udp:8000-8999; protocols are \
                 tcp, udp and sctp, and ports 1 to 65535"
            )
        };
        let (protocol, ports) = text.split_once(':').ok_or_else(bad)?;
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == protocol).ok_or_else(bad)?.1;
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = port(first).zip(port(last)).ok_or_else(bad)?;
        if first > last {
            return Err(bad());
        }
        Ok(Ports { text: text.to_owned(), range: PortRange { protocol, first, last } })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Ports, "ports of a protocol, such as \"tcp:80\"");

/// An ethertype, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ethertype(pub(super) u16);

impl FromStr for Ethertype {
    type Err = String;

    fn from_str(text: &str) -> Result<Ethertype, String> {
        if let Some((_, ethertype)) = ETHERTYPES.iter().find(|(name, _)| *name == text) {
            return Ok(Ethertype(*ethertype));
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        number.filter(|number| *number >= 0x600).map(Ethertype).ok_or_else(|| {
            format!("{text} is no ethertype: ipv4, ipv6, arp, or a number from 0x0600 to 0xffff")
        })
    }
}

impl fmt::Display for Ethertype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ETHERTYPES.iter().find(|(_, ethertype)| *ethertype == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

as_text!(Ethertype, "an ethertype, such as \"ipv4\" or 0x88b5");

/// A part in the network's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoleName(pub(super) Role);

impl FromStr for RoleName {
    type Err = String;

    fn from_str(text: &str) -> Result<RoleName, String> {
        Role::named(text).map(RoleName).ok_or_else(|| {
            let names = Role::ALL.map(Role::name).join(", ");
            format!("{text:?} is no role; the roles are {names}")
        })
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(RoleName, "a role, such as \"router\"");

/// A setting of endpoints with its initial value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndpointSetting {
    pub(super) setting: Setting,
    pub(super) value: u64,
}

impl FromStr for EndpointSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<EndpointSetting, String> {
        let (name, value) = text.split_once('=').ok_or("not SETTING=VALUE, such as weight=4")?;
        let setting = Setting::named(name)
            .map_err(|error| format!("{error}; towpath set --list shows the settings"))?;
        if setting.spec().scope == Scope::Device {
            return Err(format!("{name} is a setting of the device, not of endpoints"));
        }
        let value = setting.parse(value).map_err(|error| error.to_string())?;
        Ok(EndpointSetting { setting, value })
    }
}

impl fmt::Display for EndpointSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.setting.spec().name, self.setting.show(self.value))
    }
}

as_text!(EndpointSetting, "a setting with its value, such as \"weight=4\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_show_as_they_are_written() {
        for good in ["tcp:80", "udp:1-65535", "sctp:9"] {
            assert_eq!(good.parse::<Ports>().unwrap().to_string(), good);
        }
        for bad in ["", "80", "tcp", "tcp:", "icmp:1", "tcp:0", "tcp:2-1", "tcp:65536", "tcp:1-2-3"]
        {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
        for (text, shown) in [("ipv4", "ipv4"), ("0x88b5", "0x88b5"), ("2054", "arp")] {
            assert_eq!(text.parse::<Ethertype>().unwrap().to_string(), shown);
        }
        for bad in ["", "ip", "0x5ff", "65536", "0x10000", "-1"] {
            assert!(bad.parse::<Ethertype>().is_err(), "{bad}");
        }
        let setting: EndpointSetting = "weight=4".parse().unwrap();
        assert_eq!(setting.to_string(), "weight=4");
    }
}

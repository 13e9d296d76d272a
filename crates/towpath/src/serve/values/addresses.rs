//! The addresses of the device and of applications, as the command line and files give them.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use towpath_netlink::Prefix;
use towpath_server::Subnets;

use super::as_text::as_text;

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
}

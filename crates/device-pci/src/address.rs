//! Addresses of PCI devices.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a PCI device, as `lspci -D` and `/sys/bus/pci/devices` show it: domain, bus, device
/// and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// The error for a text that is no address of a PCI device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a PCI device; give DOMAIN:BUS:DEVICE.FUNCTION as lspci -D shows it, such \
     as 0000:00:03.0"
)]
pub struct PciAddressError {
    text: String,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Reads an address, with or without a domain.
    fn from_str(text: &str) -> Result<PciAddress, PciAddressError> {
        parse(text).ok_or_else(|| PciAddressError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>, most: u32| {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok()?;
        (is_hex && digits.contains(&text.len()) && number <= most).then_some(number)
    };
    Some(PciAddress {
        domain: number(domain, 4..=8, u32::MAX)?,
        bus: number(bus, 2..=2, 0xff)? as u8,
        device: number(device, 2..=2, 0x1f)? as u8,
        function: number(function, 1..=1, 7)? as u8,
    })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl PciAddress {
    /// Returns the device's directory in sysfs.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/sys/bus/pci/devices/{self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_lspci() {
        for (text, shown) in [
            ("0000:00:03.0", "0000:00:03.0"),
            ("00:1f.7", "0000:00:1f.7"),
            ("10000:FF:00.1", "10000:ff:00.1"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "eth0",
            "00:03",
            "0000:00:03",
            "0000:00:20.0",
            "0000:00:03.8",
            "000:00:03.0",
            "0000:0:03.0",
            "0000:00:03.00",
            "0000:00:+3.0",
            "123456789:00:03.0",
            "0000:00:03.0/..",
        ] {
            let error = wrong.parse::<PciAddress>().unwrap_err();
            assert!(error.to_string().contains("lspci"), "{wrong}");
        }
    }
}

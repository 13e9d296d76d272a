//! The device to serve, as the command line and files name it: a driver, an interface, and options of the driver.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use towpath_device::tap::TapError;
use towpath_device::xdp;
use towpath_device_pci::e1000e::{self, Moderation};
use towpath_device_pci::{PciAddress, PciAddressError};

use super::as_text::as_text;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}

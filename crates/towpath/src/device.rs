//! `towpath device`: lists network cards, and gives one to a server or back to the kernel.
#![forbid(unsafe_code)]

mod claim;
mod sysfs;

use towpath_device_pci::{PciAddress, is_supported};

use crate::failure::{Failure, print};
use crate::table::Table;
use sysfs::Card;
pub(crate) use sysfs::SWITCH_IOMMU_ON;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  towpath device list
  towpath device claim 0000:00:03.0 --user towpath
  towpath serve --device pci:0000:00:03.0 --subnet 192.0.2.1/24 --lease 192.0.2.64/28
  towpath device release 0000:00:03.0";

/// Options of `towpath device`.
#[derive(Debug, clap::Args)]
#[command(subcommand_value_name = "SUBCOMMAND", subcommand_help_heading = "Subcommands")]
pub(crate) struct Args {
    #[command(subcommand)]
    subcommand: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// List the machine's PCI network cards
    List,
    /// Take a card from the kernel until the next boot, for a user's server
    Claim(claim::Args),
    /// Give a card back to the kernel's driver
    Release(ReleaseArgs),
}

/// Options of `towpath device release`.
#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// The card, as towpath device list shows it
    #[arg(value_name = "PCI-ADDRESS")]
    address: PciAddress,
}

/// Runs a subcommand.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.subcommand {
        Subcommand::List => list(),
        Subcommand::Claim(args) => claim::claim(args),
        Subcommand::Release(args) => claim::release(args.address),
    }
}

/// Returns the vendor and device numbers of the device at an address.
pub(crate) fn numbers(address: PciAddress) -> Option<(u16, u16)> {
    Card::at(address).map(|card| (card.vendor, card.device))
}

fn list() -> Result<(), Failure> {
    let cards = sysfs::network_cards().map_err(|error| {
        Failure::unavailable(format!("/sys/bus/pci/devices: {error}; this machine has no PCI bus"))
    })?;
    if cards.is_empty() {
        return print("no PCI network card\n");
    }
    let mut table =
        Table::new(["card", "vendor:device", "interface", "driver", "iommu group", "pci"]);
    for card in cards {
        let Card { address, vendor, device, interfaces, driver, group } = card;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let is_known = is_supported(vendor, device);
        table.row([
            address.to_string(),
            format!("{vendor:04x}:{device:04x}"),
            or_none((!interfaces.is_empty()).then(|| interfaces.join(" "))),
            or_none(driver),
            or_none(group.map(|group| group.to_string())),
            match (is_known, group) {
                (false, _) => "no: no driver for it",
                (true, None) => "no: no IOMMU",
                (true, Some(_)) => "yes",
            }
            .to_owned(),
        ]);
    }
    print(&table.to_text())
}

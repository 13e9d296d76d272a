//! The filters of an interface: addresses and flows in the maps of a program, what the packet
//! sockets copy, and what this host's own sockets send.

use super::groups::Groups;
use super::host_traffic::HostTraffic;
use crate::{Filter, FilterError, is_group};

/// The addresses and flows that a driver's program finds.
pub(crate) trait ProgramMaps {
    /// Adds an address or a flow.
    fn add(&mut self, filter: &Filter) -> Result<(), FilterError>;

    /// Removes an address or a flow.
    fn remove(&mut self, filter: &Filter);
}

/// Adds a filter. A part that fails leaves all parts as they were.
pub(crate) fn add_filter(
    filter: &Filter,
    maps: &mut impl ProgramMaps,
    groups: &mut Groups,
    host_traffic: Option<&HostTraffic>,
) -> Result<(), FilterError> {
    match filter {
        Filter::Address(mac) if !is_group(mac) => {
            groups.receive_for(mac, true).map_err(FilterError::Failed)?;
            let added = add_to_maps(filter, maps);
            if added.is_err() {
                let _ = groups.receive_for(mac, false);
            }
            added
        }
        Filter::Flow(rule) => {
            add_to_maps(filter, maps)?;
            host_traffic.map_or(Ok(()), |local| local.add(rule)).map_err(|error| {
                maps.remove(filter);
                FilterError::Failed(error.into())
            })
        }
        Filter::Address(_) | Filter::AllGroups | Filter::Everything => {
            groups.change(filter, true).map_err(FilterError::Failed)
        }
    }
}

/// The packets of a flow without room go to the kernel. A copy for the server would not change that.
fn add_to_maps(filter: &Filter, maps: &mut impl ProgramMaps) -> Result<(), FilterError> {
    maps.add(filter).map_err(|error| match error {
        FilterError::Full => FilterError::NoRoom,
        other => other,
    })
}

/// Removes a filter.
pub(crate) fn remove_filter(
    filter: &Filter,
    maps: &mut impl ProgramMaps,
    groups: &mut Groups,
    host_traffic: Option<&HostTraffic>,
) {
    // Only an interface that is gone refuses this.
    let _ = match filter {
        Filter::Address(mac) if !is_group(mac) => {
            maps.remove(filter);
            groups.receive_for(mac, false)
        }
        Filter::Flow(rule) => {
            if let Some(local) = host_traffic {
                local.remove(rule);
            }
            maps.remove(filter);
            Ok(())
        }
        Filter::Address(_) | Filter::AllGroups | Filter::Everything => groups.change(filter, false),
    };
}

//! The owned addresses and flows, in the maps that the programs read.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use towpath_bpf::{Error, Map, MapKind};

use super::key::{self, KEY_BYTES, Key};
use super::program::{MASKS_BYTES, MapFds};
use super::tables::{FLOWS, Tables};
use crate::{Filter, FilterError, is_group};

/// The most MAC addresses.
pub(super) const MACS: u32 = 4096;
/// The names of the maps, as those of [`super::PROGRAM`].
pub(super) const ADDRESSES: &str = "device-map-macs-1";
pub(super) const FLOW_MASKS: [&str; 2] = ["device-map-masks-1", "device-map-masks-1-spans"];
pub(super) const FLOW_KEYS: &str = "device-map-flows-1";
/// The owner of a flow, or of a hardware queue, that belongs to no one session.
pub(super) const NO_OWNER: [u8; 4] = [0; 4];
/// A MAC address in its map: six bytes and two zeros.
pub(super) const MAC_KEY_BYTES: usize = 8;

/// The owned addresses and flows, in the maps that the programs read.
pub(super) struct Flows {
    pub(super) maps: Maps,
    pub(super) tables: Tables,
    /// The addresses in the map that this server added.
    macs: usize,
    /// What an earlier server added, and this one has not added so far.
    earlier: Earlier,
}

/// Addresses and flows of an earlier server.
#[derive(Default)]
struct Earlier {
    macs: HashSet<Vec<u8>>,
    flows: HashSet<Key>,
}

/// The maps.
pub(super) struct Maps {
    pub(super) macs: Map,
    pub(super) masks: Map,
    pub(super) flows: Map,
}

impl Flows {
    pub(super) fn new() -> Result<Flows, Error> {
        let maps = Maps {
            macs: Map::create(MapKind::Hash, "towpath_macs", MAC_KEY_BYTES, 4, MACS)?,
            masks: Map::create(MapKind::Array, "towpath_masks", 4, MASKS_BYTES, 1)?,
            flows: Map::create(MapKind::Hash, "towpath_flows", KEY_BYTES, 4, FLOWS)?,
        };
        Ok(Flows { maps, tables: Tables::default(), macs: 0, earlier: Earlier::default() })
    }

    /// Goes on with the maps of an earlier server.
    pub(super) fn of_earlier_server(maps: Maps) -> Result<Flows, Error> {
        let masks = maps.masks.lookup(&0u32.to_ne_bytes())?.unwrap_or_default();
        let mut tables = Tables::of_masks(&masks);
        let macs = maps.macs.keys()?.into_iter().collect();
        let mut earlier = Earlier { macs, flows: HashSet::new() };
        for bytes in maps.flows.keys()? {
            let Ok(key) = Key::try_from(&bytes[..]) else { continue };
            if tables.add_earlier(key) {
                earlier.flows.insert(key);
            } else {
                // That server was killed while it added or removed the flow.
                maps.flows.delete(&key)?;
            }
        }
        tables.free_unused_masks();
        Ok(Flows { maps, tables, macs: 0, earlier })
    }

    pub(super) fn remove_earlier(&mut self) {
        let Earlier { macs, flows } = std::mem::take(&mut self.earlier);
        // The kernel refuses nothing of this.
        for mac in macs {
            let _ = self.maps.macs.delete(&mac);
        }
        for key in flows {
            if self.tables.remove(&key) {
                let _ = self.maps.set_masks(&self.tables.masks(None));
            }
            let _ = self.maps.flows.delete(&key);
        }
    }

    pub(super) fn maps(&self, spans: bool) -> [(&'static str, BorrowedFd<'_>); 3] {
        let Maps { macs, masks, flows } = &self.maps;
        [(ADDRESSES, macs), (FLOW_MASKS[usize::from(spans)], masks), (FLOW_KEYS, flows)]
            .map(|(name, map)| (name, map.as_fd()))
    }

    /// Adds an address or a flow.
    pub(super) fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        let maps = &self.maps;
        match filter {
            Filter::Address(mac) => {
                let key = mac_key(mac);
                self.earlier.macs.remove(&key[..]);
                maps.macs.update(&key, &[0; 4]).map_err(refused)?;
                self.macs += 1;
                Ok(())
            }
            Filter::Flow(rule) => {
                let (fields, mask) = key::of_rule(rule);
                let number = self.tables.number_of(&mask).ok_or(FilterError::Full)?;
                let key = key::key(&fields, number as u32);
                self.earlier.flows.remove(&key);
                if self.tables.flows.contains_key(&key) {
                    return Ok(());
                }
                let is_new = self.tables.masks[number].is_none();
                maps.flows.update(&key, &NO_OWNER).map_err(refused)?;
                self.tables.add(key, number, mask);
                // The program may run during the change of a mask, so it sees a new one only when
                // it is complete.
                let steps: &[_] = if is_new { &[Some(number), None] } else { &[] };
                for not_yet in steps {
                    if let Err(error) = maps.set_masks(&self.tables.masks(*not_yet)) {
                        self.tables.remove(&key);
                        let _ = maps.flows.delete(&key);
                        return Err(refused(error));
                    }
                }
                Ok(())
            }
            Filter::AllGroups | Filter::Everything => Err(FilterError::Unsupported),
        }
    }

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`. Addresses of
    /// groups need none.
    pub(super) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        let is_address = |one: &&Filter| matches!(one, Filter::Address(mac) if !is_group(mac));
        let addresses = |filters: &[Filter]| filters.iter().filter(is_address).count();
        let kept = (self.macs + self.earlier.macs.len()).saturating_sub(addresses(removed));
        kept + addresses(wanted) <= MACS as usize && self.tables.would_have_room(wanted, removed)
    }

    /// Removes an address or a flow.
    pub(super) fn remove(&mut self, filter: &Filter) {
        let maps = &self.maps;
        // The kernel refuses nothing of this, apart from entries that are not there.
        let _ = match filter {
            Filter::Address(mac) => {
                self.macs = self.macs.saturating_sub(1);
                maps.macs.delete(&mac_key(mac))
            }
            Filter::Flow(rule) => {
                let (fields, mask) = key::of_rule(rule);
                let Some(number) = self.tables.number_of(&mask) else { return };
                let key = key::key(&fields, number as u32);
                if self.tables.remove(&key) {
                    let _ = maps.set_masks(&self.tables.masks(None));
                }
                maps.flows.delete(&key)
            }
            Filter::AllGroups | Filter::Everything => return,
        };
    }
}

impl Maps {
    pub(super) fn fds(&self) -> MapFds {
        MapFds { macs: fd(&self.macs), masks: fd(&self.masks), flows: fd(&self.flows) }
    }

    fn set_masks(&self, masks: &[u8]) -> Result<(), Error> {
        self.masks.update(&0u32.to_ne_bytes(), masks)
    }
}

/// Returns the descriptor of a map, as a program names it.
pub(super) fn fd(map: &Map) -> i32 {
    map.as_fd().as_raw_fd()
}

/// Returns a MAC address as its map holds it.
pub(super) fn mac_key(mac: &[u8; 6]) -> [u8; MAC_KEY_BYTES] {
    let [a, b, c, d, e, f] = *mac;
    [a, b, c, d, e, f, 0, 0]
}

/// A map without room is no room for the filter.
pub(super) fn refused(error: Error) -> FilterError {
    match error.errno() {
        Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => FilterError::Full,
        _ => FilterError::Failed(error.into()),
    }
}

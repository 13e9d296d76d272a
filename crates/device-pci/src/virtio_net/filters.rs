//! The filters for received packets, as commands of the control virtqueue (virtio 1.2, 5.1.6.5.1 and
//! 5.1.6.5.2).

use towpath_device::is_group;

use super::names::*;

/// The most addresses. A device may have room for fewer, and then receives packets to all.
const MOST_ADDRESSES: usize = 32;
const BROADCAST: [u8; 6] = [0xff; 6];

/// The filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters {
    addresses: Vec<[u8; 6]>,
    /// `true` while the device receives packets to all groups.
    pub(super) groups: bool,
    /// `true` while the device receives every packet.
    pub(super) everything: bool,
}

impl Filters {
    /// Adds an address. Returns `true` if there is room.
    pub(super) fn add(&mut self, address: [u8; 6]) -> bool {
        let has_room = self.addresses.len() < MOST_ADDRESSES;
        if has_room {
            self.addresses.push(address);
        }
        has_room
    }

    /// Returns `true` if there is room for `wanted` more addresses after the removal of `removed` addresses.
    pub(super) fn would_have_room(&self, wanted: usize, removed: usize) -> bool {
        self.addresses.len().saturating_sub(removed) + wanted <= MOST_ADDRESSES
    }

    /// Removes an address.
    pub(super) fn remove(&mut self, address: [u8; 6]) {
        self.addresses.retain(|one| *one != address);
    }

    /// Returns the tables of addresses: those of hosts, then those of groups, each behind its number.
    pub(super) fn table(&self) -> Vec<u8> {
        let (groups, hosts): (Vec<[u8; 6]>, Vec<_>) =
            self.addresses.iter().partition(|one| is_group(one));
        let mut bytes = Vec::new();
        for table in [hosts, groups] {
            bytes.extend((table.len() as u32).to_le_bytes());
            bytes.extend(table.into_iter().flatten());
        }
        bytes
    }

    /// Returns the commands of `CLASS_RX`, each with its state. What lets packets in comes first while it is
    /// switched on, and [`RX_EVERYTHING`] stays until the others are set.
    pub(super) fn modes(&self) -> [(u8, bool); 5] {
        let Filters { addresses, groups, everything } = self;
        let has = |is_it: &dyn Fn(&[u8; 6]) -> bool| addresses.iter().any(is_it);
        [
            (RX_NO_UNICAST, !(*everything || has(&|one| !is_group(one)))),
            (RX_NO_GROUPS, !(*everything || *groups || has(&is_group))),
            (RX_NO_BROADCAST, !(*everything || *groups || has(&|one| *one == BROADCAST))),
            (RX_ALL_GROUPS, *everything || *groups),
            (RX_EVERYTHING, *everything),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [u8; 6] = [2, 3, 4, 5, 6, 7];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

    fn on(filters: &Filters) -> Vec<u8> {
        filters
            .modes()
            .into_iter()
            .filter(|(_, is_on)| *is_on)
            .map(|(command, _)| command)
            .collect()
    }

    #[test]
    fn nothing_is_received_without_filters() {
        let mut filters = Filters::default();
        assert_eq!(on(&filters), [RX_NO_UNICAST, RX_NO_GROUPS, RX_NO_BROADCAST]);
        filters.add(HOST);
        assert_eq!(on(&filters), [RX_NO_GROUPS, RX_NO_BROADCAST]);
        filters.add(GROUP);
        assert_eq!(on(&filters), [RX_NO_BROADCAST]);
        filters.add(BROADCAST);
        assert_eq!(on(&filters), []);
        filters.remove(BROADCAST);
        filters.groups = true;
        assert_eq!(on(&filters), [RX_ALL_GROUPS]);
        filters = Filters { everything: true, ..Filters::default() };
        assert_eq!(on(&filters), [RX_ALL_GROUPS, RX_EVERYTHING]);
    }

    #[test]
    fn addresses_of_hosts_and_groups_are_in_tables_of_their_own() {
        let mut filters = Filters::default();
        assert_eq!(filters.table(), [0; 8]);
        assert!(filters.add(GROUP) && filters.add(HOST));
        let expected = [&[1, 0, 0, 0][..], &HOST, &[1, 0, 0, 0], &GROUP].concat();
        assert_eq!(filters.table(), expected);
        assert!((2..32).all(|number| filters.add([2, 0, 0, 0, 0, number])));
        assert!(!filters.add([2, 0, 0, 0, 0, 99]) && !filters.would_have_room(1, 0));
        assert!(filters.would_have_room(2, 2) && !filters.would_have_room(3, 2));
        filters.remove(HOST);
        assert!(filters.add([2, 0, 0, 0, 0, 99]));
    }
}

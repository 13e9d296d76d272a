//! The check of a device's filters.

use towpath_device::{Filter, FilterError, FlowRule, Meta};
use towpath_packet::build::Flow;

use super::far::FarEnd;
use super::near::{FAR_MAC, NEAR_MAC, Near, drain};

/// Another host's address, and a group's.
const OTHER_MAC: [u8; 6] = [0x02, 0xc0, 0, 0, 0, 3];
const GROUP_MAC: [u8; 6] = [0x01, 0, 0x5e, 1, 2, 3];
/// The port of the flow that the device lets in throughout, and another one.
const PORT: u16 = 2000;
const OTHER_PORT: u16 = 2001;

/// The destinations of the suite's frames: address and port.
const DESTINATIONS: [([u8; 6], u16); 5] = [
    (NEAR_MAC, PORT),
    (NEAR_MAC, OTHER_PORT),
    (OTHER_MAC, PORT),
    (GROUP_MAC, PORT),
    ([0xff; 6], PORT),
];

/// The filters that the device has beside [`Filter::Everything`].
struct State {
    by_address: bool,
    by_flow: bool,
    has: Vec<Filter>,
}

impl State {
    /// Adds a filter. Returns whether the device filters by its kind.
    fn add(&mut self, near: &mut Near, filter: Filter) -> bool {
        match near.device.add_filter(&filter) {
            Ok(()) => self.has.push(filter),
            Err(FilterError::Unsupported) => return false,
            Err(error) => panic!("{}: {filter:?}: {error}", near.what()),
        }
        true
    }

    fn remove(&mut self, near: &mut Near, filter: Filter) {
        near.device.remove_filter(&filter);
        self.has.retain(|one| *one != filter);
    }

    /// Checks which destinations the device lets in.
    fn check(&self, near: &mut Near, far: &mut dyn FarEnd) {
        let has = |filter| self.has.contains(&filter);
        let expected = DESTINATIONS.map(|(mac, port)| {
            let group = mac[0] & 1 != 0;
            let address = has(Filter::Address(mac)) || group && has(Filter::AllGroups);
            (address || !self.by_address) && (group || has(to(port)) || !self.by_flow)
        });
        assert_eq!(let_in(near, far), expected, "{}: with {:?}", near.what(), self.has);
    }
}

/// Returns the filter for packets to a port.
fn to(port: u16) -> Filter {
    Filter::Flow(FlowRule { port: Some(port), ..FlowRule::default() })
}

/// Checks that each filter lets in what it names, and that its removal ends that. A device that
/// does not filter by a kind receives packets with any value of it. The device begins with
/// [`Filter::Everything`] if it filters.
pub(super) fn filters(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    let all = [true; DESTINATIONS.len()];
    assert_eq!(let_in(near, far), all, "{}: everything", near.what());
    let mut state = State { by_address: false, by_flow: false, has: Vec::new() };
    state.by_address = state.add(near, Filter::Address(NEAR_MAC));
    state.by_flow = state.add(near, to(PORT));
    if !state.by_address && !state.by_flow {
        return;
    }
    assert_eq!(let_in(near, far), all, "{}: everything, and some", near.what());
    near.device.remove_filter(&Filter::Everything);
    state.check(near, far);
    let more =
        [Filter::Address(OTHER_MAC), Filter::Address(GROUP_MAC), Filter::AllGroups, to(OTHER_PORT)];
    for filter in more {
        if state.add(near, filter) {
            state.check(near, far);
            state.remove(near, filter);
            state.check(near, far);
        }
    }
    near.reset();
    near.provide();
    state.check(near, far);
}

/// Sends a frame to each destination, and then one that the device lets in throughout. Returns
/// which of the former the device let in.
fn let_in(near: &mut Near, far: &mut dyn FarEnd) -> [bool; DESTINATIONS.len()] {
    let frame =
        |mac, port, payload: &[u8]| Flow::v4().macs(FAR_MAC, mac).ports(1, port).udp(payload);
    let frames = DESTINATIONS.map(|(mac, port)| frame(mac, port, &[5; 30]));
    let last = frame(NEAR_MAC, PORT, &[6; 30]);
    let mut sent = 0;
    let received = near.run_until("a frame that the device lets in", |_, received| {
        while sent <= frames.len() && far.send(frames.get(sent).unwrap_or(&last), Meta::FULL) {
            sent += 1;
        }
        // A far end that is a device itself works only when the suite calls it.
        drain(far, &mut Vec::new());
        received.iter().any(|(frame, _)| *frame == last)
    });
    frames.map(|frame| received.iter().any(|(one, _)| *one == frame))
}

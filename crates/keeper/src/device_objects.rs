//! The names of a device's objects in the store. Each server adds its number, so the keeper can hold
//! its objects and those of the earlier server at once.

use std::os::fd::OwnedFd;

use towpath_device::EarlierObjects;

/// The beginning of the names of all objects of devices.
const DEVICE: &str = "device-";

/// Returns the name of an object of the device of a server.
#[must_use]
pub fn stored_name(name: &str, server: u32) -> String {
    format!("{name}.{server}")
}

/// Returns the object's own name and the number of its server, if a device's object has this name.
pub(super) fn parse(name: &str) -> Option<(&str, u32)> {
    let (name, server) = name.rsplit_once('.').unwrap_or((name, ""));
    name.starts_with(DEVICE).then(|| (name, server.parse().unwrap_or(0)))
}

/// Takes the objects of earlier servers' devices out of what a keeper holds. `after_crash`: the last
/// server crashed or hung.
#[must_use]
pub fn take_device_objects(left: &mut Vec<(String, OwnedFd)>, after_crash: bool) -> EarlierObjects {
    let mut earlier = EarlierObjects::new(after_crash);
    for (name, object) in left.extract_if(.., |(name, _)| parse(name).is_some()) {
        if let Some((name, server)) = parse(&name) {
            earlier.add(name, server, object);
        }
    }
    earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_number_of_their_server() {
        let name = stored_name("device-socket-3", 12);
        assert_eq!(parse(&name), Some(("device-socket-3", 12)));
        assert_eq!(parse("device-xdp"), Some(("device-xdp", 0)));
        assert_eq!(parse("session-1.2"), None);
    }
}

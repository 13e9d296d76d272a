//! Devices that filter, in checks of something else.

use towpath_device::{Device, Filter, FilterError};

/// Makes a device that filters receive all packets.
pub(super) fn receive_everything(device: &mut dyn Device) {
    match device.add_filter(&Filter::Everything) {
        Ok(()) | Err(FilterError::Unsupported) => {}
        Err(error) => panic!("a device that filters receives everything: {error}"),
    }
}

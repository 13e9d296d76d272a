//! The end of an endpoint's flow rule: in the table of rules, and in the device.

use crate::control::Control;
use crate::control_endpoint::ControlEndpoint;
use crate::filters;

impl Control {
    /// Forgets the flow rule of an endpoint, and removes its filters from the device.
    pub(crate) fn forget_rule(&mut self, opened: &ControlEndpoint) {
        if opened.revoked {
            return;
        }
        self.device.release(&filters::of_endpoint(opened));
        self.addresses.rules_mut().forget(opened);
    }
}

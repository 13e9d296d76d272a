//! The control part of the device: the control thread takes its events, tells the engine of them,
//! registers memory, and tells the device what applications receive.

use std::io;

use towpath_device::{
    Access, DeviceError, Event, Filter, FilterError, HardwareQueues, Registration,
};
use towpath_protocol::message::Refusal;
use tracing::{info, warn};

use crate::account::Party;
use crate::connection::Refused;
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::session::Session;
use crate::engines::Reply;

/// Events that the control thread takes per wake-up.
const EVENTS: usize = 16;
/// What an application reads if the device has no room for one of its filters.
const NO_ROOM: &str = "the device has no room for another filter, and cannot receive everything \
                       instead; close an endpoint or a session";

impl Control {
    /// Registers the memory from which a session sends, for all of its parts. If the device
    /// refuses, the engines copy.
    pub(crate) fn register(&mut self, sessions: &mut [Session]) {
        // A device that does not send in place never reads this memory.
        if !self.parts.info.can.tx_in_place {
            return;
        }
        let Some(dma) = self.parts.device.dma() else { return };
        let Some(first) = sessions.first() else { return };
        match Registration::new(&dma, &first.transmit_pool, Access::Read) {
            Ok(registration) => {
                sessions.iter_mut().for_each(|one| one.registration = Some(registration.clone()));
            }
            Err(error) => {
                if self.log.allows(Party::Administrator(self.own_uid)) {
                    warn!(session = first.number, "{error}: the server copies what it sends");
                }
            }
        }
    }

    /// Tells the device what an application is about to receive.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn claim(&mut self, what: &str, filters: &[Filter]) -> Result<(), Refused> {
        // Filters of freed leases are not worth a device that receives everything.
        if !self.freed.is_empty() && self.claim_before_freed(filters) {
            return Ok(());
        }
        let claimed = self.filters.claim_all(&mut *self.parts.device, filters);
        claimed.map_err(|error| match error {
            FilterError::Full | FilterError::NoRoom => {
                (Refusal::Limit, format!("{what}: {NO_ROOM}"))
            }
            other => (Refusal::Limit, format!("{what}: {other}")),
        })
    }

    /// Tells the device what an application receives no more.
    pub(crate) fn release(&mut self, filters: &[Filter]) {
        self.filters.release_all(&mut *self.parts.device, filters);
    }

    /// Takes events of the device. The descriptor stays readable while there are more.
    pub(crate) fn device_events(&mut self) {
        for _ in 0..EVENTS {
            let Some(event) = self.parts.device.take_event() else { return };
            self.device_event(event);
        }
    }

    fn device_event(&mut self, event: Event) {
        let device = self.parts.device_name.clone();
        let interface = self.parts.info.name.clone();
        match event {
            Event::Link { up } => {
                if up {
                    info!(device, interface, "the link is up");
                } else {
                    warn!(device, interface, "the link is down");
                }
                self.command(Command::Link { up }, Reply::Nothing);
            }
            Event::Mtu(bytes) => {
                // The memory of the engine has room for the MTU of its start.
                let most = self.parts.device.info().mtu;
                if bytes > most {
                    warn!(
                        device,
                        interface,
                        mtu = bytes,
                        "the MTU grew: {most} holds until a new start"
                    );
                } else {
                    info!(device, interface, mtu = bytes, "the MTU changed");
                }
                self.parts.info.mtu = bytes.min(most);
                self.command(Command::Mtu { bytes }, Reply::Nothing);
            }
            Event::Address(mac) => {
                info!(device, interface, ?mac, "the device's address changed");
                self.parts.info.mac = mac;
            }
            Event::Name(name) => {
                info!(
                    device,
                    interface = name,
                    "the interface {interface} has the name {name} now"
                );
                if let Some(host) = &mut self.parts.host {
                    host.rename(&name);
                }
                self.parts.info.name = name;
            }
            Event::HardwareQueues(queues) => self.queues_changed(interface, queues),
            Event::Removed => {
                let cause = io::Error::from(rustix::io::Errno::NODEV);
                self.failed.get_or_insert(DeviceError::Gone { name: interface, cause });
                self.stop();
            }
        }
    }

    /// Leaves if the interface has more hardware queues than the device serves, so that the next server serves all. If
    /// that is not possible, logs the remedy.
    fn queues_changed(&mut self, interface: String, queues: HardwareQueues) {
        let device = self.parts.device_name.clone();
        let HardwareQueues { present, served, .. } = queues;
        let before = self.hardware_queues.replace(queues).map_or(0, unserved);
        if present <= served {
            // The kernel removes no queue that has a socket.
            if before > 0 {
                info!(
                    device,
                    interface, "the server has sockets on all hardware queues again: {present}"
                );
            }
            return;
        }
        if self.leave_for_added_queues() {
            return;
        }
        warn!(
            device,
            interface,
            "{interface} has {present} hardware queues, and the server has sockets on {served}: packets for \
             applications that arrive on other queues are dropped and counted (rx_dropped_driver); set {served} queues \
             (ethtool -L {interface}), or have another server start with room for all (towpath upgrade)"
        );
    }

    /// Leaves if the interface has more hardware queues than the device serves, and the next server can serve all.
    /// Returns `true` if the server leaves. While a session has an own queue, the server stays, because that session
    /// would end. After the session's end, the server stays until the device serves the queue again, because the next
    /// server could have no socket on the queue before.
    pub(crate) fn leave_for_added_queues(&mut self) -> bool {
        let Some(queues) = self.hardware_queues.filter(|queues| unserved(*queues) > 0) else {
            return false;
        };
        let HardwareQueues { present, served, can_serve_all } = queues;
        let may_leave = self.parts.leaves_after_changes && can_serve_all && !self.stopping;
        if !may_leave || !self.own_queues.are_all_back() {
            return false;
        }
        let what = format!(
            "it has {present} hardware queues, and had {served}; the next server makes sockets for all of them"
        );
        let (device, interface) = (self.parts.device_name.clone(), self.parts.info.name.clone());
        warn!(device, interface, "the interface has changed: {what}");
        self.failed.get_or_insert(DeviceError::Changed { name: interface, what });
        self.leave();
        true
    }
}

/// Returns the number of hardware queues that receive packets and that the device does not serve.
pub(crate) fn unserved(queues: HardwareQueues) -> u32 {
    queues.present.saturating_sub(queues.served)
}

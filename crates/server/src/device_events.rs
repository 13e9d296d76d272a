//! The events of the device: the control thread tells the engine of them.

use std::io;

use towpath_device::{DeviceError, Event, HardwareQueues};
use towpath_engine::commands::Command;
use towpath_engine::session::Session;
use tracing::{info, warn};

use crate::control::Control;
use crate::device_control::unserved;
use crate::engines::Reply;

/// Events that the control thread takes per wake-up.
const EVENTS: usize = 16;

impl Control {
    /// Registers the memory from which a session sends. If the device refuses, the engines copy.
    pub(crate) fn register(&mut self, sessions: &mut [Session]) {
        let Err(error) = self.device.register(sessions) else { return };
        if self.access.allows_own_line() {
            let session = sessions.first().map(|first| first.number());
            warn!(session, "{error}: the server copies what it sends");
        }
    }

    /// Takes events of the device. The descriptor stays readable while there are more.
    pub(crate) fn device_events(&mut self) {
        for _ in 0..EVENTS {
            let Some(event) = self.device.device_mut().take_event() else { return };
            self.device_event(event);
        }
    }

    fn device_event(&mut self, event: Event) {
        let device = self.device.log_name().to_owned();
        let interface = self.device.name().to_owned();
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
                let most = self.device.set_mtu(bytes);
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
                self.command(Command::Mtu { bytes }, Reply::Nothing);
            }
            Event::Address(mac) => {
                info!(device, interface, ?mac, "the device's address changed");
                self.device.set_mac(mac);
            }
            Event::Name(name) => {
                info!(
                    device,
                    interface = name,
                    "the interface {interface} has the name {name} now"
                );
                if let Some(host) = self.addresses.host_mut() {
                    host.rename(&name);
                }
                self.device.rename(name);
            }
            Event::HardwareQueues(queues) => self.queues_changed(interface, queues),
            Event::Removed => {
                let cause = io::Error::from(rustix::io::Errno::NODEV);
                self.server_run.fail(DeviceError::Gone { name: interface, cause });
                self.stop();
            }
        }
    }

    /// Leaves if the interface has more hardware queues than the device serves, so that the next server serves all. If
    /// that is not possible, logs the remedy.
    fn queues_changed(&mut self, interface: String, queues: HardwareQueues) {
        let device = self.device.log_name().to_owned();
        let HardwareQueues { present, served, .. } = queues;
        let before = self.device.set_hardware_queues(queues).map_or(0, unserved);
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
        let Some(queues) = self.device.unserved_queues() else { return false };
        let HardwareQueues { present, served, can_serve_all } = queues;
        let may_leave = can_serve_all && self.server_run.may_leave_after_change();
        if !may_leave || !self.device.own_queues().are_all_back() {
            return false;
        }
        let what = format!(
            "it has {present} hardware queues, and had {served}; the next server makes sockets for all of them"
        );
        let (device, interface) =
            (self.device.log_name().to_owned(), self.device.name().to_owned());
        warn!(device, interface, "the interface has changed: {what}");
        self.server_run.fail(DeviceError::Changed { name: interface, what });
        self.leave();
        true
    }
}

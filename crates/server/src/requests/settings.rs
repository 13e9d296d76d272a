//! Settings of the device and of endpoints.

use towpath_engine::commands::Command;
use towpath_protocol::message::{Refusal, Set};
use towpath_protocol::settings::{Scope, Setting, SettingError};
use tracing::{debug, info};

use crate::connection::Connection;
use crate::control::Control;
use crate::control_session::ControlSession;
use crate::engines::Reply;
use crate::refusal::Refused;

impl Control {
    /// Changes a setting of the device or of an endpoint.
    pub(super) fn set(&mut self, token: u64, set: Set) -> Result<(), Refused> {
        let setting = Setting::numbered(set.setting).ok_or_else(|| {
            (Refusal::NotFound, format!("set: there is no setting {}", set.setting))
        })?;
        let (name, scope) = (setting.spec().name, setting.spec().scope);
        let connection = self.connections.get(token);
        let administrator = connection.is_some_and(|one| one.application.is_administrators());
        let uid = connection.map_or(0, |one| one.application.account.uid);
        let own =
            connection.and_then(Connection::live).is_some_and(|one| one.number == set.session);
        if !(administrator || own && scope == Scope::OwnEndpoint) {
            let text = format!(
                "set {name}: only root and the server's user may set it, over SOCKET.admin; run towpath set as one \
                 of them, with --socket and the path of --admin-socket if the server has one"
            );
            return Err((Refusal::Permission, text));
        }
        if set.reserved != 0 {
            return Err((Refusal::Malformed, "set: the reserved field must be 0".into()));
        }
        if scope == Scope::Device {
            self.set_device(setting, set, uid)?;
        } else {
            self.set_endpoint(setting, set, uid, administrator)?;
        }
        let command = Command::Set {
            setting,
            session: set.session,
            endpoint: set.endpoint,
            value: set.value,
        };
        self.command(command, Reply::Done(token));
        Ok(())
    }

    /// Changes a setting of the device, for an administrator.
    fn set_device(&mut self, setting: Setting, set: Set, uid: u32) -> Result<(), Refused> {
        let (name, value) = (setting.spec().name, setting.show(set.value));
        if (set.session, set.endpoint) != (0, 0) {
            let text = format!("set {name}: it is the device's, not an endpoint's");
            return Err((Refusal::NotFound, text));
        }
        if let Some(batch) = self.device.settings().exceeded_batch(setting, set.value) {
            let text = format!(
                "set {name}={value}: the server was started with a batch of {batch}; 1 to \
                 {batch} packets is possible"
            );
            return Err((Refusal::NotFound, text));
        }
        self.device.settings_mut().set(setting, set.value).map_err(not_set)?;
        info!(name, value, uid, "set");
        if setting == Setting::Notify {
            self.stop_mapping();
        }
        Ok(())
    }

    /// Changes a setting of an endpoint.
    fn set_endpoint(
        &mut self,
        setting: Setting,
        set: Set,
        uid: u32,
        administrator: bool,
    ) -> Result<(), Refused> {
        let (name, value) = (setting.spec().name, setting.show(set.value));
        let at = format!("{}/{}", set.session, set.endpoint);
        if set.session == 0 {
            let text = format!("set {name}: it is an endpoint's: name session and endpoint");
            return Err((Refusal::NotFound, text));
        }
        let not_found = || {
            let text = format!(
                "set {name}: there is no endpoint {at}, or its session is unclaimed; towpath \
                 ls shows all"
            );
            (Refusal::NotFound, text)
        };
        let ControlSession { endpoints, record, .. } =
            self.connections.living(set.session).ok_or_else(not_found)?;
        let opened = endpoints.get_mut(set.endpoint).filter(|opened| !opened.revoked);
        let opened = opened.ok_or_else(not_found)?;
        if setting == Setting::Priority && !administrator && set.value > opened.granted_priority {
            let given = opened.granted_priority;
            let text = format!(
                "set {name}={value}: above {given}, which it was given; only root and the \
                 server's user may"
            );
            return Err((Refusal::Permission, text));
        }
        opened.settings.set(setting, set.value).map_err(not_set)?;
        if setting == Setting::Priority && administrator {
            opened.granted_priority = set.value;
        }
        if let Some(record) = record {
            record.set(set.endpoint, &opened.settings, opened.granted_priority);
        }
        if administrator {
            info!(name, value, endpoint = at, uid, "set");
        } else {
            debug!(name, value, endpoint = at, uid, "set");
        }
        Ok(())
    }
}

fn not_set(error: SettingError) -> Refused {
    (Refusal::NotFound, format!("set {error}"))
}

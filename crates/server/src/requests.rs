//! The requests of a connection to the control thread, and their replies.

mod attach;
mod endpoints;
mod settings;

use towpath_memory::peer_words;
use towpath_protocol::message::{Cursor, Message, Refusal};
use towpath_protocol::settings::Setting;

use crate::connection::Refused;
use crate::control::Control;
use crate::events::unserved;
use crate::policy::Standing;
use crate::report;

impl Control {
    pub(crate) fn asked(&mut self, token: u64, message: Message) {
        let outcome = match message {
            Message::Attach(attach) => self.attach(token, &attach),
            Message::Mapped => self.mapped(token),
            Message::Open(open) => self.open(token, &open),
            Message::Close(close) => self.close(token, close.endpoint),
            Message::Report(cursor) => self.report(token, cursor),
            Message::Set(set) => self.set(token, set),
            Message::Resume(resume) => self.claim_session(token, resume),
            Message::CreateMemory(create) => self.create_memory(token, &create),
            Message::Export(export) => self.export(token, &export),
            Message::Import(import) => self.import(token, &import),
            Message::SetTripwire(set) => self.set_tripwire(token, &set),
            Message::ImportTripwire(import) => self.import_tripwire(token, &import),
            Message::Release(release) => self.release_object(token, release),
            Message::Attached(_)
            | Message::Opened(_)
            | Message::Reported(..)
            | Message::Created(_)
            | Message::Imported(_)
            | Message::Done
            | Message::Error(_) => {
                Err((Refusal::State, "this message is the server's to send".into()))
            }
        };
        if let Err(refused) = outcome {
            self.warn_of_rights(token, &refused);
            self.refuse(token, &refused);
        }
    }

    /// Warns root and the server's user if the applications' socket is the reason of a refusal.
    fn warn_of_rights(&mut self, token: u64, (refusal, text): &Refused) {
        let Some(connection) = self.connections.get(token) else { return };
        if *refusal == Refusal::Permission && !connection.is_administrators() {
            let (uid, pid) = (connection.peer.uid, connection.peer.pid);
            self.warn_of_admin_socket(uid, pid, text);
        }
    }

    fn report(&mut self, token: u64, cursor: Cursor) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        if cursor.reserved != 0 {
            return Err((Refusal::Malformed, "report: the reserved field must be 0".into()));
        }
        let all = connection.standing == Standing::Administrator;
        let user = connection.account.user();
        let lanes = self.parts.engines.lanes();
        let device = (cursor == Cursor::default()).then(|| report::Device {
            name: self.parts.info.name.clone(),
            mac: report::mac_text(self.parts.info.mac),
            mtu: self.parts.info.mtu,
            wait: Setting::Wait.show(self.parts.settings.get(Setting::Wait)),
            settings: self.parts.settings.shown(true).collect(),
            epoch: self.parts.epoch,
            uptime_s: self.started.elapsed().as_secs(),
            version: env!("CARGO_PKG_VERSION"),
            addresses: if self.parts.gives_addresses { self.parts.pool.size() } else { 0 },
            addresses_in_use: self.parts.pool.given(),
            total_bytes: Some(self.parts.policy.total_bytes).filter(|most| *most < usize::MAX),
            bytes_in_use: self.connections.bytes(),
            counters: report::device_counters(&self.parts.state_mapping, lanes),
            unserved_queues: self.hardware_queues.map_or(0, unserved),
            hardware: self.parts.device.statistics().into_iter().collect(),
            lanes: report::lane_counters(&self.parts.state_mapping, lanes),
        });
        let shown = self
            .connections
            .from(cursor.connection)
            .filter(|(_, one)| all || one.account.user() == user);
        let hosts = report::OtherHosts::new(self.parts.rdma.as_ref().map(peer_words));
        let context = report::Context { lanes, policy: &self.parts.policy, hosts };
        let (next, text) = report::page(device, &context, shown, cursor)
            .map_err(|error| (Refusal::Limit, format!("report: {error}")))?;
        self.answer(token, &Message::Reported(next, text));
        Ok(())
    }
}

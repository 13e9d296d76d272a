//! The requests of a connection to the control thread, and their replies.

mod attach;
pub(crate) mod endpoints;
mod replacement;
mod settings;

use towpath_memory::peer_words;
use towpath_protocol::message::{Cursor, Message, Refusal};
use towpath_protocol::settings::Setting;

use crate::application::Application;
use crate::control::Control;
use crate::device_control::unserved;
use crate::refusal::Refused;
use crate::report;

impl Control {
    pub(crate) fn dispatch(&mut self, token: u64, message: Message) {
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
            Message::HandOver => self.hand_over(token),
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
        let application = self.connections.get(token).map(|one| &one.application);
        if *refusal == Refusal::Permission
            && let Some(application) = application.filter(|one| !one.is_administrators())
        {
            let (uid, pid) = (application.peer.uid, application.peer.pid);
            self.access.warn_of_admin_socket(uid, pid, text);
        }
    }

    fn report(&mut self, token: u64, cursor: Cursor) -> Result<(), Refused> {
        if cursor.reserved != 0 {
            return Err((Refusal::Malformed, "report: the reserved field must be 0".into()));
        }
        let application = self.connections.get(token).map(|one| &one.application);
        let all = application.is_some_and(Application::is_administrators);
        let user = application.map(|one| one.account.user());
        let lanes = self.engines.lanes();
        let device = (cursor == Cursor::default()).then(|| report::Device {
            name: self.device.name().to_owned(),
            mac: report::mac_text(self.device.info().mac),
            mtu: self.device.info().mtu,
            wait: Setting::Wait.show(self.device.settings().values().get(Setting::Wait)),
            settings: self.device.settings().values().shown(true).collect(),
            epoch: self.server_run.epoch(),
            uptime_s: self.server_run.uptime().as_secs(),
            version: env!("CARGO_PKG_VERSION"),
            addresses: self.addresses.counts().0,
            addresses_in_use: self.addresses.counts().1,
            total_bytes: Some(self.access.policy().total_bytes).filter(|most| *most < usize::MAX),
            bytes_in_use: self.connections.usage().bytes(),
            connections: self.connection_counts(),
            counters: report::device_counters(self.pages.mapping(), lanes),
            unserved_queues: self.device.unserved_queues().map_or(0, unserved),
            hardware: self.device.device_mut().statistics().into_iter().collect(),
            lanes: report::lane_counters(self.pages.mapping(), lanes),
        });
        let shown = self
            .connections
            .from(cursor.connection)
            .filter(|(_, one)| all || Some(one.application.account.user()) == user);
        let hosts = report::OtherHosts::new(self.pages.rdma_ledger().map(peer_words));
        let context = report::Context { lanes, policy: self.access.policy(), hosts };
        let (next, text) = report::page(device, &context, shown, cursor)
            .map_err(|error| (Refusal::Limit, format!("report: {error}")))?;
        self.answer(token, &Message::Reported(next, text));
        Ok(())
    }

    fn connection_counts(&self) -> report::ConnectionCounts {
        let (closed_unread, closed_by_threads) = self.workers.closed();
        report::ConnectionCounts {
            refused: self.access.refused(),
            closed_unread,
            closed_by_threads,
        }
    }
}

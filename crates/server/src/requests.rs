//! The requests of a connection to the control thread, and their replies.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use towpath_device::Filter;
use towpath_memory::peer_words;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Attached, Cursor, Message, Open, Refusal, Set};
use towpath_protocol::settings::{Scope, Setting, SettingError};
use tracing::{debug, info};

use crate::addresses::{Holder, Lease, PoolError};
use crate::apertures::tables::ApertureTables;
use crate::connection::{Connection, Opened, Progress, Refused, oob_addresses, read_attach};
use crate::control::{Control, Parts};
use crate::engine::coalescing;
use crate::engine::commands::Command;
use crate::engine::demux::{Rule, SETS_PER_MAC};
use crate::engine::last_sent::LastSent;
use crate::engine::neighbours::MAX_REQUESTS;
use crate::engine::session::Endpoint;
use crate::engine::wake_data;
use crate::engines::Reply;
use crate::filters;
use crate::host::port_protocol;
use crate::open::read_open;
use crate::policy::{Limits, PortRange, Standing, Terms};
use crate::prepare::{self, Prepared, remove_stored, session_bytes};
use crate::report;
use crate::resume::record::Record;
use crate::rights::Rights;
use crate::worker::link::Packet;
use crate::worker::wire::command;

/// The memory of a session.
struct Made {
    prepared: Prepared,
    /// The descriptors for its application.
    handed: Vec<OwnedFd>,
    /// The record for a successor; `None` if none can resume the session.
    record: Option<Record>,
    apertures: Option<Box<ApertureTables>>,
}

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
            self.refuse(token, &refused);
        }
    }

    fn attach(&mut self, token: u64, attach: &message::Attach) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        if !matches!(connection.progress, Progress::New) {
            return Err((Refusal::State, "attach: this connection has a session already".into()));
        }
        let (shape, wanted, name) = read_attach(attach, connection.version)?;
        let lanes = self.parts.engines.lanes();
        shape
            .check_lanes(lanes)
            .map_err(|error| (Refusal::Limit, format!("attach: with {lanes} lanes: {error}")))?;
        let policy = &self.parts.policy;
        let terms = connection.terms.clone();
        let limits = policy.limits(&terms);
        let bytes = bytes_within(&limits, &shape, lanes)?;
        let (uid, account, standing) =
            (connection.peer.uid, connection.account, connection.standing);
        let shared = self.shares_host_addresses(attach.flags, wanted)?;
        let hardware = self.choose_own_queue(attach.flags, standing, &terms, &shape)?;
        // Sessions that share addresses use none up.
        let addresses = if shared { usize::MAX } else { self.parts.pool.size() };
        if let Some(text) = self.connections.is_full((policy, &limits), account, bytes, addresses) {
            return Err((Refusal::Limit, format!("attach: {text}")));
        }
        let holder = Holder { uid, name: name.clone() };
        let lease = match self.parts.host.as_ref().filter(|_| shared) {
            Some(host) => host.lease(&terms)?,
            None => {
                let lease = self.parts.pool.lease(&holder, wanted, &terms);
                lease.map_err(|error| (refusal_of(&error), format!("attach: {error}")))?
            }
        };
        // Another session's memory gets no packet for this one.
        self.direct(None);
        let address = [Filter::Address(lease.mac)];
        if let Err(refused) = self.claim("attach", &address) {
            self.parts.pool.release(&lease, holder);
            self.direct_if_alone();
            return Err(refused);
        }
        let number = self.next_number;
        let outcome = self.make_session(token, number, (&shape, lanes), (&name, &lease), hardware);
        let Made { prepared, handed, record, apertures } = match outcome {
            Ok(made) => made,
            Err(error) => {
                self.release(&address);
                self.parts.pool.release(&lease, holder);
                remove_stored(self.parts.store.as_mut(), number);
                self.direct_if_alone();
                return Err((Refusal::Limit, format!("attach: memory for the session: {error}")));
            }
        };
        self.next_number = self.next_number.wrapping_add(1).max(1);
        self.connections.give_number(token, number, bytes);
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        connection.own_queue = hardware;
        connection.record = record;
        if let Some(hardware) = hardware {
            self.own_queues.reserve(hardware);
        }
        connection.name = name;
        connection.lease = Some(lease);
        connection.shape = Some(shape);
        connection.endpoints = vec![None; shape.endpoints as usize];
        connection.apertures = apertures;
        connection.progress = Progress::Given(Box::new(prepared));
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let attached = self.attached(connection, &lease);
        self.answer_with(token, &Message::Attached(attached), handed, 0);
        Ok(())
    }

    /// Makes the memory of a session.
    fn make_session(
        &mut self,
        token: u64,
        number: u32,
        (shape, lanes): (&SessionShape, usize),
        (name, lease): (&str, &Lease),
        hardware: Option<u32>,
    ) -> io::Result<Made> {
        let store = self.parts.store.as_mut();
        let (mut prepared, handed) = Prepared::new(number, (*shape, lanes), &self.state, store)?;
        if let Some(headers) = self.own_queues.headers().filter(|_| hardware.is_some()) {
            prepared.join(headers)?;
        }
        let peer = self.connections.get(token).map(|connection| &connection.peer);
        let process = peer.and_then(|peer| Some((peer, peer.process.as_ref()?)));
        let process = process.filter(|_| hardware.is_none() && store.outlives_server());
        let mut made = None;
        if let Some((peer, process)) = process {
            let (record, file) = Record::create(number, (shape, lanes), peer, name, lease)?;
            prepare::store(store, number, prepare::RECORD, file.as_fd())?;
            prepare::store(store, number, prepare::PROCESS, process.as_fd())?;
            made = Some(record);
        }
        let apertures = self.make_apertures(number, shape, made.is_some(), &prepared)?;
        Ok(Made { prepared, handed, record: made, apertures })
    }

    /// Returns the reply to a granted session.
    pub(crate) fn attached(&self, connection: &Connection, lease: &Lease) -> Attached {
        let by_port = lease.shared || !connection.terms.allow_every_flow();
        let has_queue = connection.own_queue.is_some();
        let attached = attached(
            &self.parts,
            connection.number,
            (connection.trusted, by_port, has_queue),
            lease,
        );
        let is_resumable = connection.record.is_some();
        let flags = attached.flags | if is_resumable { message::RESUMABLE } else { 0 };
        Attached { flags, ..attached }
    }

    /// Returns `true` if a session shares the host's addresses, by the flags of its request and the
    /// address that it asks for.
    ///
    /// # Errors
    /// Fails if the server does not give addresses of the requested kind.
    fn shares_host_addresses(&self, flags: u32, wanted: Option<Ipv4Addr>) -> Result<bool, Refused> {
        let (own, shared) = (flags & message::ATTACH_OWN != 0, flags & message::ATTACH_SHARED != 0);
        let name = &self.parts.info.name;
        match (own || wanted.is_some(), shared) {
            (true, true) => {
                let text = "attach: a session has addresses of its own or shares the host's; ask for one kind";
                Err((Refusal::Malformed, text.to_owned()))
            }
            (true, false) if !self.parts.gives_addresses => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} gives no addresses of an application's own; \
                     ask for the host's (Addresses::Shared), or have the server give some (serve --lease)"
                ),
            )),
            (false, true) if self.parts.host.is_none() => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} does not share the host's addresses; ask for \
                     addresses of its own (Addresses::Own), or have the server share them (serve \
                     --share-host)"
                ),
            )),
            _ => Ok(shared || !self.parts.gives_addresses),
        }
    }

    fn mapped(&mut self, token: u64) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let prepared = match std::mem::replace(&mut connection.progress, Progress::Over) {
            Progress::Given(prepared) => prepared,
            other => {
                connection.progress = other;
                return Err((Refusal::State, "mapped: nothing was given to be mapped".into()));
            }
        };
        let data = wake_data(connection.number);
        let counter = self.free_counters.pop();
        connection.counter = counter;
        let descriptors = prepared.files_to_prepare().and_then(|files| {
            let (doorbell, armed) = (prepared.doorbell()?, prepared.armed()?);
            Ok((files, doorbell, armed))
        });
        connection.progress = Progress::Preparing(prepared);
        let (Ok((files, doorbell, armed)), Some(counter)) = (descriptors, counter) else {
            self.memory_ready(token, Err(Errno::MFILE.raw_os_error()));
            return Ok(());
        };
        let doorbell =
            Packet::new(command::OPEN_DOORBELL, token, u64::from(counter)).with(vec![doorbell]);
        self.tell_worker(token, doorbell);
        if let Some(armed) = armed {
            self.tell_worker(token, Packet::new(command::SEAL, token, 0).with(vec![armed]));
        }
        self.tell_worker(token, Packet::new(command::PREPARE_MEMORY, token, data).with(files));
        Ok(())
    }

    fn open(&mut self, token: u64, open: &Open) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        if !matches!(connection.progress, Progress::Lives) {
            return Err((Refusal::State, "open: there is no session on this connection".into()));
        }
        if let Some((number, port)) = connection.resumed_request(open.sequence) {
            // An earlier server carried the request out, and was killed before it answered.
            self.answer(token, &Message::Opened(message::Opened { endpoint: number, port }));
            return Ok(());
        }
        let mut opened = read_open(open, connection, self.parts.free_addresses)?;
        if let Some(lease) = connection.lease.filter(|_| self.parts.rdma.is_some()) {
            opened.allow_other_hosts(&lease, &connection.terms);
        }
        if self.parts.rdma.is_some() && opened.is_rdma() {
            let text = "open: UDP port 4791 is the server's, for connections with other hosts; choose \
                        another port";
            return Err((Refusal::InUse, text.to_owned()));
        }
        let number = connection.free_endpoint().ok_or_else(|| {
            let text = "open: the session has all endpoints that it asked for; attach with more";
            (Refusal::Limit, text.to_owned())
        })?;
        if opened.has_rule()
            && let Some(owner) = self.rules.get(&opened.rule)
        {
            let is_shared = connection.lease.is_some_and(|lease| lease.shared);
            let text = match opened.rule.port.filter(|_| is_shared) {
                Some(port) => format!(
                    "open: an application has port {port} already (session {owner}); choose another port"
                ),
                None => format!("open: session {owner} has an endpoint with the same flow rule"),
            };
            return Err((Refusal::InUse, text));
        }
        if opened.has_rule() && !self.rule_sets.has_room(&opened.rule) {
            let text = format!(
                "open: the flow rules of this MAC address give {SETS_PER_MAC} different sets of \
                 fields, which is the limit; give the same fields as another rule"
            );
            return Err((Refusal::Limit, text));
        }
        self.choose_port(token, &mut opened)?;
        if let Err(refused) = self.check_oob_addresses(token, &opened) {
            self.release_port(&opened);
            return Err(refused);
        }
        // The device receives the endpoint's packets before its application may expect them.
        self.claim_endpoint(token, &opened)?;
        let port = opened.rule.port.unwrap_or(0);
        if let Some(connection) = self.connections.get_mut(token) {
            connection.take_free_endpoint();
            if let Some(record) = &mut connection.record {
                let chosen = opened.rule.port.filter(|_| open.given & message::RULE_PORT != 0);
                let request = Open { port: chosen.unwrap_or(open.port), ..*open };
                record.open(number, &request, &opened.settings, opened.granted_priority);
            }
        }
        self.enter_endpoint(token, number, opened, Reply::Opened(token, number, port));
        Ok(())
    }

    /// Enters an endpoint under a number, and has the engines add it. The application may send when
    /// they have.
    pub(crate) fn enter_endpoint(
        &mut self,
        token: u64,
        number: u32,
        mut opened: Opened,
        reply: Reply,
    ) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let Some(lease) = connection.lease else { return };
        let session = connection.number;
        opened.oob = opened.oob_addresses(&lease.addresses());
        let rights = match opened.sends {
            false => Rights::nothing(),
            true if opened.is_for_neighbours => Rights::neighbours(lease.mac, lease.addresses()),
            true => Rights::new(opened.rule, lease.mac, lease.addresses())
                .with_any_role(connection.standing == Standing::Administrator),
        };
        let rights = if opened.within_vlan { rights.within_vlan() } else { rights };
        let endpoint = Endpoint {
            queue_pair: opened.queue_pair,
            rule: opened.rule,
            rights,
            coalescing: coalescing::UNSET,
            offload: opened.offload,
            within: opened.tag(),
            captures: opened.listening.is_some(),
            is_resumed: matches!(connection.progress, Progress::Unclaimed),
            iteration: 0,
            received: 0,
            requests_left: opened.is_for_neighbours.then_some(MAX_REQUESTS),
            last_sent: LastSent::default(),
            oob: opened.oob.clone().into(),
            reachable: opened.reachable.clone().into(),
        };
        self.oob_addresses.extend(&opened.oob);
        let (listening, group) = (opened.listening, opened.group);
        let mut commands = vec![Command::AddEndpoint {
            session,
            number,
            endpoint: Box::new(endpoint),
            listening,
            group,
        }];
        commands.extend(settings_of(&opened, (session, number)));
        let rule = opened.has_rule().then_some(opened.rule);
        connection.endpoints[number as usize] = Some(opened);
        if let Some(rule) = rule {
            self.rules.insert(rule, session);
            self.rule_sets.add(&rule);
        }
        let last = commands.pop();
        for command in commands {
            self.command(command, Reply::Nothing);
        }
        if let Some(last) = last {
            self.command(last, reply);
        }
    }

    /// Tells the device what an endpoint receives. The flow of a session with a hardware queue of
    /// its own is that queue's; packets that arrive elsewhere come as always.
    pub(crate) fn claim_endpoint(&mut self, token: u64, opened: &Opened) -> Result<(), Refused> {
        let filters = filters::of_endpoint(opened);
        if let Err(refused) = self.claim("open", &filters) {
            self.release_port(opened);
            return Err(refused);
        }
        let hardware = self.connections.get(token).and_then(|connection| connection.own_queue);
        let Some(hardware) = hardware.filter(|_| opened.has_rule()) else { return Ok(()) };
        let outcome = self.parts.device.own_flow(&filters::flow(&opened.rule), hardware);
        outcome.map_err(|error| {
            self.release(&filters);
            self.release_port(opened);
            (Refusal::Limit, format!("open: {error}"))
        })
    }

    /// Checks that no other endpoint has an address of this one for out-of-band messages.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn check_oob_addresses(&self, token: u64, opened: &Opened) -> Result<(), Refused> {
        let lease = self.connections.get(token).and_then(|connection| connection.lease);
        let Some(lease) = lease.filter(|_| opened.out_of_band) else { return Ok(()) };
        let addresses = opened.oob_addresses(&lease.addresses());
        if addresses.is_empty() {
            let text = "open: out-of-band messages at an address that was not given to the session; \
                        leave the address out of the rule";
            return Err((Refusal::Permission, text.to_owned()));
        }
        match addresses.iter().find(|address| self.oob_addresses.contains(address)) {
            Some(address) => {
                let text = format!(
                    "open: another endpoint takes out-of-band messages at {address}; close it, or \
                     choose another port"
                );
                Err((Refusal::InUse, text))
            }
            None => Ok(()),
        }
    }

    /// Takes the port of a rule for an endpoint. Holds a port of the host's address in the kernel.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    fn choose_port(&mut self, token: u64, opened: &mut Opened) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let is_shared = connection.lease.is_some_and(|lease| lease.shared);
        if !opened.has_rule() || opened.rule.port.is_none() {
            return Ok(());
        }
        let terms = connection.terms.clone();
        let account = connection.account;
        if let Some(host) = self.parts.host.as_mut().filter(|_| is_shared) {
            let policy = &self.parts.policy;
            opened.rule.port = Some(host.hold(&opened.rule, account, &terms, policy)?);
        } else if opened.rule.port == Some(0) && port_protocol(&opened.rule).is_some() {
            let addresses = connection.lease.filter(|_| opened.out_of_band);
            let addresses = addresses.map(|lease| lease.addresses());
            let port = free_port(&opened.rule, &terms, |rule| {
                let mut oob = addresses.iter().flat_map(|session| oob_addresses(rule, session));
                self.rules.contains_key(rule) || oob.any(|one| self.oob_addresses.contains(&one))
            });
            let text = || "open: every port that your user may use is in use; close one".to_owned();
            opened.rule.port = Some(port.ok_or_else(|| (Refusal::Limit, text()))?);
        }
        Ok(())
    }

    /// Releases the host's port of an endpoint, if it has one. The engine has removed the endpoint.
    pub(crate) fn release_port(&mut self, opened: &Opened) {
        if let Some(host) = self.parts.host.as_mut().filter(|_| opened.has_rule()) {
            host.release(&opened.rule);
        }
    }

    fn close(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let Some(opened) = connection.take_out(number) else {
            return Err((Refusal::NotFound, format!("close: there is no endpoint {number}")));
        };
        if let Some(record) = &mut connection.record {
            record.close(number);
        }
        let session = connection.number;
        self.forget_rule(&opened);
        if opened.is_for_neighbours
            && let Some(host) = &mut self.parts.host
        {
            host.forget_endpoint((session, number));
        }
        // The port is another's once the endpoint sends no more. That of a revoked endpoint may be
        // another's already.
        let rule = (opened.has_rule() && !opened.revoked).then_some(opened.rule);
        let remove = Command::RemoveEndpoint { session, number };
        self.command(remove, Reply::Closed(Some(token), rule));
        Ok(())
    }

    /// Forgets the flow rule of an endpoint, and what the device receives for it.
    pub(crate) fn forget_rule(&mut self, opened: &Opened) {
        if opened.revoked {
            return;
        }
        self.release(&filters::of_endpoint(opened));
        if opened.has_rule() {
            self.rules.remove(&opened.rule);
            self.rule_sets.remove(&opened.rule);
        }
        for address in &opened.oob {
            self.oob_addresses.remove(address);
        }
    }

    fn report(&mut self, token: u64, cursor: Cursor) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        if cursor.reserved != 0 {
            return Err((Refusal::Malformed, "report: the reserved field must be 0".into()));
        }
        let all = connection.standing == Standing::Administrator;
        let uid = connection.peer.uid;
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
            counters: report::device_counters(&self.parts.state_mapping, lanes),
            hardware: self.parts.device.statistics().into_iter().collect(),
            lanes: report::lane_counters(&self.parts.state_mapping, lanes),
        });
        let shown =
            self.connections.from(cursor.connection).filter(|(_, one)| all || one.peer.uid == uid);
        let hosts = report::OtherHosts::new(self.parts.rdma.as_ref().map(peer_words));
        let context = report::Context { lanes, policy: &self.parts.policy, hosts };
        let (next, text) = report::page(device, &context, shown, cursor)
            .map_err(|error| (Refusal::Limit, format!("report: {error}")))?;
        self.answer(token, &Message::Reported(next, text));
        Ok(())
    }

    /// Changes a setting of the device or of an endpoint.
    fn set(&mut self, token: u64, set: Set) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let setting = Setting::numbered(set.setting).ok_or_else(|| {
            (Refusal::NotFound, format!("set: there is no setting {}", set.setting))
        })?;
        let (name, scope) = (setting.spec().name, setting.spec().scope);
        let administrator = connection.standing == Standing::Administrator;
        let own = set.session != 0
            && set.session == connection.number
            && matches!(connection.progress, Progress::Lives);
        if !(administrator || own && scope == Scope::OwnEndpoint) {
            let text = format!("set {name}: only root and the server's user may");
            return Err((Refusal::Permission, text));
        }
        if set.reserved != 0 {
            return Err((Refusal::Malformed, "set: the reserved field must be 0".into()));
        }
        if scope == Scope::Device {
            self.set_device(setting, set, connection.peer.uid)?;
        } else {
            self.set_endpoint(setting, set, connection.peer.uid, administrator)?;
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
        let batch = self.parts.batch;
        if setting == Setting::RxBatch
            && setting.check(set.value).is_ok()
            && set.value > batch as u64
        {
            let text = format!(
                "set {name}={value}: the server was started with a batch of {batch}; 1 to \
                 {batch} packets is possible"
            );
            return Err((Refusal::NotFound, text));
        }
        self.parts.settings.set(setting, set.value).map_err(not_set)?;
        self.parts.changed_settings.set(setting, set.value);
        info!(name, value, uid, "set");
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
        let opened = self
            .connections
            .living(set.session)
            .and_then(|one| one.endpoints.get_mut(set.endpoint as usize))
            .and_then(Option::as_mut)
            .filter(|opened| !opened.revoked)
            .ok_or_else(|| {
                let text = format!(
                    "set {name}: there is no endpoint {at}, or its session is unclaimed; towpath \
                     ls shows all"
                );
                (Refusal::NotFound, text)
            })?;
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
        let opened = opened.clone();
        if let Some(connection) = self.connections.living(set.session)
            && let Some(record) = &mut connection.record
        {
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

/// Returns the commands for the settings of an endpoint that were chosen, by the policy or by a
/// request.
fn settings_of(
    opened: &Opened,
    (session, endpoint): (u32, u32),
) -> impl Iterator<Item = Command> + '_ {
    let theirs = Setting::ALL.iter().filter(|(_, spec)| spec.scope != Scope::Device);
    let chosen = theirs.filter(|(setting, _)| opened.settings.is_chosen(*setting));
    chosen.map(move |(setting, _)| {
        let value = opened.settings.get(*setting);
        Command::Set { setting: *setting, session, endpoint, value }
    })
}

fn not_set(error: SettingError) -> Refused {
    (Refusal::NotFound, format!("set {error}"))
}

/// Returns the size of a session in bytes, if the policy allows such a session.
fn bytes_within(limits: &Limits, shape: &SessionShape, lanes: usize) -> Result<usize, Refused> {
    let bytes = session_bytes(shape, lanes);
    let most = limits.session_bytes;
    if bytes > most {
        let text = format!(
            "attach: the session needs {bytes} bytes, at most {most} are allowed; ask for fewer \
             or smaller queues and buffers"
        );
        return Err((Refusal::Limit, text));
    }
    let most = limits.endpoints_per_session;
    if shape.endpoints > most {
        let text = format!(
            "attach: {} endpoints; at most {most} are allowed; ask for fewer",
            shape.endpoints
        );
        return Err((Refusal::Limit, text));
    }
    Ok(bytes)
}

/// Returns a port for a rule without one: of those that the terms name, or else of the dynamic
/// ports (RFC 6335, 6).
fn free_port(rule: &Rule, terms: &Terms, is_taken: impl Fn(&Rule) -> bool) -> Option<u16> {
    let dynamic = PortRange { protocol: rule.protocol?, first: 49_152, last: u16::MAX };
    let ranges = terms.ports.as_deref().unwrap_or(std::slice::from_ref(&dynamic));
    let theirs = ranges.iter().filter(|range| range.protocol == dynamic.protocol);
    let mut ports = theirs.flat_map(|range| range.first.max(1)..=range.last);
    ports.find(|port| !is_taken(&Rule { port: Some(*port), ..*rule }))
}

/// Returns the kind of refusal for a session without addresses.
fn refusal_of(error: &PoolError) -> Refusal {
    match error {
        PoolError::InUse(_) | PoolError::Lately(_) => Refusal::InUse,
        PoolError::Outside(_) => Refusal::NotFound,
        PoolError::NotGranted(_) | PoolError::Reserved(_) => Refusal::Permission,
        _ => Refusal::Limit,
    }
}

/// Returns the reply to a granted session.
fn attached(
    parts: &Parts,
    session: u32,
    (trusted, by_port, has_queue): (bool, bool, bool),
    lease: &Lease,
) -> Attached {
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    Attached {
        epoch: parts.epoch,
        session,
        mtu: parts.info.mtu.min(usize::from(u16::MAX)) as u16,
        lanes: parts.engines.lanes() as u16,
        // For packets that its own queue sends in place, the session does the work itself.
        capabilities: flag(!has_queue, message::CAN_CHECKSUM | message::CAN_SEGMENT),
        flags: flag(trusted, message::TRUSTED)
            | flag(lease.shared, message::SHARED)
            | flag(by_port, message::BY_PORT)
            | flag(has_queue, message::OWN_QUEUE),
        mac: lease.mac,
        ipv4_prefix: lease.ipv4.map_or(0, |(_, prefix)| prefix),
        ipv6_prefix: lease.ipv6.map_or(0, |(_, prefix)| prefix),
        ipv4: lease.ipv4.map_or([0; 4], |(ip, _)| ip.octets()),
        ipv4_gateway: lease.ipv4_gateway.map_or([0; 4], |ip| ip.octets()),
        ipv6: lease.ipv6.map_or([0; 16], |(ip, _)| ip.octets()),
        ipv6_gateway: lease.ipv6_gateway.map_or([0; 16], |ip| ip.octets()),
        device: message::fixed_name(&parts.info.name),
    }
}

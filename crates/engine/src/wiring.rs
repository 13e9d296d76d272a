//! An engine without a control thread, over a device of the caller's: for measurements and for unit
//! tests.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use towpath_device::Device;
use towpath_memory::{Mapping, Region, SharedFile, own_words, peer_words};
use towpath_packet::FlowRule;
use towpath_protocol::layout::{STATE_WORDS, SessionShape};
use towpath_protocol::settings::Values;
use towpath_queue::events::Marker;
use towpath_queue::receive::{ReceiveConsumer, application_side};
use towpath_queue::transmit::TransmitProducer;

use crate::coalescing;
use crate::commands::{Command, EngineReport};
use crate::last_sent::LastSent;
use crate::relays::Relays;
use crate::rights::Rights;
use crate::session::Session;
use crate::session::doorbell::Doorbell;
use crate::session::endpoints::Endpoint;
use crate::session::memories::Memories;
use crate::{Budgets, ControlLink, Engine};
use towpath_protocol::position::Position;

/// The result of a preparation or a measurement.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Packets per poll iteration.
pub(crate) const BATCH: usize = 64;
/// Budgets for batches of [`BATCH`] packets.
pub(crate) const BUDGETS: Budgets = Budgets {
    batch: BATCH,
    receive_budget: 1024,
    transmit_budget: BATCH,
    iteration_budget: 8 * BATCH,
};

/// An engine, and the control thread's side of it.
pub(crate) struct Wired {
    pub(crate) engine: Engine,
    pub(crate) commands: Sender<(u64, Command)>,
    pub(crate) reports: Receiver<EngineReport>,
    /// Wakes the engine.
    #[cfg_attr(not(test), expect(dead_code, reason = "a measurement's engine does not sleep"))]
    pub(crate) wake: Arc<OwnedFd>,
}

impl Wired {
    /// Creates an engine over a device.
    pub(crate) fn new(
        device: &mut dyn Device,
        values: &Values,
        budgets: Budgets,
    ) -> Outcome<Wired> {
        let (commands, engine_commands) = channel();
        let (engine_reports, reports) = channel();
        let wake = Arc::new(event()?);
        let link = ControlLink {
            lane: 0,
            commands: engine_commands,
            reports: engine_reports,
            wake: wake.clone(),
            control_wake: Arc::new(event()?),
            relays: Relays::none()?,
            has_successor: false,
            position: Position::default(),
            rdma: None,
        };
        let state = Region::private(STATE_WORDS * 8)?;
        let engine = Engine::new(device, state, 1, 1, values, budgets, link)?;
        Ok(Wired { engine, commands, reports, wake })
    }
}

/// Makes an eventfd that nothing was written to.
pub(crate) fn event() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// The application's side of a session, with its first queue pair.
pub(crate) struct ApplicationSide {
    pub(crate) transmit: TransmitProducer,
    pub(crate) receive: ReceiveConsumer,
    pub(crate) marker: Marker,
    /// The transmit buffer pool.
    pub(crate) pool: Region,
    #[cfg_attr(
        not(any(test, towpath_simulation)),
        expect(dead_code, reason = "a measurement reads no packet")
    )]
    pub(crate) receive_pool: Mapping,
    pub(crate) doorbell: OwnedFd,
}

/// The memory files that a session shares with its application, and the application's end of the doorbell.
pub(crate) struct SessionFiles {
    server: SharedFile,
    application: SharedFile,
    transmit_pool: SharedFile,
    receive_pool: SharedFile,
    doorbell: OwnedFd,
}

/// Makes a session whose application has provided nothing yet.
pub(crate) fn bare_session(
    number: u32,
    shape: SessionShape,
) -> Outcome<(Box<Session>, SessionFiles)> {
    let file = |bytes| SharedFile::create("session", bytes);
    let server = file(shape.server_words() * 8)?;
    let application = file(shape.application_words() * 8)?;
    let transmit_pool = file(shape.transmit_pool.pool_bytes())?;
    let receive_pool = file(shape.receive_pool.pool_bytes())?;
    let memories = Memories {
        server: server.map_writable()?,
        application: Arc::new(application.map_readable()?),
        ledger: file(shape.ledger_words() * 8)?.map_writable()?,
        receive_pool: receive_pool.map_writable()?,
        transmit_pool: Arc::new(transmit_pool.map_readable()?),
        armed: None,
    };
    let (ours, doorbell) = towpath_protocol::doorbell::pair()?;
    let session = Session::new(number, shape, memories, Doorbell::direct(ours), event()?);
    let files = SessionFiles { server, application, transmit_pool, receive_pool, doorbell };
    Ok((Box::new(session), files))
}

/// Makes a session and its application's side, which has provided all receive buffers to the first queue pair.
pub(crate) fn session(
    number: u32,
    shape: SessionShape,
) -> Outcome<(Box<Session>, ApplicationSide)> {
    let (session, files) = bare_session(number, shape)?;
    let SessionFiles { server, application, transmit_pool, receive_pool, doorbell } = files;
    let pages = shape.server_peer(&peer_words(&Arc::new(server.map_readable()?)));
    let own = shape.application_own(own_words(application.map_writable()?));
    let words = own.queue_pairs.into_iter().next().ok_or("the session has no queue pair")?;
    let (transmit, mut receive) =
        application_side(&shape.queues, shape.receive_pool, words, &pages.queue_pairs[0]);
    for buffer in 0..shape.receive_pool.buffers() {
        if !receive.provide(buffer) {
            return Err("the receive queue has fewer slots than buffers".into());
        }
    }
    receive.publish();
    let marker = Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements);
    let pool = transmit_pool.map_writable()?;
    let receive_pool = receive_pool.map_readable()?;
    let side = ApplicationSide { transmit, receive, marker, pool, receive_pool, doorbell };
    Ok((session, side))
}

/// Returns an endpoint of the first queue pair without settings of its own.
pub(crate) fn endpoint(rule: FlowRule, rights: Rights) -> Endpoint {
    Endpoint {
        queue_pair: 0,
        rule,
        rights,
        coalescing: coalescing::UNSET,
        offload: false,
        within: None,
        captures: false,
        is_resumed: false,
        iteration: 0,
        received: 0,
        requests_left: None,
        last_sent: LastSent::default(),
        oob: Box::default(),
        reachable: Box::default(),
    }
}

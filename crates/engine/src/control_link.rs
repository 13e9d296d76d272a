//! The engine's connection to the control thread: channels, wake-ups, and the limits of a poll iteration.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use towpath_memory::Region;
use towpath_protocol::position::Position;

use crate::commands::{Command, EngineReport};
use crate::relays::Relays;

/// Limits of one poll iteration; the server's configuration says more.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Packets that the engine takes from the device per poll iteration.
    pub batch: usize,
    /// Packets, and segments of large ones, that an endpoint may receive per poll iteration.
    pub receive_budget: u32,
    /// Packets that the engine takes per poll iteration for each queue pair in line. A packet that
    /// the engine copies or segments counts once per copy or segment.
    pub transmit_budget: usize,
    /// Packets that the engine takes from all queue pairs per poll iteration, counted the same way.
    pub iteration_budget: usize,
}

/// The channels between an engine and its control thread.
#[derive(Debug)]
pub struct ControlLink {
    /// The number of the engine's lane, and of the device queue that it serves.
    pub lane: usize,
    /// Commands, each with a ticket. The control thread writes `wake` after sending one.
    pub commands: Receiver<(u64, Command)>,
    /// Replies and reports. The engine writes `control_wake` after sending one.
    pub reports: Sender<EngineReport>,
    /// Wakes the engine.
    pub wake: Arc<OwnedFd>,
    /// Wakes the control thread.
    pub control_wake: Arc<OwnedFd>,
    /// Asks workers to notify applications.
    pub relays: Relays,
    /// `true` if a next server can resume the sessions when this engine fails.
    pub has_successor: bool,
    /// Where the engine records its position.
    pub position: Position,
    /// The memory for what the next server needs of connections with other hosts, if endpoints may
    /// have some, by RoCEv2.
    pub rdma: Option<Region>,
}

//! PDU endpoints and cells.

mod cells;
mod endpoints;
mod faults;
mod hostile;
mod queues;
mod reassembly;
mod support;

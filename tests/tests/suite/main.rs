//! The whole system: servers, applications and networks as processes.

mod calls;
mod control;
mod embedded;
mod filters;
mod images;
mod links;
mod pdu;
mod registration;
mod senders;
mod sending;
mod threads;
mod trust;
mod ways;
mod wire;

//! The whole system: servers, applications and networks as processes.

mod calls;
mod control;
mod embedded;
mod examples;
mod filters;
mod forks;
mod images;
mod links;
mod path_files;
mod pdu;
mod public_items;
mod reading_core;
mod registration;
mod senders;
mod sending;
mod sizes;
mod structure;
mod threads;
mod trust;
mod ways;
mod wire;
mod workspaces;

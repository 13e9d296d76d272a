//! The examples as programs.

mod echoes;
mod faults;
mod killed;
mod network;
mod nodelay;
mod readme;
mod usage;
mod web;

//! A server in this process, as a program embeds it.

mod commands;
mod ended;
mod flip;
mod forked;
mod one_mapping;
mod own_queue;
mod released;
mod starting;

//! The sockets' interface: thin, since each protocol has its own.

mod tcp;
mod udp;

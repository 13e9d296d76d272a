//! Packets as bytes, compared with independent implementations.

mod checksum;
mod headers;
mod independent;
mod pcapng;
mod roce;
mod roce_cm;
mod segment;
mod witnesses;

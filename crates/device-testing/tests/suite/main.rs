//! The in-memory device and the wrappers, without the kernel.

mod loopback;
mod one_at_a_time;
mod wrappers;

//! RFC 9293: Transmission Control Protocol.

mod closing;
mod opening;
mod options;
mod segments;
mod states;
mod windows;

//! The kernel's side of a TAP, frame by frame.

use std::io;
use std::time::{Duration, Instant};

use towpath_device_testing::conformance::{FarEnd, PacketSocket};
use towpath_packet::Meta;

/// A socket that receives every frame that the device writes, and sends frames that the device
/// reads.
#[derive(Debug)]
pub struct Wire(PacketSocket);

impl Wire {
    /// Opens it on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(interface: &str) -> io::Result<Wire> {
        let socket = PacketSocket::open(interface)?;
        socket.ignore_outgoing();
        Ok(Wire(socket))
    }

    /// Puts a frame on the wire, waiting while the interface's queue is full.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// When the queue stays full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let until = Instant::now() + crate::PATIENCE;
        while !self.0.try_send(frame, Meta::FULL)? {
            assert!(Instant::now() < until, "the interface's queue stays full");
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Returns the next frame that the device wrote, if there is one now, with its tag.
    ///
    /// # Panics
    /// When the socket fails.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        self.0.receive().map(|(frame, _)| frame)
    }

    /// Returns every frame that the device wrote, until none came for this long.
    pub fn drain(&mut self, quiet: Duration) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut last = Instant::now();
        while last.elapsed() < quiet {
            match self.receive() {
                Some(frame) => {
                    frames.push(frame);
                    last = Instant::now();
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        frames
    }
}

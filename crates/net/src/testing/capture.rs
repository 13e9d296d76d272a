//! Captures of a host's frames.

use std::io::{self, Write};

use towpath_packet::pcapng::{Direction, InterfaceId, Writer};

use super::Switch;

/// A capture that runs.
pub(super) struct Capture {
    writer: Writer<Box<dyn Write + Send>>,
    interface: InterfaceId,
    /// The beginning of the switch's clock, in nanoseconds since 1970.
    since_1970: u64,
    /// The first error, after which nothing more is written.
    error: Option<io::Error>,
}

impl Capture {
    fn new(out: Box<dyn Write + Send>, host: usize, since_1970: u64) -> io::Result<Capture> {
        let mut writer = Writer::new(out, "towpath-net")?;
        let interface = writer.interface(&format!("host {host}"), 0)?;
        Ok(Capture { writer, interface, since_1970, error: None })
    }

    /// Writes a frame. `at`: nanoseconds of the switch's clock.
    pub(super) fn note(&mut self, at: u64, direction: Direction, frame: &[u8]) {
        if self.error.is_none() {
            let (id, time) = (self.interface, self.since_1970.saturating_add(at));
            self.error = self.writer.packet(id, time, direction, &[frame], frame.len()).err();
        }
    }

    fn end(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.writer.flush(),
        }
    }
}

impl Switch {
    /// Begins a capture of the frames that a host sends and receives, in place of an earlier one, for Wireshark or tcpdump
    /// (pcapng). `host`: the number of the host, 1 for the first of the switch. A frame that the switch loses is in the
    /// sender's capture alone. The times are those of the hosts' clock, which the switch began with the machine's time.
    ///
    /// The switch is locked while it writes. The writer must call neither the switch nor a network.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::fs::File;
    /// use std::io::BufWriter;
    /// use towpath_net::UdpSocket;
    /// use towpath_net::testing::Switch;
    ///
    /// let switch = Switch::new();
    /// let (one, other) = (switch.host()?, switch.host()?);
    /// # let folder = std::env::temp_dir().join(format!("towpath-capture-{}", std::process::id()));
    /// # std::fs::create_dir(&folder)?;
    /// # let path = folder.join("host1.pcapng");
    /// switch.capture(1, BufWriter::new(File::create(&path)?))?;
    /// let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// UdpSocket::bind(&one, "10.0.0.1:0")?.send_to(b"question", "10.0.0.2:7")?;
    /// receiver.recv(&mut [0; 8])?;
    /// switch.end_capture(1)?;
    /// # assert!(std::fs::metadata(&path)?.len() > 200);
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the switch has no such host; the writer's error.
    pub fn capture(&self, host: usize, out: impl Write + Send + 'static) -> io::Result<()> {
        self.check();
        let capture = Capture::new(Box::new(out), host, self.shared.since_1970())?;
        let mut state = self.shared.state();
        let earlier = state.port(host)?.capture.replace(capture);
        // Without the lock: the writer may own handles of the switch.
        drop(state);
        drop(earlier);
        Ok(())
    }

    /// Ends the capture of a host, if there is one, and flushes its writer.
    ///
    /// ```
    /// # let switch = towpath_net::testing::Switch::new();
    /// let host = switch.host()?;
    /// switch.capture(1, Vec::new())?;
    /// // Without an error, all frames are in the capture.
    /// switch.end_capture(1)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the switch has no such host; the first error of the writer.
    pub fn end_capture(&self, host: usize) -> io::Result<()> {
        self.check();
        let capture = self.shared.state().port(host)?.capture.take();
        capture.map_or(Ok(()), Capture::end)
    }
}

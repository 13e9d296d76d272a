//! A server in a process of its own, and an application of it in this one.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use towpath_net::{Network, UdpSocket};

use super::exchange::Socket;
use crate::failure::says;

/// A server that ends with this value.
pub(super) struct Served {
    child: Child,
    directory: PathBuf,
}

impl Served {
    /// Starts a server and waits until applications can attach.
    ///
    /// # Errors
    /// Fails with the server's own line.
    pub(super) fn start(way: &str) -> Result<Served, String> {
        let name = format!("towpath-measure-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|error| format!("{}: {}", directory.display(), says(&error)))?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["serve", "--device", way, "--share-host", "--hold", "0", "--log", "error"]);
        command.arg("--socket").arg(directory.join("server.sock")).args(["--ready-fd", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
        // Nothing stays attached if this process is killed.
        towpath_sandbox::end_with_parent(&mut command);
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = std::fs::remove_dir(&directory);
                return Err(format!("starting a server: {}", says(&error)));
            }
        };
        let mut served = Served { child, directory };
        let mut line = String::new();
        if let Some(out) = served.child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if line.starts_with("ready ") { Ok(served) } else { Err(served.last_words()) }
    }

    /// Returns the number of the server's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a socket of an application of the server, connected to the peer.
    ///
    /// # Errors
    /// Fails with the reason for which the application has none.
    pub(super) fn socket(&self, peer: SocketAddr) -> Result<Socket, String> {
        let network = Network::attach(self.directory.join("server.sock"))
            .map_err(|error| error.to_string())?;
        let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let failed = |error: std::io::Error| says(&error);
        let socket = UdpSocket::bind(&network, any).map_err(failed)?;
        socket.connect(peer).map_err(failed)?;
        Ok(Socket::Application(socket))
    }

    /// Ends the server, which detaches it.
    ///
    /// # Errors
    /// Fails with the server's own line if the server did not end in order.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.signal();
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(self.last_words()),
        }
    }

    fn signal(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // A server that has ended already is what this asks for.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Returns the line of a server that failed.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_string(&mut text);
        }
        let line = text.lines().last().unwrap_or("the server ended without a word");
        line.strip_prefix("towpath: ").unwrap_or(line).to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.signal();
            let _ = self.child.wait();
        }
        // The server removed its socket; SOCKET.lock stays.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

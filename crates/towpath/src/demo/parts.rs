//! The child processes: the driver server and the applications. Each runs this program with another
//! part. The child's standard output is a socket to the demonstration, over which the child sends
//! lines of JSON. When the demonstration ends or is killed, the socket hangs up and the child ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
};
use serde::{Deserialize, Serialize};
use towpath_client::{Options, Session};
use towpath_device::Device;
use towpath_device::tap::TapDevice;
use towpath_net::SessionLink;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnet, Subnets};

use super::addresses::{GATEWAY_V4, GATEWAY_V6};
use super::applications;
use super::host::{Host, Statement};
use super::wire;

/// The part of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// The driver server: of the TAP that is its standard input, or of the interface in its network
    /// namespace.
    Server,
    /// The application that serves the file that is its standard input.
    Web,
    /// The application that echoes.
    Echo,
}

/// Arguments of a child's command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Script {
    /// The part of the child.
    #[arg(long, hide = true)]
    pub(super) part: Option<Part>,
    /// The server's socket.
    #[arg(long, hide = true, default_value = "tap.sock")]
    pub(super) socket: PathBuf,
    /// The application's name.
    #[arg(long, hide = true, default_value = "demo")]
    pub(super) name: String,
    /// The address that the application asks for.
    #[arg(long, hide = true)]
    pub(super) ipv4: Option<Ipv4Addr>,
    /// The users that may attach.
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(super) users: Vec<u32>,
    /// The server attaches to the interface in its network namespace.
    #[arg(long, hide = true)]
    pub(super) attach: bool,
}

/// A message of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The child is ready.
    Ready,
    /// The child failed, with the reason.
    Failed(String),
    /// The answer to the question.
    Statement(Statement),
}

/// The demonstration's only question, on a line of its own.
pub(super) const QUESTION: &str = "statement\n";

/// Returns the configuration of the demonstration's server.
pub(super) fn server_config(socket: Option<PathBuf>, users: Vec<u32>) -> Config {
    Config {
        socket,
        policy: Policy::granting(users, Vec::new()),
        subnets: Subnets {
            ipv4: Some(Subnet::new(GATEWAY_V4, 24)),
            ipv6: Some(Subnet::new(GATEWAY_V6, 64)),
        },
        ..Config::default()
    }
}

/// Returns the session options of an application.
pub(super) fn session_options(name: &str, ipv4: Option<Ipv4Addr>) -> Options {
    Options { ipv4, ..SessionLink::options(name) }
}

/// Runs a child's part to its end.
pub(super) fn play(part: Part, script: &Script) -> ExitCode {
    let played = rustix::stdio::stdout()
        .try_clone_to_owned()
        .map_err(anyhow::Error::from)
        .and_then(|stream| {
            let mut stream = UnixStream::from(stream);
            let outcome = match part {
                Part::Server => serve(script, &mut stream),
                Part::Web | Part::Echo => apply(part, script, &mut stream),
            };
            if let Err(error) = &outcome {
                // The other end may be gone.
                let _ = say(&mut stream, &Said::Failed(format!("{error:#}")));
            }
            outcome
        });
    if played.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(stream: &mut UnixStream, said: &Said) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn standard_input() -> io::Result<OwnedFd> {
    rustix::stdio::stdin().try_clone_to_owned()
}

fn serve(script: &Script, stream: &mut UnixStream) -> anyhow::Result<()> {
    let _swept = Swept(script.socket.parent());
    let device: Box<dyn Device> = if script.attach {
        let device = wire::open()?;
        give_up_capabilities()?;
        Box::new(device)
    } else {
        Box::new(TapDevice::from_fd(standard_input()?, true)?)
    };
    let config = server_config(Some(script.socket.clone()), script.users.clone());
    let server = Server::start(&config, device, Box::<MemoryStore>::default())?;
    say(stream, &Said::Ready)?;
    let mut ends =
        [PollFd::new(&*stream, PollFlags::IN), PollFd::new(server.over(), PollFlags::IN)];
    while let Err(error) = poll(&mut ends, None) {
        anyhow::ensure!(error == rustix::io::Errno::INTR, "waiting: {error}");
    }
    let ended = !ends[1].revents().is_empty();
    server.stop()?;
    anyhow::ensure!(!ended, "the server ended by itself");
    Ok(())
}

/// Gives up the capabilities that the server needed for its device. No thread has them yet.
fn give_up_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

/// The socket's directory. The server removes the directory at its end, because the server outlives
/// a killed demonstration.
struct Swept<'a>(Option<&'a Path>);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        if let Some(directory) = self.0 {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

fn apply(part: Part, script: &Script, stream: &mut UnixStream) -> anyhow::Result<()> {
    let options = session_options(&script.name, script.ipv4);
    let host = Host::over(Session::attach(&script.socket, &options)?)?;
    if part == Part::Web {
        applications::web(&host.network, File::from(standard_input()?)).context("web")?;
    } else {
        applications::echo(&host.network).context("echo")?;
    }
    say(stream, &Said::Ready)?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    // The loop ends with the stream.
    while lines.read_line(&mut line)? > 0 {
        if line == QUESTION {
            say(stream, &Said::Statement(host.statement()))?;
        }
        line.clear();
    }
    Ok(())
}

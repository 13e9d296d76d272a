//! Two hosts on a veth pair, and one measurement between them.

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use towpath_net::Network;
use towpath_services::Failure;
use towpath_testkit::{
    End, Namespace, Participants, connect, end_with_parent, process_cpu_time, softirq_time,
};

use crate::clients::{Counted, Load};

/// The interface at the services' end.
const INTERFACE: &str = "tpserv0";
/// The kernel's addresses at the services' end and at the clients'.
const KERNEL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENTS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The addresses of applications.
const LEASE: &str = "192.0.2.64/28";
/// The time limit of a start, and of an end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a service uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Towpath,
    Kernel,
}

/// The figures of one run.
pub(crate) struct Measured {
    /// Requests per second.
    pub(crate) rate: f64,
    /// The time on a core of all participants for a request, in microseconds.
    pub(crate) cpu_us: f64,
    /// The machine's time in software interrupts for a request, in microseconds.
    pub(crate) softirq_us: f64,
    /// Requests without an answer.
    pub(crate) lost: u64,
}

/// A process, which dropping ends.
struct Running(Child);

impl Running {
    /// Starts a program in a network namespace.
    fn start(command: &mut Command, inside: &Namespace) -> Result<Running, Failure> {
        end_with_parent(command);
        inside.contain(command);
        let program = Path::new(command.get_program()).display().to_string();
        let started = command.stdin(Stdio::null()).spawn();
        Ok(Running(started.map_err(|error| format!("{program}: {error}"))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder, which dropping removes.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Both hosts.
pub(crate) struct Hosts {
    services: Namespace,
    clients: Namespace,
    directory: Folder,
    towpath: PathBuf,
    /// The folder of the services' programs.
    programs: PathBuf,
}

impl Hosts {
    pub(crate) fn new() -> Result<Hosts, Failure> {
        let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/towpath");
        let towpath = std::env::var_os("TOWPATH").map_or_else(built, PathBuf::from);
        if !towpath.exists() {
            let path = towpath.display();
            return Err(format!("there is no {path}: build it, or set TOWPATH").into());
        }
        let own = std::env::current_exe()?;
        let programs = own.parent().ok_or("this program lies in no folder")?.to_owned();
        let directory =
            std::env::temp_dir().join(format!("towpath-compare-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let directory = Folder(directory);
        let (services, clients) = (Namespace::create()?, Namespace::current()?);
        for namespace in [&services, &clients] {
            let _ = namespace.silence();
            namespace.set("net.ipv4.ip_local_port_range", "10000 65000")?;
        }
        let end = |ip: Ipv4Addr| format!("{ip}/24").parse();
        connect(
            &End { namespace: &services, name: INTERFACE, addresses: &[end(KERNEL)?] },
            &End { namespace: &clients, name: "tpserv1", addresses: &[end(CLIENTS)?] },
            None,
        )?;
        Ok(Hosts { services, clients, directory, towpath, programs })
    }

    /// Starts a service on one side, has its client ask for about the time of `window`, and ends both.
    pub(crate) fn measure(
        &self,
        side: Side,
        load: Load,
        window: Duration,
    ) -> Result<Measured, Failure> {
        let directory = &self.directory.0;
        let server = match side {
            Side::Towpath => Some(self.serve()?),
            Side::Kernel => None,
        };
        let socket = match side {
            Side::Towpath => self.socket().into_os_string(),
            Side::Kernel => "kernel".into(),
        };
        let (program, arguments) = load.service(directory);
        let mut command = Command::new(self.programs.join(program));
        command.arg(socket).args(arguments).stdout(Stdio::piped());
        let mut service = Running::start(&mut command, &self.services)?;
        let said = service.0.stdout.take().ok_or("a service without its output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let at = match side {
            Side::Towpath => address(&line).ok_or_else(|| format!("{program} said {line:?}"))?,
            Side::Kernel => KERNEL,
        };
        let mut processes = vec![service.0.id()];
        if let Some(server) = &server {
            descendants(server.0.id(), &mut processes);
        }
        self.ask(load, at, window, &processes)
    }

    fn socket(&self) -> PathBuf {
        self.directory.0.join("s.sock")
    }

    /// Starts `towpath serve` at the services' interface.
    fn serve(&self) -> Result<Running, Failure> {
        let log = self.directory.0.join("log");
        let mut command = Command::new(&self.towpath);
        command.args(["serve", "--device", &format!("xdp:{INTERFACE}"), "--lease", LEASE]);
        command.arg("--socket").arg(self.socket());
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut server = Running::start(&mut command, &self.services)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match Network::attach(self.socket()) {
                Ok(_) => return Ok(server),
                Err(error) if server.0.try_wait()?.is_some() || Instant::now() > until => {
                    let said = fs::read_to_string(&log).unwrap_or_default();
                    let last = said.lines().last().unwrap_or_default();
                    return Err(format!("towpath serve: {error}: {last}").into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Runs the client to its end.
    fn ask(
        &self,
        load: Load,
        at: Ipv4Addr,
        window: Duration,
        processes: &[u32],
    ) -> Result<Measured, Failure> {
        let participants = Participants::new(processes);
        let mut command = load.client(&self.programs, &self.directory.0, at, window)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (cpu, softirq) = (participants.cpu_time()?, softirq_time()?);
        let started = Instant::now();
        let mut client = Running::start(&mut command, &self.clients)?;
        let said = read_to_string(client.0.stdout.take().ok_or("a client without its output")?)?;
        let pid = Pid::from_raw(client.0.id() as i32).ok_or("a process without a number")?;
        // Its account ends when it is waited for.
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let elapsed = started.elapsed();
        let cpu = participants.cpu_time()?.saturating_sub(cpu) + process_cpu_time(client.0.id())?;
        let softirq = softirq_time()?.saturating_sub(softirq);
        let errors = client.0.stderr.take().map(read_to_string).transpose()?.unwrap_or_default();
        let counted =
            load.counted(&said, window).filter(|_| client.0.wait().is_ok_and(|end| end.success()));
        let Some(Counted { requests, lost }) = counted else {
            return Err(format!("the client of {}: {said}{errors}", load.name()).into());
        };
        let each = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
        let rate = requests as f64 / elapsed.as_secs_f64();
        Ok(Measured { rate, cpu_us: each(cpu), softirq_us: each(softirq), lost })
    }
}

/// Finds the IPv4 address in the line that a service prints.
fn address(line: &str) -> Option<Ipv4Addr> {
    line.split(['[', ']', ',', ' ']).find_map(|word| word.trim().parse().ok())
}

/// Adds a process, its children, and theirs.
fn descendants(pid: u32, into: &mut Vec<u32>) {
    into.push(pid);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
        descendants(child, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_first_line() {
        let line = "serving at [192.0.2.64, fe80::1]\n";
        assert_eq!(address(line), Some(Ipv4Addr::new(192, 0, 2, 64)));
        assert_eq!(address("serving nothing"), None);
    }
}

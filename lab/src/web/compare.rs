//! The example `web` beside the same source over the kernel's sockets: the programs, and the rows.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_testkit::Namespace;

use super::example;
use super::wrk::{Asked, Load, Target, ask};
use crate::programs::{Running, STARTS, own_program, program};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, ratios};

/// The bytes of the file.
const FILE_BYTES: usize = 1024;
/// The lower limits of requests per second, to the kernel: one persistent connection, and others.
const ONE_AT_LEAST: f64 = 0.8;
const AT_LEAST: f64 = 1.0;
/// The upper limit of the processor time of a request, to the kernel, with several persistent
/// connections.
const CPU_AT_MOST: f64 = 1.2;

/// The programs.
pub(crate) struct Programs {
    web: PathBuf,
    kernel: PathBuf,
    wrk: PathBuf,
}

impl Programs {
    /// Finds wrk; or returns the line of a report.
    pub(crate) fn wrk() -> Result<PathBuf, String> {
        program("wrk", "wrk")
    }

    /// Finds the programs; or returns the line of a report.
    pub(crate) fn find() -> Result<Programs, String> {
        let wrk = Programs::wrk()?;
        Ok(Programs { web: own_program("web")?, kernel: own_program("web-std")?, wrk })
    }
}

/// Writes the file that wrk asks for into a new directory, which this returns.
pub(crate) fn write_file(directory: &Path) -> anyhow::Result<PathBuf> {
    let files = directory.join("files");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("index.html"), vec![b'x'; FILE_BYTES])?;
    Ok(files)
}

/// The port of the kernel's program.
const KERNEL_PORT: u16 = example::PORT + 1;

/// Both web servers.
pub(crate) struct Both {
    ours: (Running, SocketAddrV4),
    kernel: Running,
}

impl Both {
    /// Starts both, which serve a directory. `inside`: the network namespace of the kernel's.
    pub(crate) fn start(
        programs: &Programs,
        (socket, files): (&Path, &Path),
        inside: Option<&Namespace>,
    ) -> anyhow::Result<Both> {
        let kernel = Running::start(&programs.kernel, inside, |command| {
            command.args([socket, files]).arg(KERNEL_PORT.to_string());
        })?;
        Ok(Both { ours: example::start(&programs.web, socket, files)?, kernel })
    }

    /// Returns the targets of wrk, once both answer: ours, with the server's process, and the
    /// kernel's at its own address. `from`: the network namespace of wrk.
    pub(crate) fn targets<'a>(
        &self,
        server_pid: u32,
        kernel: Ipv4Addr,
        from: Option<&'a Namespace>,
    ) -> anyhow::Result<[Target<'a>; 2]> {
        let (web, address) = &self.ours;
        let processes = vec![("server", server_pid), ("web", web.0.id())];
        let ours = Target { address: (*address).into(), from, processes };
        let processes = vec![("web", self.kernel.0.id())];
        let kernel = Target { address: (kernel, KERNEL_PORT).into(), from, processes };
        for target in [&ours, &kernel] {
            answers(target)?;
        }
        Ok([ours, kernel])
    }
}

/// Waits until a web server accepts connections.
fn answers(target: &Target<'_>) -> anyhow::Result<()> {
    let until = Instant::now() + STARTS;
    let connect = || TcpStream::connect_timeout(&target.address, Duration::from_secs(1));
    let connected = || -> anyhow::Result<bool> {
        Ok(match target.from {
            Some(namespace) => namespace.run(connect)?.is_ok(),
            None => connect().is_ok(),
        })
    };
    while !connected()? {
        ensure!(Instant::now() < until, "no program answers at {}", target.address);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Measures a load in pairs. `name`: the first words of the rows.
pub(crate) fn measure(
    programs: &Programs,
    [ours, kernel]: &[Target<'_>; 2],
    (load, name): (Load, &str),
    (pairs, window): (usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let run = |target, into: &mut Vec<Asked>| {
        into.push(ask(&programs.wrk, target, load, window)?);
        Ok(into[into.len() - 1].requests_per_s)
    };
    let (mut of_ours, mut of_kernel) = (Vec::new(), Vec::new());
    let rates = Pairs::measure(pairs, || run(ours, &mut of_ours), || run(kernel, &mut of_kernel))?;
    // The first pair is the additional one.
    let (of_ours, of_kernel) = (&of_ours[1..], &of_kernel[1..]);
    let row = |what: &str, unit: &str, values: &[f64]| {
        let parameters =
            [("file_bytes", FILE_BYTES as f64), ("connections", f64::from(load.connections))];
        Row::new(&format!("{name}, {what}"), &parameters, unit, values)
    };
    let of = |asked: &[Asked], figure: &dyn Fn(&Asked) -> f64| -> Vec<f64> {
        asked.iter().map(figure).collect()
    };
    let [cpu, kernel_cpu] = [of_ours, of_kernel].map(|asked| of(asked, &|asked| asked.cpu_us));
    let least = if load.connections == 1 { ONE_AT_LEAST } else { AT_LEAST };
    let cpu_ratio =
        row("processor time per request, to the kernel", "ratio", &ratios(&cpu, &kernel_cpu));
    let is_limited = load.connections > 1 && !load.fresh;
    outcome.rows.extend([
        row("application to the kernel", "ratio", &rates.ratios()).at_least(least),
        if is_limited { cpu_ratio.at_most(CPU_AT_MOST) } else { cpu_ratio },
    ]);
    outcome.context.extend([
        row("application", "requests/s", &rates.ours),
        row("kernel", "requests/s", &rates.base),
        row("application: processor time per request", "us", &cpu),
        row("kernel: processor time per request", "us", &kernel_cpu),
        row("application: errors", "errors", &of(of_ours, &|asked| asked.errors)),
        row("kernel: errors", "errors", &of(of_kernel, &|asked| asked.errors)),
    ]);
    if !load.fresh {
        for (side, asked, target) in [("application", of_ours, ours), ("kernel", of_kernel, kernel)]
        {
            let names = target.processes.iter().map(|(name, _)| *name).chain(["wrk"]);
            outcome.context.extend(names.enumerate().map(|(place, process)| {
                let values = of(asked, &|asked| asked.switches[place][0]);
                row(&format!("{side}: wake-ups of {process} per request"), "1", &values)
            }));
            let all = of(asked, &|asked| asked.switches.iter().flatten().sum());
            outcome.context.push(row(&format!("{side}: context switches per request"), "1", &all));
        }
    }
    Ok(())
}

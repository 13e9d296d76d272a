//! DPDK's testpmd: between two processes over memif, and through a switch. `afxdp` has it over
//! AF_XDP.
//!
//! Both processes run on commands from standard input. Between measurements both are stopped, so
//! that they leave the cores to others.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::program::{Files, Program};

/// The time to fill queues and caches after a pause.
const SETTLE: Duration = Duration::from_millis(10);
/// The most lines of an answer.
const MOST_LINES: usize = 1000;
/// The time in which two processes connect.
const CONNECTS: Duration = Duration::from_secs(10);

/// The path of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wiring {
    /// One process sends, the other receives, over one memif.
    Pair,
    /// One process sends and receives on two memifs, the other forwards between them.
    Switch,
}

/// The memory of the packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    /// The sending side of a memif shares its packet memory, so that it copies nothing.
    zero_copy: bool,
    huge_pages: Option<&'a HugePages>,
}

impl<'a> Memory<'a> {
    /// Memory that every machine has.
    pub(super) const PLAIN: Memory<'static> = Memory { zero_copy: false, huge_pages: None };

    /// Returns all kinds that this machine has.
    pub(super) fn all(huge_pages: Option<&'a HugePages>) -> Vec<Memory<'a>> {
        let pages = [None].into_iter().chain(huge_pages.map(Some));
        pages
            .flat_map(|huge_pages| [false, true].map(|zero_copy| Memory { zero_copy, huge_pages }))
            .collect()
    }

    /// Returns the words of a report.
    pub(super) fn name(self) -> &'static str {
        match (self.zero_copy, self.huge_pages.is_some()) {
            (false, false) => "copied",
            (true, false) => "zero-copy",
            (false, true) => "copied, huge pages",
            (true, true) => "zero-copy, huge pages",
        }
    }
}

/// Huge pages that two processes need, of 2 MiB.
const HUGE_PAGES: u64 = 256;

/// Enough free huge pages, and the directory of the file system that grants them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HugePages {
    directory: PathBuf,
}

impl HugePages {
    /// Finds them, or returns the line of a report.
    pub(super) fn of_this_machine() -> anyhow::Result<Result<HugePages, String>> {
        let read = |path| std::fs::read_to_string(path).context(path);
        Ok(HugePages::find(&read("/proc/meminfo")?, &read("/proc/self/mounts")?))
    }

    fn find(meminfo: &str, mounts: &str) -> Result<HugePages, String> {
        let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
        let free: u64 = free.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let directory = words.next()?;
            (words.next()? == "hugetlbfs").then_some(directory)
        });
        match mounted {
            Some(directory) if free >= HUGE_PAGES => Ok(HugePages { directory: directory.into() }),
            mounted => Err(format!(
                "DPDK testpmd with huge pages: {free} of {HUGE_PAGES} are free, and hugetlbfs is \
                 {}; get them with: sysctl vm.nr_hugepages={HUGE_PAGES}; mkdir -p /dev/hugepages; \
                 mount -t hugetlbfs none /dev/hugepages",
                if mounted.is_some() { "mounted" } else { "not mounted" }
            )),
        }
    }
}

/// Two processes.
pub(super) struct Testpmd {
    /// The process that receives what is counted.
    counting: Program,
    other: Program,
    /// Its ports.
    ports: usize,
    /// The files of huge pages, which testpmd leaves behind.
    leaves: Vec<PathBuf>,
}

impl Testpmd {
    /// Starts both processes; they are stopped when this returns. `words` is the program.
    pub(super) fn start(
        files: &Files,
        words: &[String],
        (wiring, memory): (Wiring, Memory<'_>),
        cores: (usize, usize),
        packet_bytes: usize,
    ) -> anyhow::Result<Testpmd> {
        // One directory per pair of processes keeps their sockets and files apart.
        let name = format!("{wiring:?}-{}-{packet_bytes}", memory.name().replace([' ', ','], "-"));
        let ports = if wiring == Wiring::Switch { 2 } else { 1 };
        let memif = |role: &str| -> Vec<String> {
            let socket = files.path().join(&name);
            let zero_copy = match (role, memory.zero_copy) {
                ("client", true) => ",zero-copy=yes",
                _ => "",
            };
            (0..ports)
                .map(|id| {
                    format!(
                        "net_memif{id},role={role},id={id},socket={}-{id},bsize=2048,rsize=10{zero_copy}",
                        socket.display()
                    )
                })
                .collect()
        };
        let mut leaves = Vec::new();
        let mut start = |side: &str, cpu, devices: &[String], forwards: &[String]| {
            let name = format!("{name}-{side}");
            leaves.extend(memory.huge_pages.map(|it| it.directory.join(format!("{name}map_0"))));
            let words = [words, &arguments(&name, memory, cpu, devices, forwards)].concat();
            Program::start(files, &name, &words, None)
        };
        let forwards = |mode: &str| vec![format!("--forward-mode={mode}")];
        let sends =
            |mode: &str| vec![format!("--forward-mode={mode}"), format!("--txpkts={packet_bytes}")];
        let (counting, other) = match wiring {
            Wiring::Pair => (
                start("receives", cores.0, &memif("server"), &forwards("rxonly"))?,
                start("sends", cores.1, &memif("client"), &sends("txonly"))?,
            ),
            Wiring::Switch => {
                let switch = start("switch", cores.0, &memif("server"), &forwards("io"))?;
                let ends = start("ends", cores.1, &memif("client"), &sends("flowgen"))?;
                (ends, switch)
            }
        };
        let mut pair = Testpmd { counting, other, ports, leaves };
        pair.connect()?;
        pair.pause()?;
        Ok(pair)
    }

    /// Starts forwarding, and waits until packets arrive.
    fn connect(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + CONNECTS;
        // A memif port that has not connected yet drops what it is to send.
        self.other.say("start")?;
        self.counting.say("start")?;
        loop {
            if received(&self.stats()?) > 0 {
                return Ok(());
            }
            ensure!(Instant::now() < until, "no packet arrived in {CONNECTS:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs for a time. Returns millions of packets received per second, by testpmd's own clock.
    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        self.other.resume()?;
        self.counting.resume()?;
        let measured = self.measure(window);
        self.pause()?;
        measured
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        thread::sleep(SETTLE);
        // Rates are those since the last statistics.
        self.stats()?;
        thread::sleep(window);
        let stats = self.stats()?;
        Ok(stats.iter().map(|port| port.received_per_s as f64).sum::<f64>() / 1e6)
    }

    fn pause(&self) -> anyhow::Result<()> {
        self.counting.pause()?;
        self.other.pause()
    }

    fn stats(&mut self) -> anyhow::Result<Vec<PortStats>> {
        stats(&mut self.counting, self.ports)
    }
}

/// Asks a process for the statistics of its ports.
pub(super) fn stats(program: &mut Program, ports: usize) -> anyhow::Result<Vec<PortStats>> {
    program.say("show port stats all")?;
    let mut lines = Vec::new();
    while lines.len() < MOST_LINES {
        lines.push(program.read_line()?);
        if let Some(stats) = parse(&lines, ports) {
            return Ok(stats);
        }
    }
    bail!("no statistics in {MOST_LINES} lines")
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.counting.kill();
        self.other.kill();
        for file in &self.leaves {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Returns testpmd's arguments: one core forwards, and the same core reads commands.
pub(super) fn arguments(
    name: &str,
    memory: Memory<'_>,
    cpu: usize,
    devices: &[String],
    forwards: &[String],
) -> Vec<String> {
    let mut words = vec!["--lcores".to_owned(), format!("0@{cpu},1@{cpu}")];
    let mut add = |words_of: &[&str]| words.extend(words_of.iter().map(|word| (*word).to_owned()));
    // `--in-memory` breaks memif, which passes the files of the memory on.
    add(&["--file-prefix", name, "--no-pci", "--no-telemetry", "--single-file-segments"]);
    match memory.huge_pages {
        Some(pages) => add(&["-m", "192", "--huge-dir", &pages.directory.to_string_lossy()]),
        None => add(&["--no-huge", "-m", "192", "--no-shconf"]),
    }
    for device in devices {
        add(&["--vdev", device]);
    }
    add(&["--", "-i", "--nb-cores=1", "--no-lsc-interrupt", "--total-num-mbufs=16384"]);
    words.extend(forwards.iter().cloned());
    words
}

/// The statistics of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortStats {
    pub(super) received: u64,
    /// Since the last statistics.
    received_per_s: u64,
}

pub(super) fn received(stats: &[PortStats]) -> u64 {
    stats.iter().map(|port| port.received).sum()
}

/// Parses the answer to `show port stats all`; `None` until it is complete.
fn parse(lines: &[String], ports: usize) -> Option<Vec<PortStats>> {
    let mut stats: Vec<PortStats> = Vec::new();
    let mut complete = 0;
    for line in lines {
        let line = line.trim();
        let number = |key: &str| -> Option<u64> {
            let rest = line.strip_prefix(key)?;
            rest.split_whitespace().next()?.parse().ok()
        };
        if line.contains("NIC statistics for port") {
            stats.push(PortStats::default());
        }
        let Some(port) = stats.last_mut() else { continue };
        if let Some(count) = number("RX-packets:") {
            port.received = count;
        }
        if let Some(rate) = number("Rx-pps:") {
            port.received_per_s = rate;
        }
        // The transmit rate is the last figure of a port.
        complete += usize::from(number("Tx-pps:").is_some());
    }
    (complete == ports).then_some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two answers of testpmd 22.11 on two ports, as it wrote them.
    const SAID: &str = include_str!("testpmd-stats.txt");

    #[test]
    fn an_answer_is_complete_with_the_last_port() {
        let lines: Vec<String> = SAID.lines().map(str::to_owned).collect();
        let complete: Vec<_> =
            (0..lines.len()).filter(|end| parse(&lines[..*end], 2).is_some()).collect();
        let (first, second) = lines.split_at(complete[0]);
        let stats = parse(first, 2).unwrap();
        let port = |received, received_per_s| PortStats { received, received_per_s };
        assert_eq!(stats, [port(259_552, 0), port(259_456, 0)]);
        assert_eq!(received(&stats), 519_008);
        // The rest of the first answer is a line of signs, which is part of the next answer.
        let stats = parse(second, 2).unwrap();
        assert_eq!(stats, [port(509_472, 492_122), port(509_312, 491_993)]);
    }

    #[test]
    fn other_lines_are_no_answer() {
        assert_eq!(parse(&["testpmd> start".to_owned()], 1), None);
        assert_eq!(parse(&["  Rx-pps:  1  Rx-bps:  2".to_owned()], 1), None);
        let broken = ["### NIC statistics for port 0  ###", "Rx-pps: many", "Tx-pps: many"];
        assert_eq!(parse(&broken.map(str::to_owned), 1), None);
    }

    #[test]
    fn huge_pages_are_used_where_enough_are_free_and_mounted() {
        let meminfo = |free| format!("HugePages_Total:     300\nHugePages_Free:      {free}\n");
        let mounts = "/dev/vda / ext4 rw 0 0\nnone /mnt/huge hugetlbfs rw,pagesize=2M 0 0\n";
        let pages = HugePages::find(&meminfo(256), mounts).unwrap();
        assert_eq!(pages.directory, PathBuf::from("/mnt/huge"));
        for (free, mounts, why) in [
            (255, mounts, "255 of 256 are free, and hugetlbfs is mounted; get them with: sysctl"),
            (256, "/dev/vda / ext4 rw 0 0\n", "256 of 256 are free, and hugetlbfs is not mounted;"),
        ] {
            let missing = HugePages::find(&meminfo(free), mounts).unwrap_err();
            assert!(missing.contains(why), "{missing}");
        }
        assert!(HugePages::find("", mounts).unwrap_err().contains(": 0 of 256 are free"));
        let names = |pages| Memory::all(pages).into_iter().map(Memory::name).collect::<Vec<_>>();
        assert_eq!(names(None), ["copied", "zero-copy"]);
        assert_eq!(names(Some(&pages))[2..], ["copied, huge pages", "zero-copy, huge pages"]);
    }

    #[test]
    fn the_arguments_name_the_memory_and_the_core() {
        let pages = HugePages { directory: "/mnt/huge".into() };
        let words = |huge_pages| {
            let memory = Memory { zero_copy: false, huge_pages };
            let forwards = ["--forward-mode=io".to_owned()];
            arguments("a", memory, 1, &["net_memif0,id=0".to_owned()], &forwards).join(" ")
        };
        let (small, huge) = (words(None), words(Some(&pages)));
        assert!(small.contains(" --no-huge -m 192 "), "{small}");
        assert!(huge.contains(" --huge-dir /mnt/huge ") && !huge.contains("--no-huge"), "{huge}");
        for words in [small, huge] {
            assert!(words.starts_with("--lcores 0@1,1@1 --file-prefix a "), "{words}");
            assert!(words.contains(" --vdev net_memif0,id=0 -- -i "), "{words}");
            assert!(words.ends_with(" --forward-mode=io"), "{words}");
            assert!(!words.contains("--in-memory"), "memif passes on the files of the memory");
        }
    }
}

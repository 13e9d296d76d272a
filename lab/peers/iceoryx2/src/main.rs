//! iceoryx2 as a peer of the laboratory: round trips of two threads that spin, each on a core.
//!
//! The program reads commands from its standard input, `trips MILLISECONDS BYTES`, and answers each
//! by `trips COUNT P50_NS P99_NS P999_NS`. Its arguments are a directory for its files and two
//! cores. It ends with its input, and removes its memory files.

use std::error::Error;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use iceoryx2::prelude::*;

/// The bytes of a message.
type Message = [u8; 64];
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(5);

/// One side: what it sends, and what it receives.
struct Side {
    node: Node<ipc::Service>,
    to: String,
    from: String,
}

/// Returns the prefix of this process's memory files.
fn prefix() -> String {
    format!("towpath_peer_{}_", std::process::id())
}

impl Side {
    fn new(directory: &str, [to, from]: [&str; 2]) -> Outcome<Side> {
        let mut config = Config::default();
        config.global.set_root_path(&Path::new(directory.as_bytes())?);
        config.global.prefix = FileName::new(prefix().as_bytes())?;
        let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
        Ok(Side { node, to: to.into(), from: from.into() })
    }
}

/// Makes publisher and subscriber of a side, and runs `work` with a function that sends and one
/// that receives.
macro_rules! with_ports {
    ($side:expr, |$publisher:ident, $subscriber:ident| $work:expr) => {{
        let service = |name: &str| -> Outcome<_> {
            let name: ServiceName = name.try_into()?;
            let builder = $side.node.service_builder(&name).publish_subscribe::<Message>();
            Ok(builder.max_publishers(1).max_subscribers(1).history_size(0).open_or_create()?)
        };
        let (to, from) = (service(&$side.to)?, service(&$side.from)?);
        let $publisher = to.publisher_builder().create()?;
        let $subscriber = from.subscriber_builder().create()?;
        $work
    }};
}

fn pin(cpu: usize) -> Outcome<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Sends every message back, until it is over.
fn answer(side: &Side, cpu: usize, ready: &AtomicBool, over: &AtomicBool) -> Outcome<()> {
    pin(cpu)?;
    with_ports!(side, |publisher, subscriber| {
        ready.store(true, Ordering::Release);
        while !over.load(Ordering::Relaxed) {
            if let Some(message) = subscriber.receive()? {
                publisher.loan_uninit()?.write_payload(*message).send()?;
            }
        }
        Ok(())
    })
}

fn ask(side: &Side, cpu: usize, window: Duration, ready: &AtomicBool) -> Outcome<Histogram<u64>> {
    pin(cpu)?;
    let mut times = Histogram::new_with_bounds(1, 10_000_000_000, 3)?;
    with_ports!(side, |publisher, subscriber| {
        let begin = Instant::now();
        while !ready.load(Ordering::Acquire) {
            if begin.elapsed() > PATIENCE {
                return Err("the other thread did not start".into());
            }
        }
        // The first part of the window is not counted.
        let counted = Instant::now() + window / 4;
        let end = counted + window;
        let mut start = Instant::now();
        while start < end {
            publisher.loan_uninit()?.write_payload([7; 64]).send()?;
            let mut looks = 0u32;
            while subscriber.receive()?.is_none() {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(4096) && start.elapsed() > PATIENCE {
                    return Err("a message was lost".into());
                }
            }
            let now = Instant::now();
            if start >= counted {
                times.saturating_record((now - start).as_nanos() as u64);
            }
            start = now;
        }
        Ok(times)
    })
}

fn trips(directory: &str, cores: [usize; 2], window: Duration) -> Outcome<Histogram<u64>> {
    let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let name = |way: &str| format!("towpath-peer-{way}-{}", std::process::id());
    let (there, back) = (name("there"), name("back"));
    let asks = Side::new(directory, [&there, &back])?;
    let answers = Side::new(directory, [&back, &there])?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&answers, cores[1], &ready, &over));
        let asking = scope.spawn(|| {
            let times = ask(&asks, cores[0], window, &ready);
            over.store(true, Ordering::Relaxed);
            times
        });
        let times = asking.join().map_err(|_| "the asking thread failed")?;
        answering.join().map_err(|_| "the answering thread failed")??;
        times
    })
}

/// Removes the memory files of a prefix. iceoryx2 keeps one per configuration.
struct Files(String);

impl Drop for Files {
    fn drop(&mut self) {
        let Ok(files) = std::fs::read_dir("/dev/shm") else { return };
        for file in files.flatten() {
            if file.file_name().to_string_lossy().starts_with(&self.0) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, first, second] = &arguments[..] else {
        return Err("usage: towpath-peer-iceoryx2 DIRECTORY CORE CORE".into());
    };
    let cores = [first.parse()?, second.parse()?];
    let _files = Files(prefix());
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let (["trips", window, bytes], own) = (&words[..], size_of::<Message>()) else {
            return Err("no such command".into());
        };
        if bytes.parse() != Ok(own) {
            return Err(format!("messages have {own} bytes").into());
        }
        let window = window.parse()?;
        let times = trips(directory, cores, Duration::from_millis(window))
            .map_err(|error| error.to_string())?;
        let quantile = |quantile| times.value_at_quantile(quantile);
        println!("trips {} {} {} {}", times.len(), quantile(0.5), quantile(0.99), quantile(0.999));
    }
    Ok(())
}

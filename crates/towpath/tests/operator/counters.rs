//! docs/counters.md describes each counter of `towpath stat` in the words of the code.

use rustix::process::Signal;
use towpath_client::{Options, Session};
use towpath_net::{Network, UdpSocket};
use towpath_protocol::counters::{Device, Endpoint, OutOfBand};

use crate::running::*;

const CODE: &str = include_str!("../../../protocol/src/counters.rs");
const PAGE: &str = include_str!("../../../../docs/counters.md");

/// Returns the variants of an enum in the code, with their descriptions.
fn described(name: &str) -> Vec<(String, String)> {
    let start = format!("pub enum {name} {{\n");
    let body = CODE.split_once(&start).unwrap().1.split_once("\n}").unwrap().0;
    let (mut all, mut text) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("/// ") {
            text += if text.is_empty() { "" } else { " " };
            text += more;
        } else if let Some(variant) = line.strip_suffix(',') {
            all.push((variant.to_owned(), std::mem::take(&mut text)));
        }
    }
    all
}

/// Returns the table of one kind of counters, in the order in which `towpath stat` shows them.
fn table<T: std::fmt::Debug>(name: &str, counters: &[(T, &'static str)]) -> String {
    let described = described(name);
    assert_eq!(described.len(), counters.len(), "each variant of {name} is in its list");
    let mut rows: Vec<String> = counters
        .iter()
        .map(|(counter, shown)| {
            let variant = format!("{counter:?}");
            let found = described.iter().find(|(other, _)| *other == variant);
            let mut text = found.unwrap().1.clone();
            // A link to another counter shows that counter's name.
            for (other, shown) in counters {
                text = text.replace(&format!("[`{name}::{other:?}`]"), &format!("`{shown}`"));
            }
            assert!(!text.is_empty() && !text.contains("[`"), "{shown}: {text}");
            format!("| `{shown}` | {text} |\n")
        })
        .collect();
    rows.sort();
    format!("| counter | counts |\n|---|---|\n{}", rows.concat())
}

#[test]
fn the_page_describes_each_counter_as_the_code_does() {
    for (name, table) in [
        ("Device", table("Device", &Device::ALL)),
        ("Endpoint", table("Endpoint", &Endpoint::ALL)),
        ("OutOfBand", table("OutOfBand", &OutOfBand::ALL)),
    ] {
        assert!(PAGE.contains(&table), "docs/counters.md lacks this table of {name}:\n{table}");
    }
    let rows = PAGE.lines().filter(|line| line.starts_with("| `")).count();
    let all = Device::ALL.len() + Endpoint::ALL.len() + OutOfBand::ALL.len();
    assert_eq!(rows, all, "no row describes another counter");
}

/// The report names what a session takes from the server: memory, descriptors, buffers, and the
/// engine's time.
#[test]
fn a_report_names_what_a_session_takes() {
    const PACKETS: usize = 20_000;
    towpath_testkit::isolated!(|| {
        if !tun("counters::a_report_names_what_a_session_takes") {
            return;
        }
        let directory = Directory::new();
        let arguments = ["--device", "tap:opA", "--address", "10.77.0.1/24"];
        let mut server = serve(&directory, "s.sock", &arguments);
        let idle = Session::attach(&server.socket, &Options::default()).unwrap();
        let busy = Network::attach(&server.socket).unwrap();
        let socket = UdpSocket::bind(&busy, "0.0.0.0:1000").unwrap();
        for _ in 0..PACKETS {
            // It does not matter if the queue is full.
            let _ = socket.send_to(&[0; 100], "10.77.0.1:9");
        }
        let mut sessions = Vec::new();
        let number = |session: &serde_json::Value, name: &str| session[name].as_u64().unwrap();
        until("the engine's time for the busy session", || {
            sessions = server.report()["sessions"].as_array().unwrap().clone();
            number(&sessions[1], "engine_ns") > 0
        });
        let [idle_one, busy_one] = &sessions[..] else { panic!("{sessions:?}") };
        assert_eq!(number(idle_one, "engine_ns"), 0, "it sent and received nothing");
        let ns = number(busy_one, "engine_ns");
        for session in &sessions {
            assert_eq!(number(session, "bytes_limit"), 256 << 20);
            assert!(number(session, "bytes") < number(session, "bytes_limit"));
            assert!(number(session, "descriptors") >= 7 + number(session, "pins"));
        }
        let options = Options::default();
        let slots = u64::from(options.queue_pairs * options.transmit_slots);
        assert_eq!(number(idle_one, "transmit_buffers"), slots);
        // The time goes on with the next server.
        server.kill_server();
        until("the session is resumed", || {
            sessions = server.report()["sessions"].as_array().unwrap().clone();
            sessions.len() == 2
        });
        assert!(number(&sessions[1], "engine_ns") >= ns);
        drop((idle, socket, busy));
        assert!(server.stop(Signal::TERM).success());
    });
}

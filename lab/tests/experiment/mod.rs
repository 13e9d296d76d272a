//! Runs an experiment whole, with `--quick`, as its users start it: every row that it prints and
//! writes has a figure, and no files stay behind. The test does not check the figures, because the
//! machine is not quiet.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use towpath_testkit::{check_tun, skip};

/// After this time, a command hangs. It is many times as long as any experiment takes, because the
/// machine may be slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// The files of an empty directory.
pub(crate) const NOTHING: [&str; 0] = [];

/// How many more experiments may run now. Each measures for a fixed time on two processors, and its figures
/// are not checked, so two may slow each other. With more, threads that never sleep would hold up the rest.
static PLACES: (Mutex<u32>, Condvar) = (Mutex::new(2), Condvar::new());

/// Experiments that need both places: `card` has two virtual machines at once, and `penn` a simulated card
/// whose engine must not be late.
const ALONE: [&str; 2] = ["card", "penn"];

/// The places of an experiment that runs.
struct Places(u32);

impl Places {
    fn take(name: &str) -> Places {
        let count = if ALONE.contains(&name) { 2 } else { 1 };
        let free = PLACES.0.lock().unwrap();
        *PLACES.1.wait_while(free, |free| *free < count).unwrap() -= count;
        Places(count)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *PLACES.0.lock().unwrap() += self.0;
        PLACES.1.notify_all();
    }
}

/// A private directory, removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-test-lab-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    pub(crate) fn make(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir(&path).unwrap();
        // As /tmp, because some servers run as other users.
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(&path, everyone).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn bench(name: &str, temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-lab"));
    command.args([name, "--quick", "--json"]).env("TMPDIR", temporary);
    command
}

/// Runs a command until it and all of its descendants have ended.
fn run(command: &mut Command) -> Output {
    let child = start(command);
    end_of(command, child)
}

/// Starts a command, and reads its output and that of all its descendants.
pub(crate) fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until no process can write to the outputs of a command, within the limit.
pub(crate) fn end_of(command: &Command, child: Child) -> Output {
    let pid = Pid::from_child(&child);
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match waits.recv_timeout(LIMIT) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("{command:?} took longer than {LIMIT:?}");
        }
    }
}

pub(crate) fn files_of(path: &Path) -> Vec<String> {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn misses(row: &Value) -> bool {
    let value = row["value"].as_f64();
    let (least, most) = (row["at_least"].as_f64(), row["at_most"].as_f64());
    least.is_some_and(|least| value < Some(least))
        || most.is_some_and(|most| value.is_none_or(|value| value > most))
}

/// Runs an experiment, and checks that rows have these words in their names, and that these
/// pictures exist.
pub(crate) fn whole(test: &str, name: &str, rows: &[&str], figures: &[&str]) {
    if let Err(why) = check_tun() {
        skip(test, &why);
        return;
    }
    let _places = Places::take(name);
    let directory = Directory::new();
    let (temporary, out) = (directory.make("tmp"), directory.0.join("out"));
    let output = run(bench(name, &temporary).arg("--check").arg("--out").arg(&out));
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{name}: {}: {error}: {said}", output.status));
    assert_eq!(report["experiment"], name);
    for field in ["commit", "date", "how", "settings"] {
        assert!(report[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    for field in ["kernel", "cpu", "core_map"] {
        assert!(report["machine"][field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    let all: Vec<&Value> = ["rows", "context", "limits"]
        .iter()
        .flat_map(|part| report[*part].as_array().unwrap())
        .collect();
    for row in &all {
        assert!(row["value"].is_number(), "{name}: a row without a figure: {row}");
        assert!(row["samples"].as_u64().is_some_and(|count| count > 0), "{row}");
    }
    // The test accepts a missed limit, but checks that it is a failure.
    let missed: Vec<&str> =
        all.iter().filter(|row| misses(row)).filter_map(|row| row["name"].as_str()).collect();
    let status = i32::from(!missed.is_empty());
    assert_eq!(output.status.code(), Some(status), "{name}: {missed:?} missed: {said}");
    for row in missed {
        assert!(said.contains(&format!("towpath-lab: {row} is ")), "{row} in {said}");
    }
    for words in rows {
        let named = |row: &&&Value| row["name"].as_str().is_some_and(|name| name.contains(words));
        assert!(all.iter().find(named).is_some(), "{name}: no row of {words:?}");
    }
    let written = files_of(&out);
    let mut expected = vec![format!("{name}.json")];
    expected.extend(figures.iter().map(|figure| format!("{name}-{figure}.svg")));
    expected.sort();
    assert_eq!(written, expected);
    let file = std::fs::read(out.join(format!("{name}.json"))).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&file).unwrap(), report, "printed and written");
    for figure in figures {
        let svg = std::fs::read_to_string(out.join(format!("{name}-{figure}.svg"))).unwrap();
        let drawn = svg.matches("<path").count() + svg.matches("<circle").count();
        assert!(svg.ends_with("</svg>\n") && drawn > 1, "{figure}: {drawn} things drawn");
    }
    assert_eq!(files_of(&temporary), NOTHING);
}

//! Completions, as the shells themselves produce them.

use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use towpath_client::{Kind, Setting};
use towpath_testkit::has_programs;

use crate::running::*;

/// The user that asks instead of root: root has no directory of its own beside the system's.
const ASKER: u32 = 61003;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A shell's script, and a runtime directory with listening and seemingly listening servers.
struct Place {
    directory: Directory,
    script: String,
    _listeners: Vec<UnixListener>,
}

impl Place {
    fn new(shell: &str) -> Place {
        let directory = Directory::new();
        // The file name that zsh requires.
        let script = directory.text("_towpath");
        std::fs::write(&script, prints(&mut towpath(&["completions", shell]))).unwrap();
        std::fs::create_dir(directory.join("towpath")).unwrap();
        // The last name contains a command, which a shell would run if the script did not quote it.
        let names = ["opq0.sock", "opq1.sock", "opx.sock", "opz$(touch ran).sock"];
        let listeners =
            names.map(|name| UnixListener::bind(directory.join("towpath").join(name)).unwrap());
        std::fs::write(directory.join("towpath/opq9.sock"), "no socket").unwrap();
        if is_root() {
            chown(directory.join(""), Some(ASKER), Some(ASKER)).unwrap();
        }
        Place { directory, script, _listeners: listeners.into() }
    }

    /// Returns the lines that a shell without any user's settings prints.
    fn says(&self, command: &mut Command) -> Vec<String> {
        let here = self.directory.join("");
        for variable in ["XDG_RUNTIME_DIR", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"] {
            command.env(variable, &here);
        }
        if is_root() {
            command.uid(ASKER).gid(ASKER);
        }
        let output = finish(command.current_dir(&here).env("TERM", "dumb"));
        let complaints = text(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{command:?}: {complaints}");
        assert!(!self.directory.join("ran").exists(), "{command:?} ran a name");
        text(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Asserts that the shells offer no server where the subcommands would not look: in another
    /// user's directory, and behind a link.
    fn offers_none_of_strangers(&self, offered: impl Fn() -> Vec<String>) {
        let own = self.directory.join("towpath");
        assert!(offered().contains(&"opq0".to_owned()));
        if is_root() {
            chown(&own, Some(4242), None).unwrap();
            assert_eq!(offered(), [""; 0], "another user's directory");
            chown(&own, Some(ASKER), None).unwrap();
            assert!(offered().contains(&"opq0".to_owned()), "its own");
        }
        std::fs::rename(&own, self.directory.join("elsewhere")).unwrap();
        symlink(self.directory.join("elsewhere"), &own).unwrap();
        assert_eq!(offered(), [""; 0], "a link may lead anywhere");
    }

    /// Returns bash's offers for the last of the words, divided as bash divides them.
    fn bash(&self, words: &[&str]) -> Vec<String> {
        let ask = r#"
            source "$1" && shift
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
            [[ $(complete -p towpath) =~ -F\ ([^ ]+) ]] || exit 1
            last=${COMP_WORDS[COMP_CWORD]}
            [[ $last != = ]] || last=''
            "${BASH_REMATCH[1]}" towpath "$last" "${COMP_WORDS[COMP_CWORD - 1]}"
            for word in "${COMPREPLY[@]}"; do echo "$word"; done"#;
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "-c", ask, "bash", &self.script, "towpath"]);
        let mut offered = self.says(command.args(words));
        offered.sort();
        offered
    }

    /// Returns fish's offers at the end of a line, without the descriptions.
    fn fish(&self, line: &str) -> Vec<String> {
        let mut command = Command::new("fish");
        let ask = "source $argv[1]; complete -C $argv[2]";
        let lines = self.says(command.args(["--no-config", "-c", ask, &self.script, line]));
        let mut offered: Vec<String> = lines
            .iter()
            .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
            .collect();
        offered.sort();
        offered
    }
}

#[test]
fn bash_completes_subcommands_options_values_and_devices() {
    if !has_programs(
        "completing::bash_completes_subcommands_options_values_and_devices",
        &[("bash", "bash")],
    ) {
        return;
    }
    let place = Place::new("bash");
    assert!(place.says(Command::new("bash").args(["-n", &place.script])).is_empty());
    let all = place.bash(&[""]);
    for subcommand in subcommands() {
        assert!(all.contains(&subcommand), "{subcommand}: {all:?}");
        let offered = place.bash(&[&subcommand, "--"]);
        let mut options = options(&subcommand);
        options.sort();
        // The same, and so nothing hidden.
        assert_eq!(offered, options, "{subcommand}");
    }
    for (words, offered) in [
        (&["ser"][..], &["serve"][..]),
        (&["serve", "--print"], &["--print-config"]),
        (&["serve", "--wait", "p"], &["poll"]),
        (&["serve", "--wait", "=", "p"], &["poll"]),
        (&["serve", "--wait", "="], &["auto", "block", "poll", "spin-then-block", "timer-driven"]),
        (&["completions", "z"], &["zsh"]),
        (&["ls", "--device", "opq"], &["opq0", "opq1"]),
        (&["ls", "--device", "=", "opq1"], &["opq1"]),
        (&["ls", "opq"], &["opq0", "opq1"]),
        (&["set", "opq"], &["opq0", "opq1"]),
        (&["set", "opx", "wait=b"], &["wait=block"]),
        (
            &["set", "opx", "wai"],
            &["wait=auto", "wait=block", "wait=poll", "wait=spin-then-block", "wait=timer-driven"],
        ),
        (&["set", "--li"], &["--list"]),
        // Settings and values for experiments are not offered.
        (&["set", "opx", "quo"], &[]),
        (&["set", "opx", "watchdog=e"], &[]),
        (&["serve", "--set", "watchdog", "=", "l"], &["lazy"]),
        (&["serve", "--set", "=", "watchdog=l"], &["watchdog=lazy"]),
        (&["serve", "--set", "=", "watchdog", "=", "l"], &["lazy"]),
        // It has an option of its own.
        (&["serve", "--set", "wai"], &[]),
        (
            &["set", "opx", "wait", "="],
            &["auto", "block", "poll", "spin-then-block", "timer-driven"],
        ),
        (&["set", "opx", "wait", "=", "p"], &["poll"]),
        (&["set", "opx", "wait=p"], &["wait=poll"]),
        (&["set", "opx", "speed", "="], &[]),
        (&["nothing", "op"], &[]),
    ] {
        assert_eq!(place.bash(words), offered, "{words:?}");
    }
    let offered = place.bash(&["set", "opx", ""]);
    for setting in settings() {
        assert!(offered.iter().any(|one| one.starts_with(&setting)), "{setting}: {offered:?}");
    }
    place.offers_none_of_strangers(|| place.bash(&["set", "opq"]));
}

#[test]
fn fish_completes_subcommands_options_values_and_devices() {
    if !has_programs(
        "completing::fish_completes_subcommands_options_values_and_devices",
        &[("fish", "fish")],
    ) {
        return;
    }
    let place = Place::new("fish");
    let all = place.fish("towpath ");
    for subcommand in subcommands() {
        assert!(all.contains(&subcommand), "{subcommand}: {all:?}");
        let mut options = options(&subcommand);
        options.sort();
        assert_eq!(place.fish(&format!("towpath {subcommand} --")), options, "{subcommand}");
    }
    for (line, offered) in [
        ("towpath ser", &["serve"][..]),
        ("towpath serve --wait p", &["poll"]),
        ("towpath completions z", &["zsh"]),
        ("towpath ls --device opx", &["opx"]),
        ("towpath set opx", &["opx"]),
        ("towpath set opx wait=p", &["wait=poll"]),
    ] {
        assert_eq!(place.fish(line), offered, "{line}");
    }
    let devices = place.fish("towpath stat --device opq");
    assert!(devices.contains(&"opq0".to_owned()) && devices.contains(&"opq1".to_owned()));
    assert!(!devices.contains(&"opq9".to_owned()), "{devices:?}");
    place.offers_none_of_strangers(|| place.fish("towpath set opq"));
}

#[test]
fn zsh_completes_subcommands_options_values_and_devices() {
    if !has_programs(
        "completing::zsh_completes_subcommands_options_values_and_devices",
        &[("zsh", "zsh")],
    ) {
        return;
    }
    let place = Place::new("zsh");
    assert!(place.says(Command::new("zsh").args(["-f", "-n", &place.script])).is_empty());
    // At a terminal: each line after its completion, before the first prompt.
    let settings = r#"
        fpath=($ZDOTDIR $fpath)
        autoload -Uz compinit && compinit -u -D
        zle-line-init() {
            local line
            for line in "${(@f)$(<$ZDOTDIR/lines)}"; do
                BUFFER=$line CURSOR=$#line
                zle complete-word
                print -r -- "$BUFFER" >>$ZDOTDIR/completed
            done
            kill -KILL $$
        }
        zle -N zle-line-init"#;
    std::fs::write(place.directory.join(".zshrc"), settings).unwrap();
    let mut cases: Vec<(String, String)> = [
        ("ser", "serve "),
        ("serve --wait p", "serve --wait poll "),
        ("serve --wait=p", "serve --wait=poll "),
        ("ls --device opx", "ls --device opx "),
        ("ls --device=opx", "ls --device=opx "),
        ("ls --device opq9", "ls --device opq9"),
        ("set opx", "set opx "),
        ("set opz", r"set opz\$\(touch\ ran\) "),
        ("set opx wait=p", "set opx wait=poll "),
        ("set opx 3/0 wei", "set opx 3/0 weight="),
        ("set opx wait=poll watchdog=l", "set opx wait=poll watchdog=lazy "),
        ("serve --set watchdog=l", "serve --set watchdog=lazy "),
        ("serve --set=tic", "serve --set=tick_hz="),
        // The wait strategy has an option of its own, and there are no endpoints yet.
        ("serve --set wai", "serve --set wai"),
        ("serve --set wei", "serve --set wei"),
        ("completions z", "completions zsh "),
        ("nothing op", "nothing op"),
    ]
    .map(|(line, becomes)| (format!("towpath {line}"), format!("towpath {becomes}")))
    .into();
    for subcommand in subcommands() {
        cases.push((format!("towpath {subcommand} --he"), format!("towpath {subcommand} --help ")));
    }
    // A number is to be written behind the `=`.
    for (_, spec) in Setting::ALL {
        if matches!(spec.kind, Kind::Number { .. }) && !spec.is_experimental() {
            let line = format!("towpath set opx {}", spec.name);
            cases.push((line.clone(), format!("{line}=")));
        }
    }
    let lines: String = cases.iter().map(|(line, _)| format!("{line}\n")).collect();
    std::fs::write(place.directory.join("lines"), lines).unwrap();
    let ask =
        "zmodload zsh/zpty; zpty inner zsh -d -i; while zpty -r inner; do :; done >shown; true";
    place.says(Command::new("zsh").args(["-f", "-c", ask]));
    let completed = std::fs::read_to_string(place.directory.join("completed")).unwrap();
    let completed: Vec<&str> = completed.lines().collect();
    let expected: Vec<&str> = cases.iter().map(|(_, becomes)| becomes.as_str()).collect();
    assert_eq!(completed, expected);
    let names = "compdef() { }
        _wanted() { for name in $names; do print -r -- $name; done }
        source $1
        _towpath_devices";
    // All devices: of servers of the machine, too.
    place.offers_none_of_strangers(|| {
        let mut all =
            place.says(Command::new("zsh").args(["-f", "-c", names, "zsh", &place.script]));
        all.retain(|name| name.starts_with("opq"));
        all
    });
}

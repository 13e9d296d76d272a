//! Subcommands that ask a server which does not answer. Each subcommand waits as long as a client
//! does by default.

use std::process::Command;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// The stopped server accepts no connection and answers no request. All subcommands wait at
/// the same time.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let name = format!("towpath-test-silent-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let socket = path.to_str().unwrap();
    let still = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap();
    bind(&still, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&still, 16).unwrap();
    let wanted = format!("{socket}: the driver server did not answer within 10s; see whether");
    let commands = [
        vec!["ls", "--socket", socket],
        vec!["ls", "--json", "--socket", socket],
        vec!["stat", "--socket", socket],
        vec!["set", socket, "tick_hz=500"],
        vec!["capture", "--socket", socket, "-w", "-"],
    ];
    let running: Vec<_> = commands
        .iter()
        .map(|arguments| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
            command.args(arguments).env_clear();
            let (out, err) = (std::process::Stdio::piped(), std::process::Stdio::piped());
            command.stdout(out).stderr(err).spawn().unwrap()
        })
        .collect();
    let ended: Vec<_> = running.into_iter().map(|one| one.wait_with_output().unwrap()).collect();
    std::fs::remove_file(&path).unwrap();
    for (arguments, output) in commands.iter().zip(ended) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(said.starts_with("towpath: "), "{arguments:?}: {said}");
        assert!(said.contains(&wanted), "{arguments:?}: {said}");
    }
}

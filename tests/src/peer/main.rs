//! Servers and applications, good and bad, for the tests of the whole system. The first argument
//! selects the role of this process; the tests state the expectations.

mod applications;
mod attack;
mod channel;
mod confined;
mod forked;
mod forked_sockets;
mod hoarder;
mod hostile;
mod inputs;
mod logged;
mod pdus;
mod random_writer;
mod server;
mod state_page;
mod steps;

use std::path::Path;

fn main() {
    // A process left over by a failed test must not live on.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", socket, ref options @ ..] => server::run(Path::new(socket), options),
        ["pair", socket, seed, ref options @ ..] => {
            applications::pair(Path::new(socket), number(seed), options);
        }
        ["echoed", socket, seed] => applications::echoed(Path::new(socket), number(seed)),
        ["channel", socket] => channel::run(Path::new(socket)),
        ["pdus", socket] => pdus::run(Path::new(socket)),
        ["sleeper", socket] => applications::sleeper(Path::new(socket)),
        ["forked", socket] => forked::run(Path::new(socket)),
        ["forked-sockets", socket, driving] => forked_sockets::run(Path::new(socket), driving),
        ["violations", socket] => hostile::violations(Path::new(socket)),
        ["hoarder", socket, how, leaves] => {
            let how = hoarder::How::named(how);
            hoarder::run(Path::new(socket), how, leaves == "hastily");
        }
        ["random", socket, seed, rounds] => {
            random_writer::run(Path::new(socket), number(seed), number(rounds));
        }
        ["confined", socket, server] => confined::run(Path::new(socket), number(server) as i32),
        ["connection", socket] => applications::connection(Path::new(socket)),
        ["memory", socket] => applications::memory(Path::new(socket)),
        ["state-page", socket] => state_page::run(Path::new(socket)),
        ["step", socket, step] => steps::run(Path::new(socket), number(step)),
        ["attack", name, socket, seconds, ref options @ ..] => {
            attack::attack(name, Path::new(socket), number(seconds), options);
        }
        ["neighbour", socket, ref options @ ..] => attack::neighbour(Path::new(socket), options),
        _ => panic!("no such role: {arguments:?}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

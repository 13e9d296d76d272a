//! An attacker, and the neighbour that measures the cost of the attack.

use std::path::Path;
use std::time::Duration;

use towpath_attacks::neighbour::Neighbour;
use towpath_attacks::{Attack, Field};

/// Attacks until its input ends, at most for this many seconds. Prints `attacking` when the attack
/// has begun. At the end it prints `did WHAT COUNT` for each of its deeds, or `cannot WHY`.
pub(crate) fn attack(name: &str, socket: &Path, seconds: u64, options: &[&str]) {
    let attack = Attack::from_name(name).unwrap_or_else(|| panic!("no attack {name}"));
    let field = Field::new(socket, Duration::from_secs(seconds));
    let field = field.options(options).unwrap_or_else(|wrong| panic!("{wrong}"));
    match attack.run(&field) {
        Ok(deeds) => deeds.iter().for_each(|(what, count)| println!("did {what} {count}")),
        Err(error) => println!("cannot {error}"),
    }
}

/// Prints `running`, and answers `window MS` and `until TRIPS ATTACHES MS` with its measurements.
pub(crate) fn neighbour(socket: &Path, options: &[&str]) {
    let neighbour = Neighbour::start(socket, options.contains(&"spin")).expect("starts");
    println!("running");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let seen = neighbour.follow(&line).unwrap_or_else(|| panic!("no such command: {line}"));
        println!("{seen}");
    }
}

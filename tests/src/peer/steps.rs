//! An application that dies at a step of the handshake, without a message.

use std::path::Path;

use rustix::process::{Signal, getpid, kill_process};
use towpath_memory::SharedFile;
use towpath_protocol::message::{Cursor, Message};
use towpath_tests::raw::{self, Raw};

/// Goes through the handshake up to a step, and is killed there.
pub(crate) fn run(socket: &Path, step: u64) {
    let raw = Raw::connect(socket).expect("connects");
    let mut kept = Vec::new();
    let (mut mapped, mut written) = (Vec::new(), Vec::new());
    for now in 0..step {
        match now {
            0 => raw.say(&Message::Attach(raw::attach("step"))).expect("speaks"),
            1 => match raw.reply(towpath_tests::PATIENCE) {
                raw::Reply::Message(_, descriptors) => kept = descriptors,
                other => panic!("{other:?}"),
            },
            2 => {
                for file in kept.iter().take(3) {
                    let file = SharedFile::adopt(file.try_clone().expect("room")).expect("sealed");
                    mapped.push(file.map_readable().expect("maps"));
                }
                for file in kept.iter().skip(3).take(2) {
                    let file = SharedFile::adopt(file.try_clone().expect("room")).expect("sealed");
                    let mut region = file.map_writable().expect("maps");
                    region.allocate().expect("memory");
                    written.push(region);
                }
            }
            3 => raw.say(&Message::Mapped).expect("speaks"),
            4 => drop(raw.reply(towpath_tests::PATIENCE)),
            5 => raw.say(&Message::Open(raw::open())).expect("speaks"),
            6 => drop(raw.reply(towpath_tests::PATIENCE)),
            7 => raw
                .say(&Message::Close(towpath_protocol::message::Close { endpoint: 0 }))
                .expect("speaks"),
            _ => raw.say(&Message::Report(Cursor::default())).expect("speaks"),
        }
    }
    let _ = kill_process(getpid(), Signal::KILL);
}

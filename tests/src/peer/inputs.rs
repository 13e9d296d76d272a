//! Lines on standard input, without waiting for them.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// A line, or its absence.
pub(crate) enum Input {
    Line(String),
    None,
    Over,
}

/// The lines.
pub(crate) struct Inputs(Receiver<String>);

impl Inputs {
    pub(crate) fn listen() -> Inputs {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Inputs(lines)
    }

    /// Returns the next line, without a system call.
    pub(crate) fn next(&self) -> Input {
        match self.0.try_recv() {
            Ok(line) => Input::Line(line),
            Err(TryRecvError::Empty) => Input::None,
            Err(TryRecvError::Disconnected) => Input::Over,
        }
    }
}

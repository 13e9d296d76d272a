//! Lines on standard input, without waiting for them.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// A line, or its absence.
pub(crate) enum Order {
    Line(String),
    None,
    Over,
}

/// The lines.
pub(crate) struct Orders(Receiver<String>);

impl Orders {
    pub(crate) fn listen() -> Orders {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Orders(lines)
    }

    /// Returns the next line, without a system call.
    pub(crate) fn next(&self) -> Order {
        match self.0.try_recv() {
            Ok(line) => Order::Line(line),
            Err(TryRecvError::Empty) => Order::None,
            Err(TryRecvError::Disconnected) => Order::Over,
        }
    }
}

//! The terminal that is recorded: lines of commands and of this program, with their times.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use towpath_report::cast::Line;

/// A terminal that several threads write to.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    start: Instant,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { start: Instant::now(), lines: Arc::default() }
    }

    /// Shows a line now.
    pub(crate) fn show(&self, text: &str) {
        let text = text.replace(char::is_control, " ").trim_end().to_owned();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that times never go back.
        lines.push(Line { at: self.start.elapsed().as_secs_f64(), text });
    }

    /// Shows what a program prints, as it comes, until the program closes it.
    pub(crate) fn follow(&self, output: impl Read + Send + 'static) -> JoinHandle<()> {
        let screen = self.clone();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| screen.show(&line));
        })
    }

    /// Returns `true` if a line contains this text.
    pub(crate) fn shows(&self, text: &str) -> bool {
        self.lines().iter().any(|line| line.text.contains(text))
    }

    /// Returns all lines so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_order_and_lose_controls() {
        let screen = Screen::new();
        screen.show("$ one");
        screen.follow(&b"two\x1b[0m  \nthree"[..]).join().unwrap();
        let lines = screen.lines();
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["$ one", "two [0m", "three"]);
        assert!(lines.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(screen.shows("wo") && !screen.shows("four"));
    }
}

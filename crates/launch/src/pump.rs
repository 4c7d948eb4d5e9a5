//! Carries a stream of a rank to its file and to the console, and remembers its last lines.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::outputs::Console;

/// Lines that are repeated when a rank fails.
pub const TAIL_LINES: usize = 10;
/// A line longer than this is cut when it is remembered or prefixed.
const MAX_LINE: usize = 64 << 10;
/// What is remembered of one line.
const MAX_TAIL_LINE: usize = 500;

/// One of the launcher's own streams, shared by all that print.
#[derive(Clone)]
pub struct Screen(Arc<Mutex<Box<dyn Write + Send>>>);

impl Screen {
    /// A screen that writes to `out`.
    pub fn new(out: Box<dyn Write + Send>) -> Screen {
        Screen(Arc::new(Mutex::new(out)))
    }

    /// Writes in one piece. A reader that is gone (`| head`) must not stop the run, so errors end here.
    pub fn write(&self, bytes: &[u8]) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }

    /// Writes a line in the launcher's name.
    pub fn say(&self, text: &str) {
        self.write(format!("ferrotron launch: {text}\n").as_bytes());
    }
}

/// The last lines of a stream.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(&line[..line.len().min(MAX_TAIL_LINE)]).trim_end().to_string();
        if text.is_empty() {
            return;
        }
        let mut lines = self.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(text);
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }
}

/// The last lines of a file, oldest first; none if it cannot be read.
pub fn tail_of_file(path: &Path) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16 << 10)))?;
        let mut bytes = Vec::new();
        file.take(16 << 10).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let tail = Tail::default();
    read().unwrap_or_default().split(|b| *b == b'\n').for_each(|line| tail.push(line));
    tail.lines()
}

/// Where a pump writes.
pub struct Targets {
    /// The console, if any.
    pub screen: Option<Screen>,
    /// How it shows there.
    pub console: Console,
    /// What stands before each line, if prefixed.
    pub prefix: String,
    /// The file, if any.
    pub file: Option<File>,
}

/// All pumps of a run.
pub struct Pumps {
    done: Sender<()>,
    finished: Receiver<()>,
    running: usize,
}

impl Pumps {
    /// None yet.
    pub fn new() -> Pumps {
        let (done, finished) = channel();
        Pumps { done, finished, running: 0 }
    }

    /// Starts carrying `from`; returns where its last lines will be.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(&mut self, from: impl Read + Send + 'static, to: Targets) -> io::Result<Tail> {
        let tail = Tail::default();
        let (kept, done) = (tail.clone(), self.done.clone());
        thread::Builder::new().name("pump".to_string()).spawn(move || {
            carry(from, to, &kept);
            let _ = done.send(()); // nobody waits any more: fine
        })?;
        self.running += 1;
        Ok(tail)
    }

    /// Waits until all streams have ended, at most `limit`: a grandchild may keep one open for ever.
    pub fn finish(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.running > 0 {
            match self.finished.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => self.running -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
    }
}

fn carry(mut from: impl Read, mut to: Targets, tail: &Tail) {
    let mut buffer = vec![0; 16 << 10];
    let mut line = Vec::new();
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => &buffer[..n],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if let Some(file) = &mut to.file
            && let Err(e) = file.write_all(bytes)
        {
            to.file = None;
            if let Some(screen) = &to.screen {
                screen.say(&format!("a log file ends here: {e}"));
            }
        }
        if let (Console::Plain, Some(screen)) = (to.console, &to.screen) {
            screen.write(bytes);
        }
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") || line.len() >= MAX_LINE {
                finish_line(&mut line, &to, tail);
            }
        }
    }
    if !line.is_empty() {
        finish_line(&mut line, &to, tail);
    }
}

fn finish_line(line: &mut Vec<u8>, to: &Targets, tail: &Tail) {
    tail.push(line);
    if let (Console::Prefixed, Some(screen)) = (to.console, &to.screen) {
        let mut whole = to.prefix.clone().into_bytes();
        whole.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            whole.push(b'\n');
        }
        screen.write(&whole);
    }
    line.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn carried(text: &[u8], console: Console) -> (String, Vec<String>) {
        let page = Page::default();
        let screen = Some(Screen::new(Box::new(page.clone())));
        let tail = Tail::default();
        carry(text, Targets { screen, console, prefix: "[default1]:".to_string(), file: None }, &tail);
        let shown = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        (shown, tail.lines())
    }

    #[test]
    fn prefixes_whole_lines_and_ends_the_last() {
        let (shown, tail) = carried(b"a\n\nb", Console::Prefixed);
        assert_eq!(shown, "[default1]:a\n[default1]:\n[default1]:b\n");
        assert_eq!(tail, ["a", "b"]);
    }

    #[test]
    fn plain_is_byte_for_byte_and_the_tail_is_bounded() {
        let text: String = (0..100).map(|i| format!("line {i}\r\n")).collect();
        let (shown, tail) = carried(text.as_bytes(), Console::Plain);
        assert_eq!(shown, text);
        assert_eq!((tail.len(), tail[0].as_str(), tail[9].as_str()), (TAIL_LINES, "line 90", "line 99"));
    }

    #[test]
    fn a_line_without_end_does_not_fill_memory() {
        let (shown, tail) = carried(&vec![b'x'; 3 * MAX_LINE], Console::Prefixed);
        assert_eq!(shown.lines().count(), 3);
        assert_eq!(tail[0].len(), MAX_TAIL_LINE);
    }
}

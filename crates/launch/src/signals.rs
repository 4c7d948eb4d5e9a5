//! Signals to the launcher, turned into events of its loop.

use std::io::{self, BufRead};
use std::sync::mpsc::Sender;
use std::thread;

use signal_hook::iterator::{Handle, Signals};

use crate::ending::signal_number;
use crate::raw;
use crate::supervise::Event;

/// Signals that end a run: the ranks may still save, then all is over.
pub const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Signals that are only passed on.
const PASSED: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// Listens until dropped.
pub struct Watch {
    handle: Handle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Sends every signal that can be passed on as an event. SIGHUP stays ignored where it was (`nohup`).
///
/// # Errors
/// The system refuses a handler.
pub fn watch(events: Sender<Event>) -> io::Result<Watch> {
    let wanted = ENDING.iter().chain(&PASSED).copied();
    let mut signals = Signals::new(wanted.filter(|s| *s != libc::SIGHUP || !raw::is_ignored(*s)))?;
    let handle = signals.handle();
    thread::Builder::new().name("signals".to_string()).spawn(move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    })?;
    Ok(Watch { handle })
}

/// Takes names of signals from standard input, a line each; its end, when the other side is gone, is SIGTERM. A launcher
/// started through ssh is told of signals this way, for ssh itself carries none.
///
/// # Errors
/// No thread can be started.
pub fn watch_stdin(events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().name("control".to_string()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(signal) = signal_number(line.trim())
                && events.send(Event::Signal(signal)).is_err()
            {
                return;
            }
        }
        // The loop may be over already: then nobody needs the event.
        let _ = events.send(Event::Signal(libc::SIGTERM));
    })?;
    Ok(())
}

//! One member of the supervised group: how it is started, told of signals, killed.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use crate::ending::{Ending, signal_name};
use crate::outputs::{Console, RankSinks};
use crate::pump::{Pumps, Screen, Tail, Targets, tail_of_file};
use crate::supervise::{Event, Settings};
use crate::{raw, signals};

/// How a member is told of signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Its whole process group gets them.
    Group,
    /// Their names are written to its standard input (a launcher behind ssh).
    Stdin,
    /// The process itself passes them on to its tasks (srun, which takes a SIGINT for a question).
    Process,
    /// A command is run, with `{signal}` replaced by the name (a launcher behind pdsh).
    Command(Vec<String>),
}

/// A member to be started.
pub struct Member {
    /// What messages call it: `rank 3 (local rank 1)`.
    pub name: String,
    /// What is run.
    pub command: Command,
    /// How it is told of signals.
    pub reach: Reach,
    /// Where its streams go.
    pub sinks: RankSinks,
    /// What stands before its lines on the console, where they are prefixed.
    pub prefix: String,
    /// Its log files for standard output and standard error, where there are any.
    pub files: [Option<PathBuf>; 2],
}

/// A member that was started.
pub struct Started {
    /// What messages call it.
    pub name: String,
    /// The process; it leads a group of its own.
    pub child: Child,
    /// How and when it ended.
    pub ended: Option<(Ending, Instant)>,
    /// Whether it ended before the launcher told it to.
    pub by_itself: bool,
    stdin: Option<ChildStdin>,
    reach: Reach,
    tail: Option<Tail>,
    log: Option<PathBuf>,
}

impl Started {
    /// Tells it of a signal.
    pub fn signal(&mut self, signal: i32) {
        match &self.reach {
            Reach::Group => {
                raw::signal_group(self.child.id(), signal);
                if signals::ENDING.contains(&signal) {
                    // A stopped process acts on a signal only once it goes on.
                    raw::signal_group(self.child.id(), libc::SIGCONT);
                }
            }
            Reach::Process => {
                let signal = if signal == libc::SIGINT { libc::SIGTERM } else { signal };
                raw::signal_process(self.child.id(), signal);
            }
            Reach::Stdin => {
                let line = format!("{}\n", signal_name(signal));
                if self.stdin.as_mut().is_some_and(|s| s.write_all(line.as_bytes()).is_err()) {
                    self.stdin = None; // gone; its end is on the way
                }
            }
            Reach::Command(words) => {
                let name = signal_name(signal);
                let mut words = words.iter().map(|w| w.replace("{signal}", name.trim_start_matches("SIG")));
                if let Some(program) = words.next() {
                    let mut command = Command::new(program);
                    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                    // A messenger that cannot start leaves the member to the deadline.
                    if let Ok(mut messenger) = command.spawn() {
                        thread::spawn(move || messenger.wait());
                    }
                }
            }
        }
    }

    /// Kills it and what it started.
    pub fn kill(&mut self) {
        self.stdin = None;
        raw::signal_group(self.child.id(), libc::SIGKILL);
    }

    /// The end of its standard error, as it passed through here or from its log file.
    pub fn last_lines(&self) -> Vec<String> {
        match (&self.tail, &self.log) {
            (Some(tail), _) => tail.lines(),
            (None, Some(log)) => tail_of_file(log),
            (None, None) => Vec::new(),
        }
    }
}

/// Starts a member, its pumps, and the thread that waits for its end.
///
/// # Errors
/// The program cannot be started, a log file not made.
pub fn start(
    member: Member,
    index: usize,
    settings: &Settings,
    pumps: &mut Pumps,
    sender: &Sender<Event>,
) -> io::Result<Started> {
    let Member { name, mut command, reach, sinks, prefix, files } = member;
    command.stdin(if reach == Reach::Stdin { Stdio::piped() } else { Stdio::null() });
    let open = |at: usize| files[at].as_ref().map(File::create).transpose();
    let (out_file, err_file) = (open(0)?, open(1)?);
    let direct = |console: Console, file: &Option<File>| match (console, file) {
        (Console::Silent, Some(file)) => Ok(Stdio::from(file.try_clone()?)),
        (Console::Silent, None) => Ok(Stdio::null()),
        _ => Ok::<Stdio, io::Error>(Stdio::piped()),
    };
    // Standard error passes through here even when plain, so that its last lines can be repeated.
    let plain_out = sinks.stdout.console == Console::Plain && out_file.is_none();
    command.stdout(if plain_out { Stdio::inherit() } else { direct(sinks.stdout.console, &out_file)? });
    let hidden_err = sinks.stderr.console == Console::Silent && err_file.is_none();
    command.stderr(if hidden_err { Stdio::piped() } else { direct(sinks.stderr.console, &err_file)? });
    raw::bind_to_parent(&mut command);
    let mut child = command.spawn()?;
    let pid = child.id();
    let attempt = settings.attempt;
    let sender = sender.clone();
    let targets = |console: Console, screen: &Screen, file: Option<File>| {
        let screen = (console != Console::Silent).then(|| screen.clone());
        Targets { screen, console, prefix: prefix.clone(), file }
    };
    let carry = || -> io::Result<Option<Tail>> {
        if let Some(stdout) = child.stdout.take() {
            pumps.start(stdout, targets(sinks.stdout.console, settings.stdout, out_file))?;
        }
        let stderr = child.stderr.take();
        let tail = stderr.map(|s| pumps.start(s, targets(sinks.stderr.console, settings.stderr, err_file)));
        let waiter = move || {
            let ending = raw::wait_without_reaping(pid).unwrap_or(Ending::Code(1));
            // After the end of the loop nobody listens.
            let _ = sender.send(Event::Ended { attempt, member: index, ending, at: Instant::now() });
        };
        thread::Builder::new().name(format!("wait-{index}")).spawn(waiter)?;
        tail.transpose()
    };
    match carry() {
        Ok(tail) => {
            let stdin = child.stdin.take();
            let log = files.into_iter().flatten().next_back();
            Ok(Started { name, child, stdin, reach, tail, log, ended: None, by_itself: true })
        }
        Err(error) => {
            raw::signal_group(pid, libc::SIGKILL);
            child.wait()?;
            Err(error)
        }
    }
}

//! Starts, watches and ends the ranks of a run: torchrun's and deepspeed's command lines, and stand-ins for old scripts.
//!
//! [`run`] is `ferrotron launch`, [`shims`] is `ferrotron shims`; both return the exit code.

mod devices;
mod ending;
mod environment;
mod flags;
mod guard;
mod hosts;
mod logs;
mod member;
mod outputs;
mod plan;
mod port;
mod program;
mod pump;
mod raw;
mod remote;
mod shims;
mod signals;
mod supervise;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ferrotron_config::{Severity, Violation, report};

use ending::{Ending, signal_name};
use member::{Member, Reach};
use outputs::Sink;
use plan::{Local, Plan, Planned, Port, Surroundings};
use pump::Screen;
use remote::Remote;
use supervise::{Event, Outcome, Settings};

pub use shims::shims;
pub use supervise::EXIT_PEER_ENDED;

const NAME: &str = "ferrotron launch";
/// Exit code of a command line with mistakes, as argparse's.
const USAGE: u8 = 2;
/// Exit code when the launcher itself cannot do its work.
const BROKEN: u8 = 1;
/// Time that the other ranks get after a failure. A run must be over within five seconds of it.
const FAILURE_GRACE: Duration = Duration::from_secs(3);
/// The same for launchers on other nodes, whose ranks must hear of it first. Those that take longer lose their connection
/// and kill their ranks.
const REMOTE_FAILURE_GRACE: Duration = Duration::from_secs(4);

/// `ferrotron launch`: `argv` without the words `ferrotron launch`. Starts the ranks of this node, or a launcher on each
/// of several nodes, and returns when all have ended: 0 if all did their work, the code of the first failure (128 + signal
/// if a signal killed it), 2 for a command line with mistakes, which are all printed before anything starts.
///
/// Call it on the main thread: the ranks are killed when the calling thread ends.
pub fn run(argv: &[String]) -> u8 {
    let stdout = Screen::new(Box::new(std::io::stdout()));
    let stderr = Screen::new(Box::new(std::io::stderr()));
    let around = match Surroundings::of_process() {
        Ok(around) => around,
        Err(e) => {
            stderr.say(&format!("cannot read the working folder: {e}"));
            return BROKEN;
        }
    };
    let typed = flags::parse(argv, &|name| around.env.get(name).cloned());
    if typed.help {
        stdout.write(flags::help().as_bytes());
        return 0;
    }
    let planned = match plan::plan(&typed, &around) {
        Ok(planned) => planned,
        Err(violations) => {
            stderr.write(report(NAME, &violations).as_bytes());
            return USAGE;
        }
    };
    let Planned { plan, notices } = planned;
    notices.iter().for_each(|n| stderr.say(n));
    raw::expect_children();
    let (sender, events) = channel();
    let watch = match signals::watch(sender.clone()) {
        Ok(watch) => watch,
        Err(e) => {
            stderr.say(&format!("cannot listen for signals: {e}"));
            return BROKEN;
        }
    };
    let session = Session { stdout, stderr, sender, events, host: around.host };
    let code = match plan {
        Plan::Local(local) => session.local(&local),
        Plan::Remote(remote) => session.remote(&remote),
    };
    drop(watch);
    code
}

/// What all attempts of a run share.
struct Session {
    stdout: Screen,
    stderr: Screen,
    sender: Sender<Event>,
    events: Receiver<Event>,
    host: String,
}

/// Removes the file with the process id at the end.
struct PidFile<'a>(Option<&'a Path>);

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = fs::remove_file(path); // it may have been removed: fine
        }
    }
}

impl Session {
    fn local(&self, local: &Local) -> u8 {
        if let Some(path) = &local.pid_file
            && let Err(e) = fs::write(path, format!("{}\n", std::process::id()))
        {
            return self.refuse(format!("cannot write --pid-file {}: {e}", path.display()));
        }
        let _pid_file = PidFile(local.pid_file.as_deref());
        if local.control_stdin
            && let Err(e) = signals::watch_stdin(self.sender.clone())
        {
            return self.refuse(format!("cannot watch standard input: {e}"));
        }
        let folder = match logs::folder(local) {
            Ok(folder) => folder,
            Err(e) => return self.refuse(e.to_string()),
        };
        if let Some(folder) = &folder {
            self.stderr.say(&format!("the log files are in {}", folder.display()));
        }
        let mut attempt = 0;
        loop {
            let port = match local.master_port {
                Port::Given(port) => port,
                Port::Free => match port::free() {
                    Ok(port) => port,
                    Err(e) => return self.refuse(format!("the system gives no free port: {e}")),
                },
            };
            let members = match self.ranks(local, folder.as_deref(), port, attempt) {
                Ok(members) => members,
                Err(e) => return self.refuse(e.to_string()),
            };
            let outcome = self.attempt(members, local.grace, FAILURE_GRACE, attempt);
            let failed = outcome.first.is_some() || outcome.not_started.is_some();
            if failed && outcome.signal.is_none() && outcome.not_started.is_none() && attempt < local.max_restarts {
                attempt += 1;
                let what = outcome.first.map_or(String::new(), |f| format!("{} {}; ", f.name, f.ending));
                self.stderr.say(&format!("{what}all ranks start again (restart {attempt} of {})", local.max_restarts));
                continue;
            }
            let ranks = local.local_world_size();
            return self.conclude(&outcome, ranks, "ranks", &local.program.line(), folder.as_deref());
        }
    }

    fn remote(&self, remote: &Remote) -> u8 {
        let members = remote.clients.iter().map(remote::Client::member).collect();
        let outcome = self.attempt(members, remote.grace, REMOTE_FAILURE_GRACE, 0);
        self.conclude(&outcome, remote.clients.len(), "hosts", &remote.line, None)
    }

    fn attempt(&self, members: Vec<Member>, grace: Duration, failure_grace: Duration, attempt: u32) -> Outcome {
        let settings = Settings { attempt, grace, failure_grace, stdout: &self.stdout, stderr: &self.stderr };
        supervise::run(members, &settings, &self.events, &self.sender)
    }

    fn refuse(&self, what: String) -> u8 {
        let violation = Violation::new(Severity::Invalid, &[], what);
        self.stderr.write(report(NAME, &[violation]).as_bytes());
        BROKEN
    }

    fn ranks(
        &self,
        local: &Local,
        logs: Option<&Path>,
        port: u16,
        attempt: u32,
    ) -> Result<Vec<Member>, logs::LogError> {
        let member = |local_rank: usize| {
            let mut command = Command::new(&local.program.path);
            command.args(&local.program.args);
            command.envs(environment::of_rank(local, local_rank, port, attempt));
            let rank = local.first_rank() + local_rank;
            let place = if local.slots.len() == 1 { String::new() } else { format!(" (local rank {local_rank})") };
            let sinks = local.outputs.ranks[local_rank];
            let file = |sink: Sink, name: &str| {
                let folder = logs.filter(|_| sink.file)?;
                Some(logs::of_rank(folder, attempt, local_rank).map(|f| f.join(name)))
            };
            let files = [file(sinks.stdout, "stdout.log").transpose()?, file(sinks.stderr, "stderr.log").transpose()?];
            Ok(Member {
                name: format!("rank {rank}{place}"),
                command,
                reach: Reach::Group,
                sinks,
                prefix: format!("[{}{local_rank}]:", local.role),
                files,
            })
        };
        (0..local.local_world_size()).map(member).collect()
    }

    /// Says how it ended, the first cause in the last line, and gives the exit code.
    fn conclude(&self, outcome: &Outcome, members: usize, noun: &str, line: &str, logs: Option<&Path>) -> u8 {
        let say = |text: &str| self.stderr.say(text);
        if !outcome.killed.is_empty() {
            say(&format!("had to be killed, for not ending in time: {}", some(&outcome.killed)));
        }
        if let Some((name, error)) = &outcome.not_started {
            say(&format!("the command was: {}", short(line)));
            let hint = match error.raw_os_error() {
                Some(libc::ENOENT) => " (the program, or the interpreter in its #! line, is not there)",
                _ => "",
            };
            say(&format!("{name} on {} could not be started: {error}{hint}", self.host));
            return if error.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 };
        }
        let Some(first) = &outcome.first else {
            if let Some(signal) = outcome.signal {
                say(&format!("ended by {}: all {members} {noun} finished with code 0", signal_name(signal)));
            }
            return 0;
        };
        if let Some(signal) = outcome.signal {
            let code = match first.ending {
                Ending::Code(_) => first.ending.exit_code(),
                Ending::Signal(_) => Ending::Signal(signal).exit_code(),
            };
            say(&format!(
                "ended by {}: first {} on {} {}; exit code {code}",
                signal_name(signal),
                first.name,
                self.host,
                first.ending
            ));
            return code;
        }
        if first.tail.is_empty() {
            say(&format!("{} failed first, without a word on standard error", first.name));
        } else {
            say(&format!("{} failed first; its last lines:", first.name));
            first.tail.iter().for_each(|l| self.stderr.write(format!("  | {l}\n").as_bytes()));
        }
        say(&format!("the command was: {}", short(line)));
        if let Some(folder) = logs {
            say(&format!("the log files are in {}", folder.display()));
        }
        let ended = match outcome.stopped {
            0 => String::new(),
            n => format!("; {n} other {noun} were ended"),
        };
        // A launcher elsewhere has said the cause in its own last line.
        let told = first.tail.last().and_then(|l| l.strip_prefix("ferrotron launch: "));
        say(&match told {
            Some(cause) => format!("{}: {cause}{ended}", first.name),
            None => format!(
                "{} (pid {} on {}) {} after {:.1} s{ended}",
                first.name,
                first.pid,
                self.host,
                first.ending,
                first.after.as_secs_f64()
            ),
        });
        first.ending.exit_code()
    }
}

/// A command line short enough to be read.
fn short(line: &str) -> String {
    const LENGTH: usize = 600;
    let mut text: String = line.chars().take(LENGTH).collect();
    if text.len() < line.len() {
        text.push_str(" ...");
    }
    text
}

/// The first names of a list, and how many more there are.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

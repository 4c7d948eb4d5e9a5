//! How a process ended, as a number and in words.

use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Ending {
    /// Whether it did what it was asked.
    pub fn is_success(self) -> bool {
        self == Ending::Code(0)
    }

    /// The exit code a shell would report: the code itself, or 128 + signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Code(code) => u8::try_from(code & 0xff).unwrap_or(1),
            Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ending::Code(code) => {
                write!(f, "exited with code {code}")?;
                match code {
                    126 => f.write_str(" (a shell's word for: found, but cannot be executed)"),
                    127 => f.write_str(" (a shell's word for: command not found)"),
                    129..=159 => write!(f, " (a shell's word for {})", signal_name(code - 128)),
                    _ => Ok(()),
                }
            }
            Ending::Signal(signal) => {
                write!(f, "was killed by signal {signal} ({})", signal_name(signal))?;
                match signal {
                    libc::SIGKILL => f.write_str(": the system ran out of memory, or somebody killed it (see dmesg)"),
                    libc::SIGSEGV | libc::SIGBUS => f.write_str(": it touched memory that it does not have"),
                    libc::SIGILL => f.write_str(": it was built for another processor"),
                    libc::SIGABRT => f.write_str(": it gave up by itself"),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Signals by their usual names.
const NAMES: [(i32, &str); 17] = [
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGSYS, "SIGSYS"),
];

/// The name of a signal, or its number.
pub fn signal_name(signal: i32) -> String {
    NAMES.iter().find(|(n, _)| *n == signal).map_or(format!("signal {signal}"), |(_, name)| name.to_string())
}

/// The signal of a name, with or without `SIG`.
pub fn signal_number(name: &str) -> Option<i32> {
    NAMES.iter().find(|(_, n)| *n == name || n.strip_prefix("SIG") == Some(name)).map(|(n, _)| *n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_in_words_and_codes() {
        for (ending, code, words) in [
            (Ending::Code(0), 0, "exited with code 0"),
            (Ending::Code(7), 7, "exited with code 7"),
            (Ending::Code(143), 143, "exited with code 143 (a shell's word for SIGTERM)"),
            (Ending::Signal(6), 134, "was killed by signal 6 (SIGABRT): it gave up by itself"),
            (Ending::Signal(40), 168, "was killed by signal 40 (signal 40)"),
        ] {
            assert_eq!((ending.exit_code(), ending.to_string().as_str()), (code, words));
        }
        assert!(Ending::Signal(9).to_string().contains("memory"));
        assert_eq!((signal_number("USR1"), signal_number("SIGTERM"), signal_number("x")), (Some(10), Some(15), None));
    }
}

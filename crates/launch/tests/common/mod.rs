//! A folder for one test, scripts in it, and the launcher as a process that never outlives the test.

#![allow(dead_code)] // each test file uses its own part

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. The machine may be busy with other builds.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A folder that is removed at the end of the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("ferrotron-launch-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Dir(path.canonicalize().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// An executable script; `$DIR` in it is this folder.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.write(name, &format!("#!/bin/sh\nDIR='{}'\n{body}\n", self.0.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The launcher, in a clean environment with this folder as working folder.
    pub fn launcher(&self, command: &str, words: &[&str]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_launch-for-tests")), &[&[command], words].concat())
    }

    pub fn launch(&self, words: &[&str]) -> Command {
        self.launcher("launch", words)
    }

    pub fn program(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.args(words).current_dir(&self.0).env_clear().env("PATH", path);
        command
    }

    /// Waits until a file has as many lines.
    pub fn wait_for_lines(&self, name: &str, lines: usize) -> Vec<String> {
        let until = Instant::now() + LIMIT;
        loop {
            let text = self.read(name);
            if text.ends_with('\n') && text.lines().count() >= lines {
                return text.lines().map(String::from).collect();
            }
            assert!(Instant::now() < until, "{name} has after {LIMIT:?} only:\n{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a finished process left.
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Done {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 1000 + self.status.signal().unwrap_or(0))
    }

    pub fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Done {
        assert_eq!(self.code(), code, "out:\n{}\nerr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// A process that runs while the test looks on.
pub struct Running {
    pub child: Child,
    start: Instant,
    files: [PathBuf; 2],
}

/// Starts a command with its streams in files, so that no pipe can block or outlive it.
pub fn start(dir: &Dir, mut command: Command) -> Running {
    let unique = format!("{:?}", std::thread::current().id()).replace(|c: char| !c.is_ascii_digit(), "");
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let files = ["out", "err"].map(|n| dir.path(&format!("{n}-{unique}-{nanos}")));
    let [out, err] = [&files[0], &files[1]].map(|f| fs::File::create(f).unwrap());
    let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
    Running { child, start: Instant::now(), files }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.files[1]).unwrap()
    }

    /// Waits until standard error holds a text.
    pub fn wait_for(&self, text: &str) {
        let until = Instant::now() + LIMIT;
        while !self.stderr().contains(text) {
            assert!(Instant::now() < until, "no '{text}' in:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn finish(mut self) -> Done {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("still running after {LIMIT:?}:\n{}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = self.start.elapsed();
        let [stdout, stderr] = [&self.files[0], &self.files[1]].map(|f| fs::read_to_string(f).unwrap());
        Done { status, stdout, stderr, took }
    }
}

pub fn finish(dir: &Dir, command: Command) -> Done {
    start(dir, command).finish()
}

/// Sends a signal by name.
pub fn kill(signal: &str, pid: u32) {
    let status = Command::new("/bin/sh").arg("-c").arg(format!("kill -{signal} {pid}")).status().unwrap();
    assert!(status.success(), "kill -{signal} {pid}");
}

/// Whether a process is there and no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// Waits until none of the processes is left.
#[track_caller]
pub fn wait_until_gone(pids: &[u32], limit: Duration) {
    let until = Instant::now() + limit;
    while pids.iter().any(|p| is_alive(*p)) {
        assert!(Instant::now() < until, "left: {:?}", pids.iter().filter(|p| is_alive(**p)).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn numbers(lines: &[String]) -> Vec<u32> {
    lines.iter().map(|l| l.trim().parse().unwrap()).collect()
}

//! A small helper process that ends the ranks' process groups when the launcher is killed.
//!
//! The parent-death signal reaches the ranks themselves but not what they started (a rank may be a shell script). The
//! guard knows the groups and reads from a pipe whose other end only the launcher holds: when that end closes with
//! groups still noted, the launcher was killed, and they are killed too.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Reads `add PID` and `end PID`; at the end of input kills the groups that are left.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM USR1 USR2
groups=
while read -r word pid; do
    if [ "$word" = add ]; then
        groups="$groups $pid"
    else
        left=
        for group in $groups; do [ "$group" = "$pid" ] || left="$left $group"; done
        groups=$left
    fi
done
for group in $groups; do kill -KILL -"$group"; done
"#;

/// The helper. Dropping it lets it end.
pub struct Guard {
    child: Option<Child>,
}

impl Guard {
    /// Starts the helper. Without a shell there is none: then no rank is a shell script either, and the parent-death
    /// signal reaches them.
    pub fn start() -> Guard {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(SCRIPT).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Guard { child: command.spawn().ok() }
    }

    /// The group that this process leads lives and dies with the launcher.
    pub fn add(&mut self, leader: u32) {
        self.tell("add", leader);
    }

    /// The group is no longer the launcher's. Call before the leader is reaped.
    pub fn end(&mut self, leader: u32) {
        self.tell("end", leader);
    }

    fn tell(&mut self, word: &str, leader: u32) {
        if let Some(stdin) = self.child.as_mut().and_then(|c| c.stdin.as_mut()) {
            // If somebody killed the helper, the parent-death signal is what remains.
            let _ = stdin.write_all(format!("{word} {leader}\n").as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            let _ = child.wait(); // it ends at the end of its input
        }
    }
}

//! The system calls that the standard library does not offer: parent-death signals, process groups, waiting without
//! reaping. All `unsafe` of this crate is here.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ending::Ending;

/// Puts the child in a process group of its own, has it killed when the thread that starts it ends (so also when the
/// launcher is killed), and gives it back the default reactions that a background shell may have taken away.
pub fn bind_to_parent(command: &mut Command) {
    let parent = std::process::id() as libc::pid_t;
    command.process_group(0);
    let prepare = move || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: plain system call, no memory is passed.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: as above; the option takes one number.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the call above: then no signal will come.
        // SAFETY: as above.
        if unsafe { libc::getppid() } != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: `prepare` makes system calls that are allowed between fork and exec, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a signal to one process. A process that is gone is no error.
pub fn signal_process(pid: u32, signal: i32) {
    // SAFETY: plain system call; the result tells only that the process is gone or another user's.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Sends a signal to the process group that `pid` leads. The leader must not have been reaped, or the number could be
/// another's by now.
pub fn signal_group(pid: u32, signal: i32) {
    // SAFETY: plain system call.
    unsafe { libc::kill(-(pid as libc::pid_t), signal) };
}

/// Waits until the child has ended, leaving it to be reaped, so that its number stays its own.
pub fn wait_without_reaping(pid: u32) -> io::Result<Ending> {
    loop {
        // SAFETY: `siginfo_t` is plain data for which all zeros is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` outlives the call, which writes at most one `siginfo_t`.
        let rc = unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT) };
        if rc == 0 {
            // SAFETY: waitid succeeded, so the fields of SIGCHLD are filled.
            let status = unsafe { info.si_status() };
            return Ok(if info.si_code == libc::CLD_EXITED { Ending::Code(status) } else { Ending::Signal(status) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Children must be waited for even if this process was started with SIGCHLD ignored.
pub fn expect_children() {
    // SAFETY: plain system call; the default action of SIGCHLD runs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Whether this process was started with the signal ignored (`nohup` does that with SIGHUP).
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: `sigaction` is plain data for which all zeros is a value.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is passed, and `old` outlives the call.
    let rc = unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) };
    rc == 0 && old.sa_sigaction == libc::SIG_IGN
}

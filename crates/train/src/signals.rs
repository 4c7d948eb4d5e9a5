//! Signals that end a run between two iterations, never inside one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrotron_config::settings::{ExitConfig, ExitSignal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::Result;
use crate::step::Leave;

/// What a received signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Save, then leave with success (`--exit-signal-handler`).
    SaveAndExit,
    /// Leave with 128 + the signal's number, without a save.
    Stop(i32),
}

impl Asked {
    /// The wish that all ranks hear of.
    pub fn wish(self) -> Leave {
        match self {
            Asked::SaveAndExit => Leave::Save,
            Asked::Stop(_) => Leave::Stop,
        }
    }
}

/// Watches the signals of a process, for all of its ranks. A second Ctrl-C or SIGTERM ends the process at once.
#[derive(Clone)]
pub struct Signals {
    last: Arc<AtomicUsize>,
    save_on: Option<i32>,
}

impl Signals {
    /// Starts to watch.
    pub fn watch(exit: &ExitConfig) -> Result<Signals> {
        let save_on = exit.signal_handler.then_some(match exit.signal {
            ExitSignal::Term => SIGTERM,
            ExitSignal::Int => SIGINT,
            ExitSignal::Hup => SIGHUP,
            ExitSignal::Usr1 => SIGUSR1,
            ExitSignal::Usr2 => SIGUSR2,
        });
        let last = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM].into_iter().chain(save_on.filter(|s| ![SIGINT, SIGTERM].contains(s))) {
            // Order matters: the shutdown looks at the flag before the second registration sets it.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
            signal_hook::flag::register(signal, again.clone())?;
            signal_hook::flag::register_usize(signal, last.clone(), signal as usize)?;
        }
        Ok(Signals { last, save_on })
    }

    /// The signal that asks for an end without a save, if one came.
    pub fn stop(&self) -> Option<i32> {
        match self.asked() {
            Some(Asked::Stop(signal)) => Some(signal),
            _ => None,
        }
    }

    /// What was asked for since the start, if anything.
    pub fn asked(&self) -> Option<Asked> {
        match self.last.load(Ordering::Relaxed) as i32 {
            0 => None,
            signal if Some(signal) == self.save_on => Some(Asked::SaveAndExit),
            signal => Some(Asked::Stop(signal)),
        }
    }
}

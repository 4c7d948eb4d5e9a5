//! `--profile` and `--nvtx-ranges`: who records the scopes of a rank, and when.

use ferrotron_backends::{NoNvtx, Ranges};
use ferrotron_executor::Watch;
use ferrotron_schedule::Step;
use ferrotron_telemetry::{ProfileWindow, SinkId, Timers};

use crate::{Result, Trainer};

/// Level of a timer that is a scope and never a line of the log.
pub const SCOPE_ONLY: u8 = u8::MAX;

/// Times the steps of a schedule, each a scope, by Megatron's names.
pub struct StepTimers<'a>(pub &'a mut Timers);

impl StepTimers<'_> {
    /// Timer of a step, and its level.
    fn of(step: &Step) -> (&'static str, u8) {
        match step {
            Step::Forward { .. } => ("forward-compute", 2),
            Step::Backward { .. } | Step::BackwardInput { .. } => ("backward-compute", 2),
            // Megatron has no timer for the deferred half of a zero-bubble backward
            Step::BackwardWeight { .. } => ("backward-weight-compute", SCOPE_ONLY),
            Step::RecvForward { .. } => ("forward-recv", 2),
            Step::SendForward { .. } => ("forward-send", 2),
            Step::RecvBackward { .. } => ("backward-recv", 2),
            Step::SendBackward { .. } => ("backward-send", 2),
        }
    }
}

impl Watch for StepTimers<'_> {
    fn begin(&mut self, step: &Step) {
        let (name, level) = StepTimers::of(step);
        self.0.start(name, level);
    }

    fn end(&mut self, step: &Step) {
        self.0.stop(StepTimers::of(step).0);
    }
}

/// What records a rank's scopes.
///
/// `--nvtx-ranges` tells a profiler of all of them. On `--profile-ranks` the iterations of `--profile` go to a Chrome trace
/// and, where a profiler listens, to it as well; and the device tells the vendor's profiler where these iterations begin and
/// end, as Megatron does by `cudaProfilerStart` and `cudaProfilerStop`.
pub struct Profile {
    window: Option<ProfileWindow>,
    /// Ranges that are for the window only.
    ranges: Option<Ranges>,
    /// What records in the window; empty outside.
    open: Vec<SinkId>,
}

impl Profile {
    /// As the command line has it. What the user should know of the profiler goes to the notices.
    pub fn new(t: &mut Trainer) -> Profile {
        let (log, rank) = (&t.config.log, t.world.rank());
        let of_rank = |p: &ferrotron_config::settings::ProfileConfig| {
            ProfileWindow::of_rank(p.start, p.end, &p.ranks, rank, &p.folder)
        };
        let (window, always) = (log.profile.as_ref().and_then(of_rank), log.nvtx_ranges);
        let mut profile = Profile { window, ranges: None, open: vec![] };
        if !always && profile.window.is_none() {
            return profile;
        }
        match Ranges::of_rank(rank) {
            Ok(ranges) if always => {
                t.notices.push(format!("NVTX ranges go to {}", ranges.path()));
                t.timers.attach(Box::new(ranges));
            }
            Ok(ranges) => profile.ranges = Some(ranges),
            // --profile alone has its trace: no profiler was asked for, and none is there
            Err(NoNvtx::Nobody { .. }) if !always => {}
            Err(e) => t.notices.push(format!("no NVTX ranges: {e}")),
        }
        profile
    }

    /// Before an iteration, which is a scope. The window begins where a resumed run enters it.
    pub fn before(&mut self, t: &mut Trainer) -> Result<()> {
        let traced = self.contains(t.progress.iteration);
        match (self.open.is_empty(), traced) {
            (true, true) => self.begin(t)?,
            // the window's last iteration was passed over
            (false, false) => self.end(t)?,
            _ => {}
        }
        t.timers.start("iteration", SCOPE_ONLY);
        Ok(())
    }

    /// After an iteration, which counts already.
    pub fn after(&mut self, t: &mut Trainer) -> Result<()> {
        t.timers.stop("iteration");
        if self.contains(t.progress.iteration) { Ok(()) } else { self.end(t) }
    }

    /// At the end of a run that did not fail; after a failure the device is left alone.
    pub fn finish(&mut self, t: &mut Trainer) -> Result<()> {
        self.end(t)
    }

    fn contains(&self, iteration: u64) -> bool {
        self.window.as_ref().is_some_and(|w| w.contains(iteration))
    }

    /// Both ends of the window wait for the device, so that what a profiler captures is the window's work and all of it.
    fn begin(&mut self, t: &mut Trainer) -> Result<()> {
        let Some(window) = &self.window else { return Ok(()) };
        t.cx.stream.synchronize()?;
        self.open.push(t.timers.attach(Box::new(window.trace()?)));
        self.open.extend(self.ranges.take().map(|ranges| t.timers.attach(Box::new(ranges))));
        Ok(t.cx.device.start_profiler()?)
    }

    fn end(&mut self, t: &mut Trainer) -> Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        t.cx.stream.synchronize()?;
        t.cx.device.stop_profiler()?;
        let ends: Vec<_> = self.open.drain(..).map(|sink| t.timers.detach(sink)).collect();
        Ok(ends.into_iter().collect::<std::result::Result<(), _>>()?)
    }
}

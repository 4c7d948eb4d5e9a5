//! Scopes as ranges of a vendor's profiler.

use ferrotron_cuda::{NoNvtx, Nvtx, nvtx};
use ferrotron_telemetry::{MetricsFileError, ScopeSink};

/// Scopes of a rank as NVTX ranges of its thread. They are of the machine, not of a device: NVIDIA's profilers trace programs
/// on the CPU as well.
#[derive(Debug)]
pub struct Ranges(Nvtx);

impl Ranges {
    /// For the rank of this thread, which gets its name. Libraries are looked for where CUDA's are.
    ///
    /// # Errors
    /// Nobody would hear of them: why, and what to do.
    pub fn of_rank(rank: usize) -> Result<Ranges, NoNvtx> {
        let nvtx = nvtx(|name| std::env::var_os(name))?;
        nvtx.name_thread(&format!("rank {rank}"));
        Ok(Ranges(nvtx))
    }

    /// The library that hears of them.
    pub fn path(&self) -> &str {
        self.0.path()
    }
}

impl ScopeSink for Ranges {
    fn begin(&mut self, name: &'static str) {
        self.0.push(name);
    }

    fn end(&mut self) -> Result<(), MetricsFileError> {
        self.0.pop();
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), MetricsFileError> {
        Ok(())
    }
}

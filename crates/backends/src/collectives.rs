//! The vendors' collectives, by device.

use std::sync::Arc;

use ferrotron_ascend::{Environment, HcclError, HcclLinker, HcclOptions};
use ferrotron_comm::{Link, Linker, Seat};
use ferrotron_cuda::NcclLinker;
use ferrotron_device::{Error, Result, Stream};

/// Makes communicators over the library of the device's vendor. Nothing is loaded before the first one is made.
pub struct Collectives {
    hccl: HcclLinker,
    nccl: NcclLinker,
}

impl Collectives {
    /// With the settings that variables give, which `get` reads.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> std::result::Result<Collectives, HcclError> {
        let cann = Environment::from_variables(|name| get(name).map(Into::into));
        let cuda = ferrotron_cuda::Environment::from_variables(|name| get(name).map(Into::into));
        let hccl = HcclLinker::new(cann, HcclOptions::from_variables(&get)?);
        Ok(Collectives { hccl, nccl: NcclLinker::new(cuda) })
    }

    fn of(&self, seat: &Seat) -> Result<&dyn Linker> {
        match seat.device.split(':').next() {
            Some("npu") => Ok(&self.hccl),
            Some("cuda") => Ok(&self.nccl),
            kind => {
                let kind = kind.unwrap_or_default();
                let why = format!("several ranks on {kind} need a library of its vendor, and none is known");
                Err(Error::Unsupported { op: "collectives", device: seat.device.clone(), why })
            }
        }
    }
}

impl Linker for Collectives {
    fn root_bytes(&self, seat: &Seat) -> Result<usize> {
        self.of(seat)?.root_bytes(seat)
    }

    fn root(&self, stream: &Stream, seat: &Seat) -> Result<Vec<u8>> {
        self.of(seat)?.root(stream, seat)
    }

    fn link(&self, stream: &Stream, seat: &Seat, root: &[u8]) -> Result<Arc<dyn Link>> {
        self.of(seat)?.link(stream, seat, root)
    }
}

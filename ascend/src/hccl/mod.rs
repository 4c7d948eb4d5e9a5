//! HCCL under the `Communicator` contract: one communicator for each (group, purpose), each on a stream of its own.
//!
//! Ranks find each other by root info, whose bytes travel over the group's CPU engine, or by a rank table file. What the
//! library's interface leaves open is settled so:
//!
//! | contract | HCCL |
//! |---|---|
//! | sum, maximum of F32, BF16, F16 | the same reductions; partial sums are rounded in the wire type, and a maximum with NaN is the library's |
//! | all-gather with other counts on each rank | `HcclAllGatherV`; without it, a broadcast of each rank |
//! | messages | `HcclSend`, `HcclRecv`; several at once `HcclBatchSendRecv` |
//! | barrier | on the host, not on the device |
//! | abort | there is none: the device's streams are aborted, and what waits for them on the host ends |

mod by_table;
mod init;
mod link;
mod options;
mod rank_table;

use std::sync::{Arc, Mutex};

use ferrotron_comm::{Link, Linker, Seat};
use ferrotron_device::{Error, Result, Stream};
use ferrotron_dynlib::{Library, NotFound};
use ferrotron_hccl_sys::{HCCL_ROOT_INFO_BYTES, Hccl, HcclComm, HcclResult, HcclRootInfo, explain, searches};

use crate::Environment;
use crate::shared::{Shared, lock};
use crate::stream::{AscendStream, Core};

use by_table::ByTable;
pub use options::{HcclError, HcclOptions};

/// The library, loaded.
pub(crate) struct Loaded {
    pub hccl: Hccl,
    /// Fields of a communicator's configuration that it takes.
    pub capability: u32,
}

/// Makes HCCL's communicators.
pub struct HcclLinker {
    environment: Environment,
    options: HcclOptions,
    loaded: Mutex<Option<Arc<Loaded>>>,
    by_table: Option<ByTable>,
}

impl HcclLinker {
    /// With the CANN of an environment. The library is loaded when the first communicator is made.
    pub fn new(environment: Environment, options: HcclOptions) -> HcclLinker {
        let by_table = options.rank_table.clone().map(ByTable::new);
        HcclLinker { environment, options, loaded: Mutex::default(), by_table }
    }

    fn load(&self) -> Result<Arc<Loaded>> {
        let mut loaded = lock(&self.loaded);
        if let Some(l) = &*loaded {
            return Ok(l.clone());
        }
        let failed = |what: String| Error::Device { device: "npu".into(), what };
        let [first, second] = searches(&self.environment);
        let absent = |e: NotFound| {
            let tried: String = e.tried.iter().map(|t| format!("\n  searched {t}")).collect();
            failed(format!(
                "cannot load {}: several ranks need HCCL, which is part of CANN{tried}",
                e.names.join(" or ")
            ))
        };
        let mut libraries: Vec<Arc<Library>> = vec![Arc::new(first.open().map_err(absent)?)];
        // The second is part of the first before CANN 8.5.
        libraries.extend(second.open().ok().map(Arc::new));
        let hccl = Hccl::load(&libraries).map_err(|e| failed(e.to_string()))?;
        // SAFETY: no arguments.
        let capability = hccl.HcclGetCommConfigCapability.map_or(0, |get| unsafe { get() });
        let made = Arc::new(Loaded { hccl, capability });
        *loaded = Some(made.clone());
        Ok(made)
    }
}

/// A result in words, with the runtime's text.
pub(crate) fn check(shared: &Shared, call: &str, result: HcclResult) -> Result<()> {
    if result == 0 {
        return Ok(());
    }
    let (name, meaning) = explain(result);
    let mut what = format!("{call}: {result} {name}: {meaning}");
    if let Some(text) = shared.cann.take_error() {
        what.push_str(&format!("\nthe runtime says: {text}"));
    }
    Err(Error::Device { device: shared.name.clone(), what })
}

impl Linker for HcclLinker {
    fn root_bytes(&self, _: &Seat) -> Result<usize> {
        Ok(HCCL_ROOT_INFO_BYTES)
    }

    fn root(&self, stream: &Stream, _: &Seat) -> Result<Vec<u8>> {
        let loaded = self.load()?;
        let core = AscendStream::of(stream)?;
        if self.by_table.is_some() {
            // The file says where everybody is.
            return Ok(vec![0; HCCL_ROOT_INFO_BYTES]);
        }
        // The library binds what it makes to this thread's device.
        core.begin()?;
        let mut info = HcclRootInfo { internal: [0; HCCL_ROOT_INFO_BYTES] };
        // SAFETY: an out-parameter; a device is set on this thread.
        let result = unsafe { (loaded.hccl.HcclGetRootInfo)(&mut info) };
        check(&core.shared, "HcclGetRootInfo", result)?;
        Ok(info.internal.to_vec())
    }

    fn link(&self, stream: &Stream, seat: &Seat, root: &[u8]) -> Result<Arc<dyn Link>> {
        let loaded = self.load()?;
        let core: &Arc<Core> = AscendStream::of(stream)?;
        core.begin()?;
        core.shared.ending.watch();
        let comm: HcclComm = match &self.by_table {
            Some(table) => table.communicator(&loaded, &core.shared, &self.options, seat)?,
            None => init::by_root_info(&loaded, &core.shared, &self.options, seat, root)?,
        };
        Ok(Arc::new(link::HcclLink::new(loaded, core.clone(), comm, seat, self.options.memory())))
    }
}

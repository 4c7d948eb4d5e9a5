//! Device memory: regions of addresses that grow, and the workspace of a stream.

use std::sync::{Arc, Mutex};

use ferrotron_cuda_sys::{self as sys, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, code};
use ferrotron_device::{DevPtr, Error, Region, Result};

use crate::shared::{Omit, Shared, lock};
use crate::stream::Core;

/// A status of a call that takes memory: out of memory is told in our own words.
fn memory_status(shared: &Shared, call: &str, status: i32, wanted: usize, what: &'static str) -> Result<()> {
    if status != code::OUT_OF_MEMORY {
        return shared.check(call, status);
    }
    let (free, total) = info(shared);
    Err(Error::OutOfMemory { device: shared.name.clone(), what, wanted, in_use: total - free.min(total), limit: total })
}

/// Free and total bytes; zeros when the driver does not tell.
pub fn info(shared: &Shared) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: out-parameters; a context is current.
    let status = unsafe { (shared.cuda.driver.cuMemGetInfo_v2)(&mut free, &mut total) };
    if status == code::SUCCESS { (free, total) } else { (0, 0) }
}

/// Addresses backed page by page.
pub struct CudaRegion {
    shared: Arc<Shared>,
    base: u64,
    reserved: usize,
    granule: usize,
    what: &'static str,
    /// Parts that are backed: address and bytes.
    parts: Mutex<Vec<(u64, usize)>>,
}

impl CudaRegion {
    pub fn reserve(shared: Arc<Shared>, bytes: usize, what: &'static str) -> Result<CudaRegion> {
        shared.enter()?;
        let driver = &shared.cuda.driver;
        let (mut granule, mut base) = (0, 0);
        let option = sys::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: properties and an out-parameter.
        let status = unsafe { (driver.cuMemGetAllocationGranularity)(&mut granule, &properties(&shared), option) };
        shared.check("cuMemGetAllocationGranularity", status)?;
        let granule = granule.max(1);
        let reserved = bytes.max(1).next_multiple_of(granule);
        // SAFETY: an out-parameter; no address is wished for.
        let status = unsafe { (driver.cuMemAddressReserve)(&mut base, reserved, 0, 0, 0) };
        memory_status(&shared, "cuMemAddressReserve", status, bytes, what)?;
        Ok(CudaRegion { shared, base, reserved, granule, what, parts: Mutex::default() })
    }
}

fn location(shared: &Shared) -> CUmemLocation {
    CUmemLocation { type_: sys::CU_MEM_LOCATION_TYPE_DEVICE, id: shared.device }
}

fn properties(shared: &Shared) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: sys::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: 0,
        location: location(shared),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: [0; 8],
    }
}

impl Region for CudaRegion {
    fn base(&self) -> DevPtr {
        DevPtr(self.base)
    }

    fn reserved(&self) -> usize {
        self.reserved
    }

    fn commit(&self, bytes: usize) -> Result<()> {
        let mut parts = lock(&self.parts);
        let backed: usize = parts.iter().map(|(_, n)| n).sum();
        if bytes <= backed {
            return Ok(());
        }
        let (shared, driver) = (&self.shared, &self.shared.cuda.driver);
        shared.enter()?;
        let more = (bytes - backed).next_multiple_of(self.granule);
        let (at, mut handle) = (self.base + backed as u64, 0);
        // SAFETY: an out-parameter and properties.
        let status = unsafe { (driver.cuMemCreate)(&mut handle, more, &properties(shared), 0) };
        memory_status(shared, "cuMemCreate", status, more, self.what)?;
        // SAFETY: the addresses are reserved and not backed yet.
        let mapped = unsafe { (driver.cuMemMap)(at, more, 0, handle, 0) };
        // SAFETY: ours; memory that is mapped stays until it is unmapped.
        let released = unsafe { (driver.cuMemRelease)(handle) };
        memory_status(shared, "cuMemMap", mapped, more, self.what)?;
        parts.push((at, more));
        shared.check("cuMemRelease", released)?;
        if shared.omits(Omit::Access) {
            return Ok(());
        }
        let access = CUmemAccessDesc { location: location(shared), flags: sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: just mapped; one description.
        memory_status(
            shared,
            "cuMemSetAccess",
            unsafe { (driver.cuMemSetAccess)(at, more, &access, 1) },
            more,
            self.what,
        )
    }
}

impl Drop for CudaRegion {
    fn drop(&mut self) {
        if !self.shared.omits(Omit::WaitBeforeUnmap) {
            self.shared.drain();
        }
        let _ = self.shared.enter();
        let driver = &self.shared.cuda.driver;
        for (at, bytes) in lock(&self.parts).drain(..) {
            // SAFETY: ours, no stream works on it any more, and this is its last use.
            unsafe { (driver.cuMemUnmap)(at, bytes) };
        }
        // SAFETY: ours and no longer backed.
        unsafe { (driver.cuMemAddressFree)(self.base, self.reserved) };
    }
}

/// Memory that ops of one stream take turns in. It is taken at the first op that needs it; communication and copy streams
/// never do.
#[derive(Default)]
pub struct Workspace {
    /// Parts of sums, workspace of matrix products.
    fixed: u64,
    /// A product that is yet to be rounded: address and bytes.
    product: (u64, usize),
}

impl Workspace {
    /// Bytes of the fixed part: what cublasLt's guide recommends for Hopper and Blackwell.
    pub const BYTES: usize = 32 << 20;

    /// The fixed part.
    pub fn at(&mut self, shared: &Shared) -> Result<u64> {
        if self.fixed == 0 {
            self.fixed = malloc(shared, Workspace::BYTES, "workspace of matrix products")?;
        }
        Ok(self.fixed)
    }

    /// Room for a product. It grows to what the largest needs.
    pub fn product(&mut self, core: &Core, bytes: usize) -> Result<u64> {
        if self.product.1 < bytes {
            core.synchronize()?; // what works on the old one
            free(&core.shared, std::mem::take(&mut self.product).0);
            let bytes = bytes.next_power_of_two();
            self.product = (malloc(&core.shared, bytes, "a product before its bias")?, bytes);
        }
        Ok(self.product.0)
    }

    /// Frees everything. The stream must be idle.
    pub fn free(&mut self, shared: &Shared) {
        let Workspace { fixed, product } = std::mem::take(self);
        free(shared, fixed);
        free(shared, product.0);
    }
}

fn malloc(shared: &Shared, bytes: usize, what: &'static str) -> Result<u64> {
    let mut at = 0;
    // SAFETY: an out-parameter; a context is current.
    let status = unsafe { (shared.cuda.driver.cuMemAlloc_v2)(&mut at, bytes) };
    memory_status(shared, "cuMemAlloc", status, bytes, what)?;
    Ok(at)
}

fn free(shared: &Shared, at: u64) {
    if at != 0 {
        // SAFETY: of `malloc`, and nobody works on it.
        unsafe { (shared.cuda.driver.cuMemFree_v2)(at) };
    }
}

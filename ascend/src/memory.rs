//! Device memory: regions of addresses that grow, and the scratch of a stream.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use ferrotron_acl_sys::{self as acl, code};
use ferrotron_device::{DevPtr, Error, Region, Result};

use crate::shared::{Omit, Shared, lock};

/// A plain allocation.
pub fn malloc(shared: &Shared, bytes: usize, what: &'static str) -> Result<usize> {
    let mut ptr = std::ptr::null_mut();
    // SAFETY: an out-parameter; a context is current.
    let status = unsafe { (shared.cann.acl.aclrtMalloc)(&mut ptr, bytes, acl::ACL_MEM_MALLOC_HUGE_FIRST) };
    memory_status(shared, "aclrtMalloc", status, bytes, what)?;
    Ok(ptr as usize)
}

/// Pinned host memory.
pub fn malloc_host(shared: &Shared, bytes: usize) -> Result<usize> {
    let mut ptr = std::ptr::null_mut();
    // SAFETY: an out-parameter; a context is current.
    shared.check("aclrtMallocHost", unsafe { (shared.cann.acl.aclrtMallocHost)(&mut ptr, bytes) })?;
    Ok(ptr as usize)
}

/// A status of a call that takes memory: out of memory is told in our own words.
fn memory_status(shared: &Shared, call: &str, status: i32, wanted: usize, what: &'static str) -> Result<()> {
    if status != code::MEMORY_ALLOCATION {
        return shared.check(call, status);
    }
    let _ = shared.cann.take_error(); // said below
    let (free, total) = info(shared);
    Err(Error::OutOfMemory { device: shared.name.clone(), what, wanted, in_use: total - free.min(total), limit: total })
}

/// Free and total bytes; zeros when the runtime does not tell.
pub fn info(shared: &Shared) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: out-parameters; a context is current.
    let status = unsafe { (shared.cann.acl.aclrtGetMemInfo)(acl::ACL_HBM_MEM, &mut free, &mut total) };
    if status == code::OK { (free, total) } else { (0, 0) }
}

/// Addresses backed page by page through the runtime's virtual memory, or, without it, all at once.
pub struct AscendRegion {
    shared: Arc<Shared>,
    base: usize,
    reserved: usize,
    granule: usize,
    what: &'static str,
    /// Parts that are backed: address, bytes and, with virtual memory, the handle.
    parts: Mutex<Vec<(usize, usize, Option<usize>)>>,
}

impl AscendRegion {
    pub fn reserve(shared: Arc<Shared>, bytes: usize, what: &'static str) -> Result<AscendRegion> {
        shared.enter()?;
        let acl = &shared.cann.acl;
        let virtual_memory = acl.aclrtReserveMemAddress.zip(acl.aclrtMemGetAllocationGranularity);
        let complete = acl.aclrtMallocPhysical.is_some() && acl.aclrtMapMem.is_some() && acl.aclrtUnmapMem.is_some();
        let Some((reserve, granularity)) = virtual_memory.filter(|_| complete) else {
            let base = malloc(&shared, bytes, what)?;
            let parts = Mutex::new(vec![(base, bytes, None)]);
            return Ok(AscendRegion { shared, base, reserved: bytes, granule: 1, what, parts });
        };
        let mut granule = 0;
        let option = acl::ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: properties and an out-parameter.
        shared.check("aclrtMemGetAllocationGranularity", unsafe {
            granularity(&properties(&shared), option, &mut granule)
        })?;
        let reserved = bytes.max(1).next_multiple_of(granule.max(1));
        let mut base = std::ptr::null_mut();
        // SAFETY: an out-parameter; no address is asked for, huge pages are.
        let status = unsafe { reserve(&mut base, reserved, 0, std::ptr::null_mut(), 1) };
        memory_status(&shared, "aclrtReserveMemAddress", status, bytes, what)?;
        Ok(AscendRegion {
            shared,
            base: base as usize,
            reserved,
            granule: granule.max(1),
            what,
            parts: Mutex::default(),
        })
    }
}

/// Huge pages of the device.
fn properties(shared: &Shared) -> acl::aclrtPhysicalMemProp {
    acl::aclrtPhysicalMemProp {
        handleType: 0,
        allocationType: 0,
        memAttr: acl::ACL_HBM_MEM_HUGE,
        location: acl::aclrtMemLocation { id: shared.ordinal, type_: acl::ACL_MEM_LOCATION_TYPE_DEVICE },
        reserve: 0,
    }
}

impl Region for AscendRegion {
    fn base(&self) -> DevPtr {
        DevPtr(self.base as u64)
    }

    fn reserved(&self) -> usize {
        self.reserved
    }

    fn commit(&self, bytes: usize) -> Result<()> {
        let mut parts = lock(&self.parts);
        let backed: usize = parts.iter().map(|(_, n, _)| n).sum();
        if bytes <= backed {
            return Ok(());
        }
        let acl = &self.shared.cann.acl;
        let (Some(take), Some(map)) = (acl.aclrtMallocPhysical, acl.aclrtMapMem) else { return Ok(()) };
        self.shared.enter()?;
        let more = (bytes - backed).next_multiple_of(self.granule);
        let (at, mut handle) = (self.base + backed, std::ptr::null_mut());
        // SAFETY: an out-parameter and properties.
        let status = unsafe { take(&mut handle, more, &properties(&self.shared), 0) };
        memory_status(&self.shared, "aclrtMallocPhysical", status, more, self.what)?;
        // SAFETY: the addresses are reserved and not backed yet.
        let status = unsafe { map(at as *mut c_void, more, 0, handle, 0) };
        let mapped = memory_status(&self.shared, "aclrtMapMem", status, more, self.what);
        if mapped.is_ok() {
            parts.push((at, more, Some(handle as usize)));
        } else if let Some(free) = acl.aclrtFreePhysical {
            // SAFETY: the handle was just given and is used by nobody.
            unsafe { free(handle) };
        }
        mapped
    }
}

impl Drop for AscendRegion {
    fn drop(&mut self) {
        if !self.shared.omits(Omit::WaitBeforeUnmap) {
            self.shared.drain();
        }
        let _ = self.shared.enter();
        let acl = &self.shared.cann.acl;
        for (at, _, handle) in lock(&self.parts).drain(..) {
            let at = at as *mut c_void;
            // SAFETY: the part is ours, no stream works on it any more, and this is its last use.
            unsafe {
                match (handle, acl.aclrtUnmapMem, acl.aclrtFreePhysical) {
                    (Some(handle), Some(unmap), Some(free)) => {
                        unmap(at);
                        free(handle as *mut c_void);
                    }
                    _ => drop((acl.aclrtFree)(at)),
                }
            }
        }
        if let Some(release) = acl.aclrtReleaseMemAddress.filter(|_| self.granule > 1) {
            // SAFETY: the addresses are ours and no longer backed.
            unsafe { release(self.base as *mut c_void) };
        }
    }
}

/// Memory of a stream for its own work only: pieces are handed out during one op and all taken back at the next, which
/// comes later in stream order. It grows to what the largest op needs, and shrinks never.
pub struct Slab {
    kind: Kind,
    /// What the runtime gave.
    blocks: Vec<usize>,
    /// The aligned part of each: address and bytes.
    chunks: Vec<(usize, usize)>,
    /// Chunk and offset of the next piece.
    next: Mark,
}

/// A point in a slab: what is taken after it may be taken back.
pub type Mark = (usize, usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Device,
    Pinned,
}

impl Slab {
    /// Scratch and workspace on the device.
    pub fn device() -> Slab {
        Slab { kind: Kind::Device, blocks: Vec::new(), chunks: Vec::new(), next: (0, 0) }
    }

    /// Pinned memory of the host, for copies and host functions of the stream.
    pub fn pinned() -> Slab {
        Slab { kind: Kind::Pinned, ..Slab::device() }
    }

    /// A new op begins.
    pub fn reset(&mut self) {
        self.next = (0, 0);
    }

    /// Where the next piece will be.
    pub fn mark(&self) -> Mark {
        self.next
    }

    /// Takes back all pieces since the mark: later work of the stream may have them.
    pub fn release(&mut self, mark: Mark) {
        self.next = mark;
    }

    /// A piece, aligned to 512 bytes. The tail of 32 bytes is for operators that read whole blocks.
    pub fn take(&mut self, shared: &Shared, bytes: usize) -> Result<usize> {
        let bytes = (bytes.next_multiple_of(32) + 32).next_multiple_of(512);
        if shared.omits(Omit::ScratchApart) {
            self.next = (0, 0);
        }
        while let Some(&(at, has)) = self.chunks.get(self.next.0) {
            let offset = self.next.1;
            if offset + bytes <= has {
                self.next.1 += bytes;
                return Ok(at + offset);
            }
            self.next = (self.next.0 + 1, 0);
        }
        let has = bytes.max(1 << 20).next_power_of_two();
        let block = match self.kind {
            Kind::Device => malloc(shared, has + 512, "scratch of operators")?,
            Kind::Pinned => malloc_host(shared, has + 512)?,
        };
        self.blocks.push(block);
        let at = block.next_multiple_of(512);
        self.chunks.push((at, has));
        self.next = (self.chunks.len() - 1, bytes);
        Ok(at)
    }

    /// Frees everything. The stream must be idle.
    pub fn free(&mut self, shared: &Shared) {
        self.chunks.clear();
        let acl = &shared.cann.acl;
        let free = if self.kind == Kind::Device { acl.aclrtFree } else { acl.aclrtFreeHost };
        for at in self.blocks.drain(..) {
            // SAFETY: ours, and nobody works on it.
            unsafe { free(at as *mut c_void) };
        }
        self.reset();
    }
}

//! Dropout's masks, which are functions of what an element is (`ferrotron_device::ops::dropout`), not of where it lies.
//!
//! aclnn draws masks from counters of its own, by position in memory: another layout would drop other elements. So the
//! masks are computed on the host: the ids come to pinned memory, a host function of the stream draws the bits, a byte an
//! element goes back to the device. All of it is in stream order; the caller does not wait, the stream does.

use ferrotron_acl_sys as acl;
use ferrotron_base::philox::{drop_threshold, philox4x32};
use ferrotron_device::ops::DropSite;
use ferrotron_device::{DType, Result, Tensor};

use crate::launch::Launch;
use crate::made::HOST_MASK;
use crate::shared::{Omit, lock};
use crate::view::View;

/// Bytes of a mask that are drawn and copied at a time: a bound for pinned memory and scratch.
pub const MASK_BYTES: usize = 1 << 24;

/// Bytes that are worth a thread.
const SHARE: usize = 1 << 16;

/// Ids in pinned memory, from when the stream has passed the copy.
#[derive(Clone, Copy)]
pub struct Ids {
    at: usize,
    n: usize,
}

impl Ids {
    /// # Safety
    /// The stream has passed the copy and none after it that writes here.
    unsafe fn get<'a>(self) -> &'a [i32] {
        // SAFETY: the piece has `n` values, aligned to 512 bytes.
        unsafe { std::slice::from_raw_parts(self.at as *const i32, self.n) }
    }
}

/// Fills rows of `cols` bytes: `draw(row, bytes of the row)`. Large masks by many threads.
fn rows(mask: &mut [u8], cols: usize, draw: impl Fn(usize, &mut [u8]) + Sync) {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = (mask.len() / SHARE).clamp(1, processors);
    let each = (mask.len() / cols.max(1)).div_ceil(workers).max(1);
    let part = |first: usize, bytes: &mut [u8]| {
        bytes.chunks_mut(cols).enumerate().for_each(|(i, row)| draw(first + i, row));
    };
    if workers == 1 {
        return part(0, mask);
    }
    std::thread::scope(|scope| {
        for (i, bytes) in mask.chunks_mut(each * cols).enumerate() {
            let part = &part;
            scope.spawn(move || part(i * each, bytes));
        }
    });
}

/// 1 for a kept element, 0 for a dropped one.
fn kept(site: DropSite, counter: [u32; 4]) -> u8 {
    u8::from(philox4x32(site.key, counter)[0] >= drop_threshold(site.p))
}

/// Where the rows and columns of an attention mask `[N, R, K]` are.
#[derive(Clone)]
pub struct Probabilities {
    /// Global sample of each query row.
    pub sample: Ids,
    /// Offset of each query row in its sample.
    pub offset_q: Ids,
    /// Offset of each key row in its sample.
    pub offset_k: Ids,
    /// Global number of the first head.
    pub first_head: usize,
    /// Heads.
    pub heads: usize,
    /// Query rows.
    pub queries: std::ops::Range<usize>,
    /// Key rows.
    pub keys: std::ops::Range<usize>,
}

impl Launch<'_> {
    /// Ids on their way to pinned memory.
    pub fn ids(&mut self, t: &Tensor) -> Result<Ids> {
        debug_assert_eq!(t.dtype(), DType::I32);
        let (n, at) = (t.numel(), self.pinned(t.bytes())?);
        if n > 0 {
            self.core().copy(at as u64, t.ptr().0, t.bytes(), acl::ACL_MEMCPY_DEVICE_TO_HOST)?;
        }
        Ok(Ids { at, n })
    }

    /// A mask of `n` bytes that `fill` writes when the stream gets there.
    fn mask(&mut self, n: usize, fill: impl FnOnce(&mut [u8]) + Send + 'static) -> Result<View> {
        let at = self.pinned(n)?;
        lock(&self.core().shared.used).insert((self.op(), HOST_MASK));
        let early = self.core().shared.omits(Omit::MaskOrder);
        let mask = self.scratch(acl::ACL_BOOL, &[n])?;
        if early {
            self.core().copy(mask.at, at as u64, n, acl::ACL_MEMCPY_HOST_TO_DEVICE)?;
        }
        let job = move || {
            // SAFETY: the piece has `n` bytes; work of the stream before this is done with it, and what follows waits.
            fill(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, n) });
            Ok(())
        };
        if self.core().has_host_jobs() {
            self.core().enqueue(Box::new(job))?;
        } else {
            // the start-up report says that this release makes the host wait
            self.core().synchronize()?;
            job()?;
        }
        if !early {
            self.core().copy(mask.at, at as u64, n, acl::ACL_MEMCPY_HOST_TO_DEVICE)?;
        }
        Ok(mask)
    }

    /// Kept elements of activations: rows `first .. first + R` of the ids, columns from `first_col`; bool `[R, C]`.
    pub fn keep_rows(
        &mut self,
        site: DropSite,
        (sample, offset): (Ids, Ids),
        first: usize,
        [r, c]: [usize; 2],
        first_col: usize,
    ) -> Result<View> {
        let mask = self.mask(r * c, move |mask| {
            // SAFETY: the copies were queued before this.
            let (sample, offset) = unsafe { (sample.get(), offset.get()) };
            rows(mask, c, |i, row| {
                let (sample, offset) = (sample[first + i] as u32, offset[first + i] as u32);
                for (j, m) in row.iter_mut().enumerate() {
                    *m = kept(site, [sample, offset, (first_col + j) as u32, 0]);
                }
            });
        })?;
        Ok(mask.reshaped(&[r, c]))
    }

    /// Kept probabilities, bool `[N, R, K]`.
    pub fn keep_probabilities(&mut self, site: DropSite, p: Probabilities) -> Result<View> {
        let dims = [p.heads, p.queries.len(), p.keys.len()];
        let mask = self.mask(dims.iter().product(), move |mask| {
            // SAFETY: the copies were queued before this.
            let (sample, offset_q, offset_k) = unsafe { (p.sample.get(), p.offset_q.get(), p.offset_k.get()) };
            let keys = &offset_k[p.keys.clone()];
            rows(mask, keys.len(), |i, row| {
                let (head, t) = (p.first_head + i / p.queries.len(), p.queries.start + i % p.queries.len());
                for (m, &key) in row.iter_mut().zip(keys) {
                    *m = kept(site, [sample[t] as u32, offset_q[t] as u32, key as u32, head as u32 + 1]);
                }
            });
        })?;
        Ok(mask.reshaped(&dims))
    }
}

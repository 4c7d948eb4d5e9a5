//! The stream-ordered pool, and persistent memory beside it.
//!
//! One region of addresses; a block is the lowest free range that fits, so a step that allocates in the same order
//! gets the same addresses (graphs need that), and the dry device, which runs this same code over memory that is not
//! there, predicts the peak exactly. Blocks return in host order when their last handle drops, never by polling.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ferrotron_base::{DType, Shape, round_up};

use crate::{DevPtr, Device, Error, Region, Result, Stream, Tensor};

/// Blocks start at and are sized in multiples of this: the largest alignment that a vendor's ops ask for.
const ALIGN: usize = 512;
/// Memory is committed in steps of this, so that growth is rare.
const GRANULE: usize = 2 << 20;

/// Counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in live blocks.
    pub live: usize,
    /// Live blocks.
    pub live_blocks: usize,
    /// Most bytes ever live at once.
    pub peak_live: usize,
    /// Highest address ever used: what the pool really takes, fragmentation included.
    pub peak: usize,
    /// How often memory was asked from the device. Stays put after the second step of a static shape.
    pub commits: usize,
    /// Blocks handed out in all.
    pub allocs: usize,
}

struct State {
    /// Free ranges below `top`: start -> length. Adjacent ranges are joined.
    free: BTreeMap<usize, usize>,
    /// End of the highest range ever used.
    top: usize,
    committed: usize,
    stats: PoolStats,
}

/// A rank's pool of activations and other short-lived tensors on one device.
pub struct Pool {
    device: Arc<dyn Device>,
    region: Arc<dyn Region>,
    home: Stream,
    poison: bool,
    state: Mutex<State>,
}

impl Pool {
    /// A pool of at most `limit` bytes whose blocks are used on `home`. With `poison`, a block that is given back is
    /// filled with NaN in stream order: a read after that shows.
    pub fn new(device: Arc<dyn Device>, home: Stream, limit: usize, poison: bool) -> Result<Arc<Pool>> {
        let region = device.reserve(round_up(limit, GRANULE), "the activation pool")?;
        let state = State { free: BTreeMap::new(), top: 0, committed: 0, stats: PoolStats::default() };
        Ok(Arc::new(Pool { device, region, home, poison, state: Mutex::new(state) }))
    }

    /// A tensor with undefined contents.
    pub fn alloc(self: &Arc<Pool>, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let bytes = round_up((shape.numel() * dtype.size()).max(1), ALIGN);
        let start = self.take(bytes)?;
        Ok(Tensor::of_block(
            Block { bytes, ptr: self.region.base().offset(start), owner: self.owner(start) },
            shape,
            dtype,
        ))
    }

    /// Counters.
    pub fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    fn owner(self: &Arc<Pool>, start: usize) -> Owner {
        Owner::Pool(self.clone(), start)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid at every point where this module can panic.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lowest free range of `bytes` bytes.
    fn take(&self, bytes: usize) -> Result<usize> {
        let mut st = self.lock();
        let start = match st.free.iter().find(|&(_, &len)| len >= bytes).map(|(&s, &l)| (s, l)) {
            Some((start, len)) => {
                st.free.remove(&start);
                if len > bytes {
                    st.free.insert(start + bytes, len - bytes);
                }
                start
            }
            None => {
                // Extend the last free range if it touches the top, so that growth reuses its tail.
                let start = match st.free.last_key_value() {
                    Some((&s, &l)) if s + l == st.top => s,
                    _ => st.top,
                };
                let end = start + bytes;
                if end > self.region.reserved() {
                    return Err(Error::OutOfMemory {
                        device: self.device.info().name.clone(),
                        what: "activations",
                        wanted: bytes,
                        in_use: st.stats.live,
                        limit: self.region.reserved(),
                    });
                }
                if end > st.committed {
                    let to = round_up(end, GRANULE).min(self.region.reserved());
                    self.region.commit(to)?;
                    st.committed = to;
                    st.stats.commits += 1;
                }
                st.free.remove(&start);
                st.top = end;
                start
            }
        };
        let top = st.top;
        let stats = &mut st.stats;
        stats.allocs += 1;
        stats.live += bytes;
        stats.live_blocks += 1;
        stats.peak_live = stats.peak_live.max(stats.live);
        stats.peak = stats.peak.max(top);
        Ok(start)
    }

    fn give_back(&self, start: usize, bytes: usize) {
        if self.poison {
            // An error here is the stream's: it is sticky and shows at the next call.
            let _ = self.device.fill_bytes(&self.home, self.region.base().offset(start), bytes, 0xff);
        }
        let mut st = self.lock();
        st.stats.live -= bytes;
        st.stats.live_blocks -= 1;
        let (mut start, mut len) = (start, bytes);
        if let Some((&s, &l)) = st.free.range(..start).next_back()
            && s + l == start
        {
            st.free.remove(&s);
            (start, len) = (s, l + len);
        }
        if let Some(l) = st.free.remove(&(start + len)) {
            len += l;
        }
        st.free.insert(start, len);
    }
}

enum Owner {
    Pool(Arc<Pool>, usize),
    /// Held only to be dropped: the region gives its memory back then.
    Persistent(#[allow(dead_code)] Arc<dyn Region>),
}

/// Memory behind one or more tensors.
pub(crate) struct Block {
    bytes: usize,
    ptr: DevPtr,
    owner: Owner,
}

impl Block {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn ptr(&self) -> DevPtr {
        self.ptr
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Owner::Pool(pool, start) = &self.owner {
            pool.give_back(*start, self.bytes);
        }
    }
}

/// Memory that lives as long as its handles, outside any pool: parameters, gradients, optimizer state. Zeroed.
pub fn persistent(device: &dyn Device, s: &Stream, what: &'static str, dtype: DType, n: usize) -> Result<Tensor> {
    let bytes = round_up((n * dtype.size()).max(1), ALIGN);
    let region = device.reserve(bytes, what)?;
    region.commit(bytes)?;
    let ptr = region.base();
    device.fill_bytes(s, ptr, bytes, 0)?;
    Ok(Tensor::of_block(Block { bytes, ptr, owner: Owner::Persistent(region) }, [n].into(), dtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamRole;
    use crate::dry::Dry;

    fn pool(limit: usize) -> Arc<Pool> {
        let dev: Arc<dyn Device> = Arc::new(Dry::new("dry:0", limit));
        let home = dev.stream(StreamRole::Compute).unwrap();
        Pool::new(dev, home, limit, false).unwrap()
    }

    #[test]
    fn lowest_address_is_reused_and_neighbours_join() {
        let p = pool(64 << 20);
        let a = p.alloc(DType::F32, [1000]).unwrap();
        let b = p.alloc(DType::F32, [1000]).unwrap();
        let c = p.alloc(DType::F32, [1000]).unwrap();
        let first = a.ptr();
        drop(b);
        drop(a);
        // a and b together hold this one
        let d = p.alloc(DType::F32, [2000]).unwrap();
        assert_eq!(d.ptr(), first);
        assert_eq!(p.stats().commits, 1);
        drop((c, d));
        assert_eq!(p.stats().live, 0);
    }

    #[test]
    fn same_order_same_addresses() {
        let p = pool(64 << 20);
        let step = || {
            let x = p.alloc(DType::BF16, [300, 7]).unwrap();
            let y = p.alloc(DType::F32, [4096]).unwrap();
            let px = x.ptr();
            drop(x);
            let z = p.alloc(DType::F32, [100]).unwrap();
            (px, y.ptr(), z.ptr())
        };
        assert_eq!(step(), step());
    }

    #[test]
    fn a_full_pool_says_so() {
        let p = pool(4 << 20);
        let _a = p.alloc(DType::F32, [800_000]).unwrap();
        let e = p.alloc(DType::F32, [800_000]).unwrap_err();
        assert!(matches!(e, Error::OutOfMemory { in_use, limit: 4_194_304, .. } if in_use >= 3_200_000), "{e}");
    }

    #[test]
    fn a_view_keeps_the_block() {
        let p = pool(4 << 20);
        let a = p.alloc(DType::F32, [4, 8]).unwrap();
        let v = a.rows_view(1, 2);
        assert_eq!((v.shape()[..].to_vec(), v.ptr().0 - a.ptr().0), (vec![2, 8], 32));
        assert!(v.overlaps(&a) && !v.overlaps(&a.rows_view(3, 1)));
        drop(a);
        assert!(p.stats().live > 0);
        drop(v);
        assert_eq!(p.stats().live, 0);
    }
}

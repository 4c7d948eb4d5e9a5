//! The group of one: every collective is a copy, or nothing.

use std::sync::Arc;

use ferrotron_device::error::expect;
use ferrotron_device::{Device, Error, Pending, Result, Stream, Tensor};

use crate::{Communicator, P2p, ReduceOp};

/// A group with one rank.
pub struct Solo {
    name: String,
    device: Arc<dyn Device>,
}

impl Solo {
    /// The group `name` of one rank on `device`.
    pub fn new(name: &str, device: Arc<dyn Device>) -> Solo {
        Solo { name: name.into(), device }
    }

    fn copy(&self, home: &Stream, x: Tensor, mut out: Tensor) -> Result<Pending> {
        expect("collective of one rank", "elements", x.numel(), out.numel())?;
        if !x.same_memory(&out) {
            self.device.ops().copy(home, &x, &mut out)?;
        }
        Ok(Pending::ready(out, home))
    }

    fn only(&self, what: &'static str, rank: usize) -> Result<()> {
        if rank == 0 { Ok(()) } else { Err(Error::mismatch("collective of one rank", what, 0, rank)) }
    }
}

impl Communicator for Solo {
    fn name(&self) -> &str {
        &self.name
    }
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce(&self, home: &Stream, t: Tensor, _: ReduceOp) -> Result<Pending> {
        Ok(Pending::ready(t, home))
    }
    fn reduce_scatter(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending> {
        self.copy(home, x, out)
    }
    fn all_gather(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending> {
        self.copy(home, x, out)
    }
    fn all_gather_v(&self, home: &Stream, x: Tensor, out: Tensor, counts: &[usize]) -> Result<Pending> {
        expect("all_gather_v of one rank", "counts", &[x.numel()][..], counts)?;
        self.copy(home, x, out)
    }
    fn broadcast(&self, home: &Stream, t: Tensor, root: usize) -> Result<Pending> {
        self.only("root", root)?;
        Ok(Pending::ready(t, home))
    }
    fn all_to_all_v(&self, home: &Stream, x: Tensor, send: &[usize], out: Tensor, recv: &[usize]) -> Result<Pending> {
        expect("all_to_all_v of one rank", "counts", send, recv)?;
        self.copy(home, x, out)
    }
    fn exchange(&self, _: &Stream, ops: Vec<P2p>) -> Result<Vec<Pending>> {
        expect("exchange of one rank", "messages", 0, ops.len())?;
        Ok(vec![])
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn abort(&self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrotron_device::dry::Dry;
    use ferrotron_device::{DType, Pool, StreamRole};

    #[test]
    fn one_rank_gets_its_own_back() {
        let dev: Arc<dyn Device> = Arc::new(Dry::new("dry:0", 1 << 20));
        let home = dev.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(dev.clone(), home.clone(), 1 << 20, false).unwrap();
        let g = Solo::new("tp", dev);
        let t = pool.alloc(DType::F32, [8]).unwrap();
        let u = pool.alloc(DType::F32, [8]).unwrap();
        assert!(g.all_reduce(&home, t.clone(), ReduceOp::Sum).unwrap().wait().same_memory(&t));
        assert!(g.all_gather(&home, t.clone(), u.clone()).unwrap().wait().same_memory(&u));
        assert!(g.reduce_scatter(&home, t.clone(), u.rows_view(0, 4)).is_err());
        assert!(g.broadcast(&home, t.clone(), 1).is_err());
        assert!(g.exchange(&home, vec![P2p::Send(t, 0)]).is_err());
    }
}

//! The group of one: every collective is a copy, or nothing.

use std::sync::Arc;

use ferrotron_device::error::expect;
use ferrotron_device::{Device, Pending, Result, Stream};

use crate::{Collective, Communicator, P2p, Site};

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
    fn start(&self, home: &Stream, call: Collective, _: Site) -> Result<Pending> {
        let (mut out, x) = call.into_tensors();
        if let Some(x) = x.filter(|x| !x.same_memory(&out)) {
            expect("collective of one rank", "elements", x.numel(), out.numel())?;
            self.device.ops().copy(home, &x, &mut out)?;
        }
        Ok(Pending::ready(out, home))
    }
    fn start_exchange(&self, _: &Stream, ops: Vec<P2p>, _: Site) -> Result<Vec<Pending>> {
        expect("exchange of one rank", "messages", 0, ops.len())?;
        Ok(vec![])
    }
    fn meet(&self, _: Site) -> Result<()> {
        Ok(())
    }
    fn abort(&self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;
    use ferrotron_device::dry::Dry;
    use ferrotron_device::{DType, Pool, StreamRole};

    #[test]
    fn one_rank_gets_its_own_back() {
        let dev: Arc<dyn Device> = Arc::new(Dry::new("dry:0", 1 << 20));
        let home = dev.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(dev.clone(), home.clone(), 1 << 20, false).unwrap();
        let g: &dyn Communicator = &Solo::new("tp", dev);
        let t = pool.alloc(DType::F32, [8]).unwrap();
        let u = pool.alloc(DType::F32, [8]).unwrap();
        assert!(g.all_reduce(&home, t.clone(), ReduceOp::Sum).unwrap().wait().same_memory(&t));
        assert!(g.all_gather(&home, t.clone(), u.clone()).unwrap().wait().same_memory(&u));
        assert!(g.reduce_scatter(&home, t.clone(), u.rows_view(0, 4)).is_err());
        assert!(g.broadcast(&home, t.clone(), 1).is_err());
        assert!(g.exchange(&home, vec![P2p::Send(t, 0)]).is_err());
        assert!(g.barrier().is_ok());
    }
}

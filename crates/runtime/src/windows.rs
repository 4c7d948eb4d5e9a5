//! ZeRO-3: the parameters of a unit (a block, or a few) lie in shares on the data-parallel ranks, and are whole only in a
//! window while the unit's layer runs (Rajbhandari et al. 2020). Its gradients have a window too, which opens with the
//! first addition; when the layer's backward ends, the window is reduced and scattered, and each rank adds its share to
//! its main gradients. One window of gradients may be leaving while the next one fills.
//!
//! Per micro-batch that is two gathers and one reduction of all parameters; the buffers are the pool's.

use std::collections::BTreeMap;
use std::ops::Range;

use ferrotron_comm::{Communicator, ReduceOp};
use ferrotron_device::{DType, Pending, Result, Tensor};

use crate::{Ctx, ParamId, ParamSpec, ParamStore};

/// Units that are whole, by buffer.
#[derive(Default)]
pub struct Windows {
    params: BTreeMap<usize, Window>,
    /// `F32[elements of the buffer]`
    grads: BTreeMap<usize, Tensor>,
    /// Sums of shares on their way here.
    leaving: Vec<(usize, Pending)>,
}

/// Parameters of a buffer, `dtype[elements of the buffer]`.
enum Window {
    Arriving(Pending),
    Open(Tensor),
}

impl Windows {
    /// A parameter's values.
    ///
    /// # Panics
    /// When its unit's window is not open.
    pub(crate) fn weight(&self, params: &ParamStore, id: ParamId) -> Tensor {
        let ((buffer, start), shard) = (params.place(id), &params.table().spec(id).shard);
        match self.params.get(&buffer) {
            Some(Window::Open(whole)) => whole.view(start, shard.local_shape()),
            _ => panic!("parameter {} is read outside of its unit: Sharded is a block's outermost layer", shard.name),
        }
    }

    /// Closes all windows of parameters: values of before an update are of no use after it.
    pub(crate) fn close(&mut self) {
        self.params.clear();
    }
}

impl Ctx {
    /// Begins to gather a unit's parameters, unless they are here or on their way.
    pub fn fetch_unit(&mut self, unit: usize) -> Result<()> {
        for i in self.params.buffers_of_unit(unit) {
            if self.windows.params.contains_key(&i) {
                continue;
            }
            let b = &self.params.buffers()[i];
            let whole = self.pool.alloc(b.dtype, [b.elements()])?;
            let replicas = self.groups.instance_params_of(b.experts);
            let arriving = replicas.all_gather(&self.stream, b.param.clone(), whole)?;
            self.windows.params.insert(i, Window::Arriving(arriving));
        }
        Ok(())
    }

    /// Opens a unit's window: its parameters are whole for the work that comes.
    pub fn open_unit(&mut self, unit: usize) -> Result<()> {
        self.fetch_unit(unit)?;
        for i in self.params.buffers_of_unit(unit) {
            let open = match self.windows.params.remove(&i) {
                Some(Window::Arriving(pending)) => Window::Open(pending.wait()),
                Some(open) => open,
                None => continue,
            };
            self.windows.params.insert(i, open);
        }
        Ok(())
    }

    /// Gives the memory of a unit's window back.
    pub fn close_unit(&mut self, unit: usize) {
        for i in self.params.buffers_of_unit(unit) {
            self.windows.params.remove(&i);
        }
    }

    /// A gradient in its unit's window, which opens, zeroed, if it is not open.
    pub(crate) fn grad_in_window(&mut self, id: ParamId) -> Result<Tensor> {
        let (buffer, start) = self.params.place(id);
        if !self.windows.grads.contains_key(&buffer) {
            let whole = self.pool.alloc(DType::F32, [self.params.buffers()[buffer].elements()])?;
            self.device.fill_bytes(&self.stream, whole.ptr(), whole.bytes(), 0)?;
            self.windows.grads.insert(buffer, whole);
        }
        Ok(self.windows.grads[&buffer].view(start, self.params.table().spec(id).shard.local_shape()))
    }

    /// Sends off the gradients that a unit has by now.
    pub fn reduce_unit(&mut self, unit: usize) -> Result<()> {
        for i in self.params.buffers_of_unit(unit) {
            let Some(mut whole) = self.windows.grads.remove(&i) else { continue };
            self.settle_unit_grads()?;
            if self.grad_sync.options.grads_in_bf16 {
                let mut narrow = self.pool.alloc(DType::BF16, [whole.numel()])?;
                self.ops().copy(&self.stream, &whole, &mut narrow)?;
                whole = narrow;
            }
            let share = self.params.share(i, &(0..whole.numel()));
            let own = whole.view(share.start, [share.len()]);
            let sum = self.scatter(self.params.buffers()[i].experts, whole, own)?;
            self.windows.leaving.push((i, sum));
        }
        Ok(())
    }

    /// Adds what has been sent off to the main gradients.
    fn settle_unit_grads(&mut self) -> Result<()> {
        for (i, pending) in std::mem::take(&mut self.windows.leaving) {
            let sum = pending.wait();
            if let Some(mut grad) = self.params.buffers()[i].grad.clone() {
                self.ops().axpy(&self.stream, 1.0, &sum, &mut grad)?;
            }
        }
        Ok(())
    }

    /// The units' part of [`Ctx::finish_grads`]. Partial gradients are summed over the tensor-parallel ranks, which have the
    /// same shares, and ends that a few of them share over those.
    pub(crate) fn finish_unit_grads(&mut self) -> Result<()> {
        self.settle_unit_grads()?;
        self.sum_owned(&*self.groups.tp, |spec| spec.grad_partial_over_tp.then(|| 0..spec.numel()))?;
        self.sum_owned(&*self.groups.kv, |spec| spec.shared_end.map(|s| spec.numel() - s.elements..spec.numel()))
    }

    /// Sums elements `of` each unit's parameters over a group: in one call for all, of the same size on every rank, whatever
    /// of it the rank owns.
    fn sum_owned(&self, group: &dyn Communicator, of: impl Fn(&ParamSpec) -> Option<Range<usize>>) -> Result<()> {
        let (mut parts, mut n) = (BTreeMap::new(), 0);
        for (id, spec) in self.params.table().iter().filter(|(_, spec)| spec.unit.is_some() && spec.trainable) {
            if let Some(part) = of(spec) {
                n += part.len();
                parts.insert(id, (n - part.len(), part));
            }
        }
        if n == 0 || group.size() == 1 {
            return Ok(());
        }
        let all = self.alloc_f32([n])?;
        self.device.fill_bytes(&self.stream, all.ptr(), all.bytes(), 0)?;
        let mut own = vec![];
        for range in self.params.owned_ranges() {
            let grad = self.params.buffers()[range.buffer].grads_of(&range.range);
            if let (Some((start, part)), Some(grad)) = (parts.get(&range.id), grad) {
                let mine = range.offset.max(part.start)..(range.offset + range.range.len()).min(part.end);
                if !mine.is_empty() {
                    let at = start + mine.start - part.start;
                    own.push((all.view(at, [mine.len()]), grad.view(mine.start - range.offset, [mine.len()])));
                }
            }
        }
        for (part, grad) in &mut own {
            self.ops().copy(&self.stream, grad, part)?;
        }
        drop(group.all_reduce(&self.stream, all, ReduceOp::Sum)?.wait());
        for (part, grad) in &mut own {
            self.ops().copy(&self.stream, part, grad)?;
        }
        Ok(())
    }
}

//! Who brought a number that is not finite into a step, and with what: told once, by one rank.
//!
//! All ranks see the same sums, so all come here together, and the questions below are collectives. Of the ranks whose
//! part of the loss is not finite the lowest tells; if all losses are finite, the lowest whose share of the gradients
//! is not.

use ferrotron_comm::ReduceOp;
use ferrotron_device::{DType, Result as DeviceResult, Tensor, host};
use ferrotron_runtime::{Ctx, OwnedRange, ParamId, stat};
use ferrotron_schedule::Axis;

use crate::{Error, Result, Trainer};

/// Most bytes of a name that ranks tell each other.
const NAME: usize = 256;

/// This rank's part of a step's numbers, before they were summed over ranks.
pub(crate) struct OwnPart {
    /// `F32[STATS]`.
    pub(crate) stats: Tensor,
    /// `F32[micro-batches]`: the sum of losses when each micro-batch began.
    pub(crate) losses: Tensor,
}

impl Trainer {
    /// On the rank that tells, `e` with what is known; elsewhere an error of a peer. A host sync.
    pub(crate) fn blame(&self, e: Error, own: Option<OwnPart>) -> Result<Error> {
        let (Some(own), Error::NotFinite { iteration, what, value, last_good, .. }) = (own, &e) else { return Ok(e) };
        let cx = &self.cx;
        let read = |t: &Tensor| host::read_f32(&*cx.device, &cx.stream, t);
        let (stats, losses) = (read(&own.stats)?, read(&own.losses)?);
        let urgency = match (stats[stat::LOSS].is_finite(), stats[stat::GRAD_SQUARES].is_finite()) {
            (false, _) => 2,
            (true, false) => 1,
            (true, true) => 0,
        };
        let teller = first(cx, urgency)?.unwrap_or(0);
        let weight = broken_weight(cx)?;
        let mut about = String::new();
        if urgency == 2 {
            about += &self.micro_batch(&losses);
        }
        if let Some(owner) = first(cx, u32::from(weight.is_some()))? {
            let name = tell(cx, owner, weight.as_deref().unwrap_or_default())?;
            let place = if self.world.size() == 1 { String::new() } else { format!(" on rank {owner}") };
            about += &format!("; parameter {name}{place} holds values that are not finite");
        } else if let Some(name) = broken_gradient(cx)?.filter(|_| urgency == 1) {
            about += &format!(", first in the gradient of {name}");
        }
        let (iteration, value, last_good) = (*iteration, *value, *last_good);
        let e = Error::NotFinite { iteration, what, value, last_good, about };
        if teller == self.world.rank() {
            return Ok(e);
        }
        Ok(ferrotron_device::Error::Aborted(format!("rank {teller}: {e}")).into())
    }

    /// The first micro-batch of this rank whose loss is not finite, given the sums of losses before each.
    fn micro_batch(&self, before: &[f32]) -> String {
        let n = before.len();
        let place = before.iter().skip(1).position(|sum| !sum.is_finite()).unwrap_or(n.saturating_sub(1));
        let (size, ranks) = (self.config.train.micro_batch_size as u64, self.world.mesh.dp() as u64);
        let first = self.progress.consumed_samples + (place as u64 * ranks + self.world.place(Axis::Dp) as u64) * size;
        let samples = match size {
            1 => format!("sample {first}"),
            _ => format!("samples {first} to {}", first + size - 1),
        };
        format!(", first in micro-batch {} of {n} ({samples} of the run)", place + 1)
    }
}

/// The lowest of the ranks with the highest urgency, told by all to all; `None` when all have 0.
fn first(cx: &Ctx, urgency: u32) -> DeviceResult<Option<usize>> {
    let world = &cx.groups.world;
    let (size, rank) = (world.size(), world.rank());
    if size == 1 {
        return Ok((urgency > 0).then_some(0));
    }
    // The more urgent, then the lower the rank, the larger: a maximum finds it. Exact in f32 below 2^24.
    let mine = if urgency == 0 { 0 } else { urgency as usize * size + (size - 1 - rank) };
    let mut t = cx.pool.alloc(DType::F32, [1])?;
    cx.device.ops().fill(&cx.stream, mine as f32, &mut t)?;
    let t = world.all_reduce(&cx.stream, t, ReduceOp::Max)?.wait();
    let most = host::read_f32(&*cx.device, &cx.stream, &t)?[0] as usize;
    Ok((most > 0).then(|| size - 1 - most % size))
}

/// The text of one rank, on all.
fn tell(cx: &Ctx, from: usize, text: &str) -> DeviceResult<String> {
    let world = &cx.groups.world;
    if world.size() == 1 {
        return Ok(text.to_string());
    }
    let mut letters: Vec<i32> = text.bytes().take(NAME).map(i32::from).collect();
    letters.resize(NAME, 0);
    let mut t = cx.pool.alloc(DType::I32, [NAME])?;
    host::write_i32(&*cx.device, &cx.stream, &letters, &mut t)?;
    let t = world.broadcast(&cx.stream, t, from)?.wait();
    let mut bytes = vec![0u8; NAME * 4];
    cx.device.download(&cx.stream, &t, &mut bytes)?;
    let letters = bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let text: Vec<u8> = letters.map_while(|n| u8::try_from(n).ok().filter(|b| *b > 0)).collect();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The first parameter of this rank, in the order of forward, with a value that is not finite.
fn broken_weight(cx: &Ctx) -> DeviceResult<Option<String>> {
    for (id, _) in cx.params.table().iter() {
        let (_, weight) = cx.params.kept(id);
        // Squares of large values are not finite either: look at each.
        if weight.numel() > 0
            && !squares(cx, &weight)?.is_finite()
            && host::read_f32(&*cx.device, &cx.stream, &weight)?.iter().any(|v| !v.is_finite())
        {
            return Ok(Some(name(cx, id)));
        }
    }
    Ok(None)
}

/// Of what this rank owns, the first parameter in the order of backward whose gradient has no finite norm.
fn broken_gradient(cx: &Ctx) -> DeviceResult<Option<String>> {
    let mut owned: Vec<OwnedRange> = cx.params.owned_ranges();
    owned.sort_by_key(|own| std::cmp::Reverse(own.id.0));
    for own in owned {
        let Some(grads) = cx.params.buffers()[own.buffer].grads_of(&own.range) else { continue };
        if !squares(cx, &grads)?.is_finite() {
            return Ok(Some(name(cx, own.id)));
        }
    }
    Ok(None)
}

fn name(cx: &Ctx, id: ParamId) -> String {
    cx.params.table().spec(id).shard.name.clone()
}

/// Sum of squares.
fn squares(cx: &Ctx, t: &Tensor) -> DeviceResult<f32> {
    let mut sum = cx.pool.alloc(DType::F32, [1])?;
    cx.device.ops().fill(&cx.stream, 0.0, &mut sum)?;
    cx.device.ops().sum_squares(&cx.stream, &t.reshape([t.numel()])?, &mut sum)?;
    Ok(host::read_f32(&*cx.device, &cx.stream, &sum)?[0])
}

//! Rows to the ranks that hold their experts, and back. (megatron/core/transformer/moe/token_dispatcher.py,
//! `MoEAlltoAllTokenDispatcher`.)
//!
//! A rank of the expert-parallel group holds E / ep neighbouring experts. Rows leave in the order of experts, so those
//! for one rank lie together; they arrive by sender, and each sender's by expert, and are then brought in the order of
//! (expert, sender). A group of one moves nothing: rows are in order already.

use ferrotron_device::{DType, Error, Pending, Result, Tensor, host};
use ferrotron_runtime::{Ctx, Tensors};

/// How many rows go where, and how they lie.
pub struct Exchange {
    /// Rows of each expert here.
    counts: Vec<usize>,
    /// Rows to and from each rank.
    send: Vec<usize>,
    recv: Vec<usize>,
    /// Where each row by (expert, sender) lies by (sender, expert), and the inverse, `I32`; nothing where both orders
    /// are one.
    orders: Option<(Tensor, Tensor)>,
}

impl Tensors for Exchange {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.orders.each(f);
    }
}

/// Counts of all ranks of the expert-parallel group, `F32[ep, E]`, from this rank's `F32[E]`.
pub fn gather_counts(cx: &Ctx, counts: &Tensor) -> Result<Tensor> {
    let ep = &cx.groups.ep;
    if ep.size() == 1 {
        return Ok(counts.clone());
    }
    let all = cx.alloc_f32([ep.size(), counts.numel()])?;
    Ok(ep.all_gather(&cx.stream, counts.clone(), all)?.wait())
}

impl Exchange {
    /// From the counts of all ranks, which the host reads here: the layer's only read. `rows` is what leaves here.
    pub fn new(cx: &Ctx, counts: &Tensor, rows: usize) -> Result<Exchange> {
        let (ep, rank) = (cx.groups.ep.size(), cx.groups.ep.rank());
        let experts = counts.numel() / ep;
        let here = experts / ep;
        let n: Vec<usize> = if cx.device.info().computes {
            host::read_f32(&*cx.device, &cx.stream, counts)?.iter().map(|n| *n as usize).collect()
        } else {
            (0..counts.numel()).map(|i| even_share(rows, ep, here, i / experts, i % experts)).collect()
        };
        let of = |sender: usize, rank: usize| &n[sender * experts + rank * here..][..here];
        let send: Vec<usize> = (0..ep).map(|r| of(rank, r).iter().sum()).collect();
        if send.iter().sum::<usize>() != rows {
            return Err(Error::mismatch("mixture of experts", "rows that experts get", rows, send));
        }
        let recv: Vec<usize> = (0..ep).map(|s| of(s, rank).iter().sum()).collect();
        let counts = (0..here).map(|e| (0..ep).map(|s| of(s, rank)[e]).sum()).collect();
        let orders = if ep > 1 && here > 1 { Some(orders(cx, ep, here, |s, e| of(s, rank)[e])?) } else { None };
        Ok(Exchange { counts, send, recv, orders })
    }

    /// Rows of each expert here.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// Rows by expert of this rank's tokens become rows by expert of all ranks' tokens.
    pub fn to_experts(&self, cx: &Ctx, rows: Tensor) -> Result<Tensor> {
        if cx.groups.ep.size() == 1 {
            return Ok(rows);
        }
        let arrived = self.travel(cx, rows, &self.send, &self.recv)?.wait();
        match &self.orders {
            Some((by_expert, _)) => reorder(cx, &arrived, by_expert),
            None => Ok(arrived),
        }
    }

    /// The inverse, still on its way.
    pub fn to_tokens(&self, cx: &Ctx, rows: Tensor) -> Result<Pending> {
        if cx.groups.ep.size() == 1 {
            return Ok(Pending::ready(rows, &cx.stream));
        }
        let rows = match &self.orders {
            Some((_, by_sender)) => reorder(cx, &rows, by_sender)?,
            None => rows,
        };
        self.travel(cx, rows, &self.recv, &self.send)
    }

    fn travel(&self, cx: &Ctx, rows: Tensor, send: &[usize], recv: &[usize]) -> Result<Pending> {
        let h = rows.cols();
        let out = cx.pool.alloc(rows.dtype(), [recv.iter().sum(), h])?;
        let elements = |n: &[usize]| n.iter().map(|n| n * h).collect::<Vec<_>>();
        cx.groups.ep.all_to_all_v(&cx.stream, rows, &elements(send), out, &elements(recv))
    }
}

/// Rows that a sender has for an expert where no counts can be read: every rank gets as many, what does not divide stays
/// with its sender, and a rank's experts share alike. All ranks then do the same.
fn even_share(rows: usize, ranks: usize, here: usize, sender: usize, expert: usize) -> usize {
    let rest = if expert / here == sender { rows % ranks } else { 0 };
    (rows / ranks + rest + here - 1 - expert % here) / here
}

/// Both orders of what `senders` send to `experts`, of which `count(sender, expert)` tells the number of rows.
fn orders(cx: &Ctx, senders: usize, experts: usize, count: impl Fn(usize, usize) -> usize) -> Result<(Tensor, Tensor)> {
    let mut starts = vec![];
    let mut total = 0;
    for i in 0..senders * experts {
        starts.push(total);
        total += count(i / experts, i % experts);
    }
    let mut by_expert = Vec::with_capacity(total);
    for e in 0..experts {
        for s in 0..senders {
            let start = starts[s * experts + e];
            by_expert.extend((start..start + count(s, e)).map(|r| r as i32));
        }
    }
    let mut by_sender = vec![0; total];
    by_expert.iter().enumerate().for_each(|(to, &from)| by_sender[from as usize] = to as i32);
    let upload = |order: &[i32]| {
        let mut t = cx.pool.alloc(DType::I32, [order.len()])?;
        host::write_i32(&*cx.device, &cx.stream, order, &mut t)?;
        Ok(t)
    };
    Ok((upload(&by_expert)?, upload(&by_sender)?))
}

fn reorder(cx: &Ctx, rows: &Tensor, order: &Tensor) -> Result<Tensor> {
    let mut out = cx.pool.alloc(rows.dtype(), *rows.shape())?;
    cx.ops().gather_rows(&cx.stream, rows, order, 1, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::even_share;

    #[test]
    fn even_shares_lose_no_row() {
        for (rows, ranks, here) in [(7, 2, 3), (0, 2, 2), (64, 4, 1), (13, 1, 5)] {
            for sender in 0..ranks {
                let shares: Vec<usize> = (0..ranks * here).map(|e| even_share(rows, ranks, here, sender, e)).collect();
                assert_eq!(shares.iter().sum::<usize>(), rows, "{shares:?}");
                let (of_others, own) = (rows / ranks, rows / ranks + rows % ranks);
                for (r, of_rank) in shares.chunks(here).enumerate() {
                    assert_eq!(of_rank.iter().sum::<usize>(), if r == sender { own } else { of_others });
                }
            }
        }
    }
}

//! Memory as jobs see it: addresses without handles, which would keep a buffer alive that stream order should keep.

use ferrotron_device::{DType, Tensor};

use crate::{Collective, Kind, P2p, ReduceOp};

/// Elements in host memory. Only the jobs of this crate look into it, between the home stream's event and their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ptr: usize,
    len: usize,
    dtype: DType,
}

impl Span {
    pub(crate) fn of(t: &Tensor) -> Span {
        Span { ptr: t.ptr().0 as usize, len: t.numel(), dtype: t.dtype() }
    }

    /// Bytes that came from a peer, as `len` elements of a dtype. `None` when they are not that many.
    pub(crate) fn of_bytes(bytes: &mut [u8], len: usize, dtype: DType) -> Option<Span> {
        (len.checked_mul(dtype.size())? == bytes.len()).then_some(Span { ptr: bytes.as_mut_ptr() as usize, len, dtype })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements `start .. start + len`.
    pub(crate) fn part(&self, start: usize, len: usize) -> Span {
        assert!(start + len <= self.len, "part {start}+{len} of a span of {}", self.len);
        Span { ptr: self.ptr + start * self.dtype.size(), len, dtype: self.dtype }
    }

    /// # Safety
    /// The memory is alive, and nothing writes to it while the slice is used.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; a span comes from a tensor or a slice, so it is in one allocation.
        unsafe { std::slice::from_raw_parts(self.ptr as *const u8, self.len * self.dtype.size()) }
    }

    /// # Safety
    /// The memory is alive, and nothing else reads or writes it while the slice is used.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; a span comes from a tensor or a slice, so it is in one allocation.
        unsafe { std::slice::from_raw_parts_mut(self.ptr as *mut u8, self.len * self.dtype.size()) }
    }

    /// Copies `from` here, unless it is the same memory.
    ///
    /// # Safety
    /// Both are alive, apart or the same; nothing writes to `from` or touches this meanwhile.
    pub(crate) unsafe fn copy_from(self, from: Span) {
        assert_eq!((self.len, self.dtype), (from.len, from.dtype), "copy between spans");
        if self.ptr != from.ptr {
            // SAFETY: the caller's promise.
            unsafe { self.bytes_mut().copy_from_slice(from.bytes()) }
        }
    }
}

/// A [`Collective`] without its handles.
#[derive(Clone, Debug)]
pub(crate) enum RawCall {
    AllReduce { t: Span, op: ReduceOp },
    ReduceScatter { x: Span, out: Span },
    AllGather { x: Span, out: Span, counts: Vec<usize> },
    Broadcast { t: Span, root: usize },
    AllToAll { x: Span, send: Vec<usize>, out: Span, recv: Vec<usize> },
}

impl RawCall {
    pub(crate) fn of(call: &Collective) -> RawCall {
        match call {
            Collective::AllReduce { t, op } => RawCall::AllReduce { t: Span::of(t), op: *op },
            Collective::ReduceScatter { x, out } => RawCall::ReduceScatter { x: Span::of(x), out: Span::of(out) },
            Collective::AllGather { x, out, counts } => {
                RawCall::AllGather { x: Span::of(x), out: Span::of(out), counts: counts.clone() }
            }
            Collective::Broadcast { t, root } => RawCall::Broadcast { t: Span::of(t), root: *root },
            Collective::AllToAllV { x, send, out, recv } => {
                RawCall::AllToAll { x: Span::of(x), send: send.clone(), out: Span::of(out), recv: recv.clone() }
            }
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            RawCall::AllReduce { .. } => Kind::AllReduce,
            RawCall::ReduceScatter { .. } => Kind::ReduceScatter,
            RawCall::AllGather { .. } => Kind::AllGather,
            RawCall::Broadcast { .. } => Kind::Broadcast,
            RawCall::AllToAll { .. } => Kind::AllToAll,
        }
    }

    /// True when the calls of ranks `mine` and `theirs` of a group fit together.
    pub(crate) fn fits(&self, mine: usize, other: &RawCall, theirs: usize) -> bool {
        let same = |a: &Span, b: &Span| a.len == b.len && a.dtype == b.dtype;
        match (self, other) {
            (RawCall::AllReduce { t: a, op: p }, RawCall::AllReduce { t: b, op: q }) => same(a, b) && p == q,
            (RawCall::ReduceScatter { x: a, .. }, RawCall::ReduceScatter { x: b, .. }) => same(a, b),
            (RawCall::AllGather { out: a, counts: p, .. }, RawCall::AllGather { out: b, counts: q, .. }) => {
                same(a, b) && p == q
            }
            (RawCall::Broadcast { t: a, root: p }, RawCall::Broadcast { t: b, root: q }) => same(a, b) && p == q,
            (
                RawCall::AllToAll { x: a, send: s, recv: r, .. },
                RawCall::AllToAll { x: b, send: peer_s, recv: peer_r, .. },
            ) => a.dtype == b.dtype && s[theirs] == peer_r[mine] && r[theirs] == peer_s[mine],
            _ => false,
        }
    }
}

/// A [`P2p`] without its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawP2p {
    Send(Span, usize),
    Recv(Span, usize),
}

impl RawP2p {
    pub(crate) fn of(op: &P2p) -> RawP2p {
        match op {
            P2p::Send(t, to) => RawP2p::Send(Span::of(t), *to),
            P2p::Recv(t, from) => RawP2p::Recv(Span::of(t), *from),
        }
    }
}

/// Where the part of rank `r` starts.
pub(crate) fn start_of(counts: &[usize], r: usize) -> usize {
    counts[..r].iter().sum()
}

/// Start and length of each rank's share of `n` elements: the first ones get one more.
pub(crate) fn share(n: usize, ranks: usize, r: usize) -> (usize, usize) {
    let (each, more) = (n / ranks, n % ranks);
    (r * each + r.min(more), each + usize::from(r < more))
}

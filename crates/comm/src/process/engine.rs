//! Collectives as messages. An element is reduced by its owner in the order of ranks, so the bits are those of thread
//! ranks. Long tensors go in pieces, so that what waits in mailboxes is bounded.

use std::sync::Arc;

use ferrotron_device::{Error, Result};

use super::frame::{CallId, Header, Lane, hash};
use super::net::Net;
use crate::failure::Failure;
use crate::member::{Engine, Trouble};
use crate::raw::{RawCall, RawP2p, Span, share, start_of};
use crate::reduce::combine;
use crate::{Kind, ReduceOp};

/// Bytes of a piece to one peer.
const PIECE: usize = 1 << 20;
/// An all-reduce up to this is summed by all ranks, each for itself: one message instead of two.
const SMALL: usize = 4 << 10;

/// One rank in a group.
pub(crate) struct MessageEngine {
    net: Arc<Net>,
    id: u64,
    name: String,
    ranks: Vec<usize>,
    me: usize,
}

impl MessageEngine {
    pub(crate) fn new(net: Arc<Net>, id: u64, name: &str, ranks: &[usize], me: usize) -> MessageEngine {
        MessageEngine { net, id, name: name.into(), ranks: ranks.to_vec(), me }
    }

    /// The other ranks, the next one first: so not all send to the same.
    fn peers(&self) -> impl Iterator<Item = usize> + use<'_> {
        let n = self.ranks.len();
        (1..n).map(move |i| (self.me + i) % n)
    }

    fn send(&self, lane: Lane, to: usize, call: CallId, bytes: &[u8]) -> Result<()> {
        let header = Header { lane, group: self.id, call, len: bytes.len() as u64 };
        self.net.send(self.ranks[to], &header, bytes)
    }

    fn recv(&self, lane: Lane, from: usize, call: CallId, bytes: usize) -> Result<Vec<u8>> {
        let letter = self.net.recv((self.id, self.ranks[from], lane), &self.name, &self.ranks)?;
        if letter.call == call && letter.bytes.len() == bytes {
            return Ok(letter.bytes);
        }
        let (them, me) = (self.ranks[from], self.ranks[self.me]);
        Err(Error::Aborted(format!(
            "calls of group {} differ: rank {them} calls {} and sends {} bytes, rank {me} calls {call} and expects \
             {bytes}; run with checked collectives to see the call sites",
            self.name,
            letter.call,
            letter.bytes.len()
        )))
    }

    /// Sends a part of this rank's memory.
    ///
    /// # Safety
    /// As [`Span::bytes`].
    unsafe fn give(&self, to: usize, call: CallId, part: Span) -> Result<()> {
        // SAFETY: the caller's promise.
        self.send(Lane::Collective, to, call, unsafe { part.bytes() })
    }

    /// Receives into a part of this rank's memory.
    ///
    /// # Safety
    /// As [`Span::bytes_mut`].
    unsafe fn take(&self, from: usize, call: CallId, part: Span) -> Result<()> {
        let got = self.recv(Lane::Collective, from, call, part.len() * part.dtype().size())?;
        // SAFETY: the caller's promise; `recv` checked the length.
        unsafe { part.bytes_mut() }.copy_from_slice(&got);
        Ok(())
    }

    /// Receives the peers' values of `mine` and combines all in the order of ranks into `out`.
    ///
    /// # Safety
    /// As [`combine`].
    unsafe fn reduce(&self, op: ReduceOp, call: CallId, mine: Span, out: Span) -> Result<()> {
        let bytes = mine.len() * mine.dtype().size();
        let mut got: Vec<Vec<u8>> = vec![vec![]; self.ranks.len()];
        for q in self.peers() {
            got[q] = self.recv(Lane::Collective, q, call, bytes)?;
        }
        let span = |(q, b): (usize, &mut Vec<u8>)| {
            if q == self.me { Some(mine) } else { Span::of_bytes(b, mine.len(), mine.dtype()) }
        };
        let sources: Option<Vec<Span>> = got.iter_mut().enumerate().map(span).collect();
        let sources = sources.ok_or_else(|| Error::mismatch("reduction", "bytes of a message", bytes, "others"))?;
        // SAFETY: the caller's promise; the messages are in `got`.
        unsafe { combine(op, &sources, out) }
    }

    /// # Safety
    /// As [`combine`], with `t` as source and result.
    unsafe fn all_reduce(&self, op: ReduceOp, call: CallId, t: Span) -> Result<()> {
        let n = self.ranks.len();
        if t.len() * t.dtype().size() <= SMALL {
            for q in self.peers() {
                // SAFETY: the caller's promise.
                unsafe { self.give(q, call, t)? };
            }
            // SAFETY: the caller's promise; everything of `t` has been sent.
            return unsafe { self.reduce(op, call, t, t) };
        }
        for (start, len) in pieces(share(t.len(), n, 0).1, t) {
            let part = |q: usize| {
                let (first, of) = share(t.len(), n, q);
                t.part(first + start.min(of), len.min(of.saturating_sub(start)))
            };
            // SAFETY: the caller's promise; the part of each owner is sent before it is written.
            unsafe {
                for q in self.peers() {
                    self.give(q, call, part(q))?;
                }
                self.reduce(op, call, part(self.me), part(self.me))?;
                for q in self.peers() {
                    self.give(q, call, part(self.me))?;
                }
                for q in self.peers() {
                    self.take(q, call, part(q))?;
                }
            }
        }
        Ok(())
    }

    /// Each rank gives `give(q)` to and takes `take(q)` from each peer q, in pieces.
    ///
    /// # Safety
    /// As [`Span::bytes`] and [`Span::bytes_mut`].
    unsafe fn swap(&self, call: CallId, give: impl Fn(usize) -> Span, take: impl Fn(usize) -> Span) -> Result<()> {
        let piece =
            |s: Span, start: usize, len: usize| s.part(start.min(s.len()), len.min(s.len().saturating_sub(start)));
        let longest = self.peers().flat_map(|q| [give(q), take(q)]).max_by_key(Span::len);
        for (start, len) in longest.into_iter().flat_map(|s| pieces(s.len(), s)) {
            // A peer with less to give or take has fewer pieces: empty ones are left out on both sides.
            for q in self.peers() {
                let part = piece(give(q), start, len);
                if part.len() > 0 {
                    // SAFETY: the caller's promise.
                    unsafe { self.give(q, call, part)? };
                }
            }
            for q in self.peers() {
                let part = piece(take(q), start, len);
                if part.len() > 0 {
                    // SAFETY: the caller's promise.
                    unsafe { self.take(q, call, part)? };
                }
            }
        }
        Ok(())
    }
}

/// Start and length of the pieces of `n` elements like those of `s`; one empty piece for none, so that empty calls are
/// compared too.
fn pieces(n: usize, s: Span) -> impl Iterator<Item = (usize, usize)> {
    let each = PIECE / s.dtype().size();
    (0..n.max(1)).step_by(each).map(move |start| (start, each.min(n - start)))
}

fn call_id(call: &RawCall, sequence: u64) -> CallId {
    let (t, detail) = match call {
        RawCall::AllReduce { t, op } => (t, u32::from(*op == ReduceOp::Max)),
        RawCall::ReduceScatter { x, .. } => (x, 0),
        RawCall::AllGather { out, counts, .. } => {
            let bytes: Vec<u8> = counts.iter().flat_map(|c| (*c as u64).to_le_bytes()).collect();
            (out, hash(&bytes) as u32)
        }
        RawCall::Broadcast { t, root } => (t, *root as u32),
        RawCall::AllToAll { x, .. } => (x, 0),
    };
    let count = if matches!(call, RawCall::AllToAll { .. }) { 0 } else { t.len() as u64 };
    CallId { kind: call.kind(), dtype: t.dtype(), detail, sequence, count }
}

impl Engine for MessageEngine {
    fn run(&self, sequence: u64, raw: &Arc<RawCall>) -> Result<()> {
        let call = call_id(raw, sequence);
        let (me, n) = (self.me, self.ranks.len());
        // SAFETY: all tensors live until this job ends (Pending), the home stream has written them, and only this job
        // uses them; what is received goes to other places than what is sent, but for own parts, which are not sent.
        unsafe {
            match &**raw {
                RawCall::AllReduce { t, op } => self.all_reduce(*op, call, *t),
                RawCall::ReduceScatter { x, out } => {
                    for (start, len) in pieces(out.len(), *out) {
                        let part = |q: usize| x.part(q * out.len() + start, len);
                        for q in self.peers() {
                            self.give(q, call, part(q))?;
                        }
                        self.reduce(ReduceOp::Sum, call, part(me), out.part(start, len))?;
                    }
                    Ok(())
                }
                RawCall::AllGather { x, out, counts } => {
                    out.part(start_of(counts, me), counts[me]).copy_from(*x);
                    self.swap(call, |_| *x, |q| out.part(start_of(counts, q), counts[q]))
                }
                RawCall::Broadcast { t, root } => {
                    let nothing = t.part(0, 0);
                    let give = |_| if me == *root { *t } else { nothing };
                    self.swap(call, give, |q| if q == *root { *t } else { nothing })
                }
                RawCall::AllToAll { x, send, out, recv } => {
                    let give = |q: usize| x.part(start_of(send, q), send[q]);
                    let take = |q: usize| out.part(start_of(recv, q), recv[q]);
                    debug_assert_eq!(n, send.len());
                    take(me).copy_from(give(me));
                    self.swap(call, give, take)
                }
            }
        }
    }

    fn exchange(&self, messages: &[RawP2p]) -> Result<()> {
        let call =
            |s: &Span| CallId { kind: Kind::Exchange, dtype: s.dtype(), detail: 0, sequence: 0, count: s.len() as u64 };
        for m in messages {
            if let RawP2p::Send(s, to) = m {
                // SAFETY: the tensor is held until this job ends, and the home stream has written it.
                self.send(Lane::Message, *to, call(s), unsafe { s.bytes() })?;
            }
        }
        for m in messages {
            if let RawP2p::Recv(s, from) = m {
                let got = self.recv(Lane::Message, *from, call(s), s.len() * s.dtype().size())?;
                // SAFETY: the tensor is held until this job ends, and nobody else uses it.
                unsafe { s.bytes_mut() }.copy_from_slice(&got);
            }
        }
        Ok(())
    }

    /// Dissemination (Hensgen, Finkel, Manber 1988): after round k a rank knows of 2^(k+1) ranks.
    fn barrier(&self, sequence: u64) -> Result<()> {
        let n = self.ranks.len();
        let call = CallId { sequence, ..CallId::NONE };
        for distance in std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|d| *d < n) {
            self.send(Lane::Barrier, (self.me + distance) % n, call, &[])?;
            self.recv(Lane::Barrier, (self.me + n - distance) % n, call, 0)?;
        }
        Ok(())
    }

    fn abort(&self, why: &str) {
        self.net.abort(why);
    }

    fn trouble(&self, trouble: Trouble<'_>) {
        self.net.trouble(&self.name, &self.ranks, trouble);
    }

    fn failure(&self) -> &Failure {
        &self.net.failure
    }
}

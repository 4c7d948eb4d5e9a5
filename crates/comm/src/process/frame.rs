//! What travels between two processes: frames with a header that tells which call they belong to.

use std::fmt;

use ferrotron_base::fnv::{FNV, fnv};
use ferrotron_device::DType;

use crate::Kind;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Part of a collective.
    Collective,
    /// A point-to-point message.
    Message,
    /// Part of a barrier.
    Barrier,
    /// The sender has failed; the payload is the cause.
    Abort,
    /// A call of the sender, to be compared ([`crate::checked`]).
    Check,
    /// Asks for the receiver's history.
    AskHistory,
    /// The answer.
    History,
    /// The sender leaves in order.
    Bye,
}

const LANES: [Lane; 8] = [
    Lane::Collective,
    Lane::Message,
    Lane::Barrier,
    Lane::Abort,
    Lane::Check,
    Lane::AskHistory,
    Lane::History,
    Lane::Bye,
];
const KINDS: [Kind; 7] = [
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::AllToAll,
    Kind::Exchange,
    Kind::Barrier,
];
const DTYPES: [DType; 7] = [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8];

/// The call that a frame belongs to. Sender and receiver must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// Which operation, root or counts: equal numbers for equal arguments.
    pub(crate) detail: u32,
    /// Place in the group's order of calls.
    pub(crate) sequence: u64,
    /// Elements; 0 where the ranks' numbers may differ.
    pub(crate) count: u64,
}

impl CallId {
    /// Of frames that belong to no call.
    pub(crate) const NONE: CallId = CallId { kind: Kind::Barrier, dtype: DType::U8, detail: 0, sequence: 0, count: 0 };
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.sequence, self.kind)?;
        if self.count > 0 {
            write!(f, " of {} {}", self.count, self.dtype)?;
        }
        if self.detail > 0 { write!(f, " (arguments {:#x})", self.detail) } else { Ok(()) }
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) lane: Lane,
    /// Hash of the group's name, purpose and ranks.
    pub(crate) group: u64,
    pub(crate) call: CallId,
    /// Bytes that follow.
    pub(crate) len: u64,
}

/// Bytes of a header.
pub(crate) const HEADER: usize = 40;

fn code<T: PartialEq>(all: &[T], x: &T) -> u8 {
    // The tables hold every variant; a frame with a wrong code would be refused by the receiver.
    all.iter().position(|y| y == x).map_or(u8::MAX, |i| i as u8)
}

impl Header {
    pub(crate) fn of(lane: Lane, len: usize) -> Header {
        Header { lane, group: 0, call: CallId::NONE, len: len as u64 }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let c = &self.call;
        out[..3].copy_from_slice(&[code(&LANES, &self.lane), code(&KINDS, &c.kind), code(&DTYPES, &c.dtype)]);
        out[4..8].copy_from_slice(&c.detail.to_le_bytes());
        for (i, v) in [self.group, c.sequence, c.count, self.len].into_iter().enumerate() {
            out[8 + 8 * i..][..8].copy_from_slice(&v.to_le_bytes());
        }
        out
    }

    /// `None` for bytes that no header has.
    pub(crate) fn decode(b: &[u8; HEADER]) -> Option<Header> {
        let u64_at = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| b[at + i]));
        let call = CallId {
            kind: *KINDS.get(usize::from(b[1]))?,
            dtype: *DTYPES.get(usize::from(b[2]))?,
            detail: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            sequence: u64_at(16),
            count: u64_at(24),
        };
        Some(Header { lane: *LANES.get(usize::from(b[0]))?, group: u64_at(8), call, len: u64_at(32) })
    }
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    fnv(FNV, bytes.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for lane in LANES {
            for (kind, dtype) in KINDS.into_iter().zip(DTYPES) {
                let call = CallId { kind, dtype, detail: 5, sequence: 1 << 40, count: 77 };
                let h = Header { lane, group: u64::MAX, call, len: 12 };
                assert_eq!(Header::decode(&h.encode()), Some(h));
            }
        }
        assert_eq!(Header::decode(&[0xff; HEADER]), None);
        assert_eq!(CallId::NONE.to_string(), "#0 barrier");
    }
}

//! Calls and answers as bytes, between processes of one test.

use crate::collective::{Call, CollectiveError, Kind};
use crate::p2p::Item;
use crate::reduce::{Element, Reduction};

const ELEMENTS: [Element; 8] =
    [Element::F32, Element::F16, Element::BF16, Element::F64, Element::I8, Element::I32, Element::I64, Element::U8];
const REDUCTIONS: [Reduction; 4] = [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min];

/// What a rank asks of the process that holds its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Call { rank: usize, call: Call, send: Vec<u8>, recv: usize },
    Batch { rank: usize, items: Vec<Item>, data: Vec<u8> },
    Interrupt { rank: usize },
}

/// The bytes that the rank receives, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub Result<Vec<u8>, CollectiveError>);

/// Numbers and byte strings, one after the other.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn number(mut self, n: usize) -> Writer {
        self.0.extend_from_slice(&(n as u64).to_le_bytes());
        self
    }

    fn numbers(self, list: &[usize]) -> Writer {
        list.iter().fold(self.number(list.len()), |w, n| w.number(*n))
    }

    fn bytes(self, bytes: &[u8]) -> Writer {
        let mut w = self.number(bytes.len());
        w.0.extend_from_slice(bytes);
        w
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<usize> {
        let (n, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        usize::try_from(u64::from_le_bytes(*n)).ok()
    }

    fn numbers(&mut self) -> Option<Vec<usize>> {
        let n = self.number().filter(|n| *n <= self.0.len() / 8)?;
        (0..n).map(|_| self.number()).collect()
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let n = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }
}

fn place<T: PartialEq>(of: &T, list: &[T]) -> usize {
    list.iter().position(|x| x == of).unwrap_or(list.len())
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        let w = match self {
            Request::Call { rank, call, send, recv } => {
                let none: &[usize] = &[];
                let (kind, detail, first, second) = match &call.kind {
                    Kind::AllReduce(op) => (0, place(op, &REDUCTIONS), none, none),
                    Kind::AllGather => (1, 0, none, none),
                    Kind::AllGatherV { counts } => (2, 0, &counts[..], none),
                    Kind::ReduceScatter(op) => (3, place(op, &REDUCTIONS), none, none),
                    Kind::Broadcast { root } => (4, *root, none, none),
                    Kind::AllToAll { to, from } => (5, 0, &to[..], &from[..]),
                    Kind::Barrier => (6, 0, none, none),
                    Kind::Split => (7, 0, none, none),
                };
                let w = w.number(0).number(*rank).number(kind).number(detail).numbers(first).numbers(second);
                w.number(call.count).number(place(&call.element, &ELEMENTS)).bytes(send).number(*recv)
            }
            Request::Batch { rank, items, data } => {
                let w = w.number(1).number(*rank).number(items.len());
                let item = |w: Writer, i: &Item| {
                    w.number(i.send.into()).number(i.peer).number(i.count).number(place(&i.element, &ELEMENTS))
                };
                items.iter().fold(w, item).bytes(data)
            }
            Request::Interrupt { rank } => w.number(2).number(*rank),
        };
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Request> {
        let mut r = Reader(bytes);
        let (what, rank) = (r.number()?, r.number()?);
        let request = match what {
            0 => {
                let (kind, detail, first, second) = (r.number()?, r.number()?, r.numbers()?, r.numbers()?);
                let kind = match kind {
                    0 => Kind::AllReduce(*REDUCTIONS.get(detail)?),
                    1 => Kind::AllGather,
                    2 => Kind::AllGatherV { counts: first },
                    3 => Kind::ReduceScatter(*REDUCTIONS.get(detail)?),
                    4 => Kind::Broadcast { root: detail },
                    5 => Kind::AllToAll { to: first, from: second },
                    6 => Kind::Barrier,
                    7 => Kind::Split,
                    _ => return None,
                };
                let call = Call { kind, count: r.number()?, element: *ELEMENTS.get(r.number()?)? };
                Request::Call { rank, call, send: r.bytes()?, recv: r.number()? }
            }
            1 => {
                let n = r.number().filter(|n| *n <= bytes.len())?;
                let mut item = || {
                    let (send, peer, count) = (r.number()? == 1, r.number()?, r.number()?);
                    Some(Item { send, peer, at: 0, count, element: *ELEMENTS.get(r.number()?)? })
                };
                let items: Vec<Item> = (0..n).map(|_| item()).collect::<Option<_>>()?;
                let data = r.bytes()?;
                let size = |i: &Item| i.count.checked_mul(i.element.size());
                let sent = items.iter().filter(|i| i.send).try_fold(0, |sum: usize, i| sum.checked_add(size(i)?))?;
                Some(()).filter(|()| sent == data.len())?;
                Request::Batch { rank, items, data }
            }
            2 => Request::Interrupt { rank },
            _ => return None,
        };
        r.0.is_empty().then_some(request)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        let w = match &self.0 {
            Ok(bytes) => w.number(0).bytes(bytes),
            Err(CollectiveError::Mismatch { call, what }) => w.number(1).number(*call as usize).bytes(what.as_bytes()),
            Err(CollectiveError::Timeout { call, missing }) => w.number(2).number(*call as usize).numbers(missing),
            Err(CollectiveError::Aborted(why)) => w.number(3).bytes(why.as_bytes()),
            Err(CollectiveError::Buffer { rank, what }) => w.number(4).number(*rank).bytes(what.as_bytes()),
        };
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Answer> {
        let mut r = Reader(bytes);
        Some(Answer(match r.number()? {
            0 => Ok(r.bytes()?),
            1 => Err(CollectiveError::Mismatch { call: r.number()? as u64, what: r.text()? }),
            2 => Err(CollectiveError::Timeout { call: r.number()? as u64, missing: r.numbers()? }),
            3 => Err(CollectiveError::Aborted(r.text()?)),
            4 => Err(CollectiveError::Buffer { rank: r.number()?, what: r.text()? }),
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_round_trip_and_nonsense_is_refused() {
        let kinds = [
            Kind::AllReduce(Reduction::Max),
            Kind::AllGather,
            Kind::AllGatherV { counts: vec![1, 0, 2] },
            Kind::ReduceScatter(Reduction::Sum),
            Kind::Broadcast { root: 2 },
            Kind::AllToAll { to: vec![1, 2], from: vec![3, 0] },
            Kind::Barrier,
            Kind::Split,
        ];
        let item = |send, count| Item { send, peer: 1, at: 0, count, element: Element::F16 };
        let mut requests = vec![
            Request::Interrupt { rank: 3 },
            Request::Batch { rank: 1, items: vec![item(true, 2), item(false, 5)], data: vec![1, 2, 3, 4] },
        ];
        requests.extend(kinds.map(|kind| Request::Call {
            rank: 1,
            call: Call { kind, count: 7, element: Element::BF16 },
            send: vec![9; 14],
            recv: 14,
        }));
        for r in requests {
            let bytes = r.encode();
            assert_eq!(Request::decode(&bytes), Some(r));
            assert!((0..bytes.len()).all(|n| Request::decode(&bytes[..n]).is_none()));
        }
        let short = Request::Batch { rank: 1, items: vec![item(true, 2)], data: vec![1] };
        assert_eq!(Request::decode(&short.encode()), None);
        for answer in [
            Ok(vec![1, 2]),
            Err(CollectiveError::Mismatch { call: 3, what: "a".into() }),
            Err(CollectiveError::Timeout { call: 4, missing: vec![0, 2] }),
            Err(CollectiveError::Aborted("b".into())),
            Err(CollectiveError::Buffer { rank: 1, what: "c".into() }),
        ] {
            let answer = Answer(answer);
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }
}

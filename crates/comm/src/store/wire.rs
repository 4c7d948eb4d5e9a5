//! The bytes of the protocol.
//!
//! A request is a `u8` op code and its fields; integers are little-endian; a key or value is a `u64` length and bytes; a
//! list is a `u64` count and keys. A connection is one stream of requests and replies in order. It opens with VALIDATE
//! and its magic number, which has no reply; clients since torch 2.4 send PING next. A request has no length of its own,
//! so a server parses what has come and waits for the rest.
//!
//! | request | fields | reply |
//! |---|---|---|
//! | VALIDATE | `u32` magic | none |
//! | SET, APPEND, QUEUE_PUSH | key, value | none |
//! | COMPARE_SET | key, expected, desired | value now stored |
//! | GET | key | value, empty if there is none: clients WAIT first |
//! | ADD | key, `i64` | `i64` new value, stored as decimal text |
//! | CHECK | list | `u8` 0 all there, 1 not |
//! | WAIT | list | `u8` 0 once all are there |
//! | CANCEL_WAIT | | `u8` 1 |
//! | GETNUMKEYS | | `i64` |
//! | DELETE_KEY | key | `i64` 0 or 1 |
//! | MULTI_GET | list | the values |
//! | MULTI_SET | `u64` count, (key, value)s | none |
//! | PING | `u32` | the same |
//! | QUEUE_POP | key | `i64` length before; if not 0, value |
//! | QUEUE_LEN | key | `i64` |
//! | LIST_KEYS | | `i64` count, keys |
//! | BARRIER | key, `i64` world size | `u8` 0 once so many have come |

/// What a connection opens with.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// Longest key.
pub const MAX_KEY: usize = 8 << 10;
/// Longest value.
pub const MAX_VALUE: usize = 8 << 20;
/// Most keys in a list.
pub const MAX_KEYS: usize = 128 << 10;
/// Longest request as a whole, and longest reply: what one connection may make the server hold.
pub const MAX_MESSAGE: usize = 64 << 20;
/// Reply to CHECK: all keys exist.
pub const READY: u8 = 0;
/// Reply to CHECK: some do not.
pub const NOT_READY: u8 = 1;
/// Reply to WAIT.
pub const STOP_WAITING: u8 = 0;
/// Reply to CANCEL_WAIT.
pub const WAIT_CANCELED: u8 = 1;

/// Op codes.
#[allow(missing_docs)] // the table above
pub mod op {
    pub const VALIDATE: u8 = 0;
    pub const SET: u8 = 1;
    pub const COMPARE_SET: u8 = 2;
    pub const GET: u8 = 3;
    pub const ADD: u8 = 4;
    pub const CHECK: u8 = 5;
    pub const WAIT: u8 = 6;
    pub const NUM_KEYS: u8 = 7;
    pub const DELETE: u8 = 8;
    pub const APPEND: u8 = 9;
    pub const MULTI_GET: u8 = 10;
    pub const MULTI_SET: u8 = 11;
    pub const CANCEL_WAIT: u8 = 12;
    pub const PING: u8 = 13;
    pub const QUEUE_PUSH: u8 = 14;
    pub const QUEUE_POP: u8 = 15;
    pub const QUEUE_LEN: u8 = 16;
    pub const LIST_KEYS: u8 = 17;
    pub const BARRIER: u8 = 18;
}

/// Bytes of a key or value.
pub type Bytes = Vec<u8>;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the table above
pub enum Request {
    Validate(u32),
    Set(Bytes, Bytes),
    CompareSet { key: Bytes, expected: Bytes, desired: Bytes },
    Get(Bytes),
    Add(Bytes, i64),
    Check(Vec<Bytes>),
    Wait(Vec<Bytes>),
    NumKeys,
    Delete(Bytes),
    Append(Bytes, Bytes),
    MultiGet(Vec<Bytes>),
    MultiSet(Vec<(Bytes, Bytes)>),
    CancelWait,
    Ping(u32),
    QueuePush(Bytes, Bytes),
    QueuePop(Bytes),
    QueueLen(Bytes),
    ListKeys,
    Barrier(Bytes, i64),
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A request of so many bytes.
    Whole(Request, usize),
    /// The beginning of a request of at least so many bytes.
    Part(usize),
    /// No request.
    Bad(&'static str),
}

enum Stop {
    Need(usize),
    Bad(&'static str),
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        let end = self.at + n;
        if end > MAX_MESSAGE {
            return Err(Stop::Bad("request too long"));
        }
        let part = self.bytes.get(self.at..end).ok_or(Stop::Need(end))?;
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn count(&mut self, limit: usize, what: &'static str) -> Result<usize, Stop> {
        let n = u64::from_le_bytes(self.array()?);
        usize::try_from(n).ok().filter(|n| *n <= limit).ok_or(Stop::Bad(what))
    }

    fn key(&mut self) -> Result<Bytes, Stop> {
        let n = self.count(MAX_KEY, "key too long")?;
        Ok(self.take(n)?.to_vec())
    }

    /// Steps over a value without copying: a long value comes in many reads.
    fn value(&mut self) -> Result<&'a [u8], Stop> {
        let n = self.count(MAX_VALUE, "value too long")?;
        self.take(n)
    }

    fn keys(&mut self) -> Result<Vec<Bytes>, Stop> {
        let n = self.count(MAX_KEYS, "too many keys")?;
        (0..n).map(|_| self.key()).collect()
    }

    fn i64(&mut self) -> Result<i64, Stop> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn request(&mut self) -> Result<Request, Stop> {
        Ok(match self.array::<1>()?[0] {
            op::VALIDATE => Request::Validate(self.u32()?),
            op::SET => Request::Set(self.key()?, self.value()?.to_vec()),
            op::COMPARE_SET => {
                let (key, expected, desired) = (self.key()?, self.value()?, self.value()?);
                Request::CompareSet { key, expected: expected.to_vec(), desired: desired.to_vec() }
            }
            op::GET => Request::Get(self.key()?),
            op::ADD => Request::Add(self.key()?, self.i64()?),
            op::CHECK => Request::Check(self.keys()?),
            op::WAIT => Request::Wait(self.keys()?),
            op::NUM_KEYS => Request::NumKeys,
            op::DELETE => Request::Delete(self.key()?),
            op::APPEND => Request::Append(self.key()?, self.value()?.to_vec()),
            op::MULTI_GET => Request::MultiGet(self.keys()?),
            op::MULTI_SET => {
                let n = self.count(MAX_KEYS, "too many keys")?;
                let pairs: Vec<_> = (0..n).map(|_| Ok((self.key()?, self.value()?))).collect::<Result<_, Stop>>()?;
                Request::MultiSet(pairs.into_iter().map(|(k, v)| (k, v.to_vec())).collect())
            }
            op::CANCEL_WAIT => Request::CancelWait,
            op::PING => Request::Ping(self.u32()?),
            op::QUEUE_PUSH => Request::QueuePush(self.key()?, self.value()?.to_vec()),
            op::QUEUE_POP => Request::QueuePop(self.key()?),
            op::QUEUE_LEN => Request::QueueLen(self.key()?),
            op::LIST_KEYS => Request::ListKeys,
            op::BARRIER => Request::Barrier(self.key()?, self.i64()?),
            _ => return Err(Stop::Bad("unknown op code")),
        })
    }
}

/// Reads the first request of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut c = Cursor { bytes, at: 0 };
    match c.request() {
        Ok(request) => Parsed::Whole(request, c.at),
        Err(Stop::Need(n)) => Parsed::Part(n),
        Err(Stop::Bad(why)) => Parsed::Bad(why),
    }
}

/// Appends a key or value.
pub fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a list.
pub fn put_keys<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    keys.iter().for_each(|k| put(out, k.as_ref()));
}

impl Request {
    /// The request's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        let with = |code: u8, out: &mut Vec<u8>, fields: &[&[u8]]| {
            out.push(code);
            fields.iter().for_each(|f| put(out, f));
        };
        match self {
            Request::Validate(n) => {
                out.push(op::VALIDATE);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Request::Ping(n) => {
                out.push(op::PING);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Request::Set(k, v) => with(op::SET, &mut out, &[k, v]),
            Request::CompareSet { key, expected, desired } => {
                with(op::COMPARE_SET, &mut out, &[key, expected, desired])
            }
            Request::Get(k) => with(op::GET, &mut out, &[k]),
            Request::Delete(k) => with(op::DELETE, &mut out, &[k]),
            Request::Append(k, v) => with(op::APPEND, &mut out, &[k, v]),
            Request::QueuePush(k, v) => with(op::QUEUE_PUSH, &mut out, &[k, v]),
            Request::QueuePop(k) => with(op::QUEUE_POP, &mut out, &[k]),
            Request::QueueLen(k) => with(op::QUEUE_LEN, &mut out, &[k]),
            Request::Add(k, n) => {
                with(op::ADD, &mut out, &[k]);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Request::Barrier(k, n) => {
                with(op::BARRIER, &mut out, &[k]);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
                out.push(match self {
                    Request::Check(_) => op::CHECK,
                    Request::Wait(_) => op::WAIT,
                    _ => op::MULTI_GET,
                });
                put_keys(&mut out, keys);
            }
            Request::MultiSet(pairs) => {
                out.push(op::MULTI_SET);
                out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
                for (k, v) in pairs {
                    put(&mut out, k);
                    put(&mut out, v);
                }
            }
            Request::NumKeys => out.push(op::NUM_KEYS),
            Request::CancelWait => out.push(op::CANCEL_WAIT),
            Request::ListKeys => out.push(op::LIST_KEYS),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Request> {
        let (k, v) = (b"/key".to_vec(), b"a\0b".to_vec());
        vec![
            Request::Validate(MAGIC),
            Request::Set(k.clone(), v.clone()),
            Request::CompareSet { key: k.clone(), expected: vec![], desired: v.clone() },
            Request::Get(k.clone()),
            Request::Add(k.clone(), -5),
            Request::Check(vec![]),
            Request::Wait(vec![k.clone(), v.clone()]),
            Request::NumKeys,
            Request::Delete(k.clone()),
            Request::Append(k.clone(), v.clone()),
            Request::MultiGet(vec![k.clone()]),
            Request::MultiSet(vec![(k.clone(), v.clone()), (v.clone(), vec![])]),
            Request::CancelWait,
            Request::Ping(77),
            Request::QueuePush(k.clone(), v),
            Request::QueuePop(k.clone()),
            Request::QueueLen(k.clone()),
            Request::ListKeys,
            Request::Barrier(k, 3),
        ]
    }

    #[test]
    fn requests_round_trip_and_wait_for_their_end() {
        for (code, r) in samples().into_iter().enumerate() {
            let bytes = r.encode();
            assert_eq!(usize::from(bytes[0]), code);
            assert_eq!(parse(&bytes), Parsed::Whole(r.clone(), bytes.len()));
            for cut in 0..bytes.len() {
                match parse(&bytes[..cut]) {
                    Parsed::Part(need) => assert!(need > cut && need <= bytes.len(), "{r:?} cut at {cut}: {need}"),
                    other => panic!("{r:?} cut at {cut}: {other:?}"),
                }
            }
        }
        // What every client of torch opens with.
        assert_eq!(Request::Validate(MAGIC).encode(), [0, 0xce, 0xf7, 0x85, 0x3c]);
    }

    #[test]
    fn nonsense_is_bad_and_allocates_nothing() {
        assert_eq!(parse(&[19]), Parsed::Bad("unknown op code"));
        let long = |code: u8| [&[code][..], &u64::MAX.to_le_bytes()].concat();
        assert_eq!(parse(&long(op::SET)), Parsed::Bad("key too long"));
        assert_eq!(parse(&long(op::WAIT)), Parsed::Bad("too many keys"));
        assert_eq!(parse(&long(op::MULTI_SET)), Parsed::Bad("too many keys"));
        let mut value = Request::Set(b"k".to_vec(), vec![]).encode();
        let at = value.len() - 8;
        value[at..].copy_from_slice(&(MAX_VALUE as u64 + 1).to_le_bytes());
        assert_eq!(parse(&value), Parsed::Bad("value too long"));
    }
}

//! What a server knows, apart from its connections.

use std::collections::{HashMap, HashSet, VecDeque};

use super::wire::{Bytes, MAX_MESSAGE, MAX_VALUE, NOT_READY, READY, Request, STOP_WAITING, WAIT_CANCELED, put};

/// Counted for each stored key, beside its bytes.
const KEY_COST: usize = 64;

/// Keys, queues, and who waits for them.
#[derive(Default)]
pub(super) struct State {
    values: HashMap<Bytes, Bytes>,
    queues: HashMap<Bytes, VecDeque<Bytes>>,
    waiting: HashMap<Bytes, Vec<u64>>,
    /// Callers of BARRIER so far, and those that wait.
    barriers: HashMap<Bytes, (i64, Vec<u64>)>,
    /// Keys that a client still waits for. None left: it is told.
    missing: HashMap<u64, HashSet<Bytes>>,
    /// Bytes of all that is kept.
    pub(super) stored: usize,
    /// Clients to send [`STOP_WAITING`].
    pub(super) awake: Vec<u64>,
}

impl State {
    fn has(&self, key: &Bytes) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|q| !q.is_empty())
    }

    fn set(&mut self, key: Bytes, value: Bytes) {
        self.stored += key.len() + value.len() + KEY_COST;
        let waiters = self.waiting.remove(&key).unwrap_or_default();
        if let Some(old) = self.values.insert(key.clone(), value) {
            self.stored -= key.len() + old.len() + KEY_COST;
        }
        for id in waiters {
            self.found(id, &key);
        }
    }

    fn found(&mut self, id: u64, key: &Bytes) {
        if let Some(missing) = self.missing.get_mut(&id) {
            missing.remove(key);
            if missing.is_empty() {
                self.missing.remove(&id);
                self.awake.push(id);
            }
        }
    }

    /// A client waits no more, or is gone.
    pub(super) fn forget(&mut self, id: u64) {
        for key in self.missing.remove(&id).unwrap_or_default() {
            if let Some(ids) = self.waiting.get_mut(&key) {
                ids.retain(|i| *i != id);
                if ids.is_empty() {
                    self.waiting.remove(&key);
                }
            }
        }
        self.barriers.values_mut().for_each(|(_, ids)| ids.retain(|i| *i != id));
    }

    /// Does a request and appends its reply; `None` for one that ends the connection.
    pub(super) fn handle(&mut self, id: u64, request: Request, out: &mut Vec<u8>) -> Option<()> {
        let i64_out = |out: &mut Vec<u8>, n: i64| out.extend_from_slice(&n.to_le_bytes());
        match request {
            Request::Validate(_) => return None,
            Request::Ping(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
            Request::Set(key, value) => self.set(key, value),
            Request::MultiSet(pairs) => pairs.into_iter().for_each(|(k, v)| self.set(k, v)),
            Request::CompareSet { key, expected, desired } => match self.values.get(&key) {
                None if expected.is_empty() => {
                    put(out, &desired);
                    self.set(key, desired);
                }
                // Nothing is stored, and what the client expected is returned: so does torch's.
                None => put(out, &expected),
                Some(now) if *now == expected => {
                    put(out, &desired);
                    self.set(key, desired);
                }
                Some(now) => put(out, now),
            },
            Request::Get(key) => put(out, self.values.get(&key).map_or(&[], |v| v)),
            Request::MultiGet(keys) => {
                let values = || keys.iter().map(|k| self.values.get(k).map_or(&[][..], |v| v));
                if values().map(|v| v.len() + 8).sum::<usize>() > MAX_MESSAGE {
                    return None;
                }
                values().for_each(|v| put(out, v));
            }
            Request::Add(key, delta) => {
                let now = match self.values.get(&key) {
                    None => 0,
                    Some(v) => std::str::from_utf8(v).ok()?.trim().parse::<i64>().ok()?,
                };
                let sum = now.checked_add(delta)?;
                i64_out(out, sum);
                self.set(key, sum.to_string().into_bytes());
            }
            Request::Append(key, value) => {
                let mut all = self.values.get(&key).cloned().unwrap_or_default();
                if all.len() + value.len() > MAX_VALUE {
                    return None;
                }
                all.extend_from_slice(&value);
                self.set(key, all);
            }
            Request::Check(keys) => out.push(if keys.iter().all(|k| self.has(k)) { READY } else { NOT_READY }),
            Request::Wait(keys) => {
                // A second WAIT before the reply to the first is no use of the protocol.
                if self.missing.contains_key(&id) {
                    return None;
                }
                let missing: HashSet<Bytes> = keys.into_iter().filter(|k| !self.has(k)).collect();
                if missing.is_empty() {
                    out.push(STOP_WAITING);
                } else {
                    missing.iter().for_each(|k| self.waiting.entry(k.clone()).or_default().push(id));
                    self.missing.insert(id, missing);
                }
            }
            Request::CancelWait => {
                self.forget(id);
                out.push(WAIT_CANCELED);
            }
            Request::NumKeys => i64_out(out, self.values.len() as i64),
            Request::Delete(key) => {
                let old = self.values.remove(&key);
                if let Some(old) = &old {
                    self.stored -= key.len() + old.len() + KEY_COST;
                }
                i64_out(out, i64::from(old.is_some()));
            }
            Request::QueuePush(key, value) => {
                self.stored += value.len() + KEY_COST;
                self.queues.entry(key.clone()).or_default().push_back(value);
                // One element is for one waiter.
                if let Some(mut ids) = self.waiting.remove(&key) {
                    let first = ids.remove(0);
                    if !ids.is_empty() {
                        self.waiting.insert(key.clone(), ids);
                    }
                    self.found(first, &key);
                }
            }
            Request::QueuePop(key) => {
                let queue = self.queues.get_mut(&key);
                i64_out(out, queue.as_ref().map_or(0, |q| q.len() as i64));
                if let Some(value) = queue.and_then(VecDeque::pop_front) {
                    self.stored -= value.len() + KEY_COST;
                    put(out, &value);
                }
                if self.queues.get(&key).is_some_and(VecDeque::is_empty) {
                    self.queues.remove(&key);
                }
            }
            Request::QueueLen(key) => i64_out(out, self.queues.get(&key).map_or(0, |q| q.len() as i64)),
            Request::ListKeys => {
                if self.stored > MAX_MESSAGE {
                    return None;
                }
                i64_out(out, self.values.len() as i64);
                self.values.keys().for_each(|k| put(out, k));
            }
            Request::Barrier(key, size) => {
                if !self.barriers.contains_key(&key) {
                    self.stored += key.len() + KEY_COST;
                }
                let (come, waiting) = self.barriers.entry(key).or_default();
                *come += 1;
                if *come >= size {
                    out.push(STOP_WAITING);
                    self.awake.append(waiting);
                } else {
                    waiting.push(id);
                }
            }
        }
        Some(())
    }
}

//! Sends and receives between ranks: a send ends when it was received.

use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;
use std::time::Instant;

use crate::collective::{CollectiveError, Group, interrupted};
use crate::race::Access;
use crate::reduce::Element;

/// A send or receive of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// To `peer`, or from it.
    pub send: bool,
    /// The other rank.
    pub peer: usize,
    /// Address.
    pub at: usize,
    /// Elements.
    pub count: usize,
    /// Element type.
    pub element: Element,
}

impl Item {
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.element.size()
    }

    /// The memory that it touches.
    pub fn access(&self) -> Access {
        if self.send { Access::read(self.at, self.bytes()) } else { Access::write(self.at, self.bytes()) }
    }
}

/// Sends that wait, by (from, to).
#[derive(Default)]
pub(crate) struct Mail {
    waiting: BTreeMap<(usize, usize), VecDeque<(u64, Item)>>,
    sent: u64,
    received: Vec<u64>,
}

impl Group {
    /// Does all items together: every send is offered before the first receive waits. Returns when all are done.
    ///
    /// # Safety
    /// Every item's memory is live and nobody else's until this returns; memory of receives overlaps no other item.
    pub unsafe fn batch(&self, rank: usize, items: &[Item]) -> Result<(), CollectiveError> {
        let mut st = self.lock();
        let mut mine = Vec::new();
        for item in items.iter().filter(|i| i.send) {
            st.mail.sent += 1;
            let number = st.mail.sent;
            mine.push(number);
            st.mail.waiting.entry((rank, item.peer)).or_default().push_back((number, *item));
        }
        self.changed.notify_all();
        let mut wanted: Vec<&Item> = items.iter().filter(|i| !i.send).collect();
        let end = Instant::now() + self.patience;
        loop {
            if let Some(why) = &st.aborted {
                return Err(CollectiveError::Aborted(why.clone()));
            }
            if st.interrupted.contains(&rank) {
                // Its memory may go now: nobody receives what it offered.
                let ours = |number: &u64| mine.contains(number);
                st.mail.waiting.values_mut().for_each(|offers| offers.retain(|(number, _)| !ours(number)));
                return Err(interrupted());
            }
            let mut failed = None;
            let mail = &mut st.mail;
            // in order for each peer: a receive stays behind an earlier one of the same peer
            let mut behind = Vec::new();
            wanted.retain(|item| {
                let offer = mail.waiting.get_mut(&(item.peer, rank)).filter(|_| !behind.contains(&item.peer));
                let Some((number, from)) = offer.and_then(VecDeque::pop_front) else {
                    behind.push(item.peer);
                    return true;
                };
                if (from.count, from.element) != (item.count, item.element) {
                    let what = format!(
                        "rank {} sends {} {:?}, rank {rank} receives {} {:?}",
                        item.peer, from.count, from.element, item.count, item.element
                    );
                    failed = Some(CollectiveError::Mismatch { call: number, what });
                    return false;
                }
                // SAFETY: the sender waits for this, the receiver is this call, and both hold as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(from.at as *const u8, item.at as *mut u8, item.bytes()) };
                mail.received.push(number);
                false
            });
            mine.retain(|m| match mail.received.iter().position(|r| r == m) {
                Some(i) => {
                    mail.received.swap_remove(i);
                    false
                }
                None => true,
            });
            if let Some(error) = failed {
                st.aborted = Some(error.to_string());
                self.changed.notify_all();
                return Err(error);
            }
            self.changed.notify_all();
            if wanted.is_empty() && mine.is_empty() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<usize> = match wanted.first() {
                    Some(item) => vec![item.peer],
                    None => items.iter().filter(|i| i.send).map(|i| i.peer).collect(),
                };
                let error = CollectiveError::Timeout { call: st.mail.sent, missing };
                st.aborted = Some(error.to_string());
                self.changed.notify_all();
                return Err(error);
            }
            st = self.changed.wait_timeout(st, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

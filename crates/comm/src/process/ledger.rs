//! Checked calls between processes: each call goes to the peers in a frame of its own.

use std::sync::Arc;

use super::frame::{Header, Lane};
use super::net::{Net, UNIT};
use crate::checked::{self, Entry, Ledger};

/// The ledger of a process: its own calls meet those that the peers' frames bring.
pub(crate) struct NetLedger(pub(crate) Arc<Net>);

impl Ledger for NetLedger {
    fn post(&self, me: usize, peer: usize, lane: &checked::Lane, entry: &Entry) -> Result<(), String> {
        let bytes = encode_check(lane, entry);
        let header = Header::of(Lane::Check, bytes.len());
        // The way that data takes, and before it: a difference is found before the call that it spoils.
        self.0.send(peer, &header, bytes.as_bytes()).map_err(|e| e.to_string())?;
        self.0.book.as_ref().map_or(Ok(()), |book| book.post(me, peer, lane, entry))
    }
}

fn encode_check(lane: &checked::Lane, entry: &Entry) -> String {
    let lane = match lane {
        checked::Lane::Collectives => String::new(),
        checked::Lane::Messages { group, from, to } => format!("{from}{UNIT}{to}{UNIT}{group}"),
    };
    let mut out = format!("{}{UNIT}{}{UNIT}{}{UNIT}{}", entry.gives, entry.takes, entry.same, entry.call);
    if !lane.is_empty() {
        out.push(UNIT);
        out.push_str(&lane);
    }
    out
}

pub(super) fn decode_check(text: &str) -> Option<(checked::Lane, Entry)> {
    let mut parts = text.split(UNIT);
    let (gives, takes) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (same, call) = (parts.next()?.to_string(), parts.next()?.to_string());
    let lane = match (parts.next(), parts.next(), parts.next()) {
        (Some(from), Some(to), Some(group)) => {
            checked::Lane::Messages { group: group.into(), from: from.parse().ok()?, to: to.parse().ok()? }
        }
        _ => checked::Lane::Collectives,
    };
    Some((lane, Entry { call, same, gives, takes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_round_trip() {
        let entry = Entry { call: "a b".into(), same: "c".into(), gives: 3, takes: 0 };
        for lane in [checked::Lane::Collectives, checked::Lane::Messages { group: "pp [0, 1]".into(), from: 1, to: 0 }]
        {
            assert_eq!(decode_check(&encode_check(&lane, &entry)), Some((lane, entry.clone())));
        }
        assert_eq!(decode_check("x"), None);
    }
}

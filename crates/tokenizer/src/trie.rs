//! A static byte trie: which pieces does a text begin with?

/// Stands for "no value".
const NONE: u32 = u32::MAX;

/// Keys of bytes with u32 values. The children of a node are neighbours, in order of their label.
#[derive(Debug, Clone)]
pub(crate) struct Trie {
    /// Node `n` has the children `first[n]..first[n + 1]`.
    first: Vec<u32>,
    /// Label of the edge to each node.
    labels: Vec<u8>,
    values: Vec<u32>,
    /// The root's children, 0 for none: most look-ups end there.
    root: Box<[u32; 256]>,
}

impl Trie {
    /// From keys that are not empty; of equal keys the first counts.
    pub fn new<'k>(entries: impl IntoIterator<Item = (&'k [u8], u32)>) -> Trie {
        let mut keys: Vec<(&[u8], u32)> = entries.into_iter().filter(|(k, _)| !k.is_empty()).collect();
        keys.sort_by_key(|&(key, _)| key);
        keys.dedup_by_key(|(key, _)| *key);
        let mut trie = Trie { first: Vec::new(), labels: vec![0], values: vec![NONE], root: Box::new([0; 256]) };
        // Nodes in the order in which they were made, each with the keys below it and their common length.
        let mut below = vec![(0..keys.len(), 0)];
        let mut node = 0;
        while let Some((range, depth)) = below.get(node).cloned() {
            trie.first.push(trie.labels.len() as u32);
            let mut at = range.start;
            while at < range.end {
                let label = keys[at].0[depth];
                let same = keys[at..range.end].partition_point(|(key, _)| key[depth] == label);
                let ends_here = keys[at].0.len() == depth + 1;
                if node == 0 {
                    trie.root[usize::from(label)] = trie.labels.len() as u32;
                }
                trie.labels.push(label);
                trie.values.push(if ends_here { keys[at].1 } else { NONE });
                below.push((at + usize::from(ends_here)..at + same, depth + 1));
                at += same;
            }
            node += 1;
        }
        trie.first.push(trie.labels.len() as u32);
        trie
    }

    fn child(&self, node: usize, label: u8) -> Option<usize> {
        if node == 0 {
            return Some(self.root[usize::from(label)] as usize).filter(|&n| n > 0);
        }
        let (from, to) = (self.first[node] as usize, self.first[node + 1] as usize);
        let labels = &self.labels[from..to];
        match labels.len() {
            0..=8 => labels.iter().position(|&l| l == label),
            _ => labels.binary_search(&label).ok(),
        }
        .map(|i| from + i)
    }

    /// Length and value of every key that `text` begins with, shortest first.
    pub fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        text.iter()
            .enumerate()
            .map_while(move |(i, &byte)| {
                node = self.child(node, byte)?;
                Some((i + 1, self.values[node]))
            })
            .filter(|&(_, value)| value != NONE)
    }

    /// The value of exactly this key.
    pub fn get(&self, key: &[u8]) -> Option<u32> {
        let node = key.iter().try_fold(0, |node, &byte| self.child(node, byte))?;
        Some(self.values[node]).filter(|&v| v != NONE)
    }

    /// Length of the longest key that `text` begins with.
    pub fn longest(&self, text: &[u8]) -> Option<usize> {
        self.prefixes(text).last().map(|(length, _)| length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_shortest_first() {
        let keys = ["a", "ab", "abcd", "b", "bcd", "\u{4f60}", "", "ab"];
        let trie = Trie::new(keys.iter().enumerate().map(|(i, k)| (k.as_bytes(), i as u32)));
        assert_eq!(trie.prefixes(b"abcx").collect::<Vec<_>>(), [(1, 0), (2, 1)]);
        assert_eq!(trie.prefixes(b"abcde").collect::<Vec<_>>(), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!((trie.get(b"bcd"), trie.get(b"bc"), trie.get(b""), trie.get(b"z")), (Some(4), None, None, None));
        assert_eq!((trie.longest("\u{4f60}x".as_bytes()), trie.longest(b"xa")), (Some(3), None));
        let empty = Trie::new([]);
        assert_eq!((empty.get(b"a"), empty.longest(b"a")), (None, None));
    }

    #[test]
    fn wide_nodes_are_searched_too() {
        let keys: Vec<[u8; 2]> = (0..=255).flat_map(|b| [[7, b], [b, 9]]).collect();
        let trie = Trie::new(keys.iter().map(|k| (&k[..], u32::from(k[0]) * 256 + u32::from(k[1]))));
        for b in 0..=255u8 {
            assert_eq!(trie.get(&[7, b]), Some(7 * 256 + u32::from(b)));
            assert_eq!(trie.get(&[b, 9]), Some(u32::from(b) * 256 + 9));
        }
    }
}

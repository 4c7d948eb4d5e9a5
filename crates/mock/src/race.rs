//! Who touched which bytes last, and whether the next access is ordered after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{Clock, Epoch};

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read only.
    Read,
    /// Written, and perhaps read.
    Write,
}

/// A range of addresses and how it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First address.
    pub at: usize,
    /// Bytes; 0 touches nothing.
    pub bytes: usize,
    /// How.
    pub mode: Mode,
}

impl Access {
    /// A read.
    pub fn read(at: usize, bytes: usize) -> Access {
        Access { at, bytes, mode: Mode::Read }
    }

    /// A write.
    pub fn write(at: usize, bytes: usize) -> Access {
        Access { at, bytes, mode: Mode::Write }
    }
}

/// Who did an access.
#[derive(Clone, Debug)]
struct By {
    epoch: Epoch,
    name: Arc<str>,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    end: usize,
    written: Option<By>,
    read: Vec<By>,
}

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The earlier one, in host order, and whether it wrote.
    pub earlier: (Arc<str>, Mode),
    /// First address both touch.
    pub at: usize,
}

/// The last accesses of every byte, kept for ranges.
#[derive(Debug, Default)]
pub struct Shadow {
    cells: BTreeMap<usize, Cell>,
}

impl Shadow {
    /// Notes an access by `name` at `epoch`, whose actor knows `clock`. The first earlier access that conflicts and is
    /// not known to have happened is returned.
    pub fn access(&mut self, a: Access, epoch: Epoch, clock: &Clock, name: &Arc<str>) -> Option<Conflict> {
        if a.bytes == 0 {
            return None;
        }
        let end = a.at + a.bytes;
        self.split(a.at);
        self.split(end);
        let unordered = |by: &&By| !clock.knows(by.epoch);
        let conflict = self.cells.range(a.at..end).find_map(|(&at, cell)| {
            let found = |by: &By, mode| Conflict { earlier: (by.name.clone(), mode), at };
            let written = cell.written.as_ref().filter(unordered).map(|by| found(by, Mode::Write));
            let reads = cell.read.iter().filter(|_| a.mode == Mode::Write).find(unordered);
            written.or_else(|| reads.map(|by| found(by, Mode::Read)))
        });
        let by = By { epoch, name: name.clone() };
        match a.mode {
            Mode::Write => {
                self.forget(a.at, a.bytes);
                self.cells.insert(a.at, Cell { end, written: Some(by), read: Vec::new() });
            }
            Mode::Read => {
                let mut gaps = Vec::new();
                let mut next = a.at;
                for (&at, cell) in self.cells.range_mut(a.at..end) {
                    if at > next {
                        gaps.push((next, at));
                    }
                    next = cell.end;
                    cell.read.retain(|r| r.epoch.actor != epoch.actor);
                    cell.read.push(by.clone());
                }
                if next < end {
                    gaps.push((next, end));
                }
                for (at, end) in gaps {
                    self.cells.insert(at, Cell { end, written: None, read: vec![by.clone()] });
                }
            }
        }
        conflict
    }

    /// Drops what is known of a range: the memory was freed.
    pub fn forget(&mut self, at: usize, bytes: usize) {
        let end = at + bytes;
        self.split(at);
        self.split(end);
        let inside: Vec<usize> = self.cells.range(at..end).map(|(&at, _)| at).collect();
        for at in inside {
            self.cells.remove(&at);
        }
    }

    /// Cuts the cell that spans `at` in two.
    fn split(&mut self, at: usize) {
        let Some((&start, cell)) = self.cells.range_mut(..at).next_back() else { return };
        if start < at && cell.end > at {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        shadow: Shadow,
        clocks: [Clock; 3],
    }

    impl Rig {
        fn new() -> Rig {
            Rig { shadow: Shadow::default(), clocks: Default::default() }
        }

        fn touch(&mut self, actor: usize, a: Access) -> Option<Conflict> {
            let epoch = self.clocks[actor].tick(actor);
            let clock = self.clocks[actor].clone();
            self.shadow.access(a, epoch, &clock, &format!("actor {actor}").into())
        }

        fn order(&mut self, before: usize, after: usize) {
            let clock = self.clocks[before].clone();
            self.clocks[after].join(&clock);
        }
    }

    #[test]
    fn unordered_writes_conflict_and_ordered_ones_do_not() {
        let mut r = Rig::new();
        assert_eq!(r.touch(1, Access::write(100, 50)), None);
        let c = r.touch(2, Access::read(140, 50)).unwrap();
        assert_eq!((&*c.earlier.0, c.earlier.1, c.at), ("actor 1", Mode::Write, 140));
        let mut r = Rig::new();
        r.touch(1, Access::write(100, 50));
        r.order(1, 2);
        assert_eq!(r.touch(2, Access::read(140, 50)), None);
        // the reader is known to nobody: the writer may not go on
        let c = r.touch(1, Access::write(160, 1)).unwrap();
        assert_eq!((&*c.earlier.0, c.earlier.1), ("actor 2", Mode::Read));
    }

    #[test]
    fn neighbours_and_readers_do_not_conflict() {
        let mut r = Rig::new();
        r.touch(1, Access::write(100, 50));
        assert_eq!(r.touch(2, Access::write(150, 50)), None);
        assert_eq!(r.touch(2, Access::write(50, 50)), None);
        assert_eq!(r.touch(2, Access::write(120, 0)), None);
        let mut r = Rig::new();
        r.touch(1, Access::read(100, 50));
        assert_eq!(r.touch(2, Access::read(90, 100)), None);
        r.order(1, 2);
        // both ends that only actor 2 read are still known as such
        assert_eq!(r.touch(2, Access::write(90, 100)), None);
        assert!(r.touch(1, Access::read(95, 1)).is_some());
    }

    #[test]
    fn freed_memory_has_no_past() {
        let mut r = Rig::new();
        r.touch(1, Access::write(100, 50));
        r.shadow.forget(110, 20);
        assert_eq!(r.touch(2, Access::write(110, 20)), None);
        assert!(r.touch(2, Access::write(105, 10)).is_some());
        assert!(r.touch(2, Access::write(135, 10)).is_some());
    }
}

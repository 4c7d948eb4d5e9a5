//! Pinned host memory that host bytes pass through on their way to and from a vendor's device: such copies are asynchronous
//! only from pinned memory.

use crate::Result;
use crate::stream::EventImpl;

/// A pinned block and the mark after which it is free.
struct Block<E> {
    at: usize,
    bytes: usize,
    busy: Option<E>,
}

/// A stream's pinned blocks; `E` is a mark in the stream.
pub struct Staging<E> {
    blocks: Vec<Block<E>>,
}

/// A block taken from [`Staging`].
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    index: usize,
    /// Its address.
    pub at: usize,
}

impl<E> Default for Staging<E> {
    fn default() -> Staging<E> {
        Staging { blocks: vec![] }
    }
}

impl<E: EventImpl> Staging<E> {
    /// The smallest block of at least `bytes` bytes whose last copy is done, or a new one from `pin`, which takes a number of
    /// bytes and gives their address. A `careless` caller, a test's, does not ask whether copies are done.
    pub fn take(&mut self, bytes: usize, careless: bool, pin: impl FnOnce(usize) -> Result<usize>) -> Result<Staged> {
        let free = |b: &Block<E>| b.bytes >= bytes && (careless || b.busy.as_ref().is_none_or(|e| e.is_done()));
        let fits = (0..self.blocks.len()).filter(|&i| free(&self.blocks[i])).min_by_key(|&i| self.blocks[i].bytes);
        if let Some(index) = fits {
            return Ok(Staged { index, at: self.blocks[index].at });
        }
        let bytes = bytes.max(4096).next_power_of_two();
        let at = pin(bytes)?;
        self.blocks.push(Block { at, bytes, busy: None });
        Ok(Staged { index: self.blocks.len() - 1, at })
    }

    /// The block is in use until the event.
    pub fn busy(&mut self, block: Staged, until: E) {
        if let Some(b) = self.blocks.get_mut(block.index) {
            b.busy = Some(until);
        }
    }

    /// Takes all blocks out, by address, for the caller to free. The stream must be idle.
    pub fn drain(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.blocks.drain(..).map(|b| b.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mark(bool);

    impl EventImpl for Mark {
        fn is_done(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn the_smallest_free_block_that_fits_is_taken_again() {
        let mut pinned = 0;
        let mut staging = Staging::default();
        let mut take = |staging: &mut Staging<Mark>, bytes, careless| {
            let pin = |n: usize| {
                pinned += n;
                Ok(pinned)
            };
            staging.take(bytes, careless, pin).unwrap()
        };
        let large = take(&mut staging, 5000, false);
        staging.busy(large, Mark(false));
        let small = take(&mut staging, 1, false);
        assert_eq!((large.at, small.at), (8192, 8192 + 4096));
        staging.busy(small, Mark(true));
        assert_eq!(take(&mut staging, 4096, false).at, small.at, "it fits, and its copy is done");
        let another = take(&mut staging, 6000, false);
        assert_eq!(another.at, 8192 + 4096 + 8192, "the copy of the large one is not done");
        assert_eq!(take(&mut staging, 6000, true).at, large.at, "nobody asked");
        assert_eq!(staging.drain().collect::<Vec<_>>(), [large.at, small.at, another.at]);
    }
}

//! Shapes of contiguous, row-major tensors: up to four dims, on the stack, so that making a view costs nothing.

use std::fmt;
use std::ops::Deref;

/// Dims of a tensor, outermost first. An empty shape is a scalar with one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [usize; Shape::MAX_RANK],
    rank: u8,
}

impl Shape {
    /// Most dims a tensor can have.
    pub const MAX_RANK: usize = 4;

    /// Shape from its dims.
    ///
    /// # Panics
    /// With more than [`Shape::MAX_RANK`] dims: shapes are written by code, never read from a file.
    pub fn new(dims: &[usize]) -> Shape {
        assert!(dims.len() <= Shape::MAX_RANK, "a tensor has at most {} dims, not {dims:?}", Shape::MAX_RANK);
        let mut d = [0; Shape::MAX_RANK];
        d[..dims.len()].copy_from_slice(dims);
        Shape { dims: d, rank: dims.len() as u8 }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    /// First dim; 1 for a scalar. A matrix's rows.
    pub fn rows(&self) -> usize {
        self.first().copied().unwrap_or(1)
    }

    /// Elements of one row: the product of all dims but the first.
    pub fn cols(&self) -> usize {
        self.iter().skip(1).product()
    }

    /// Last dim; 1 for a scalar.
    pub fn last(&self) -> usize {
        (**self).last().copied().unwrap_or(1)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(&dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let s = Shape::from([3, 4, 5]);
        assert_eq!((s.numel(), s.rows(), s.cols(), s.last()), (60, 3, 20, 5));
        assert_eq!((Shape::default().numel(), Shape::from([0, 7]).numel()), (1, 0));
        assert_eq!(format!("{s}"), "[3, 4, 5]");
    }
}

//! Tensors: shared handles of contiguous, row-major device memory.

use std::fmt;
use std::sync::Arc;

use ferrotron_base::{DType, Shape};

use crate::pool::Block;
use crate::{Error, Result};

/// A device address. Only kernels of the device that owns it may follow it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevPtr(pub u64);

impl DevPtr {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: usize) -> DevPtr {
        DevPtr(self.0 + bytes as u64)
    }
}

impl fmt::Debug for DevPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A contiguous, row-major array on a device. Clones and views share the memory; the block goes back when the last
/// handle drops. `&mut Tensor` marks outputs: views can defeat it, so debug builds check ops for overlap.
#[derive(Clone)]
pub struct Tensor {
    block: Arc<Block>,
    offset: usize,
    shape: Shape,
    dtype: DType,
}

impl Tensor {
    /// The first bytes of a block as a tensor.
    pub(crate) fn of_block(block: Block, shape: Shape, dtype: DType) -> Tensor {
        debug_assert!(shape.numel() * dtype.size() <= block.bytes());
        Tensor { block: Arc::new(block), offset: 0, shape, dtype }
    }

    /// Dims.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// First dim.
    pub fn rows(&self) -> usize {
        self.shape.rows()
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.shape.cols()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.numel() * self.dtype.size()
    }

    /// Address of the first element.
    pub fn ptr(&self) -> DevPtr {
        self.block.ptr().offset(self.offset)
    }

    /// `shape` elements starting `start` elements in. Panics beyond the end: views are written by code, never read
    /// from a file.
    pub fn view(&self, start: usize, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let end = start + shape.numel();
        assert!(end <= self.numel(), "view of elements {start}..{end} in a tensor of {}", self.numel());
        Tensor { block: self.block.clone(), offset: self.offset + start * self.dtype.size(), shape, dtype: self.dtype }
    }

    /// Rows `start .. start + rows`, other dims as they are.
    pub fn rows_view(&self, start: usize, rows: usize) -> Tensor {
        let mut dims = [0; Shape::MAX_RANK];
        let rank = self.shape.len();
        dims[..rank].copy_from_slice(&self.shape);
        dims[0] = rows;
        self.view(start * self.cols(), &dims[..rank])
    }

    /// The same elements under other dims.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.numel() != self.numel() {
            return Err(Error::mismatch("reshape", "elements", self.shape, shape));
        }
        Ok(Tensor { shape, ..self.clone() })
    }

    /// True when the two share a byte.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        let (a, b) = (self.ptr().0, other.ptr().0);
        self.bytes() > 0 && other.bytes() > 0 && a < b + other.bytes() as u64 && b < a + self.bytes() as u64
    }

    /// True when the two are the same bytes.
    pub fn same_memory(&self, other: &Tensor) -> bool {
        self.ptr() == other.ptr() && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}@{:?}", self.dtype, self.shape, self.ptr())
    }
}

/// What can be walked tensor by tensor: saved activations (offload, accounting) and deferred weight gradients.
pub trait Tensors {
    /// Calls `f` with each tensor.
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor));
}

impl Tensors for Tensor {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        f(self);
    }
}

impl Tensors for () {
    fn each(&mut self, _: &mut dyn FnMut(&mut Tensor)) {}
}

impl<T: Tensors> Tensors for Option<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        if let Some(t) = self {
            t.each(f);
        }
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        for t in self {
            t.each(f);
        }
    }
}

impl<A: Tensors, B: Tensors> Tensors for (A, B) {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.0.each(f);
        self.1.each(f);
    }
}

impl<A: Tensors, B: Tensors, C: Tensors> Tensors for (A, B, C) {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.0.each(f);
        self.1.each(f);
        self.2.each(f);
    }
}

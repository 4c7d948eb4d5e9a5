//! Strided views of device memory, as operators take them.

use ferrotron_acl_sys as acl;
use ferrotron_device::Tensor;

use crate::cann::element;

/// A view: dims, strides and offset, in elements, from an address.
#[derive(Clone, Debug)]
pub struct View {
    pub at: u64,
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
    pub offset: usize,
    pub dtype: acl::aclDataType,
}

/// Strides of a contiguous tensor.
fn contiguous(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

impl View {
    /// Contiguous memory under some dims.
    pub fn new(at: u64, dtype: acl::aclDataType, dims: &[usize]) -> View {
        View { at, dims: dims.to_vec(), strides: contiguous(dims), offset: 0, dtype }
    }

    /// A tensor under other dims of as many elements.
    pub fn of(t: &Tensor, dims: &[usize]) -> View {
        debug_assert_eq!(dims.iter().product::<usize>(), t.numel());
        View::new(t.ptr().0, element(t.dtype()), dims)
    }

    /// Elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Another view of the same memory: strides and offset in elements of it.
    pub fn strided(&self, dims: &[usize], strides: &[usize], offset: usize) -> View {
        View { dims: dims.to_vec(), strides: strides.to_vec(), offset: self.offset + offset, ..self.clone() }
    }

    /// A contiguous view under other dims.
    pub fn reshaped(&self, dims: &[usize]) -> View {
        debug_assert_eq!(dims.iter().product::<usize>(), self.numel());
        View { dims: dims.to_vec(), strides: contiguous(dims), ..self.clone() }
    }

    /// Rows and columns exchanged.
    pub fn transposed(&self) -> View {
        let mut t = self.clone();
        t.dims.reverse();
        t.strides.reverse();
        t
    }

    /// Elements from the address to the end of the view: the storage that it needs.
    pub fn storage(&self) -> usize {
        let last = |(d, s): (&usize, &usize)| d.saturating_sub(1) * s;
        if self.numel() == 0 {
            0
        } else {
            self.offset + self.dims.iter().zip(&self.strides).map(last).sum::<usize>() + 1
        }
    }

    /// True when both are the same memory.
    pub fn same_memory(&self, other: &View) -> bool {
        self.at == other.at && self.offset == other.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_and_storage() {
        let v = View::new(0, acl::ACL_FLOAT, &[4, 3, 2]);
        assert_eq!((v.strides.clone(), v.storage(), v.numel()), (vec![6, 2, 1], 24, 24));
        let part = v.strided(&[4, 2], &[6, 1], 4);
        assert_eq!((part.storage(), part.numel()), (24, 8));
        assert_eq!(v.reshaped(&[4, 6]).transposed().strides, [1, 6]);
        assert_eq!(View::new(0, acl::ACL_FLOAT, &[0, 3]).storage(), 0);
    }
}

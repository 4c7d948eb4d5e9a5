//! Shard geometry: which boxes of a global tensor a rank holds, and in which order its local copy lists them.
//!
//! A fused qkv or gate/up weight under tensor parallelism is *several* boxes of the global matrix. Initial values,
//! checkpoints and resharding are all stated over these boxes, so loading under another layout is geometry.

use std::ops::Range;

use crate::Shape;

/// A box of a global tensor: `start[d] .. start[d] + len[d]` in every dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardBox {
    /// First index in each dim.
    pub start: Vec<usize>,
    /// Extent in each dim.
    pub len: Vec<usize>,
}

impl ShardBox {
    /// The whole of a tensor.
    pub fn whole(global: &[usize]) -> ShardBox {
        ShardBox { start: vec![0; global.len()], len: global.to_vec() }
    }

    /// Rows `start .. start + len` of a tensor, all of its other dims.
    pub fn rows(global: &[usize], start: usize, len: usize) -> ShardBox {
        let mut b = ShardBox::whole(global);
        (b.start[0], b.len[0]) = (start, len);
        b
    }

    /// Elements in the box.
    pub fn numel(&self) -> usize {
        self.len.iter().product()
    }

    /// Calls `f(global_index, local_index, run)` for each contiguous run of elements, in local (row-major) order.
    /// `global` is the shape of the whole tensor; both indices count elements.
    pub fn for_each_run(&self, global: &[usize], mut f: impl FnMut(usize, usize, usize)) {
        let n = self.numel();
        if n == 0 {
            return;
        }
        // The innermost dims that are taken whole belong to one run.
        let mut run = 1;
        let mut d = global.len();
        while d > 0 {
            d -= 1;
            run *= self.len[d];
            if self.len[d] != global[d] {
                break;
            }
        }
        let mut local = 0;
        let mut idx = vec![0usize; d];
        loop {
            let mut flat = 0;
            for (i, &g) in global.iter().enumerate() {
                flat = flat * g + self.start[i] + if i < d { idx[i] } else { 0 };
            }
            f(flat, local, run);
            local += run;
            if local >= n {
                return;
            }
            for i in (0..d).rev() {
                idx[i] += 1;
                if idx[i] < self.len[i] {
                    break;
                }
                idx[i] = 0;
            }
        }
    }
}

/// A named tensor as one rank holds it: the global shape and the boxes that, concatenated along the first dim,
/// make the local copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// Layout-independent name, for example `decoder.layers.3.mlp.linear_fc1.weight`.
    pub name: String,
    /// Shape of the whole tensor.
    pub global: Vec<usize>,
    /// What this rank holds, in local order.
    pub boxes: Vec<ShardBox>,
}

impl ShardSpec {
    /// A tensor held whole.
    pub fn whole(name: impl Into<String>, global: &[usize]) -> ShardSpec {
        ShardSpec { name: name.into(), global: global.to_vec(), boxes: vec![ShardBox::whole(global)] }
    }

    /// Shape of the local copy: the boxes stacked along the first dim.
    pub fn local_shape(&self) -> Shape {
        let mut dims = self.boxes.first().map_or_else(Vec::new, |b| b.len.clone());
        if let Some(first) = dims.first_mut() {
            *first = self.boxes.iter().map(|b| b.len[0]).sum();
        }
        Shape::new(&dims)
    }

    /// Elements of the local copy.
    pub fn local_numel(&self) -> usize {
        self.boxes.iter().map(ShardBox::numel).sum()
    }

    /// Calls `f(global_index, local_index, run)` for each contiguous run, over all boxes in local order.
    pub fn for_each_run(&self, mut f: impl FnMut(usize, usize, usize)) {
        let mut base = 0;
        for b in &self.boxes {
            b.for_each_run(&self.global, |g, l, n| f(g, base + l, n));
            base += b.numel();
        }
    }

    /// The contiguous runs of elements `range` of the local copy: index in the whole, index in the range, length.
    pub fn runs_within(&self, range: &Range<usize>) -> Vec<(usize, usize, usize)> {
        let mut runs = vec![];
        self.for_each_run(|global, local, n| {
            let (first, end) = (local.max(range.start), (local + n).min(range.end));
            if first < end {
                runs.push((global + first - local, first - range.start, end - first));
            }
        });
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_column_shard() {
        // columns 2..4 of a [3, 6] matrix
        let b = ShardBox { start: vec![0, 2], len: vec![3, 2] };
        let mut runs = vec![];
        b.for_each_run(&[3, 6], |g, l, n| runs.push((g, l, n)));
        assert_eq!(runs, [(2, 0, 2), (8, 2, 2), (14, 4, 2)]);
    }

    #[test]
    fn whole_rows_are_one_run() {
        let s = ShardSpec {
            name: "qkv".into(),
            global: vec![8, 5],
            boxes: vec![ShardBox::rows(&[8, 5], 1, 2), ShardBox::rows(&[8, 5], 6, 1)],
        };
        let mut runs = vec![];
        s.for_each_run(|g, l, n| runs.push((g, l, n)));
        assert_eq!(runs, [(5, 0, 10), (30, 10, 5)]);
        assert_eq!(s.local_shape(), Shape::from([3, 5]));
        assert_eq!(s.runs_within(&(0..15)), runs);
        assert_eq!(s.runs_within(&(7..12)), [(12, 0, 3), (30, 3, 2)]);
        assert!(s.runs_within(&(15..15)).is_empty());
    }

    #[test]
    fn vectors_and_empty_boxes() {
        let mut runs = vec![];
        ShardBox::rows(&[10], 3, 4).for_each_run(&[10], |g, l, n| runs.push((g, l, n)));
        ShardBox::rows(&[10], 3, 0).for_each_run(&[10], |g, l, n| runs.push((g, l, n)));
        assert_eq!(runs, [(3, 0, 4)]);
    }
}

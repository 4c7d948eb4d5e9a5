//! Which elements two local copies of one tensor have in common, as runs that are contiguous in both.

use std::ops::Range;

use ferrotron_base::{DType, ShardBox, ShardSpec};

/// Checks that boxes lie inside the tensor and that all sizes can be addressed. Returns the local number of elements.
pub(crate) fn check_spec(spec: &ShardSpec, dtype: DType) -> Result<usize, String> {
    // Zero dims are left out of the product: indices are computed from the others all the same.
    let bytes = spec.global.iter().filter(|&&d| d > 0).try_fold(dtype.size(), |n, &d| n.checked_mul(d));
    if bytes.is_none_or(|b| isize::try_from(b).is_err()) {
        return Err(format!("shape {:?} is more than a machine can address", spec.global));
    }
    let mut local = 0usize;
    for b in &spec.boxes {
        let inside = b.start.len() == spec.global.len()
            && b.len.len() == spec.global.len()
            && (0..b.len.len()).all(|d| b.start[d].checked_add(b.len[d]).is_some_and(|end| end <= spec.global[d]));
        if !inside {
            return Err(format!("box start {:?} len {:?} is not inside shape {:?}", b.start, b.len, spec.global));
        }
        local = local.checked_add(b.numel()).ok_or("the boxes together overflow")?;
    }
    if local.checked_mul(dtype.size()).is_none_or(|b| isize::try_from(b).is_err()) {
        return Err(format!("{local} elements are more than a machine can address"));
    }
    Ok(local)
}

/// Index in the global tensor of an element of the local copy.
pub(crate) fn global_index(spec: &ShardSpec, mut local: usize) -> Vec<usize> {
    for b in &spec.boxes {
        if local < b.numel() {
            let mut index = b.start.clone();
            for d in (0..index.len()).rev() {
                index[d] += local % b.len[d];
                local /= b.len[d];
            }
            return index;
        }
        local -= b.numel();
    }
    vec![]
}

/// Calls `f(at_a, at_b, run)` for all elements that range `ra` of copy `a` and range `rb` of copy `b` share; positions
/// count from the start of each range. The copies' global shapes may differ in the first dim only.
///
/// Cost: proportional to the runs in the part of `a`'s and `b`'s boxes that the ranges touch.
pub(crate) fn common_runs(
    a: &ShardSpec,
    ra: &Range<usize>,
    b: &ShardSpec,
    rb: &Range<usize>,
    mut f: impl FnMut(usize, usize, usize),
) {
    let mut base_a = 0;
    for box_a in &a.boxes {
        let side_a = Side { bx: box_a, base: base_a, range: ra };
        base_a += box_a.numel();
        let Some(hull_a) = side_a.hull() else { continue };
        let mut base_b = 0;
        for box_b in &b.boxes {
            let side_b = Side { bx: box_b, base: base_b, range: rb };
            base_b += box_b.numel();
            let Some(shared) = side_b.hull().and_then(|hull_b| intersection(&hull_a, &hull_b)) else { continue };
            runs_of(&shared, &side_a, &side_b, &mut f);
        }
    }
}

/// One box of a local copy, and the range of the copy that counts.
struct Side<'a> {
    bx: &'a ShardBox,
    /// Elements of the local copy before this box.
    base: usize,
    range: &'a Range<usize>,
}

impl Side<'_> {
    /// The part of the box that the range touches, widened to whole slices of the first dim that is longer than one.
    fn hull(&self) -> Option<ShardBox> {
        let lo = self.range.start.max(self.base);
        let hi = self.range.end.min(self.base + self.bx.numel());
        if lo >= hi {
            return None;
        }
        let (lo, hi) = (lo - self.base, hi - self.base);
        let mut hull = self.bx.clone();
        if let Some(d) = hull.len.iter().position(|&n| n > 1) {
            let slice: usize = hull.len[d + 1..].iter().product();
            let (first, last) = (lo / slice, (hi - 1) / slice);
            hull.start[d] += first;
            hull.len[d] = last - first + 1;
        }
        Some(hull)
    }

    /// Position in the local copy of an element given by its global index.
    fn position(&self, index: &[usize]) -> usize {
        let in_box = (0..index.len()).fold(0, |flat, d| flat * self.bx.len[d] + index[d] - self.bx.start[d]);
        self.base + in_box
    }
}

fn intersection(a: &ShardBox, b: &ShardBox) -> Option<ShardBox> {
    let mut out = a.clone();
    for d in 0..a.start.len() {
        let start = a.start[d].max(b.start[d]);
        let end = (a.start[d] + a.len[d]).min(b.start[d] + b.len[d]);
        if start >= end {
            return None;
        }
        (out.start[d], out.len[d]) = (start, end - start);
    }
    Some(out)
}

fn runs_of(shared: &ShardBox, a: &Side<'_>, b: &Side<'_>, f: &mut impl FnMut(usize, usize, usize)) {
    // Innermost dims that both boxes hold whole belong to one run.
    let mut run = 1;
    let mut outer = shared.len.len();
    while outer > 0 {
        outer -= 1;
        run *= shared.len[outer];
        if shared.len[outer] != a.bx.len[outer] || shared.len[outer] != b.bx.len[outer] {
            break;
        }
    }
    let mut index = shared.start.clone();
    loop {
        let (pa, pb) = (a.position(&index), b.position(&index));
        let skip = a.range.start.saturating_sub(pa).max(b.range.start.saturating_sub(pb));
        let end = run.min(a.range.end.saturating_sub(pa)).min(b.range.end.saturating_sub(pb));
        if skip < end {
            f(pa + skip - a.range.start, pb + skip - b.range.start, end - skip);
        }
        let mut d = outer;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < shared.start[d] + shared.len[d] {
                break;
            }
            index[d] = shared.start[d];
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The elements of a range, one by one: (global index, position in range).
    fn elements(s: &ShardSpec, r: &Range<usize>) -> Vec<(Vec<usize>, usize)> {
        r.clone().map(|l| (global_index(s, l), l - r.start)).collect()
    }

    fn a_box(global: Vec<usize>) -> impl Strategy<Value = ShardBox> {
        let dims: Vec<_> = global.iter().map(|&g| (0..=g).prop_flat_map(move |s| (Just(s), 0..=g - s))).collect();
        dims.prop_map(|d| ShardBox { start: d.iter().map(|x| x.0).collect(), len: d.iter().map(|x| x.1).collect() })
    }

    fn copy(global: Vec<usize>) -> impl Strategy<Value = (ShardSpec, Range<usize>)> {
        prop::collection::vec(a_box(global.clone()), 0..4).prop_flat_map(move |boxes| {
            let spec = ShardSpec { name: "t".into(), global: global.clone(), boxes };
            let n = spec.local_numel();
            (0..=n, 0..=n).prop_map(move |(x, y)| (spec.clone(), x.min(y)..x.max(y)))
        })
    }

    fn pair() -> impl Strategy<Value = ((ShardSpec, Range<usize>), (ShardSpec, Range<usize>))> {
        prop::collection::vec(1usize..6, 0..4).prop_flat_map(|g| (copy(g.clone()), copy(g)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Against the definition: all pairs of equal global index.
        #[test]
        fn equals_element_by_element(((a, ra), (b, rb)) in pair()) {
            let mut want = BTreeSet::new();
            for (ga, pa) in elements(&a, &ra) {
                want.extend(elements(&b, &rb).into_iter().filter(|(gb, _)| *gb == ga).map(|(_, pb)| (pa, pb)));
            }
            let mut got = BTreeSet::new();
            common_runs(&a, &ra, &b, &rb, |pa, pb, n| {
                for i in 0..n {
                    assert!(got.insert((pa + i, pb + i)), "a pair is given twice");
                }
            });
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn whole_rows_are_one_run() {
        let a = ShardSpec::whole("t", &[8, 5]);
        let b = ShardSpec { boxes: vec![ShardBox::rows(&[8, 5], 2, 4)], ..a.clone() };
        let mut runs = vec![];
        common_runs(&a, &(0..40), &b, &(3..20), |x, y, n| runs.push((x, y, n)));
        assert_eq!(runs, [(13, 0, 17)]);
    }

    #[test]
    fn a_small_range_of_a_huge_box_is_cheap() {
        let columns = |first, n| ShardSpec {
            name: "t".into(),
            global: vec![1 << 40, 3],
            boxes: vec![ShardBox { start: vec![0, first], len: vec![1 << 40, n] }],
        };
        let (a, b) = (columns(1, 1), columns(0, 2));
        let mut runs = vec![];
        common_runs(&a, &(1 << 30..(1 << 30) + 3), &b, &(0..1 << 41), |x, y, n| runs.push((x, y, n)));
        assert_eq!(runs, [0, 1, 2].map(|i| (i, (1 << 31) + 2 * i + 1, 1)));
    }

    #[test]
    fn bad_boxes() {
        let spec = |global: &[usize], start: &[usize], len: &[usize]| ShardSpec {
            name: "t".into(),
            global: global.to_vec(),
            boxes: vec![ShardBox { start: start.to_vec(), len: len.to_vec() }],
        };
        let check = |s| check_spec(&s, DType::F32);
        assert_eq!(check(spec(&[4, 5], &[1, 0], &[3, 5])), Ok(15));
        assert!(check(spec(&[4, 5], &[2, 0], &[3, 5])).is_err());
        assert!(check(spec(&[4, 5], &[2], &[2])).is_err());
        assert!(check(spec(&[4], &[usize::MAX], &[2])).is_err());
        assert!(check(spec(&[usize::MAX, 2], &[0, 0], &[1, 1])).is_err());
        assert!(check(spec(&[usize::MAX, 2, 0], &[0, 0, 0], &[1, 1, 0])).is_err());
    }
}

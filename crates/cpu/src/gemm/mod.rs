//! Matrix products in the manner of BLIS (Van Zee & van de Geijn 2015): pack panels, run a register-blocked kernel.
//!
//! Operands are packed once into the team's shared scratch (as f32, see [`pack`]), save A in f32 where the kernel can
//! read its rows as they lie; then tiles of C are tasks.
//! A tile runs through K in blocks, in order; block sums are added in f32, and 16-bit C is rounded once at the end.
//! Products with a few rows only go another way ([`thin`]).
//! All sizes below follow from the shape and the instruction set, so the bits do too.

#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
mod kernel_avx2;
#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
mod kernel_avx512;
mod kernel_portable;
mod pack;
mod thin;

use std::ops::Range;

use ferrotron_device::ops::{Gemm, GemmOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::isa::Isa;
use crate::scratch::Scratch;
use crate::team::{SHARED_BYTES, Team, chunks};
use crate::view::{Element, In, Out, Storage};
use crate::{CpuOps, dispatch};
pub(crate) use pack::{Operand, PackLoad};
pub(crate) use thin::dot;

/// Longest run of K that is packed at once.
const K_PANEL: usize = 4096;
/// Longest run of K that a micro-kernel does: its panel of B stays in the first-level cache.
const K_BLOCK: usize = 384;
/// Floats of packed A, packed B, and (for 16-bit C with K beyond one panel) sums of C.
const A_FLOATS: usize = SHARED_BYTES / 4 / 4;
const B_FLOATS: usize = SHARED_BYTES / 4 / 2;
const C_FLOATS: usize = SHARED_BYTES / 4 / 4;
/// Rows and columns of a task's tile, at most: with a block of A it stays in the second-level cache.
const TILE_ROWS: usize = 128;
const TILE_COLS: usize = 384;

/// What a micro-kernel computes: `C = alpha A B + beta C + bias` over packed panels of A and B.
pub(crate) struct Tile {
    /// Depth.
    pub k: usize,
    /// Panel of A, MR floats a step; or rows as stored, see `a_row`.
    pub a: *const f32,
    /// 0 when A is packed. Else floats from row to row of A as stored, the K elements of each side by side: for kernels
    /// that can read it so.
    #[cfg_attr(not(all(target_arch = "x86_64", not(ferrotron_portable))), expect(dead_code))]
    pub a_row: usize,
    /// Panel of B, NR floats a step.
    pub b: *const f32,
    /// First element of the tile.
    pub c: *mut f32,
    /// Floats from row to row of C.
    pub ldc: usize,
    /// Factor of the product.
    pub alpha: f32,
    /// When 0, C is not read.
    pub beta: f32,
    /// Null, or one float a column.
    pub bias: *const f32,
    /// Packed memory to prefetch meanwhile, a cache line every four steps. Need not be valid.
    #[cfg_attr(not(all(target_arch = "x86_64", not(ferrotron_portable))), expect(dead_code))]
    pub ahead: *const f32,
}

/// A micro-kernel with its register block.
pub(crate) trait Micro {
    const MR: usize;
    const NR: usize;
    /// The kernel can read rows of A where they are stored.
    const READS_ROWS: bool;
    /// Computes one tile.
    ///
    /// # Safety
    /// The processor has the instruction set; pointers are good for `rows` x `cols`.
    unsafe fn kernel(t: &Tile, rows: usize, cols: usize);
    /// Packs panels of A, see [`pack::panels`].
    fn pack_a<T: PackLoad>(m: Operand<'_, T>, lane: usize, count: usize, ks: Range<usize>, dst: &mut [f32]);
    /// Packs panels of B.
    fn pack_b<T: PackLoad>(m: Operand<'_, T>, lane: usize, count: usize, ks: Range<usize>, dst: &mut [f32]);
}

macro_rules! micro {
    ($name:ident, $isa:expr, $module:ident) => {
        pub(crate) struct $name;
        impl Micro for $name {
            const MR: usize = $module::MR;
            const NR: usize = $module::NR;
            const READS_ROWS: bool = $module::READS_ROWS;
            unsafe fn kernel(t: &Tile, rows: usize, cols: usize) {
                // SAFETY: the caller's promise.
                unsafe { $module::kernel(t, rows, cols) }
            }
            fn pack_a<T: PackLoad>(m: Operand<'_, T>, lane: usize, count: usize, ks: Range<usize>, dst: &mut [f32]) {
                pack::panels::<T, { $module::MR }>($isa, m, lane, count, ks, dst);
            }
            fn pack_b<T: PackLoad>(m: Operand<'_, T>, lane: usize, count: usize, ks: Range<usize>, dst: &mut [f32]) {
                pack::panels::<T, { $module::NR }>($isa, m, lane, count, ks, dst);
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
micro!(Avx512, Isa::Avx512, kernel_avx512);
#[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
micro!(Avx2, Isa::Avx2, kernel_avx2);
micro!(Portable, Isa::Portable, kernel_portable);

/// Runs `$body` with `$M` bound to the micro-kernel of an instruction set.
macro_rules! with_micro {
    ($isa:expr, $M:ident => $body:expr) => {
        match $isa {
            #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
            $crate::isa::Isa::Avx512 => {
                type $M = $crate::gemm::Avx512;
                $body
            }
            #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
            $crate::isa::Isa::Avx2 => {
                type $M = $crate::gemm::Avx2;
                $body
            }
            _ => {
                type $M = $crate::gemm::Portable;
                $body
            }
        }
    };
}
pub(crate) use with_micro;

impl GemmOps for CpuOps {
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()> {
        let size = g.check(a, b, bias, c)?;
        let (a, b, bias, c) = (In::of(a), In::of(b), bias.map(In::of), Out::of(c));
        dispatch!(a.dtype(), T => dispatch!(c.dtype(), C => self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and C is apart from A and B.
            let (a, b, c) = unsafe { (a.get::<T>(), b.get::<T>(), c.get::<C>()) };
            let product = Product { g, size, a, b, bias, c: c.as_mut_ptr() };
            if product.is_thin() {
                return product.run_thin(team);
            }
            with_micro!(team.isa(), M => product.run::<M>(team))
        })))
    }
}

/// One product with its operands.
struct Product<'a, T, C> {
    g: Gemm,
    /// M, N, K.
    size: (usize, usize, usize),
    a: &'a [T],
    b: &'a [T],
    bias: Option<In>,
    c: *mut C,
}

// SAFETY: tasks write to tiles of C that do not overlap.
unsafe impl<T: Sync, C: Send> Sync for Product<'_, T, C> {}

/// How a product is cut: a function of its shape and the kernel's register block.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows per outer block: all, unless sums of C must fit in the shared scratch.
    outer_rows: usize,
    /// Rows of A packed at once.
    rows: usize,
    /// Columns of B packed at once.
    cols: usize,
    /// K packed at once.
    depth: usize,
    /// Tile of a task.
    tile: (usize, usize),
    /// A is read where it is stored.
    stored: bool,
}

/// `n` items in equal pieces of at most `most`, each a multiple of `unit` but for the last.
fn even(n: usize, most: usize, unit: usize) -> usize {
    let most = (most / unit).max(1);
    let units = n.div_ceil(unit).max(1);
    units.div_ceil(units.div_ceil(most)) * unit
}

impl Cut {
    /// `sums`: C is not f32; `stored`: A is not packed.
    fn new(m: usize, n: usize, k: usize, mr: usize, nr: usize, sums: bool, stored: bool) -> Cut {
        let depth = even(k, K_PANEL, 8);
        let sums = sums && depth < k;
        let outer_rows = if sums { even(m, C_FLOATS / nr, mr) } else { m };
        let mut cols = B_FLOATS / depth;
        if sums {
            cols = cols.min(C_FLOATS / outer_rows);
        }
        let cols = even(n, cols, nr);
        let rows = if stored { outer_rows.max(1) } else { even(outer_rows, A_FLOATS / depth, mr) };
        // Enough tiles to keep threads busy to the end, but not so small that panels are read too often.
        let (mut tr, mut tc) = (TILE_ROWS, TILE_COLS);
        while m.div_ceil(tr) * n.div_ceil(tc) < 16 && (tr > 48 || tc > 96) {
            if tc > 2 * tr { tc /= 2 } else { tr /= 2 }
        }
        Cut { outer_rows, rows, cols, depth, tile: (even(rows, tr, mr), even(cols, tc, nr)), stored }
    }
}

impl<T: PackLoad, C: Storage> Product<'_, T, C> {
    fn run<M: Micro>(&self, team: &Team) -> Result<()> {
        let (m, n, k) = self.size;
        let stored = M::READS_ROWS && !self.g.trans_a && T::DTYPE == f32::DTYPE;
        let cut = Cut::new(m, n, k, M::MR, M::NR, C::DTYPE != f32::DTYPE, stored);
        let a =
            Operand { data: self.a, ld: if self.g.trans_a { m } else { k }, lanes: m, lane_is_row: !self.g.trans_a };
        let b = Operand { data: self.b, ld: if self.g.trans_b { k } else { n }, lanes: n, lane_is_row: self.g.trans_b };
        let mut session = team.session();
        let packed = Packed::new(session.shared());
        let outer = chunks(m, cut.outer_rows);
        for outer in (0..outer.count()).map(|i| outer.range(i)) {
            for n0 in (0..n).step_by(cut.cols) {
                let cols = n0..(n0 + cut.cols).min(n);
                // K = 0 is one empty panel: C still gets beta C + bias.
                for k0 in (0..k.max(1)).step_by(cut.depth) {
                    let ks = k0..(k0 + cut.depth).min(k);
                    for m0 in outer.clone().step_by(cut.rows) {
                        let rows = m0..(m0 + cut.rows).min(outer.end);
                        // A that fits as a whole is packed once for all columns, B once for all rows.
                        let keep_a = cut.stored || n0 > 0 && rows.len() == m && ks.len() == k;
                        let (a_jobs, a_panels) = if keep_a { (0, 1) } else { pack_jobs(rows.len(), M::MR) };
                        let (b_jobs, b_panels) = if m0 > outer.start { (0, 1) } else { pack_jobs(cols.len(), M::NR) };
                        session.run(a_jobs + b_jobs, &|i, _| match i.checked_sub(a_jobs) {
                            None => packed.fill(packed.a, a, &rows, &ks, M::MR, i, a_panels, M::pack_a),
                            Some(i) => packed.fill(packed.b, b, &cols, &ks, M::NR, i, b_panels, M::pack_b),
                        })?;
                        let (tr, tc) = (chunks(rows.len(), cut.tile.0), chunks(cols.len(), cut.tile.1));
                        session.run(tr.count() * tc.count(), &|i, scratch| {
                            let (r, c) = (tr.range(i / tc.count()), tc.range(i % tc.count()));
                            let block = Block { outer: outer.start, rows: &rows, cols: &cols, ks: &ks, cut: &cut };
                            self.tile::<M>(&packed, &block, r, c, scratch);
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Tile `r` x `c` (within the packed block) over the packed run of K.
    fn tile<M: Micro>(&self, packed: &Packed, at: &Block<'_>, r: Range<usize>, c: Range<usize>, scratch: &mut Scratch) {
        let (_, n, k) = self.size;
        let depth = at.ks.len();
        let (first, last) = (at.ks.start == 0, at.ks.end == k);
        let direct = C::DTYPE == f32::DTYPE;
        let [bias, sums] = scratch.split([c.len(), if direct { 0 } else { r.len() * c.len() }]);
        let has_bias = self.load_bias(at.cols.start + c.start, bias);
        let row0 = at.rows.start + r.start;
        // SAFETY: element (row0, first column) of C lies in C.
        let out = unsafe { self.c.add(row0 * n + at.cols.start + c.start) };
        let (acc, ld) = if direct {
            (out.cast::<f32>(), n)
        } else if first && last {
            (sums.as_mut_ptr(), c.len())
        } else {
            // SAFETY: outer rows x packed columns fit in C_FLOATS, see `Cut`.
            (unsafe { packed.sums.add((row0 - at.outer) * at.cut.cols + c.start) }, at.cut.cols)
        };
        let k_block = even(depth, K_BLOCK, 8);
        for k0 in (0..depth.max(1)).step_by(k_block) {
            let start = first && k0 == 0;
            for j in c.clone().step_by(M::NR) {
                // Meanwhile the next panel of B comes nearer, a piece with each tile.
                let next = match (j + M::NR < c.end, k0 + k_block < depth) {
                    (true, _) => (j + M::NR) * depth + k0 * M::NR,
                    (false, true) => c.start * depth + (k0 + k_block) * M::NR,
                    (false, false) => 0,
                };
                for (piece, i) in r.clone().step_by(M::MR).enumerate() {
                    let j0 = j - c.start;
                    // SAFETY: panels were packed by the call before; (i, j) is in the tile of C that this task owns.
                    unsafe {
                        let t = Tile {
                            k: k_block.min(depth - k0),
                            a: if at.cut.stored {
                                self.a.as_ptr().cast::<f32>().add((at.rows.start + i) * k + at.ks.start + k0)
                            } else {
                                packed.a.add(i * depth + k0 * M::MR)
                            },
                            a_row: if at.cut.stored { k } else { 0 },
                            b: packed.b.add(j * depth + k0 * M::NR),
                            c: acc.add((i - r.start) * ld + j0),
                            ldc: ld,
                            alpha: self.g.alpha,
                            beta: if !start {
                                1.0
                            } else if direct {
                                self.g.beta
                            } else {
                                0.0
                            },
                            bias: if start && has_bias { bias.as_ptr().add(j0) } else { std::ptr::null() },
                            ahead: packed.b.wrapping_add(next + piece * k_block.div_ceil(4) * 16),
                        };
                        M::kernel(&t, M::MR.min(r.end - i), M::NR.min(c.end - j));
                    }
                }
            }
        }
        if !direct && last {
            for i in 0..r.len() {
                // SAFETY: row i of this task's tile, of the sums and of C.
                let (sums, out) = unsafe {
                    let sums = std::slice::from_raw_parts_mut(acc.add(i * ld), c.len());
                    (sums, std::slice::from_raw_parts_mut(out.add(i * n), c.len()))
                };
                if self.g.beta != 0.0 {
                    for (s, o) in sums.iter_mut().zip(&*out) {
                        *s += self.g.beta * o.to_f32();
                    }
                }
                C::store(sums, out);
            }
        }
    }

    /// Bias of some columns as f32; false when there is none.
    fn load_bias(&self, col: usize, dst: &mut [f32]) -> bool {
        let Some(bias) = self.bias else { return false };
        dispatch!(bias.dtype(), B => {
            // SAFETY: as for A and B.
            let bias = unsafe { bias.get::<B>() };
            B::load(&bias[col..col + dst.len()], dst);
        });
        true
    }
}

/// The block of the product whose panels are packed.
struct Block<'a> {
    /// First row of the outer block.
    outer: usize,
    rows: &'a Range<usize>,
    cols: &'a Range<usize>,
    ks: &'a Range<usize>,
    cut: &'a Cut,
}

/// Number of packing tasks over `lanes` lanes in panels of `w`, and panels a task: about 64 lanes, so that whole cache
/// lines of a transposed operand are used.
fn pack_jobs(lanes: usize, w: usize) -> (usize, usize) {
    let panels = 64usize.div_ceil(w);
    (lanes.div_ceil(panels * w), panels)
}

/// The team's shared scratch, cut in three.
#[derive(Clone, Copy)]
struct Packed {
    a: *mut f32,
    b: *mut f32,
    sums: *mut f32,
}

// SAFETY: tasks write to panels and tiles that do not overlap, and read in a later call what an earlier one wrote.
unsafe impl Sync for Packed {}

impl Packed {
    fn new(shared: *mut f32) -> Packed {
        // SAFETY: the three parts make up SHARED_BYTES.
        unsafe { Packed { a: shared, b: shared.add(A_FLOATS), sums: shared.add(A_FLOATS + B_FLOATS) } }
    }

    /// Task `job` of packing `lanes` of an operand into panels of `w` at `dst`.
    #[allow(clippy::too_many_arguments)]
    fn fill<T: PackLoad>(
        &self,
        dst: *mut f32,
        m: Operand<'_, T>,
        lanes: &Range<usize>,
        ks: &Range<usize>,
        w: usize,
        job: usize,
        panels: usize,
        pack: impl Fn(Operand<'_, T>, usize, usize, Range<usize>, &mut [f32]),
    ) {
        let len = w * ks.len();
        let first = job * panels;
        let count = panels.min(lanes.len().div_ceil(w) - first);
        // SAFETY: the panels of a block fit (see `Cut`), and each is written by one task.
        let dst = unsafe { std::slice::from_raw_parts_mut(dst.add(first * len), count * len) };
        // Lanes beyond this block belong to the next; packing them here too does no harm.
        pack(m, lanes.start + first * w, count, ks.clone(), dst);
    }
}

//! A parameter as parts of tensors in files.

use std::ops::Range;
use std::sync::OnceLock;

use crate::Result;
use crate::files::Blob;
use crate::shard::{self, Shard};

/// A file, or part of one, that is read when a parameter of it is asked for.
#[derive(Debug)]
pub struct Unit {
    blob: Blob,
    model: bool,
    shard: OnceLock<Shard>,
}

impl Unit {
    /// A `model_optim_rng.pt`.
    pub fn model(blob: Blob) -> Unit {
        Unit { blob, model: true, shard: OnceLock::new() }
    }

    /// A tensor in a `.distcp`.
    pub fn tensor(blob: Blob) -> Unit {
        Unit { blob, model: false, shard: OnceLock::new() }
    }

    /// What has been read already.
    pub fn opened(shard: Shard, blob: Blob) -> Unit {
        Unit { blob, model: true, shard: OnceLock::from(shard) }
    }

    /// Its tensors.
    pub fn shard(&self) -> Result<&Shard> {
        if let Some(shard) = self.shard.get() {
            return Ok(shard);
        }
        let (archive, pickle) = shard::open(self.blob.clone())?;
        let tensors = match self.model {
            true => super::torch::tensors(&pickle).map_err(|what| archive.wrong(what))?,
            false => {
                let root = pickle.root();
                let tensor = pickle.tensor(root).cloned().ok_or_else(|| pickle.kind(root));
                [(String::new(), tensor)].into()
            }
        };
        let shard = Shard::new(archive, tensors);
        Ok(self.shard.get_or_init(|| shard))
    }
}

/// A box of a parameter, as rows and columns, and the tensor that has it.
#[derive(Clone, Debug)]
pub struct Piece {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Number of the unit.
    pub unit: usize,
    /// The tensor's key there.
    pub key: String,
    /// The tensor's shape.
    pub shape: Vec<usize>,
    /// Its element that is the first of the box; the others follow, row by row.
    pub base: usize,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// Of the whole.
    pub shape: Vec<usize>,
    pub pieces: Vec<Piece>,
}

impl Param {
    /// Elements of a row; of a vector 1.
    pub fn cols(&self) -> usize {
        if self.shape.len() < 2 { 1 } else { self.shape.iter().skip(1).product() }
    }

    /// Elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from `first` on. `Ok(Some(n))`: element n is nowhere.
    pub fn read(&self, units: &[Unit], first: usize, out: &mut [f32]) -> Result<Option<usize>> {
        let cols = self.cols();
        let mut done = 0;
        while done < out.len() {
            let at = first + done;
            let (row, col) = (at / cols.max(1), at % cols.max(1));
            let Some(p) = self.pieces.iter().find(|p| p.rows.contains(&row) && p.cols.contains(&col)) else {
                return Ok(Some(at));
            };
            let (width, left) = (p.cols.len(), out.len() - done);
            let span = if width == cols { p.rows.end * cols - at } else { p.cols.end - col }.min(left);
            let from = p.base + (row - p.rows.start) * width + (col - p.cols.start);
            let shard = units[p.unit].shard()?;
            shard.read_f32(&p.key, &p.shape, from, &mut out[done..done + span])?;
            done += span;
        }
        Ok(None)
    }
}

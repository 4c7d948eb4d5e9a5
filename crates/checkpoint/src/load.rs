//! Loading under any layout: what the reader wants, intersected with what the shards hold.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ferrotron_base::{DType, ShardSpec};

use crate::convert::{convert, convertible};
use crate::layout::{self, MANIFEST, Step};
use crate::manifest::{CheckedEntry, Common, Manifest, ShardFile, ShardIndex};
use crate::plan::{Piece, Segment, cover};
use crate::safetensors::{PIECE, SafetensorsFile};
use crate::{Error, Kind, Result, foreign, geometry};

/// Output elements that are planned at a time: bounds the plan's memory, however finely a tensor is cut.
const WINDOW: usize = 1 << 20;

/// Two wanted parts of a file closer than this are fetched by one read.
const NEAR: u64 = 16 << 10;

/// With more shards than this, files are opened for each read: descriptors are few (often 1024).
const KEEP_OPEN: usize = 256;

/// An opened checkpoint of our own format. Opening checks the manifest, every shard's index and every shard's header
/// against each other; [`Checkpoint::verify_shard`] checks the numbers too.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    common: Common,
    shards: Vec<Shard>,
    tensors: BTreeMap<Kind, BTreeMap<String, Vec<Piece>>>,
}

#[derive(Debug)]
struct Shard {
    rank: usize,
    path: PathBuf,
    checksum: String,
    open: Option<SafetensorsFile>,
}

/// A tensor state in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    /// Which state.
    pub kind: Kind,
    /// Its name.
    pub name: &'a str,
    /// Shape of the whole tensor.
    pub global: &'a [usize],
    /// Element type (of the first piece; pieces may differ).
    pub dtype: DType,
    /// Number of pieces it is stored in.
    pub pieces: usize,
}

impl Checkpoint {
    /// Opens the checkpoint that the tracker file of `dir` names, or that of `--ckpt-step`.
    ///
    /// # Errors
    /// Those of [`layout::resolve`] and of [`Checkpoint::open_folder`].
    pub fn open(dir: impl AsRef<Path>, ckpt_step: Option<u64>) -> Result<Checkpoint> {
        let (step, folder) = layout::resolve(dir.as_ref(), ckpt_step)?;
        let ckpt = Checkpoint::open_folder(&folder)?;
        if let Step::Iteration(n) = step
            && ckpt.common.iteration != n
        {
            let why = format!("it is of iteration {} but its folder is that of {n}", ckpt.common.iteration);
            return Err(Error::damaged(&folder.join(MANIFEST), why));
        }
        Ok(ckpt)
    }

    /// Opens one checkpoint folder, for example `SAVE/iter_0001000`.
    ///
    /// # Errors
    /// [`Error::Foreign`] for another program's folder, [`Error::Damaged`] if files are missing, truncated or disagree,
    /// [`Error::NewerVersion`], [`Error::Io`].
    pub fn open_folder(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let dir = folder.as_ref();
        if !dir.join(MANIFEST).exists()
            && let Some(format) = foreign::detect(dir)
        {
            return Err(Error::Foreign { path: dir.into(), format });
        }
        let manifest = Manifest::read(dir)?;
        let keep = manifest.shards.len() <= KEEP_OPEN;
        let mut ckpt =
            Checkpoint { dir: dir.into(), common: manifest.common, shards: vec![], tensors: BTreeMap::new() };
        for s in manifest.shards {
            ckpt.add_shard(s, keep)?;
        }
        Ok(ckpt)
    }

    fn add_shard(&mut self, s: ShardFile, keep: bool) -> Result<()> {
        let index_path = self.dir.join(&s.index);
        let (index, index_checksum) = ShardIndex::read(&index_path)?;
        let iteration = self.common.iteration;
        if index_checksum.to_string() != s.index_checksum || index.rank != s.rank || index.iteration != iteration {
            let why = format!(
                "{index_checksum}, rank {}, iteration {}; the manifest says {}, rank {}, iteration {iteration}",
                index.rank, index.iteration, s.index_checksum, s.rank
            );
            return Err(Error::damaged(&index_path, why));
        }
        if index.bytes != s.bytes || index.checksum != s.checksum {
            return Err(Error::damaged(&index_path, "its data file is not the one that the manifest lists"));
        }
        let path = self.dir.join(&s.file);
        let file = SafetensorsFile::open(&path)?;
        if file.file_len() != s.bytes {
            let why = format!("{} bytes, but {} were written", file.file_len(), s.bytes);
            return Err(Error::damaged(&path, why));
        }
        if file.tensors().len() != index.entries.len() {
            let why = format!("{} tensors, but {} entries in its index", file.tensors().len(), index.entries.len());
            return Err(Error::damaged(&path, why));
        }
        for e in index.entries {
            let e = e.check().map_err(|why| Error::damaged(&index_path, why))?;
            self.add_entry(e, &file)?;
        }
        self.shards.push(Shard { rank: s.rank, path, checksum: s.checksum, open: keep.then_some(file) });
        Ok(())
    }

    fn add_entry(&mut self, e: CheckedEntry, file: &SafetensorsFile) -> Result<()> {
        let t = file.tensor(&e.key)?;
        if t.dtype != Some(e.dtype) || t.numel() != e.range.len() {
            let why = format!(
                "{:?} is {} {:?}, but its index says {} elements of {}",
                e.key,
                t.dtype_name,
                t.shape,
                e.range.len(),
                e.dtype
            );
            return Err(Error::damaged(file.path(), why));
        }
        let pieces = self.tensors.entry(e.kind).or_default().entry(e.spec.name.clone()).or_default();
        if let Some(first) = pieces.first()
            && first.spec.global != e.spec.global
        {
            let why =
                format!("{:?} has shape {:?} here and {:?} in another shard", e.key, e.spec.global, first.spec.global);
            return Err(Error::damaged(file.path(), why));
        }
        let shard = self.shards.len();
        pieces.push(Piece { shard, offset: t.offset, dtype: e.dtype, spec: e.spec, range: e.range });
        Ok(())
    }

    /// The checkpoint's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Iteration, arguments and the state that is not tensors.
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// All tensor states, sorted by kind and name.
    pub fn stored(&self) -> impl Iterator<Item = Stored<'_>> {
        self.tensors.iter().flat_map(|(&kind, of_kind)| {
            of_kind.iter().filter_map(move |(name, pieces)| {
                let p = pieces.first()?;
                Some(Stored { kind, name, global: &p.spec.global, dtype: p.dtype, pieces: pieces.len() })
            })
        })
    }

    /// What is stored of one tensor state, or `None`.
    pub fn get(&self, kind: Kind, name: &str) -> Option<Stored<'_>> {
        let (name, pieces) = self.tensors.get(&kind)?.get_key_value(name)?;
        let p = pieces.first()?;
        Some(Stored { kind, name, global: &p.spec.global, dtype: p.dtype, pieces: pieces.len() })
    }

    /// Reads elements `range` of the local copy that `wanted` describes into `out`, as little-endian `dtype`. The
    /// layout of the ranks that saved does not matter. On an error `out` may be partly written.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], [`Error::MissingElement`], [`Error::ShapeMismatch`], [`Error::NoConversion`],
    /// [`Error::BadEntry`] if the request contradicts itself, [`Error::Damaged`], [`Error::Io`].
    pub fn read_into(
        &self,
        wanted: &ShardSpec,
        range: Range<usize>,
        kind: Kind,
        dtype: DType,
        out: &mut [u8],
    ) -> Result<()> {
        let pieces = self.pieces(wanted, kind)?;
        if pieces[0].spec.global != wanted.global {
            return Err(mismatch(wanted, kind, pieces));
        }
        self.read(wanted, range, kind, dtype, out, pieces)
    }

    /// As [`Checkpoint::read_into`], for tensors whose number of rows depends on the layout: Megatron pads the
    /// vocabulary to a multiple of `--make-vocab-size-divisible-by` times the tensor-parallel size. Rows that the
    /// checkpoint lacks at the end keep what `out` holds; rows that it has beyond the wanted ones are left.
    ///
    /// # Errors
    /// As [`Checkpoint::read_into`]; [`Error::ShapeMismatch`] only if another dim differs.
    pub fn read_rows_into(
        &self,
        wanted: &ShardSpec,
        range: Range<usize>,
        kind: Kind,
        dtype: DType,
        out: &mut [u8],
    ) -> Result<()> {
        let pieces = self.pieces(wanted, kind)?;
        let saved = &pieces[0].spec.global;
        if saved.is_empty() || saved.len() != wanted.global.len() || saved[1..] != wanted.global[1..] {
            return Err(mismatch(wanted, kind, pieces));
        }
        self.read(wanted, range, kind, dtype, out, pieces)
    }

    /// As [`Checkpoint::read_into`], for f32 in host memory.
    ///
    /// # Errors
    /// As [`Checkpoint::read_into`].
    pub fn read_f32(&self, wanted: &ShardSpec, range: Range<usize>, kind: Kind, out: &mut [f32]) -> Result<()> {
        if range.len() != out.len() {
            let why = format!("range {range:?} for a buffer of {} elements", out.len());
            return Err(Error::entry(&wanted.name, why));
        }
        let mut buf = vec![0; out.len().min(WINDOW) * 4];
        for (i, part) in out.chunks_mut(WINDOW).enumerate() {
            let first = range.start + i * WINDOW;
            let buf = &mut buf[..part.len() * 4];
            self.read_into(wanted, first..first + part.len(), kind, DType::F32, buf)?;
            part.iter_mut().zip(buf.as_chunks::<4>().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
        }
        Ok(())
    }

    fn pieces(&self, wanted: &ShardSpec, kind: Kind) -> Result<&[Piece]> {
        let pieces = self.tensors.get(&kind).and_then(|of_kind| of_kind.get(&wanted.name));
        pieces.map(Vec::as_slice).filter(|p| !p.is_empty()).ok_or_else(|| Error::MissingTensor {
            dir: self.dir.clone(),
            kind,
            name: wanted.name.clone(),
        })
    }

    fn read(
        &self,
        wanted: &ShardSpec,
        range: Range<usize>,
        kind: Kind,
        dtype: DType,
        out: &mut [u8],
        pieces: &[Piece],
    ) -> Result<()> {
        let local = geometry::check_spec(wanted, dtype).map_err(|why| Error::entry(&wanted.name, why))?;
        if range.start > range.end || range.end > local || Some(out.len()) != range.len().checked_mul(dtype.size()) {
            let why = format!("range {range:?} of {local} {dtype} elements into {} bytes", out.len());
            return Err(Error::entry(&wanted.name, why));
        }
        if let Some(p) = pieces.iter().find(|p| !convertible(p.dtype, dtype)) {
            return Err(Error::NoConversion { name: wanted.name.clone(), stored: p.dtype.to_string(), wanted: dtype });
        }
        let saved_rows = pieces[0].spec.global.first().copied().unwrap_or(1);
        let mut files = Files { shards: &self.shards, opened: BTreeMap::new(), buf: vec![] };
        for (i, out) in out.chunks_mut(WINDOW * dtype.size()).enumerate() {
            let first = range.start + i * WINDOW;
            let window = first..first + out.len() / dtype.size();
            let plan = cover(wanted, &window, pieces, saved_rows).map_err(|at| Error::MissingElement {
                dir: self.dir.clone(),
                kind,
                name: wanted.name.clone(),
                global: wanted.global.clone(),
                index: geometry::global_index(wanted, at),
            })?;
            files.fetch(plan, pieces, dtype, out)?;
        }
        Ok(())
    }

    /// Checks the numbers of one shard (`0 .. shards()`) against the checksum taken when it was written. Ranks can
    /// share the work: each verifies the shards whose number is its rank modulo the world size.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a byte differs, [`Error::Io`].
    pub fn verify_shard(&self, number: usize) -> Result<()> {
        let Some(s) = self.shards.get(number) else {
            return Err(Error::entry(&format!("shard {number}"), format!("there are {} shards", self.shards.len())));
        };
        let found = match &s.open {
            Some(file) => file.checksum()?,
            None => SafetensorsFile::open(&s.path)?.checksum()?,
        };
        if found.to_string() != s.checksum {
            let why = format!("its content has {found} but rank {} wrote {}", s.rank, s.checksum);
            return Err(Error::damaged(&s.path, why));
        }
        Ok(())
    }

    /// [`Checkpoint::verify_shard`] for all shards.
    ///
    /// # Errors
    /// Those of [`Checkpoint::verify_shard`].
    pub fn verify(&self) -> Result<()> {
        (0..self.shards.len()).try_for_each(|i| self.verify_shard(i))
    }
}

fn mismatch(wanted: &ShardSpec, kind: Kind, pieces: &[Piece]) -> Error {
    let saved = pieces[0].spec.global.clone();
    Error::ShapeMismatch { kind, name: wanted.name.clone(), wanted: wanted.global.clone(), saved }
}

/// The shard files of one request, and the buffer that parts of them go through.
struct Files<'a> {
    shards: &'a [Shard],
    opened: BTreeMap<usize, SafetensorsFile>,
    buf: Vec<u8>,
}

impl Files<'_> {
    /// Reads segments in the order of the files, near ones together, and converts them into place.
    fn fetch(&mut self, plan: Vec<Segment>, pieces: &[Piece], dtype: DType, out: &mut [u8]) -> Result<()> {
        let mut reads: Vec<Read> = vec![];
        for s in &plan {
            let Some(piece) = s.piece else { continue };
            let p = &pieces[piece];
            // A segment longer than the buffer becomes several reads.
            let most = PIECE / p.dtype.size();
            for skip in (0..s.len).step_by(most) {
                let offset = p.offset + ((s.at + skip) * p.dtype.size()) as u64;
                reads.push(Read {
                    shard: p.shard,
                    offset,
                    out: s.out + skip,
                    len: most.min(s.len - skip),
                    dtype: p.dtype,
                });
            }
        }
        reads.sort_unstable_by_key(|r| (r.shard, r.offset));
        let mut rest = reads.as_slice();
        while let Some(first) = rest.first() {
            let mut end = first.end();
            let near = |r: &&Read, end: u64| {
                r.shard == first.shard && r.offset <= end + NEAR && r.end().max(end) - first.offset <= PIECE as u64
            };
            let n = rest
                .iter()
                .take_while(|r| {
                    near(r, end) && {
                        end = end.max(r.end());
                        true
                    }
                })
                .count();
            let (block, tail) = rest.split_at(n);
            self.buf.resize((end - first.offset) as usize, 0);
            file(self.shards, &mut self.opened, first.shard)?.read_raw(first.offset, &mut self.buf)?;
            for r in block {
                let at = (r.offset - first.offset) as usize;
                let src = &self.buf[at..at + r.len * r.dtype.size()];
                convert(r.dtype, src, dtype, &mut out[r.out * dtype.size()..(r.out + r.len) * dtype.size()]);
            }
            rest = tail;
        }
        Ok(())
    }
}

/// The file of a shard, opened now if it is not kept open.
fn file<'b>(
    shards: &'b [Shard],
    opened: &'b mut BTreeMap<usize, SafetensorsFile>,
    number: usize,
) -> Result<&'b SafetensorsFile> {
    if let Some(file) = &shards[number].open {
        return Ok(file);
    }
    if opened.len() >= KEEP_OPEN && !opened.contains_key(&number) {
        opened.clear();
    }
    match opened.entry(number) {
        Slot::Occupied(file) => Ok(file.into_mut()),
        Slot::Vacant(slot) => Ok(slot.insert(SafetensorsFile::open(&shards[number].path)?)),
    }
}

/// One stretch of a shard file that goes to one stretch of the output.
struct Read {
    shard: usize,
    offset: u64,
    /// First output element.
    out: usize,
    /// Elements.
    len: usize,
    dtype: DType,
}

impl Read {
    fn end(&self) -> u64 {
        self.offset + (self.len * self.dtype.size()) as u64
    }
}

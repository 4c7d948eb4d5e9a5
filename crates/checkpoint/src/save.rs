//! Saving: everything under a temporary name, made durable, renamed; the tracker file last.
//!
//! One save, all ranks: `Save::begin` (coordinator) · barrier · `write_shard` (each rank) · barrier · `commit`
//! (coordinator). The folder must be on a file system that all ranks share. There is no clean-up on an error, so an error
//! and a `kill -9` leave the same files; whatever is left is ignored by loading and removed by the next `begin`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::entry::Entry;
use crate::error::IoContext;
use crate::layout::{self, Folder, MANIFEST, Step, TRACKER};
use crate::manifest::{Common, IndexEntry, Manifest, ShardFile, ShardIndex};
use crate::safetensors::{Hooks, SafetensorsFile, TensorSource, write_tensors};
use crate::{Error, Result, geometry};

/// Steps of a save, in order. A test can stop a save at each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultPoint {
    /// Left-overs of killed runs are gone.
    Cleaned,
    /// The temporary folder exists.
    FolderCreated,
    /// A shard file has its header only.
    ShardHeader,
    /// A shard file has another piece of its data.
    ShardData,
    /// A shard file is durable.
    ShardFile,
    /// A shard's index is durable.
    ShardIndex,
    /// The manifest is durable.
    Manifest,
    /// The temporary folder is durable.
    FolderSynced,
    /// Re-save: the old checkpoint of this iteration has another name.
    OldAside,
    /// The new checkpoint has its name.
    Renamed,
    /// That name is durable.
    ParentSynced,
    /// The new tracker file exists under a temporary name.
    TrackerWritten,
    /// The tracker file names the new checkpoint.
    TrackerRenamed,
    /// Durably so.
    TrackerSynced,
    /// Re-save: the old checkpoint is deleted.
    OldDeleted,
    /// The previous checkpoint, which is not to be retained, has a temporary name.
    PreviousAside,
    /// It is deleted.
    PreviousDeleted,
}

impl FaultPoint {
    /// All points, in order.
    pub const ALL: [FaultPoint; 17] = [
        FaultPoint::Cleaned,
        FaultPoint::FolderCreated,
        FaultPoint::ShardHeader,
        FaultPoint::ShardData,
        FaultPoint::ShardFile,
        FaultPoint::ShardIndex,
        FaultPoint::Manifest,
        FaultPoint::FolderSynced,
        FaultPoint::OldAside,
        FaultPoint::Renamed,
        FaultPoint::ParentSynced,
        FaultPoint::TrackerWritten,
        FaultPoint::TrackerRenamed,
        FaultPoint::TrackerSynced,
        FaultPoint::OldDeleted,
        FaultPoint::PreviousAside,
        FaultPoint::PreviousDeleted,
    ];
}

/// Called at each [`FaultPoint`]; an error ends the save there and then. For tests.
pub type FaultHook = Arc<dyn Fn(FaultPoint) -> io::Result<()> + Send + Sync>;

/// How to save.
#[derive(Clone, Default)]
pub struct SaveOptions {
    /// `--save-retain-interval`: after a save, delete the previous checkpoint unless its iteration is a multiple of this.
    /// `None` keeps all.
    pub retain_interval: Option<NonZeroU64>,
    /// Stops the save, in tests.
    pub faults: Option<FaultHook>,
}

/// One save in progress, as one rank sees it.
#[derive(Clone)]
pub struct Save {
    root: PathBuf,
    iteration: u64,
    unique: String,
    tmp: PathBuf,
    options: SaveOptions,
}

/// What [`Save::commit`] has done.
#[derive(Debug)]
pub struct Committed {
    /// The checkpoint's folder.
    pub folder: PathBuf,
    /// Old checkpoints that could not be deleted. The new one is good all the same.
    pub not_deleted: Vec<Error>,
}

impl Save {
    /// Starts a save: creates `root`, removes what killed runs have left there, and creates the temporary folder. The
    /// coordinator calls this once; the other ranks then call [`Save::join`] with the same arguments.
    ///
    /// `unique` (letters, digits, hyphens) sets this save apart from any other at work, for example the process id.
    /// It does not appear inside the checkpoint. One save at a time may be at work under `root`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadEntry`] for an unfit `unique`.
    pub fn begin(root: impl AsRef<Path>, iteration: u64, unique: &str, options: SaveOptions) -> Result<Save> {
        let save = Save::join(root, iteration, unique, options)?;
        fs::create_dir_all(&save.root).io("create", &save.root)?;
        clean(&save.root)?;
        save.reached(FaultPoint::Cleaned, &save.root)?;
        fs::create_dir(&save.tmp).io("create", &save.tmp)?;
        save.reached(FaultPoint::FolderCreated, &save.tmp)?;
        Ok(save)
    }

    /// Joins a save that the coordinator has begun. Touches no file.
    ///
    /// # Errors
    /// [`Error::BadEntry`] for an unfit `unique`.
    pub fn join(root: impl AsRef<Path>, iteration: u64, unique: &str, options: SaveOptions) -> Result<Save> {
        if !layout::is_unique(unique) {
            return Err(Error::entry(unique, "a save is told apart by 1 to 64 letters, digits and hyphens"));
        }
        let root = root.as_ref().to_owned();
        let tmp = root.join(format!("{}.tmp-{unique}", Step::Iteration(iteration).folder()));
        Ok(Save { root, iteration, unique: unique.into(), tmp, options })
    }

    /// Writes what rank `rank` holds, as a stream, and makes it durable. Each rank calls this once.
    ///
    /// # Errors
    /// [`Error::BadEntry`] if an entry contradicts itself, [`Error::Fill`], [`Error::Io`].
    pub fn write_shard(&self, rank: usize, entries: Vec<Entry<'_>>) -> Result<()> {
        let index = entries.iter().map(IndexEntry::new).collect();
        let tensors = entries.into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let path = self.tmp.join(layout::shard_file(rank));
        let hooks =
            Hooks { header: &|| self.hook(FaultPoint::ShardHeader), piece: &|| self.hook(FaultPoint::ShardData) };
        let (bytes, checksum) = write_tensors(&path, &[("format", "ferrotron")], tensors, &hooks)?;
        self.reached(FaultPoint::ShardFile, &path)?;
        let path = self.tmp.join(layout::shard_index(rank));
        let checksum = checksum.to_string();
        let index = ShardIndex { rank, iteration: self.iteration, bytes, checksum, entries: index };
        write_durably(&path, &index.encode(&path)?)?;
        sync_folder(&self.tmp)?;
        self.reached(FaultPoint::ShardIndex, &path)
    }

    /// Completes the checkpoint: manifest, rename, tracker; then deletes what is no longer wanted. The coordinator calls
    /// this once, after all of `ranks` have returned from [`Save::write_shard`].
    ///
    /// # Errors
    /// [`Error::MissingShard`] if a rank has not written, [`Error::Damaged`] if what it wrote is not there whole,
    /// [`Error::Io`]. Until the tracker file is renamed, an error leaves the previous checkpoint the last good one.
    pub fn commit(self, common: Common, ranks: impl IntoIterator<Item = usize>) -> Result<Committed> {
        if common.iteration != self.iteration {
            let why = format!("state of iteration {} in a save of iteration {}", common.iteration, self.iteration);
            return Err(Error::entry("common", why));
        }
        let mut ranks: Vec<usize> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        let shards = ranks.into_iter().map(|rank| self.shard(rank)).collect::<Result<_>>()?;
        let path = self.tmp.join(MANIFEST);
        write_durably(&path, &Manifest { common, shards }.encode(&path)?)?;
        self.reached(FaultPoint::Manifest, &path)?;
        sync_folder(&self.tmp)?;
        self.reached(FaultPoint::FolderSynced, &self.tmp)?;

        let name = Step::Iteration(self.iteration).folder();
        let folder = self.root.join(&name);
        let aside = self.move_aside(&name, &folder)?;
        rename(&self.tmp, &folder)?;
        self.reached(FaultPoint::Renamed, &folder)?;
        sync_folder(&self.root)?;
        self.reached(FaultPoint::ParentSynced, &self.root)?;

        let previous = layout::read_tracker(&self.root);
        self.write_tracker()?;

        let mut not_deleted = vec![];
        if let Some(old) = aside {
            not_deleted.extend(fs::remove_dir_all(&old).io("delete", &old).err());
            self.reached(FaultPoint::OldDeleted, &old)?;
        }
        // A tracker that could not be read names nothing to delete; it has been replaced by a good one.
        if let Ok(Some(Step::Iteration(n))) = previous {
            self.drop_previous(n, &mut not_deleted)?;
        }
        Ok(Committed { folder, not_deleted })
    }

    /// The manifest's record of a rank's shard, after a look at what is there.
    fn shard(&self, rank: usize) -> Result<ShardFile> {
        let (file, index) = (layout::shard_file(rank), layout::shard_index(rank));
        for path in [self.tmp.join(&file), self.tmp.join(&index)] {
            if !path.exists() {
                return Err(Error::MissingShard { rank, path });
            }
        }
        let (content, index_checksum) = ShardIndex::read(&self.tmp.join(&index))?;
        let path = self.tmp.join(&file);
        let bytes = SafetensorsFile::open(&path)?.file_len();
        if bytes != content.bytes || content.rank != rank || content.iteration != self.iteration {
            let why = format!("{bytes} bytes, but rank {} wrote {}", content.rank, content.bytes);
            return Err(Error::damaged(&path, why));
        }
        let index_checksum = index_checksum.to_string();
        Ok(ShardFile { rank, file, bytes, checksum: content.checksum, index, index_checksum })
    }

    /// Makes room for the new folder. Returns where the old one is, if it is one of ours and hence to be deleted; a
    /// checkpoint of another program is kept, under a name that is never cleaned up.
    fn move_aside(&self, name: &str, folder: &Path) -> Result<Option<PathBuf>> {
        if fs::symlink_metadata(folder).is_err() {
            return Ok(None);
        }
        let ours = folder.join(MANIFEST).exists();
        let aside = self.root.join(format!("{name}.{}-{}", if ours { "old" } else { "kept" }, self.unique));
        rename(folder, &aside)?;
        self.reached(FaultPoint::OldAside, &aside)?;
        Ok(ours.then_some(aside))
    }

    fn write_tracker(&self) -> Result<()> {
        let tracker = self.root.join(TRACKER);
        let tmp = self.root.join(format!("{TRACKER}.tmp-{}", self.unique));
        write_durably(&tmp, &self.iteration.to_string())?;
        self.reached(FaultPoint::TrackerWritten, &tmp)?;
        rename(&tmp, &tracker)?;
        self.reached(FaultPoint::TrackerRenamed, &tracker)?;
        sync_folder(&self.root)?;
        self.reached(FaultPoint::TrackerSynced, &tracker)
    }

    /// Megatron's rule for `--save-retain-interval`; links and other programs' folders stay.
    fn drop_previous(&self, previous: u64, not_deleted: &mut Vec<Error>) -> Result<()> {
        let Some(interval) = self.options.retain_interval else { return Ok(()) };
        let name = Step::Iteration(previous).folder();
        let folder = self.root.join(&name);
        let is_folder = fs::symlink_metadata(&folder).is_ok_and(|m| m.is_dir());
        if previous == self.iteration || previous % interval == 0 || !is_folder || !folder.join(MANIFEST).exists() {
            return Ok(());
        }
        // Under a temporary name first: a deletion that is cut short must not leave half a checkpoint under a good name.
        let doomed = self.root.join(format!("{name}.tmp-drop-{}", self.unique));
        let renamed = rename(&folder, &doomed);
        self.reached(FaultPoint::PreviousAside, &doomed)?;
        not_deleted.extend(renamed.and_then(|()| fs::remove_dir_all(&doomed).io("delete", &doomed)).err());
        self.reached(FaultPoint::PreviousDeleted, &doomed)
    }

    fn hook(&self, point: FaultPoint) -> io::Result<()> {
        self.options.faults.as_ref().map_or(Ok(()), |hook| hook(point))
    }

    fn reached(&self, point: FaultPoint, path: &Path) -> Result<()> {
        self.hook(point).io("save", path)
    }
}

/// The entry as a tensor of its shard file: with the local copy's shape if it is that, else flat.
fn tensor(e: Entry<'_>) -> Result<TensorSource<'_>> {
    let name = e.key();
    let local = geometry::check_spec(&e.spec, e.dtype).map_err(|why| Error::entry(&name, why))?;
    if e.range.start > e.range.end || e.range.end > local {
        return Err(Error::entry(&name, format!("range {:?} of a local copy of {local} elements", e.range)));
    }
    let stacked = match e.spec.boxes.split_first() {
        Some((first, rest)) if e.range == (0..local) && rest.iter().all(|b| b.len.get(1..) == first.len.get(1..)) => {
            let mut shape = first.len.clone();
            if let Some(rows) = shape.first_mut() {
                *rows += rest.iter().map(|b| b.len[0]).sum::<usize>();
            }
            // Several boxes of a scalar are no tensor of rank 0.
            (shape.iter().product::<usize>() == local).then_some(shape)
        }
        _ => None,
    };
    let shape = stacked.unwrap_or_else(|| vec![e.range.len()]);
    Ok(TensorSource { name, dtype: e.dtype, shape, data: e.data })
}

/// Removes what killed saves have left, by the names that only this program gives. A checkpoint that was moved aside
/// while nothing took its place gets its name back.
fn clean(root: &Path) -> Result<()> {
    let mut moved = false;
    for name in layout::names(root)? {
        let path = root.join(&name);
        match layout::classify(&name) {
            Folder::Temporary => fs::remove_dir_all(&path).io("delete", &path)?,
            Folder::Aside(n) => {
                let folder = root.join(Step::Iteration(n).folder());
                if fs::symlink_metadata(&folder).is_ok() {
                    fs::remove_dir_all(&path).io("delete", &path)?;
                } else {
                    rename(&path, &folder)?;
                    moved = true;
                }
            }
            Folder::Complete(_) | Folder::Other => {
                let unique = name.strip_prefix(TRACKER).and_then(|s| s.strip_prefix(".tmp-"));
                if unique.is_some_and(layout::is_unique) {
                    fs::remove_file(&path).io("delete", &path)?;
                }
            }
        }
    }
    if moved { sync_folder(root) } else { Ok(()) }
}

fn write_durably(path: &Path, text: &str) -> Result<()> {
    let mut file = File::create_new(path).io("create", path)?;
    file.write_all(text.as_bytes()).io("write", path)?;
    file.sync_all().io("fsync", path)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).io("rename", from)
}

/// Makes names in a folder durable.
fn sync_folder(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|f| f.sync_all()).io("fsync", dir)
}

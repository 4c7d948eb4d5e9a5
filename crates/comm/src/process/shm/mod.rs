//! Shared memory between the processes of a host: one ring for each sender and receiver, and a bell for each receiver.
//!
//! The file is unlinked as soon as all have it mapped, so nothing is left behind, however a process ends. Its memory is
//! reserved at once (`fallocate`): a `/dev/shm` that is too small is an error at the start and not a SIGBUS later.

mod futex;
mod map;
mod ring;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use ring::Receiver;
pub(crate) use ring::Ring;

use map::Map;

/// A file that is deleted when this drops.
pub(crate) struct Linked(PathBuf);

impl Drop for Linked {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Mapped shared memory of `n` processes.
pub(crate) struct Shared {
    map: Arc<Map>,
}

/// Which memory two processes share: the kernel's boot and the device of the folder.
pub(crate) fn place(folder: &Path) -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {}", boot.trim(), std::fs::metadata(folder)?.dev()))
}

/// Makes the file for `n` processes with rings of `ring` bytes.
pub(crate) fn create(folder: &Path, name: &str, n: usize, ring: usize) -> io::Result<(Linked, Shared)> {
    let path = folder.join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    let linked = Linked(path);
    let bytes = map::bytes(n, ring).ok_or(io::ErrorKind::StorageFull)?;
    map::reserve(&file, bytes)?;
    Ok((linked, open_file(&file, n, ring)?))
}

/// Opens what [`create`] made.
pub(crate) fn open(folder: &Path, name: &str, n: usize, ring: usize) -> io::Result<Shared> {
    let file = OpenOptions::new().read(true).write(true).open(folder.join(name))?;
    open_file(&file, n, ring)
}

fn open_file(file: &File, n: usize, ring: usize) -> io::Result<Shared> {
    Ok(Shared { map: Arc::new(Map::new(file, n, ring)?) })
}

/// Bytes that [`create`] needs, for messages.
pub(crate) fn needed(n: usize, ring: usize) -> usize {
    map::bytes(n, ring).unwrap_or(usize::MAX)
}

impl Shared {
    /// The sending end of the ring from process `me` to `to`. One owner in all processes.
    pub(crate) fn sender(&self, me: usize, to: usize) -> Ring {
        Ring::new(self.map.clone(), me, to)
    }

    /// The receiving end of all rings to process `me`. One owner in all processes.
    pub(crate) fn receiver(&self, me: usize) -> Receiver {
        Receiver::new(self.map.clone(), me)
    }
}

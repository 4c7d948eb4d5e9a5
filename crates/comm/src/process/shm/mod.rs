//! Shared memory between the processes of a host: one ring for each sender and receiver, and a bell for each receiver.
//!
//! The file never has a name: the others open it through the maker's descriptor in `/proc`. So nothing is left behind,
//! at whatever moment a process is killed. Its memory is reserved at once (`fallocate`): a `/dev/shm` that is too small is
//! an error at the start and not a SIGBUS later.

mod futex;
mod map;
mod ring;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use ring::Receiver;
pub(crate) use ring::Ring;

use map::Map;

/// Mapped shared memory of `n` processes.
pub(crate) struct Shared {
    map: Arc<Map>,
}

/// Which memory two processes share: the kernel's boot and the device of the folder.
pub(crate) fn place(folder: &Path) -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {}", boot.trim(), std::fs::metadata(folder)?.dev()))
}

/// Makes the file for `n` processes with rings of `ring` bytes, with a token behind them. It must stay open until all
/// have opened it.
pub(crate) fn create(folder: &Path, token: &[u8], n: usize, ring: usize) -> io::Result<(File, Shared)> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(folder)?;
    let bytes = map::bytes(n, ring).ok_or(io::ErrorKind::StorageFull)?;
    map::reserve(&file, bytes)?;
    file.write_all_at(token, bytes as u64)?;
    let map = Arc::new(Map::new(&file, n, ring)?);
    Ok((file, Shared { map }))
}

/// Where other processes find a file of this one.
pub(crate) fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

/// Opens what [`create`] made. Where process numbers mean something else, the token is not there.
pub(crate) fn open(path: &Path, token: &[u8], n: usize, ring: usize) -> io::Result<Shared> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let map = Arc::new(Map::new(&file, n, ring)?);
    let mut theirs = vec![0; token.len()];
    file.read_exact_at(&mut theirs, map.bytes() as u64)?;
    if theirs != token {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is of another job"));
    }
    Ok(Shared { map })
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

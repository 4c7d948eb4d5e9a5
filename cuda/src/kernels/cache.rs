//! Machine code that NVRTC made, kept in a file of the user's cache folder.
//!
//! A file is named after sources, chip and compiler; its head says so again, with length and hash of the code. A file that
//! does not say what it should, or is cut or damaged, counts as none. Files are written aside and renamed, so several
//! processes may start at once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ferrotron_base::fnv::{FNV, fnv};
use ferrotron_cuda_kernels::fingerprint;

/// The first line of a file; the number changes with its layout and with the compiler's options.
const TITLE: &[u8] = b"ferrotron kernels 1\n";
/// Title, key, length and hash of the code.
const HEAD: usize = TITLE.len() + 24;
/// Most bytes of a file that is read.
const MOST: u64 = 64 << 20;

/// The place of one image.
pub struct Cache {
    path: PathBuf,
    key: u64,
}

impl Cache {
    /// For code of the embedded sources by this version of NVRTC for a chip.
    pub fn new(folder: &Path, (major, minor): (i32, i32), chip: u32) -> Cache {
        let title = format!("{:016x}-sm_{chip}-nvrtc_{major}.{minor}", fingerprint());
        let key = fnv(fnv(FNV, TITLE.iter().copied()), title.bytes());
        Cache { path: folder.join(format!("cuda-kernels-{title}")), key }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn head(&self, code: &[u8]) -> Vec<u8> {
        let numbers = [self.key, code.len() as u64, fnv(FNV, code.iter().copied())];
        [TITLE, &numbers.map(u64::to_le_bytes).concat()].concat()
    }

    /// The code, if the file is there and whole.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        // one byte more than may be: what is larger is not ours, and is not read into memory
        File::open(&self.path).ok()?.take(MOST + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() <= HEAD || bytes.len() as u64 > MOST {
            return None;
        }
        let code = bytes.split_off(HEAD);
        (bytes == self.head(&code)).then_some(code)
    }

    /// Keeps code.
    pub fn write(&self, code: &[u8]) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // a name that no other process takes, on this host or on another with the same home
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let mut aside = self.path.clone().into_os_string();
        aside.push(format!(".{}-{now}", std::process::id()));
        let aside = PathBuf::from(aside);
        let written = File::create_new(&aside).and_then(|mut f| {
            f.write_all(&self.head(code))?;
            f.write_all(code)
        });
        let done = written.and_then(|()| fs::rename(&aside, &self.path));
        if done.is_err() {
            // what is left of it is of no use; that it cannot be removed either changes nothing
            let _ = fs::remove_file(&aside);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_of_the_same_making_are_taken() {
        let folder = std::env::temp_dir().join(format!("ferrotron-kernel-cache-{}", std::process::id()));
        let cache = Cache::new(&folder.join("deep/er"), (12, 4), 90);
        assert_eq!(cache.read(), None);
        cache.write(b"machine code").expect("a folder");
        assert_eq!(cache.read().as_deref(), Some(&b"machine code"[..]));
        assert_eq!(fs::read_dir(folder.join("deep/er")).expect("the folder").count(), 1, "nothing is left aside");

        let whole = fs::read(cache.path()).expect("the file");
        for i in 0..whole.len() {
            let mut other = whole.clone();
            other[i] ^= 4;
            fs::write(cache.path(), &other).expect("written");
            assert_eq!(cache.read(), None, "byte {i} damaged");
            fs::write(cache.path(), &whole[..i]).expect("written");
            assert_eq!(cache.read(), None, "cut at {i}");
        }
        fs::write(cache.path(), [&whole[..], b"!"].concat()).expect("written");
        assert_eq!(cache.read(), None, "longer");
        cache.write(b"machine code").expect("a folder");
        assert_eq!(fs::read(cache.path()).expect("the file"), whole, "a damaged file is replaced");

        // under another's name
        for other in [((12, 5), 90), ((13, 4), 90), ((12, 4), 80)] {
            let other = Cache::new(&folder, other.0, other.1);
            assert_ne!(other.path().file_name(), cache.path().file_name());
            fs::write(other.path(), &whole).expect("written");
            assert_eq!(other.read(), None);
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}

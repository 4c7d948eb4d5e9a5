//! The event file: records of (length u64, masked CRC of the length, bytes, masked CRC of the bytes), little-endian.
//!
//! A record holds an `Event { wall_time: double = 1, step: int64 = 2, file_version: string = 3, summary = 5 }`; a
//! `Summary { value = 1 }` holds `Value { tag: string = 1, simple_value: float = 2 }`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::crc32c::masked;
use super::tags::Scalar;
use crate::MetricsFileError;
use crate::proto::{put_bytes, put_double, put_float, put_int};
use crate::timestamp::Timestamp;

/// Writes scalars into one event file. Each call of [`EventWriter::write`] reaches the operating system at once.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// Creates a new event file in `folder` (`--tensorboard-dir`), and the folder when missing. TensorBoard joins all
    /// files of a folder, so a resumed run simply adds one.
    pub fn create(folder: &Path, now: Timestamp) -> Result<EventWriter, MetricsFileError> {
        let fail = |action, path: &Path, source| MetricsFileError { action, path: path.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(|source| fail("create the folder of", folder, source))?;
        let seconds = now.seconds() as u64;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let name = format!("events.out.tfevents.{seconds:010}.{host}.{}", std::process::id());
        // Two writers of one process within a second differ in the number behind the process id.
        let mut attempt = 0_u32;
        let (file, path) = loop {
            let path = folder.join(format!("{name}.{attempt}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
                Err(source) => return Err(fail("create", &path, source)),
            }
        };
        let mut writer = EventWriter { file, path };
        writer.append(&record(&version_event(now.seconds())))?;
        Ok(writer)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends scalars, all with the time `now`.
    pub fn write(&mut self, scalars: &[Scalar], now: Timestamp) -> Result<(), MetricsFileError> {
        let bytes: Vec<u8> = scalars.iter().flat_map(|scalar| record(&scalar_event(now.seconds(), scalar))).collect();
        self.append(&bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), MetricsFileError> {
        let fail = |source| MetricsFileError { action: "write", path: self.path.clone(), source };
        self.file.write_all(bytes).map_err(fail)
    }
}

/// TFRecord framing.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked(data).to_le_bytes());
    out
}

fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

fn scalar_event(wall_time: f64, scalar: &Scalar) -> Vec<u8> {
    let mut value = Vec::new();
    put_bytes(&mut value, 1, scalar.tag.as_bytes());
    put_float(&mut value, 2, scalar.value);
    let mut summary = Vec::new();
    put_bytes(&mut summary, 1, &value);
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_int(&mut event, 2, scalar.step);
    put_bytes(&mut event, 5, &summary);
    event
}

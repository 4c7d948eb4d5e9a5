//! The error of everything that touches a device. Cloneable: a stream's first error is reported by every later call.

use std::fmt;

/// Result with the device [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong on or around a device.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Arguments of an op disagree: a mistake in the code above, found before the kernel runs.
    #[error("{op}: {what} should be {expected}, not {got}")]
    Mismatch {
        /// The op.
        op: &'static str,
        /// Which argument or quantity.
        what: &'static str,
        /// What the other arguments imply.
        expected: String,
        /// What was passed.
        got: String,
    },
    /// The device has no kernel for this.
    #[error("{op} is not available on {device}: {why}")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// The device's name.
        device: String,
        /// Which dtype, size or feature is missing, and what to use instead.
        why: String,
    },
    /// The device's memory is used up.
    #[error(
        "out of memory on {device}: {wanted} bytes wanted for {what}, {in_use} of {limit} in use; \
         lower --micro-batch-size or --seq-length, or use --recompute-granularity full"
    )]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// What the memory was for.
        what: &'static str,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes in use.
        in_use: usize,
        /// Bytes there are.
        limit: usize,
    },
    /// The driver or runtime reported an error.
    #[error("{device}: {what}")]
    Device {
        /// The device's name.
        device: String,
        /// The driver's words, and ours.
        what: String,
    },
    /// A parameter was used outside the time its memory is there, or not registered at all.
    #[error("parameter {name}: {what}")]
    Parameter {
        /// The parameter's name.
        name: String,
        /// What was wrong.
        what: String,
    },
    /// Another rank or stream failed first; its cause is quoted.
    #[error("aborted: {0}")]
    Aborted(String),
    /// The input data broke a promise (for example a token id beyond the vocabulary).
    #[error("{0}")]
    Data(String),
}

impl Error {
    /// [`Error::Mismatch`] from two values.
    pub fn mismatch(op: &'static str, what: &'static str, expected: impl fmt::Debug, got: impl fmt::Debug) -> Error {
        Error::Mismatch { op, what, expected: format!("{expected:?}"), got: format!("{got:?}") }
    }
}

/// `Ok` when the two agree, else [`Error::Mismatch`].
pub fn expect<T: PartialEq + fmt::Debug>(op: &'static str, what: &'static str, expected: T, got: T) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::mismatch(op, what, expected, got)) }
}

//! Images of kernels, as a driver reads them: a fatbin, of which it takes what suits its chip, machine code, PTX.

use std::ffi::CStr;

use ferrotron_cuda_kernels::{Cubin, Damaged, FATBIN_MAGIC, Kind, Ptx, fatbin_entries, fatbin_length};
use ferrotron_cuda_sys::code;

/// Why an image is not taken.
pub struct Refusal {
    pub code: i32,
    pub why: String,
}

/// What is loaded of an image.
pub struct Loaded {
    /// Names.
    pub kernels: Vec<String>,
    /// The chip that the code is for: that of the machine code, or with PTX that of the device.
    pub chip: u32,
}

/// An image in the caller's memory.
pub enum Image<'a> {
    Fatbin(&'a [u8]),
    Cubin(&'a [u8]),
    Ptx(&'a str),
}

fn invalid(e: impl ToString) -> Refusal {
    Refusal { code: code::INVALID_IMAGE, why: e.to_string() }
}

impl<'a> Image<'a> {
    /// Finds out what is there.
    ///
    /// # Safety
    /// A fatbin, an ELF file, or a C string, which lives for `'a`.
    pub unsafe fn at(at: *const u8) -> Result<Image<'a>, Refusal> {
        // SAFETY: a C string ends at the first NUL; each byte is read only when the one before was none.
        let magic = [0, 1, 2, 3].map(|i| unsafe { if i == 0 || *at.add(i - 1) != 0 { *at.add(i) } else { 0 } });
        // SAFETY: the forms have headers of these sizes, and bytes as many as the headers state.
        let whole = |header: usize, length: fn(&[u8]) -> Result<usize, Damaged>| unsafe {
            let n = length(std::slice::from_raw_parts(at, header)).map_err(invalid)?;
            Ok(std::slice::from_raw_parts(at, n))
        };
        if magic == FATBIN_MAGIC.to_le_bytes() {
            Ok(Image::Fatbin(whole(16, fatbin_length)?))
        } else if magic == Cubin::MAGIC {
            Ok(Image::Cubin(whole(64, Cubin::length)?))
        } else {
            // SAFETY: what is neither is a C string.
            unsafe { CStr::from_ptr(at.cast()) }.to_str().map(Image::Ptx).map_err(invalid)
        }
    }

    /// Its name in faults.
    pub fn form(&self) -> &'static str {
        match self {
            Image::Fatbin(_) => "fatbin",
            Image::Cubin(_) => "cubin",
            Image::Ptx(_) => "ptx",
        }
    }

    /// Loads it for a chip by a driver for this CUDA (12040 is 12.4).
    pub fn load(&self, chip: u32, cuda: u32) -> Result<Loaded, Refusal> {
        match self {
            Image::Cubin(bytes) => cubin(bytes, chip, cuda),
            Image::Ptx(text) => ptx(text, chip, cuda),
            Image::Fatbin(bytes) => {
                let entries = fatbin_entries(bytes).map_err(invalid)?;
                let best =
                    entries.iter().filter(|e| e.kind == Kind::Cubin && runs(e.chip, chip)).max_by_key(|e| e.chip);
                if let Some(entry) = best {
                    return cubin(&entry.bytes, chip, cuda);
                }
                let text =
                    entries.iter().find(|e| e.kind == Kind::Ptx && e.chip <= chip).ok_or_else(|| no_binary(chip))?;
                ptx(std::str::from_utf8(&text.bytes).map_err(invalid)?, chip, cuda)
            }
        }
    }
}

/// Machine code runs on its chip and on later ones of the same first digit.
fn runs(code: u32, chip: u32) -> bool {
    code / 10 == chip / 10 && code <= chip
}

fn no_binary(chip: u32) -> Refusal {
    Refusal { code: code::NO_BINARY_FOR_GPU, why: format!("nothing for sm_{chip}") }
}

fn cubin(bytes: &[u8], chip: u32, cuda: u32) -> Result<Loaded, Refusal> {
    let cubin = Cubin::read(bytes).map_err(invalid)?;
    if !runs(cubin.chip, chip) {
        return Err(no_binary(chip));
    }
    // the second binary interface came with 10.0, in CUDA 12.8, and is that of all chips from CUDA 13 on
    let oldest = if cubin.abi < 8 { 12000 } else { 13000 - if cubin.chip >= 100 { 920 } else { 0 } };
    if cuda < oldest {
        return Err(invalid(format!("machine code for a driver for CUDA {}.{}", oldest / 1000, oldest % 1000 / 10)));
    }
    Ok(Loaded { kernels: cubin.kernels, chip: cubin.chip })
}

fn ptx(text: &str, chip: u32, cuda: u32) -> Result<Loaded, Refusal> {
    let ptx = Ptx::read(text).ok_or_else(|| invalid("neither fatbin nor machine code nor PTX"))?;
    if cuda < ptx.oldest_cuda() {
        let (major, minor) = ptx.version;
        return Err(Refusal {
            code: code::UNSUPPORTED_PTX_VERSION,
            why: format!("unsupported .version {major}.{minor}"),
        });
    }
    if ptx.chip > chip {
        return Err(no_binary(chip));
    }
    Ok(Loaded { kernels: ptx.kernels, chip })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrotron_cuda_kernels::{FATBIN, PTX};

    fn load(image: &[u8], chip: u32, cuda: u32) -> Result<u32, i32> {
        // SAFETY: whole images, and texts with their NUL.
        let image = unsafe { Image::at(image.as_ptr()) }.map_err(|r| r.code)?;
        image.load(chip, cuda).map(|l| l.chip).map_err(|r| r.code)
    }

    #[test]
    fn of_the_fatbin_each_chip_gets_what_suits_it() {
        for (chip, cuda, got) in [
            (80, 12000, Ok(80)),
            (86, 12000, Ok(80)),
            (89, 12000, Ok(80)),
            (90, 12000, Ok(90)),
            (100, 12080, Ok(100)),
            (103, 13000, Ok(100)),
            // no machine code: PTX, compiled for the chip
            (110, 13000, Ok(110)),
            (120, 12080, Ok(120)),
            (75, 12000, Err(code::NO_BINARY_FOR_GPU)),
            // a driver that knows neither the chip nor its code
            (100, 12040, Err(code::INVALID_IMAGE)),
        ] {
            assert_eq!(load(FATBIN, chip, cuda), got, "{chip} {cuda}");
        }
    }

    #[test]
    fn of_ptx_and_others_the_versions_count() {
        assert_eq!(load(PTX.as_bytes(), 120, 12000), Ok(120));
        assert_eq!(load(PTX.as_bytes(), 80, 11080), Err(code::UNSUPPORTED_PTX_VERSION));
        assert_eq!(load(b".version 8.8\n.target sm_80\n\0", 90, 12080), Err(code::UNSUPPORTED_PTX_VERSION));
        assert_eq!(load(b".version 8.8\n.target sm_100\n\0", 90, 12090), Err(code::NO_BINARY_FOR_GPU));
        assert_eq!(load(b"words\0", 90, 12090), Err(code::INVALID_IMAGE));
        assert_eq!(load(b"\0", 90, 12090), Err(code::INVALID_IMAGE));
        let ours = crate::cubin::make(90, &["add"]);
        assert_eq!((load(&ours, 90, 12000), load(&ours, 80, 12000)), (Ok(90), Err(code::NO_BINARY_FOR_GPU)));
    }
}

//! Machine code of kernels: ELF with CUDA's own marks. The marks were read off what `ptxas` 12 and 13 write.

use crate::{Damaged, number, part, size};

/// In a symbol's `st_other`: a kernel, not a function that kernels call.
pub const STO_CUDA_ENTRY: u8 = 0x10;
const SYMBOLS: u64 = 2;
const SYMBOL_SIZE: usize = 24;
const GLOBAL_FUNCTION: u8 = 0x12;
/// The machine `EM_CUDA`.
const MACHINE: u64 = 190;

/// What a cubin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Compute capability times ten: 90 is 9.0.
    pub chip: u32,
    /// The binary interface: 7 is CUDA 12's, 8 that of CUDA 13 and of chips from 10.0 on.
    pub abi: u8,
    /// Names of the kernels.
    pub kernels: Vec<String>,
}

impl Cubin {
    /// The first four bytes.
    pub const MAGIC: [u8; 4] = *b"\x7fELF";

    /// Reads one.
    pub fn read(bytes: &[u8]) -> Result<Cubin, Damaged> {
        if !bytes.starts_with(&Cubin::MAGIC) || number::<2>(bytes, 4)? != 0x0102 || number::<2>(bytes, 18)? != MACHINE {
            return Err(Damaged { what: "not an ELF file of a GPU", at: 0 });
        }
        let bytes = part(bytes, 0, Cubin::length(bytes)?)?;
        let (abi, flags) = (number::<1>(bytes, 8)? as u8, number::<4>(bytes, 48)? as u32);
        let chip = if abi < 8 { flags & 0xff } else { flags >> 8 & 0xffff };
        let (table, count) = (size::<8>(bytes, 40)?, size::<2>(bytes, 60)?);
        let mut kernels = Vec::new();
        for i in 0..count {
            let section = section(bytes, table, i)?;
            if section.kind == SYMBOLS {
                let names = self::section(bytes, table, section.link)?;
                kernels.extend(kernels_of(section.bytes, names.bytes)?);
            }
        }
        Ok(Cubin { chip, abi, kernels })
    }

    /// Bytes of a whole cubin, of which at least the header is given: the table of sections or of segments is last.
    pub fn length(header: &[u8]) -> Result<usize, Damaged> {
        let table = |at: usize, each: usize, count: usize| {
            let bytes = size::<2>(header, each)? * size::<2>(header, count)?; // 16 bits each
            size::<8>(header, at)?.checked_add(bytes).ok_or(Damaged { what: "a length beyond this machine", at })
        };
        Ok(table(40, 58, 60)?.max(table(32, 54, 56)?))
    }
}

struct Section<'a> {
    kind: u64,
    link: usize,
    bytes: &'a [u8],
}

fn section(file: &[u8], table: usize, i: usize) -> Result<Section<'_>, Damaged> {
    let at = table.checked_add(i * 64).ok_or(Damaged { what: "a length beyond the file", at: table })?;
    part(file, at, 64)?;
    let kind = number::<4>(file, at + 4)?;
    let bytes = if kind == 8 { &[][..] } else { part(file, size::<8>(file, at + 24)?, size::<8>(file, at + 32)?)? };
    Ok(Section { kind, link: size::<4>(file, at + 40)?, bytes })
}

fn kernels_of(symbols: &[u8], names: &[u8]) -> Result<Vec<String>, Damaged> {
    let mut found = Vec::new();
    for at in (0..symbols.len() / SYMBOL_SIZE).map(|i| i * SYMBOL_SIZE) {
        if symbols[at + 4] == GLOBAL_FUNCTION && symbols[at + 5] & STO_CUDA_ENTRY != 0 {
            let name = size::<4>(symbols, at)?;
            let rest = names.get(name..).ok_or(Damaged { what: "a name beyond its table", at: name })?;
            let end = rest.iter().position(|b| *b == 0).ok_or(Damaged { what: "a name without an end", at: name })?;
            found.push(String::from_utf8_lossy(&rest[..end]).into_owned());
        }
    }
    Ok(found)
}

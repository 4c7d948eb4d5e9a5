//! Machine code without code: an ELF file that names kernels, in the form of CUDA 12.

use ferrotron_cuda_kernels::STO_CUDA_ENTRY;

const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const GLOBAL_FUNCTION: u8 = 0x12;

/// A cubin for a chip: header, names, symbols, table of sections.
pub fn make(chip: u32, kernels: &[&str]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut symbols = vec![0u8; SYMBOL];
    for kernel in kernels {
        let mut symbol = [0u8; SYMBOL];
        symbol[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        (symbol[4], symbol[5]) = (GLOBAL_FUNCTION, STO_CUDA_ENTRY);
        symbols.extend(symbol);
        names.extend(kernel.as_bytes());
        names.push(0);
    }
    let (names_at, symbols_at) = (HEADER, HEADER + names.len());
    let sections_at = symbols_at + symbols.len();
    let mut file = vec![0u8; HEADER];
    file[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, 7]);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2u16.to_le_bytes()); // executable
    put(18, &190u16.to_le_bytes()); // of a GPU
    put(40, &(sections_at as u64).to_le_bytes());
    put(48, &(0x50_0500 | chip).to_le_bytes());
    put(58, &(SECTION as u16).to_le_bytes());
    put(60, &3u16.to_le_bytes());
    file.extend(&names);
    file.extend(&symbols);
    let mut section = |kind: u32, at: usize, n: usize, link: u32| {
        let mut head = [0u8; SECTION];
        head[4..8].copy_from_slice(&kind.to_le_bytes());
        head[24..32].copy_from_slice(&(at as u64).to_le_bytes());
        head[32..40].copy_from_slice(&(n as u64).to_le_bytes());
        head[40..44].copy_from_slice(&link.to_le_bytes());
        file.extend(head);
    };
    section(0, 0, 0, 0);
    section(3, names_at, names.len(), 0);
    section(2, symbols_at, symbols.len(), 1);
    file
}

#[cfg(test)]
mod tests {
    use ferrotron_cuda_kernels::Cubin;

    #[test]
    fn what_is_made_is_read() {
        let kernels = vec!["add".to_string(), "scale".to_string()];
        let file = super::make(90, &["add", "scale"]);
        assert_eq!(Cubin::read(&file), Ok(Cubin { chip: 90, abi: 7, kernels }));
    }
}

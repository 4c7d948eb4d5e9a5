use std::collections::BTreeSet;

use super::*;

fn sorted(names: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

#[test]
fn every_source_of_the_folder_ships() {
    let in_folder = std::fs::read_dir(folder()).expect("the folder").flatten().map(|e| e.file_name());
    let in_folder =
        in_folder.filter_map(|n| n.into_string().ok()).filter(|n| n.ends_with(".cu") || n.ends_with(".cuh"));
    assert_eq!(sorted(in_folder), sorted(SOURCES.iter().map(|(name, _)| *name)));
    assert_eq!(program().lines().count(), SOURCES.iter().filter(|(name, _)| name.ends_with(".cu")).count());
    for (name, text) in SOURCES {
        let included = text.lines().filter_map(|l| l.strip_prefix("#include \"")?.strip_suffix('"'));
        let known = |n: &str| n == "emulator.h" || SOURCES.iter().any(|(name, _)| *name == n);
        assert!(included.clone().all(known), "{name} includes what does not ship");
    }
}

#[test]
fn what_ships_is_made_of_the_kernels_that_stand_here() {
    let text = PTX.strip_suffix('\0').expect("a NUL");
    assert!(!text.contains('\0'));
    let first = text.lines().next().expect("a first line");
    assert_eq!(first, ptx_title(), "run cargo xtask cuda-check --write");
    let ptx = Ptx::read(text).expect("version and target");
    assert_eq!((ptx.version, ptx.chip, ptx.oldest_cuda()), ((8, 0), 80, 12000));
    assert_eq!(sorted(ptx.kernels.clone()), sorted(names()));
    assert_eq!(ptx.kernels.len(), names().count(), "no name twice");

    let entries = fatbin_entries(FATBIN).expect("kernels.fatbin");
    assert_eq!(fatbin_length(FATBIN), Ok(FATBIN.len()));
    let kinds: Vec<(Kind, u32)> = entries.iter().map(|e| (e.kind, e.chip)).collect();
    assert_eq!(kinds, [(Kind::Cubin, 80), (Kind::Cubin, 90), (Kind::Cubin, 100), (Kind::Ptx, 80)]);
    for entry in &entries {
        if entry.kind == Kind::Ptx {
            let inside = std::str::from_utf8(&entry.bytes).expect("PTX is ASCII");
            let hint = "kernels.fatbin is not made of kernels.ptx: run cargo xtask cuda-check --write";
            assert!(Ptx::bare(inside) == Ptx::bare(text), "{hint}");
        } else {
            let cubin = Cubin::read(&entry.bytes).expect("ELF");
            // chips before 10.0 in the form that every driver for CUDA 12 reads
            assert_eq!((cubin.chip, cubin.abi), (entry.chip, if entry.chip < 100 { 7 } else { 8 }));
            assert_eq!(Cubin::length(&entry.bytes), Ok(entry.bytes.len()));
            assert_eq!(sorted(cubin.kernels), sorted(names()), "sm_{}", entry.chip);
        }
    }
    assert!(FATBIN.len() < 3 << 19, "{} bytes: below 1.5 MiB", FATBIN.len());
    assert_eq!(FATBIN.as_ptr() as usize % 64, 0);
}

#[test]
fn damaged_machine_code_is_an_error() {
    let entries = fatbin_entries(FATBIN).expect("kernels.fatbin");
    let whole = &entries[0].bytes;
    for cut in [0, 3, 17, 63, 64, 1000, whole.len() / 2, whole.len() - 1] {
        assert!(Cubin::read(&whole[..cut]).is_err(), "{cut}");
    }
    // every byte of the header and of the first sections, all bits turned: an error or another reading, never a panic
    for i in (0..64).chain(whole.len() - 64 * 200..whole.len() - 64 * 190) {
        let mut other = whole.to_vec();
        other[i] ^= 0xff;
        let _ = Cubin::read(&other);
    }
    assert_eq!(Cubin::read(PTX.as_bytes()).expect_err("text").what, "not an ELF file of a GPU");
}

#[test]
fn versions_of_ptx_are_those_of_cuda() {
    let oldest = |version| Ptx { version, chip: 80, kernels: vec![] }.oldest_cuda();
    // NVIDIA's table of releases, "PTX ISA", release notes
    let table = [((8, 0), 12000), ((8, 4), 12040), ((8, 5), 12050), ((8, 6), 12070), ((8, 7), 12080), ((8, 8), 12090)];
    for (version, cuda) in table.into_iter().chain([((9, 0), 13000), ((9, 1), 13010)]) {
        assert_eq!(oldest(version), cuda, "{version:?}");
    }
    assert_eq!(Ptx::read(".version 9\n.target sm_80"), None);
    let wrapped = Ptx::read("//\n.version 8.7\n.target sm_90a, debug\n.visible .entry f(\n.entry g()").expect("PTX");
    assert_eq!((wrapped.chip, wrapped.kernels), (90, vec!["f".to_string(), "g".to_string()]));
    assert_eq!(Ptx::bare("a b // c\n\td\n"), "abd");
}

//! Damaged files: whatever the bytes, opening and reading end in a value or an error that names the file.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::sync::LazyLock;

use common::{Scratch, golden};
use ferrotron_data::indexed::Multimodal;
use ferrotron_data::npy::Array;
use ferrotron_data::{IndexedDataset, Tokens};
use proptest::prelude::*;
use proptest::sample::Index;

/// Opens a dataset whose `.idx` is `index`, and reads everything if that succeeds.
fn open_and_read(scratch: &Scratch, index: &[u8], modes: Multimodal) -> Result<u64, String> {
    fs::write(scratch.file("d.idx"), index).unwrap();
    let dataset = IndexedDataset::open(scratch.file("d"), modes).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    for i in 0..dataset.sequences() {
        out.clear();
        dataset.read_i64(i, 0, dataset.length(i), &mut out).map_err(|e| e.to_string())?;
        dataset.mode(i).map_err(|e| e.to_string())?;
    }
    for d in 0..dataset.documents() {
        dataset.document(d).map_err(|e| e.to_string())?;
    }
    Ok(dataset.tokens())
}

/// A `[5, 2]` array, written once: writing waits for the disk.
static SOUND_NPY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let path = scratch.file("a.npy");
    let values: Vec<i32> = (0..10).collect();
    Array::from(values.clone()).save(&path, 2).unwrap();
    assert!(Array::<i32>::open(&path, 2).unwrap().iter().eq(values));
    fs::read(&path).unwrap()
});

fn settings() -> ProptestConfig {
    ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn mutated_indices_never_panic(
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6), in_header: bool, multimodal: bool,
    ) {
        let scratch = Scratch::new();
        fs::copy(golden("data/m_modes_u16.bin"), scratch.file("d.bin")).unwrap();
        let intact = fs::read(golden("data/m_modes_u16.idx")).unwrap();
        let mut index = intact.clone();
        let reach = if in_header { 60 } else { index.len() };
        for (at, byte) in changes {
            index[at.index(reach)] = byte;
        }
        let modes = if multimodal { Multimodal::Yes } else { Multimodal::No };
        match open_and_read(&scratch, &index, modes) {
            // Every byte but the modes is determined by the others and the size of .bin.
            Ok(tokens) => {
                prop_assert_eq!(tokens, 233);
                let modes_at = index.len() - 22;
                prop_assert_eq!(&index[18..modes_at], &intact[18..modes_at]);
            }
            Err(message) => prop_assert!(message.contains("d.idx") || message.contains("d.bin"), "{message}"),
        }
    }

    #[test]
    fn cut_or_extended_indices_are_refused(length in 0usize..500) {
        let scratch = Scratch::new();
        fs::copy(golden("data/m_modes_u16.bin"), scratch.file("d.bin")).unwrap();
        let mut index = fs::read(golden("data/m_modes_u16.idx")).unwrap();
        let full = index.len();
        index.resize(length, 0);
        // Without its 22 modes the file is a sound text dataset.
        let sound = length == full || length == full - 22;
        prop_assert_eq!(open_and_read(&scratch, &index, Multimodal::No).is_ok(), sound);
        prop_assert_eq!(open_and_read(&scratch, &index, Multimodal::Yes).is_ok(), length == full);
    }

    #[test]
    fn random_bytes_after_a_sound_header_never_panic(counts: [u64; 2], rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let scratch = Scratch::new();
        fs::write(scratch.file("d.bin"), [0; 64]).unwrap();
        let mut index = b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08".to_vec();
        index.extend(counts.iter().flat_map(|c| c.to_le_bytes()));
        index.extend(rest);
        prop_assert!(open_and_read(&scratch, &index, Multimodal::No).is_err());
    }

    #[test]
    fn mutated_npy_files_never_panic(
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..5), cut in prop::option::of(0usize..170),
    ) {
        let scratch = Scratch::new();
        let path = scratch.file("a.npy");
        let mut bytes = SOUND_NPY.clone();
        for (at, byte) in changes {
            let reach = bytes.len();
            bytes[at.index(reach)] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        fs::write(&path, &bytes).unwrap();
        match Array::<i32>::open(&path, 2) {
            Ok(array) => prop_assert_eq!((array.len(), array.iter().count(), array.get(10)), (10, 10, None)),
            Err(e) => prop_assert!(e.to_string().contains("a.npy"), "{}", e),
        }
    }
}

#[test]
fn fields_are_named() {
    let scratch = Scratch::new();
    fs::copy(golden("data/a_u16.bin"), scratch.file("d.bin")).unwrap();
    let sound = fs::read(golden("data/a_u16.idx")).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut index = sound.clone();
        index[at..at + bytes.len()].copy_from_slice(bytes);
        open_and_read(&scratch, &index, Multimodal::No).unwrap_err()
    };
    // 50 sequences: lengths at 34, pointers at 234, document indices at 634.
    for (at, bytes, part) in [
        (0, &b"X"[..], "d.idx: magic"),
        (9, &[2], "d.idx: version: is 2"),
        (17, &[9], "d.idx: dtype: code 9"),
        (18, &u64::MAX.to_le_bytes(), "d.idx: size"),
        (26, &[0], "d.idx: document count"),
        (26, &u64::MAX.to_le_bytes(), "d.idx: size"),
        (34, &(-1i32).to_le_bytes(), "length -1 of sequence 0 is negative"),
        (242, &7i64.to_le_bytes(), "sequence 1 begins at byte 7, but the sequences before it end at"),
        (634, &1i64.to_le_bytes(), "d.idx: document_indices: entry 0 is 1"),
        (642, &(-1i64).to_le_bytes(), "entry 1 is -1"),
        (1034, &51i64.to_le_bytes(), "the last entry is 51, but there are 50 sequences"),
    ] {
        let message = with(at, bytes);
        assert!(message.contains(part), "{message}");
    }
    fs::write(scratch.file("d.bin"), [0; 100]).unwrap();
    let message = open_and_read(&scratch, &sound, Multimodal::No).unwrap_err();
    assert!(message.contains("d.bin: size: has 100 bytes") && message.contains("3382 bytes"), "{message}");
    fs::remove_file(scratch.file("d.bin")).unwrap();
    assert!(open_and_read(&scratch, &sound, Multimodal::No).unwrap_err().contains("cannot open"));
    fs::create_dir(scratch.file("d.bin")).unwrap();
    assert!(open_and_read(&scratch, &sound, Multimodal::No).unwrap_err().contains("not a regular file"));
}

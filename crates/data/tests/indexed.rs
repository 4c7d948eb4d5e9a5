//! `.bin`/`.idx` against Megatron's own files: read equal, written equal byte for byte, merged equal.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{Scratch, golden, i64s, read_json};
use ferrotron_data::indexed::{Multimodal, merge};
use ferrotron_data::{IndexedDataset, IndexedWriter, TokenType, Tokens};

const NAMES: [&str; 7] = ["a_u16", "b_i32", "c_long_u16", "f_many_u16", "m_modes_u16", "s_sent_i32", "z_zero_u16"];

fn mode_of(name: &str) -> Multimodal {
    if name == "m_modes_u16" { Multimodal::Yes } else { Multimodal::No }
}

#[test]
fn golden_files_read_and_written_again() {
    let scratch = Scratch::new();
    for name in NAMES {
        let json = read_json(&format!("data/{name}.json"));
        let dataset = IndexedDataset::open(golden(&format!("data/{name}")), mode_of(name)).unwrap();
        assert_eq!(dataset.token_type().name(), json["dtype"].as_str().unwrap());
        let lengths: Vec<i64> = (0..dataset.sequences()).map(|i| dataset.length(i) as i64).collect();
        assert_eq!(lengths, i64s(&json["sequence_lengths"]), "{name}");
        let pointers: Vec<i64> = (0..dataset.sequences()).map(|i| dataset.pointer(i).unwrap() as i64).collect();
        assert_eq!(pointers, i64s(&json["sequence_pointers"]), "{name}");
        let ends = (0..dataset.documents()).map(|d| dataset.document(d).unwrap().end as i64);
        assert_eq!(std::iter::once(0).chain(ends).collect::<Vec<_>>(), i64s(&json["document_indices"]), "{name}");

        let modes = json.get("modes").map(i64s);
        let target = scratch.file(name);
        let mut writer = match mode_of(name) {
            Multimodal::Yes => IndexedWriter::create_multimodal(&target, dataset.token_type()).unwrap(),
            Multimodal::No => IndexedWriter::create(&target, dataset.token_type()).unwrap(),
        };
        let mut i = 0;
        for document in json["documents"].as_array().unwrap() {
            for sequence in document.as_array().unwrap() {
                let expected = i64s(sequence);
                let (mut wide, mut narrow) = (Vec::new(), Vec::new());
                dataset.read_i64(i, 0, expected.len(), &mut wide).unwrap();
                assert_eq!(wide, expected, "{name} sequence {i}");
                dataset.read(i, 0, expected.len(), &mut narrow).unwrap();
                assert!(narrow.iter().map(|&t| i64::from(t)).eq(expected.iter().copied()));
                let mode = modes.as_ref().map(|m| m[i] as i8);
                assert_eq!(dataset.mode(i).unwrap(), mode);
                writer.add_sequence_with_mode(expected, mode.unwrap_or(0)).unwrap();
                i += 1;
            }
            writer.end_document();
        }
        assert_eq!(i, dataset.sequences());
        assert!(!target.with_extension("idx").exists(), "nothing may be visible before finish");
        writer.finish().unwrap();
        for extension in ["bin", "idx"] {
            let expected = fs::read(golden(&format!("data/{name}.{extension}"))).unwrap();
            assert!(fs::read(target.with_extension(extension)).unwrap() == expected, "{name}.{extension} differs");
        }
    }
    assert_eq!(scratch.names().len(), 2 * NAMES.len(), "no temporary file stays");
}

#[test]
fn merging_equals_megatrons_add_index() {
    let scratch = Scratch::new();
    let inputs = [golden("data/b_i32"), golden("data/s_sent_i32")];
    merge(scratch.file("merged"), &inputs, Multimodal::No).unwrap();
    for extension in ["bin", "idx"] {
        let expected = fs::read(golden(&format!("data/merged_i32.{extension}"))).unwrap();
        assert!(fs::read(scratch.file(&format!("merged.{extension}"))).unwrap() == expected);
    }
    let modes = [golden("data/m_modes_u16"), golden("data/m_modes_u16")];
    merge(scratch.file("modes"), &modes, Multimodal::Yes).unwrap();
    let twice = IndexedDataset::open(scratch.file("modes"), Multimodal::Yes).unwrap();
    assert_eq!((twice.sequences(), twice.documents()), (44, 16));
    assert_eq!(twice.mode(23).unwrap(), Some(1));

    let message = merge(scratch.file("mixed"), &[golden("data/b_i32"), golden("data/a_u16")], Multimodal::No);
    let message = message.unwrap_err().to_string();
    assert!(message.contains("a_u16 holds uint16") && message.contains("b_i32 holds int32"), "{message}");
    assert!(merge(scratch.file("none"), &[], Multimodal::No).is_err());
    assert!(
        !scratch.names().iter().any(|n| n.starts_with("mixed") || n.starts_with("none")),
        "a failure leaves nothing"
    );
}

#[test]
fn parts_are_read_and_overruns_refused() {
    let dataset = IndexedDataset::open(golden("data/a_u16"), Multimodal::No).unwrap();
    let length = dataset.length(3);
    let (mut all, mut part) = (Vec::new(), Vec::new());
    dataset.read(3, 0, length, &mut all).unwrap();
    dataset.read(3, 5, length - 5, &mut part).unwrap();
    assert_eq!(part, all[5..]);
    assert!(dataset.read(3, 5, length - 4, &mut part).is_err());
    assert!(dataset.read(3, usize::MAX, 2, &mut part).is_err());
    assert!(dataset.read(50, 0, 0, &mut part).unwrap_err().to_string().contains("sequence 50"));
    assert!(dataset.document(50).is_err());
    assert_eq!(part, all[5..], "a refused read appends nothing");
}

#[test]
fn every_element_type_round_trips() {
    let scratch = Scratch::new();
    for token_type in TokenType::ALL {
        let prefix = scratch.file(token_type.name());
        let mut writer = IndexedWriter::create(&prefix, token_type).unwrap();
        writer.add_sequence([1, 127, 0]).unwrap();
        writer.end_document();
        writer.end_document();
        writer.finish().unwrap();
        let dataset = IndexedDataset::open(&prefix, Multimodal::No).unwrap();
        assert_eq!((dataset.token_type(), dataset.documents(), dataset.tokens()), (token_type, 2, 3));
        let mut back = Vec::new();
        dataset.read(0, 0, 3, &mut back).unwrap();
        assert_eq!(back, [1, 127, 0]);
    }
}

#[test]
fn a_writer_refuses_what_would_be_lost() {
    let scratch = Scratch::new();
    let mut writer = IndexedWriter::create(scratch.file("u16"), TokenType::U16).unwrap();
    writer.add_sequence([65535]).unwrap();
    let message = writer.add_sequence([1, 65536]).unwrap_err().to_string();
    assert!(message.contains("token 1 of sequence 1 is 65536, which uint16 cannot hold"), "{message}");
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.contains("1 sequences follow the last end_document"), "{message}");
    assert_eq!(scratch.names(), [""; 0], "a failed writer leaves nothing");

    let mut writer = IndexedWriter::create(scratch.file("i64"), TokenType::I64).unwrap();
    writer.add_sequence([7, 1 << 31]).unwrap();
    writer.end_document();
    writer.finish().unwrap();
    let dataset = IndexedDataset::open(scratch.file("i64"), Multimodal::No).unwrap();
    let message = dataset.read(0, 0, 2, &mut Vec::new()).unwrap_err().to_string();
    assert!(message.contains("token 1 of sequence 0 is 2147483648"), "{message}");
}

//! What a user meets when data and flags do not fit: one message with the numbers, instead of Megatron's endless loop
//! or assertion.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Scratch, config, golden};
use ferrotron_data::{
    DataConfig, DataSource, Dataset, IndexedWriter, MockConfig, Sample, TokenType, build_datasets, resolve_pad_id,
};

fn message(config: &DataConfig) -> String {
    build_datasets(config).err().unwrap().to_string()
}

fn prefix(name: &str) -> String {
    golden(&format!("data/{name}")).to_str().unwrap().to_owned()
}

fn write(scratch: &Scratch, name: &str, sequences: &[&[i64]]) -> String {
    let path = scratch.file(name);
    let mut writer = IndexedWriter::create(&path, TokenType::I32).unwrap();
    for sequence in sequences {
        writer.add_sequence(sequence.iter().copied()).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn samples_from_a_split_without_documents() {
    // 50 documents: 0.999 * 50 = 49.95 rounds to 50, so the test split has none.
    let mut config = config(&[&prefix("a_u16")], "969, 30, 1", 32, 1);
    config.requested = [Some(10), Some(10), Some(5)];
    let text = message(&config);
    assert!(text.contains("the test split holds no tokens") && text.contains("documents 50..50"), "{text}");
    assert!(text.contains("5 samples were requested") && text.contains("50 documents"), "{text}");
    config.requested[2] = Some(0);
    let built = build_datasets(&config).unwrap();
    assert!(built.test.unwrap().is_empty(), "nothing asked, nothing given");
    config.requested[2] = None;
    assert!(message(&config).contains("one epoch of samples were requested"));
}

#[test]
fn data_shorter_than_one_sample() {
    let scratch = Scratch::new();
    let mut config = config(&[&write(&scratch, "short", &[&[1, 2, 3], &[4, 5]])], "100", 5, 1);
    let text = message(&config);
    assert!(text.contains("5 tokens") && text.contains("one sample needs 6"), "{text}");
    // With a request the documents are repeated until it is met: 3 samples of 5 and a label are 16 tokens.
    config.requested[0] = Some(3);
    let train = build_datasets(&config).unwrap().train.unwrap();
    assert_eq!(train.len(), (4 * 5 - 1) / 5);
}

#[test]
fn token_ids_beyond_the_vocabulary() {
    let scratch = Scratch::new();
    let mut config = config(&[&write(&scratch, "large", &[&[1, 2, 3, 4], &[5, 600, 7, 8]])], "100", 7, 1);
    config.gpt.rules.padded_vocab_size = 512;
    let train = build_datasets(&config).unwrap().train.unwrap();
    let text = train.get(0, &mut Sample::default()).unwrap_err().to_string();
    assert!(text.contains("large: token 1 of document 1 is 600") && text.contains("512 entries"), "{text}");
    config.gpt.rules.padded_vocab_size = 601;
    let train = build_datasets(&config).unwrap().train.unwrap();
    train.get(0, &mut Sample::default()).unwrap();
    assert!(train.get(1, &mut Sample::default()).unwrap_err().to_string().contains("sample 1 was asked for"));
}

#[test]
fn lists_splits_and_flags() {
    let a = prefix("a_u16");
    assert!(message(&config(&[&a], "0,0,0", 32, 1)).contains("sum to 0"));
    assert!(message(&config(&[&a], "-1,1,0", 32, 1)).contains("-1 is negative"));
    assert!(message(&config(&["-1", &a, "2", &a], "100", 32, 1)).contains("must be above 0"));
    assert!(message(&config(&["1", &a, "2", &a], "100", 32, 1)).contains("number of samples must be given"));
    assert!(message(&config(&["nowhere/at_all"], "100", 32, 1)).contains("nowhere/at_all.idx"));
    assert!(message(&config(&[&a], "100", 0, 1)).contains("--seq-length"));
    let mut no_eod = config(&[&a], "100", 32, 1);
    (no_eod.gpt.rules.eod, no_eod.gpt.rules.eod_mask_loss) = (None, true);
    assert!(message(&no_eod).contains("end-of-document"));
    let mut huge = config(&[&a], "100", 32, 1);
    huge.requested[0] = Some(u64::MAX / 16);
    assert!(message(&huge).contains("64-bit"));
    huge.requested[0] = Some(u64::MAX / 64);
    assert!(message(&huge).contains("could not be allocated"));
}

#[test]
fn a_blend_of_nothing_is_empty() {
    let (a, b) = (prefix("a_u16"), prefix("b_i32"));
    let mut config = config(&["1", &a, "3", &b], "98,2,0", 32, 1);
    config.requested = [Some(10), Some(0), Some(0)];
    let built = build_datasets(&config).unwrap();
    assert!(built.valid.unwrap().is_empty() && built.test.is_none());
    // Without weights, and with a validation share too small for one sample.
    config.source = DataSource::Shared { paths: vec![a, b], split: "98,2,0".to_owned() };
    config.gpt.sequence_length = 64;
    assert!(build_datasets(&config).unwrap().valid.unwrap().is_empty());
    config.requested[1] = Some(1);
    assert!(message(&config).contains("a_u16: the valid split has 34 tokens"));
}

#[test]
fn mock_data_are_deterministic_and_stay_in_the_vocabulary() {
    let mut config = config(&[], "", 16, 3);
    config.source = DataSource::Mock { corpus: MockConfig::for_sequence_length(16), split: "90,5,5".to_owned() };
    config.requested = [Some(100), Some(10), Some(10)];
    config.gpt.rules.padded_vocab_size = 40;
    let (one, two) = (build_datasets(&config).unwrap(), build_datasets(&config).unwrap());
    let (mut x, mut y) = (Sample::default(), Sample::default());
    let mut different = Vec::new();
    for i in 0..100 {
        one.train.as_ref().unwrap().get(i, &mut x).unwrap();
        two.train.as_ref().unwrap().get(i, &mut y).unwrap();
        assert_eq!(x, y);
        assert!(x.tokens.iter().chain(&x.labels).all(|id| (0..40).contains(id)));
        assert_eq!((x.tokens.len(), x.labels.len(), &x.segment_starts[..]), (16, 16, &[0][..]));
        different.push(x.tokens.clone());
    }
    different.sort();
    different.dedup();
    assert!(different.len() > 90, "{} different samples", different.len());
    let description = one.train.unwrap().description();
    assert!(description.contains("\"dataset_path\": null"), "{description}");
    config.gpt.rules.eod = None;
    assert!(message(&config).contains("--mock-data"));
}

#[test]
fn a_pad_id_with_another_meaning_is_not_used() {
    assert_eq!(resolve_pad_id(Some(5), &[0, 1], false), Some(5));
    assert_eq!(resolve_pad_id(Some(0), &[0, 1], false), None);
    assert_eq!(resolve_pad_id(Some(0), &[0, 1], true), Some(0));
    assert_eq!(resolve_pad_id(Some(-1), &[], true), None);
    assert_eq!(resolve_pad_id(None, &[], true), None);
}

//! Mistakes and surprises that users of other trainers met with datasets, by the ids of their collection.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Scratch, config};
use ferrotron_data::indexed::{IndexedDataset, Multimodal, merge, repair};
use ferrotron_data::{
    Blend, Cache, Dataset, IndexedWriter, RequestedSamples, Sample, SplitName, TokenType, Tokens, build_datasets,
    data_table,
};

fn write(scratch: &Scratch, name: &str, token_type: TokenType, documents: &[&[i64]]) -> PathBuf {
    let path = scratch.file(name);
    let mut writer = IndexedWriter::create(&path, token_type).unwrap();
    for document in documents {
        writer.add_sequence(document.iter().copied()).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Ten documents of `length` tokens with ids from 1 to 9.
fn ten(scratch: &Scratch, name: &str, length: usize) -> PathBuf {
    let documents: Vec<Vec<i64>> = (0..10).map(|d| (0..length as i64).map(|t| 1 + (d + t) % 9).collect()).collect();
    let documents: Vec<&[i64]> = documents.iter().map(Vec::as_slice).collect();
    write(scratch, name, TokenType::U16, &documents)
}

fn patch(prefix: &Path, at: usize, bytes: &[u8]) {
    let path = prefix.with_extension("idx");
    let mut index = fs::read(&path).unwrap();
    index[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, index).unwrap();
}

fn open_error(prefix: &Path) -> String {
    IndexedDataset::open(prefix, Multimodal::No).err().unwrap().to_string()
}

#[test]
fn dat_01_a_pointer_that_overflowed_is_named_at_open() {
    let scratch = Scratch::new();
    let prefix = ten(&scratch, "p", 7);
    patch(&prefix, 34 + 4 * 10 + 8 * 5, &(-2_147_483_000i64).to_le_bytes());
    let e = open_error(&prefix);
    assert!(
        e.contains("p.idx") && e.contains("sequence 5 begins at byte -2147483000") && e.contains("end at 70"),
        "{e}"
    );
}

#[test]
fn dat_03_the_wrong_element_type_is_found_by_the_sizes() {
    let scratch = Scratch::new();
    let prefix = write(&scratch, "p", TokenType::I32, &[&[1, 2, 70_000], &[3]]);
    patch(&prefix, 17, &[8]);
    // Pointers are in bytes: with 2-byte elements the second sequence would begin at 6.
    let e = open_error(&prefix);
    assert!(e.contains("sequence 1 begins at byte 12") && e.contains("end at 6"), "{e}");

    let prefix = write(&scratch, "q", TokenType::I32, &[&[1, 2, 150, 3]]);
    let mut config = config(&[text(&prefix)], "1", 3, 1);
    config.gpt.rules.padded_vocab_size = 100;
    let train = build_datasets(&config).unwrap().train.unwrap();
    let e = train.get(0, &mut Sample::default()).unwrap_err().to_string();
    assert!(e.contains("150") && e.contains("100") && e.contains('q'), "{e}");
}

#[test]
fn dat_04_merged_documents_keep_their_bounds() {
    let scratch = Scratch::new();
    let a = write(&scratch, "a_doc", TokenType::U16, &[&[1, 2, 3], &[]]);
    let b = write(&scratch, "b_doc", TokenType::U16, &[&[4, 5]]);
    let done = merge(scratch.file("ab"), &[a.clone(), b.clone()], Multimodal::No).unwrap();
    assert_eq!((done.datasets, done.documents, done.sequences, done.tokens), (2, 3, 3, 5));
    let ab = IndexedDataset::open(scratch.file("ab"), Multimodal::No).unwrap();
    assert_eq!((0..3).map(|i| ab.length(i)).collect::<Vec<_>>(), [3, 0, 2]);
    assert_eq!((0..3).map(|d| ab.document(d).unwrap()).collect::<Vec<_>>(), [0..1, 1..2, 2..3]);
    let bin = |p: &Path| fs::read(p.with_extension("bin")).unwrap();
    assert_eq!(bin(&scratch.file("ab")), [bin(&a), bin(&b)].concat());

    let wide = write(&scratch, "wide", TokenType::I32, &[&[1]]);
    let refused = |inputs: &[PathBuf], parts: &[&str]| {
        let e = merge(scratch.file("no"), inputs, Multimodal::No).unwrap_err().to_string();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
        assert!(!scratch.names().iter().any(|n| n.starts_with("no")), "nothing is written");
    };
    refused(&[a.clone(), b.clone(), wide], &["wide holds int32", "a_doc holds uint16", "2 of 3 inputs"]);
    let lost = |n: &str| scratch.file(n);
    refused(&[lost("x"), a.clone(), lost("y")], &["2 of 3 inputs cannot be used", "x.idx", "y.idx"]);
    refused(&[], &["nothing to merge"]);
    let e = merge(&a, &[a.clone(), b], Multimodal::No).unwrap_err().to_string();
    assert!(e.contains("is one of the inputs"), "{e}");
}

#[test]
fn dat_05_a_last_document_without_end_can_be_repaired() {
    let scratch = Scratch::new();
    let prefix = ten(&scratch, "old", 3);
    let index = fs::read(prefix.with_extension("idx")).unwrap();
    let mut short = index[..index.len() - 8].to_vec();
    short[26..34].copy_from_slice(&10u64.to_le_bytes());
    fs::write(prefix.with_extension("idx"), &short).unwrap();
    let e = open_error(&prefix);
    assert!(e.contains("the last entry is 9, but there are 10 sequences") && e.contains("corrected copy"), "{e}");

    assert_eq!(repair(&prefix, scratch.file("new")).unwrap(), 1);
    assert_eq!(fs::read(scratch.file("new.idx")).unwrap(), index);
    assert_eq!(fs::read(prefix.with_extension("idx")).unwrap(), short, "never in place");
    assert_eq!(IndexedDataset::open(scratch.file("new"), Multimodal::No).unwrap().tokens(), 30);
    let again = |from: &Path, to: &str| repair(from, scratch.file(to)).unwrap_err().to_string();
    assert!(again(&prefix, "new").contains("exists"));
    assert!(again(&scratch.file("new"), "other").contains("nothing to repair"));
    patch(&prefix, 34, &(-1i32).to_le_bytes());
    assert!(again(&prefix, "other").contains("negative"));
}

#[test]
fn dat_06_extreme_weights_run_to_the_end_and_are_reported() {
    let scratch = Scratch::new();
    let prefix = ten(&scratch, "tiny", 5);
    let p = text(&prefix);
    let mut config = config(&["0.001", p, "0.999", p], "1", 8, 1);
    config.requested[0] = Some(1000);
    let built = build_datasets(&config).unwrap();
    let (train, mut sample) = (built.train.clone().unwrap(), Sample::default());
    for i in 0..1000 {
        train.get(i, &mut sample).unwrap();
    }
    let table = data_table(&config, &built);
    assert_eq!(table.rows.iter().map(|r| r.samples).collect::<Vec<_>>(), [1, 999]);
    let notes = table.notes().join("\n");
    assert!(notes.contains("999 samples take 159.84 passes"), "{notes}");
    let e = Blend::parse("--data-path", &["1", p, "0", p]).unwrap_err().to_string();
    assert!(e.contains("weight 0 of") && e.contains("above 0"), "{e}");
}

#[test]
fn dat_07_weights_are_shares_of_samples() {
    let scratch = Scratch::new();
    let (a, b) = (ten(&scratch, "a", 50), ten(&scratch, "b", 90));
    let order = |wa: &str, wb: &str| {
        let mut config = config(&[wa, text(&a), wb, text(&b)], "1", 8, 1);
        config.requested[0] = Some(90);
        let built = build_datasets(&config).unwrap();
        let (train, mut sample) = (built.train.clone().unwrap(), Sample::default());
        let all: Vec<(usize, Vec<i32>)> = (0..90)
            .map(|i| {
                train.get(i, &mut sample).unwrap();
                (sample.member, sample.tokens.clone())
            })
            .collect();
        (all, data_table(&config, &built))
    };
    let (one, table) = order("1", "2");
    assert_eq!(one, order("10", "20").0);
    let row = |r: usize| (table.rows[r].weight.map(|w| (w * 1e4).round()), table.rows[r].samples, table.rows[r].tokens);
    assert_eq!((row(0), row(1)), ((Some(3333.0), 30, 500), (Some(6667.0), 60, 900)));
    let shown = table.to_string();
    for part in ["weight", "0.3333", "0.6667", "epochs", "samples of 8 tokens", text(&a)] {
        assert!(shown.contains(part), "{shown}");
    }
    for (words, part) in
        [(&["-1", "a", "1", "b"][..], "word 1"), (&["nan", "a"], "nan"), (&["1", "a", "x", "b"], "word 3")]
    {
        let e = Blend::parse("--data-path", words).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }
    // An odd list is prefixes: the number is taken for a file, which is not there, and that is said.
    let e = build_datasets(&config(&[text(&a), "1", text(&b)], "1", 8, 1)).err().unwrap().to_string();
    assert!(e.contains("1.idx"), "{e}");
}

#[test]
fn dat_10_no_evaluation_needs_no_validation_data() {
    let run = RequestedSamples {
        train_samples: None,
        train_iters: 10,
        global_batch_size: 4,
        eval_interval: 5,
        eval_iters: 0,
        skip_train: false,
        full_validation: false,
    };
    assert_eq!(run.per_split().unwrap(), [Some(40), Some(0), Some(0)]);
    let e = RequestedSamples { eval_interval: 0, ..run }.per_split().unwrap_err().to_string();
    assert!(e.contains("--eval-interval") && e.contains("--eval-iters 0"), "{e}");
    let scratch = Scratch::new();
    let prefix = ten(&scratch, "p", 50);
    let mut config = config(&[text(&prefix)], "100,0,0", 8, 1);
    config.requested = run.per_split().unwrap();
    let built = build_datasets(&config).unwrap();
    assert!(built.train.is_some() && built.valid.is_none() && built.test.is_none());
    assert!(data_table(&config, &built).rows.iter().all(|r| r.split == SplitName::Train));
}

#[test]
fn dat_11_the_table_shows_what_an_epoch_gives() {
    let scratch = Scratch::new();
    let prefix = ten(&scratch, "short", 5);
    let mut asked = config(&[text(&prefix)], "1", 32, 1);
    asked.requested[0] = Some(100);
    let built = build_datasets(&asked).unwrap();
    let table = data_table(&asked, &built);
    let r = &table.rows[0];
    assert_eq!((r.documents, r.tokens, r.samples), (10, 50, 100));
    // (50 - 1) / 32 samples an epoch, 100 * 32 / 50 epochs.
    assert!((r.samples_per_epoch - 1.531_25).abs() < 1e-9 && (r.epochs - 64.0).abs() < 1e-9, "{r:?}");
    let shown = table.to_string();
    assert!(shown.contains("1.53") && shown.contains("64.00") && shown.contains("note: "), "{shown}");

    let tiny = ten(&scratch, "tiny", 2);
    let e = build_datasets(&config(&[text(&tiny)], "1", 32, 1)).err().unwrap().to_string();
    assert!(e.contains("20 tokens") && e.contains("one sample needs 33"), "{e}");
    let mut asked = config(&[text(&tiny)], "1", 32, 1);
    asked.requested[0] = Some(3);
    let notes = data_table(&asked, &build_datasets(&asked).unwrap()).notes().join("\n");
    assert!(notes.contains("its 20 tokens are less than one sample of 32"), "{notes}");
}

/// Two nodes with caches of their own, and two processes that share one: all read the same samples.
#[test]
fn dat_13_every_node_builds_or_finds_its_cache() {
    let (scratch, first, second) = (Scratch::new(), Scratch::new(), Scratch::new());
    let prefix = ten(&scratch, "p", 40);
    let read = |cache: &Scratch| {
        let mut config = config(&[text(&prefix)], "1", 8, 1);
        config.cache = Cache::Dir(cache.0.clone());
        config.requested[0] = Some(200);
        let train = build_datasets(&config).unwrap().train.unwrap();
        let mut sample = Sample::default();
        (0..200)
            .map(|i| {
                train.get(i, &mut sample).unwrap();
                sample.tokens.clone()
            })
            .collect::<Vec<_>>()
    };
    let all: Vec<_> = std::thread::scope(|s| {
        let nodes = [&first, &second, &first, &second].map(|cache| s.spawn(move || read(cache)));
        nodes.into_iter().map(|n| n.join().unwrap()).collect()
    });
    assert!(all.iter().all(|samples| *samples == all[0]));
    assert_eq!(first.names(), second.names());
    assert!(!first.names().is_empty() && first.names().iter().all(|n| !n.ends_with(".tmp")), "{:?}", first.names());
}

#[test]
fn dat_15_segments_that_end_with_the_sample_are_not_empty() {
    let scratch = Scratch::new();
    let prefix =
        write(&scratch, "p", TokenType::U16, &[&[1, 2, 3, 9], &[4, 5, 6, 9], &[], &[7, 8, 1, 9], &[2, 3, 4, 9]]);
    let mut config = config(&[text(&prefix)], "1", 4, 1);
    config.gpt.rules.eod = Some(9);
    config.gpt.rules.reset_attention_mask = true;
    config.gpt.rules.reset_position_ids = true;
    let train = build_datasets(&config).unwrap().train.unwrap();
    let mut sample = Sample::default();
    for i in 0..train.len() {
        train.get(i, &mut sample).unwrap();
        let mut cu_seqlens = sample.segment_starts.clone();
        cu_seqlens.push(4);
        assert!(cu_seqlens[0] == 0 && cu_seqlens.is_sorted_by(|a, b| a < b), "{cu_seqlens:?} of {:?}", sample.tokens);
        for segment in cu_seqlens.windows(2) {
            let (from, to) = (segment[0] as usize, segment[1] as usize);
            assert_eq!(sample.position_ids[from..to], (0..segment[1] - segment[0]).collect::<Vec<_>>());
            assert!(sample.tokens[from..to - 1].iter().all(|&id| id != 9), "{:?}", sample.tokens);
        }
    }
}
